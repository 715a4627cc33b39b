"""Machine-time in service that was reported, by day and by kind of job."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import date

from django.db.models import Sum

from fleet.losses.impacts import Asked
from fleet.models import ServiceDay


@dataclass
class Time:
    """Machine-hours in service, and what they are in accelerator-hours."""

    machine_hours: float = 0.0
    accelerator_hours: float = 0.0


@dataclass
class Times:
    """The time in service of some days, by day and by kind of job."""

    by_day: dict[date, Time] = field(default_factory=lambda: defaultdict(Time))
    by_kind: dict[str, Time] = field(default_factory=lambda: defaultdict(Time))
    whole: Time = field(default_factory=Time)
    of_all_kinds: Time = field(default_factory=Time)


def times_of(asked: Asked) -> Times:
    """Return machine-time in service that was reported, and what it is in accelerator-hours.

    Machines fail whatever runs on them, so the time of all kinds is kept beside.
    """
    rows = (
        ServiceDay.objects.filter(asked.places(), day__gte=asked.since, day__lte=asked.until)
        .order_by()
        .values_list("day", "job_kind", "platform__accelerators")
        .annotate(hours=Sum("service_hours"))
    )
    found = Times()
    for day, kind, accelerators, hours in rows:
        sums = [found.of_all_kinds]
        if asked.job_kind in (None, kind):
            sums += [found.by_day[day], found.by_kind[kind], found.whole]
        for one in sums:
            one.machine_hours += hours
            one.accelerator_hours += hours * accelerators
    return found
