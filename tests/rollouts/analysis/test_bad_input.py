"""What cannot be judged: a named error, or a verdict with its reason; never a proof, never a
warning that nobody sees.
"""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from rollouts.analysis import judge
from rollouts.analysis.errors import (
    EmptyArm,
    InvalidLevel,
    InvalidPolicy,
    InvalidSample,
    InvalidState,
    NoGuardrails,
    UnitMismatch,
)
from rollouts.analysis.policy import Policy
from rollouts.analysis.samples import Samples, ServiceIntervals
from rollouts.analysis.verdicts import DecisionKind, LookEvaluation, Verdict
from rollouts.analysis.wave import Look
from tests.rollouts.analysis import worlds
from tests.rollouts.analysis.worlds import (
    FAULTS,
    HOUR,
    INSTALL,
    LOST_WORK,
    NOVEL,
    RECOVERY,
    SEVERE,
    TELEMETRY,
    THROUGHPUT,
)

pytestmark = pytest.mark.filterwarnings("error")

ALL = (FAULTS, THROUGHPUT, RECOVERY, SEVERE, INSTALL, TELEMETRY, NOVEL, LOST_WORK)
UNPROVEN = {Verdict.NO_DATA, Verdict.INCONCLUSIVE}


def judged(samples: Samples, *guardrails, is_live: bool = False) -> list[LookEvaluation]:
    policy = worlds.policy(*(guardrails or ALL), resamples=599)
    plan = worlds.live(samples, has_extension=False) if is_live else worlds.recorded(samples)
    evaluations, _ = judge.evaluate(
        samples,
        policy,
        plan,
        looks=worlds.looks(samples, 4),
        state=judge.initial_state(samples, policy),
    )
    return evaluations


def speeds(machines: int, *, seed: int = 1) -> list[float]:
    return (100 * (1 + 0.01 * np.random.default_rng(seed).standard_normal(machines))).tolist()


def full(canaries: int, controls: int, **fields: object) -> Samples:
    """A sound little world with every kind of report: a fault and an interruption per machine."""
    n = canaries + controls
    rng = np.random.default_rng(3)
    samples = worlds.world(
        canaries,
        controls,
        hours=48,
        strata=fields.pop("strata", None),
        faults=worlds.faults([(m, float(rng.uniform(1, 46))) for m in range(n)]),
        observations=worlds.reports(speeds(n), hours=48),
        recoveries=worlds.recoveries(
            [(m, float(rng.uniform(1, 39)), float(rng.lognormal(3, 0.5))) for m in range(n)]
        ),
        attempts=worlds.installs(["succeeded"] * canaries),
        known_signatures=frozenset({"xid-79"}),
        interval_seconds=HOUR,
    )
    return replace(samples, **fields)


def assert_nothing_proven(evaluations: list[LookEvaluation], *names: str) -> None:
    for evaluation in evaluations:
        assert evaluation.recommendation.kind is not DecisionKind.WIDEN
        assert evaluation.recommendation.reason
        for found in evaluation.guardrails:
            if not names or found.name in names:
                assert found.verdict in UNPROVEN, found
                assert found.reason


def test_the_sound_world_of_these_tests_is_widened():
    # Without it the tests below could not fail.
    evaluations = judged(
        full(80, 160), FAULTS, THROUGHPUT, RECOVERY, TELEMETRY, INSTALL, NOVEL, LOST_WORK
    )

    assert DecisionKind.WIDEN in {e.recommendation.kind for e in evaluations}


# --- who takes part --------------------------------------------------------------------------


@pytest.mark.parametrize(("canaries", "controls"), [(0, 9), (9, 0), (0, 0)])
def test_an_empty_arm_is_an_error(canaries, controls):
    with pytest.raises(EmptyArm, match=f"got {canaries} canary and {controls} control"):
        judged(worlds.world(canaries, controls, hours=24))


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize(("canaries", "controls"), [(1, 1), (1, 30)])
def test_one_machine_per_arm_proves_nothing(canaries, controls, is_live):
    evaluations = judged(full(canaries, controls), is_live=is_live)

    assert_nothing_proven(evaluations)


