"""Installs, boots, novel signatures and rates: exact statements about small counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.stats import beta as beta_distribution
from scipy.stats import hypergeom

from rollouts.analysis.errors import InvalidLevel, InvalidSample
from rollouts.analysis.samples import FloatArray

LEAST_TOLERATED_FAILURE_SHARE = 0.01
TOLERATED_TIMES_BASELINE = 1.5
INSTALL_MARGIN = 0.04
FIRST_INSTALLS = 10
FAILURES_AMONG_FIRST = 3


def install_log_e(failures: int, attempts: int, *, p0: float) -> float:
    """Log evidence that installs fail more often than `p0`; valid after every install.

    Parameters
    ----------
    failures, attempts : int
        Every failure class and every time-out counts as a failure.
    p0 : float
        Tolerated failure probability, strictly between 0 and 1.

    Returns
    -------
    float
        log E; E >= 1/alpha at any time rejects "p <= p0" at level alpha.

    Notes
    -----
    E is the likelihood averaged over p uniform above p0, over that at p0; the
    tail of the beta is written as a binomial sum, so that nothing underflows:
    `1 - I_p0(x+1, n-x+1) = P(Bin(n+1, p0) <= x)`. Exact if installs fail
    independently with probabilities up to p0. Written with logarithms alone, so
    that a replay needs no library whose last digits may differ.

    Examples
    --------
    >>> round(install_log_e(2, 8, p0=0.01), 2)
    3.75
    """
    _check_counts(failures, attempts)
    _check_open_share(p0, name="p0")
    x, n = failures, attempts
    log_beta = -math.log(n + 1) - float(_log_choices(n, min(x, n - x))[-1])
    log_null = x * math.log(p0) + (n - x) * math.log1p(-p0)
    return log_beta + _log_at_most(x, n + 1, p=p0) - math.log1p(-p0) - log_null


def chance_of_at_most(x: int, n: int, *, p: float) -> float:
    """P(Bin(n, p) <= x): below `level` exactly where the upper bound at 1 - level is below p.

    Examples
    --------
    >>> chance_of_at_most(0, 59, p=0.05) < 0.05 < chance_of_at_most(0, 58, p=0.05)
    True
    """
    _check_counts(x, n)
    _check_open_share(p, name="p")
    return math.exp(min(_log_at_most(x, n, p=p), 0.0))


def _log_at_most(x: int, n: int, *, p: float) -> float:
    """log P(Bin(n, p) <= x), summed from the terms."""
    odds = math.log(p) - math.log1p(-p)
    terms = _log_choices(n, x) + np.arange(x + 1) * odds
    top = float(terms.max())
    return top + math.log(float(np.exp(terms - top).sum())) + n * math.log1p(-p)


def _log_choices(n: int, most: int) -> FloatArray:
    """log of n over k, for k from 0 to `most`."""
    k = np.arange(1, most + 1)
    return np.concatenate([[0.0], np.cumsum(np.log((n - k + 1) / k))])


class Bound(StrEnum):
    """Which one-sided confidence bound."""

    LOWER = "lower"
    UPPER = "upper"


def clopper_pearson(x: int, n: int, *, level: float, side: Bound) -> float:
    """One-sided exact confidence bound for a probability, at one fixed look [1]_.

    Parameters
    ----------
    x, n : int
        Events among trials, 0 <= x <= n.
    level : float
        One-sided coverage, in (0, 1).
    side : Bound

    Returns
    -------
    float
        In [0, 1]; with no trials 0 or 1.

    Raises
    ------
    InvalidSample, InvalidLevel
        If counts or level are impossible.

    References
    ----------
    .. [1] C. J. Clopper, E. S. Pearson, Biometrika 26 (1934) 404-413.

    Examples
    --------
    >>> round(clopper_pearson(0, 59, level=0.95, side=Bound.UPPER), 4)
    0.0495
    """
    _check_counts(x, n)
    _check_open_share(level, name="level")
    if side is Bound.UPPER:
        return 1.0 if x == n else float(beta_distribution.isf(1 - level, x + 1, n - x))
    return 0.0 if x == 0 else float(beta_distribution.ppf(1 - level, x, n - x + 1))


@dataclass(frozen=True)
class InstallJudgement:
    """What installs say; `is_not_worse` where the upper bound lies below the limit."""

    failures: int
    attempts: int
    tolerated: float
    limit: float
    beta: float
    log_e: float
    is_harmful: bool
    is_not_worse: bool

    @property
    def upper(self) -> float:
        """One-sided bound at 1 - beta, to be shown: no verdict rests on its digits."""
        return clopper_pearson(self.failures, self.attempts, level=1 - self.beta, side=Bound.UPPER)


def judge_installs(
    failures: int,
    attempts: int,
    *,
    baseline: float,
    alpha: float,
    beta: float,
    tolerance: float = LEAST_TOLERATED_FAILURE_SHARE,
    margin: float = INSTALL_MARGIN,
) -> InstallJudgement:
    """Do installs fail more often than tolerated; is it shown that they do not?

    Parameters
    ----------
    failures, attempts : int
        Finished attempts only; time-outs are failures.
    baseline : float
        This fleet's failure share of the same kind of activation, in [0, 1).
    alpha : float
        The guardrail's halt level in this wave; 0 for one that does not halt.
    beta : float
        One-sided level of "not worse".
    tolerance : float
        The least failure share that is tolerated.
    margin : float
        How far above the tolerated share the limit lies.

    Returns
    -------
    InstallJudgement
        Tolerated is max(tolerance, 1.5 x baseline), the limit `margin` more.

    Examples
    --------
    >>> verdict = judge_installs(2, 8, baseline=0.002, alpha=0.05, beta=0.05)
    >>> verdict.is_harmful, verdict.is_not_worse, verdict.tolerated
    (True, False, 0.01)
    """
    if not 0 <= baseline < 1:
        raise InvalidSample(f"a baseline failure share lies in [0, 1): got {baseline}")
    if not 0 <= alpha < 1:
        raise InvalidLevel(f"alpha lies in [0, 1): got {alpha}")
    tolerated = max(tolerance, TOLERATED_TIMES_BASELINE * baseline)
    limit = tolerated + margin
    if limit >= 1:
        raise InvalidSample(
            f"a baseline of {baseline} and a margin of {margin} leave no room for a limit below 1"
        )
    _check_open_share(beta, name="beta")
    log_e = install_log_e(failures, attempts, p0=tolerated)
    return InstallJudgement(
        failures,
        attempts,
        tolerated=tolerated,
        limit=limit,
        beta=beta,
        log_e=log_e,
        is_harmful=alpha > 0 and log_e >= -math.log(alpha),
        is_not_worse=chance_of_at_most(failures, attempts, p=limit) < beta,
    )


class HardStop(StrEnum):
    """Why installs stop at once, outside the error budget."""

    BRICKS = "bricks"
    EARLY_FAILURES = "early_failures"


def hard_stop(is_failed: Sequence[bool], *, bricks: int, max_bricks: int) -> HardStop | None:
    """The reason to stop now, if there is one.

    `is_failed` lists finished attempts in order of their end. Only a machine
    that the bundle's recovery recipe could not bring back is a brick.

    Examples
    --------
    >>> hard_stop([True, False, True, True], bricks=0, max_bricks=0)
    <HardStop.EARLY_FAILURES: 'early_failures'>
    """
    if bricks < 0 or max_bricks < 0:
        raise InvalidSample(f"bricks are counts: got {bricks} of at most {max_bricks}")
    if bricks > max_bricks:
        return HardStop.BRICKS
    if sum(map(bool, is_failed[:FIRST_INSTALLS])) >= FAILURES_AMONG_FIRST:
        return HardStop.EARLY_FAILURES
    return None


def novel_p_value(n: int, *, n_canary: int, machines: int, of_which_canary: int) -> float:
    """P(at least so many canaries) among machines with a signature never seen before.

    Parameters
    ----------
    n, n_canary : int
        Units of the wave, and how many of them are canaries.
    machines, of_which_canary : int
        Units that showed such a signature, and how many of them are canaries.

    Returns
    -------
    float
        Hypergeometric, exact for a drawn assignment at one look and in one stratum. A single unit
        is no evidence, whatever its arm.

    Raises
    ------
    InvalidSample
        If the counts contradict one another.

    Examples
    --------
    >>> round(novel_p_value(320, n_canary=64, machines=3, of_which_canary=3), 4)
    0.0077
    """
    _check_counts(n_canary, n)
    _check_counts(machines, n)
    if not max(0, machines + n_canary - n) <= of_which_canary <= min(machines, n_canary):
        raise InvalidSample(
            f"{of_which_canary} canaries cannot be among {machines} machines "
            f"of a wave with {n_canary} canaries of {n}"
        )
    return float(hypergeom.sf(of_which_canary - 1, n, n_canary, machines))


@dataclass(frozen=True)
class RateRatio:
    """Canary over control; `estimate` is NaN with no events at all."""

    estimate: float
    low: float
    high: float


def rate_ratio_exact(
    x_canary: int,
    exposure_canary: float,
    x_control: int,
    exposure_control: float,
    *,
    confidence_level: float = 0.95,
) -> RateRatio:
    """Exact interval for the canary rate over the control rate, at one fixed look.

    Parameters
    ----------
    x_canary, x_control : int
        Events.
    exposure_canary, exposure_control : float
        Positive, in one unit.
    confidence_level : float
        Two-sided coverage, strictly between 0 and 1.

    Returns
    -------
    RateRatio
        With no control event `high` is `inf`; with no event at all the
        interval is `[0, inf]` and the estimate NaN.

    Notes
    -----
    Given the total, the canary count is binomial [1]_. It takes events as
    independent: for faults that come in bursts or from lemons it is too
    narrow. It does not hold under repeated looks; to act on a stream, use
    `sequential`.

    References
    ----------
    .. [1] C. J. Clopper, E. S. Pearson, Biometrika 26 (1934) 404-413.

    Examples
    --------
    >>> ratio = rate_ratio_exact(18, 1000.0, 10, 1000.0)
    >>> round(ratio.estimate, 2), round(ratio.low, 2), round(ratio.high, 2)
    (1.8, 0.79, 4.36)
    """
    if x_canary < 0 or x_control < 0:
        raise InvalidSample(f"events are counts: got {x_canary} and {x_control}")
    if not all(0 < t < math.inf for t in (exposure_canary, exposure_control)):
        raise InvalidSample(
            f"exposures are positive and finite: got {exposure_canary} and {exposure_control}"
        )
    _check_open_share(confidence_level, name="confidence_level")
    total = x_canary + x_control
    level = (1 + confidence_level) / 2
    scale = exposure_control / exposure_canary
    return RateRatio(
        estimate=_odds_of_counts(x_canary, x_control) * scale,
        low=_odds(clopper_pearson(x_canary, total, level=level, side=Bound.LOWER)) * scale,
        high=_odds(clopper_pearson(x_canary, total, level=level, side=Bound.UPPER)) * scale,
    )


def _odds_of_counts(x: int, y: int) -> float:
    if y:
        return x / y
    return math.inf if x else math.nan


def _odds(share: float) -> float:
    return math.inf if share == 1 else share / (1 - share)


def _check_counts(x: int, n: int) -> None:
    if not 0 <= x <= n:
        raise InvalidSample(f"a count of {x} is not possible among {n}")


def _check_open_share(share: float, *, name: str) -> None:
    if not 0 < share < 1:
        raise InvalidLevel(f"{name} lies strictly between 0 and 1: got {share}")
