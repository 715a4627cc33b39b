"""What an interruption costs: time to recover within its path, the mix of paths, lost work.

Times are limited to eight hours. Interruptions are the units of measurement, machines the units
of randomisation: errors are clustered by unit.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.stats import t as student

from rollouts.analysis.samples import BoolArray, FloatArray, IntArray
from rollouts.analysis.throughput import MeanRatio
from rollouts.analysis.verdicts import Interval

CAP_SECONDS = 8 * 3_600.0
LEAST_SECONDS = 1.0
"""Logs are taken of at least a second."""


class Path(StrEnum):
    """How an interrupted job went on; severity rises."""

    CONTINUED = "continued"
    REPLICA_RESTARTED = "replica_restarted"
    RESTARTED_FROM_CHECKPOINT = "job_restarted_from_checkpoint"
    JOB_LOST = "job_lost"


SEVERE = frozenset({Path.RESTARTED_FROM_CHECKPOINT, Path.JOB_LOST})


@dataclass(frozen=True, eq=False)
class Interruptions:
    """Interruptions known at one look, since the clock's start.

    Parameters
    ----------
    unit, path : int arrays
    seconds : array
        To the recovery; of an open one, what it is taken for.
    is_open : bool array
    """

    unit: IntArray
    path: IntArray
    seconds: FloatArray
    is_open: BoolArray


@dataclass(frozen=True, eq=False)
class RelativeRecovery:
    """Log recovery relative to the path's median, minus the pooled mean, summed per unit.

    `slope` is the derivative of `total` in the log of the tested factor, with medians and limits
    held; `count` is the number of interruptions.
    """

    total: FloatArray
    slope: FloatArray
    count: IntArray


def relative_recovery(
    rows: Interruptions,
    *,
    is_canary: BoolArray,
    log_factor: float,
    stratum: IntArray | None = None,
) -> RelativeRecovery:
    """Divide the canaries' times by the tested factor, then limit, then take medians.

    Parameters
    ----------
    rows : Interruptions
        Seconds per interruption; an open one counts as long as it has lasted and is not rescaled.
    is_canary : (units,) bool array
    log_factor : float
        Natural log of the tested ratio of recovery times. If it is true, the rescaled table does
        not depend on the arms.
    stratum : (units,) int array, optional
        Codes from 0. What strata differ in, beyond chance, is taken out: jobs have their own ways
        to recover.

    Returns
    -------
    RelativeRecovery
        Per unit, in natural logs: the excess over the pooled mean (so that a sum over any set of
        units measures its excess over all), its slope in `log_factor`, and the interruptions.

    Notes
    -----
    Times are limited to 1 s and 8 h and compared with the pooled median of their path, so that a
    changed mix of paths does not show as a changed time.

    Examples
    --------
    >>> rows = Interruptions(np.array([0, 1]), np.array([0, 0]), np.array([150.0, 100.0]),
    ...                      np.array([False, False]))
    >>> got = relative_recovery(rows, is_canary=np.array([True, False]), log_factor=math.log(1.5))
    >>> got.total.round(9).tolist()
    [0.0, 0.0]
    """
    units = is_canary.size
    mine = is_canary[rows.unit]
    scaled = rows.seconds * np.where(mine & ~rows.is_open, math.exp(-log_factor), 1.0)
    limited = np.clip(scaled, LEAST_SECONDS, CAP_SECONDS)
    value = np.log(limited)
    for path in np.unique(rows.path):
        here = rows.path == path
        value[here] -= np.median(value[here])
    moves = mine & ~rows.is_open & (scaled > LEAST_SECONDS) & (scaled < CAP_SECONDS)
    slope = np.where(moves, -1.0, 0.0)
    if stratum is not None and value.size:
        value, slope = _without_strata(value, slope, code=stratum[rows.unit])
    return RelativeRecovery(
        total=_per_unit(_centred(value), rows.unit, units),
        slope=_per_unit(_centred(slope), rows.unit, units),
        count=np.bincount(rows.unit, minlength=units).astype(np.int64),
    )


def _centred(values: FloatArray) -> FloatArray:
    return values - float(values.mean()) if values.size else values


def _without_strata(
    value: FloatArray, slope: FloatArray, *, code: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Values less their stratum's mean, shrunk by how little of its excess is chance.

    A random intercept, its variance by moments from both arms together; the slope goes through
    the same weights, so that it stays the derivative.
    """
    size = np.bincount(code)
    whole = np.maximum(size, 1)
    value = _centred(value)
    mean = np.bincount(code, weights=value) / whole
    residual = float(((value - mean[code]) ** 2).sum())
    free = value.size - np.count_nonzero(size)
    if free <= 0 or residual <= 0:
        return value, slope
    within = residual / free
    between = max(float(np.mean(value**2)) - within, 0.0)
    weight = size * between / (size * between + within)
    mean_slope = np.bincount(code, weights=slope) / whole
    return value - (weight * mean)[code], slope - (weight * mean_slope)[code]


