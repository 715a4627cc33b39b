"""Reads: how many machines stand where, how long each state takes, and where they pile up.

The present is counted from machines, the past from `StateChange`; nothing is estimated. Days that
were added up already are kept (`CapacityDay`), so that no page counts the past again.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from heapq import merge
from typing import Any

from django.db.models import Count, Exists, Max, Min, OuterRef, Q, QuerySet, Subquery

from fleet import adapters, queues
from fleet.lifecycle import STATES, State
from fleet.models import (
    CapacityDay,
    Change,
    ChangedMachine,
    Cordon,
    Machine,
    Platform,
    Repair,
    StateChange,
)
from fleet.queues import Figures, Flow
from fleet.tally import Event, Moved, Place, Placed, by_day

#: Days that figures look back on, and that trends show.
WINDOW_DAYS = 28
TREND_DAYS = 90
LOOK_UP = 5000
_MOST_UNSETTLED = 10


@dataclass
class Standing:
    """The machines of one platform and pool; None: nobody measured it then."""

    platform: str
    pool: str
    counts: Counter[str] = field(default_factory=Counter)
    canary: int | None = None
    cordoned: int | None = None
    qualified: int | None = None

    @property
    def installed(self) -> int:
        """Every machine that has not retired."""
        return sum(n for state, n in self.counts.items() if state != State.RETIRED)

    @property
    def in_service(self) -> int:
        return self.counts[State.IN_SERVICE]

    @property
    def out(self) -> int:
        """Broken, waiting, being worked on or watched: in no state of work or of a rollout."""
        return sum(self.counts[state] for state in queues.OUT)


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


# --- who stands where -------------------------------------------------------------------------


def standings(*, now: datetime, pools: Q | None = None) -> list[Standing]:
    """Return the present machines per platform and pool, counted by the database.

    Qualified are those that may take work and whose watch period after a repair is over.
    """
    machines = Machine.objects.filter(pools or Q()).order_by()
    rows = machines.values_list("platform_id", "pool", "state").annotate(n=Count("pk"))
    found: dict[Place, Standing] = {}
    names = dict(Platform.objects.values_list("pk", "name"))
    for platform, pool, state, count in rows:
        own = found.setdefault((platform, pool), Standing(names[platform], pool))
        own.counts[state] += count
    for name, counts in measured(now=now).items():
        for place, own in found.items():
            setattr(own, name, counts.get(place, 0))
    return sorted(found.values(), key=lambda one: (one.platform, one.pool))


def measured(*, now: datetime) -> dict[str, dict[Place, int]]:
    """Return what only the present tells, per place: canaries, cordoned and qualified machines."""
    service = Machine.objects.filter(state=State.IN_SERVICE)
    is_watched = Q(watch_until__gt=now)
    reader = adapters.open_arms()
    canaries: Any = reader.canaries() if reader else ()
    cordons = Cordon.objects.filter(lifted_at=None).values("machine")
    return {
        "canary": _by_place(service.filter(pk__in=canaries)),
        "cordoned": _by_place(service.filter(pk__in=cordons)),
        "qualified": _by_place(service.filter(may_take_work=True).exclude(is_watched)),
    }


def _by_place(machines: QuerySet[Machine]) -> dict[Place, int]:
    rows = machines.order_by().values_list("platform_id", "pool").annotate(n=Count("pk"))
    return {(platform, pool): count for platform, pool, count in rows}


def standings_as_of(at: datetime) -> list[Standing]:
    """Return the machines per platform and pool at a past time, from the recorded changes.

    Who was canary, cordoned or qualified is not told: it cannot be remade.
    """
    day = at.astimezone(UTC).date()
    kept = kept_before(day)
    base = {} if kept is None else kept[1]
    after = None if kept is None else day_over(kept[0])
    found: dict[Place, Counter[str]] = defaultdict(Counter)
    for _, told in by_day(events(after=after, until=at), first=day, last=day, base=base):
        found = defaultdict(Counter, {place: one.counts for place, one in told.items()})
    names = dict(Platform.objects.values_list("pk", "name"))
    rows = [Standing(names[pk], pool, counts) for (pk, pool), counts in found.items() if +counts]
    return sorted(rows, key=lambda one: (one.platform, one.pool))


def kept_before(day: date) -> tuple[date, dict[Place, Mapping[str, int]]] | None:
    """Return the last day before this one that is kept and over, and how places stood then."""
    days = CapacityDay.objects.filter(day__lt=day).order_by().values("day")
    made = days.annotate(made=Min("as_of")).order_by("-day").values_list("day", "made")
    for last, as_of in made[:_MOST_UNSETTLED]:
        if as_of >= day_over(last):
            rows = CapacityDay.objects.filter(day=last)
            told = rows.values_list("platform_id", "pool", "counts")
            return last, {(platform, pool): counts for platform, pool, counts in told}
    return None


def history(
    *, since: date, until: date, places: Q | None = None
) -> Iterator[tuple[date, Standing]]:
    """Yield each kept day of each platform and pool, in order of day."""
    rows = CapacityDay.objects.filter(places or Q(), day__gte=since, day__lte=until)
    rows = rows.select_related("platform").defer("entered", "stays")
    for row in rows.order_by("day", "platform__name", "pool"):
        counts = Counter({state: int(n) for state, n in row.counts.items()})
        told = (row.canary, row.cordoned, row.qualified)
        yield row.day, Standing(row.platform.name, row.pool, counts, *told)


# --- what happened ------------------------------------------------------------------------------


def events(*, after: datetime | None, until: datetime) -> Iterator[Event]:
    """Yield moves and relocations in (after, until], in order of time, with each one's place."""
    return merge(_moves(after, until), _relocations(after, until), key=lambda event: event.at)


