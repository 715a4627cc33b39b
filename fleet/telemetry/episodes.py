"""From single faults to what happened: repeats, bursts and incidents of a machine. Pure.

Three rules, each wider than the one before:

- the same part of a machine says the same within 5 s: one *event*, told again;
- faults of one machine and family less than 3 min apart: one *burst*;
- faults of one machine and family less than the family's gap apart: one *incident*.

Each of them only depends on which faults there are, never on the order in which they came: a
fault that comes late may join two incidents that were apart, and then these are one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from itertools import groupby
from operator import attrgetter

REPEAT = timedelta(seconds=5)
BURST = timedelta(minutes=3)
SYMPATHY = timedelta(minutes=5)
"""A code that only accompanies others is taken to accompany what lies within this of it."""

VERSION = "episodes/1"
"""Of these rules; an incident keeps the version that made it."""


@dataclass(frozen=True)
class Seen:
    """One fault, as far as these rules look at it; `series` is its machine and family."""

    key: int
    series: tuple[int, str]
    at: datetime
    signature: str = ""
    component: str = ""


@dataclass(frozen=True)
class Span:
    """An incident that is known already: from its first fault to its last."""

    key: int
    series: tuple[int, str]
    first: datetime
    last: datetime


@dataclass(frozen=True)
class Joined:
    """One incident: the spans that were known and the new faults that belong to it.

    Without spans it is new; with more than one, new faults closed the gap between them.
    """

    series: tuple[int, str]
    first: datetime
    last: datetime
    spans: tuple[Span, ...]
    faults: tuple[Seen, ...]


def join(
    spans: Iterable[Span], faults: Iterable[Seen], *, gaps: Mapping[str, timedelta]
) -> list[Joined]:
    """Put new faults into incidents; what is not touched by any of them is left out.

    Parameters
    ----------
    spans : iterable of Span
        The incidents known so far that lie within a gap of the new faults.
    faults : iterable of Seen
        New faults, in any order.
    gaps : mapping
        By family: a fault this far or farther from an incident's nearest fault begins another.

    Returns
    -------
    list of Joined
        By series and time.

    Raises
    ------
    KeyError
        If a family has no gap.

    Examples
    --------
    A fault between two known incidents makes them one:

    >>> from datetime import UTC
    >>> noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    >>> at = lambda minutes: noon + timedelta(minutes=minutes)
    >>> known = [Span(1, (7, "nic"), at(0), at(4)), Span(2, (7, "nic"), at(25), at(25))]
    >>> late = [Seen(9, (7, "nic"), at(15))]
    >>> [one] = join(known, late, gaps={"nic": timedelta(minutes=15)})
    >>> [span.key for span in one.spans], one.last == at(25)
    ([1, 2], True)
    """
    pieces: list[Span | Seen] = [*spans, *faults]
    pieces.sort(key=lambda one: (one.series, _first(one), isinstance(one, Seen), one.key))
    found = []
    for series, own in groupby(pieces, key=attrgetter("series")):
        gap = gaps[series[1]]
        found += [_joined(series, group) for group in _chains(own, gap=gap) if _is_touched(group)]
    return found


def bursts(faults: Iterable[Seen], *, gap: timedelta = BURST) -> list[list[Seen]]:
    """Group faults of the same machine and family that lie less than `gap` apart.

    Examples
    --------
    >>> from datetime import UTC
    >>> noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    >>> seen = [Seen(n, (7, "nic"), noon + timedelta(seconds=60 * n)) for n in (0, 2, 5)]
    >>> [len(burst) for burst in bursts(seen)]
    [2, 1]
    """
    ordered = sorted(faults, key=lambda one: (one.series, one.at, one.key))
    return [
        [one for one in chain if isinstance(one, Seen)]
        for _, own in groupby(ordered, key=attrgetter("series"))
        for chain in _chains(own, gap=gap)
    ]


def events(faults: Iterable[Seen], *, within: timedelta = REPEAT) -> list[Seen]:
    """Return the faults without those that say again, within 5 s, what the same part said.

    Examples
    --------
    >>> from datetime import UTC
    >>> noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    >>> told = [noon + timedelta(seconds=s) for s in (0, 4, 8, 60)]
    >>> seen = [Seen(n, (7, "gpu.gsp"), at, "xid.119", "gpu 3") for n, at in enumerate(told)]
    >>> [one.key for one in events(seen)]
    [0, 3]
    """

    def part(one: Seen) -> tuple[object, ...]:
        return one.series, one.component, one.signature

    ordered = sorted(faults, key=lambda one: (part(one), one.at, one.key))
    firsts = []
    for _, own in groupby(ordered, key=part):
        before: datetime | None = None
        for one in own:
            if before is None or one.at - before > within:
                firsts.append(one)
            before = one.at
    return sorted(firsts, key=lambda one: (one.at, one.key))


# --- what only accompanies something else --------------------------------------------------------


@dataclass(frozen=True)
class Episode:
    """An incident with its signatures, as the search for its parent looks at it."""

    key: int
    machine: int
    first: datetime
    last: datetime
    signatures: frozenset[str]


def parents(
    episodes: Sequence[Episode],
    *,
    sympathies: Mapping[str, Sequence[str]],
    within: timedelta = SYMPATHY,
) -> dict[int, int | None]:
    """Return for each episode the one that it only accompanies, or None.

    An episode accompanies another one of its machine if each of its signatures is sympathetic to
    some signature of the other, and no more than `within` lies between them. What is itself
    wholly sympathetic is nobody's parent, so there are no chains. Of several the nearest counts,
    then the one that began first. It does not matter which of the two was heard of first.

    Parameters
    ----------
    sympathies : mapping
        By signature, the glob patterns of the signatures that it accompanies.

    Examples
    --------
    >>> from datetime import UTC
    >>> noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    >>> cleanup = Episode(1, 7, noon, noon, frozenset({"xid.45"}))
    >>> memory = Episode(2, 7, noon, noon, frozenset({"xid.48"}))
    >>> parents([cleanup, memory], sympathies={"xid.45": ["xid.*"]})
    {1: 2, 2: None}
    """
    found: dict[int, int | None] = {}
    by_machine = sorted(episodes, key=lambda one: (one.machine, one.key))
    for _, own in groupby(by_machine, key=attrgetter("machine")):
        group = list(own)
        leading = [one for one in group if not _is_sympathetic(one, sympathies)]
        for one in group:
            found[one.key] = _parent(one, leading, sympathies=sympathies, within=within)
    return found


def _is_sympathetic(one: Episode, sympathies: Mapping[str, Sequence[str]]) -> bool:
    return all(sympathies.get(name) for name in one.signatures)


def _parent(
    one: Episode,
    leading: Sequence[Episode],
    *,
    sympathies: Mapping[str, Sequence[str]],
    within: timedelta,
) -> int | None:
    if not _is_sympathetic(one, sympathies):
        return None
    near = [
        (_apart(one, other), other.first, sorted(other.signatures), other.key)
        for other in leading
        if _apart(one, other) <= within and _accompanies(one, other, sympathies)
    ]
    return min(near)[-1] if near else None


def _apart(one: Episode, other: Episode) -> timedelta:
    return max(one.first - other.last, other.first - one.last, timedelta(0))


def _accompanies(one: Episode, other: Episode, sympathies: Mapping[str, Sequence[str]]) -> bool:
    return all(
        any(fnmatchcase(led, glob) for glob in sympathies[name] for led in other.signatures)
        for name in one.signatures
    )


# --- chains -----------------------------------------------------------------------------------


def _first(one: Span | Seen) -> datetime:
    return one.first if isinstance(one, Span) else one.at


def _last(one: Span | Seen) -> datetime:
    return one.last if isinstance(one, Span) else one.at


def _chains(pieces: Iterable[Span | Seen], *, gap: timedelta) -> list[list[Span | Seen]]:
    """Cut pieces of one series, in order of their beginning, where nothing lies within the gap."""
    chains: list[list[Span | Seen]] = []
    end: datetime | None = None
    for one in pieces:
        if end is None or _first(one) - end >= gap:
            chains.append([])
            end = _last(one)
        chains[-1].append(one)
        end = max(end, _last(one))
    return chains


def _is_touched(group: Sequence[Span | Seen]) -> bool:
    return any(isinstance(one, Seen) for one in group)


def _joined(series: tuple[int, str], group: Sequence[Span | Seen]) -> Joined:
    return Joined(
        series=series,
        first=_first(group[0]),
        last=max(_last(one) for one in group),
        spans=tuple(one for one in group if isinstance(one, Span)),
        faults=tuple(one for one in group if isinstance(one, Seen)),
    )
