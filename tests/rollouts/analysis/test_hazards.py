import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rollouts.analysis.hazards import (
    FaultTable,
    Thinning,
    Totals,
    halt_score,
    jump_z,
    matched_exposure,
    rate_ratio,
    ratio_limits,
    surprise_score,
    thinning_z,
)
from rollouts.analysis.scores import UNITS_PER_FAULT_SCORE, Strata

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())


def totals_z(table, *, ratio):
    totals = Totals.of(table)
    return None if totals is None else totals.z(ratio)


def table(canary, control, *, days=1.0, strata=None) -> FaultTable:
    episodes = np.array([*canary, *control], int)
    n = episodes.size
    return FaultTable(
        episodes=episodes,
        days=np.broadcast_to(np.asarray(days, float), (n,)).copy(),
        is_canary=np.arange(n) < len(canary),
        strata=Strata.of(np.zeros(n, int) if strata is None else np.array(strata)),
    )


def padded(counts, n):
    return [*counts, *[0] * (n - len(counts))]


# --- the halt score ------------------------------------------------------------------------


def score(spells, days, *, tolerance=1.0, canaries=1, strata=None):
    n = len(spells)
    return halt_score(
        np.array(spells),
        np.array(days, float),
        is_canary=np.arange(n) < canaries,
        where=np.ones(n, bool),
        strata=Strata.of(np.zeros(n, int) if strata is None else np.array(strata)),
        tolerance=tolerance,
    )


def test_the_halt_score_is_the_logarithm_less_what_the_pooled_level_expects():
    # log(1 + 3) = 2 log 2 in 6 days: a third of log 2 per day.
    found = score([3, 0, 0], [2.0, 1.0, 3.0])

    expected = np.array([4, -1, -3]) / 3 * math.log(2) * UNITS_PER_FAULT_SCORE
    np.testing.assert_allclose(found, expected, atol=1)


def test_a_machine_that_goes_on_failing_counts_for_three_spells_and_no_more():
    assert score([9, 0, 0], [1.0] * 3).tolist() == score([3, 0, 0], [1.0] * 3).tolist()


def test_a_long_window_goes_on_telling_one_spell_a_day():
    # Of 20 bad spells in 7 days 7 count: log(1 + 7) = 3 log 2, less a third of it each.
    found = score([20, 0, 0], [7.0] * 3)

    expected = np.array([2.0, -1.0, -1.0]) * math.log(2) * UNITS_PER_FAULT_SCORE
    np.testing.assert_allclose(found, expected, atol=1)


def test_with_equal_exposure_scores_tie_as_the_counts_do():
    found = score([2, 1, 1, 0, 0, 0, 0], [1 / 3] * 7)

    assert np.unique(found).size == 3
    assert found[1] == found[2]
    assert len(set(found[3:].tolist())) == 1


def test_levels_are_pooled_within_strata_only():
    found = score([3, 0, 0, 0], [1.0] * 4, strata=[0, 0, 1, 1])

    expected = np.array([1.0, -1.0, 0.0, 0.0]) * math.log(2) * UNITS_PER_FAULT_SCORE
    np.testing.assert_allclose(found, expected, atol=1)


def test_a_tolerated_ratio_is_taken_out_of_the_canaries():
    # Two canary episodes at a tolerated ratio of 2 weigh as one of a control.
    found = score([2, 1], [1.0, 1.0], tolerance=2.0)

    assert found.tolist() == [0, 0]


# --- the score by what was foreseen ---------------------------------------------------------


def surprise(episodes, foreseen, *, days=1.0, tolerance=1.0, where=None):
    n = len(episodes)
    found = surprise_score(
        np.array(episodes),
        np.broadcast_to(np.asarray(days, float), (n,)).copy(),
        foreseen=np.array(foreseen, float),
        is_canary=np.arange(n) < 1,
        where=np.ones(n, bool) if where is None else np.array(where),
        strata=Strata.of(np.zeros(n, int)),
        tolerance=tolerance,
    )
    return found / UNITS_PER_FAULT_SCORE


def test_a_machine_that_fails_as_often_as_it_used_to_is_no_news():
    # Both had what their past foretold; only proportions of it count.
    assert surprise([24, 3], [8.0, 1.0]).tolist() == [0.0, 0.0]


