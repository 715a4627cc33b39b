"""Faults: episodes per in-service machine-day, canary over control.

Halting compares by re-assignment, exactly, what each unit's past did not foretell, or where there
is no past de-duplicated counts. Widening compares a score that has the same mean in both arms if
canaries fail M times as often, however unequal the machines are; families whose faults take the
machine out of service are compared by totals instead.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import norm

from rollouts.analysis.proportions import rate_ratio_exact
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray
from rollouts.analysis.scores import UNITS_PER_FAULT_SCORE, Strata, adjusted, quantised
from rollouts.analysis.verdicts import Interval

LEAST_RATIO, LARGEST_RATIO = 1e-4, 1e4
"""Where the limits of a rate ratio are searched."""
LIMIT_STEPS = 26
"""Bisections of the log ratio: to 3e-7 of the ratio."""
LOW_EXPOSURE_QUANTILE = 0.05
LEAST_JUMP_EPISODES = 5
"""Per period, before an arm's rate may be said to have jumped."""


@dataclass(frozen=True, eq=False)
class FaultTable:
    """One family at one look, for the units that are present.

    Parameters
    ----------
    episodes : (units,) int array
        Since the clock's start.
    days : (units,) array
        In-service machine-days, same period.
    is_canary : (units,) bool array
    strata : Strata
        Of the same units, without a covariate.
    """

    episodes: IntArray
    days: FloatArray
    is_canary: BoolArray
    strata: Strata

    def arm(self, is_canary: bool) -> BoolArray:
        return self.is_canary if is_canary else ~self.is_canary

    def count(self, is_canary: bool) -> int:
        return int(self.episodes[self.arm(is_canary)].sum())

    def exposure(self, is_canary: bool) -> float:
        return float(self.days[self.arm(is_canary)].sum())


SPELL_SECONDS = 4 * 3_600.0
"""Episodes of one unit within a spell of this length say no more than one of them."""
MOST_SPELLS = 3
"""No unit counts for more in its first days: beyond, it says that the unit is bad."""


def halt_score(
    spells: IntArray,
    days: FloatArray,
    *,
    is_canary: BoolArray,
    where: BoolArray,
    strata: Strata,
    tolerance: float,
) -> IntArray:
    """log(1 + spells with an episode), less what the stratum's pooled level expects, in integers.

    Parameters
    ----------
    spells : (units,) int array
        Spells of `SPELL_SECONDS` with an episode, summed over machines, since the clock's start.
        At most `MOST_SPELLS` count, or one for each day in service where those are more.
    days : (units,) array
        In-service machine-days, same period.
    where : (units,) bool array
        Units present at the look.
    tolerance : float
        Tolerated rate ratio; the canaries' counts are divided by it first. Exact at 1, else
        in the mean only.

    Notes
    -----
    For units of which nothing is known from before: what the second and third fault of one
    machine says of the firmware is less than what the first of another says, and a machine that
    goes on failing was most likely bad before; the limit grows with time, so that a long window
    goes on telling. Where exposures are equal the scores of one stratum differ as the counts do,
    so they tie as those do. Exact if exposure is not caused by the arm.

    Examples
    --------
    >>> score = halt_score(np.array([1, 0, 0, 0]), np.ones(4), is_canary=np.arange(4) < 2,
    ...                    where=np.ones(4, bool), strata=Strata.of(np.zeros(4, int)),
    ...                    tolerance=1.0)
    >>> (score / UNITS_PER_FAULT_SCORE).round(3).tolist()
    [0.52, -0.173, -0.173, -0.173]
    """
    counts = np.where(is_canary, spells / tolerance, spells)
    counts = np.minimum(counts, np.maximum(days, MOST_SPELLS))
    scores = np.where(where, np.rint(UNITS_PER_FAULT_SCORE * np.log1p(counts)), 0.0)
    total, exposure = strata.totals(scores, where=where), strata.totals(days, where=where)
    rate = np.divide(total, exposure, out=np.zeros(strata.count), where=exposure > 0)
    expected = np.rint(rate[strata.code] * days)
    return adjusted((scores - expected).astype(np.int64), strata=strata, where=where)


