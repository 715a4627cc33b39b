"""The past of many machines: read from telemetry for a few, from kept summaries for all."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
from django.db.models import (
    Avg,
    Case,
    Count,
    Exists,
    F,
    FloatField,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Sum,
    Value,
    When,
)

from fleet.columns import FloatArray, Seconds, read_columns
from fleet.models import Fault, Observation, Recovery, TelemetrySummary
from fleet.telemetry import digests
from fleet.telemetry.digests import Clusters, Digest, IntArray, Interruptions, Reports

#: How far back summaries are kept, today included.
DAYS = 14


@dataclass(frozen=True, eq=False)
class Kept:
    """What summaries say of some machines: from when, until when, and whom they leave out."""

    digest: Digest
    since: datetime
    as_of: datetime
    uncovered: int


def day_start(day: date) -> datetime:
    return datetime.combine(day, time.min, tzinfo=UTC)


# --- from telemetry --------------------------------------------------------------------------


def digest_of(
    machines: Q,
    *,
    since: datetime,
    until: datetime,
    middle: datetime | None = None,
    now: datetime | None = None,
) -> Digest:
    """Add up what the machines of a condition reported in (since, until].

    `machines` is a condition on `machine_id` that names few machines or one range. Reports that
    end after `middle` are part 1 of the time, the others part 0. Interruptions that began in the
    time are taken as they stand `now`, which is `until` where it is not said.
    """
    reports, workloads = _reports(machines, since=since, until=until, middle=middle or until)
    interruptions, paths = _interruptions(machines, since=since, until=until, now=now or until)
    return Digest(
        reports=reports,
        clusters=clusters_between(machines, since=since, until=until),
        interruptions=interruptions,
        workloads=workloads,
        paths=paths,
    )


def first_report(machines: Q, *, since: datetime, until: datetime) -> datetime | None:
    """Return when the first report began that ended in (since, until]."""
    rows = Observation.objects.filter(machines, end__gt=since, end__lte=until)
    first: datetime | None = rows.aggregate(at=Min("start"))["at"]
    return first


def clusters_between(machines: Q, *, since: datetime, until: datetime) -> Clusters:
    """Return the fault clusters of (since, until]; events that nobody counts are left in."""
    rows = Fault.objects.filter(machines, time__gt=since, time__lte=until, is_ahead=False)
    (machine, signature, at), _ = read_columns(
        rows.order_by(), numbers=("machine_id", "signature_id", Seconds(F("time")))
    )
    return digests.clusters_of(_whole(machine), _whole(signature), _whole(at * 1e6))


def _whole(values: FloatArray) -> IntArray:
    return np.rint(values).astype(np.int64)


def _reports(
    machines: Q, *, since: datetime, until: datetime, middle: datetime
) -> tuple[Reports, tuple[str, ...]]:
    covered = Seconds(F("end")) - Seconds(F("start"))
    rows = (
        Observation.objects.filter(machines, end__gt=since, end__lte=until, is_ahead=False)
        .order_by()
        .annotate(part=Case(When(end__lte=middle, then=Value(0)), default=Value(1)))
        .values("machine_id", "part", "workload")
        .annotate(
            mean=Avg("throughput"),
            count=Count("throughput"),
            covered=Sum(covered, output_field=FloatField()),
            service=Sum("in_service_seconds"),
        )
    )
    (machine, part, mean, count, length, service), (names,) = read_columns(
        rows,
        numbers=("machine_id", "part", "mean", "count", "covered", "service"),
        names=("workload",),
    )
    code, workloads = _codes(names)
    # A server may add up in another order each time: what replays must not depend on that.
    return (
        Reports(
            machine=_whole(machine),
            part=_whole(part),
            workload=code,
            mean=np.asarray(np.round(np.nan_to_num(mean), 9), dtype=np.float64),
            count=_whole(count),
            covered_seconds=np.round(length, 3),
            service_seconds=np.round(service, 3),
        ),
        workloads,
    )


def _codes(names: list[str]) -> tuple[IntArray, tuple[str, ...]]:
    distinct = tuple(sorted(set(names)))
    code = {name: index for index, name in enumerate(distinct)}
    return np.array([code[name] for name in names], dtype=np.int64), distinct


def _interruptions(
    machines: Q, *, since: datetime, until: datetime, now: datetime
) -> tuple[Interruptions, tuple[str, ...]]:
    """Add up interruptions that began in the time; a closed row wins over its open one."""
    rows = _settled(Recovery.objects.filter(machines, time__gt=since, time__lte=until))
    (machine, began, ended, took, repeated), (paths,) = read_columns(
        rows.order_by(),
        numbers=(
            "machine_id",
            Seconds(F("time")),
            Seconds(F("recovered_at")),
            "recovery_seconds",
            "repeated_seconds",
        ),
        names=("path",),
    )
    path, names = _codes(paths)
    is_closed = ended <= now.timestamp()
    took = np.where(np.isnan(took), ended - began, took)
    seconds = np.where(is_closed, took, now.timestamp() - began)
    lost = np.minimum(seconds + np.nan_to_num(repeated), digests.LONGEST_RECOVERY_SECONDS)
    log = np.log(np.clip(seconds, 1.0, digests.LONGEST_RECOVERY_SECONDS)) * is_closed
    key = machine.astype(np.int64) * (len(names) + 1) + path
    keys, index = np.unique(key, return_inverse=True)

    def total(values: Any) -> FloatArray:
        sums = np.bincount(index, weights=values, minlength=keys.size)
        return np.asarray(sums, dtype=np.float64)

    return (
        Interruptions(
            machine=keys // (len(names) + 1),
            path=keys % (len(names) + 1),
            count=_whole(total(np.ones(path.size))),
            closed=_whole(total(is_closed)),
            log_sum=np.round(total(log), 9),
            log_squares=np.round(total(log * log), 9),
            lost_hours=np.round(total(lost / 3600), 9),
            lost_roots=np.round(total(np.sqrt(lost / 3600)), 9),
        ),
        names,
    )


def _settled(rows: QuerySet[Recovery]) -> QuerySet[Recovery]:
    closed = Recovery.objects.filter(
        source=OuterRef("source"), source_key=OuterRef("source_key"), recovered_at__isnull=False
    )
    return rows.filter(is_ahead=False).filter(Q(recovered_at__isnull=False) | ~Exists(closed))


# --- from summaries --------------------------------------------------------------------------


def kept(ids: IntArray, *, now: datetime) -> Kept | None:
    """Return what the summaries say of these machines, or None where there are none.

    The time they speak of is the one that the summaries of all ranges cover without a gap.
    """
    firsts = np.unique(ids // TelemetrySummary.MACHINES) * TelemetrySummary.MACHINES
    rows = list(
        TelemetrySummary.objects.filter(
            first_machine__in=firsts.tolist(),
            day__gt=now.date() - timedelta(days=DAYS),
            day__lte=now.date(),
        )
        .exclude(content=b"")
        .order_by("first_machine", "-day")
        .values_list("first_machine", "day", "as_of", "reports_from", "last_machine", "content")
    )
    if not rows:
        return None
    runs = {first: _run([row for row in rows if row[0] == first]) for first in firsts.tolist()}
    present = [run for run in runs.values() if run]
    oldest = max(run[-1][1] for run in present)
    starts = [row[3] for run in present for row in run if row[3] is not None]
    return Kept(
        digest=digests.join(
            [
                _on_day(digests.unpack(bytes(row[5]), first_machine=row[0]), row[1])
                for run in present
                for row in run
                if row[1] >= oldest
            ]
        ),
        since=max(min(starts, default=now), day_start(oldest)),
        as_of=min(run[0][2] for run in present),
        uncovered=_uncovered(ids, {first: run[0][4] for first, run in runs.items() if run}),
    )


def _run(rows: list[Any]) -> list[Any]:
    """Return the rows of one range from the newest day back to the first gap."""
    return [row for back, row in enumerate(rows) if row[1] == rows[0][1] - timedelta(days=back)]


def _on_day(digest: Digest, day: date) -> Digest:
    part = np.full(digest.reports.machine.size, day.toordinal(), dtype=np.int64)
    return replace(digest, reports=replace(digest.reports, part=part))


def _uncovered(ids: IntArray, last: dict[int, int]) -> int:
    of_range = ids // TelemetrySummary.MACHINES * TelemetrySummary.MACHINES
    ends = np.array([last.get(first, -1) for first in of_range.tolist()], dtype=np.int64)
    return int((ids > ends).sum())


def of_machines(ids: Iterable[int]) -> Q:
    """Return the condition that names few machines one by one."""
    return Q(machine_id__in=list(ids))


def of_range(first: int) -> Q:
    """Return the condition that names one range of machines."""
    return Q(machine_id__gte=first, machine_id__lt=first + TelemetrySummary.MACHINES)
