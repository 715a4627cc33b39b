"""The crossing rule, its inversion, and the first-episode e-process."""

import json
import math
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, permutation_test

from rollouts.analysis.errors import AnalysisError, InvalidLevel, InvalidSample, UnitMismatch
from rollouts.analysis.labels import Design, Labels
from rollouts.analysis.sequential import (
    CrossingState,
    LinearLook,
    Side,
    cross,
    first_episode_log_e,
    invert,
    p_value,
    rejects,
)
from rollouts.analysis.spending import halt_level

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())


def crossing_look(design, columns, levels):
    """The first look (from 0) at which the observed assignment crosses, or -1."""
    labels = Labels.draw(design, seed=1, resamples=999)
    state = CrossingState.initial(labels.paths)
    for look, level in enumerate(levels):
        state = cross(state, labels.sums(columns[:, look]), level=level)
        if state.is_crossed:
            return look
    return -1


def test_every_assignment_crosses_when_full_enumeration_says():
    # 15 assignments of 2 canaries among 6 machines, three looks; each of them
    # takes its turn as the observed one. Recipe in the vector's `rule`.
    vector = VECTORS["srt_exact_small"]
    columns = np.array(vector["Y_cumulative"], dtype=np.int64)
    levels = [Fraction(str(level)) for level in vector["cum_spend"]]

    looks = {
        str(pair): crossing_look(
            Design(np.zeros(6, dtype=np.int64), np.isin(np.arange(6), pair)), columns, levels
        )
        for pair in vector["assignments"]
    }

    assert looks == vector["crossing_look_by_assignment"]


def test_one_look_p_values_agree_with_full_enumeration():
    vector = VECTORS["srt_exact_small"]
    last = np.array(vector["Y_cumulative"], dtype=np.int64)[:, -1]

    for pair, expected in zip(
        vector["assignments"], vector["fixed_p_last_look"].values(), strict=True
    ):
        design = Design(np.zeros(6, dtype=np.int64), np.isin(np.arange(6), pair))
        labels = Labels.draw(design, seed=1, resamples=1)
        assert p_value(labels.sums(last)) == pytest.approx(expected, rel=1e-12)


def test_one_look_p_value_agrees_with_scipy():
    scores = np.random.default_rng(4).integers(0, 50, 14)
    is_canary = np.arange(14) < 5
    labels = Labels.draw(Design(np.zeros(14, dtype=np.int64), is_canary), seed=1, resamples=1)

    expected = permutation_test(
        (scores[is_canary], scores[~is_canary]),
        lambda x, y, axis: np.sum(x, axis=axis),
        n_resamples=np.inf,
        alternative="greater",
        vectorized=True,
    )

    assert p_value(labels.sums(scores)) == pytest.approx(expected.pvalue, rel=1e-12)


def test_ties_cross_only_whole():
    sums = np.array([5, 5, 5, 1, 0, 0, 0, 0, 0, 0])

    for allowed in (1, 2):
        state = cross(CrossingState.initial(10), sums, level=Fraction(allowed, 10))
        assert (state.used, state.is_crossed) == (0, False)
    state = cross(CrossingState.initial(10), sums, level=Fraction(3, 10))
    assert (state.used, state.is_crossed) == (3, True)


def test_a_crossing_is_kept_when_the_harm_is_gone():
    state = cross(CrossingState.initial(10), np.arange(10)[::-1], level=Fraction(1, 10))

    later = cross(state, np.arange(10), level=Fraction(2, 10))

    assert later.is_crossed
    assert later.used == 2
    assert later.alive.tolist() == [False] + [True] * 8 + [False]


def test_nobody_crosses_before_the_level_allows_one_path():
    state = CrossingState.initial(15)

    assert cross(state, np.arange(15)[::-1], level=Fraction(1, 16)) is state
    assert cross(state, np.arange(15)[::-1], level=Fraction(1, 15)).is_crossed


def test_a_level_that_is_spent_lets_nobody_else_cross():
    state = cross(CrossingState.initial(10), np.arange(10), level=Fraction(2, 10))

    assert cross(state, np.arange(10)[::-1], level=Fraction(2, 10)) is state


def test_everybody_crosses_at_level_one():
    state = cross(CrossingState.initial(5), np.zeros(5), level=Fraction(1))

    assert (state.used, state.is_crossed) == (5, True)


@settings(max_examples=60, deadline=None)
@given(
    looks=st.lists(st.lists(st.integers(-3, 3), min_size=23, max_size=23), min_size=1, max_size=6),
    steps=st.lists(st.integers(0, 12), min_size=6, max_size=6),
    shuffle=st.permutations(range(23)),
)
def test_crossings_stay_within_the_level_and_do_not_depend_on_the_order_of_paths(
    looks, steps, shuffle
):
    state = shuffled = CrossingState.initial(23)
    levels = [Fraction(min(s, 60), 60) for s in np.cumsum(steps).tolist()]

    for sums, level in zip(np.array(looks), levels, strict=False):
        state = cross(state, sums, level=level)
        shuffled = cross(shuffled, sums[list(shuffle)], level=level)

        assert state.used <= level * 23
        assert state.used == 23 - state.alive.sum()
        assert (state.alive[list(shuffle)] == shuffled.alive).all()


