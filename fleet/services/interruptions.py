"""Make impacts of the interruptions that machines told of: one per job, with what explains it."""

import logging
import time as wall_time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Sum
from django.db.models.functions import Coalesce

from fleet import goodput
from fleet.faults import COUNTED_KINDS, COUNTED_SEVERITIES, HAPPENED_AT
from fleet.models import (
    Fault,
    FaultSignature,
    ImpactCursor,
    Incident,
    Job,
    JobImpact,
    Machine,
    Recovery,
)
from fleet.services.impacts import BY_INTERRUPTIONS, SAME, Impact, record_impacts

logger = logging.getLogger(__name__)

#: A fault explains an interruption that begins this long after it, or before it.
BEFORE, AFTER = timedelta(minutes=10), timedelta(minutes=5)
#: So long a fault may come late before an interruption is put down without one.
SETTLE = timedelta(hours=1)
BATCH = 2000
LONGEST_RUN_SECONDS = 20.0
_SEVERITIES = tuple(FaultSignature.Severity)  # from the mildest to the worst


@dataclass(frozen=True)
class _Explains:
    """A fault near an interruption, and its incident; the greatest rank explains best."""

    incident: int
    at: datetime
    received_at: datetime
    counts: bool
    severity: int

    def rank(self, began: datetime) -> tuple[bool, int, float, int]:
        return self.counts, self.severity, -abs((self.at - began).total_seconds()), -self.incident


@dataclass(frozen=True)
class _Group:
    """The words of a job's machines about one interruption."""

    rows: Sequence[Recovery]

    @property
    def job(self) -> str:
        return self.rows[0].job

    @property
    def first(self) -> datetime:
        return min(row.time for row in self.rows)

    def is_settled(self, *, now: datetime) -> bool:
        return all(row.received_at <= now - SETTLE for row in self.rows)


def record_interruptions(*, now: datetime, longest_seconds: float = LONGEST_RUN_SECONDS) -> int:
    """Put interruptions that are over down as impacts; return how many were new.

    A fault of one of the job's machines from 10 minutes before to 5 minutes after its beginning
    explains an interruption; its incident is the impact's. One that nothing explains is put down
    without an incident once faults have had an hour to arrive. All machines of a job tell of the
    same interruption: it counts once, and not where somebody told of it already.

    Safe to repeat, to race and to leave off: one worker at a time holds the cursor, and what was
    received within the hour is looked at again.
    """
    end = wall_time.monotonic() + longest_seconds
    made, after, is_settled = 0, None, True
    while True:
        step = _record_batch(after, is_settled=is_settled, now=now)
        made += step.made
        after, is_settled = step.last, step.is_settled
        if step.count < BATCH or wall_time.monotonic() > end:
            return made


@dataclass(frozen=True)
class _Step:
    count: int
    made: int
    last: int
    is_settled: bool


@transaction.atomic
def _record_batch(after: int | None, *, is_settled: bool, now: datetime) -> _Step:
    ImpactCursor.objects.get_or_create(pk=1)
    cursor = ImpactCursor.objects.select_for_update().get(pk=1)
    begin = cursor.done_to if after is None else max(after, cursor.done_to)
    # What came in since `now` was read is the next run's: to this one it is still to come.
    ended = Recovery.objects.filter(
        pk__gt=begin, recovered_at__isnull=False, is_ahead=False, received_at__lte=now
    )
    rows = list(ended.exclude(path="").select_related("machine").order_by("pk")[:BATCH])
    if not rows:
        return _Step(0, 0, begin, is_settled)
    made = _put_down(rows, now=now)
    if is_settled:
        fresh = [row.pk for row in rows if row.received_at > now - SETTLE]
        cursor.done_to = min(fresh) - 1 if fresh else rows[-1].pk
        cursor.save(update_fields=["done_to"])
        is_settled = not fresh
    return _Step(len(rows), made, rows[-1].pk, is_settled)


def _put_down(rows: Sequence[Recovery], *, now: datetime) -> int:
    explained = _explanations(rows)
    known = _Known(rows)
    groups = [group for group in _groups(rows) if not known.has(group)]
    sizes, kinds = _jobs([group for group in groups if group.job])
    nearby = {one.incident for own in explained.values() for one in own}
    incidents = Incident.objects.in_bulk(nearby)
    made = 0
    for group in groups:
        lead, by = _best(group, explained)
        if by is None and not group.is_settled(now=now):
            continue
        told = _impact(
            lead,
            by,
            incident=None if by is None else incidents[by.incident],
            size=sizes.get(group.job),
            kind=kinds.get(group.job),
        )
        result = record_impacts([told], source=BY_INTERRUPTIONS, now=now)
        made += result.accepted
        for refused in result.refused:  # odd telemetry; it must not hold up the others
            logger.warning("interruption %s: %s", lead.pk, "; ".join(refused.reasons))
    return made