def test_strata_of_one_arm_each_prove_nothing():
    samples = full(40, 80, strata=[0] * 40 + [1] * 80)

    drawn = (FAULTS, THROUGHPUT, RECOVERY, SEVERE, TELEMETRY, NOVEL, LOST_WORK)
    evaluations = judged(samples, *drawn)

    assert_nothing_proven(evaluations)
    assert "too few assignments: 1" in evaluations[-1].guardrails[0].reason


def test_a_stratum_with_one_arm_does_not_change_what_the_others_say():
    both = [0] * 40 + [0] * 80
    alone = [1] * 10

    with_lone = judged(full(40, 90, strata=[*both, *alone]), FAULTS)[-1].guardrails[0]

    assert with_lone.verdict in {Verdict.NOT_WORSE, Verdict.INCONCLUSIVE}
    assert with_lone.estimate == pytest.approx(1.0)


# --- no exposure, no events, no variance -----------------------------------------------------


@pytest.mark.parametrize("is_live", [True, False])
def test_zero_exposure_is_no_data(is_live):
    samples = full(40, 80)
    nowhere = ServiceIntervals(np.empty(0, int), np.empty(0), np.empty(0))
    no_reports = worlds.observation_rows(np.empty(0, int), np.empty(0), np.empty(0))

    evaluations = judged(
        replace(samples, service=nowhere, observations=no_reports, faults=worlds.faults([])),
        FAULTS,
        THROUGHPUT,
        TELEMETRY,
        is_live=is_live,
    )

    assert_nothing_proven(evaluations)
    assert {g.verdict for g in evaluations[-1].guardrails} == {Verdict.NO_DATA}


def test_no_event_at_all_proves_nothing_of_faults_and_recoveries():
    samples = replace(full(40, 80), faults=worlds.faults([]), recoveries=worlds.recoveries([]))

    evaluations = judged(samples, FAULTS, RECOVERY, SEVERE)

    assert_nothing_proven(evaluations)


def test_throughput_without_any_variance_is_no_measurement():
    stuck = worlds.reports([1.0] * 120, hours=48)

    evaluations = judged(replace(full(40, 80), observations=stuck), THROUGHPUT)

    assert_nothing_proven(evaluations)
    assert "exactly the same throughput" in evaluations[-1].guardrails[0].reason


@pytest.mark.parametrize("boast", [1e9, 1e18, 1e90])
def test_a_nonsensical_report_of_a_canary_never_proves_slow_canaries_sound(boast):
    # One of 40 by chance is no more than the level of the last checkpoint.
    levels = np.array(speeds(160)) * np.where(np.arange(160) < 4, 0.6, 1.0)
    rows = worlds.reports(levels.tolist(), hours=48)
    said = rows.throughput.copy()
    said[0] = boast

    evaluations = judged(
        replace(full(4, 156), observations=replace(rows, throughput=said)), THROUGHPUT
    )

    assert evaluations[-1].guardrails[0].verdict is Verdict.HARMFUL


def test_recovery_times_without_any_variance_are_no_measurement():
    rows = worlds.recoveries([(m, 1.0 + 7 * m % 120 / 4, 10.0) for m in range(120)])

    evaluations = judged(replace(full(40, 80), recoveries=rows), RECOVERY)

    assert_nothing_proven(evaluations)
    assert "exactly as long" in evaluations[-1].guardrails[0].reason


def test_interruptions_that_hang_on_canaries_are_harm_though_all_others_last_equally_long():
    minutes = {True: np.inf, False: 10.0}
    rows = worlds.recoveries([(m, 1.0 + 7 * m % 120 / 4, minutes[m < 40]) for m in range(120)])

    evaluations = judged(replace(full(40, 80), recoveries=rows), RECOVERY)

    assert evaluations[-1].guardrails[0].verdict is Verdict.HARMFUL


