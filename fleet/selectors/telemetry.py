"""How far telemetry has come."""

from datetime import datetime

from django.conf import settings

from fleet.models import CollectorCursor


def collected_until() -> datetime | None:
    """Return how far the collector has come, by the clock; None if it has never run."""
    return (
        CollectorCursor.objects.filter(collector=settings.COLLECTOR)
        .values_list("collected_until", flat=True)
        .first()
    )
