"""How long each state of the way back takes, and which queue keeps the most machines out."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import numpy as np
from django.db.models import Exists, OuterRef, Q

from fleet import queues
from fleet.capacity.days import LOOK_UP, KeptDay, days_until, kept_days
from fleet.lifecycle import STATES, State
from fleet.models import Machine, Repair, StateChange
from fleet.queues import Figures, Flow

#: Days that figures look back on, and that trends show.
WINDOW_DAYS = 28
TREND_DAYS = 90


@dataclass(frozen=True)
class Queue:
    """One state of the way back: how long it takes, how many it keeps, and who waits now."""

    state: str
    goal_hours: float | None
    figures: Figures
    flow: Flow
    overdue: int
    is_queue: bool


@dataclass(frozen=True)
class Queues:
    """All states of the way back, and the queue that keeps the most machines out."""

    as_of: datetime
    days: float
    queues: tuple[Queue, ...]
    bottleneck: Queue | None

    @property
    def expected_out(self) -> float:
        return sum(one.flow.expected_out or 0.0 for one in self.queues)


@dataclass(frozen=True)
class Point:
    """One day of one state: machines in it at the end, and the stays that ended."""

    day: date
    waiting: int
    ended: int
    median_hours: float | None


def queue_figures(
    *,
    now: datetime,
    days: int = WINDOW_DAYS,
    places: Q | None = None,
    is_past: bool = False,
    kept: Sequence[KeptDay] | None = None,
) -> Queues:
    """Return how long each state of the way back takes, over the last days and today.

    Stays that ended are of these days; open ones are of now. `places` is a condition on platform
    and pool, which machines and kept days share. With `is_past` everything is read from what was
    recorded by then. `kept` spares reading the days again.
    """
    today = now.astimezone(UTC).date()
    since = today - timedelta(days=days - 1)
    if is_past:
        kept = days_until(now, since=since, places=places)
    elif kept is None:
        kept = kept_days(since=since, until=today, places=places)
    entered, ended = _of_days(one for one in kept if one.day >= since)
    rows = _out_then(now, places=places) if is_past else _out_now(places=places)
    still, overdue = _still(rows, now=now)
    passed = (now - datetime.combine(since, time.min, tzinfo=UTC)) / timedelta(days=1)
    found = tuple(
        _queue(state, entered[state], ended[state], still[state], overdue[state], passed)
        for state in queues.OUT
    )
    worst = queues.bottleneck([one.flow for one in found])
    named = next((one for one in found if worst and one.state == worst.state), None)
    return Queues(as_of=now, days=passed, queues=found, bottleneck=named)


def _queue(
    state: str,
    entered: int,
    ended: Collection[float],
    still: Collection[float],
    overdue: int,
    days: float,
) -> Queue:
    told = queues.figures(state, ended=list(ended), still=list(still))
    flow = queues.flow(
        state, entered=entered, days=max(days, 1e-9), mean_hours=told.mean_hours, present=len(still)
    )
    goal = STATES[State(state)].deadline_hours
    return Queue(state, goal, told, flow, overdue, state in queues.QUEUES)


def _of_days(kept: Iterable[KeptDay]) -> tuple[Counter[str], dict[str, list[float]]]:
    entered: Counter[str] = Counter()
    ended: dict[str, list[float]] = defaultdict(list)
    for one in kept:
        entered.update(one.entered)
        for state in queues.OUT:
            ended[state] += [seconds / 3600 for seconds in one.stays.get(state, ())]
    return entered, ended


def _still(
    rows: Iterable[tuple[str, datetime, datetime | None]], *, now: datetime
) -> tuple[dict[str, list[float]], Counter[str]]:
    """Return for how long machines have been in each state, and how many are past its deadline."""
    waiting: dict[str, list[float]] = defaultdict(list)
    overdue: Counter[str] = Counter()
    for state, entered_at, deadline_at in rows:
        waiting[state].append((now - entered_at) / timedelta(hours=1))
        overdue[state] += deadline_at is not None and deadline_at < now
    return waiting, overdue


def _out_now(*, places: Q | None) -> Iterable[tuple[str, datetime, datetime | None]]:
    rows = Machine.objects.filter(places or Q(), state__in=queues.OUT).order_by()
    return rows.values_list("state", "entered_at", "deadline_at")


def _out_then(at: datetime, *, places: Q | None) -> Iterator[tuple[str, datetime, datetime | None]]:
    later = StateChange.objects.filter(
        machine=OuterRef("machine"), at__gt=OuterRef("at"), at__lte=at
    )
    last = StateChange.objects.filter(~Exists(later), new_state__in=queues.OUT, at__lte=at)
    if places is not None:
        last = last.filter(machine__in=Machine.objects.filter(places).values("pk"))
    # Of several moves at one moment the last one tells where the machine stood.
    same = StateChange.objects.filter(machine__in=last.values("machine"), at__lte=at)
    rows = same.order_by("machine", "at", "pk").values_list("machine_id", "new_state", "at")
    told = {pk: (state, entered_at) for pk, state, entered_at in rows.iterator(chunk_size=LOOK_UP)}
    for state, entered_at in told.values():
        if state in queues.OUT:
            hours = STATES[State(state)].deadline_hours
            yield state, entered_at, None if hours is None else entered_at + timedelta(hours=hours)


def trends(
    *,
    now: datetime,
    days: int = TREND_DAYS,
    places: Q | None = None,
    kept: Sequence[KeptDay] | None = None,
) -> dict[str, list[Point]]:
    """Return each queue day by day; a day that nobody kept is left out."""
    today = now.astimezone(UTC).date()
    if kept is None:
        kept = kept_days(since=today - timedelta(days=days - 1), until=today, places=places)
    waiting: dict[date, Counter[str]] = {}
    ended: dict[date, dict[str, list[float]]] = {}
    for one in kept:
        counts = waiting.setdefault(one.day, Counter())
        own = ended.setdefault(one.day, defaultdict(list))
        for state in queues.QUEUES:
            counts[state] += one.counts.get(state, 0)
            own[state] += [seconds / 3600 for seconds in one.stays.get(state, ())]
    return {
        state: [
            Point(day, counts[state], *_ended(ended[day][state])) for day, counts in waiting.items()
        ]
        for state in queues.QUEUES
    }


def _ended(hours: list[float]) -> tuple[int, float | None]:
    return len(hours), float(np.median(hours)) if hours else None


def stays_of(machine: Machine, *, until: datetime) -> list[queues.Stay]:
    """Return every stay of one machine, oldest first."""
    rows = machine.state_changes.filter(at__lte=until).order_by("at", "pk")
    return list(queues.stays(rows.values_list("machine_id", "new_state", "at")))


def stay_hours(
    states: Collection[str], *, start: datetime, end: datetime, machines: Q | None = None
) -> dict[str, list[float]]:
    """Return how long stays took that began in [start, end) and have ended, by state."""
    moved = Machine.objects.filter(machines or Q(), state_changes__new_state__in=states)
    rows = StateChange.objects.filter(machine__in=moved.values("pk")).order_by(
        "machine", "at", "pk"
    )
    found: dict[str, list[float]] = {state: [] for state in states}
    changes = rows.values_list("machine_id", "new_state", "at").iterator(chunk_size=LOOK_UP)
    for stay in queues.stays(changes):
        if stay.state in found and stay.until is not None and start <= stay.since < end:
            found[stay.state].append(stay.hours(now=end))
    return found


def repair_hours(*, start: datetime, end: datetime, machines: Q | None = None) -> Iterable[float]:
    """Return how long repairs took that began in [start, end) and are closed."""
    of_machines = Machine.objects.filter(machines).values("pk") if machines else None
    repairs = Repair.objects.filter(
        status=Repair.Status.CLOSED, started_at__gte=start, started_at__lt=end
    )
    if of_machines is not None:
        repairs = repairs.filter(machine__in=of_machines)
    for began, closed in repairs.order_by().values_list("started_at", "closed_at"):
        if began is not None and closed is not None:
            yield (closed - began) / timedelta(hours=1)
