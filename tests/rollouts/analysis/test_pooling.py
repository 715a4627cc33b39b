"""Evidence of several waves together."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rollouts.analysis import judge
from rollouts.analysis.errors import InvalidSample, UnitMismatch
from rollouts.analysis.pooling import harm_z, pooled_difference, pooled_z
from rollouts.analysis.verdicts import Verdict
from tests.rollouts.analysis import worlds
from tests.rollouts.analysis.worlds import HOUR, TELEMETRY


def test_the_z_of_harm_is_in_deviations_of_the_reassigned_sums():
    sums = np.array([10, -2, 4, 0, 3])

    assert harm_z(sums) == pytest.approx((10 - 3) / np.std(sums))


def test_sums_that_cannot_tell_assignments_apart_have_no_z():
    assert harm_z(np.full(20, 7)) is None


def test_waves_weigh_by_the_root_of_their_planned_information():
    assert pooled_z([2.0, 0.0, 1.0], information=[9.0, 16.0, 0.25]) == pytest.approx(
        (3 * 2.0 + 0.5 * 1.0) / math.sqrt(25.25)
    )


def test_one_wave_is_its_own_pool():
    assert pooled_z([1.3], information=[5.0]) == pytest.approx(1.3)


def test_impossible_pools_are_refused():
    with pytest.raises(UnitMismatch):
        pooled_z([1.0], information=[1.0, 2.0])
    with pytest.raises(UnitMismatch):
        pooled_z([], information=[])
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidSample):
            pooled_z([1.0, 1.0], information=[1.0, bad])
        with pytest.raises(InvalidSample):
            pooled_difference([(0.0, 0.1), (0.0, bad)])
    with pytest.raises(InvalidSample):
        pooled_difference([])


def test_differences_weigh_by_their_precision():
    estimate, error = pooled_difference([(0.1, 0.1), (0.0, 0.05)])

    assert estimate == pytest.approx(0.1 * 100 / 500)
    assert error == pytest.approx(1 / math.sqrt(500))


# --- telemetry over waves --------------------------------------------------------------------


def judged(earlier: tuple[tuple[float, float], ...]):
    """Forty canaries and eighty controls that report each hour of a day."""
    samples = replace(
        worlds.world(40, 80, hours=24, observations=worlds.reports([1.0] * 120, hours=24)),
        interval_seconds=HOUR,
    )
    policy = worlds.policy(TELEMETRY)
    plan = worlds.live(samples, has_extension=False, earlier={"telemetry": earlier})
    (*_, last), _ = judge.evaluate(
        samples,
        policy,
        plan,
        looks=worlds.looks(samples, 4),
        state=judge.initial_state(samples, policy),
    )
    return last.guardrails[0]


def test_a_wave_too_small_to_prove_its_telemetry_is_helped_by_the_waves_before():
    alone, helped = judged(()), judged(((0.0, 0.03), (0.0, 0.03)))

    assert alone.verdict is Verdict.INCONCLUSIVE
    assert helped.verdict is Verdict.NOT_WORSE
    assert helped.repeated.high < alone.repeated.high
    assert helped.details["cumulative"]["waves"] == 3


def test_silence_in_the_waves_before_counts_against_this_one():
    # Forty canaries alone: the error at the margin is sqrt(.05 * .95 / 40) = .034, so that it
    # takes the bound 1.827 * .034 = .063 > .05; a bad wave before makes it worse, not better.
    harmed = judged(((0.08, 0.03),))

    assert harmed.verdict is Verdict.INCONCLUSIVE
    assert harmed.repeated.high > judged(()).repeated.high


def test_a_wave_keeps_what_the_next_one_needs():
    kept = judged(()).details["difference"]

    assert kept["estimate"] == 0.0
    assert kept["error"] == pytest.approx(math.sqrt(0.05 * 0.95 / 40))
