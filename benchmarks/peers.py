"""The rules of other tools, as coded or documented, and nothing of their code.

Every rule is a pure function of counts or series. Parameters are the defaults of the tool, or,
where it has none, those of its own examples; the docstrings say which.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, xlogy
from scipy.stats import binom, norm, t

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# --- Kayenta -------------------------------------------------------------------------------


class Class(StrEnum):
    """Kayenta's class of one metric."""

    PASS = "Pass"
    HIGH = "High"
    LOW = "Low"
    NO_DATA = "Nodata"


class Direction(StrEnum):
    INCREASE = "increase"
    DECREASE = "decrease"
    EITHER = "either"


KAYENTA_CONFIDENCE = 0.98
KAYENTA_TOLERANCE = 0.25
KAYENTA_ROOT_TOLERANCE = 1e-4
KAYENTA_LEAST_POINTS = 12
"""Its guides ask for long series (50 values); with two or three it halts on mere order."""


def shifted_rank_z(shift: float, *, experiment: Floats, control: Floats) -> float:
    """Continuity-corrected normal score of the rank sum with the experiment moved by -shift.

    As R's `wilcox.test(exact = FALSE, correct = TRUE)` with its tie term, which Kayenta follows.
    """
    n, m = experiment.size, control.size
    joint = np.concatenate([experiment - shift, control])
    _, place, ties = np.unique(joint, return_inverse=True, return_counts=True)
    ranks = np.cumsum(ties) - (ties - 1) / 2
    excess = float(ranks[place[:n]].sum()) - n * (n + 1) / 2 - n * m / 2
    tied = float((ties.astype(np.float64) ** 3 - ties).sum()) / ((n + m) * (n + m - 1))
    variance = n * m / 12 * (n + m + 1 - tied)
    if variance <= 0:
        raise ValueError("no interval when all observations are tied")
    return (excess - 0.5 * float(np.sign(excess))) / math.sqrt(variance)


def location_shift(
    experiment: Floats, control: Floats, *, confidence_level: float = KAYENTA_CONFIDENCE
) -> tuple[float, float, float]:
    """Lower limit, upper limit and estimate of how far the experiment lies above the control.

    Examples
    --------
    >>> low, high, estimate = location_shift(np.array([1., 4, 2, 3, 1]), np.zeros(5))
    >>> round(low, 2), round(high, 2), round(estimate, 2)
    (1.0, 4.0, 2.0)
    """
    least = float(experiment.min() - control.max())
    most = float(experiment.max() - control.min())

    def root(quantile: float) -> float:
        def gap(shift: float) -> float:
            return shifted_rank_z(shift, experiment=experiment, control=control) - quantile

        if gap(least) <= 0:
            return least
        if gap(most) >= 0:
            return most
        return float(brentq(gap, least, most, xtol=KAYENTA_ROOT_TOLERANCE))

    z = float(norm.isf((1 - confidence_level) / 2))
    return root(z), root(-z), root(0.0)


def kayenta_class(
    experiment: Floats,
    control: Floats,
    *,
    direction: Direction,
    confidence_level: float = KAYENTA_CONFIDENCE,
    tolerance: float = KAYENTA_TOLERANCE,
    least_increase: float = 1.0,
    least_decrease: float = 1.0,
) -> Class:
    """NetflixACAJudge-v1.0 on one metric: Mann-Whitney interval against a share of its estimate.

    Examples
    --------
    >>> kayenta_class(np.ones(5), np.ones(5), direction=Direction.EITHER)
    <Class.PASS: 'Pass'>
    """
    if not experiment.size or not control.size:
        return Class.NO_DATA
    if np.array_equal(np.sort(experiment), np.sort(control)):
        return Class.PASS
    if np.unique(np.concatenate([experiment, control])).size == 1:
        return Class.PASS
    if np.ptp(experiment) == 0 and np.ptp(control) == 0:
        experiment, control = _with_noise(experiment, seed=1), _with_noise(control, seed=2)
    high_is_possible = direction is not Direction.DECREASE
    low_is_possible = direction is not Direction.INCREASE
    if not _may_differ(experiment, control, high_is_possible, low_is_possible, confidence_level):
        return Class.PASS
    low, high, estimate = location_shift(experiment, control, confidence_level=confidence_level)
    critical = tolerance * abs(estimate)
    means = float(experiment.mean()), float(control.mean())
    ratio = means[0] / means[1] if all(means) else math.nan
    if high_is_possible and low > critical and not ratio < least_increase:
        return Class.HIGH
    if low_is_possible and high < -critical and not ratio > least_decrease:
        return Class.LOW
    return Class.PASS


