"""What a unit's count of the period before foretells, learned from all units' counts together.

Machines differ in how often they fail, some by a factor of fifty. A count of the past says which
is which, but not exactly: who failed most will fail less, who did not fail at all may yet. How
much less and more is what the spread of all counts tells.
"""

import numpy as np

from rollouts.analysis.samples import FloatArray

GRID_POINTS = 40
LEAST_INTENSITY = 0.05
"""Expected count below which units are not told apart, beyond those that never fail."""
STEPS = 60
"""Of the mixture's iteration; stopped early on purpose, which smooths it."""


def foreseen_counts(before: FloatArray) -> FloatArray:
    """Expected count of every unit in another period like the one before.

    Parameters
    ----------
    before : (units,) array
        Counts of the period before; NaN where a unit was not watched.

    Returns
    -------
    (units,) array
        Not negative. An unwatched unit is expected to be like the average one; without any
        watched unit all are 1.

    Notes
    -----
    Counts are taken as Poisson given a unit's intensity; the distribution of intensities is the
    maximum-likelihood mixture over a fixed grid [1]_, found by `STEPS` rounds of expectation
    maximisation [2]_, and the result its posterior mean. Knows nothing of arms.

    References
    ----------
    .. [1] J. Kiefer, J. Wolfowitz, Ann. Math. Stat. 27 (1956) 887-906.
    .. [2] N. Laird, J. Am. Stat. Assoc. 73 (1978) 805-811.

    Examples
    --------
    >>> counts = np.array([0.0] * 60 + [1.0] * 30 + [2.0] * 8 + [40.0, 60.0])
    >>> foreseen_counts(counts)[[0, 99]].round(1).tolist()
    [0.4, 60.7]
    """
    known = np.isfinite(before)
    if not known.any():
        return np.ones(before.size)
    distinct, place = np.unique(np.maximum(before[known], 0.0), return_inverse=True)
    share = np.bincount(place) / place.size
    grid, posterior = intensities(distinct, share)
    expected = np.full(before.size, float(share @ posterior @ grid))
    expected[known] = (posterior @ grid)[place]
    return expected


def intensities(counts: FloatArray, share: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Grid of intensities, and how likely each is for a unit of each distinct count.

    Parameters
    ----------
    counts, share : (kinds,) arrays
        Distinct counts and the share of the units that have them.

    Returns
    -------
    (points,) array, (kinds, points) array

    Examples
    --------
    >>> grid, posterior = intensities(np.array([0.0, 4.0]), np.array([0.5, 0.5]))
    >>> (posterior @ grid).round(1).tolist()
    [0.1, 3.9]
    """
    highest = max(2.0, 1.5 * float(counts.max()))
    grid = np.concatenate([[0.0], np.geomspace(LEAST_INTENSITY, highest, GRID_POINTS)])
    logs = counts[:, None] * np.log(np.maximum(grid, np.finfo(float).tiny)) - grid
    likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))
    mixture = np.full(grid.size, 1 / grid.size)
    for _ in range(STEPS):
        posterior = likelihood * mixture
        posterior /= posterior.sum(axis=1, keepdims=True)
        mixture = share @ posterior
    return grid, np.asarray(posterior, dtype=np.float64)
