"""Counters: what they rose by, where a boot begins them anew. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Reading:
    """A counter's value, and the boot in which it was read."""

    value: int
    boot_id: str


def increase(before: Reading, after: Reading) -> int | None:
    """Return what a counter rose by between two readings; None if it went backwards.

    After a boot a counter begins at 0, so all that it shows has come since. Without one it can
    only rise: a smaller value says nothing about what happened, and no wrap is assumed.

    Examples
    --------
    >>> increase(Reading(1010, "a"), Reading(3, "b")), increase(Reading(10, "a"), Reading(7, "a"))
    (3, None)
    """
    if before.boot_id != after.boot_id:
        return after.value
    return after.value - before.value if after.value >= before.value else None


def total(readings: Sequence[Reading]) -> tuple[int, int]:
    """Return what a counter rose by over readings in order, and how often it went backwards.

    Examples
    --------
    >>> total([Reading(1000, "a"), Reading(1010, "a"), Reading(3, "b"), Reading(8, "b")])
    (18, 0)
    """
    rises = [increase(before, after) for before, after in pairwise(readings)]
    return sum(rise or 0 for rise in rises), sum(rise is None for rise in rises)
