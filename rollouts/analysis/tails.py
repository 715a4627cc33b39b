"""Tails and quantiles of counts: exact where small, expanded about the normal where large.

A plan for a hundred thousand machines asks for tens of thousands of them.
"""

import math

import numpy as np
from scipy.special import betainc, ndtr, ndtri
from scipy.stats import binom, poisson

from rollouts.analysis.samples import FloatArray

_LARGE = 12.0
"""Variance of a count from which an expansion about the normal serves; below it is exact."""


def binomial_upper(level: FloatArray, trials: FloatArray, share: FloatArray | float) -> FloatArray:
    """Smallest count that a binomial exceeds with a chance of at most `level`.

    Exact for small counts, a Cornish-Fisher expansion for large ones, within one count.

    Examples
    --------
    >>> binomial_upper(np.array([0.05]), np.array([20.0]), 0.5)
    array([14.])
    """
    level, trials, share = np.broadcast_arrays(level, trials, share)
    spread = np.sqrt(trials * share * (1 - share))
    is_large = (spread**2 > _LARGE) & (level > 0) & (level < 1)
    z = ndtri(1 - np.where(is_large, level, 0.5))
    skew = np.where(is_large, (1 - 2 * share) / np.where(is_large, spread, 1.0), 0.0)
    curve = z + skew * (z * z - 1) / 6 - skew * skew * (2 * z**3 - 5 * z) / 36
    found = np.clip(np.ceil(trials * share + spread * curve - 0.5), 0.0, trials)
    if not is_large.all():
        small = ~is_large
        found[small] = _exact_upper(level[small], trials[small], share[small])
    return np.asarray(found, dtype=np.float64)


def _exact_upper(level: FloatArray, trials: FloatArray, share: FloatArray) -> FloatArray:
    """Look near a normal guess first: the library's own search costs ten times as much."""
    spread = np.sqrt(trials * share * (1 - share))
    z = ndtri(1 - np.clip(level, 1e-12, 1 - 1e-12))
    guess = np.clip(np.rint(trials * share + spread * z + (z * z - 1) / 6), 0.0, trials)
    near = guess + np.arange(-2.0, 3.0)[:, None]
    tails = _exact_tail(near, trials, share)
    is_it = (tails[1:] <= level) & (tails[:-1] > level)
    found = np.where(is_it.any(axis=0), near[1:][is_it.argmax(axis=0), np.arange(guess.size)], -1.0)
    missed = found < 0
    if missed.any():
        found[missed] = binom.isf(level[missed], trials[missed], share[missed])
    return found


def _exact_tail(count: FloatArray, trials: FloatArray, share: FloatArray) -> FloatArray:
    """Chance of more than `count`, as the incomplete beta function has it."""
    inside = betainc(np.maximum(count + 1, 1.0), np.maximum(trials - count, 1.0), share)
    return np.asarray(np.where(count < 0, 1.0, np.where(count >= trials, 0.0, inside)))


def binomial_tail(count: FloatArray, trials: FloatArray, share: FloatArray | float) -> FloatArray:
    """Chance of more than `count`: exact for small counts, an Edgeworth expansion for large.

    Examples
    --------
    >>> binomial_tail(np.array([14.0]), np.array([20.0]), 0.5).round(4)
    array([0.0207])
    """
    count, trials, share = np.broadcast_arrays(count, trials, share)
    spread = np.sqrt(trials * share * (1 - share))
    is_large = spread**2 > _LARGE
    scale = np.where(is_large, spread, 1.0)
    z = (count + 0.5 - trials * share) / scale
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    found = ndtr(-z) + density * (1 - 2 * share) / scale * (z * z - 1) / 6
    if not is_large.all():
        small = ~is_large
        found[small] = _exact_tail(count[small], trials[small], share[small])
    return np.asarray(np.clip(found, 0.0, 1.0), dtype=np.float64)


def poisson_quantile(rank: FloatArray, mean: FloatArray) -> FloatArray:
    """Smallest count that a Poisson variable does not exceed with a chance of `rank`.

    Examples
    --------
    >>> poisson_quantile(np.array([0.5]), np.array([3.0]))
    array([3.])
    """
    rank, mean = np.broadcast_arrays(rank, mean)
    is_large = mean > _LARGE
    root, z = np.sqrt(mean), ndtri(rank)
    found = np.ceil(mean + root * z + (z * z - 1) / 6 - 0.5)
    if not is_large.all():
        found[~is_large] = poisson.ppf(rank[~is_large], mean[~is_large])
    return np.asarray(found, dtype=np.float64)