def _between(column: str, after: datetime | None, until: datetime) -> Q:
    upper = Q(**{f"{column}__lte": until})
    return upper if after is None else upper & Q(**{f"{column}__gt": after})


def _moves(after: datetime | None, until: datetime) -> Iterator[Moved]:
    moved = StateChange.objects.filter(_between("at", after, until))
    machines = moved.order_by().values("machine")
    place_of = _Places(after, machines if after is not None else None)
    entered = _entered_before(after, machines)
    rows = moved.order_by("at", "pk").values_list("machine_id", "old_state", "new_state", "at")
    for pk, old, new, at in rows.iterator(chunk_size=LOOK_UP):
        since = entered.get(pk)
        seconds = None if since is None else (at - since).total_seconds()
        entered[pk] = at
        yield Moved(at, place_of(pk, at), old, new, seconds)


def _entered_before(after: datetime | None, machines: Any) -> dict[int, datetime]:
    """Return when each machine entered the state in which it stood then."""
    if after is None:
        return {}
    rows = StateChange.objects.filter(machine__in=machines, at__lte=after).order_by()
    return dict(rows.values_list("machine_id").annotate(last=Max("at")))


class _Places:
    """Where a machine was at a time: where it is, unless it was relocated since."""

    def __init__(self, after: datetime | None, machines: Any) -> None:
        rows = Machine.objects.order_by()
        if machines is not None:
            rows = rows.filter(pk__in=machines)
        self.present: dict[int, Place] = {
            pk: (platform, pool)
            for pk, platform, pool in rows.values_list("pk", "platform", "pool")
        }
        self.moves: dict[int, list[tuple[datetime, str]]] = defaultdict(list)
        relocated = _relocated(after)
        for pk, at, old in relocated.values_list("machine_id", "change__at", "change__old"):
            self.moves[pk].append((at, old))

    def __call__(self, machine: int, at: datetime) -> Place:
        platform, pool = self.present[machine]
        later = (old for when, old in self.moves.get(machine, ()) if when > at)
        return platform, next(later, pool)


