"""Reads: how much work got done, what interruptions cost it, and how long machines stay away.

Everything is added up by the database over an index on time, or kept added up by day; a page costs
the same whether few machines report or many.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
from django.db.models import (
    Case,
    CharField,
    Count,
    F,
    FloatField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Cast, Floor

from fleet import capacity, goodput, queues
from fleet.columns import Seconds, read_columns
from fleet.faults import COUNTED_KINDS, COUNTED_SEVERITIES
from fleet.goodput import TARGETS, Figure
from fleet.lifecycle import State
from fleet.models import Incident, Job, JobImpact, Platform, ServiceDay, StateChange
from fleet.queues import Figures

#: Cause of an impact that no incident explains and whose source names none.
UNEXPLAINED = "unexplained"
DAY_SECONDS = 86400
DAYS = 28
MOST_DAYS = 400
MOST_JOBS = 20
#: Job whose expected ratio is shown where nobody asks for another: 1,024 accelerators, 8 each.
EXPECTED_MACHINES = 128
CHECKPOINT_MINUTES = 60.0
#: Steps of the way back, in their order; a detection is timed by impacts, a drain by its two moves.
PARTS = (
    "detect",
    "drain",
    State.AWAITING_DIAGNOSIS.value,
    State.DIAGNOSING.value,
    State.AWAITING_REPAIR.value,
    State.REPAIRING.value,
    State.AT_SUPPLIER.value,
    State.AWAITING_VALIDATION.value,
    State.VALIDATING.value,
    State.OBSERVING.value,
    State.AWAITING_RELEASE.value,
)


@dataclass(frozen=True)
class Asked:
    """Which days (both in it), and of which jobs and machines; None: all."""

    since: date
    until: date
    job_kind: str | None = None
    platform: Platform | None = None
    pool: str | None = None
    per: str = "day"

    @property
    def begin(self) -> datetime:
        return datetime.combine(self.since, time.min, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """The first moment after the last day."""
        return datetime.combine(self.until + timedelta(days=1), time.min, tzinfo=UTC)

    def places(self, prefix: str = "") -> Q:
        """Return the condition on platform and pool of a row, or of the machine it names."""
        found = Q()
        if self.platform is not None:
            found &= Q(**{f"{prefix}platform": self.platform})
        if self.pool is not None:
            found &= Q(**{f"{prefix}pool": self.pool})
        return found

    def kinds(self) -> Q:
        return Q() if self.job_kind is None else Q(job_kind=self.job_kind)


@dataclass
class Loss:
    """What some impacts lost: `unknown` of them nobody can tell, and they add no hours."""

    impacts: int = 0
    unknown: int = 0
    hours: float = 0.0
    second_order: int = 0
    second_order_hours: float = 0.0
    repeated_told: int = 0
    repeated_seconds: float = 0.0
    repeated_hours: float = 0.0

    def add(self, other: "Loss") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Kind:
    """One kind of job (empty: not told): available and lost accelerator-hours, and the share."""

    name: str
    machine_hours: float
    available: float
    loss: Loss
    goodput: Figure
    target: float | None

    @property
    def is_at_most(self) -> bool:
        return self.loss.unknown > 0

    @property
    def is_met(self) -> bool | None:
        """Tell whether the target is met; None where there is none, or it cannot be told."""
        if self.target is None or self.goodput.value is None:
            return None
        if self.goodput.value < self.target:
            return False
        return None if self.is_at_most else True


@dataclass(frozen=True)
class Cut:
    """The impacts of one cause or path: their loss, its share of what is known, their rate."""

    name: str
    loss: Loss
    share: Figure
    per_thousand_days: Figure


@dataclass(frozen=True)
class Bin:
    """One day or week: what was available, what was lost by cause and by path."""

    since: date
    until: date
    available: float
    loss: Loss
    goodput: Figure
    by_cause: Mapping[str, float]
    by_path: Mapping[str, float]


@dataclass(frozen=True)
class JobRow:
    """One job with what it lost, and its effective training time ratio."""

    job: str
    job_kind: str
    loss: Loss
    ettr: Figure


@dataclass(frozen=True)
class Expected:
    """What a job of a size can expect at the failure rate that was seen."""

    machines: int
    checkpoint_minutes: float
    write_minutes: float | None
    restart_minutes: Figure
    ettr: Figure
    mttf_hours: Figure
    checkpoint_interval_minutes: Figure


@dataclass(frozen=True)
class Report:
    """How much work got done in some days, and what interruptions cost."""

    asked: Asked
    total: Kind
    kinds: Sequence[Kind]
    causes: Sequence[Cut]
    paths: Sequence[Cut]
    bins: Sequence[Bin]
    jobs: Sequence[JobRow]
    failures: int
    rate: Figure


@dataclass(frozen=True)
class Back:
    """How long machines that came back were away, part by part, and how many were there."""

    whole: Figures
    parts: Sequence[Figures]
    availability: Figure
    qualified: Figure


# --- impacts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cell:
    day: date
    job_kind: str
    path: str
    cause: str
    loss: Loss


def impacts(asked: Asked) -> QuerySet[Any]:
    """Return the impacts that stand, with their `why`: the incident's cause, or their source's."""
    chosen = JobImpact.objects.filter(
        asked.kinds(),
        asked.places("machine__"),
        corrected_by=None,
        fault_at__gte=asked.begin,
        fault_at__lt=asked.end,
    )
    why = Case(
        When(incident__merged_into__isnull=False, then=F("incident__merged_into__cause")),
        When(incident__isnull=False, then=F("incident__cause")),
        When(cause="", then=Value(UNEXPLAINED)),
        default=F("cause"),
        output_field=CharField(),
    )
    return chosen.annotate(why=why)


def _cells(asked: Asked) -> Iterator[_Cell]:
    lost, repeated = "accelerator_hours_lost", F("repeated_seconds")
    second = Q(caused_by__isnull=False)
    rows = (
        impacts(asked)
        .order_by()
        .annotate(day=Floor(Seconds(F("fault_at")) / DAY_SECONDS))
        .values_list("day", "job_kind", "outcome", "why")
        .annotate(
            impacts=Count("pk"),
            told=Count(lost),
            hours=Sum(lost),
            second=Count("pk", filter=second),
            second_hours=Sum(lost, filter=second),
            repeated_told=Count("repeated_seconds"),
            seconds=Sum("repeated_seconds"),
            repeated_hours=Sum(
                repeated * Cast("accelerators", FloatField()) / 3600.0, output_field=FloatField()
            ),
        )
    )
    for day, kind, path, cause, count, told, hours, second_count, second_hours, *rest in rows:
        repeated_told, seconds, repeated_hours = rest
        loss = Loss(
            impacts=count,
            unknown=count - told,
            hours=hours or 0.0,
            second_order=second_count,
            second_order_hours=second_hours or 0.0,
            repeated_told=repeated_told,
            repeated_seconds=seconds or 0.0,
            repeated_hours=repeated_hours or 0.0,
        )
        yield _Cell(date(1970, 1, 1) + timedelta(days=int(day)), kind, path, cause, loss)


def _by(cells: Iterable[_Cell], name: str) -> dict[Any, Loss]:
    found: dict[Any, Loss] = defaultdict(Loss)
    for cell in cells:
        found[getattr(cell, name)].add(cell.loss)
    return found


# --- machine-time ---------------------------------------------------------------------------------


@dataclass
class _Time:
    machine_hours: float = 0.0
    accelerator_hours: float = 0.0


@dataclass
class _Times:
    by_day: dict[date, _Time] = field(default_factory=lambda: defaultdict(_Time))
    by_kind: dict[str, _Time] = field(default_factory=lambda: defaultdict(_Time))
    whole: _Time = field(default_factory=_Time)
    of_all_kinds: _Time = field(default_factory=_Time)


def _times(asked: Asked) -> _Times:
    """Return machine-time in service that was reported, and what it is in accelerator-hours.

    Machines fail whatever runs on them, so the time of all kinds is kept beside.
    """
    rows = (
        ServiceDay.objects.filter(asked.places(), day__gte=asked.since, day__lte=asked.until)
        .order_by()
        .values_list("day", "job_kind", "platform__accelerators")
        .annotate(hours=Sum("service_hours"))
    )
    found = _Times()
    for day, kind, accelerators, hours in rows:
        sums = [found.of_all_kinds]
        if asked.job_kind in (None, kind):
            sums += [found.by_day[day], found.by_kind[kind], found.whole]
        for one in sums:
            one.machine_hours += hours
            one.accelerator_hours += hours * accelerators
    return found


# --- the report -----------------------------------------------------------------------------------


def report(asked: Asked, *, now: datetime) -> Report:
    """Return how much work got done, what was lost by kind, cause, path and over time.

    An impact counts on the day of its fault. What was told of a loss nobody can reckon counts in
    `unknown`, and the share is at most what it says.
    """
    cells, times = list(_cells(asked)), _times(asked)
    whole = Loss()
    for cell in cells:
        whole.add(cell.loss)
    kinds = _by(cells, "job_kind")
    failures = _failures(asked)
    return Report(
        asked=asked,
        total=_kind(asked.job_kind or "all", times.whole, whole),
        kinds=[
            _kind(name, times.by_kind[name], kinds.get(name, Loss()))
            for name in sorted({*kinds, *times.by_kind}, key=lambda name: (name == "", name))
        ],
        causes=_cuts(_by(cells, "cause"), whole=whole, times=times),
        paths=_cuts(_by(cells, "path"), whole=whole, times=times),
        bins=list(_bins(asked, cells, times)),
        jobs=_jobs(asked, now=now),
        failures=failures,
        rate=goodput.rate_per_machine_day(
            events=failures, machine_hours=times.of_all_kinds.machine_hours
        ),
    )


def _kind(name: str, available: _Time, loss: Loss) -> Kind:
    return Kind(
        name=name,
        machine_hours=available.machine_hours,
        available=available.accelerator_hours,
        loss=loss,
        goodput=goodput.goodput_share(available=available.accelerator_hours, lost=loss.hours),
        target=TARGETS.get(name),
    )


def _cuts(found: Mapping[str, Loss], *, whole: Loss, times: _Times) -> list[Cut]:
    return [
        Cut(
            name=name,
            loss=loss,
            share=goodput.share(loss.hours, whole=whole.hours, of="known loss"),
            per_thousand_days=_per_thousand(loss.impacts, times.whole.machine_hours),
        )
        for name, loss in sorted(found.items(), key=lambda row: (-row[1].hours, row[0]))
    ]


def _per_thousand(events: int, machine_hours: float) -> Figure:
    rate = goodput.rate_per_machine_day(events=events, machine_hours=machine_hours)
    return Figure(None if rate.value is None else 1000 * rate.value, rate.formula, rate.reason)


def _bins(asked: Asked, cells: Sequence[_Cell], times: _Times) -> Iterator[Bin]:
    """Yield days, or weeks that begin with the first day; the last may be shorter."""
    length = 7 if asked.per == "week" else 1
    of_day: dict[date, list[_Cell]] = defaultdict(list)
    for cell in cells:
        of_day[cell.day].append(cell)
    first = asked.since
    while first <= asked.until:
        last = min(first + timedelta(days=length - 1), asked.until)
        days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
        own = [cell for day in days for cell in of_day.get(day, ())]
        whole = Loss()
        for cell in own:
            whole.add(cell.loss)
        available = sum(times.by_day[day].accelerator_hours for day in days if day in times.by_day)
        yield Bin(
            since=first,
            until=last,
            available=available,
            loss=whole,
            goodput=goodput.goodput_share(available=available, lost=whole.hours),
            by_cause={name: loss.hours for name, loss in _by(own, "cause").items()},
            by_path={name: loss.hours for name, loss in _by(own, "path").items()},
        )
        first = last + timedelta(days=1)


def _failures(asked: Asked) -> int:
    """Count the incidents that count, each standing for itself."""
    return Incident.objects.filter(
        asked.places("machine__"),
        opened_at__gte=asked.begin,
        opened_at__lt=asked.end,
        kind__in=COUNTED_KINDS,
        severity__in=COUNTED_SEVERITIES,
        merged_into=None,
        parent=None,
    ).count()


# --- jobs -----------------------------------------------------------------------------------------


def _jobs(asked: Asked, *, now: datetime) -> list[JobRow]:
    """Return the jobs that lost the most, and their effective training time ratio."""
    own_time = F("accelerator_hours_lost") / Cast("accelerators", FloatField())
    rows = (
        impacts(asked)
        .exclude(job="")
        .order_by()
        .values_list("job", "job_kind")
        .annotate(
            impacts=Count("pk"),
            told=Count("accelerator_hours_lost"),
            hours=Sum("accelerator_hours_lost"),
            own=Sum(own_time, output_field=FloatField()),
            timed=Count(own_time),
        )
        .order_by(F("hours").desc(nulls_last=True), "-impacts", "job")[:MOST_JOBS]
    )
    told = list(rows)
    spans = {
        name: (started, ended)
        for name, started, ended in Job.objects.filter(name__in=[row[0] for row in told])
        .order_by()
        .values_list("name", "started_at", "ended_at")
    }
    return [
        JobRow(
            job=job,
            job_kind=kind,
            loss=Loss(impacts=count, unknown=count - known, hours=hours or 0.0),
            ettr=_job_ettr(spans.get(job), asked, lost=own, untimed=count - timed, now=now),
        )
        for job, kind, count, known, hours, own, timed in told
    ]


def _job_ettr(
    span: tuple[datetime | None, datetime | None] | None,
    asked: Asked,
    *,
    lost: float | None,
    untimed: int,
    now: datetime,
) -> Figure:
    started, ended = span or (None, None)
    if started is None:
        return Figure(None, "ettr", "when the job began is not known")
    wall = (min(ended or now, asked.end, now) - max(started, asked.begin)) / timedelta(hours=1)
    if lost is None:
        return Figure(None, "ettr", "of none of its interruptions the loss is known")
    if lost > wall:
        return Figure(None, "ettr", "it was interrupted before the time that is known of it")
    found = goodput.ettr(productive_seconds=(wall - lost) * 3600, unproductive_seconds=lost * 3600)
    if not untimed:
        return found
    said = f"{found.reason}; the loss of {untimed} interruptions is not known"
    return Figure(found.value, found.formula, said)


def expected(
    seen: Report,
    *,
    machines: int,
    checkpoint_minutes: float,
    write_minutes: float | None = None,
    restart_minutes: float | None = None,
) -> Expected:
    """Return what a job of a size can expect at the failure rate of a report.

    The restart is the median of the checkpoint path in the same time unless it is given.
    """
    restart = _restart(seen.asked) if restart_minutes is None else Figure(restart_minutes, "given")
    rate = seen.rate
    if rate.value is None:
        nothing = Figure(None, "expected_ettr", rate.reason)
        return Expected(
            machines, checkpoint_minutes, write_minutes, restart, nothing, nothing, nothing
        )
    per_day = rate.value
    return Expected(
        machines=machines,
        checkpoint_minutes=checkpoint_minutes,
        write_minutes=write_minutes,
        restart_minutes=restart,
        ettr=Figure(None, "expected_ettr", restart.reason)
        if restart.value is None
        else goodput.expected_ettr(
            machines=machines,
            failures_per_machine_day=per_day,
            restart_minutes=restart.value,
            checkpoint_minutes=checkpoint_minutes,
            write_minutes=write_minutes or 0.0,
        ),
        mttf_hours=goodput.mttf_hours(machines=machines, failures_per_machine_day=per_day),
        checkpoint_interval_minutes=Figure(
            None, "checkpoint_interval", "the time to write a checkpoint was not given"
        )
        if write_minutes is None
        else goodput.young_daly_minutes(
            machines=machines, failures_per_machine_day=per_day, write_minutes=write_minutes
        ),
    )


def _restart(asked: Asked) -> Figure:
    took = (
        impacts(asked)
        .filter(outcome=JobImpact.Outcome.CHECKPOINT, resumed_at__isnull=False)
        .order_by()
    )
    (seconds,), _ = read_columns(took, numbers=(Seconds(F("resumed_at")) - Seconds(F("fault_at")),))
    if not seconds.size:
        return Figure(None, "restart", "no restart from a checkpoint has ended in this time")
    return Figure(float(np.median(seconds)) / 60, "restart")


# --- the way back ---------------------------------------------------------------------------------


def way_back(asked: Asked) -> Back:
    """Return how long machines that came back in these days were away, and in which part."""
    told = {**_stays(asked), "detect": _detections(asked), "drain": _drains(asked)}
    parts = [queues.figures(name, ended=told.get(name, ())) for name in PARTS]
    availability, qualified = _shares_of_days(asked)
    return Back(
        whole=queues.figures("out", ended=_returns(asked)),
        parts=parts,
        availability=availability,
        qualified=qualified,
    )


def _detections(asked: Asked) -> Sequence[float]:
    rows = impacts(asked).filter(detected_at__isnull=False).order_by()
    (seconds,), _ = read_columns(
        rows, numbers=(Seconds(F("detected_at")) - Seconds(F("fault_at")),)
    )
    return [float(one) / 3600 for one in seconds]


def _moves(asked: Asked, **fields: Any) -> QuerySet[StateChange]:
    return StateChange.objects.filter(
        asked.places("machine__"), at__gte=asked.begin, at__lt=asked.end, **fields
    ).order_by()


def _since(moves: QuerySet[StateChange], before: QuerySet[StateChange]) -> Sequence[float]:
    """Return the hours from the last of the changes before each move to that move."""
    last = before.filter(machine=OuterRef("machine"), at__lte=OuterRef("at"), pk__lt=OuterRef("pk"))
    began = Subquery(last.order_by("-at", "-pk").values("at")[:1])
    timed = moves.annotate(began=began).filter(began__isnull=False)
    (seconds,), _ = read_columns(timed, numbers=(Seconds(F("at")) - Seconds(F("began")),))
    return [float(one) / 3600 for one in seconds]


def _drains(asked: Asked) -> Sequence[float]:
    """Return how long drains took that ended with the machine out for diagnosis."""
    out = _moves(asked, old_state=State.DRAINING, new_state=State.AWAITING_DIAGNOSIS)
    return _since(out, StateChange.objects.filter(new_state=State.DRAINING))


def _returns(asked: Asked) -> Sequence[float]:
    """Return how long machines were away that were released, from their last hour of work on."""
    back = _moves(asked, old_state=State.AWAITING_RELEASE, new_state=State.IN_SERVICE)
    return _since(back, StateChange.objects.filter(old_state=State.IN_SERVICE))


def _stays(asked: Asked) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    kept = capacity.kept_days(since=asked.since, until=asked.until, places=asked.places())
    for day in kept:
        for state, seconds in day.stays.items():
            found[state] += [one / 3600 for one in seconds]
    return found


def _shares_of_days(asked: Asked) -> tuple[Figure, Figure]:
    """Return the shares in service and qualified of the machines installed, by the days' ends."""
    in_service = installed = qualified = measured = 0
    days = capacity.history(since=asked.since, until=asked.until, places=asked.places())
    for _, row in days:
        in_service += row.in_service
        installed += row.installed
        if row.qualified is not None:
            qualified += row.qualified
            measured += row.installed
    return (
        goodput.share(in_service, whole=installed, of="kept day with machines"),
        goodput.share(qualified, whole=measured, of="day on which it was measured"),
    )