MOST_SURPRISE = 1.0
"""No unit counts for more: two standard deviations of a Poisson count's square root."""


def surprise_score(
    episodes: IntArray,
    days: FloatArray,
    *,
    foreseen: FloatArray,
    is_canary: BoolArray,
    where: BoolArray,
    strata: Strata,
    tolerance: float,
) -> IntArray:
    """How many more episodes a unit had than its own past foretold, on a square-root scale.

    Parameters
    ----------
    episodes : (units,) int array
        Since the clock's start.
    days : (units,) array
        In-service machine-days, same period.
    foreseen : (units,) array
        What the period before lets expect of each unit, in any unit: only its proportions
        count, since both arms' total is set to the total that was seen.
    where, tolerance
        As for `halt_score`.

    Notes
    -----
    sqrt(episodes + 1) - sqrt(foreseen + 1) has about one spread however often a unit fails, so
    that a machine known to be bad weighs in with its excess and not with its level. It is limited
    to `MOST_SURPRISE`: a machine that turns bad is one finding. Label-blind, so exact.

    Examples
    --------
    >>> score = surprise_score(np.array([4, 1, 16, 1]), np.ones(4), is_canary=np.arange(4) < 2,
    ...                        foreseen=np.array([1.0, 1.0, 16.0, 4.0]), where=np.ones(4, bool),
    ...                        strata=Strata.of(np.zeros(4, int)), tolerance=1.0)
    >>> (score / UNITS_PER_FAULT_SCORE).round(2).tolist()
    [0.82, 0.0, 0.0, -0.82]
    """
    counts = np.where(is_canary, episodes / tolerance, episodes)
    expected = np.where(where, foreseen * days, 0.0)
    total = float(expected.sum())
    if total > 0:
        expected = expected * (float(counts[where].sum()) / total)
    surprise = np.minimum(np.sqrt(counts + 1) - np.sqrt(expected + 1), MOST_SURPRISE)
    scores = quantised(np.where(where, surprise, 0.0), per_unit=UNITS_PER_FAULT_SCORE)
    return adjusted(scores, strata=strata, where=where)


# --- non-inferiority -----------------------------------------------------------------------


def matched_exposure(days: FloatArray, *, is_canary: BoolArray) -> float:
    """x*, the exposure to which both arms are thinned; 0 if an arm has none.

    Examples
    --------
    >>> float(matched_exposure(np.array([2.0, 2.0, 4.0, 4.0]), is_canary=np.arange(4) < 2))
    2.0
    """
    arms = [days[mask & (days > 0)] for mask in (is_canary, ~is_canary)]
    if not all(arm.size for arm in arms):
        return 0.0
    lowest = min(float(np.quantile(arm, LOW_EXPOSURE_QUANTILE)) for arm in arms)
    return min(min(float(arm.mean()) for arm in arms), 2 * lowest)


