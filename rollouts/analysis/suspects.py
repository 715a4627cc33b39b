"""Which of several changes explains a spike of faults best: observational, for people to follow up.

Nobody drew who was touched by a change that was made elsewhere, so nothing here is a verdict. It
says where to look first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import fisher_exact

from rollouts.analysis.errors import InvalidSample
from rollouts.analysis.proportions import RateRatio, rate_ratio_exact

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Counts:
    """Events and machine-hours of one group in one window."""

    events: int
    exposure_hours: float


@dataclass(frozen=True)
class Suspicion:
    """How well one change explains a spike.

    `after` compares touched with untouched machine-time during the spike, `before` the same
    machines in the time before it: where they differed already, the change is not why. None
    where one of the two groups has no machine-time. `explained` counts the events of the spike
    beyond what the touched machine-time would have had at the untouched rate, `share` is that over
    the whole spike, in [0, 1]; None where there is no spike or nobody was untouched.
    """

    touched_before: Counts
    untouched_before: Counts
    touched: Counts
    untouched: Counts
    before: RateRatio | None
    after: RateRatio | None
    excess: float
    explained: float | None
    share: float | None

    @property
    def rank(self) -> tuple[float, float]:
        """What suspects are ordered by, the greatest first.

        The lower end of the ratio during the spike, over the ratio before where that was above 1;
        then the share.
        """
        if self.after is None:
            return (-1.0, 0.0)
        head_start = 1.0
        if self.before is not None and np.isfinite(self.before.estimate):
            head_start = max(self.before.estimate, 1.0)
        return (self.after.low / head_start, self.share or 0.0)


def suspicion(
    machine: IntArray,
    hours: FloatArray,
    *,
    touched_hours: FloatArray,
    until_hours: float,
    before_hours: float,
    confidence_level: float = 0.95,
) -> Suspicion:
    """How well does a change explain the faults since hour 0?

    Parameters
    ----------
    machine, hours : array of shape (n_events,)
        Index of the machine and time of each episode; hour 0 is when the spike began, negative
        hours lie before it.
    touched_hours : array of shape (n_machines,)
        When the change reached each machine; inf for one that it never reached.
    until_hours : float
        End of the spike's window, positive.
    before_hours : float
        Length of the window before hour 0 that it is compared with, positive.
    confidence_level : float
        Two-sided coverage of each interval, at this one look.

    Returns
    -------
    Suspicion

    Raises
    ------
    InvalidSample
        If a window is empty, an event belongs to no machine, or a time is not a number.

    Notes
    -----
    Machine-time counts as touched from the change on, so a change that spreads is treated as it
    spread. The intervals are exact for independent events with constant rates; faults that come
    in bursts make them too narrow, and machines that were chosen for the change may differ from
    the others: this ranks suspects and proves nothing.

    Examples
    --------
    Ten machines; the change reached two of them when the spike began, and all six faults of the
    10 hours since then are theirs. There was one fault in the 10 hours before, on an untouched
    machine.

    >>> seen = suspicion(
    ...     np.array([7, 0, 0, 0, 1, 1, 1]),
    ...     np.array([-5.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    ...     touched_hours=np.array([0.0, 0.0] + [np.inf] * 8),
    ...     until_hours=10.0,
    ...     before_hours=10.0,
    ... )
    >>> seen.excess, seen.explained, seen.share
    (5.0, 6.0, 1.0)
    >>> round(seen.after.low, 2)
    4.71
    """
    _check(machine, hours, touched_hours, until_hours=until_hours, before_hours=before_hours)
    is_touched = hours >= touched_hours[machine]
    is_after = (hours >= 0) & (hours < until_hours)
    is_before = (hours >= -before_hours) & (hours < 0)
    of_touched = np.isfinite(touched_hours) & (touched_hours < until_hours)
    with_change = float(np.clip(until_hours - touched_hours, 0.0, until_hours).sum())
    whole = until_hours * len(touched_hours)
    touched = Counts(int((is_after & is_touched).sum()), with_change)
    untouched = Counts(int((is_after & ~is_touched).sum()), whole - with_change)
    # Before the spike, the same two groups: whom the change reached, and whom it did not.
    clean = np.clip(np.minimum(touched_hours, 0.0) + before_hours, 0.0, before_hours)
    is_clean = is_before & ~is_touched
    touched_before = Counts(
        int((is_clean & of_touched[machine]).sum()), float(clean[of_touched].sum())
    )
    untouched_before = Counts(
        int((is_clean & ~of_touched[machine]).sum()), float(clean[~of_touched].sum())
    )
    expected = _rate(is_before.sum(), before_hours * len(touched_hours)) * whole
    excess = float(is_after.sum()) - expected
    explained = _explained(touched, untouched)
    return Suspicion(
        touched_before=touched_before,
        untouched_before=untouched_before,
        touched=touched,
        untouched=untouched,
        before=_ratio(touched_before, untouched_before, confidence_level=confidence_level),
        after=_ratio(touched, untouched, confidence_level=confidence_level),
        excess=excess,
        explained=explained,
        share=_share(explained, excess),
    )


def balance_p(touched_canaries: int, canaries: int, touched_controls: int, controls: int) -> float:
    """Two-sided p-value that a change fell on the arms of a wave as chance would have it.

    Given how many machines were touched in all, the number among the canaries is hypergeometric;
    the p-value adds up every number that is no likelier than the one seen (Fisher's exact test).

    Examples
    --------
    >>> round(balance_p(0, 4, 4, 4), 4)
    0.0286
    >>> balance_p(2, 8, 8, 32)
    1.0
    """
    if not (0 <= touched_canaries <= canaries and 0 <= touched_controls <= controls):
        raise InvalidSample(
            f"{touched_canaries} of {canaries} canaries and {touched_controls} of {controls} "
            "controls cannot have been touched"
        )
    if not canaries or not controls:
        return 1.0
    table = [
        [touched_canaries, canaries - touched_canaries],
        [touched_controls, controls - touched_controls],
    ]
    return float(fisher_exact(table).pvalue)


def _explained(touched: Counts, untouched: Counts) -> float | None:
    if untouched.exposure_hours <= 0:
        return None
    expected = _rate(untouched.events, untouched.exposure_hours) * touched.exposure_hours
    return max(touched.events - expected, 0.0)


def _share(explained: float | None, excess: float) -> float | None:
    if explained is None or excess <= 0:
        return None
    return min(explained / excess, 1.0)


def _rate(events: float, exposure: float) -> float:
    return float(events) / exposure


def _ratio(one: Counts, other: Counts, *, confidence_level: float) -> RateRatio | None:
    if one.exposure_hours <= 0 or other.exposure_hours <= 0:
        return None
    return rate_ratio_exact(
        one.events,
        one.exposure_hours,
        other.events,
        other.exposure_hours,
        confidence_level=confidence_level,
    )


def _check(
    machine: IntArray,
    hours: FloatArray,
    touched_hours: FloatArray,
    *,
    until_hours: float,
    before_hours: float,
) -> None:
    for name, length in (("until_hours", until_hours), ("before_hours", before_hours)):
        if not 0 < length < np.inf:
            raise InvalidSample(f"{name} is {length}; a window has a positive, finite length")
    if machine.shape != hours.shape:
        raise InvalidSample(f"{machine.shape} machines for {hours.shape} times")
    if not len(touched_hours):
        raise InvalidSample("there are no machines; at least one is needed")
    if machine.size and not 0 <= machine.min() <= machine.max() < len(touched_hours):
        raise InvalidSample(
            f"an event is of machine {machine.max()}, known are 0 to {len(touched_hours) - 1}"
        )
    if not np.isfinite(hours).all() or np.isnan(touched_hours).any():
        raise InvalidSample("a time is not a number")