def test_surprise_by_hand():
    # 8 episodes where 4 and 4 were foreseen: 3 - sqrt 5 is below the limit, 1 - sqrt 5 the rest.
    assert surprise([8, 0], [1.0, 1.0]) == pytest.approx([1.0, -1.0], abs=1e-5)


def test_what_is_foreseen_grows_with_the_days_in_service():
    assert surprise([3, 1], [1.0, 1.0], days=[3.0, 1.0]).tolist() == [0.0, 0.0]


def test_one_machine_that_turns_bad_is_one_finding():
    some, many = surprise([15, 0, 0], [1.0] * 3), surprise([1500, 0, 0], [1.0] * 3)

    # The limit binds both: only what the others lack differs.
    others = many[1] - some[1]
    assert some[0] - some[1] == pytest.approx(1 + math.sqrt(6) - 1, abs=1e-5)
    assert many[0] - many[1] == pytest.approx(1 + math.sqrt(501) - 1, abs=1e-5)
    assert others < 0


def test_a_tolerated_ratio_is_taken_out_of_the_surprise_too():
    assert surprise([4, 2], [1.0, 1.0], tolerance=2.0).tolist() == [0.0, 0.0]


def test_absent_units_are_neither_seen_nor_foreseen():
    assert surprise([2, 2, 99], [1.0, 1.0, 5.0], where=[True, True, False]).tolist() == [0.0] * 3


def test_nothing_foreseen_leaves_the_bare_counts():
    assert surprise([1, 0], [0.0, 0.0]) == pytest.approx(
        [(math.sqrt(2) - 1) / 2, (1 - math.sqrt(2)) / 2], abs=1e-5
    )


# --- thinning ------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["ni_thinning_matched_score"], ids=lambda v: v["q"])
def test_the_thinning_score_meets_the_published_vectors(vector):
    # Equal exposures, one stratum; q is the share to which controls are thinned.
    found = Thinning.of(
        table(
            padded(vector["canary_nonzero_counts"], vector["n_canary"]),
            padded(vector["control_nonzero_counts"], vector["n_control"]),
        )
    )

    z = replace(found, share=found.share * float(vector["q"])).z(vector["M"])

    assert z == pytest.approx(vector["z"], rel=1e-12)


def test_thinning_by_hand():
    # Exposures equal, so a = 1. Controls f: 1 0 0 0; canaries g = 1 - (1 - 1/2)^N: 1/2 0.
    # Means 1/4, 1/4: z = 0 whatever the spread.
    assert thinning_z(table([1, 0], [1, 0, 0, 0]), ratio=2.0) == pytest.approx(0)


def test_few_canaries_without_a_fault_prove_nothing():
    # The canaries' own variance is 0; the floor is the controls' over M.
    # f: 1 of 4 -> variance 1/4; z = -1/4 / sqrt(1/4/(2*2) + 1/4/4) = -1/4 / sqrt(1/8).
    z = thinning_z(table([0, 0], [1, 0, 0, 0]), ratio=2.0)

    assert z == pytest.approx(-0.25 / math.sqrt(0.125))


def test_both_arms_are_thinned_to_one_exposure():
    # Twice the exposure with twice the faults is the same rate: M = 1 cannot be told apart.
    many = table([1] * 50 + [0] * 50, ([2] * 25 + [0] * 25) * 4, days=[1.0] * 100 + [2.0] * 200)

    assert matched_exposure(many.days, is_canary=many.is_canary) == 1.0
    # f = 1 - (1 - 1/2)^2 = 3/4 on half of the controls, g = 1 on half of the canaries.
    assert thinning_z(many, ratio=1.0) == pytest.approx(
        0.125 / math.sqrt(25 / 99 / 100 + (50 * 0.75**2 * 2 - 200 * 0.375**2) / 199 / 200)
    )


def test_units_without_exposure_are_left_out():
    plain = table([1, 0, 0], [1, 1, 0, 0])
    padded_table = table([1, 0, 0], [1, 1, 0, 0, 5], days=[1.0] * 7 + [0.0])

    assert thinning_z(padded_table, ratio=2.0) == thinning_z(plain, ratio=2.0)


def test_without_a_control_episode_there_is_no_score():
    assert thinning_z(table([1, 0], [0, 0, 0]), ratio=2.0) is None
    assert totals_z(table([1, 0], [0, 0, 0]), ratio=2.0) is None


