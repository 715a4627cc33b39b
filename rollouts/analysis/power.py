"""What a wave can decide: power, needed exposure, and the cost of not knowing.

Planning figures, from the fleet's own period before the wave. They are
approximations (each says which) and decide what is asked of a wave, never a
verdict. `bound` is the z bound of the checkpoint that is meant, usually the
last one of the window (`spending.ni_bounds`); chances of the earlier
checkpoints are left out, so real power is a little higher.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom, hypergeom

from rollouts.analysis.errors import InvalidLevel, InvalidSample
from rollouts.analysis.halting import Foretold, in_sequence, surprise_halt_power
from rollouts.analysis.proportions import Bound, clopper_pearson
from rollouts.analysis.spending import halt_level
from rollouts.analysis.tails import binomial_tail, binomial_upper, poisson_quantile

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

DECIDABLE_POWER = 0.5
RECOVERY_SIGMA = 0.75
"""Standard deviation of the log recovery time within a path."""
RECOVERY_MARGIN = 1.5
SEVERE_SHARE = 0.17
"""Of interruptions: restart from a checkpoint or worse, in a healthy fleet."""
SEVERE_MARGIN = 0.15
EXCESS_RATE_RATIOS = tuple(float(x) for x in np.geomspace(1.1, 20.0, 20).round(2))

_LONGEST_DAYS = 3650.0
_STEPS = 48
_FIXED_POINT_STEPS = 5
_FURTHEST_EXTRAPOLATION = 2.0
_POINTS, _POINTS_OF_MANY_LOOKS = 32, 12
"""Ranks at which a count is taken for its whole distribution."""
_MANY_HITS = 1_000.0
"""Expected hits of both arms from which a share's test is taken as normal."""


class FaultHistory(Protocol):
    """How episodes fall on machines; all that planning needs to know of the past."""

    @property
    def rate_per_day(self) -> float: ...

    def generating(self, share: float, *, days: float) -> float:
        """E[share ** N] for the episodes N of one machine in `days` of service."""
        ...


@dataclass(frozen=True)
class FaultRate:
    """Gamma-Poisson: machines' rates have mean `rate_per_day` and squared variation `dispersion`.

    Examples
    --------
    >>> round(FaultRate(0.05, dispersion=0.0).generating(0.0, days=10.0), 4)  # exp(-0.5)
    0.6065
    """

    rate_per_day: float
    dispersion: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.rate_per_day < math.inf and 0 <= self.dispersion < math.inf):
            raise InvalidSample(
                f"rate and dispersion are finite and not negative: "
                f"got {self.rate_per_day} and {self.dispersion}"
            )

    def generating(self, share: float, *, days: float) -> float:
        exponent = self.rate_per_day * days * (1 - share)
        if self.dispersion * exponent < 1e-12:
            return math.exp(-exponent)
        return math.exp(-math.log1p(self.dispersion * exponent) / self.dispersion)


@dataclass(frozen=True, eq=False)
class FaultCounts:
    """Episodes per machine over the same `days` of service in the period before.

    Over a shorter time the counts are thinned, which is unbiased for any
    heterogeneity of the machines, and so is the same formula up to twice the
    time [1]_. Beyond that a gamma-Poisson takes over that has the same mean and
    the same share of machines without an episode.

    References
    ----------
    .. [1] I. J. Good, G. H. Toulmin, Biometrika 43 (1956) 45-63.

    Examples
    --------
    >>> history = FaultCounts(np.array([0, 0, 0, 1, 3]), days=10.0)
    >>> history.rate_per_day, history.generating(0.0, days=10.0)
    (0.08, 0.6)
    """

    counts: IntArray
    days: float

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts)
        if counts.ndim != 1 or not counts.size or counts.dtype.kind not in "iu" or counts.min() < 0:
            raise InvalidSample("one count of episodes, not negative, per machine is needed")
        if not 0 < self.days < math.inf:
            raise InvalidSample(f"days before are positive and finite: got {self.days}")
        object.__setattr__(self, "counts", counts.astype(np.int64))

    @property
    def rate_per_day(self) -> float:
        return float(self.counts.mean()) / self.days

    def generating(self, share: float, *, days: float) -> float:
        kept = days / self.days
        if kept > _FURTHEST_EXTRAPOLATION:
            return self.fitted().generating(share, days=days)
        base = 1 - kept * (1 - share)
        values, shares = self._distribution
        return min(max(float(shares @ np.power(base, values)), 0.0), 1.0)

    @cached_property
    def _distribution(self) -> tuple[FloatArray, FloatArray]:
        values, machines = np.unique(self.counts, return_counts=True)
        return values.astype(np.float64), machines / self.counts.size

    @cached_property
    def foretold(self) -> Foretold | None:
        """What these counts foretell of each machine; None where they tell none apart."""
        return Foretold.of(self.counts)

    def fitted(self) -> FaultRate:
        """The gamma-Poisson with this mean and this share of machines without an episode."""
        mean, quiet = float(self.counts.mean()), float(np.mean(self.counts == 0))
        if quiet <= math.exp(-mean) or mean == 0:
            return FaultRate(self.rate_per_day)

        def gap(dispersion: float) -> float:
            return math.log1p(dispersion * mean) / dispersion + math.log(quiet)

        top = 1.0
        while gap(top) > 0:
            top *= 2
        return FaultRate(self.rate_per_day, dispersion=float(brentq(gap, 1e-9, top)))