def test_ties_everywhere_halt_nothing():
    ones = worlds.faults([(m, 5.0) for m in range(120)])
    samples = replace(
        full(40, 80),
        faults=ones,
        observations=worlds.reports([100.0, 101.0] * 60, hours=48),
        recoveries=worlds.recoveries([(m, 1.0, 10.0 + m % 2) for m in range(120)]),
    )

    evaluations = judged(samples)

    assert DecisionKind.HALT not in {e.recommendation.kind for e in evaluations}


def test_one_fault_on_each_machine_at_the_same_time_proves_nothing():
    samples = replace(full(40, 80), faults=worlds.faults([(m, 5.0) for m in range(120)]))

    assert_nothing_proven(judged(samples, FAULTS))


# --- impossible numbers ----------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_times_of_faults_are_finite(bad):
    table = worlds.faults([(0, 1.0)])

    with pytest.raises(InvalidSample, match="time_seconds, row 0"):
        replace(table, time_seconds=np.array([bad]))


@pytest.mark.parametrize("field", ["throughput", "in_service_seconds", "start_seconds"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, -1.0, np.nan])
def test_reports_with_impossible_numbers_are_refused(field, bad):
    rows = worlds.reports([1.0, 1.0], hours=2)
    if (field, bad) == ("start_seconds", -1.0) or (field == "throughput" and np.isnan(bad)):
        return  # before the window, or not told: both are possible
    changed = getattr(rows, field).copy()
    changed[1] = bad

    with pytest.raises(InvalidSample, match=f"{field}, row 1"):
        replace(rows, **{field: changed})


@pytest.mark.parametrize("bad", [-1.0, np.inf])
def test_durations_of_recoveries_are_not_negative_and_finite(bad):
    rows = worlds.recoveries([(0, 1.0, 5.0)])

    for field in ("recovery_seconds", "repeated_seconds"):
        with pytest.raises(InvalidSample, match=field):
            replace(rows, **{field: np.array([bad])})
    with pytest.raises(InvalidSample, match="lies before"):
        replace(rows, recovered_seconds=rows.time_seconds - 1)


@pytest.mark.parametrize("share", [-0.1, 1.1, np.nan])
def test_shares_of_a_sample_lie_between_zero_and_one(share):
    for field in ("purity", "install_baseline"):
        with pytest.raises(InvalidSample, match=field):
            replace(full(2, 4), **{field: share})


def test_who_is_near_a_canary_is_told_for_every_unit():
    units, _ = worlds.roster(2, 4)

    with pytest.raises(UnitMismatch, match="one flag per unit"):
        replace(units, is_near_canary=np.ones(5, bool))
    with pytest.raises(UnitMismatch, match="true for every canary"):
        replace(units, is_near_canary=np.zeros(6, bool))


def test_units_that_were_not_drawn_are_refused():
    samples = full(4, 8)
    by_rack = replace(samples, units=replace(samples.units, placement="rack"))

    with pytest.raises(UnitMismatch, match="drew 'rack' and the policy judges by 'machine'"):
        judged(by_rack)


# --- nonsense in the policy ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guardrail", "changes", "words"),
    [
        (FAULTS, {"margin": 0.5}, "a ratio of at least 1"),
        (FAULTS, {"margin": np.nan}, "margin nan"),
        (FAULTS, {"margin": np.inf}, "margin inf"),
        (FAULTS, {"tolerance": 3.0}, "below the tolerance"),
        (FAULTS, {"signatures": ()}, "at least one signature"),
        (THROUGHPUT, {"margin": 1.0}, r"a share in \[0, 1\)"),
        (THROUGHPUT, {"margin": -0.02}, r"a share in \[0, 1\)"),
        (THROUGHPUT, {"tolerance": 0.05}, "below the tolerance"),
        (RECOVERY, {"margin": 0.0}, "a ratio of at least 1"),
        (SEVERE, {"margin": 2.0}, r"a share in \[0, 1\)"),
    ],
)
def test_margins_of_nonsense_are_refused(guardrail, changes, words):
    with pytest.raises(InvalidPolicy, match=words):
        replace(guardrail, **changes)