def test_crossing_state_survives_storage_exactly():
    sums = np.random.default_rng(1).integers(0, 1000, 20_000)
    state = cross(CrossingState.initial(20_000), sums, level=Fraction(1, 20))

    stored = state.to_bytes()
    again = CrossingState.from_bytes(stored)

    assert len(stored) < 2_600
    assert (again.alive == state.alive).all()
    assert (again.paths, again.used, again.is_crossed) == (20_000, state.used, state.is_crossed)
    assert again.to_bytes() == stored


def test_damaged_crossing_states_are_refused():
    stored = CrossingState.initial(100).to_bytes()

    for damaged in (b"", stored[:-4], stored[:8] + b"\1" * 8 + stored[16:]):
        with pytest.raises(AnalysisError, match="stored crossing state"):
            CrossingState.from_bytes(damaged)


def test_sums_must_be_finite_and_one_per_path():
    state = CrossingState.initial(3)

    with pytest.raises(UnitMismatch):
        cross(state, np.zeros(2), level=Fraction(1, 2))
    with pytest.raises(InvalidSample, match="NaN"):
        cross(state, np.array([1.0, math.nan, 0.0]), level=Fraction(1, 2))
    with pytest.raises(InvalidLevel):
        cross(state, np.zeros(3), level=Fraction(3, 2))


def linear_case(effect, *, seed=3):
    """Outcomes of 24 machines, canaries multiplied by `effect`; three cumulative looks."""
    rng = np.random.default_rng(seed)
    is_canary = np.arange(24) < 8
    labels = Labels.draw(Design(np.zeros(24, dtype=np.int64), is_canary), seed=9, resamples=1999)
    outcome = np.cumsum(rng.integers(800, 1200, (24, 3)), axis=1)
    outcome = np.where(is_canary[:, None], np.rint(outcome * effect), outcome).astype(np.int64)
    # Dividing canaries by theta gives Y = control part + canary part / theta; as a
    # line in 1/theta it is constant + slope * (1/theta), each centred on its mean.
    units, looks = outcome.shape
    parts = [np.where(is_canary[:, None] == arm, outcome, 0) for arm in (False, True)]
    constant, slope = (labels.sums(part * units - part.sum(axis=0)) for part in parts)
    levels = [halt_level(0.05, k / looks, has_extension=False) for k in (1, 2, 3)]
    return [LinearLook(constant[:, k], slope[:, k], level=levels[k]) for k in range(looks)]


def rejects_by(looks, effect):
    """The crossing rule rerun from the first look on where this effect is tested."""
    state = CrossingState.initial(looks[0].constant.size)
    for look in looks:
        state = cross(state, look.sums_at(effect), level=look.level)
    return state.is_crossed


def lower_limit(looks, *, tested=1.0):
    def is_rejected(ratio):
        return rejects_by(looks, 1 / ratio)

    return invert(
        is_rejected,
        side=Side.BELOW,
        tested=tested,
        is_tested_rejected=is_rejected(tested),
        low=0.1,
        high=10.0,
    )


def test_the_limit_of_a_clear_harm_lies_between_no_effect_and_the_truth():
    assert 1.0 < lower_limit(linear_case(1.5)) < 1.5


def test_the_limit_scales_with_the_effect():
    # Multiplying canaries by 1.5 multiplies the limit by 1.5, up to rounding of the outcomes.
    assert lower_limit(linear_case(1.5)) == pytest.approx(
        1.5 * lower_limit(linear_case(1.0)), rel=2e-3
    )


@pytest.mark.parametrize("effect", [0.9, 1.0, 1.05, 1.1, 1.2])
def test_interval_and_verdict_agree(effect):
    looks = linear_case(effect)

    limit = lower_limit(looks)

    assert (limit >= 1.0) == rejects_by(looks, 1.0)


def test_one_look_from_the_start_rejects_as_the_rerun_rule_does():
    look = linear_case(1.1)[2]

    for ratio in (0.9, 1.0, 1.05, 1.1, 1.2):
        single = rejects(look, 1 / ratio, state=CrossingState.initial(look.constant.size))
        assert single == rejects_by([look], 1 / ratio)


def test_inversion_takes_the_verdict_that_is_out_as_given():
    bounds = {"low": 0.0, "high": 4.0, "tested": 1.0}

    assert invert(lambda x: x < 0.9, side=Side.BELOW, is_tested_rejected=True, **bounds) >= 1
    assert invert(lambda x: x < 1.1, side=Side.BELOW, is_tested_rejected=False, **bounds) < 1
    assert invert(lambda x: x > 0.9, side=Side.ABOVE, is_tested_rejected=False, **bounds) > 1
    assert invert(lambda x: x > 1.5, side=Side.ABOVE, is_tested_rejected=False, **bounds) == (
        pytest.approx(1.5, abs=1e-5)
    )