@dataclass(frozen=True)
class LostWork:
    """What interruptions cost each unit over `days`, in roots of the hours lost, added up.

    Parameters
    ----------
    mean, variance : float
        Over units.
    within : float
        Part of the variance that comes of when interruptions fall: the mean over units of the
        squared roots, which are the hours lost (compound Poisson). The rest lies between units.
    days : float

    Examples
    --------
    >>> lost = LostWork(mean=0.4, variance=0.7, within=0.5, days=10.0)
    >>> lost.mean_over(5.0), round(lost.variance_over(5.0), 3)
    (0.2, 0.3)
    """

    mean: float
    variance: float
    within: float
    days: float

    def __post_init__(self) -> None:
        figures = (self.mean, self.variance, self.within)
        if not all(0 <= figure < math.inf for figure in figures) or not 0 < self.days < math.inf:
            raise InvalidSample(
                f"lost work is finite and not negative over a positive time: got {figures} "
                f"in {self.days} days"
            )

    def mean_over(self, days: float, *, ratio: float = 1.0) -> float:
        """Expected roots per unit where interruptions are `ratio` times as many."""
        return self.mean * ratio * days / self.days

    def variance_over(self, days: float, *, ratio: float = 1.0) -> float:
        """Variance over units: chance grows as the time, what lies between units as its square."""
        part = ratio * days / self.days
        between = max(self.variance - self.within, 0.0)
        return part * self.within + part * part * between


def lost_work_halt_power(
    history: LostWork,
    *,
    n_canary: int,
    n_control: int,
    days: float,
    ratio: float,
    alpha: Fraction | float,
) -> float:
    """Chance that one look after `days` at level `alpha` finds `ratio` times the interruptions.

    Notes
    -----
    Normal approximation to the randomisation test on the sums per unit; each arm has its own
    spread. Interruptions that last longer instead of coming more often are found a little
    earlier or later, as the root has it.

    Examples
    --------
    >>> history = LostWork(mean=0.4, variance=0.5, within=0.45, days=10.0)
    >>> power = lost_work_halt_power(history, n_canary=64, n_control=256, days=10.0,
    ...                              ratio=2.0, alpha=0.05)
    >>> 0.8 < power < 1
    True
    """
    _check_arms(n_canary, n_control)
    if not 0 <= alpha < 1:
        raise InvalidLevel(f"alpha lies in [0, 1): got {alpha}")
    if alpha == 0 or days <= 0:
        return 0.0
    shift = history.mean_over(days, ratio=ratio) - history.mean_over(days)
    plain = history.variance_over(days)
    error = math.sqrt(plain * (1 / n_canary + 1 / n_control))
    moved = history.variance_over(days, ratio=ratio)
    spread = math.sqrt(moved / n_canary + plain / n_control)
    if spread == 0:
        return float(shift > 0)
    return float(ndtr((shift + float(ndtri(float(alpha))) * error) / spread))