def test_a_policy_without_guardrails_is_refused():
    with pytest.raises(NoGuardrails, match="at least one guardrail"):
        Policy(guardrails=(), weights=worlds.WEIGHTS)


@pytest.mark.parametrize(
    "changes",
    [
        {"alpha": 0.0},
        {"beta": 1.0},
        {"beta": 1e-20},
        {"resamples": 0},
        {"resamples": np.nan},
        {"looks": 0},
        {"seed": np.inf},
        {"gap_minutes": -1.0},
        {"delta_abs": np.nan},
        {"purity_floor": -0.1},
    ],
)
def test_a_policy_with_an_impossible_number_is_refused(changes):
    with pytest.raises(InvalidPolicy, match=next(iter(changes))):
        worlds.policy(FAULTS, **changes)


@pytest.mark.parametrize(
    "guardrail",
    [
        replace(THROUGHPUT, margin=0.9),
        replace(THROUGHPUT, margin=0.995, tolerance=0.9),
        replace(RECOVERY, margin=60.0),
        replace(RECOVERY, margin=99.0, tolerance=60.0),
    ],
)
def test_the_widest_margins_and_tolerances_that_are_accepted_are_judged(guardrail):
    evaluations = judged(full(8, 24), guardrail)

    for found in evaluations[-1].guardrails:
        assert found.verdict is not Verdict.HARMFUL
        assert (
            found.repeated.low is None
            or found.repeated.high is None
            or (found.repeated.low <= found.repeated.high)
        )


def test_as_much_error_as_a_policy_may_spend_is_judged_where_no_control_failed():
    samples = replace(full(8, 24), faults=worlds.faults([(0, 5.0), (1, 6.0)]))
    policy = worlds.policy(FAULTS, resamples=99, alpha=0.5)

    (found,), _ = judge.evaluate(
        samples,
        policy,
        worlds.recorded(samples, alpha=0.5),
        looks=worlds.looks(samples, 1),
        state=judge.initial_state(samples, policy),
    )

    assert found.guardrails[0].repeated.low is not None


def test_limits_on_installs_stand_in_order_though_earlier_waves_went_well():
    samples = full(40, 80, attempts=worlds.installs(["timed_out"] * 20 + ["succeeded"] * 20))
    policy = worlds.policy(INSTALL, resamples=99)

    (found,), _ = judge.evaluate(
        samples,
        policy,
        worlds.live(samples, has_extension=False, cumulative_attempts=(20, 90_000)),
        looks=worlds.looks(samples, 1),
        state=judge.initial_state(samples, policy),
    )

    assert found.guardrails[0].verdict is Verdict.HARMFUL
    assert found.guardrails[0].repeated.low <= found.guardrails[0].repeated.high


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"frozen_fault_rate": {"faults": np.nan}}, "frozen rate of faults"),
        ({"frozen_fault_rate": {"faults": -1.0}}, "frozen rate of faults"),
        ({"earlier": {"telemetry": ((0.0, 0.0),)}}, "positive error"),
        ({"earlier": {"telemetry": ((np.nan, 0.1),)}}, "positive error"),
        ({"expected_excess_faults": np.nan}, "expected_excess_faults"),
        ({"cumulative_attempts": (5, 3)}, "cumulative_attempts"),
        ({"cumulative_attempts": (2**70, 2**71)}, "cumulative_attempts"),
    ],
)
def test_a_plan_of_a_wave_with_an_impossible_number_is_refused(fields, words):
    with pytest.raises(InvalidSample, match=words):
        worlds.live(full(2, 4), **fields)


@pytest.mark.parametrize("at", [np.nan, np.inf, -np.inf, 1e300])
def test_a_look_at_no_time_is_refused(at):
    with pytest.raises(InvalidLevel, match="look 3: as_of_seconds"):
        Look(3, at, 0.5)