def test_a_stratum_needs_a_canary_and_two_controls():
    assert thinning_z(table([0], [1]), ratio=2.0) is None
    assert thinning_z(table([0, 0], [1, 1], strata=[0, 0, 1, 1]), ratio=2.0) is None


def test_strata_are_weighted_by_their_information():
    # A second stratum without controls changes nothing.
    one = thinning_z(table([1, 0], [1, 0, 1]), ratio=2.0)
    two = thinning_z(table([1, 0, 9], [1, 0, 1], strata=[0, 0, 1, 0, 0, 0]), ratio=2.0)

    assert one == pytest.approx(two)


@pytest.mark.parametrize("model", [Thinning, Totals])
def test_z_falls_as_the_tested_ratio_rises(model):
    found = model.of(table([1, 2, 0, 0, 1] * 8, [1, 0, 2, 0, 1, 0, 0, 3] * 20))

    z = [found.z(ratio) for ratio in np.geomspace(0.05, 50, 60)]

    assert all(a > b for a, b in pairwise(z))


def test_the_unit_of_exposure_never_changes_a_score():
    days, hours = (
        table([1, 2, 0, 0], [1, 0, 2, 0, 1], days=np.arange(1, 10) * scale) for scale in (1, 24)
    )

    assert thinning_z(days, ratio=2.0) == pytest.approx(thinning_z(hours, ratio=2.0))
    assert totals_z(days, ratio=2.0) == pytest.approx(totals_z(hours, ratio=2.0))


# --- totals --------------------------------------------------------------------------------


def test_totals_by_hand():
    # 10 controls, 5 faults in 10 days: r = 1/2. 4 canaries, 1 fault in 4 days; M = 2 expects 4.
    # Canary spread: 4 * var(1,0,0,0) = 1, the floor 4 is larger. Control: (2*4/10)^2 * 10/4.
    z = totals_z(table([1, 0, 0, 0], [1] * 5 + [0] * 5), ratio=2.0)

    assert z == pytest.approx((1 - 4) / math.sqrt(4 + 0.64 * 2.5))


def test_totals_stand_removal_at_the_fault():
    # Rate 1 per day, out of service at the first fault: exposure ends there. Both arms alike,
    # one watched twice as long. Totals see one rate.
    rng = np.random.default_rng(5)
    life = rng.exponential(1.0, 4000)
    watch = np.where(np.arange(4000) < 1000, 0.5, 1.0)
    days, episodes = np.minimum(life, watch), (life < watch).astype(int)
    found = FaultTable(episodes, days, np.arange(4000) < 1000, Strata.of(np.zeros(4000, int)))

    assert abs(totals_z(found, ratio=1.0)) < 2.5


# --- limits --------------------------------------------------------------------------------


def test_limits_are_where_z_meets_its_bounds():
    found = Totals.of(table([1] * 30 + [0] * 70, [1] * 60 + [0] * 140))

    low, high = ratio_limits(found.z, lower_bound=2.0, upper_bound=1.6)

    assert found.z(low) == pytest.approx(2.0, abs=1e-5)
    assert found.z(high) == pytest.approx(-1.6, abs=1e-5)
    assert low < 1.0 < high


def test_an_infinite_bound_gives_no_lower_limit():
    found = Totals.of(table([1] * 30 + [0] * 70, [1] * 60 + [0] * 140))

    assert ratio_limits(found.z, lower_bound=math.inf, upper_bound=1.6)[0] == 0


def test_too_few_controls_give_no_upper_limit():
    # One control fault: the control's own rate is too uncertain for any ratio to be rejected.
    found = Totals.of(table([0] * 50, [1] + [0] * 50))

    assert ratio_limits(found.z, lower_bound=2.0, upper_bound=2.0)[1] == math.inf


# --- against the period before ---------------------------------------------------------------


def test_a_jump_by_hand():
    # 12 against 5 in equal exposure; residuals -1 1 0 0 minus -1/4 3/4 -1/4 -1/4.
    z = jump_z(
        np.array([2, 4, 3, 3]),
        np.ones(4),
        episodes_before=np.array([1, 2, 1, 1]),
        days_before=np.ones(4),
    )

    assert z == pytest.approx(7 / math.sqrt(0.75))