def _relocated(after: datetime | None) -> QuerySet[ChangedMachine]:
    """Return the relocations to another pool since then, in order of time."""
    rows = ChangedMachine.objects.filter(
        change__kind=Change.Kind.PLACE, change__what="pool", change__source="inventory"
    )
    if after is not None:
        rows = rows.filter(change__at__gt=after)
    return rows.order_by("change__at", "change_id")


def _relocations(after: datetime | None, until: datetime) -> Iterator[Placed]:
    before = StateChange.objects.filter(machine=OuterRef("machine"), at__lte=OuterRef("change__at"))
    rows = (
        _relocated(after)
        .filter(change__at__lte=until)
        .annotate(state=Subquery(before.order_by("-at", "-pk").values("new_state")[:1]))
        .values_list("change__at", "machine__platform_id", "change__old", "change__new", "state")
    )
    for at, platform, old, new, state in rows:
        if state is not None:
            yield Placed(at, (platform, old), (platform, new), state)


# --- how long it takes --------------------------------------------------------------------------


def queue_figures(
    *, now: datetime, days: int = WINDOW_DAYS, places: Q | None = None, is_past: bool = False
) -> Queues:
    """Return how long each state of the way back takes, over the last days and today.

    Stays that ended are of these days; open ones are of now. `places` is a condition on platform
    and pool, which machines and kept days share. With `is_past` the open ones are read from the
    recorded changes, as they stood at that time.
    """
    today = now.astimezone(UTC).date()
    since = today - timedelta(days=days - 1)
    entered, ended = _of_days(since=since, until=today, places=places)
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


def _of_days(
    *, since: date, until: date, places: Q | None
) -> tuple[Counter[str], dict[str, list[float]]]:
    entered: Counter[str] = Counter()
    ended: dict[str, list[float]] = defaultdict(list)
    rows = CapacityDay.objects.filter(places or Q(), day__gte=since, day__lte=until).order_by()
    for told, stays in rows.values_list("entered", "stays"):
        entered.update(told)
        for state, seconds in stays.items():
            ended[state] += [one / 3600 for one in seconds]
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
        Q(at__gt=OuterRef("at")) | Q(at=OuterRef("at"), pk__gt=OuterRef("pk")),
        machine=OuterRef("machine"),
        at__lte=at,
    )
    rows = StateChange.objects.filter(~Exists(later), new_state__in=queues.OUT, at__lte=at)
    if places is not None:
        rows = rows.filter(machine__in=Machine.objects.filter(places).values("pk"))
    for state, entered_at in rows.order_by().values_list("new_state", "at"):
        hours = STATES[State(state)].deadline_hours
        yield state, entered_at, None if hours is None else entered_at + timedelta(hours=hours)


def trends(
    *, now: datetime, days: int = TREND_DAYS, places: Q | None = None
) -> dict[str, list[Point]]:
    """Return each queue day by day; a day that nobody kept is left out."""
    today = now.astimezone(UTC).date()
    waiting: dict[date, Counter[str]] = {}
    ended: dict[date, dict[str, list[float]]] = {}
    rows = CapacityDay.objects.filter(
        places or Q(), day__gt=today - timedelta(days=days), day__lte=today
    )
    for day, counts, stays in rows.order_by("day").values_list("day", "counts", "stays"):
        waiting.setdefault(day, Counter()).update(counts)
        own = ended.setdefault(day, defaultdict(list))
        for state, seconds in stays.items():
            own[state] += [one / 3600 for one in seconds]
    return {
        state: [
            Point(day, counts[state], *_ended(ended[day][state])) for day, counts in waiting.items()
        ]
        for state in queues.QUEUES
    }


def _ended(hours: list[float]) -> tuple[int, float | None]:
    told = queues.figures("", ended=hours)
    return told.ended, told.median_hours


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


def day_over(day: date) -> datetime:
    """Return the last moment of a day."""
    return datetime.combine(day + timedelta(days=1), time.min, tzinfo=UTC) - timedelta(
        microseconds=1
    )
