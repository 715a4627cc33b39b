"""Count machines per place and state from what happened to them, in order of time. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta

#: No machine stays in it: it is left in the moment that it is made.
_NOWHERE = "registered"
Place = tuple[int, str]


@dataclass(frozen=True)
class Moved:
    """A machine went from one state to another, after so many seconds (None: not known)."""

    at: datetime
    place: Place
    old: str
    new: str
    stayed_seconds: float | None = None


@dataclass(frozen=True)
class Placed:
    """A machine went to another pool; its state stayed."""

    at: datetime
    place: Place
    to: Place
    state: str


Event = Moved | Placed


@dataclass
class Tally:
    """Machines per state in one place, and what happened there since the day began."""

    counts: Counter[str] = field(default_factory=Counter)
    entered: Counter[str] = field(default_factory=Counter)
    stays: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def copy(self) -> "Tally":
        stays = defaultdict(list, {state: list(own) for state, own in self.stays.items()})
        return Tally(+self.counts, Counter(self.entered), stays)


def day_end(day: date) -> datetime:
    """Return the first moment after a day."""
    return datetime.combine(day + timedelta(days=1), time.min, tzinfo=UTC)


def by_day(
    events: Iterable[Event],
    *,
    first: date,
    last: date,
    base: Mapping[Place, Mapping[str, int]] | None = None,
) -> Iterator[tuple[date, dict[Place, Tally]]]:
    """Yield how each place stood at the end of each day from `first` to `last`.

    Parameters
    ----------
    events : iterable of Moved and Placed
        In order of time. What lies before `first` counts towards where machines stand only.
    base : mapping of place to machines per state, optional
        How they stood before the first event.

    Examples
    --------
    >>> at = datetime(2026, 3, 2, 12, tzinfo=UTC)
    >>> event = Moved(at, (1, "a"), "in_service", "draining", 60.0)
    >>> days = by_day([event], first=at.date(), last=at.date(), base={(1, "a"): {"in_service": 3}})
    >>> [(day.day, dict(told[1, "a"].counts)) for day, told in days]
    [(2, {'in_service': 2, 'draining': 1})]
    """
    tallies: dict[Place, Tally] = defaultdict(Tally)
    for place, counts in (base or {}).items():
        tallies[place].counts.update(counts)
    pending = iter(events)
    event = next(pending, None)
    day = first - timedelta(days=1)  # takes in everything that lies before the first
    while day <= last:
        while event is not None and event.at < day_end(day):
            _apply(event, tallies)
            event = next(pending, None)
        if day >= first:
            yield day, {place: tally.copy() for place, tally in tallies.items()}
        for tally in tallies.values():
            tally.entered.clear()
            tally.stays.clear()
        day += timedelta(days=1)


def _apply(event: Event, tallies: dict[Place, Tally]) -> None:
    if isinstance(event, Placed):
        tallies[event.place].counts[event.state] -= 1
        tallies[event.to].counts[event.state] += 1
        return
    tally = tallies[event.place]
    if event.old != _NOWHERE:
        tally.counts[event.old] -= 1
        if event.stayed_seconds is not None:
            tally.stays[event.old].append(round(event.stayed_seconds))
    tally.counts[event.new] += 1
    tally.entered[event.new] += 1
