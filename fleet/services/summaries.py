"""Keep the summaries of telemetry: a row per day and range of machines, remade while it changes."""

import time as wall_time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from django.db import transaction
from django.db.models import F, Max
from django.utils import timezone

from fleet import goodput, leases, summaries
from fleet.models import Machine, ServiceDay, TelemetrySummary
from fleet.telemetry import digests

#: A day that is not settled is summed up again after so long.
EVERY = timedelta(hours=1)
#: Reports that come later than this after their day's end are in no summary.
LATEST = timedelta(days=1)
#: Work of one call; what is left is due still.
LONGEST_RUN_SECONDS = 20.0


def summarise(*, now: datetime, longest_seconds: float = LONGEST_RUN_SECONDS) -> bool:
    """Remake the summaries that are due, newest days first; tell whether some are left.

    Safe to repeat and to race: a row is leased while it is made, and making it twice makes the
    same row. Only the rows of one day and one range of machines are read at a time.
    """
    _forget(now=now)
    end = wall_time.monotonic() + longest_seconds
    for day, first, last in due(now=now):
        if wall_time.monotonic() > end:
            return True
        _make(day, first, last=last, now=now)
    return False


def due(*, now: datetime) -> Iterator[tuple[date, int, int]]:
    """Yield day, first key and last machine of every range whose summary is missing or old."""
    size = TelemetrySummary.MACHINES
    last = dict(
        Machine.objects.order_by()
        .values_list(F("pk") / size * size)
        .annotate(last=Max("pk"))
        .order_by()
    )
    made = {
        (day, first): as_of
        for day, first, as_of in TelemetrySummary.objects.exclude(content=b"").values_list(
            "day", "first_machine", "as_of"
        )
    }
    for back in range(summaries.DAYS):
        day = now.date() - timedelta(days=back)
        for first in sorted(last):
            if _is_due(made.get((day, first)), day, now=now):
                yield day, first, last[first]


def _is_due(as_of: datetime | None, day: date, *, now: datetime) -> bool:
    if as_of is None or as_of > now:  # missing, or the clock was set back
        return True
    settled = summaries.day_start(day) + timedelta(days=1) + LATEST
    return as_of < settled and (now - as_of >= EVERY or now >= settled)


def _make(day: date, first: int, *, last: int, now: datetime) -> None:
    """Sum one day of one range up, unless another worker is at it."""
    start = summaries.day_start(day)
    row, _ = TelemetrySummary.objects.get_or_create(
        day=day, first_machine=first, defaults={"as_of": start}
    )
    wall = timezone.now()
    own = TelemetrySummary.objects.filter(pk=row.pk)
    if not own.filter(leases.free(wall=wall)).update(leased_until=wall + leases.LEASE):
        return
    until = min(start + timedelta(days=1), now)
    machines = summaries.of_range(first)
    digest = summaries.digest_of(machines, since=start, until=until, now=now)
    began = summaries.first_report(machines, since=start, until=until)
    with transaction.atomic():
        own.update(
            as_of=now,
            last_machine=last,
            reports_from=began,
            content=digests.pack(digest, first_machine=first),
            leased_until=None,
        )
        _keep_service(day, first, digest=digest)


def _keep_service(day: date, first: int, *, digest: digests.Digest) -> None:
    """Remake the machine-time of one day and range by platform, pool and kind of job."""
    places = {
        pk: (platform, pool)
        for pk, platform, pool in Machine.objects.filter(
            pk__gte=first, pk__lt=first + TelemetrySummary.MACHINES
        ).values_list("pk", "platform_id", "pool")
    }
    kinds = [goodput.job_kind(name) for name in digest.workloads]
    reports = digest.reports
    found: dict[tuple[int, str, str], _Service] = defaultdict(_Service)
    for machine, workload, service_seconds in zip(
        reports.machine.tolist(),
        reports.workload.tolist(),
        reports.service_seconds.tolist(),
        strict=True,
    ):
        if machine in places:
            found[*places[machine], kinds[workload]].add(machine, service_seconds)
    ServiceDay.objects.filter(day=day, first_machine=first).delete()
    ServiceDay.objects.bulk_create(
        ServiceDay(
            day=day,
            first_machine=first,
            platform_id=platform,
            pool=pool,
            job_kind=kind,
            machines=len(told.machines),
            service_hours=told.service_seconds / 3600,
        )
        for (platform, pool, kind), told in sorted(found.items())
    )


@dataclass
class _Service:
    """Machine-time of one place and kind of job."""

    machines: set[int] = field(default_factory=set)
    service_seconds: float = 0.0

    def add(self, machine: int, service_seconds: float) -> None:
        self.machines.add(machine)
        self.service_seconds += service_seconds


def _forget(*, now: datetime) -> None:
    """Let go of days that no plan reads any more."""
    oldest = now.date() - timedelta(days=summaries.DAYS)
    TelemetrySummary.objects.filter(day__lt=oldest).delete()