def effective_margin(margin: float, *, rate_before_per_day: float, delta_abs: float) -> float:
    """The fault margin, never tighter than `delta_abs` episodes per machine-day.

    With a rate of zero before, the margin is infinite: no ratio can be decided.

    Examples
    --------
    >>> effective_margin(2.0, rate_before_per_day=0.0025, delta_abs=0.005)
    3.0
    """
    if margin <= 1 or rate_before_per_day < 0 or delta_abs < 0:
        raise InvalidSample(
            f"a margin exceeds 1 and rates are not negative: "
            f"got {margin}, {rate_before_per_day} and {delta_abs}"
        )
    if rate_before_per_day == 0:
        return math.inf
    return max(margin, 1 + delta_abs / rate_before_per_day)


def is_decidable(power: float) -> bool:
    """Whether a wave is asked to show non-inferiority: at least an even chance to."""
    return power >= DECIDABLE_POWER


def fault_ni_power(
    history: FaultHistory,
    *,
    n_canary: int,
    n_control: int,
    days: float,
    margin: float,
    bound: float,
    rate_ratio: float = 1.0,
) -> float:
    """Chance that the thinning-matched fault score shows "less than `margin` times".

    Parameters
    ----------
    history : FaultHistory
        Episodes of the same strata in the period before.
    n_canary, n_control : int
    days : float
        Exposure of each machine.
    margin : float
        M, a ratio above 1; infinite (nothing known of the rate) gives 0.
    bound : float
        z bound of the checkpoint.
    rate_ratio : float
        The true one.

    Notes
    -----
    Means and variances of the score follow from the generating function of the
    counts; their difference is taken as normal, and one control event is
    needed. Prototype, 64 canaries, 256 controls, 3 days, M = 2, all four
    checkpoints: 84 % at .2 per day, 34 % at .05; this formula: 84 and 33 %.

    Examples
    --------
    >>> history = FaultRate(0.2, dispersion=0.5)
    >>> power = fault_ni_power(history, n_canary=64, n_control=256, days=3.0,
    ...                        margin=2.0, bound=1.827)
    >>> is_decidable(power)
    True
    """
    _check_arms(n_canary, n_control)
    if not margin > 1:
        raise InvalidSample(f"a fault margin exceeds 1: got {margin}")
    if not math.isfinite(margin) or history.rate_per_day == 0 or days <= 0:
        return 0.0
    kept = 1 - 1 / margin
    quiet = history.generating(0.0, days=days)
    canary = history.generating(kept, days=days * rate_ratio)
    var_f = quiet * (1 - quiet)
    var_g = max(history.generating(kept**2, days=days * rate_ratio) - canary**2, 0.0)
    error = math.sqrt(max(var_g, var_f / margin) / n_canary + var_f / n_control)
    spread = math.sqrt(var_g / n_canary + var_f / n_control)
    if spread == 0:
        return 0.0
    shift = (1 - quiet) - (1 - canary)
    has_control_event = 1 - quiet**n_control
    return float(ndtr((shift - bound * error) / spread)) * has_control_event


def needed_exposure(
    history: FaultHistory,
    *,
    n_canary: int,
    n_control: int,
    margin: float,
    bound: float,
    power: float = DECIDABLE_POWER,
) -> float:
    """Canary machine-days until fault non-inferiority has this power; `inf` if never.

    "Cannot be decided: needs N more machine-days" is this minus the planned
    exposure. Searched up to ten years; a power that long exposure loses again
    (every machine has had its episode) is found at its first passage.

    Examples
    --------
    >>> days = needed_exposure(FaultRate(0.0038), n_canary=600, n_control=2400,
    ...                        margin=2.316, bound=1.827)
    >>> 1_000 < days < 3_000
    True
    """
    if not 0 < power < 1:
        raise InvalidLevel(f"a power lies strictly between 0 and 1: got {power}")

    def missing(days: float) -> float:
        return power - fault_ni_power(
            history, n_canary=n_canary, n_control=n_control, days=days, margin=margin, bound=bound
        )

    before = 0.0
    for days in np.geomspace(0.01, _LONGEST_DAYS, 120).tolist():
        if missing(days) <= 0:
            return n_canary * float(brentq(missing, before, days, xtol=1e-6))
        before = days
    return math.inf


