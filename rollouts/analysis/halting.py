"""How likely the halting test on faults finds a harm, where the past tells units apart.

The test compares what each unit's own past did not foretell (`hazards.surprise_score`). Here the
same score is taken over everything that may happen, given the fleet's counts of the period before.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri, pdtr

from rollouts.analysis.foresight import intensities
from rollouts.analysis.hazards import MOST_SURPRISE
from rollouts.analysis.samples import FloatArray, IntArray

_EXACT_KINDS, _KIND_GROWTH = 12, 1.35
"""Counts of before up to which each is a kind of its own; larger ones are taken by ranges."""
_EXACT_COUNTS, _COUNT_GROWTH = 20, 1.12
_LOOKS, _POINTS, _REACH = 16, 321, 6.4
_DRIFTS = np.linspace(0.0, 12.0, 97)


@dataclass(frozen=True, eq=False)
class Foretold:
    """What counts of the period before foretell: kinds of units, and their likely intensities.

    `intensity` is in episodes per period, `posterior` (kinds by intensities) how likely each is
    for a unit of a kind.
    """

    share: FloatArray
    intensity: FloatArray
    posterior: FloatArray

    @classmethod
    def of(cls, counts: IntArray) -> "Foretold | None":
        """None where all counts are equal: the past tells no unit from another."""
        kind, share = _kinds(counts)
        if kind.size < 2:
            return None
        return cls(share, *intensities(kind, share))


def _kinds(counts: IntArray) -> tuple[FloatArray, FloatArray]:
    """Distinct counts and their shares; large counts by ranges, each at its mean."""
    values, units = np.unique(counts, return_counts=True)
    place = np.where(
        values <= _EXACT_KINDS,
        values,
        _EXACT_KINDS + 1 + np.log(np.maximum(values, 1) / _EXACT_KINDS) // math.log(_KIND_GROWTH),
    )
    _, group = np.unique(place, return_inverse=True)
    size = np.bincount(group, weights=units)
    return np.bincount(group, weights=values * units) / size, size / size.sum()


class _Moments(NamedTuple):
    """Mean of a score, and its central moments about a point: second to fourth."""

    mean: float
    second: float
    third: float
    fourth: float

    @classmethod
    def of(cls, raw: FloatArray, *, about: float) -> "_Moments":
        mean, square, cube, quartic = (float(moment) for moment in raw)
        return cls(
            mean,
            square - 2 * about * mean + about**2,
            cube - 3 * about * square + 3 * about**2 * mean - about**3,
            quartic - 4 * about * cube + 6 * about**2 * square - 4 * about**3 * mean + about**4,
        )

    def variance(self, *, about: float, slope: float) -> float:
        """Variance of `score + slope (score - about)^2`."""
        shift = self.mean - about
        covariance = self.third - shift * self.second
        spread = self.second - shift**2 + slope**2 * (self.fourth - self.second**2)
        return max(spread + 2 * slope * covariance, 0.0)


def surprise_halt_power(
    foretold: Foretold,
    *,
    n_canary: int,
    n_control: int,
    part: float,
    rate_ratio: float,
    level: float,
) -> float:
    """Chance that one look finds canaries that fail `rate_ratio` times as often.

    Parameters
    ----------
    foretold : Foretold
    n_canary, n_control : int
        At least one each.
    part : float
        Exposure of each unit, in periods before.
    rate_ratio, level : float
        Positive; and in (0, 1).

    Notes
    -----
    The threshold by a Cornish-Fisher expansion [1]_ with the skewness of the re-assigned sums, the
    excess over it as normal. Episodes are Poisson given a unit's intensity.

    References
    ----------
    .. [1] P. Hall, The Bootstrap and Edgeworth Expansion, Springer 1992, chapter 2.

    Examples
    --------
    >>> counts = np.repeat([0, 1, 2, 3, 30], [150, 100, 50, 16, 4])
    >>> power = surprise_halt_power(Foretold.of(counts), n_canary=64, n_control=256, part=0.5,
    ...                             rate_ratio=2.0, level=0.05)
    >>> 0.9 < power < 1
    True
    """
    units = n_canary + n_control
    share = n_canary / units
    expected = foretold.posterior @ foretold.intensity * part
    expected = expected * (1 + share * (rate_ratio - 1))  # both arms' total is what was seen
    raw = [_raw_moments(foretold, expected, part * ratio) for ratio in (rate_ratio, 1.0)]
    every = share * raw[0] + (1 - share) * raw[1]
    middle = float(every[0])
    pooled = _Moments.of(every, about=middle)
    if pooled.second <= 0:
        return 0.0
    canary, control = (_Moments.of(one, about=middle) for one in raw)
    weight = n_canary * n_control / units
    spread = math.sqrt(weight * pooled.second)
    skew = (1 - 2 * share) * pooled.third / pooled.second**1.5 / math.sqrt(weight)
    z = float(ndtri(1 - level))
    bound = z + skew * (z * z - 1) / 6 - skew * skew * (2 * z**3 - 5 * z) / 36
    # The threshold follows the spread that is seen: what adds to the sum raises it too.
    slope = bound * spread / (2 * units * pooled.second)
    error = math.sqrt(
        n_canary * (1 - share) ** 2 * canary.variance(about=middle, slope=-slope / (1 - share))
        + n_control * share**2 * control.variance(about=middle, slope=slope / share)
    )
    shift = weight * (canary.mean - control.mean)
    if error <= 0:
        return float(shift > bound * spread)
    return float(ndtr((shift - bound * spread) / error))


def _raw_moments(foretold: Foretold, expected: FloatArray, part: float) -> FloatArray:
    """First four raw moments of the score of one unit, over its kind and its count."""
    root = np.sqrt(expected + 1)
    last = _count_cells((1 + float(root.max())) ** 2)
    inside = np.diff(pdtr(last, foretold.intensity[:, None] * part), axis=1, prepend=0.0)
    chance = foretold.posterior @ inside
    middle = (last + np.concatenate([[0.0], last[:-1] + 1])) / 2
    score = np.minimum(np.sqrt(middle + 1) - root[:, None], MOST_SURPRISE)
    weight = foretold.share[:, None] * chance
    beyond = 1 - float(weight.sum())  # more than that: the score is at its limit
    found = []
    for power in range(1, 5):
        weight = weight * score
        found.append(float(weight.sum()) + beyond * MOST_SURPRISE**power)
    return np.array(found)


def _count_cells(top: float) -> FloatArray:
    """Last counts of cells: single counts at first, then ranges that grow."""
    cells = list(range(_EXACT_COUNTS + 1))
    while cells[-1] < top:
        cells.append(max(cells[-1] + 1, int(cells[-1] * _COUNT_GROWTH)))
    return np.array(cells, dtype=np.float64)


def in_sequence(power: float, *, level: float) -> float:
    """Chance to find at any look, up to the last, what one look at the end finds with `power`.

    The level is spent as `level f^.75` over the looks, which costs some of the last one's power.

    Notes
    -----
    For a Brownian motion with drift: densities of paths that have not crossed are carried from look
    to look under no drift, and weighed by their likelihood ratio.

    Examples
    --------
    >>> round(in_sequence(0.05, level=0.05), 3), 0.7 < in_sequence(0.8, level=0.05) < 0.8
    (0.05, True)
    """
    drift = float(ndtri(min(max(power, 1e-12), 1 - 1e-12)) + ndtri(1 - level))
    return float(np.interp(drift, _DRIFTS, _crossing_chances(level)))


@lru_cache(maxsize=1024)
def _crossing_chances(level: float) -> FloatArray:
    """Chance to cross at any look, for each of `_DRIFTS`."""
    points = np.linspace(-_REACH, _REACH, _POINTS)
    width, step = points[1] - points[0], 1 / _LOOKS
    kernel = np.exp(-((points[:, None] - points) ** 2) / (2 * step))
    kernel *= width / math.sqrt(2 * math.pi * step)
    density = np.exp(-(points**2) / (2 * step)) / math.sqrt(2 * math.pi * step)
    found = np.zeros(_DRIFTS.size)
    spent = 0.0
    for look in range(1, _LOOKS + 1):
        time = look * step
        mass = density * width
        above = np.cumsum(mass[::-1])[::-1]
        spend = level * time**0.75 - spent
        share = np.clip((spend - np.append(above[1:], 0.0)) / np.maximum(mass, 1e-300), 0.0, 1.0)
        found += np.exp(np.outer(_DRIFTS, points) - _DRIFTS[:, None] ** 2 * time / 2) @ (
            share * mass
        )
        spent += spend
        density = kernel @ (density * (1 - share))
    return np.clip(found, 0.0, 1.0)
