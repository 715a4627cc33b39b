"""The days that are kept, and what happened on those that are not yet. Counted, not estimated."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from heapq import merge
from typing import Any

from django.db.models import Max, Min, OuterRef, Q, QuerySet, Subquery

from fleet.models import CapacityDay, Change, ChangedMachine, Machine, StateChange
from fleet.tally import Event, Moved, Place, Placed, by_day

LOOK_UP = 5000
_MOST_UNSETTLED = 10


@dataclass(frozen=True)
class KeptDay:
    """One platform and pool on one day: machines per state, entries, and stays that ended."""

    day: date
    place: Place
    counts: Mapping[str, int]
    entered: Mapping[str, int]
    stays: Mapping[str, Sequence[int]]


def kept_days(*, since: date, until: date, places: Q | None = None) -> list[KeptDay]:
    """Return the kept days of these places, in order of day; one that nobody kept is left out."""
    rows = CapacityDay.objects.filter(places or Q(), day__gte=since, day__lte=until)
    columns = ("day", "platform_id", "pool", "counts", "entered", "stays")
    told = rows.order_by("day", "platform", "pool").values_list(*columns)
    return [KeptDay(day, (platform, pool), *rest) for day, platform, pool, *rest in told]


def days_until(at: datetime, *, since: date, places: Q | None = None) -> list[KeptDay]:
    """Return the same up to a time; of its day only what had happened by then."""
    day = at.astimezone(UTC).date()
    found = kept_days(since=since, until=day - timedelta(days=1), places=places)
    here = set(Machine.objects.filter(places or Q()).order_by().values_list("platform", "pool"))
    happened = events(after=day_over(day - timedelta(days=1)), until=at)
    for _, told in by_day(happened, first=day, last=day):
        found += [
            KeptDay(day, place, {}, tally.entered, tally.stays)
            for place, tally in told.items()
            if place in here
        ]
    return found


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


def day_over(day: date) -> datetime:
    """Return the last moment of a day."""
    return datetime.combine(day + timedelta(days=1), time.min, tzinfo=UTC) - timedelta(
        microseconds=1
    )


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