def _with_noise(values: Floats, *, seed: int) -> Floats:
    scale = 1e-5 * max(abs(float(values[0])), 1e-5)
    return np.asarray(values + np.random.default_rng(seed).normal(0, scale, values.size))


def _may_differ(
    experiment: Floats, control: Floats, high: bool, low: bool, confidence_level: float
) -> bool:
    """Spare the search for roots where the interval covers 0: it can then only pass."""
    z = float(norm.isf((1 - confidence_level) / 2))
    at_zero = shifted_rank_z(0.0, experiment=experiment, control=control)
    apart_above = float(experiment.min()) > float(control.max())
    apart_below = float(experiment.max()) < float(control.min())
    return (high and (at_zero > z or apart_above)) or (low and (at_zero < -z or apart_below))


def kayenta_halt(experiment: Floats, control: Floats, *, direction: Direction) -> int | None:
    """First look, from the twelfth on, that is not Pass; look k has seen k hourly values."""
    bad = Class.HIGH if direction is Direction.INCREASE else Class.LOW
    for look in range(KAYENTA_LEAST_POINTS, experiment.size + 1):
        a, b = experiment[:look], control[:look]
        a, b = a[np.isfinite(a)], b[np.isfinite(b)]
        if kayenta_class(a, b, direction=direction) is bad:
            return look
    return None


# --- thresholds ----------------------------------------------------------------------------


def argo_halt(is_failed: Bools, *, failure_limit: int = 3) -> int | None:
    """Argo Rollouts: more failed measurements than `failureLimit` (3 in its examples)."""
    return first_look(np.cumsum(is_failed) > failure_limit)


def flagger_halt(is_failed: Bools, *, threshold: int = 5) -> int | None:
    """Flagger: so many failed checks, cumulative over the analysis."""
    return first_look(np.cumsum(is_failed) >= threshold)


def aws_iot_halts(
    is_failed: Sequence[bool] | Bools, *, threshold_share: float = 0.2, minimum: int = 10
) -> int | None:
    """AWS IoT Jobs: more than `minimum` things have run and more than a share failed.

    Its fields have no defaults; a fifth and 10 are what its guides show for small fleets.
    """
    executed = np.arange(1, len(is_failed) + 1)
    failed = np.cumsum(np.asarray(is_failed, dtype=np.int64))
    return first_look((executed > minimum) & (failed > threshold_share * executed))


def hawkbit_halts(is_failed: Sequence[bool] | Bools, *, error_share: float = 0.5) -> int | None:
    """Eclipse hawkBit: errors over all targets of the group exceed a share (default 50 %)."""
    failed = np.cumsum(np.asarray(is_failed, dtype=np.int64))
    return first_look(failed > error_share * len(is_failed))


def first_look(fires: Bools) -> int | None:
    """Number (from 1) of the first look that fires, or None.

    Examples
    --------
    >>> first_look(np.array([False, True])), first_look(np.array([False]))
    (2, None)
    """
    hit = np.flatnonzero(fires)
    return int(hit[0]) + 1 if hit.size else None


# --- means of machines ---------------------------------------------------------------------


def asymptotic_cs_rho(alpha: float, n_star: float, *, is_one_sided: bool = True) -> float:
    """GrowthBook's tuning: the sequence is tightest at `n_star` units."""
    level = 2 * alpha if is_one_sided else alpha
    return math.sqrt((-2 * math.log(level) + math.log(-2 * math.log(level) + 1)) / n_star)