def throughput_ni_power(
    sigma: float,
    *,
    n_canary: int,
    n_control: int,
    delta: float,
    bound: float,
    drop: float = 0.0,
) -> float:
    """Chance to show a throughput drop below `delta` (both shares of nominal).

    `sigma` is the standard deviation of the adjusted unit means. Normal
    approximation; the units are those of the assignment.

    Examples
    --------
    >>> round(throughput_ni_power(0.02, n_canary=8, n_control=32, delta=0.02, bound=1.827), 2)
    0.76
    """
    _check_arms(n_canary, n_control)
    return _shift_power(delta - drop, _two_arm_error(sigma, n_canary, n_control), bound=bound)


def recovery_ni_power(
    canary_interruptions: float,
    control_interruptions: float,
    *,
    bound: float,
    sigma: float = RECOVERY_SIGMA,
    margin_ratio: float = RECOVERY_MARGIN,
) -> float:
    """Chance to show that recoveries last less than `margin_ratio` times as long.

    Takes interruptions as independent; shared jobs make it smaller.

    Examples
    --------
    >>> round(recovery_ni_power(38, 154, bound=1.827), 2)
    0.88
    """
    if min(canary_interruptions, control_interruptions) <= 0:
        return 0.0
    error = _two_arm_error(sigma, canary_interruptions, control_interruptions)
    return _shift_power(math.log(margin_ratio), error, bound=bound)


def severe_ni_power(
    canary_interruptions: float,
    control_interruptions: float,
    *,
    bound: float,
    share: float = SEVERE_SHARE,
    margin: float = SEVERE_MARGIN,
) -> float:
    """Chance to show that a share rose by less than `margin` points; also for telemetry.

    The error is floored at the margin's binomial variance, as in the test.

    Examples
    --------
    >>> round(severe_ni_power(38, 154, bound=1.827), 2)
    0.51
    """
    if min(canary_interruptions, control_interruptions) <= 0:
        return 0.0
    if not (0 <= share < 1 and 0 < margin < 1):
        raise InvalidSample(f"a share lies in [0, 1), a margin in (0, 1): got {share} and {margin}")
    worse = min(share + margin, 1.0)  # no share is larger, though a margin may ask for it
    plain, moved = share * (1 - share), worse * (1 - worse)
    control = plain / control_interruptions
    error = math.sqrt(max(plain, moved) / canary_interruptions + control)
    spread = math.sqrt(plain / canary_interruptions + control)
    if spread == 0:
        return float(margin > bound * error)
    return float(ndtr((margin - bound * error) / spread))


def share_halt_power(
    share: float, *, n_canary: int, n_control: int, rise: float, level: float
) -> float:
    """Chance that one look at `level` finds a share that is `rise` higher on canaries.

    Notes
    -----
    The re-assignment of hits is hypergeometric: exact over the canaries' hits, at 32 ranks of the
    controls'. With many hits normal, each arm with its own spread, half a count taken off. The
    occasions (units, or interruptions) are taken as independent.

    Examples
    --------
    Of 64 canaries and 256 controls a fiftieth is silent; another tenth of the canaries falls so:

    >>> power = share_halt_power(0.02, n_canary=64, n_control=256, rise=0.1, level=0.002)
    >>> 0.5 < power < 0.6
    True
    """
    _check_arms(n_canary, n_control)
    if not (0 <= share < 1 and 0 <= share + rise <= 1 and 0 <= level < 1):
        raise InvalidSample(
            f"shares and a level lie in [0, 1): got {share}, {share + rise} and {level}"
        )
    if level == 0:
        return 0.0
    moved = share + rise
    if n_canary * moved + n_control * share > _MANY_HITS:
        return _many_hits_power(share, moved, arms=(n_canary, n_control), level=level)
    ranks = (np.arange(_POINTS) + 0.5) / _POINTS
    controls = binomial_upper(1 - ranks, np.array([float(n_control)]), share)
    hits, times = np.unique(controls, return_counts=True)
    needed = _hits_that_halt(n_canary, n_control, tuple(hits.astype(int).tolist()), level)
    return float(times @ binom.sf(np.array(needed) - 1, n_canary, moved)) / _POINTS


def _many_hits_power(share: float, moved: float, *, arms: tuple[int, int], level: float) -> float:
    n_canary, n_control = arms
    weight = n_canary * n_control / (n_canary + n_control)
    pooled = (n_canary * moved + n_control * share) / (n_canary + n_control)
    error = math.sqrt(pooled * (1 - pooled) / weight)
    spread = math.sqrt(moved * (1 - moved) / n_canary + share * (1 - share) / n_control)
    shift = moved - share - 0.5 / weight
    return float(ndtr((shift + float(ndtri(level)) * error) / spread))