def _per_unit(values: FloatArray, unit: IntArray, units: int) -> FloatArray:
    return np.asarray(np.bincount(unit, weights=values, minlength=units), dtype=np.float64)


def per_root_count(totals: IntArray, counts: IntArray) -> IntArray:
    """Excess over the root of the number of interruptions, as if there were two more.

    Parameters
    ----------
    totals, counts : (paths,) int arrays
        Sums over canaries of the integer excess, and of the interruptions.

    Returns
    -------
    (paths,) int array
        Rounded; roots and quotients are those of IEEE 754, the same on every machine.

    Notes
    -----
    Re-assignments give the canaries few interruptions or many. A mean scatters most where there
    are few, and would let those set the threshold; over the root of the number all scatter alike.
    The two more keep a handful from standing out.

    Examples
    --------
    >>> per_root_count(np.array([900, 900]), np.array([2, 7])).tolist()
    [450, 300]
    """
    return np.asarray(np.rint(totals / np.sqrt(counts + 2.0)), dtype=np.int64)


def recovery_ratio(
    rows: Interruptions, *, is_canary: BoolArray, confidence_level: float = 0.95
) -> MeanRatio:
    """Ratio of geometric mean recovery times, each relative to its path's pooled median.

    Parameters
    ----------
    rows : Interruptions
    is_canary : (units,) bool array
    confidence_level : float
        Two-sided, in (0, 1), at one fixed look.

    Returns
    -------
    MeanRatio
        Canary over control, dimensionless, above 1 is slower. No estimate where an arm had no
        interruption, no interval where an arm has one unit or nothing varies.

    Notes
    -----
    Units, not interruptions, are independent; Welch-Satterthwaite degrees of freedom [1]_.

    References
    ----------
    .. [1] F. E. Satterthwaite, Biometrics Bulletin 2 (1946) 110-114.

    Examples
    --------
    >>> rows = Interruptions(np.arange(4), np.zeros(4, int), np.array([90.0, 90, 30, 30]),
    ...                      np.zeros(4, bool))
    >>> round(recovery_ratio(rows, is_canary=np.arange(4) < 2).estimate, 6)
    3.0
    """
    none = Interval(None, None, confidence_level)
    got = relative_recovery(rows, is_canary=is_canary, log_factor=0.0)
    difference, parts = 0.0, []
    for sign, arm in ((1.0, is_canary), (-1.0, ~is_canary)):
        number = int(got.count[arm].sum())
        if not number:
            return MeanRatio(None, none)
        mean = float(got.total[arm].sum()) / number
        residual = (got.total - mean * got.count)[arm & (got.count > 0)]
        clusters = residual.size
        if clusters > 1:
            spread = float(residual @ residual) / number**2 * clusters / (clusters - 1)
            parts.append((spread, clusters - 1))
        difference += sign * mean
    variance = sum(spread for spread, _ in parts)
    if len(parts) < 2 or variance == 0:
        return MeanRatio(math.exp(difference), none)
    freedom = variance**2 / sum(spread**2 / free for spread, free in parts)
    reach = float(student.isf((1 - confidence_level) / 2, freedom)) * math.sqrt(variance)
    limits = Interval(math.exp(difference - reach), math.exp(difference + reach), confidence_level)
    return MeanRatio(math.exp(difference), limits)
