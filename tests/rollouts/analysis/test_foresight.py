import numpy as np
import pytest

from rollouts.analysis.foresight import foreseen_counts


def test_equal_machines_are_expected_to_be_equal():
    # Poisson counts of one mean: their spread is chance, so every machine is near the mean.
    counts = np.random.default_rng(1).poisson(2.0, 2000).astype(float)

    found = foreseen_counts(counts)

    assert abs(found - 2.0).mean() < 0.2 < abs(counts - 2.0).mean()
    assert found.mean() == pytest.approx(counts.mean(), rel=0.02)


def test_the_expectation_of_a_gamma_mixture_is_the_published_one():
    # Gamma of shape 2 and mean 2: the posterior mean of n is (2 + n) / 2 (Greenwood & Yule 1920).
    rng = np.random.default_rng(2)
    counts = rng.poisson(rng.gamma(2.0, 1.0, 20_000)).astype(float)

    found = foreseen_counts(counts)

    for n in range(6):
        assert found[counts == n][0] == pytest.approx((2 + n) / 2, abs=0.2)


def test_a_lemon_stays_a_lemon():
    counts = np.array([0.0] * 200 + [1.0] * 80 + [120.0])

    found = foreseen_counts(counts)

    assert found[-1] == pytest.approx(120.0, rel=0.1)
    assert found[0] < 0.5


def test_more_faults_never_foretell_fewer():
    counts = np.random.default_rng(3).negative_binomial(1, 0.2, 500).astype(float)

    found = foreseen_counts(counts)

    assert (np.diff(found[np.argsort(counts, kind="stable")]) >= -1e-12).all()


def test_an_unwatched_machine_is_expected_to_be_average():
    found = foreseen_counts(np.array([0.0, 4.0, np.nan]))

    assert found[0] < found[2] < found[1]


def test_without_a_watched_machine_all_are_alike():
    assert foreseen_counts(np.full(3, np.nan)).tolist() == [1.0, 1.0, 1.0]


def test_the_order_of_machines_does_not_matter():
    counts = np.array([0.0, 3.0, 1.0, 0.0, 50.0])
    order = np.array([4, 2, 0, 3, 1])

    assert foreseen_counts(counts[order]).tolist() == foreseen_counts(counts)[order].tolist()