@lru_cache(maxsize=256)
def _hits_that_halt(
    n_canary: int, n_control: int, controls: tuple[int, ...], level: float
) -> tuple[int, ...]:
    """For each count of hit controls, the fewest hit canaries that halt; none do: one too many."""
    everybody = n_canary + n_control
    return tuple(
        bisect_left(
            range(n_canary + 1),
            True,
            key=lambda x: bool(hypergeom.sf(x - 1, everybody, n_canary, x + hit) <= level),
        )
        for hit in controls
    )


def install_ni_power(attempts: int, *, failure_share: float, limit: float, beta: float) -> float:
    """Chance that so many installs show a failure probability below `limit`; exact.

    Examples
    --------
    >>> install_ni_power(58, failure_share=0.0, limit=0.05, beta=0.05)
    0.0
    >>> install_ni_power(59, failure_share=0.0, limit=0.05, beta=0.05)
    1.0
    """
    too_many = bisect_left(  # the bound grows with every failure
        range(attempts + 1),
        True,
        key=lambda x: clopper_pearson(x, attempts, level=1 - beta, side=Bound.UPPER) >= limit,
    )
    return float(binom.cdf(too_many - 1, attempts, failure_share))


def fault_halt_power(
    history: FaultHistory,
    *,
    n_canary: int,
    n_control: int,
    days: float,
    rate_ratio: float,
    alpha: Fraction | float,
) -> float:
    """Chance that one look after `days` at level `alpha` finds the harm `rate_ratio`.

    Notes
    -----
    Where counts of the period before tell machines apart, the test compares what they did not
    foretell: `surprise_halt_power`, less what the looks on the way cost (`in_sequence`). Else the
    score counts spells with an episode, taken here as machine-days. Two approximations, both
    cautious, of which the larger serves: the canaries' part given the total as binomial, and
    their count given the controls', which holds up where nearly every canary-day has
    an episode. Where the same machines are hit again and again, counts or
    machine-days are divided by their variance inflation. A sequential test
    that has spent `alpha` by then finds the harm about as often, and earlier.
    Prototype (lemons, 3 days, alpha .05, 64 canaries, 256 controls, .05 faults
    per day) at RR 2 / 3: 47 / 86 %; this formula: 43 / 84 %.

    Examples
    --------
    >>> power = fault_halt_power(FaultRate(0.05, dispersion=0.5), n_canary=64, n_control=256,
    ...                          days=3.0, rate_ratio=3.0, alpha=0.05)
    >>> 0.8 < power < 1
    True
    """
    _check_arms(n_canary, n_control)
    if not (rate_ratio > 0 and days > 0):
        raise InvalidSample(f"rate ratio and days are positive: got {rate_ratio} and {days}")
    if not 0 <= alpha < 1:
        raise InvalidLevel(f"alpha lies in [0, 1): got {alpha}")
    power = _halt_power(
        history,
        n_canary=n_canary,
        n_control=n_control,
        days=np.array([days]),
        rate_ratio=rate_ratio,
        levels=np.array([float(alpha)]),
    )
    return float(power[0])


def _halt_power(
    history: FaultHistory,
    *,
    n_canary: int,
    n_control: int,
    days: FloatArray,
    rate_ratio: float,
    levels: FloatArray,
) -> FloatArray:
    if isinstance(history, FaultCounts) and history.foretold is not None:
        return _surprise_power(
            history.foretold,
            n_canary=n_canary,
            n_control=n_control,
            parts=days / history.days,
            rate_ratio=rate_ratio,
            levels=levels,
        )
    hit = 1 - history.generating(0.0, days=1.0)
    if hit <= 0:
        return np.zeros(days.size)
    points = _POINTS if days.size == 1 else _POINTS_OF_MANY_LOOKS
    ranks = (np.arange(points) + 0.5) / points
    canary_hit = 1 - history.generating(0.0, days=rate_ratio)
    inflation = _hit_inflation(history, days=days)[:, None]
    given_total = _power_given_total(
        days[:, None] * np.array([canary_hit * n_canary, hit * n_control]),
        arms=(n_canary, n_control),
        levels=levels[:, None],
        inflation=inflation,
        ranks=ranks,
    )
    given_controls = _power_given_controls(
        np.rint(days[:, None] * np.array([n_canary, n_control]) / inflation),
        hits=(canary_hit, hit),
        levels=levels[:, None],
        ranks=ranks,
    )
    return np.maximum(given_total, given_controls)


