"""Differences between the arms in a share or a mean, clustered by unit, strata weighted.

An outcome is a sum over the occasions of a unit: interruptions that took a severe path of all
its interruptions, or one yes or no per unit.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from rollouts.analysis.samples import BoolArray, FloatArray, IntArray
from rollouts.analysis.scores import Strata
from rollouts.analysis.verdicts import Interval

LEAST_OCCASIONS = 5
"""Per arm, before non-inferiority of a share may be claimed."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Per unit: the sum of the outcome and the number of occasions it was summed over."""

    total: FloatArray
    occasions: IntArray
    is_canary: BoolArray
    strata: Strata

    def arm(self, is_canary: bool) -> tuple[float, int]:
        mask = self.is_canary == is_canary
        return float(self.total[mask].sum()), int(self.occasions[mask].sum())


@dataclass(frozen=True)
class Difference:
    """Canary minus control, its standard error, and what the error is at least under a margin.

    `levers` are the sums of squared weights over occasions, canary and control: a binomial
    variance p(1 - p) times its lever is the variance of that arm's weighted share.
    """

    estimate: float
    error: float
    control: float
    levers: tuple[float, float]
    occasions: tuple[int, int]

    def interval(self, *, confidence_level: float = 0.95) -> Interval:
        """Plain two-sided interval at one fixed look (normal)."""
        if self.error <= 0:
            return Interval(None, None, confidence_level)
        reach = float(norm.isf((1 - confidence_level) / 2)) * self.error
        return Interval(self.estimate - reach, self.estimate + reach, confidence_level)

    def margin_error(self, margin: float) -> float:
        """Standard error, at least the binomial one if the difference were the margin."""
        worse = min(self.control + margin, 1.0)
        canary, control = self.levers
        floor = worse * (1 - worse) * canary + self.control * (1 - self.control) * control
        return math.sqrt(max(self.error**2, floor, 0.0))

    def under_margin(self, margin: float) -> tuple[float, float] | None:
        """Estimate and standard error if canaries were worse by the margin.

        None with too few occasions in an arm, or if the error is zero.
        """
        error = self.margin_error(margin)
        if min(self.occasions) < LEAST_OCCASIONS or error <= 0:
            return None
        return self.estimate, error


def difference_of(outcomes: Outcomes) -> Difference | None:
    """Weighted difference of means per occasion, canary minus control, clustered by unit.

    Parameters
    ----------
    outcomes : Outcomes
        Per unit, in one unit of the outcome (a share: outcomes of 0 to 1 per occasion).

    Returns
    -------
    Difference or None
        In the unit of the outcome. None where no stratum has occasions in both arms; an arm of one
        unit has no spread of its own, so its part of the error is 0 and the margin's floor stands.

    Notes
    -----
    Strata weigh n_c n_k / (n_c + n_k), the least variance under equal variances (Cochran) [1]_. The
    error takes units, not occasions, as independent, with n / (n - 1) of each arm. Asymptotic.

    References
    ----------
    .. [1] W. G. Cochran, Biometrics 10 (1954) 417-451.

    Examples
    --------
    >>> found = difference_of(Outcomes(np.array([3.0, 1, 1, 1]), np.full(4, 4),
    ...                                np.arange(4) < 2, Strata.of(np.zeros(4, int))))
    >>> found.estimate, round(found.error, 4)
    (0.25, 0.25)
    """
    strata, canary = outcomes.strata, outcomes.is_canary
    n_c = strata.totals(outcomes.occasions, where=canary)
    n_k = strata.totals(outcomes.occasions, where=~canary)
    both = (n_c > 0) & (n_k > 0)
    if not both.any():
        return None
    weight = np.divide(n_c * n_k, n_c + n_k, out=np.zeros(strata.count), where=both)
    weight = weight / weight.sum()
    means, variance, levers = [], 0.0, []
    for arm, n in ((canary, n_c), (~canary, n_k)):
        total = strata.totals(outcomes.total, where=arm)
        mean = np.divide(total, n, out=np.zeros(strata.count), where=n > 0)
        means.append(float(weight @ mean))
        share = float(total.sum() / n.sum())
        lever = np.divide(weight, n, out=np.zeros(strata.count), where=n > 0)
        used = arm & (outcomes.occasions > 0)
        residual = (outcomes.total - share * outcomes.occasions) * lever[strata.code]
        clusters = int(used.sum())
        scale = clusters / (clusters - 1) if clusters > 1 else 0.0
        variance += scale * float((residual[used] ** 2).sum())
        levers.append(float((lever * weight).sum()))
    return Difference(
        estimate=means[0] - means[1],
        error=math.sqrt(variance),
        control=means[1],
        levers=(levers[0], levers[1]),
        occasions=(outcomes.arm(True)[1], outcomes.arm(False)[1]),
    )
