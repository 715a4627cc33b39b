"""How long machines stay in each state, and how many are out because of it. Pure.

A stay that has not ended is censored: it says that this one takes at least so long. Medians are of
stays that ended, with the number of open ones beside them; means are restricted means, in which
open stays count for what they are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

#: The queues in which a machine waits for somebody, and what is then done to it.
QUEUES: Mapping[str, tuple[str, ...]] = {
    "awaiting_diagnosis": ("diagnosing",),
    "awaiting_repair": ("repairing", "at_supplier"),
    "awaiting_validation": ("validating", "observing"),
    "awaiting_release": (),
}
#: Beyond the queues: a person has to decide what becomes of the machine.
STOPPED = ("validation_failed", "lemon_review")
OUT: tuple[str, ...] = (
    *(state for queue, worked in QUEUES.items() for state in (queue, *worked)),
    *STOPPED,
)
#: Longest stay that a mean counts in full; a longer one counts as this long.
HORIZON_HOURS = 28 * 24.0


@dataclass(frozen=True)
class Stay:
    """One machine in one state from `since` to `until` (None: still)."""

    machine: int
    state: str
    since: datetime
    until: datetime | None

    def hours(self, *, now: datetime) -> float:
        """Return how long it took, or has taken so far."""
        return ((self.until or now) - self.since) / timedelta(hours=1)


@dataclass(frozen=True)
class Figures:
    """How long a state takes; None where nothing has ended, or nothing is there to say it from."""

    state: str
    ended: int
    open: int
    median_hours: float | None
    p90_hours: float | None
    mean_hours: float | None
    oldest_open_hours: float | None


@dataclass(frozen=True)
class Flow:
    """Little's law for one state: machines that enter it times how long it takes."""

    state: str
    per_day: float
    mean_hours: float | None
    expected_out: float | None
    present: int


def stays(changes: Iterable[tuple[int, str, datetime]]) -> Iterator[Stay]:
    """Yield each stay of each machine from its changes, in order of machine and time.

    Parameters
    ----------
    changes : iterable of (machine, new state, time)
        Ordered by machine and time. Only what the changes say is told: where a machine stood
        before its first one is not known.

    Examples
    --------
    >>> from datetime import UTC
    >>> at = lambda hour: datetime(2026, 3, 2, hour, tzinfo=UTC)
    >>> seen = list(stays([(1, "repairing", at(1)), (1, "in_service", at(4))]))
    >>> [(one.state, one.hours(now=at(6))) for one in seen]
    [('repairing', 3.0), ('in_service', 2.0)]
    """
    before: tuple[int, str, datetime] | None = None
    for change in changes:
        if before is not None:
            until = change[2] if change[0] == before[0] else None
            yield Stay(*before, until)
        before = change
    if before is not None:
        yield Stay(*before, None)


def figures(
    state: str,
    *,
    ended: Sequence[float],
    still: Sequence[float] = (),
    horizon_hours: float = HORIZON_HOURS,
) -> Figures:
    """Sum up the stays in one state.

    Parameters
    ----------
    ended, still : sequences of hours
        Stays that ended, and those that are open, so far.
    horizon_hours : float
        To which the mean is restricted.

    Examples
    --------
    >>> seen = figures("repairing", ended=[1.0, 2.0, 9.0], still=[4.0], horizon_hours=24.0)
    >>> seen.median_hours, round(seen.p90_hours, 2), seen.open, seen.mean_hours
    (2.0, 7.6, 1, 5.25)
    """
    return Figures(
        state=state,
        ended=len(ended),
        open=len(still),
        median_hours=float(np.median(ended)) if len(ended) else None,
        p90_hours=float(np.percentile(ended, 90)) if len(ended) else None,
        mean_hours=restricted_mean(ended, still, horizon_hours=horizon_hours),
        oldest_open_hours=max(still, default=None),
    )


def restricted_mean(
    ended: Sequence[float], still: Sequence[float] = (), *, horizon_hours: float
) -> float | None:
    """Return the mean of the time up to a horizon, open stays taken as censored.

    Parameters
    ----------
    ended, still : sequences of hours
        Stays that ended; open ones as long as they have taken.
    horizon_hours : float
        A longer stay counts as this long.

    Returns
    -------
    float or None
        Hours; None where no stay has ended before the horizon and none has reached it.

    Notes
    -----
    The area under the Kaplan-Meier curve up to the horizon [1]_; without open stays it is the mean
    of min(time, horizon). After the longest time seen, if that one is open, the curve stays where
    it is, which can only overstate the mean. It assumes that open stays take as long as others
    that have lasted so far, which does not hold if people put off the hard cases.

    References
    ----------
    .. [1] J. O. Irwin, Journal of Hygiene 47 (1949) 188-189.

    Examples
    --------
    >>> restricted_mean([1.0, 30.0], horizon_hours=24.0)
    12.5
    >>> restricted_mean([2.0, 6.0], [4.0], horizon_hours=24.0)  # 2 + (2/3) 4
    4.666666666666667
    """
    if not len(ended) and not any(hours >= horizon_hours for hours in still):
        return None
    times = np.concatenate([np.asarray(ended, dtype=float), np.asarray(still, dtype=float)])
    has_ended = np.arange(times.size) < len(ended)
    order = np.lexsort((~has_ended, times))  # of equal times the ended come first
    times, has_ended = np.minimum(times[order], horizon_hours), has_ended[order]
    at_risk = np.arange(times.size, 0, -1)
    survival = np.cumprod(np.where(has_ended, 1 - 1 / at_risk, 1.0))
    widths = np.diff(np.concatenate([[0.0], times, [horizon_hours]]))
    return float(widths @ np.concatenate([[1.0], survival]))


def flow(state: str, *, entered: int, days: float, mean_hours: float | None, present: int) -> Flow:
    """Return how many machines a state is expected to hold: arrival rate times time in it.

    Examples
    --------
    >>> flow("awaiting_repair", entered=56, days=28.0, mean_hours=12.0, present=3).expected_out
    1.0
    """
    rate = entered / days
    expected = None if mean_hours is None else rate * mean_hours / 24
    return Flow(state, rate, mean_hours, expected, present)


def bottleneck(flows: Iterable[Flow]) -> Flow | None:
    """Return the queue that keeps the most machines out; None while none is known to keep any.

    Examples
    --------
    >>> one = flow("awaiting_repair", entered=28, days=28.0, mean_hours=48.0, present=9)
    >>> other = flow("awaiting_release", entered=28, days=28.0, mean_hours=6.0, present=9)
    >>> bottleneck([one, other]).state
    'awaiting_repair'
    """
    known = [one for one in flows if one.state in QUEUES and one.expected_out]
    return max(known, key=lambda one: one.expected_out or 0.0, default=None)