def _surprise_power(
    foretold: Foretold,
    *,
    n_canary: int,
    n_control: int,
    parts: FloatArray,
    rate_ratio: float,
    levels: FloatArray,
) -> FloatArray:
    """Chance of a halt by each look; of many looks a few, and a line between them."""
    at = np.unique(np.linspace(0, parts.size - 1, _POINTS_OF_MANY_LOOKS).round().astype(int))
    found = [
        in_sequence(
            surprise_halt_power(
                foretold,
                n_canary=n_canary,
                n_control=n_control,
                part=part,
                rate_ratio=rate_ratio,
                level=level,
            ),
            level=level,
        )
        if level > 0
        else 0.0
        for part, level in zip(parts[at].tolist(), levels[at].tolist(), strict=True)
    ]
    return np.interp(parts, parts[at], found)


def _power_given_total(
    expected: FloatArray,
    *,
    arms: tuple[int, int],
    levels: FloatArray,
    inflation: FloatArray,
    ranks: FloatArray,
) -> FloatArray:
    """Canaries' part of all episode-days taken as binomial; `expected` is (looks, arms)."""
    counts = poisson_quantile(ranks, expected.sum(axis=1, keepdims=True))
    events = np.rint(counts / inflation)
    true = expected[:, :1] / expected.sum(axis=1, keepdims=True)
    needed = binomial_upper(levels, events, arms[0] / sum(arms))
    return np.asarray(binomial_tail(needed, events, true).mean(axis=1), dtype=np.float64)


def _power_given_controls(
    machine_days: FloatArray,
    *,
    hits: tuple[float, float],
    levels: FloatArray,
    ranks: FloatArray,
) -> FloatArray:
    """Canaries' episode-days against those of the control; `machine_days` is (looks, arms).

    The null count is hypergeometric; both binomials have heavier tails, so the lighter serves.
    """
    canary_days, control_days = np.maximum(machine_days, 1.0).T[:, :, None]
    controls = binomial_upper(1 - ranks, control_days, hits[1])
    cells = canary_days + control_days
    least = np.rint(canary_days * hits[0])
    for _ in range(_FIXED_POINT_STEPS):  # what crosses counts towards the total
        total = controls + least
        least = 1 + np.minimum(
            binomial_upper(levels, total, canary_days / cells),
            binomial_upper(levels, canary_days, np.minimum(total / cells, 1.0)),
        )
    found = np.where(levels > 0, binomial_tail(least - 1, canary_days, hits[0]), 0.0)
    return np.asarray(found.mean(axis=1), dtype=np.float64)


def _hit_inflation(history: FaultHistory, *, days: FloatArray) -> FloatArray:
    """Variance over mean of a machine's number of days with an episode, at least 1."""
    quiet, quiet_twice = (history.generating(0.0, days=span) for span in (1.0, 2.0))
    hit, hit_twice = 1 - quiet, 1 - 2 * quiet + quiet_twice
    return np.maximum(1.0, quiet + np.maximum(days - 1, 0.0) * (hit_twice - hit**2) / hit)


@dataclass(frozen=True)
class ExcessFaults:
    """The worst case: faults above the old firmware's, and the rate ratio that causes them."""

    expected: float
    rate_ratio: float


