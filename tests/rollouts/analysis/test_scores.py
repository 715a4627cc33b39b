import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.analysis.errors import InvalidSample
from rollouts.analysis.scores import Strata, adjusted, quantised

EVERYONE = np.ones(6, bool)


def test_scores_are_centred_within_their_stratum():
    strata = Strata.of(np.array([7, 7, 7, 2, 2, 2]))

    found = adjusted(np.array([3, 0, 0, 9, 9, 0]), strata=strata, where=EVERYONE)

    assert found.tolist() == [2, -1, -1, 3, 3, -6]


def test_units_without_a_score_stand_at_zero_and_do_not_move_the_mean():
    strata = Strata.of(np.zeros(6, int))
    where = np.array([True, True, False, True, True, False])

    found = adjusted(np.array([4, 0, 999, 0, 0, 999]), strata=strata, where=where)

    assert found.tolist() == [3, -1, 0, -1, -1, 0]


def test_a_covariate_that_explains_the_score_takes_it_out():
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    strata = Strata.of(np.zeros(6, int), covariate=x)

    found = adjusted((1000 * x).astype(int), strata=strata, where=EVERYONE)

    assert np.abs(found).max() <= 1  # rounding only


def test_an_unknown_covariate_leaves_the_unit_unadjusted():
    # Slope 1000 from the known units; the unknown one keeps its distance from the mean.
    x = np.array([-1.0, 1.0, np.nan, -1.0, 1.0, np.nan])
    strata = Strata.of(np.zeros(6, int), covariate=x)

    found = adjusted(np.array([-1000, 1000, 600, -1000, 1000, -600]), strata=strata, where=EVERYONE)

    assert found.tolist() == [0, 0, 600, 0, 0, -600]


def test_a_covariate_without_spread_is_ignored():
    strata = Strata.of(np.array([0, 0, 0, 1, 1, 1]), covariate=np.array([5.0, 5, 5, 9, 9, 9]))

    found = adjusted(np.array([3, 0, 0, 0, 0, 3]), strata=strata, where=EVERYONE)

    assert found.tolist() == [2, -1, -1, -1, -1, 2]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_not_finite_is_refused(value):
    with pytest.raises(InvalidSample, match="finite"):
        quantised(np.array([value]), per_unit=10)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-(10**6), 10**6), min_size=6, max_size=6),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
)
def test_equal_scores_of_one_stratum_stay_equal(values, codes):
    column, code = np.array(values), np.array(codes)

    found = adjusted(column, strata=Strata.of(code), where=EVERYONE)

    for i in range(6):
        for j in range(6):
            if code[i] == code[j]:
                assert found[i] - found[j] == column[i] - column[j]
