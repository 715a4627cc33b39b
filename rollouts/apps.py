"""The rollouts application."""

from django.apps import AppConfig


class RolloutsConfig(AppConfig):
    """Plans, evidence, decisions."""

    name = "rollouts"
    default_auto_field = "django.db.models.BigAutoField"