def _groups(rows: Sequence[Recovery]) -> Iterator[_Group]:
    """Yield the rows that tell of one interruption; without a job each stands for itself."""
    of_job: dict[str, list[Recovery]] = defaultdict(list)
    for row in rows:
        if row.job:
            of_job[row.job].append(row)
        else:
            yield _Group([row])
    for own in of_job.values():
        own.sort(key=lambda row: (row.time, row.pk))
        group = [own[0]]
        for row in own[1:]:
            if row.time - group[0].time > SAME:
                yield _Group(group)
                group = []
            group.append(row)
        yield _Group(group)


class _Known:
    """What was told of already, of the jobs and the time of some interruptions."""

    def __init__(self, rows: Sequence[Recovery]) -> None:
        standing = JobImpact.objects.filter(
            job__in={row.job for row in rows if row.job},
            fault_at__gte=min(row.time for row in rows) - SAME,
            fault_at__lte=max(row.time for row in rows) + SAME,
        )
        self.times: dict[str, list[datetime]] = defaultdict(list)
        for job, at in standing.values_list("job", "fault_at"):
            self.times[job].append(at)
        own = JobImpact.objects.filter(
            source=BY_INTERRUPTIONS, source_key__in=[str(row.pk) for row in rows]
        )
        self.keys = set(own.values_list("source_key", flat=True))

    def has(self, group: _Group) -> bool:
        if any(str(row.pk) in self.keys for row in group.rows):
            return True
        return any(abs(at - group.first) <= SAME for at in self.times.get(group.job, ()))


def _explanations(rows: Sequence[Recovery]) -> dict[int, list[_Explains]]:
    """Return the faults near the interruptions that are in an incident, by machine."""
    near = (
        Fault.objects.filter(
            machine__in={row.machine_id for row in rows},
            time__gte=min(row.time for row in rows) - BEFORE,
            time__lte=max(row.time for row in rows) + AFTER,
            membership__isnull=False,
        )
        .annotate(
            at=HAPPENED_AT,
            own=Coalesce("membership__incident__merged_into", "membership__incident"),
        )
        .order_by()
        .values_list("machine_id", "own", "at", "received_at", "signature__kind", "severity")
    )
    found: dict[int, list[_Explains]] = defaultdict(list)
    for machine, incident, at, received_at, kind, severity in near.iterator(chunk_size=5000):
        counts = kind in COUNTED_KINDS and severity in COUNTED_SEVERITIES
        one = _Explains(incident, at, received_at, counts, _SEVERITIES.index(severity))
        found[machine].append(one)
    return found


def _best(
    group: _Group, explained: Mapping[int, Sequence[_Explains]]
) -> tuple[Recovery, _Explains | None]:
    """Return the machine's word that a fault explains best, with that fault; else the first."""
    pairs = [
        (row, one)
        for row in group.rows
        for one in explained.get(row.machine_id, ())
        if row.time - BEFORE <= one.at <= row.time + AFTER
    ]
    if not pairs:
        return group.rows[0], None
    return max(pairs, key=lambda pair: (pair[1].rank(pair[0].time), -pair[0].pk))


def _jobs(groups: Sequence[_Group]) -> tuple[dict[str, int], dict[str, str]]:
    """Return the accelerators and the kind of jobs, as far as the scheduler tells.

    The accelerators are those of the machines on which the job runs now: of a job that was over
    before this, or that began after the interruption, they are not known.
    """
    ended = {group.job: max(row.recovered_at or row.time for row in group.rows) for group in groups}
    jobs = Job.objects.filter(name__in=ended).values_list("name", "kind", "started_at")
    told = {name: (kind, started) for name, kind, started in jobs}
    sizes = {
        job: accelerators
        for job, accelerators in accelerators_of(list(ended)).items()
        if (started := told.get(job, ("", None))[1]) is None or started <= ended[job]
    }
    return sizes, {name: kind for name, (kind, _) in told.items() if kind}


def accelerators_of(jobs: Sequence[str]) -> dict[str, int]:
    """Return how many accelerators the machines have on which each job runs now."""
    running = Machine.objects.filter(job__in=[job for job in jobs if job]).order_by()
    return dict(running.values_list("job").annotate(all=Sum("platform__accelerators")))


def _impact(
    lead: Recovery,
    by: _Explains | None,
    *,
    incident: Incident | None,
    size: int | None,
    kind: str | None,
) -> Impact:
    """Return what one machine's word says, and what is known of its job."""
    heard = None if by is None else max(by.received_at, lead.time)
    ended = lead.recovered_at
    return Impact(
        outcome=lead.path,
        fault_at=lead.time,
        source_key=str(lead.pk),
        incident=incident,
        machine=lead.machine,
        job=lead.job,
        job_kind=goodput.job_kind(kind or lead.machine.workload),
        detected_at=heard if heard is not None and ended is not None and heard <= ended else None,
        resumed_at=ended,
        recovery_seconds=lead.recovery_seconds,
        repeated_seconds=lead.repeated_seconds,
        accelerators=size,
    )
