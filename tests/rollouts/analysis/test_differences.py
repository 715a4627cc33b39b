import math

import numpy as np
import pytest

from rollouts.analysis.differences import Outcomes, difference_of
from rollouts.analysis.scores import Strata


def outcomes(total, occasions, *, canaries, strata=None) -> Outcomes:
    n = len(total)
    return Outcomes(
        np.array(total, float),
        np.array(occasions, int),
        np.arange(n) < canaries,
        Strata.of(np.zeros(n, int) if strata is None else np.array(strata)),
    )


def test_the_difference_and_its_clustered_error_by_hand():
    # Canaries 3 of 4 and 1 of 4: residuals +1, -1 over 8, times 2: 1/16. Controls: none.
    found = difference_of(outcomes([3, 1, 1, 1], [4] * 4, canaries=2))

    assert (found.estimate, found.error) == (0.25, 0.25)


def test_the_error_is_at_least_the_binomial_one_of_the_margin():
    # Nothing severe anywhere, 10 occasions per arm: .15 * .85 / 10 under the margin.
    found = difference_of(outcomes([0] * 4, [5] * 4, canaries=2))

    assert found.error == 0
    assert found.margin_error(0.15) == pytest.approx(math.sqrt(0.15 * 0.85 / 10))
    assert found.under_margin(0.15) == (0.0, pytest.approx(math.sqrt(0.15 * 0.85 / 10)))


def test_too_few_occasions_prove_nothing():
    assert difference_of(outcomes([0, 0], [4, 100], canaries=1)).under_margin(0.15) is None


def test_strata_without_both_arms_do_not_count():
    found = difference_of(outcomes([2, 0, 9], [4, 4, 9], canaries=1, strata=[0, 0, 1]))

    assert found.estimate == 0.5


def test_no_stratum_with_both_arms_has_no_difference():
    assert difference_of(outcomes([1, 0], [1, 1], canaries=1, strata=[0, 1])) is None
    assert difference_of(outcomes([0, 0], [0, 0], canaries=1)) is None