@pytest.mark.parametrize(("now", "before"), [(4, 9), (9, 4)])
def test_fewer_than_five_episodes_are_no_jump(now, before):
    def counts(total):
        return np.array([total, 0])

    days = np.ones(2)

    assert jump_z(counts(now), days, episodes_before=counts(before), days_before=days) is None


# --- one fixed look ------------------------------------------------------------------------


def test_the_clustered_ratio_by_hand():
    # Canaries 3 3: residuals 0. Controls 1 0 1 1, r = 3/4: sum of squares 3/4, over 9, times
    # 6/4 (HC1): 1/8. exp(1.96 * sqrt(1/8)) = 2.
    found = rate_ratio(table([3, 3], [1, 0, 1, 1]))

    assert found.estimate == pytest.approx(4.0)
    assert found.interval.low == pytest.approx(4.0 / math.exp(1.959964 * math.sqrt(1 / 8)))
    assert found.interval.high == pytest.approx(4.0 * math.exp(1.959964 * math.sqrt(1 / 8)))


def poisson_regression(found: FaultTable) -> tuple[float, float]:
    """Log rate ratio and HC1 standard error of a Poisson regression, by Newton's method."""
    design = np.stack([np.ones(found.days.size), found.is_canary.astype(float)], axis=1)
    beta = np.zeros(2)
    for _ in range(50):
        mean = found.days * np.exp(design @ beta)
        bread = np.linalg.inv(design.T @ (design * mean[:, None]))
        beta += bread @ design.T @ (found.episodes - mean)
    meat = design * (found.episodes - mean)[:, None]
    sandwich = bread @ meat.T @ meat @ bread * found.days.size / (found.days.size - 2)
    return float(beta[1]), float(np.sqrt(sandwich[1, 1]))


def test_the_clustered_ratio_meets_a_robust_poisson_regression():
    rng = np.random.default_rng(11)
    days = rng.uniform(0.5, 4.0, 200)
    episodes = rng.poisson(days * rng.gamma(0.7, 1.0, 200))
    made = FaultTable(episodes, days, np.arange(200) < 60, Strata.of(np.zeros(200, int)))

    found = rate_ratio(made)

    log_ratio, error = poisson_regression(made)
    assert math.log(found.estimate) == pytest.approx(log_ratio, rel=1e-8)
    reach = math.log(found.interval.high / found.estimate) / 1.959963984540054
    assert reach == pytest.approx(error, rel=1e-8)


def test_bursts_on_one_machine_widen_the_interval():
    spread = rate_ratio(table([1] * 20, [1] * 40 + [0] * 40)).interval
    lumped = rate_ratio(table([20] + [0] * 19, [1] * 40 + [0] * 40)).interval

    assert lumped.high / lumped.low > 3 * spread.high / spread.low


def test_no_control_episode_gives_the_exact_lower_limit_and_no_estimate():
    # Field case S02: 6 canary faults and none in as many hours.
    found = rate_ratio(table([1] * 6, [0] * 6, days=20.0))

    assert found.estimate is None
    assert found.interval.low == pytest.approx(1.177, abs=5e-4)
    assert found.interval.high is None


def test_five_canary_faults_against_none_do_not_exclude_one():
    assert rate_ratio(table([1] * 5 + [0], [0] * 6)).interval.low == pytest.approx(0.916, abs=5e-4)


def test_no_episode_at_all_leaves_everything_open():
    found = rate_ratio(table([0, 0], [0, 0]))

    assert (found.estimate, found.interval.low, found.interval.high) == (None, 0.0, None)


def test_no_exposure_gives_no_number():
    found = rate_ratio(table([0], [1], days=[0.0, 1.0]))

    assert (found.estimate, found.interval.low, found.interval.high) == (None, None, None)


def test_strata_with_different_rates_do_not_bias_the_ratio():
    # Rates 1 and 10 in the strata, equal in the arms, but the canaries sit in the second.
    calm, wild = [1] * 40, [10] * 10
    found = rate_ratio(
        table([1] * 5 + [10] * 20, calm + wild, strata=[0] * 5 + [1] * 20 + [0] * 40 + [1] * 10)
    )

    assert found.estimate == pytest.approx(1.0)