@dataclass(frozen=True, eq=False)
class Thinning:
    """The thinning-matched score of one table, for many ratios.

    Notes
    -----
    If a unit's episodes are Poisson given its own intensity, and that of a canary is M times
    what it would be as a control, then thinning canaries by a/M and controls by a gives equal
    means of "any kept", whatever the distribution of intensities. a brings both arms to one
    exposure x*; units without exposure are left out. The canaries' variance has the controls'
    over M as its floor, so that few canaries without a fault prove nothing.
    """

    share: FloatArray
    episodes: IntArray
    code: IntArray
    is_canary: BoolArray
    canaries: IntArray
    controls: IntArray

    @classmethod
    def of(cls, table: FaultTable) -> "Thinning | None":
        """None without exposure in an arm, or without a control episode on an exposed unit."""
        used = table.days > 0
        star = matched_exposure(table.days, is_canary=table.is_canary)
        hit = used & (table.episodes > 0)
        if star <= 0 or not (hit & ~table.is_canary).any():
            return None
        code, count = table.strata.code, table.strata.count
        return cls(
            share=np.minimum(star / table.days[hit], 2.0),
            episodes=table.episodes[hit],
            code=code[hit],
            is_canary=table.is_canary[hit],
            canaries=np.bincount(code[used & table.is_canary], minlength=count),
            controls=np.bincount(code[used & ~table.is_canary], minlength=count),
        )

    def z(self, ratio: float) -> float | None:
        """z of "canaries fail `ratio` times as often", negative if they fail less.

        None if no stratum has a canary and two controls, or nothing varies. Below 1 the controls
        are thinned by the ratio instead of the canaries.
        """
        n_c, n_k, weight = self._sizes
        least = min(1.0, ratio)
        share = self.share * np.where(self.is_canary, least / ratio, least)
        kept = 1.0 - (1.0 - share) ** self.episodes
        mean_c, var_c = self._moments(kept[self.is_canary], self._codes[True], n_c)
        mean_k, var_k = self._moments(kept[~self.is_canary], self._codes[False], n_k)
        spread_c = float(weight**2 @ (var_c / n_c))
        floor_c = float(weight**2 @ (var_k / (ratio * n_c)))
        spread = max(spread_c, floor_c) + float(weight**2 @ (var_k / n_k))
        return float(weight @ (mean_c - mean_k)) / math.sqrt(spread) if spread > 0 else None

    @cached_property
    def _sizes(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Canaries and controls per stratum, at least 1, and what each stratum weighs."""
        whole = (self.canaries >= 1) & (self.controls >= 2)
        n_c, n_k = np.maximum(self.canaries, 1), np.maximum(self.controls, 1)
        return n_c, n_k, np.where(whole, n_c * n_k / (n_c + n_k), 0.0)

    @cached_property
    def _codes(self) -> dict[bool, IntArray]:
        return {True: self.code[self.is_canary], False: self.code[~self.is_canary]}

    @staticmethod
    def _moments(kept: FloatArray, code: IntArray, size: IntArray) -> tuple[FloatArray, FloatArray]:
        """Mean and sample variance per stratum; units without an episode are zeros."""
        total = np.bincount(code, weights=kept, minlength=size.size)
        square = np.bincount(code, weights=kept**2, minlength=size.size)
        mean = total / size
        return mean, np.maximum(square - size * mean**2, 0.0) / np.maximum(size - 1, 1) * (size > 1)


def thinning_z(table: FaultTable, *, ratio: float) -> float | None:
    """The thinning-matched z of one ratio; None where it does not exist.

    Examples
    --------
    >>> counts = np.r_[np.array([1, 1, 2, 1, 1]), np.zeros(59, int), np.ones(25, int),
    ...                np.array([2, 2, 2, 2, 2, 6, 9]), np.zeros(224, int)]
    >>> table = FaultTable(counts, np.full(320, 2.0), np.arange(320) < 64,
    ...                    Strata.of(np.zeros(320, int)))
    >>> z = thinning_z(table, ratio=2.0)
    >>> z is not None and z < 0
    True
    """
    thinning = Thinning.of(table)
    return None if thinning is None else thinning.z(ratio)


@dataclass(frozen=True, eq=False)
class Totals:
    """Total faults over total exposure, canary against `ratio` times the control's rate.

    For families that end the service of their machine: exposure ends at the fault, so a count
    per machine says little, but total faults over total exposure still estimate the rate per
    in-service machine-day. The variance is clustered by unit; that of the canaries is at least
    the count expected under the ratio.
    """

    count: float
    expected: float
    variance: tuple[float, float, float]
    control_spread: float

    @classmethod
    def of(cls, table: FaultTable) -> "Totals | None":
        """None without a control episode, or without exposure in an arm."""
        n, x, strata = table.episodes, table.days, table.strata
        control = ~table.is_canary
        days_k = strata.totals(x, where=control)
        days_c = np.where(days_k > 0, strata.totals(x, where=table.is_canary), 0.0)
        count_k = strata.totals(n, where=control)
        if not (count_k[days_k > 0].any() and days_c.any()):
            return None
        rate = np.divide(count_k, days_k, out=np.zeros(strata.count), where=days_k > 0)
        mine = table.is_canary & (days_k > 0)[strata.code]
        expected = rate[strata.code] * x
        residual = strata.totals((n - expected) ** 2, where=control)
        lever = np.divide(days_c, days_k, out=np.zeros(strata.count), where=days_k > 0)
        return cls(
            count=float(n[mine].sum()),
            expected=float(rate @ days_c),
            variance=_quadratic(n.astype(np.float64), expected, strata=strata, where=mine),
            control_spread=float(lever**2 @ residual),
        )

    def z(self, ratio: float) -> float | None:
        """z of "canaries fail `ratio` times as often", negative if they fail less."""
        square, cross, other = self.variance
        clustered = square - 2 * ratio * cross + ratio**2 * other
        spread = max(clustered, ratio * self.expected) + ratio**2 * self.control_spread
        excess = self.count - ratio * self.expected
        return excess / math.sqrt(spread) if spread > 0 else None


def _quadratic(
    n: FloatArray, expected: FloatArray, *, strata: Strata, where: BoolArray
) -> tuple[float, float, float]:
    """Size times sample (co)variance of n and expected within strata, summed over strata."""
    size = np.bincount(strata.code[where], minlength=strata.count)
    factor = np.divide(size, size - 1, out=np.zeros(strata.count), where=size > 1)
    a = n - strata.means(n, where=where)[strata.code]
    b = expected - strata.means(expected, where=where)[strata.code]
    pairs = (a * a, a * b, b * b)
    square, cross, other = (float(factor @ strata.totals(p, where=where)) for p in pairs)
    return square, cross, other


def ratio_limits(
    z_of: Callable[[float], float | None], *, lower_bound: float, upper_bound: float
) -> tuple[float, float]:
    """Rate ratios that neither one-sided test rejects: z_of falls with the ratio.

    Parameters
    ----------
    z_of : callable
        z of one ratio, or None where it does not exist.
    lower_bound, upper_bound : float
        Positive bounds: ratios with z above `lower_bound` lie below the interval, ratios with
        z below `-upper_bound` above it.

    Returns
    -------
    tuple of float
        0 or infinity where no ratio is rejected on that side.
    """
    low = _boundary(lambda ratio: _is_above(z_of(ratio), lower_bound))
    high = _boundary(lambda ratio: not _is_below(z_of(ratio), -upper_bound))
    return (0.0 if low is None else low), (math.inf if high == LARGEST_RATIO else high or 0.0)


def _is_above(z: float | None, bound: float) -> bool:
    return z is not None and z > bound


def _is_below(z: float | None, bound: float) -> bool:
    return z is not None and z < bound


def _boundary(holds: Callable[[float], bool]) -> float | None:
    """Where a claim that holds for small ratios stops holding; None if it never holds."""
    low, high = math.log(LEAST_RATIO), math.log(LARGEST_RATIO)
    if not holds(LEAST_RATIO):
        return None
    if holds(LARGEST_RATIO):
        return LARGEST_RATIO
    for _ in range(LIMIT_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(math.exp(middle)) else (low, middle)
    return math.exp(high)


# --- against the period before ---------------------------------------------------------------


def jump_z(
    episodes: IntArray, days: FloatArray, *, episodes_before: IntArray, days_before: FloatArray
) -> float | None:
    """z of "this arm fails more often than in its own period before", clustered by unit.

    Parameters
    ----------
    episodes, days, episodes_before, days_before : (units,) arrays
        Of the units of one arm, now and before.

    Returns
    -------
    float or None
        None with fewer than five episodes in either period, or without exposure.

    Examples
    --------
    >>> now, before, days = np.array([2, 4, 3, 3]), np.array([1, 2, 1, 1]), np.ones(4)
    >>> round(jump_z(now, days, episodes_before=before, days_before=days), 2)
    8.08
    >>> jump_z(now, days, episodes_before=0 * before, days_before=days) is None
    True
    """
    now, before = int(episodes.sum()), int(episodes_before.sum())
    x, x_before = float(days.sum()), float(days_before.sum())
    if min(now, before) < LEAST_JUMP_EPISODES or min(x, x_before) <= 0:
        return None
    residual = (episodes - now / x * days) - x / x_before * (
        episodes_before - before / x_before * days_before
    )
    spread = float(residual @ residual)
    return (now - before / x_before * x) / math.sqrt(spread) if spread > 0 else None


# --- one fixed look ------------------------------------------------------------------------


@dataclass(frozen=True)
class RateRatio:
    """Estimate and plain interval at one look; None where they do not exist."""

    estimate: float | None
    interval: Interval
    method: str


def rate_ratio(table: FaultTable, *, confidence_level: float = 0.95) -> RateRatio:
    """Rate ratio with an interval that takes units, not faults, as independent.

    Parameters
    ----------
    table : FaultTable
    confidence_level : float
        Two-sided, at one fixed look, strictly between 0 and 1.

    Returns
    -------
    RateRatio
        With episodes in both arms the Mantel-Haenszel ratio over strata with a sandwich
        interval on the log scale (one stratum: Poisson regression with robust errors, HC1).
        If an arm has none, the exact conditional interval of the pooled counts.

    Notes
    -----
    Does not hold under repeated looks. With one stratum it is the usual robust interval [1]_.

    References
    ----------
    .. [1] G. Zou, Am. J. Epidemiol. 159 (2004) 702-706.

    Examples
    --------
    >>> table = FaultTable(np.array([3, 3, 1, 0, 1, 1]), np.ones(6), np.arange(6) < 2,
    ...                    Strata.of(np.zeros(6, int)))
    >>> ratio = rate_ratio(table)
    >>> ratio.estimate, round(ratio.interval.low, 2), round(ratio.interval.high, 2)
    (4.0, 2.0, 8.0)
    """
    count_c, count_k = table.count(True), table.count(False)
    days_c, days_k = table.exposure(True), table.exposure(False)
    if days_c <= 0 or days_k <= 0:
        return RateRatio(None, Interval(None, None, confidence_level), "no exposure in an arm")
    if count_c == 0 or count_k == 0:
        exact = rate_ratio_exact(
            count_c, days_c, count_k, days_k, confidence_level=confidence_level
        )
        high = exact.high if math.isfinite(exact.high) else None
        limits = Interval(exact.low, high, confidence_level)
        return RateRatio(0.0 if count_k else None, limits, "exact conditional")
    return _clustered_ratio(table, confidence_level=confidence_level)


def _clustered_ratio(table: FaultTable, *, confidence_level: float) -> RateRatio:
    strata, n, x = table.strata, table.episodes, table.days
    canary, control = table.is_canary, ~table.is_canary
    x_c, x_k = strata.totals(x, where=canary), strata.totals(x, where=control)
    n_c, n_k = strata.totals(n, where=canary), strata.totals(n, where=control)
    both = np.where(x_c + x_k > 0, x_c + x_k, np.inf)
    top, bottom = float(n_c @ (x_k / both)), float(n_k @ (x_c / both))
    if top <= 0 or bottom <= 0:
        none = Interval(None, None, confidence_level)
        return RateRatio(None, none, "no stratum with episodes and both arms")
    ratio = top / bottom
    base = np.divide(
        n_c + n_k, ratio * x_c + x_k, out=np.zeros(strata.count), where=ratio * x_c + x_k > 0
    )
    fitted = base[strata.code] * x * np.where(canary, ratio, 1.0)
    residual = (n - fitted) ** 2
    var_c = float((x_k / both) ** 2 @ strata.totals(residual, where=canary)) / top**2
    var_k = float((x_c / both) ** 2 @ strata.totals(residual, where=control)) / bottom**2
    used = int((x > 0).sum())
    error = math.sqrt((var_c + var_k) * used / max(used - 2, 1))
    reach = float(norm.isf((1 - confidence_level) / 2)) * error
    limits = Interval(ratio * math.exp(-reach), ratio * math.exp(reach), confidence_level)
    return RateRatio(ratio, limits, "machine-clustered")