def test_inversion_is_infinite_where_the_search_ends_without_a_limit():
    bounds = {"low": 0.0, "high": 4.0, "tested": 1.0}

    nothing = invert(lambda x: False, side=Side.BELOW, is_tested_rejected=False, **bounds)
    everything = invert(lambda x: True, side=Side.BELOW, is_tested_rejected=True, **bounds)
    no_upper = invert(lambda x: False, side=Side.ABOVE, is_tested_rejected=False, **bounds)

    assert (nothing, everything, no_upper) == (-math.inf, math.inf, math.inf)
    with pytest.raises(AnalysisError, match="cannot search"):
        invert(
            lambda x: True, side=Side.BELOW, tested=5.0, is_tested_rejected=True, low=0.0, high=4.0
        )


def events_of(vector):
    return [(stratum, bool(y)) for stratum, y in vector["events"]]


def test_first_episode_evidence_against_no_change_matches_exact_rationals():
    vector = VECTORS["first_episode_eprocess_halt"]

    log_e = first_episode_log_e(
        events_of(vector), sizes=vector["strata"], grid=vector["grid"], theta0=1
    )

    assert log_e == pytest.approx(vector["logE"], rel=1e-10)
    assert np.exp(log_e) == pytest.approx(vector["E"], rel=1e-10)


def test_first_episode_evidence_against_a_margin_matches_exact_rationals():
    vector = VECTORS["first_episode_eprocess_widen_M2"]

    log_e = first_episode_log_e(
        events_of(vector), sizes=vector["strata"], grid=vector["grid"], theta0=2
    )

    assert np.exp(log_e) == pytest.approx(vector["E"], rel=1e-10)


def test_first_episode_evidence_has_mean_one_under_the_null():
    # Two strata, machines in a fixed order of first episodes; every assignment of
    # 2 of 5 and 1 of 3 canaries is equally likely. Stop when E first reaches 1.5.
    order = [("A", 0), ("B", 0), ("A", 1), ("A", 2), ("B", 1), ("A", 3)]
    stopped, ended = [], []
    for a in set(permutations((1, 1, 0, 0, 0))):
        for b in set(permutations((1, 0, 0))):
            arms = {"A": a, "B": b}
            e = np.exp(
                first_episode_log_e(
                    [(s, bool(arms[s][i])) for s, i in order], sizes={"A": (2, 3), "B": (1, 2)}
                )
            )
            reached = np.flatnonzero(e >= 1.5)
            stopped.append(e[reached[0]] if reached.size else e[-1])
            ended.append(e[-1])

    assert math.fsum(ended) / len(ended) == pytest.approx(1, rel=1e-12)
    assert math.fsum(stopped) / len(stopped) == pytest.approx(1, rel=1e-12)
    assert len(stopped) == math.comb(5, 2) * 3


def test_a_first_episode_of_nobody_at_risk_is_refused():
    with pytest.raises(InvalidSample, match="no canary at risk in 'A'"):
        first_episode_log_e([("A", True), ("A", True)], sizes={"A": (1, 3)})
    with pytest.raises(InvalidSample, match="'B'"):
        first_episode_log_e([("B", False)], sizes={"A": (1, 3)})


def test_no_event_is_no_evidence():
    assert first_episode_log_e([], sizes={"A": (1, 3)}).size == 0


def null_wave(rng):
    """Cumulative integer scores of 40 machines at 20 looks: lemons, bursts, shared shocks."""
    level = rng.gamma(2, 0.5, 40) * np.where(rng.random(40) < 0.05, rng.uniform(10, 50, 40), 1)
    faults = rng.poisson(0.05 * level[:, None], (40, 20)) * rng.geometric(0.4, (40, 20))
    shocks = (rng.random((4, 20)) < 0.1).repeat(10, axis=0) & (rng.random((40, 20)) < 0.5)
    return np.cumsum(faults + 3 * shocks, axis=1)


@pytest.mark.statistical
def test_looking_twenty_times_does_not_raise_the_rate_of_false_halts():
    # At nominal 10 %: 500 waves of 8 canaries and 32 controls in four jobs.
    rng = np.random.default_rng(20261129)
    stratum = np.repeat(np.arange(4), 10)
    waves, level, crossed, peeked = 500, Fraction(1, 10), 0, 0
    for wave in range(waves):
        arms = np.zeros(40, dtype=bool)
        for job in range(4):
            arms[10 * job + rng.permutation(10)[:2]] = True
        labels = Labels.draw(Design(stratum, arms), seed=wave, resamples=999)
        sums = labels.sums(null_wave(rng))
        state = CrossingState.initial(labels.paths)
        for look in range(20):
            spent = halt_level(level, (look + 1) / 20, has_extension=False)
            state = cross(state, sums[:, look], level=spent)
        crossed += state.is_crossed
        peeked += min(p_value(sums[:, look]) for look in range(20)) <= level

    assert binom.sf(crossed - 1, waves, float(level)) > 0.01
    assert binom.cdf(crossed, waves, float(level)) > 0.001  # the level is used, not hoarded
    assert peeked > 1.5 * crossed  # the same data with a fixed level at every look
