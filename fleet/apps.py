"""The fleet application."""

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class FleetConfig(AppConfig):
    """Machines, firmware, what machines report, what becomes of a broken one."""

    name = "fleet"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from fleet.appendonly import register_sqlite_function

        connection_created.connect(
            register_sqlite_function, dispatch_uid="fleet.appendonly.sqlite_function"
        )
