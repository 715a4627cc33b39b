"""Throughput relative to nominal, machine by machine, each workload with equal weight.

A report is divided by the level of its workload, pooled over both arms after the tested effect
was taken out of the canaries, and limited to [0, 1.2]: one stuck or boasting machine cannot
carry the mean, nor, by reports far beyond its workload's median, the level that all are divided
by. A unit's outcome is the mean over its workloads of its mean within each.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import t as student

from rollouts.analysis.samples import BoolArray, FloatArray, IntArray
from rollouts.analysis.scores import Strata, without_covariate
from rollouts.analysis.verdicts import Interval

HIGHEST_RELATIVE = 1.2
"""Reports above this share of nominal count as this share."""
LOWEST_RELATIVE = 0.01
"""Log means are taken of at least this share of nominal."""
MOST_MEDIANS = 10.0
"""Reports above so many medians of their workload are nonsense, and count as so many."""


@dataclass(frozen=True, eq=False)
class ThroughputTable:
    """Reports of one look that count: after the clock's start, finite, of a judged workload.

    `workload` codes 0 .. workloads-1; `units` is the number of units.
    """

    unit: IntArray
    workload: IntArray
    value: FloatArray
    units: int
    workloads: int

    @cached_property
    def cell(self) -> IntArray:
        return self.unit * self.workloads + self.workload

    @cached_property
    def cell_size(self) -> IntArray:
        return np.bincount(self.cell, minlength=self.units * self.workloads)

    def cell_means(self, values: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Mean per unit and workload, and where there is one."""
        shape, size = (self.units, self.workloads), self.cell_size
        total = np.bincount(self.cell, weights=values, minlength=size.size)
        mean = np.divide(total, size, out=np.zeros(size.size), where=size > 0)
        return mean.reshape(shape), (size > 0).reshape(shape)


@dataclass(frozen=True, eq=False)
class RelativeThroughput:
    """Per unit: the mean relative throughput with the canaries' raw values times `factor`.

    `is_known` says which units reported at all; `moving` is, per report, the derivative of its
    relative throughput in the factor with levels and limits held.
    """

    table: ThroughputTable
    mean: FloatArray
    is_known: BoolArray
    moving: FloatArray

    @cached_property
    def slope(self) -> FloatArray:
        """Per unit, the derivative of the mean in the factor."""
        cells, known = self.table.cell_means(self.moving)
        return np.asarray(cells.sum(axis=1) * _shares(known))


def _shares(known: BoolArray) -> FloatArray:
    """What each of a unit's workloads weighs; 0 where it ran in none."""
    seen = known.sum(axis=1)
    return np.asarray(np.divide(1.0, seen, out=np.zeros(seen.size), where=seen > 0))


def without_nonsense(value: FloatArray, workload: IntArray) -> FloatArray:
    """Reports, each limited to `MOST_MEDIANS` times the median of its workload's positive ones.

    A counter that ran over says a thousand million times what the others say. In the level, one
    such report would leave next to nothing of all others, and nothing to compare.

    Examples
    --------
    >>> without_nonsense(np.array([1.0, 0.0, 2.0, 3.0, 1e9]), np.zeros(5, int)).tolist()
    [1.0, 0.0, 2.0, 3.0, 25.0]
    """
    is_positive = value > 0
    if not is_positive.any() or value.max() <= MOST_MEDIANS * value[is_positive].min():
        return value
    limited = value.copy()
    for kind in np.unique(workload).tolist():
        here = workload == kind
        positive = value[here & is_positive]
        if positive.size:
            limited[here] = np.minimum(value[here], MOST_MEDIANS * np.median(positive))
    return limited


def relative_throughput(
    table: ThroughputTable, *, is_canary: BoolArray, factor: float
) -> RelativeThroughput:
    """Rescale the canaries, then take levels, then limit, then average: in this order.

    Parameters
    ----------
    table : ThroughputTable
    is_canary : (units,) bool array
    factor : float
        1 / (1 - drop) for the tested drop: if the drop is true, the rescaled table does not
        depend on the arms.

    Examples
    --------
    >>> table = ThroughputTable(np.array([0, 1]), np.array([0, 0]), np.array([98.0, 100.0]), 2, 1)
    >>> got = relative_throughput(table, is_canary=np.array([True, False]), factor=1 / 0.98)
    >>> got.mean.round(9).tolist()
    [1.0, 1.0]
    """
    mine = is_canary[table.unit]
    value = without_nonsense(table.value * np.where(mine, factor, 1.0), table.workload)
    size = np.bincount(table.workload, minlength=table.workloads)
    total = np.bincount(table.workload, weights=value, minlength=table.workloads)
    level = np.divide(total, size, out=np.ones(table.workloads), where=(size > 0) & (total > 0))
    relative = value / level[table.workload]
    free = relative < HIGHEST_RELATIVE
    cells, known = table.cell_means(np.minimum(relative, HIGHEST_RELATIVE))
    return RelativeThroughput(
        table=table,
        mean=cells.sum(axis=1) * _shares(known),
        is_known=np.asarray(known.any(axis=1)),
        moving=np.where(mine & free, relative / factor, 0.0),
    )


@dataclass(frozen=True)
class MeanRatio:
    """A ratio of geometric means with its plain interval; None where it does not exist."""

    estimate: float | None
    interval: Interval


