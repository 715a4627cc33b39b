"""The acceptance rules, on figures that can be checked by hand."""

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.statistics import (
    Share,
    error_checks,
    least_check,
    power_check,
    quantile_se,
    tally,
)


def test_a_cell_fails_only_beyond_chance_among_all_cells():
    # P(X >= 68 | 1000, .05) is .008: too little for one cell, more than .01 / 10 for ten.
    share = Share(68, 1000)
    assert 0.001 < binom.sf(67, 1000, 0.05) < 0.01

    alone = error_checks("halts", {"a": share})
    among_ten = error_checks("halts", {"a": share}, family=10)

    assert not alone[0].is_met
    assert among_ten[0].is_met


def test_many_cells_slightly_above_the_level_fail_together():
    cells = {str(k): Share(58, 1000) for k in range(10)}

    checks = error_checks("halts", cells)

    assert all(check.is_met for check in checks[:-1])
    assert not checks[-1].is_met


def test_a_cell_beyond_two_errors_is_marked_for_more_replications():
    marked, plain = error_checks("halts", {"a": Share(65, 1000), "b": Share(50, 1000)})[:2]

    assert "rerun" in marked.detail
    assert "rerun" not in plain.detail


def test_power_may_fall_short_of_the_prototype_by_two_errors_of_the_difference_only():
    enough = power_check("p", Share(335, 400), reference=0.88, reference_size=400)
    short = power_check("p", Share(320, 400), reference=0.88, reference_size=400)

    assert enough.is_met
    assert not short.is_met


def test_a_prototype_figure_of_all_waves_has_an_error_too():
    # 3 misses in 400 against none in 400 is chance (Fisher: p = .25); 12 are not.
    assert power_check("p", Share(397, 400), reference=1.0, reference_size=400).is_met
    assert not power_check("p", Share(388, 400), reference=1.0, reference_size=400).is_met


def test_a_stated_least_share_is_asked_for_within_two_errors():
    assert least_check("p", Share(97, 100), least=0.98).is_met
    assert not least_check("p", Share(94, 100), least=0.98).is_met


def test_a_wave_that_neither_halts_nor_widens_is_inconclusive():
    found = tally([3, None, None], [None, 36, None], [1.0, 2.0, 3.0], blind=0)

    assert (found.halted.hits, found.widened.hits, found.inconclusive.hits) == (1, 1, 1)
    assert found.excess == pytest.approx(2.0)
    assert (found.median_halt, found.median_widen) == (3.0, 36.0)


def test_a_median_has_the_error_of_its_order_statistics():
    # sqrt(n) / 2 places on either side of the middle, of values one apart.
    median, error = quantile_se(np.arange(400.0), 0.5)

    assert median == pytest.approx(199.5)
    assert error == pytest.approx(10.0, abs=1.0)
