"""The virtual fleet."""

from django.apps import AppConfig


class SimulationConfig(AppConfig):
    """A seeded virtual fleet with known truth, behind the same doors as real machines."""

    name = "simulation"
    default_auto_field = "django.db.models.BigAutoField"
