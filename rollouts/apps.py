"""The rollouts application."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class RolloutsConfig(AppConfig):
    """Plans, evidence, decisions."""

    name = "rollouts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from rollouts.roles import create_groups

        # Permissions exist once the migrations are over, so the groups cannot be a migration.
        post_migrate.connect(create_groups, sender=self, dispatch_uid="rollouts.roles.groups")
