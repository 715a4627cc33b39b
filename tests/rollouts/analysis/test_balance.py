"""The check of the draw on the period before."""

import math
from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binom

from rollouts.analysis.balance import (
    Balance,
    balance_of,
    can_break,
    integer_scores,
    least_resamples,
)
from rollouts.analysis.errors import InvalidSample
from rollouts.analysis.labels import Design


def design_of(canaries: int, controls: int) -> Design:
    units = np.arange(canaries + controls)
    return Design(stratum=np.zeros(units.size, dtype=np.int64), is_canary=units < canaries)


def balance_before(
    figures: Mapping[str, np.ndarray], *, design: Design, seed: int, resamples: int
) -> Balance:
    scores = integer_scores(figures, stratum=design.stratum)
    return balance_of(scores, design=design, seed=seed, resamples=resamples)


def test_the_p_value_counts_assignments_in_both_directions():
    # 2 of 6 canaries with the two largest figures: one of 15 assignments at least as large,
    # and as many in the other direction.
    figures = {"faults": np.array([9.0, 8.0, 1.0, 2.0, 3.0, 4.0])}

    found = balance_before(figures, design=design_of(2, 4), seed=1, resamples=99)

    assert found.p_values["faults"] == pytest.approx(2 / 15)


def test_canaries_chosen_for_their_past_are_found_out():
    rng = np.random.default_rng(3)
    faults = np.sort(rng.poisson(0.5, 200).astype(float))  # the quiet ones first: canaries

    found = balance_before({"faults": faults}, design=design_of(40, 160), seed=1, resamples=9_999)

    assert found.is_broken
    assert found.worst == "faults"


def test_a_drawn_assignment_is_never_broken_more_often_than_its_level():
    # All 84 assignments of 3 of 9: at most one in ten has p <= .1.
    rng = np.random.default_rng(4)
    figures = {"throughput": rng.standard_t(2, 9)}
    found = []
    for canaries in combinations(range(9), 3):
        design = Design(np.zeros(9, dtype=np.int64), np.isin(np.arange(9), canaries))
        found.append(balance_before(figures, design=design, seed=1, resamples=99).p)

    assert len(found) == math.comb(9, 3)
    assert 0 < np.mean(np.array(found) <= 0.1) <= 0.1


def test_a_stratum_that_differs_is_no_imbalance():
    stratum = np.repeat([0, 1], 100)
    is_canary = np.tile(np.arange(100) < 20, 2)
    rng = np.random.default_rng(5)
    figures = {"faults": rng.poisson(0.2, 200) + 100.0 * stratum}

    found = balance_before(figures, design=Design(stratum, is_canary), seed=1, resamples=999)

    assert not found.is_broken


def test_unknown_figures_stand_at_the_mean():
    figures = {"throughput": np.r_[np.full(20, np.nan), np.ones(80)]}

    found = balance_before(figures, design=design_of(20, 80), seed=1, resamples=999)

    assert found.p == 1.0


def test_many_metrics_are_corrected_for():
    assert Balance({"a": 0.0004, "b": 0.9}).is_broken
    assert not Balance({"a": 0.0004, "b": 0.9, "c": 0.9}).is_broken


@pytest.mark.parametrize("metrics", [1, 12, 40])
def test_a_broken_draw_is_found_whatever_the_number_of_metrics(metrics):
    quiet_first = np.repeat([0.0, 1.0], [40, 160])
    rng = np.random.default_rng(8)
    figures = {f"family {k}": rng.permutation(quiet_first) for k in range(metrics - 1)}

    found = balance_before(
        figures | {"chosen by": quiet_first},
        design=design_of(40, 160),
        seed=1,
        resamples=least_resamples(metrics),
    )

    assert found.is_broken
    assert found.worst == "chosen by"


def test_a_design_with_few_assignments_cannot_show_a_broken_draw():
    assert not can_break(2, design=design_of(4, 12))  # 1,820 assignments: p is 4 / 1,820 at least
    assert can_break(2, design=design_of(6, 14))  # 38,760

    found = balance_before(
        {"faults": np.repeat([9.0, 0.0], [4, 12]), "throughput": np.arange(16.0)},
        design=design_of(4, 12),
        seed=1,
        resamples=99,
    )
    assert not found.is_broken


def test_nothing_known_is_nothing_broken():
    found = balance_before({}, design=design_of(4, 16), seed=1, resamples=99)

    assert (found.p, found.worst, found.is_broken) == (1.0, "", False)


def test_infinite_figures_are_refused():
    with pytest.raises(InvalidSample):
        balance_before(
            {"throughput": np.r_[np.inf, np.ones(9)]}, design=design_of(2, 8), seed=1, resamples=9
        )


@pytest.mark.statistical
def test_sound_draws_of_a_heavy_tailed_fleet_reach_small_p_values_as_often_as_they_say():
    rng = np.random.default_rng(20261130)
    draws, level, small = 400, 0.05, 0
    for draw in range(draws):
        lemons = np.where(rng.random(100) < 0.05, 30.0, 1.0)
        faults = rng.poisson(0.3 * rng.gamma(2, 0.5, 100) * lemons).astype(float)
        is_canary = np.zeros(100, dtype=bool)
        is_canary[rng.permutation(100)[:20]] = True
        design = Design(np.zeros(100, dtype=np.int64), is_canary)
        found = balance_before({"faults": faults}, design=design, seed=draw, resamples=499)
        small += found.p <= level

    assert binom.sf(small - 1, draws, level) > 0.01
