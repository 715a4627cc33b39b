"""Machine-time in service and interruptions, for tests of what they cost."""

from datetime import timedelta
from typing import Any

from fleet import services
from fleet.models import JobImpact, ServiceDay
from tests.factories import NOW, make_platform
from tests.fleet.test_services_impacts import told

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def serve(hours: float, *, kind: str = "pre_training", day: Any = NOW, **fields: Any) -> None:
    """Let machines of 8 accelerators have reported so many hours of service."""
    ServiceDay.objects.create(
        day=day.date(),
        platform=fields.pop("platform", None) or make_platform(),
        job_kind=kind,
        machines=1,
        service_hours=hours,
        first_machine=fields.pop("first_machine", 0),
        **fields,
    )


def record(**fields: Any) -> JobImpact:
    at = {"fault_at": NOW - HOUR, "resumed_at": NOW - HOUR + 10 * MINUTE, "cause": "hardware"}
    impact = told(**{**at, "job_kind": "pre_training", **fields})
    return services.record_impact(impact, source="trainer", now=NOW)[0]