def asymptotic_cs_halfwidth(
    se: Floats | float, n: float, *, alpha: float = 0.05, n_star: float, is_one_sided: bool = True
) -> Floats:
    """Half-width of GrowthBook's asymptotic confidence sequence (Waudby-Smith et al.).

    Examples
    --------
    >>> round(float(asymptotic_cs_halfwidth(0.01, 320, n_star=5000)), 6)
    0.042091
    """
    rho = asymptotic_cs_rho(alpha, n_star, is_one_sided=is_one_sided)
    grown = n * rho**2 + 1
    root = math.sqrt(grown)
    reach = math.log(1 + root / (2 * alpha)) if is_one_sided else math.log(root / alpha)
    return np.asarray(np.asarray(se) * math.sqrt(n * 2 * grown / (n * rho) ** 2 * reach))


def msprt_critical_z(
    var_t: Floats | float, n_t: int, var_c: Floats | float, n_c: int, *, alpha: float = 0.05
) -> Floats:
    """Statsig's always-valid critical value for |z|.

    Examples
    --------
    >>> round(float(msprt_critical_z(1, 64, 1, 256)), 4)
    3.8514
    """
    variance = np.asarray(var_t) / n_t + np.asarray(var_c) / n_c
    mixing = norm.isf(alpha / 2) ** 2 * (np.asarray(var_t) + np.asarray(var_c)) / (n_t + n_c)
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = -2 * math.log(alpha / 2) - np.log(variance / (variance + mixing))
        return np.asarray(np.sqrt((variance + mixing) / mixing * inner))


class ArmMeans:
    """Mean and variance over machines of each arm, per look; large means harm."""

    def __init__(self, values: Floats, *, is_canary: Bools) -> None:
        arms = values[is_canary], values[~is_canary]
        self.sizes = tuple(np.isfinite(a).sum(axis=0).astype(np.float64) for a in arms)
        with np.errstate(invalid="ignore", divide="ignore"):
            self.variances = tuple(
                np.nansum((a - np.nansum(a, axis=0) / n) ** 2, axis=0) / np.maximum(n - 1, 1)
                for a, n in zip(arms, self.sizes, strict=True)
            )
            means = [np.nansum(a, axis=0) / n for a, n in zip(arms, self.sizes, strict=True)]
            self.gap = means[0] - means[1]
            self.se = np.sqrt(sum(v / n for v, n in zip(self.variances, self.sizes, strict=True)))

    @property
    def total(self) -> int:
        return int(sum(float(n.max()) for n in self.sizes))

    def growthbook(self, *, n_star: float) -> int | None:
        half = asymptotic_cs_halfwidth(self.se, self.total, n_star=n_star)
        return first_look((self.gap > half) & (self.se > 0))

    def statsig(self) -> int | None:
        n_t, n_c = (int(n.max()) for n in self.sizes)
        critical = msprt_critical_z(self.variances[0], n_t, self.variances[1], n_c)
        with np.errstate(invalid="ignore", divide="ignore"):
            return first_look((self.gap / self.se > critical) & (self.se > 0))

    def peeking_welch(self, *, alpha: float = 0.05) -> int | None:
        with np.errstate(invalid="ignore", divide="ignore"):
            a, b = (v / n for v, n in zip(self.variances, self.sizes, strict=True))
            freedom = (a + b) ** 2 / (a**2 / (self.sizes[0] - 1) + b**2 / (self.sizes[1] - 1))
            p = t.sf(self.gap / self.se, freedom)
        return first_look((p < alpha) & (self.se > 0))


# --- events that split between the arms ----------------------------------------------------