def welch_ratio(
    logs: FloatArray, *, is_canary: BoolArray, strata: Strata, confidence_level: float = 0.95
) -> MeanRatio:
    """Ratio of geometric means, units as units, strata weighted by their information.

    Parameters
    ----------
    logs : (units,) array
        Log outcome per unit.
    strata : Strata
        Of the same units. Only strata with both arms count. With one stratum this is Welch's
        interval on the log scale. What a covariate of the period before explains is taken out
        first, as in the scores, so that the estimate lies where the test looks for it.

    Examples
    --------
    >>> logs = np.log(np.array([0.9, 1.1, 1.0, 2.0, 2.2, 1.8]))
    >>> ratio = welch_ratio(logs, is_canary=np.arange(6) < 3, strata=Strata.of(np.zeros(6, int)))
    >>> round(ratio.estimate, 3)
    0.5
    """
    none = Interval(None, None, confidence_level)
    logs = without_covariate(logs, strata=strata)
    n_c = np.bincount(strata.code[is_canary], minlength=strata.count)
    n_k = np.bincount(strata.code[~is_canary], minlength=strata.count)
    weight = np.divide(
        n_c * n_k, n_c + n_k, out=np.zeros(strata.count), where=(n_c > 0) & (n_k > 0)
    )
    if not weight.any():
        return MeanRatio(None, none)
    weight = weight / weight.sum()
    gap = strata.means(logs, where=is_canary) - strata.means(logs, where=~is_canary)
    difference = float(weight @ gap)
    spreads = []
    for arm, n in ((is_canary, n_c), (~is_canary, n_k)):
        residual = np.where(arm, logs - strata.means(logs, where=arm)[strata.code], 0.0)
        free = int(n.sum() - (n > 0).sum())
        if free < 1:
            return MeanRatio(math.exp(difference), none)
        lever = np.divide(weight**2, n, out=np.zeros(strata.count), where=n > 0)
        spreads.append((float(residual @ residual) / free * float(lever.sum()), free))
    variance = sum(v for v, _ in spreads)
    if variance == 0:
        return MeanRatio(
            math.exp(difference),
            Interval(math.exp(difference), math.exp(difference), confidence_level),
        )
    freedom = variance**2 / sum(v**2 / free for v, free in spreads)
    reach = float(student.isf((1 - confidence_level) / 2, freedom)) * math.sqrt(variance)
    limits = Interval(math.exp(difference - reach), math.exp(difference + reach), confidence_level)
    return MeanRatio(math.exp(difference), limits)


@dataclass(frozen=True)
class ThroughputRatio:
    """Canary over control, all workloads with equal weight, and each by itself."""

    overall: MeanRatio
    by_workload: tuple[MeanRatio, ...]


def throughput_ratio(
    table: ThroughputTable, *, is_canary: BoolArray, strata: Strata, confidence_level: float = 0.95
) -> ThroughputRatio:
    """Canary over control with plain intervals of one look, workloads with equal weight.

    Parameters
    ----------
    table : ThroughputTable
        Reports in any unit; only ratios within a workload count.
    is_canary : (units,) bool array
    strata : Strata
        Of the units, with the covariate of the period before, if there is one.
    confidence_level : float
        Two-sided, in (0, 1).

    Returns
    -------
    ThroughputRatio
        Dimensionless, below 1 is slower. None in a `MeanRatio` where an arm has no usable report.

    Notes
    -----
    Per unit, the log of its mean within a workload over the workload's level, at least 1 % of it;
    their mean over workloads goes through Welch's interval [1]_ within strata. Units, not reports,
    are independent. It does not hold under repeated looks.

    References
    ----------
    .. [1] B. L. Welch, Biometrika 34 (1947) 28-35.

    Examples
    --------
    >>> table = ThroughputTable(np.arange(6), np.zeros(6, int),
    ...                         np.array([96.0, 97, 98, 99, 100, 101]), 6, 1)
    >>> strata = Strata.of(np.zeros(6, int))
    >>> found = throughput_ratio(table, is_canary=np.arange(6) < 3, strata=strata)
    >>> round(found.overall.estimate, 3), round(found.overall.interval.high, 3)
    (0.97, 0.993)
    """
    cells, known = table.cell_means(without_nonsense(table.value, table.workload))
    by_workload = []
    total, seen = np.zeros(table.units), np.zeros(table.units)
    for w in range(table.workloads):
        has = known[:, w]
        level = float(cells[has, w].mean()) if has.any() else 0.0
        if level <= 0 or not (has & is_canary).any() or not (has & ~is_canary).any():
            by_workload.append(MeanRatio(None, Interval(None, None, confidence_level)))
            continue
        logs = np.log(np.maximum(cells[:, w] / level, LOWEST_RELATIVE))
        total[has] += logs[has] - logs[has].mean()
        seen[has] += 1
        by_workload.append(
            welch_ratio(
                logs[has],
                is_canary=is_canary[has],
                strata=strata.only(has),
                confidence_level=confidence_level,
            )
        )
    some = seen > 0
    if not some.any():
        none = MeanRatio(None, Interval(None, None, confidence_level))
        return ThroughputRatio(none, tuple(by_workload))
    overall = welch_ratio(
        total[some] / seen[some],
        is_canary=is_canary[some],
        strata=strata.only(some),
        confidence_level=confidence_level,
    )
    return ThroughputRatio(overall, tuple(by_workload))