def test_two_looks_of_one_number_are_refused():
    # Their scores would stand under one name, and the earlier be judged by those of the later.
    samples = full(8, 24)
    policy = worlds.policy(FAULTS, resamples=99)

    with pytest.raises(InvalidLevel, match=r"numbers of looks rise: got \[1, 1\]"):
        judge.evaluate(
            samples,
            policy,
            worlds.recorded(samples),
            looks=[Look(1, 12 * HOUR, 0.25), Look(1, 24 * HOUR, 0.5)],
            state=judge.initial_state(samples, policy),
        )


def test_the_state_of_another_wave_is_refused():
    policy = worlds.policy(FAULTS, resamples=99)
    other, mine = full(5, 9), full(8, 24)
    first, *_, last = worlds.looks(mine, 4)
    _, state = judge.evaluate(
        other,
        policy,
        worlds.recorded(other),
        looks=[first],
        state=judge.initial_state(other, policy),
    )

    with pytest.raises(InvalidState, match="reports of 14 units, the comparison has 32"):
        judge.evaluate(mine, policy, worlds.recorded(mine), looks=[last], state=state)


@pytest.mark.parametrize("beyond", [1e101, 1e300, np.inf])
def test_figures_beyond_all_use_are_refused_before_they_overflow(beyond):
    samples = full(2, 4)
    rows = samples.observations
    huge = np.full(rows.throughput.size, beyond)
    past = np.array([1.0, 2.0, 3.0, 4.0, 5.0, beyond])

    with pytest.raises(InvalidSample, match=r"throughput, row 0: .* up to 1e\+100"):
        replace(rows, throughput=huge)
    with pytest.raises(InvalidSample, match=r"covariate throughput: .* up to 1e\+100"):
        replace(samples.units, covariates={"throughput": past})


@pytest.mark.parametrize("far", [1e13, -1e13, 1e300])
def test_times_beyond_all_calendars_are_refused(far):
    samples = full(2, 4)

    with pytest.raises(InvalidSample, match="time_seconds, row 0"):
        replace(worlds.faults([(0, 1.0)]), time_seconds=np.array([far]))
    with pytest.raises(InvalidSample, match="clock_start_seconds"):
        replace(samples.units, clock_start_seconds=np.full(6, far))
    for name in ("window_seconds", "interval_seconds", "as_of_seconds", "before_seconds"):
        with pytest.raises(InvalidSample, match=name):
            replace(samples, **{name: far})


@pytest.mark.parametrize("name", ["interval_seconds", "as_of_seconds", "before_seconds"])
def test_a_sample_without_a_time_is_refused(name):
    with pytest.raises(InvalidSample, match=name):
        replace(full(2, 4), **{name: np.nan})


@pytest.mark.parametrize("hours", [0.0, -1.0, np.inf, np.nan])
def test_a_window_without_length_is_refused(hours):
    with pytest.raises(InvalidSample, match="window_seconds"):
        replace(full(2, 4), window_seconds=hours * HOUR)


def test_all_of_it_together_is_never_widened():
    # Half of the machines report nothing, a quarter of the strata have one arm, some interruptions
    # are open for ever, one machine of each arm is at zero, one at a thousand times the rest.
    n = 60
    strata = [m % 4 if m % 4 != 3 else 3 + (m < 20) for m in range(n)]
    levels = np.array(speeds(n))
    levels[[0, 30]], levels[[1, 31]] = 0.0, 1e5
    until = [48 if m % 2 else 0 for m in range(n)]
    rows = [(m, 1.0 + m / 2, np.inf if m % 5 == 0 else 20.0 + m) for m in range(n)]
    samples = replace(
        full(20, 40, strata=strata),
        observations=worlds.reports(levels.tolist(), hours=48, until=until),
        recoveries=worlds.recoveries(rows),
    )

    evaluations = judged(samples)

    assert DecisionKind.WIDEN not in {e.recommendation.kind for e in evaluations}
    assert all(g.reason for e in evaluations for g in e.guardrails)
    assert samples.origin.utcoffset() == timedelta(0)