def lindon_malek_log_e(counts: Floats, prob: Floats, *, dirichlet: Floats) -> float:
    """Log e-value of a Dirichlet mixture of multinomial splits over the null's split.

    Examples
    --------
    >>> round(lindon_malek_log_e(np.array([30., 10.]), np.array([.5, .5]),
    ...                          dirichlet=np.array([50., 50.])), 6)
    1.274879
    """
    total = gammaln(dirichlet.sum()) - gammaln(dirichlet.sum() + counts.sum())
    parts = gammaln(dirichlet + counts) - gammaln(dirichlet)
    return float(total + parts.sum() - xlogy(counts, prob).sum())


def lindon_malek_halt(
    canary: Ints, control: Ints, *, share: float, alpha: float = 0.05
) -> int | None:
    """Halt on e >= 1/alpha with more than its share of events on the canary; Dirichlet 100 x."""
    prob = np.array([share, 1 - share])
    fires = np.zeros(canary.size, dtype=np.bool_)
    for k, (a, b) in enumerate(zip(canary.tolist(), control.tolist(), strict=True)):
        if a > share * (a + b):
            log_e = lindon_malek_log_e(np.array([a, b], float), prob, dirichlet=100 * prob)
            fires[k] = log_e >= -math.log(alpha)
    return first_look(fires)


def peeking_binomial_halt(
    canary: Ints, control: Ints, *, share: float, alpha: float = 0.05
) -> int | None:
    """Exact one-sided binomial test of the split, repeated at every look without correction."""
    return first_look(binom.sf(canary - 1, canary + control, share) < alpha)


def split_llr(canary: Ints | Floats, total: Ints | Floats, *, share: float) -> Floats:
    """Maximised log-likelihood ratio of the canary's share above its null."""
    n, c = np.asarray(total, dtype=np.float64), np.asarray(canary, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        free = xlogy(c, c / n) + xlogy(n - c, (n - c) / n)
    null = c * math.log(share) + (n - c) * math.log1p(-share)
    return np.where(c > share * n, free - null, 0.0)


@lru_cache(maxsize=256)
def maxsprt_critical(events: int, share: float, *, alpha: float = 0.05) -> float:
    """Kulldorff's flat boundary for the binomial MaxSPRT of at most `events` events, exactly."""

    def excess(bound: float) -> float:
        return _crossing_chance(events, share, bound=bound) - alpha

    return float(brentq(excess, 0.5, 12.0, xtol=1e-3))


def _crossing_chance(events: int, share: float, *, bound: float) -> float:
    alive = np.zeros(events + 2)
    alive[0] = 1.0
    crossed = 0.0
    for n in range(1, events + 1):
        alive[1 : n + 1] = alive[1 : n + 1] * (1 - share) + alive[:n] * share
        alive[0] *= 1 - share
        out = split_llr(np.arange(n + 1), np.full(n + 1, n), share=share) >= bound
        crossed += float(alive[: n + 1][out].sum())
        alive[: n + 1][out] = 0.0
    return crossed


def maxsprt_halt(
    canary: Ints, control: Ints, *, share: float, events: int, alpha: float = 0.05
) -> int | None:
    """Binomial MaxSPRT, evaluated at the looks, over at most `events` events in all."""
    total = canary + control
    bound = maxsprt_critical(events, round(share, 6), alpha=alpha)
    return first_look((split_llr(canary, total, share=share) >= bound) & (total <= events))


# --- the limits ----------------------------------------------------------------------------


def oracle_halt(
    events: Ints, expected: Floats, *, ratio: float, first_hour: int = 0, alpha: float = 0.05
) -> int | None:
    """Wald's SPRT that knows the canaries' intensities, the true ratio and its onset.

    Parameters
    ----------
    events, expected : (hours,) arrays
        Faults of all canaries in each hour, and how many a harmless firmware would have had.
        Given the machines' intensities the counts are Poisson, so the sum is sufficient.
    """
    late = np.arange(events.size) >= first_hour
    score = np.where(late, events * math.log(ratio) - (ratio - 1) * expected, 0.0)
    return first_look(np.cumsum(score) >= -math.log(alpha))