def expected_excess_faults(
    history: FaultHistory,
    *,
    n_canary: int,
    n_control: int,
    window_days: float,
    alpha: Fraction | float,
    extension_share: float = 0.0,
    rate_ratios: tuple[float, ...] = EXCESS_RATE_RATIOS,
) -> ExcessFaults:
    """Faults that the next wave is expected to cost before a halt, at the worst rate ratio.

    The smoke rule compares this with `max_excess_faults`: a small harm goes
    unseen but costs little, a large one is seen early, the worst lies between.

    Parameters
    ----------
    history : FaultHistory
    n_canary, n_control, window_days
        Of the next wave.
    alpha : Fraction or float
        The fault guardrail's level in that wave.
    extension_share : float
        The planned extension in windows; its time counts as exposure too.

    Notes
    -----
    `(RR - 1) lambda n_c` times the expected time without a halt, where a halt by
    t is as likely as at one look at t with the error spent by t. Finer looks
    can only halt earlier.

    Examples
    --------
    >>> worst = expected_excess_faults(FaultRate(0.0038), n_canary=400, n_control=1480,
    ...                                window_days=7.0, alpha=0.003)
    >>> 5 < worst.expected < 20
    True
    """
    if not (window_days > 0 and extension_share >= 0 and rate_ratios):
        raise InvalidSample(
            f"a window is positive, an extension not negative: "
            f"got {window_days} and {extension_share}"
        )
    days, levels = _look_schedule(window_days, extension_share=extension_share, alpha=alpha)
    steps = np.diff(days, prepend=0.0)

    def excess(rate_ratio: float) -> float:
        halted = _halt_power(
            history,
            n_canary=n_canary,
            n_control=n_control,
            days=days,
            rate_ratio=rate_ratio,
            levels=levels,
        )
        unhalted = 1 - np.maximum.accumulate(np.append(0.0, halted[:-1]))
        return (rate_ratio - 1) * history.rate_per_day * n_canary * float(steps @ unhalted)

    costs = [(excess(rate_ratio), rate_ratio) for rate_ratio in rate_ratios]
    return ExcessFaults(*max(costs))


def _look_schedule(
    window_days: float, *, extension_share: float, alpha: Fraction | float
) -> tuple[FloatArray, FloatArray]:
    """Days at which `_STEPS` looks of a window (half as many of its extension) fall, and A(k)."""
    has_extension = extension_share > 0
    shares = [Fraction(k, _STEPS) for k in range(1, _STEPS + 1)]
    days = [window_days * float(f) for f in shares]
    levels = [halt_level(alpha, f, has_extension=has_extension) for f in shares]
    if has_extension:
        parts = [Fraction(2 * k, _STEPS) for k in range(1, _STEPS // 2 + 1)]
        days += [window_days * (1 + extension_share * float(g)) for g in parts]
        levels += [halt_level(alpha, 1, g, has_extension=True) for g in parts]
    return np.array(days), np.array([float(level) for level in levels])


def schoenfeld_events(margin: float, *, canary_fraction: float, alpha: float, beta: float) -> float:
    """First episodes of both arms for power 1 - beta against this hazard ratio [1]_.

    A rule of thumb: it knows nothing of lemons or bursts.

    References
    ----------
    .. [1] D. A. Schoenfeld, Biometrics 39 (1983) 499-503.

    Examples
    --------
    >>> round(schoenfeld_events(2.0, canary_fraction=0.2, alpha=0.05, beta=0.2))
    80
    """
    if not (margin > 0 and margin != 1 and 0 < canary_fraction < 1):
        raise InvalidSample(
            f"a margin other than 1 and a fraction within (0, 1) are accepted: "
            f"got {margin} and {canary_fraction}"
        )
    z = float(ndtri(1 - alpha) + ndtri(1 - beta))
    return (z / math.log(margin)) ** 2 / (canary_fraction * (1 - canary_fraction))


def zero_event_exposure(rate_per_day: float, *, alpha: float) -> float:
    """Machine-days without any event that rule out this rate: -ln(alpha) / rate.

    Examples
    --------
    >>> round(zero_event_exposure(0.01, alpha=0.05))
    300
    """
    if not (rate_per_day > 0 and 0 < alpha < 1):
        raise InvalidSample(
            f"a positive rate and alpha within (0, 1) are accepted: got {rate_per_day} and {alpha}"
        )
    return -math.log(alpha) / rate_per_day


def _check_arms(n_canary: int, n_control: int) -> None:
    if min(n_canary, n_control) < 1:
        raise InvalidSample(
            f"each arm needs a unit: got {n_canary} canaries and {n_control} controls"
        )


def _two_arm_error(sigma: float, n_canary: float, n_control: float) -> float:
    if not 0 <= sigma < math.inf:
        raise InvalidSample(f"a standard deviation is finite and not negative: got {sigma}")
    return sigma * math.sqrt(1 / n_canary + 1 / n_control)


def _shift_power(shift: float, error: float, *, bound: float) -> float:
    if error == 0:
        return float(shift > 0)
    return float(ndtr(shift / error - bound))
