"""Tails and quantiles of counts are those of SciPy, or within one count."""

import numpy as np
import pytest
from scipy.stats import binom, poisson

from rollouts.analysis import tails

COUNTS = [(trials, share) for trials in (3, 40, 600, 90_000) for share in (1e-4, 0.03, 0.2, 0.6)]


@pytest.mark.parametrize(("trials", "share"), COUNTS)
def test_a_binomials_upper_count_is_the_librarys_or_off_by_one(trials: int, share: float):
    levels = np.array([0.4, 0.05, 0.003, 1e-5])

    found = tails.binomial_upper(levels, np.array([float(trials)]), share)

    exact = binom.isf(levels, trials, share)
    is_small = trials * share * (1 - share) < 12
    assert np.abs(found - exact).max() <= (0 if is_small else 1)


@pytest.mark.parametrize(("trials", "share"), COUNTS)
def test_a_binomials_tail_is_the_librarys(trials: int, share: float):
    counts = binom.isf(np.array([0.999, 0.5, 0.05, 0.001]), trials, share)

    found = tails.binomial_tail(counts, np.array([float(trials)]), share)

    assert found == pytest.approx(binom.sf(counts, trials, share), abs=2e-3)


@pytest.mark.parametrize("mean", [0.2, 5.0, 80.0, 20_000.0])
def test_a_poissons_quantile_is_the_librarys_or_off_by_one(mean: float):
    ranks = np.array([0.02, 0.5, 0.98])

    found = tails.poisson_quantile(ranks, np.array([mean]))

    assert np.abs(found - poisson.ppf(ranks, mean)).max() <= (0 if mean < 12 else 1)
