"""What a recorded version history shows: rollouts done, and versions that came back. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from typing import NamedTuple

LEAST_CHANGES = 8


class Change(NamedTuple):
    """One component of one machine went from one known version to another."""

    machine: str
    site: str
    pool: str
    kind: str
    slot: str
    old: str
    new: str
    at: datetime


@dataclass(frozen=True)
class PastWave:
    """The machines that were changed at one instant."""

    at: datetime
    machines: int


@dataclass(frozen=True)
class PastRollout:
    """The same change of one kind of component over the machines of a pool."""

    site: str
    pool: str
    kind: str
    old: str
    new: str
    machines: int
    first: datetime
    last: datetime
    waves: tuple[PastWave, ...]


@dataclass(frozen=True)
class Reversal:
    """A component went from `kept` to `tried` and, as its very next change, back."""

    machine: str
    kind: str
    slot: str
    kept: str
    tried: str
    at: datetime
    back_at: datetime


def past_rollouts(changes: Iterable[Change], *, least: int = LEAST_CHANGES) -> list[PastRollout]:
    """Find the changes that went over a pool: the same two versions, at least `least` times.

    A wave is all that changed at one instant, so waves are as fine as the record is. A machine
    whose parts of one kind change together counts once; one that made the same change twice
    counts as two changes and as one machine.
    """

    def whole(change: Change) -> tuple[str, str, str, str, str]:
        return change.site, change.pool, change.kind, change.old, change.new

    found = [
        _past_rollout(key, {(change.at, change.machine) for change in own})
        for key, own in groupby(sorted(changes, key=whole), key=whole)
    ]
    large = [(rollout, count) for rollout, count in found if count >= least]
    return sorted(
        (rollout for rollout, _ in large), key=lambda one: (one.first, one.pool, one.kind)
    )


def _past_rollout(
    key: tuple[str, str, str, str, str], changed: set[tuple[datetime, str]]
) -> tuple[PastRollout, int]:
    site, pool, kind, old, new = key
    counts = sorted(Counter(at for at, _ in changed).items())
    rollout = PastRollout(
        site=site,
        pool=pool,
        kind=kind,
        old=old,
        new=new,
        machines=len({machine for _, machine in changed}),
        first=counts[0][0],
        last=counts[-1][0],
        waves=tuple(PastWave(at, machines) for at, machines in counts),
    )
    return rollout, len(changed)


def reversals(changes: Iterable[Change]) -> list[Reversal]:
    """Find the changes whose next change of the same part led back.

    Examples
    --------
    >>> from datetime import UTC
    >>> days = [datetime(2026, 3, day, tzinfo=UTC) for day in (1, 2)]
    >>> there = Change("m1", "", "", "bmc", "", "4.1", "4.2", days[0])
    >>> back = Change("m1", "", "", "bmc", "", "4.2", "4.1", days[1])
    >>> [(one.kept, one.tried) for one in reversals([there, back])]
    [('4.1', '4.2')]
    """

    def part(change: Change) -> tuple[str, str, str]:
        return change.machine, change.kind, change.slot

    ordered = sorted(changes, key=lambda change: (part(change), change.at))
    return [
        Reversal(*part(there), there.old, there.new, there.at, back.at)
        for _, group in groupby(ordered, key=part)
        for there, back in pairwise(group)
        if there.new == back.old and there.old == back.new
    ]
