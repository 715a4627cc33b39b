"""Was the draw a draw: the arms compared on the period before, where no bundle can have acted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rollouts.analysis.labels import Design, Labels
from rollouts.analysis.samples import FloatArray, IntArray
from rollouts.analysis.scores import Strata, adjusted, quantised
from rollouts.analysis.sequential import p_value

BROKEN_P = 0.001
"""Below this the assignment is taken to be no random one."""
LEAST_DAYS = 7.0
UNITS_PER_SCORE = 1_000_000


@dataclass(frozen=True)
class Balance:
    """Two-sided p-value of each metric of the period before, and of all together."""

    p_values: Mapping[str, float]

    @property
    def p(self) -> float:
        """The smallest times their number (Bonferroni); 1 where there is none.

        Examples
        --------
        >>> Balance({"faults": 0.01, "throughput": 0.5}).p
        0.02
        """
        if not self.p_values:
            return 1.0
        return min(1.0, len(self.p_values) * min(self.p_values.values()))

    def breaks(self, name: str) -> bool:
        """Whether this metric by itself shows that the assignment is no random one."""
        return len(self.p_values) * self.p_values[name] < BROKEN_P

    @property
    def worst(self) -> str:
        """The metric with the smallest p-value; empty where there is none."""
        return min(self.p_values, key=self.p_values.__getitem__, default="")

    @property
    def is_broken(self) -> bool:
        return self.p < BROKEN_P


def least_resamples(metrics: int) -> int:
    """Re-assignments with which so many metrics can show a broken draw, with half as many to spare.

    Two directions and Bonferroni: no p can lie below `2 metrics / (re-assignments + 1)`.

    Examples
    --------
    >>> least_resamples(10)
    29999
    """
    return math.ceil(3 * metrics / BROKEN_P) - 1


def can_break(metrics: int, *, design: Design) -> bool:
    """Whether there are assignments enough for a p that shows a broken draw.

    Examples
    --------
    >>> can_break(1, design=Design(stratum=np.zeros(16, int), is_canary=np.arange(16) < 4))
    False
    """
    return design.assignments > 2 * metrics / BROKEN_P


def integer_scores(figures: Mapping[str, FloatArray], *, stratum: IntArray) -> dict[str, IntArray]:
    """Figures of the period before as integers, centred within strata.

    Parameters
    ----------
    figures : mapping of metric to (units,) array
        One figure per unit; NaN where unknown, which stands at its stratum's mean.
    stratum : (units,) int array

    Examples
    --------
    >>> scores = integer_scores({"faults": np.array([2.0, 0.0, np.nan])}, stratum=np.zeros(3, int))
    >>> scores["faults"].tolist()
    [1000000, -1000000, 0]
    """
    strata = Strata.of(stratum)
    return {
        name: adjusted(
            quantised(np.where(np.isnan(values), 0.0, values), per_unit=UNITS_PER_SCORE),
            strata=strata,
            where=~np.isnan(values),
        )
        for name, values in figures.items()
    }


def balance_of(
    scores: Mapping[str, IntArray], *, design: Design, seed: int, resamples: int
) -> Balance:
    """Randomisation test of each score of the period before, in both directions.

    Parameters
    ----------
    scores : mapping of metric to (units,) int array
        As `integer_scores` makes them.
    design : Design
        Strata and arms; re-assignments draw within strata, as for every look.
    seed, resamples
        Of the re-assignments.

    Notes
    -----
    The same test as a single look: exact for a drawn assignment, so that a sound draw is called
    broken in at most one of a thousand waves. From the same integers it says the same anywhere.

    Examples
    --------
    >>> design = Design(stratum=np.zeros(200, int), is_canary=np.arange(200) < 40)
    >>> level = {"faults": np.where(np.arange(200) < 40, 5.0, 1.0)}
    >>> scores = integer_scores(level, stratum=design.stratum)
    >>> balance_of(scores, design=design, seed=1, resamples=9_999).is_broken
    True
    """
    if not scores:
        return Balance({})
    columns = np.stack([*scores.values()], axis=1)
    sums = Labels.draw(design, seed=seed, resamples=resamples).sums(columns)
    return Balance(
        {
            name: min(1.0, 2 * min(p_value(column), p_value(-column)))
            for name, column in zip(scores, sums.T, strict=True)
        }
    )
