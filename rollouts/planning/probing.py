"""Which idle machines are probed next: both arms at the same instants, in proportion; pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil, floor

#: A node probe takes no longer than this.
LONGEST = timedelta(minutes=3)


def period_at(now: datetime, *, origin: datetime, every: timedelta) -> int:
    """Return the number of the period of a schedule that `now` lies in, from 0.

    Examples
    --------
    >>> start = datetime(2026, 1, 1)
    >>> period_at(datetime(2026, 1, 1, 13), origin=start, every=timedelta(hours=6))
    2
    """
    return floor((now - origin) / every)


def choose(
    canaries: Sequence[str], controls: Sequence[str], *, sizes: tuple[int, int], most: int
) -> list[str]:
    """Return whom to probe together of those that are idle and have not been in this period.

    Parameters
    ----------
    canaries, controls : sequence of str
        Idle ones, in the order in which they are to be probed.
    sizes : (int, int)
        Of the two arms: each gives the same part of itself, at least one machine.
    most : int
        Machines that one probe may take.

    Returns
    -------
    list of str
        In the order of the names, which tells nothing of the arms; empty where an arm has nobody
        idle, as the other one would then be measured at another time.

    Examples
    --------
    >>> choose(["m3", "m1"], ["m2", "m4", "m5", "m6", "m7"], sizes=(4, 8), most=100)
    ['m1', 'm2', 'm3', 'm4', 'm5', 'm6']
    >>> choose(["m1"], [], sizes=(4, 8), most=100)
    []
    """
    if not canaries or not controls:
        return []
    first, second = sizes
    part = min(len(canaries) / first, len(controls) / second, max(most, 2) / (first + second))
    taken = [
        *canaries[: max(1, min(len(canaries), ceil(round(part * first, 9))))],
        *controls[: max(1, min(len(controls), ceil(round(part * second, 9))))],
    ]
    return sorted(taken)
