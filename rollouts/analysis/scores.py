"""Scores as integers: centred within strata, adjusted for the period before, summed exactly.

A score is large where a unit did badly. It knows the arms only through the rescaling of the
canaries' raw values that a tested effect asks for.
"""

from dataclasses import dataclass

import numpy as np

from rollouts.analysis.errors import InvalidSample
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray

UNITS_PER_FAULT_SCORE = 1_000_000
"""Fault scores are kept in millionths."""
UNITS_PER_RATIO = 1_000_000_000
"""Throughput scores are kept in billionths of the nominal level."""
UNITS_PER_LOG = 1_000_000_000
"""Recovery scores are kept in billionths of a natural log unit."""


@dataclass(frozen=True, eq=False)
class Strata:
    """Strata as dense codes 0 .. count-1, with the covariate of the period before.

    `covariate` is None or one number per unit; NaN (unknown) stands at the stratum's mean.
    """

    code: IntArray
    count: int
    covariate: FloatArray | None = None

    @classmethod
    def of(cls, stratum: IntArray, *, covariate: FloatArray | None = None) -> "Strata":
        codes, dense = np.unique(stratum, return_inverse=True)
        if covariate is not None and not np.isfinite(covariate).any():
            covariate = None
        return cls(dense.astype(np.int64), int(codes.size), covariate)

    def only(self, chosen: BoolArray) -> "Strata":
        """The strata of some of the units."""
        covariate = None if self.covariate is None else self.covariate[chosen]
        return Strata.of(self.code[chosen], covariate=covariate)

    def totals(self, values: FloatArray | IntArray, *, where: BoolArray) -> FloatArray:
        """Sum per stratum over the units of a mask."""
        weights = values[where].astype(np.float64)
        total = np.bincount(self.code[where], weights=weights, minlength=self.count)
        return np.asarray(total, dtype=np.float64)

    def means(self, values: FloatArray | IntArray, *, where: BoolArray) -> FloatArray:
        """Mean per stratum over the units of a mask; 0 where there is none."""
        sizes = np.bincount(self.code[where], minlength=self.count)
        totals = self.totals(values, where=where)
        return np.divide(totals, sizes, out=np.zeros(self.count), where=sizes > 0)

    def centred_covariate(self, *, where: BoolArray) -> FloatArray | None:
        """The covariate minus its stratum mean over the mask; 0 outside and where unknown."""
        if self.covariate is None:
            return None
        known = where & np.isfinite(self.covariate)
        clean = np.where(known, self.covariate, 0.0)
        centred = np.where(known, clean - self.means(clean, where=known)[self.code], 0.0)
        return centred if np.abs(centred).max(initial=0.0) > 0 else None


def without_covariate(values: FloatArray, *, strata: Strata) -> FloatArray:
    """Values less what the period before explains of them, by one slope within strata.

    Examples
    --------
    >>> strata = Strata.of(np.zeros(3, int), covariate=np.array([1.0, 2.0, 3.0]))
    >>> without_covariate(np.array([10.0, 20.0, 30.0]), strata=strata).tolist()
    [20.0, 20.0, 20.0]
    """
    everyone = np.ones(values.size, dtype=np.bool_)
    covariate = strata.centred_covariate(where=everyone)
    if covariate is None:
        return values
    centred = values - strata.means(values, where=everyone)[strata.code]
    slope = float(centred @ covariate) / float(covariate @ covariate)
    return np.asarray(values - slope * covariate, dtype=np.float64)


def quantised(values: FloatArray, *, per_unit: int) -> IntArray:
    """Nearest integers of `values * per_unit`; refuses what is not finite."""
    if not np.isfinite(values).all():
        raise InvalidSample("a score must be finite: got NaN or infinity")
    return np.rint(values * per_unit).astype(np.int64)


def adjusted(column: IntArray, *, strata: Strata, where: BoolArray) -> IntArray:
    """Residual of integer scores on stratum and covariate, in integers.

    Parameters
    ----------
    column : (units,) int array
    strata : Strata
        One slope serves all strata and, being label-blind, all re-assignments.
    where : (units,) bool array
        Units that have a score; the others get 0, their stratum's mean.

    Notes
    -----
    What is subtracted is rounded per unit, and equal for units of one stratum and covariate, so
    scores that tie keep tying. The residual is linear in the scores up to that rounding.

    Examples
    --------
    >>> strata = Strata.of(np.array([0, 0, 0, 1]))
    >>> adjusted(np.array([6, 0, 0, 5]), strata=strata, where=np.ones(4, bool)).tolist()
    [4, -2, -2, 0]
    """
    mean = strata.means(column, where=where)
    residual = column - np.rint(mean).astype(np.int64)[strata.code]
    covariate = strata.centred_covariate(where=where)
    if covariate is not None:
        centred = np.where(where, column - mean[strata.code], 0.0)
        slope = float(centred @ covariate) / float(covariate @ covariate)
        residual = residual - np.rint(slope * covariate).astype(np.int64)
    return np.where(where, residual, 0)
