"""Environment or interference: what a jump of both arms is called."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from rollouts.analysis import judge, rejudge
from rollouts.analysis.errors import InvalidSample
from rollouts.analysis.jumps import JUMP_Z, LEAST_FAR_UNITS, Jump, drop_z, jump_details, jump_of
from rollouts.analysis.samples import LevelsBefore, Samples
from rollouts.analysis.verdicts import DecisionKind, LookEvaluation, Reason
from tests.rollouts.analysis import worlds
from tests.rollouts.analysis.worlds import FAULTS, HOUR, THROUGHPUT

DAYS = 2
CANARIES, CONTROLS = 40, 160
UNITS = CANARIES + CONTROLS


def judged(samples: Samples, *guardrails, **fields) -> list[LookEvaluation]:
    policy = worlds.policy(*(guardrails or (THROUGHPUT,)), **fields)
    evaluations, _ = judge.evaluate(
        samples,
        policy,
        worlds.live(samples),
        looks=worlds.looks(samples, 4),
        state=judge.initial_state(samples, policy),
    )
    return evaluations


def codes(evaluations: list[LookEvaluation]) -> list[Reason]:
    return [evaluation.recommendation.code for evaluation in evaluations]


def slowed(
    *, factor: float, who: np.ndarray, near: np.ndarray | None, seed: int = 1, purity=None
) -> Samples:
    """Everybody at about 100 before; since then `who` runs at `factor` times that."""
    rng = np.random.default_rng(seed)
    before = 100 * (1 + 0.02 * rng.standard_normal(UNITS))
    now = before * (1 + 0.005 * rng.standard_normal(UNITS)) * np.where(who, factor, 1.0)
    samples = worlds.world(
        CANARIES,
        CONTROLS,
        hours=24 * DAYS,
        observations=worlds.reports(now.tolist(), hours=24 * DAYS),
        levels_before=LevelsBefore(np.arange(UNITS), np.zeros(UNITS, int), before, ("train",)),
        purity=purity,
    )
    return replace(samples, units=replace(samples.units, is_near_canary=near))


EVERYBODY = np.ones(UNITS, np.bool_)
MOST = np.arange(UNITS) < UNITS - 16
NEAR_HALF = np.arange(UNITS) < UNITS // 2


def test_a_drop_of_both_arms_and_of_far_units_too_is_the_environment():
    evaluations = judged(slowed(factor=0.95, who=EVERYBODY, near=NEAR_HALF))

    assert set(codes(evaluations)) == {Reason.ENVIRONMENT}
    assert evaluations[-1].recommendation.kind is DecisionKind.HOLD
    assert evaluations[-1].recommendation.reason == (
        "both arms do worse than in their own period before (throughput: 100 units that share no "
        "job, leaf or domain with a canary do so too)"
    )


def test_a_drop_of_canaries_and_their_neighbours_alone_is_interference():
    evaluations = judged(slowed(factor=0.95, who=MOST, near=MOST))

    assert set(codes(evaluations)) == {Reason.INTERFERENCE}
    assert "share no job, leaf or domain with a canary do not" in (
        evaluations[-1].recommendation.reason
    )


def test_a_drop_of_everybody_where_nobody_is_far_is_interference():
    evaluations = judged(slowed(factor=0.95, who=EVERYBODY, near=EVERYBODY))

    assert set(codes(evaluations)) == {Reason.INTERFERENCE}


def test_a_drop_of_everybody_where_nobody_knows_who_is_near_is_interference():
    evaluations = judged(slowed(factor=0.95, who=EVERYBODY, near=None))

    assert set(codes(evaluations)) == {Reason.INTERFERENCE}


def test_too_few_far_units_never_make_an_environment():
    few = np.arange(UNITS) < UNITS - (LEAST_FAR_UNITS - 1)

    evaluations = judged(slowed(factor=0.95, who=EVERYBODY, near=few))

    assert set(codes(evaluations)) == {Reason.INTERFERENCE}


def test_a_drop_within_the_tolerance_is_no_jump():
    evaluations = judged(slowed(factor=0.995, who=EVERYBODY, near=NEAR_HALF))

    assert DecisionKind.WIDEN in {e.recommendation.kind for e in evaluations}


def test_a_drop_of_the_canaries_alone_halts():
    canaries = np.arange(UNITS) < CANARIES

    evaluations = judged(slowed(factor=0.95, who=canaries, near=NEAR_HALF))

    assert codes(evaluations)[-1] is Reason.HARMFUL


def failing(times: int) -> Samples:
    """All slowed; canaries and their neighbours fail `times` as often, far units as before."""
    samples = slowed(factor=0.95, who=EVERYBODY, near=MOST)
    before = [(m, -30.0 - 0.1 * (m % 90)) for m in range(UNITS)]
    since = [
        (m, 0.7 + 47 * ((11 * m + 17 * i) % 97) / 97)
        for m in range(UNITS)
        for i in range((times if MOST[m] else 1) + m % 3 - 1)
    ]
    enrolled = np.full(UNITS, -48 * HOUR)
    return replace(
        samples,
        faults=worlds.faults(before + since),
        machines=replace(samples.machines, enrolled_seconds=enrolled),
    )


def test_one_guardrail_of_suspected_interference_outweighs_an_environment_on_another():
    last = judged(failing(3), FAULTS, THROUGHPUT)[-1].recommendation

    assert last.code is Reason.INTERFERENCE
    assert "faults" in last.reason


def test_a_review_goes_before_suspected_interference_and_names_it():
    # So much on canaries and neighbours that the canaries stand out against the far units too.
    last = judged(failing(4), FAULTS, THROUGHPUT)[-1].recommendation

    assert (last.kind, last.code) == (DecisionKind.HOLD, Reason.REVIEW)
    assert last.reason == (
        "real but within the margin, a person must look: faults; besides, interference: both arms "
        "do worse than in their own period before (faults: 16 units that share no job, leaf or "
        "domain with a canary do not)"
    )


def test_reports_that_end_before_the_window_are_a_period_before_too():
    samples = slowed(factor=0.95, who=EVERYBODY, near=NEAR_HALF)
    rows = samples.observations
    earlier = worlds.observation_rows(
        np.repeat(np.arange(UNITS), 24),
        np.tile(np.arange(-24.0, 0.0), UNITS),
        np.full(24 * UNITS, 100.0),
    )
    joined = replace(
        rows,
        **{
            name: np.concatenate([getattr(earlier, name), getattr(rows, name)])
            for name in (
                "machine",
                "start_seconds",
                "end_seconds",
                "in_service_seconds",
                "throughput",
                "workload",
            )
        },
    )

    evaluations = judged(replace(samples, levels_before=None, observations=joined))

    assert codes(evaluations)[-1] is Reason.ENVIRONMENT


def test_without_a_period_before_there_is_no_such_rule():
    samples = replace(slowed(factor=0.95, who=EVERYBODY, near=NEAR_HALF), levels_before=None)

    assert not {Reason.ENVIRONMENT, Reason.INTERFERENCE} & set(codes(judged(samples)))


def test_a_workload_that_nobody_ran_before_is_not_compared():
    samples = slowed(factor=0.95, who=EVERYBODY, near=NEAR_HALF)
    other = replace(samples.levels_before, workloads=("another",))

    evaluations = judged(replace(samples, levels_before=other))

    assert not {Reason.ENVIRONMENT, Reason.INTERFERENCE} & set(codes(evaluations))


def test_what_was_seen_of_a_jump_is_kept_with_the_evaluation():
    last = judged(slowed(factor=0.95, who=EVERYBODY, near=NEAR_HALF))[-1]

    kept = last.guardrails[0].details["jump"]
    assert kept["is_environment"] is True
    assert kept["far_units"] == 100
    assert min(kept["canary_z"], kept["control_z"], kept["far_z"]) > JUMP_Z
    assert sum(last.scores["is_near_canary/4"]) == 100


def test_a_stored_look_gives_the_same_jumps_again():
    samples = slowed(factor=0.95, who=EVERYBODY, near=NEAR_HALF)
    before = [(m, -30.0 - 0.1 * (m % 90)) for m in range(UNITS)]
    since = [(m, 1.0 + 9 * i + m % 7) for m in range(UNITS) for i in range(4 + m % 3)]
    enrolled = np.full(UNITS, -48 * HOUR)
    samples = replace(
        samples,
        faults=worlds.faults(before + since),
        machines=replace(samples.machines, enrolled_seconds=enrolled),
    )

    last = judged(samples, FAULTS, THROUGHPUT)[-1]

    assert last.recommendation.code is Reason.ENVIRONMENT
    for guardrail, tolerance in zip(last.guardrails, (1.0, 0.01), strict=True):
        again = rejudge.replay_jump(
            last.scores,
            name=guardrail.name,
            look=last.look,
            design=judge.design_of(samples),
            tolerance=tolerance,
        )
        assert jump_details(again) == {"jump": guardrail.details["jump"]}


def test_a_look_without_a_jump_has_none_to_give_again():
    samples = slowed(factor=1.0, who=EVERYBODY, near=NEAR_HALF)

    last = judged(samples)[-1]

    design = judge.design_of(samples)
    assert "throughput/jump-pace/4" not in last.scores
    assert (
        rejudge.replay_jump(last.scores, name="throughput", look=4, design=design, tolerance=0.01)
        is None
    )


# --- synchronous jobs ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("canaries", [10, 40])
@pytest.mark.parametrize("scope", ["job", "machine"])
def test_a_regression_that_synchronous_jobs_of_64_share_is_no_environment_and_never_widened(
    seed, canaries, scope
):
    # 500 machines in jobs of 64; every job with a canary runs at the canaries' pace, 5 % slower.
    rng = np.random.default_rng(seed)
    machines = 500
    job = rng.permutation(machines) // 64
    is_canary = np.zeros(machines, np.bool_)
    is_canary[rng.choice(machines, canaries, replace=False)] = True
    dragged = np.isin(job, job[is_canary])
    before = 100 * (1 + 0.02 * rng.standard_normal(machines))
    drift = 0.005 * rng.standard_normal(8)[job] + 0.005 * rng.standard_normal(machines)
    now = before * (1 + drift) * np.where(dragged, 0.95, 1.0)
    samples = worlds.world(
        canaries,
        machines - canaries,
        hours=48,
        observations=worlds.reports(now.tolist(), hours=48),
        levels_before=LevelsBefore(
            np.arange(machines), np.zeros(machines, int), before, ("train",)
        ),
        purity=0.0,
    )
    samples = replace(
        samples, units=replace(samples.units, is_canary=is_canary, is_near_canary=dragged)
    )

    evaluations = judged(samples, replace(THROUGHPUT, scope=scope))

    assert Reason.ENVIRONMENT not in codes(evaluations)
    assert DecisionKind.WIDEN not in {e.recommendation.kind for e in evaluations}


# --- the estimator ---------------------------------------------------------------------------


def test_the_drop_is_a_one_sided_t_test_of_units():
    ratio = np.array([0.93, 0.99, 0.91, 0.97, 1.02, 0.95])

    p = ttest_1samp(ratio, 0.99, alternative="less").pvalue

    assert 0.5 * math.erfc(drop_z(ratio, tolerance=0.01) / math.sqrt(2)) == pytest.approx(p)


def test_units_that_all_changed_alike_are_certain():
    assert drop_z(np.full(8, 0.9), tolerance=0.01) == math.inf
    assert drop_z(np.full(8, 0.99), tolerance=0.01) is None
    assert drop_z(np.full(8, 1.0), tolerance=0.01) is None


def test_unknown_units_do_not_count():
    ratio = np.array([0.93, 0.99, 0.91, 0.97, np.nan, np.nan])

    assert drop_z(ratio, tolerance=0.01) is None
    assert drop_z(np.full(8, np.nan), tolerance=0.01) is None


@pytest.mark.parametrize("bad", [np.inf, -0.1])
def test_impossible_ratios_are_refused(bad):
    with pytest.raises(InvalidSample, match="finite and not negative"):
        drop_z(np.array([1.0] * 5 + [bad]), tolerance=0.01)


def test_one_unit_that_got_much_faster_does_not_hide_a_drop():
    ratio = np.append(0.9 + 0.002 * np.arange(30), 50.0)

    z = drop_z(ratio, tolerance=0.01)

    assert z is not None
    assert z > JUMP_Z


def test_a_jump_of_one_arm_is_none():
    masks = {"present": np.ones(20, bool), "is_canary": np.arange(20) < 5, "is_near": None}

    assert jump_of(lambda units: 4.0 if units[0] else 3.0, **masks) is None
    assert jump_of(lambda units: None if units[0] else 9.0, **masks) is None


def test_far_units_are_controls_that_count():
    present = np.arange(40) != 39
    jump = jump_of(
        lambda units: 4.0,
        present=present,
        is_canary=np.arange(40) < 5,
        is_near=np.arange(40) < 20,
    )

    assert jump == Jump(4.0, 4.0, far=4.0, far_units=19)


@pytest.mark.statistical
def test_a_sound_fleet_whose_jobs_drift_is_seldom_suspected():
    # 64 + 256 machines in 16 jobs: job AR(1) .9 sd 3 %, noise AR(1) .5 sd 3 %, two weeks before,
    # looked at after a quarter of three days, when the drift has averaged out least.
    rng = np.random.default_rng(11)
    job, suspected, draws = np.repeat(np.arange(16), 20), 0, 300
    is_canary = np.tile(np.arange(20) < 4, 16)

    def mean_of(correlation: float, hours: int, size: int) -> np.ndarray:
        value, total = rng.standard_normal(size), np.zeros(size)
        for _ in range(hours):
            value = correlation * value + math.sqrt(1 - correlation**2) * rng.standard_normal(size)
            total += value
        return total / hours

    for _ in range(draws):
        before, now = (
            1 + 0.03 * mean_of(0.9, hours, 16)[job] + 0.03 * mean_of(0.5, hours, 320)
            for hours in (24 * 14, 18)
        )
        found = jump_of(
            lambda units, ratio=now / before: drop_z(ratio[units], tolerance=0.01),
            present=np.ones(320, np.bool_),
            is_canary=is_canary,
            is_near=None,
        )
        suspected += found is not None

    assert suspected / draws <= 0.02
