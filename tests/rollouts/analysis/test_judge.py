import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from rollouts.analysis import judge, rejudge
from rollouts.analysis.errors import AnalysisError, EmptyArm, InvalidLevel
from rollouts.analysis.samples import ObservationRows, Samples
from rollouts.analysis.verdicts import DecisionKind, LookEvaluation, Reason, Verdict
from rollouts.analysis.wave import GuardrailState, Look, WavePlan, WaveState
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


def replayed(
    samples: Samples, policy, *, number: int = 4, plan: WavePlan | None = None
) -> list[LookEvaluation]:
    evaluations, _ = judge.evaluate(
        samples,
        policy,
        plan or worlds.recorded(samples, alpha=policy.alpha),
        looks=worlds.looks(samples, number),
        state=judge.initial_state(samples, policy),
    )
    return evaluations


def verdicts(evaluations: list[LookEvaluation], place: int = 0) -> list[Verdict]:
    return [evaluation.guardrails[place].verdict for evaluation in evaluations]


def decisions(evaluations: list[LookEvaluation]) -> list[tuple[DecisionKind, Reason]]:
    return [(e.recommendation.kind, e.recommendation.code) for e in evaluations]


def even_speeds(canaries: int, controls: int, *, ratio: float = 1.0) -> list[float]:
    """Levels spread a little around 100, canaries times the ratio."""
    spread = [100 + 0.1 * (i % 7) for i in range(canaries + controls)]
    return [v * (ratio if i < canaries else 1.0) for i, v in enumerate(spread)]


# --- zero and missing evidence ---------------------------------------------------------------


def canary_faults(number: int) -> Samples:
    """So many faults on different canaries, none in as many control hours (2,880 each)."""
    rows = [(machine, 10.0 + machine) for machine in range(number)]
    return worlds.world(60, 60, hours=48, faults=worlds.faults(rows))


def test_six_canary_faults_against_none_halt():
    (evaluation,) = replayed(canary_faults(6), worlds.policy(FAULTS, alpha=0.025), number=1)

    (faults,) = evaluation.guardrails
    assert evaluation.recommendation.kind is DecisionKind.HALT
    assert evaluation.recommendation.reason.startswith(
        "harmful: faults is 6 episodes against none of the control"
    )
    assert faults.estimate is None
    assert faults.fixed_look.low == pytest.approx(1.177, abs=5e-4)
    assert faults.fixed_look.high is None
    assert faults.repeated.low >= 1


def test_five_canary_faults_against_none_hold():
    # All five on canaries: C(60, 5) / C(120, 5) = 0.0287 of the assignments.
    policy = worlds.policy(FAULTS, alpha=0.025, resamples=19_999)

    (evaluation,) = replayed(canary_faults(5), policy, number=1)

    assert evaluation.recommendation.kind is DecisionKind.HOLD
    assert evaluation.guardrails[0].fixed_look.low == pytest.approx(0.916, abs=5e-4)


def test_no_fault_in_either_arm_proves_nothing():
    (evaluation,) = replayed(canary_faults(0), worlds.policy(FAULTS), number=1)

    (faults,) = evaluation.guardrails
    assert faults.verdict is Verdict.INCONCLUSIVE
    assert (faults.estimate, faults.repeated.low, faults.repeated.high) == (None, 0.0, None)


def nan_reports() -> ObservationRows:
    good = worlds.reports(even_speeds(20, 20), hours=24)
    return replace(good, throughput=np.full(good.machine.size, np.nan))


def empty_reports() -> ObservationRows:
    return worlds.observation_rows(np.empty(0), np.empty(0), np.empty(0))


@pytest.mark.parametrize(
    "rows", [None, empty_reports(), nan_reports()], ids=["none", "empty", "nan"]
)
def test_no_usable_measurement_is_never_a_pass(rows):
    samples = worlds.world(20, 20, hours=24, observations=rows)

    evaluations = replayed(samples, worlds.policy(THROUGHPUT))

    assert set(verdicts(evaluations)) == {Verdict.NO_DATA}
    assert set(decisions(evaluations)) == {(DecisionKind.HOLD, Reason.NO_DATA)}
    assert evaluations[-1].guardrails[0].estimate is None


def test_a_kind_of_report_that_is_not_collected_is_named():
    samples = worlds.world(20, 20, hours=24)

    evaluations = replayed(samples, worlds.policy(FAULTS))

    assert evaluations[0].recommendation.reason == "faults: no data: faults are not collected"


def test_canaries_that_fall_silent_are_no_data_and_never_widened():
    # Everything is in order until hour 18 of 24, then three of four canaries stop.
    ends = [18] * 15 + [24] * 25
    samples = worlds.world(
        20, 20, hours=24, observations=worlds.reports(even_speeds(20, 20), hours=24, until=ends)
    )

    evaluations = replayed(samples, worlds.policy(THROUGHPUT))

    assert verdicts(evaluations)[-1] is Verdict.NO_DATA
    assert decisions(evaluations)[-1] == (DecisionKind.HOLD, Reason.NO_DATA)


def test_silence_of_machines_also_blinds_the_fault_guardrail():
    ends = [12] * 20 + [24] * 20
    rows = [(machine, 1.0 + machine / 9) for machine in range(40)]
    samples = worlds.world(
        20,
        20,
        hours=24,
        faults=worlds.faults(rows),
        observations=worlds.reports(even_speeds(20, 20), hours=24, until=ends),
    )

    evaluations = replayed(samples, worlds.policy(FAULTS))

    assert verdicts(evaluations)[2:] == [Verdict.NO_DATA, Verdict.NO_DATA]


def silent_between(first: int, last: int) -> Samples:
    """All machines report hourly for 24 h, but not in hours first .. last-1."""
    rows = worlds.reports(even_speeds(20, 20), hours=24)
    hour = rows.start_seconds / HOUR
    keep = ~((hour >= first) & (hour < last))
    kept = worlds.observation_rows(rows.machine[keep], hour[keep], rows.throughput[keep])
    return replace(worlds.world(20, 20, hours=24, observations=kept), interval_seconds=HOUR)


def test_a_checkpoint_without_data_is_judged_at_the_next_look_that_has_some():
    # 24 looks; the first checkpoint is look 6, silent are looks 6 and 7.
    samples = silent_between(5, 7)

    evaluations = replayed(samples, worlds.policy(THROUGHPUT), number=24)

    assert verdicts(evaluations)[5:7] == [Verdict.NO_DATA] * 2
    assert decisions(evaluations)[7] == (DecisionKind.WIDEN, Reason.NOT_WORSE)
    assert evaluations[7].guardrails[0].details["shown_look"] == 8
    # It spends what the checkpoint at a quarter of the window may spend, .05 * .25 ** 1.5.
    assert evaluations[7].guardrails[0].details["widen_level"] == "1/160"


def test_what_was_shown_stays_shown_but_does_not_widen_without_data():
    samples = silent_between(10, 13)

    evaluations = replayed(samples, worlds.policy(THROUGHPUT), number=24)

    assert evaluations[11].guardrails[0].shown
    assert decisions(evaluations)[11] == (DecisionKind.HOLD, Reason.NO_DATA)
    assert verdicts(evaluations)[13] is Verdict.NOT_WORSE


def test_a_single_silent_machine_is_no_reason_to_hold():
    ends = [24] * 39 + [3]
    samples = worlds.world(
        20, 20, hours=24, observations=worlds.reports(even_speeds(20, 20), hours=24, until=ends)
    )

    assert verdicts(replayed(samples, worlds.policy(THROUGHPUT)))[-1] is Verdict.NOT_WORSE


# --- halting and widening --------------------------------------------------------------------


def test_a_slow_bundle_halts_and_the_sentence_says_how_slow():
    samples = worlds.world(
        20, 60, hours=24, observations=worlds.reports(even_speeds(20, 60, ratio=0.95), hours=24)
    )

    evaluations = replayed(samples, worlds.policy(THROUGHPUT))

    assert decisions(evaluations)[0] == (DecisionKind.HALT, Reason.HARMFUL)
    assert evaluations[0].recommendation.reason.startswith(
        "harmful: throughput is 5 % slower than the control (at least 4"
    )


def test_a_halt_is_sticky():
    # Slow for the first quarter only; the running mean recovers, the crossing stays.
    rows = worlds.reports(even_speeds(20, 60), hours=100)
    slow = (rows.machine < 20) & (rows.start_seconds < 25 * HOUR)
    rows = replace(rows, throughput=np.where(slow, 0.9, 1.0) * rows.throughput)
    samples = worlds.world(20, 60, hours=100, observations=rows)

    evaluations = replayed(samples, worlds.policy(THROUGHPUT))

    assert set(verdicts(evaluations)) == {Verdict.HARMFUL}


def test_a_tolerated_loss_neither_halts_nor_is_it_called_worse_than_the_margin():
    samples = worlds.world(
        20, 60, hours=24, observations=worlds.reports(even_speeds(20, 60, ratio=0.99), hours=24)
    )

    evaluations = replayed(samples, worlds.policy(THROUGHPUT))

    assert Verdict.HARMFUL not in verdicts(evaluations)
    assert decisions(evaluations)[-1] == (DecisionKind.WIDEN, Reason.NOT_WORSE)


def test_widening_happens_at_checkpoints_only():
    samples = worlds.world(
        20, 60, hours=24, observations=worlds.reports(even_speeds(20, 60), hours=24)
    )

    evaluations = replayed(samples, worlds.policy(THROUGHPUT), number=8)

    widened = [e.look for e in evaluations if e.recommendation.kind is DecisionKind.WIDEN]
    assert widened == [2, 4, 6, 8]
    assert evaluations[2].recommendation.code is Reason.WINDOW_OPEN


def test_the_least_observation_delays_widening():
    samples = worlds.world(
        20, 60, hours=24, observations=worlds.reports(even_speeds(20, 60), hours=24)
    )

    evaluations = replayed(samples, worlds.policy(THROUGHPUT, min_exposure_hours=13.0))

    widened = [e.look for e in evaluations if e.recommendation.kind is DecisionKind.WIDEN]
    assert widened == [3, 4]


def test_a_recording_shorter_than_the_least_observation_is_judged_on_what_it_has():
    samples = worlds.world(
        20, 60, hours=6, observations=worlds.reports(even_speeds(20, 60), hours=6)
    )

    evaluations = replayed(samples, worlds.policy(THROUGHPUT, min_exposure_hours=24.0))

    assert [e.recommendation.kind for e in evaluations].count(DecisionKind.WIDEN) == 1


def test_units_that_are_still_settling_hold_the_wave():
    samples = worlds.world(
        20, 60, hours=24, observations=worlds.reports(even_speeds(20, 60), hours=24)
    )
    clocks = np.zeros(80)
    clocks[[19, 79]] = np.inf
    samples = replace(samples, units=replace(samples.units, clock_start_seconds=clocks))

    evaluations = replayed(samples, worlds.policy(THROUGHPUT))

    assert all(e.recommendation.kind is DecisionKind.HOLD for e in evaluations)
    assert "2 enrolled units are not past their burn-in" in evaluations[0].recommendation.reason


def test_all_required_guardrails_must_be_proven():
    # Throughput is proven; faults never happened, so they are not.
    samples = worlds.world(
        20,
        60,
        hours=24,
        observations=worlds.reports(even_speeds(20, 60), hours=24),
        faults=worlds.faults([]),
    )

    evaluations = replayed(samples, worlds.policy(THROUGHPUT, FAULTS))

    assert all(e.recommendation.kind is DecisionKind.HOLD for e in evaluations)
    assert evaluations[-1].recommendation.code is Reason.INCONCLUSIVE
    assert "faults" in evaluations[-1].recommendation.reason


def test_a_report_only_guardrail_neither_halts_nor_blocks():
    # Throughput drops by 20 %, but is only reported; every machine has 0 to 3 faults.
    rows = [(m, 0.5 + 23 * ((7 * m + 13 * i) % 40) / 40) for m in range(80) for i in range(m % 4)]
    samples = worlds.world(
        20,
        60,
        hours=24,
        observations=worlds.reports(even_speeds(20, 60, ratio=0.8), hours=24),
        faults=worlds.faults(rows),
    )
    report_only = replace(THROUGHPUT, halt=False, required=False)

    evaluations = replayed(samples, worlds.policy(FAULTS, report_only))

    assert Verdict.HARMFUL not in verdicts(evaluations, place=1)
    assert decisions(evaluations)[-1] == (DecisionKind.WIDEN, Reason.NOT_WORSE)


def test_listed_workloads_must_all_have_been_seen_in_both_arms():
    samples = worlds.world(
        20, 20, hours=24, observations=worlds.reports(even_speeds(20, 20), hours=24)
    )

    evaluations = replayed(samples, worlds.policy(replace(THROUGHPUT, workloads=("train", "eval"))))

    assert evaluations[-1].guardrails[0].reason == ("no data: not yet seen in the canary arm: eval")


def test_machines_that_enrol_later_are_judged_from_then_on():
    # Half of the fleet enrols at hour 13; before that it has no share in anything.
    rows = [(m, 1.0 + m / 10) for m in range(5)]
    samples = worlds.world(20, 20, hours=24, faults=worlds.faults(rows))
    enrolled = np.where(np.arange(40) % 2, 13 * HOUR, 0.0)
    samples = replace(samples, machines=replace(samples.machines, enrolled_seconds=enrolled))

    early, late = replayed(samples, worlds.policy(FAULTS), number=2)

    assert (early.guardrails[0].canary.machines, late.guardrails[0].canary.machines) == (10, 20)
    assert early.guardrails[0].canary.exposure_hours == 120
    assert late.guardrails[0].canary.exposure_hours == 10 * 24 + 10 * 11


# --- other metrics ---------------------------------------------------------------------------


def with_recoveries(*, canary_minutes: float, path: str = "continued") -> Samples:
    rows = [
        (m, 0.1 + 0.2 * i, (canary_minutes if m < 20 else 10.0) * (1 + 0.01 * ((m + i) % 9)))
        for m in range(80)
        for i in range(4)
    ]
    return worlds.world(20, 60, hours=48, recoveries=worlds.recoveries(rows, path=path))


def test_slow_recovery_halts():
    evaluations = replayed(with_recoveries(canary_minutes=30.0), worlds.policy(RECOVERY))

    (recovery,) = evaluations[-1].guardrails
    assert recovery.verdict is Verdict.HARMFUL
    assert recovery.estimate == pytest.approx(3.0, rel=0.05)
    assert recovery.repeated.low > 1.0


def test_equal_recovery_is_shown_not_worse():
    evaluations = replayed(with_recoveries(canary_minutes=10.0), worlds.policy(RECOVERY))

    (recovery,) = evaluations[-1].guardrails
    assert recovery.verdict is Verdict.NOT_WORSE
    assert recovery.repeated.high <= 1.5


def test_interruptions_that_stay_open_count_as_long_as_they_have_lasted():
    # Canaries never recover; controls take ten minutes.
    rows = [(m, 0.2 * i, np.inf if m < 20 else 10.0) for m in range(80) for i in range(4)]
    samples = worlds.world(20, 60, hours=48, recoveries=worlds.recoveries(rows))

    evaluations = replayed(samples, worlds.policy(RECOVERY))

    assert verdicts(evaluations)[0] is Verdict.HARMFUL
    assert evaluations[0].guardrails[0].details["open"] == {"canary": 80, "control": 0}


def test_young_interruptions_do_not_count_for_widening():
    # All of them began in the last hours before the look.
    rows = [(m, 44.0 + 0.1 * i, 10.0) for m in range(80) for i in range(4)]
    samples = worlds.world(20, 60, hours=48, recoveries=worlds.recoveries(rows))

    (evaluation,) = replayed(samples, worlds.policy(RECOVERY), number=1)

    assert evaluation.guardrails[0].verdict is Verdict.INCONCLUSIVE


def test_severe_paths_are_mapped_by_the_policy():
    rows = [(m, 0.5 * i, 10.0) for m in range(80) for i in range(4)]
    table = worlds.recoveries(rows)
    code = np.where(table.machine < 20, 0, 1)
    samples = worlds.world(
        20, 60, hours=48, recoveries=replace(table, path=code, paths=("crash", "blip"))
    )
    mapped = replace(SEVERE, paths={"crash": "job_lost", "blip": "continued"})

    evaluations = replayed(samples, worlds.policy(mapped))
    unmapped = replayed(samples, worlds.policy(SEVERE))

    assert evaluations[-1].guardrails[0].verdict is Verdict.HARMFUL
    assert evaluations[-1].guardrails[0].estimate == 1.0
    assert unmapped[-1].guardrails[0].reason == "no data: paths without a severity: crash, blip"


def test_more_lost_work_halts():
    rows = [(m, 0.5 * i, 10.0) for m in range(80) for i in range(5 if m < 20 else 1)]
    samples = worlds.world(20, 60, hours=48, recoveries=worlds.recoveries(rows, repeated=3600.0))

    evaluations = replayed(samples, worlds.policy(LOST_WORK))

    assert evaluations[-1].guardrails[0].verdict is Verdict.HARMFUL


def novel(machines: list[int]) -> Samples:
    table = worlds.faults(
        [(m, 1.0 + i) for i, m in enumerate(machines)], signatures=["new"] * len(machines)
    )
    return replace(
        worlds.world(20, 180, hours=48, faults=table), known_signatures=frozenset({"xid-79"})
    )


def test_new_signatures_on_several_canaries_halt():
    # 4 of 4 on canaries: p = C(20, 4) / C(200, 4) = 7e-5.
    evaluations = replayed(novel([0, 1, 2, 3]), worlds.policy(NOVEL))

    (found,) = evaluations[-1].guardrails
    assert found.verdict is Verdict.HARMFUL
    assert found.details["fixed_look_p"] == pytest.approx(7.49e-5, rel=1e-2)


def test_a_new_signature_on_one_canary_asks_for_a_review_and_never_halts():
    samples = novel([3])
    policy = worlds.policy(NOVEL, alpha=0.3)

    evaluations = replayed(samples, policy)
    plan = replace(worlds.recorded(samples), acknowledged=frozenset({"new"}))
    acknowledged = replayed(samples, policy, plan=plan)

    assert set(decisions(evaluations)) == {(DecisionKind.HOLD, Reason.REVIEW)}
    assert Reason.REVIEW not in {code for _, code in decisions(acknowledged)}


def test_new_signatures_on_controls_alone_raise_nothing():
    evaluations = replayed(novel([50, 60, 70]), worlds.policy(NOVEL))

    assert Reason.REVIEW not in {code for _, code in decisions(evaluations)}


def test_without_a_catalogue_novelty_is_no_data():
    samples = replace(novel([0, 1]), known_signatures=None)

    assert set(verdicts(replayed(samples, worlds.policy(NOVEL)))) == {Verdict.NO_DATA}


def test_machines_that_stop_reporting_halt_by_telemetry():
    ends = [4] * 20 + [48] * 60
    samples = replace(
        worlds.world(
            20, 60, hours=48, observations=worlds.reports([1.0] * 80, hours=48, until=ends)
        ),
        interval_seconds=HOUR,
    )

    evaluations = replayed(samples, worlds.policy(TELEMETRY))

    assert evaluations[0].guardrails[0].verdict is Verdict.HARMFUL


def test_reports_that_do_not_begin_with_the_service_are_no_silence():
    # Service starts half an hour before the first report and the last is still to come.
    rows = worlds.reports([1.0] * 80, hours=23)
    shifted = replace(
        rows, start_seconds=rows.start_seconds + 1800, end_seconds=rows.end_seconds + 1800
    )
    samples = replace(worlds.world(20, 60, hours=24, observations=shifted), interval_seconds=HOUR)

    evaluations = replayed(samples, worlds.policy(TELEMETRY), number=12)

    assert {e.guardrails[0].details["statistic"] for e in evaluations} == {0}
    assert evaluations[-1].guardrails[0].verdict is Verdict.INCONCLUSIVE


def installs(*outcomes: str, machines: int = 60) -> Samples:
    padded = [*outcomes, *["succeeded"] * (machines - len(outcomes))]
    samples = worlds.world(machines, machines, hours=24, attempts=worlds.installs(padded))
    return replace(samples, install_baseline=0.002)


def test_installs_without_a_failure_are_shown_not_worse_from_59_on():
    enough, few = (replayed(installs(machines=n), worlds.policy(INSTALL)) for n in (59, 58))

    assert verdicts(enough)[0] is Verdict.NOT_WORSE
    assert Verdict.NOT_WORSE not in verdicts(few)


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "wrong_version", "never_returned"])
def test_every_failure_class_counts_against_installs(outcome):
    spread = ["succeeded"] * 10 + [outcome] * 8

    evaluations = replayed(installs(*spread), worlds.policy(INSTALL))

    assert evaluations[0].guardrails[0].verdict is Verdict.HARMFUL


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        (["failed", "succeeded", "failed", "timed_out"], "installs: early failures"),
        (["succeeded"] * 20 + ["bricked", "bricked"], "installs: bricks"),
    ],
)
def test_hard_stops_halt_outside_the_error_budget(outcomes, words):
    evaluations = replayed(installs(*outcomes), worlds.policy(replace(INSTALL, halt=False), FAULTS))

    assert decisions(evaluations)[0] == (DecisionKind.HALT, Reason.HARD_STOP)
    assert evaluations[0].recommendation.reason == words


def test_earlier_waves_count_for_the_proof_of_installs():
    samples = installs(machines=20)
    plan = replace(worlds.recorded(samples), cumulative_attempts=(0, 60))

    evaluations = replayed(samples, worlds.policy(INSTALL), plan=plan)

    assert verdicts(evaluations)[0] is Verdict.NOT_WORSE


# --- the recommendation ----------------------------------------------------------------------


def equal_world(**fields: object) -> Samples:
    return replace(
        worlds.world(
            20, 60, hours=24, observations=worlds.reports(even_speeds(20, 60), hours=24), **fields
        ),
        interval_seconds=HOUR,
    )


def test_a_real_effect_within_the_margin_is_reviewed_not_halted():
    samples = equal_world()
    state = WaveState(guardrails={"throughput": GuardrailState(shown_look=1, halt_look=2)})

    (evaluation,), _ = judge.evaluate(
        samples,
        worlds.policy(THROUGHPUT),
        worlds.recorded(samples),
        looks=[Look(3, 20 * HOUR, 20 / 24)],
        state=state,
    )

    assert evaluation.guardrails[0].verdict is Verdict.NOT_WORSE
    assert (evaluation.recommendation.kind, evaluation.recommendation.code) == (
        DecisionKind.HOLD,
        Reason.REVIEW,
    )


def test_a_persons_hard_stop_beats_everything():
    samples = equal_world()
    plan = replace(worlds.recorded(samples), hard_stop="wrong digest")

    evaluations = replayed(samples, worlds.policy(THROUGHPUT), plan=plan)

    assert evaluations[-1].recommendation.reason == "wrong digest"
    assert set(decisions(evaluations)) == {(DecisionKind.HALT, Reason.HARD_STOP)}


def with_a_period_before(*, canary: int, control: int) -> Samples:
    """A fault per machine in the two days before; about so many each in the two days since."""
    before = [(m, -30.0 - 0.1 * m) for m in range(80)]
    since = [
        (m, 0.7 + 47 * ((11 * m + 17 * i) % 97) / 97)
        for m in range(80)
        for i in range((canary if m < 20 else control) + m % 3 - 1)
    ]
    samples = worlds.world(20, 60, hours=48, faults=worlds.faults(before + since))
    enrolled = np.full(80, -48 * HOUR)
    return replace(samples, machines=replace(samples.machines, enrolled_seconds=enrolled))


def test_a_jump_in_both_arms_is_suspected_interference_and_never_widens():
    evaluations = replayed(with_a_period_before(canary=4, control=4), worlds.policy(FAULTS))

    assert set(decisions(evaluations)[1:]) == {(DecisionKind.HOLD, Reason.INTERFERENCE)}
    reason = evaluations[-1].recommendation.reason
    assert reason.startswith("both arms do worse than in their own period before (faults: ")
    assert "is not known" in reason


def test_a_jump_of_one_arm_alone_is_no_interference():
    evaluations = replayed(with_a_period_before(canary=1, control=4), worlds.policy(FAULTS))

    assert Reason.INTERFERENCE not in {code for _, code in decisions(evaluations)}


def test_both_arms_are_not_compared_with_the_period_before_within_the_first_day():
    first, *_ = replayed(with_a_period_before(canary=4, control=4), worlds.policy(FAULTS))

    assert first.recommendation.code is not Reason.INTERFERENCE


def test_harm_is_called_even_where_both_arms_jumped():
    evaluations = replayed(with_a_period_before(canary=12, control=4), worlds.policy(FAULTS))

    assert decisions(evaluations)[-1] == (DecisionKind.HALT, Reason.HARMFUL)


AUTO_FAULTS = replace(FAULTS, required=None)


def smoke_plan(samples: Samples, **fields: object) -> WavePlan:
    given = {
        "allows_smoke": True,
        "expected_excess_faults": 3.0,
        "decidable": {"faults": False},
        "has_extension": False,
        **fields,
    }
    return worlds.live(samples, **given)


def test_a_smoke_wave_widens_and_says_what_it_could_not_rule_out():
    samples = equal_world(faults=worlds.faults([(70, 3.0)]))

    samples = replace(samples, known_signatures=frozenset({"xid-79"}))
    policy = worlds.policy(THROUGHPUT, AUTO_FAULTS, NOVEL)

    evaluations = replayed(samples, policy, plan=smoke_plan(samples))

    assert decisions(evaluations)[0] == (DecisionKind.WIDEN, Reason.SMOKE_ONLY)
    assert evaluations[0].recommendation.reason == (
        "no harm seen; this wave could not have ruled out harm in faults"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"allows_smoke": False}, "smoke widening is off for this wave"),
        ({"expected_excess_faults": None}, "expected excess faults are unknown"),
        ({"expected_excess_faults": 21.0}, "could suffer 21 excess faults before a halt"),
        ({"is_recorded": True}, "a recorded case is not widened on a smoke test"),
    ],
)
def test_a_smoke_wave_holds_where_its_rules_are_not_met(change, words):
    samples = equal_world(faults=worlds.faults([(70, 3.0)]))

    evaluations = replayed(
        samples, worlds.policy(THROUGHPUT, AUTO_FAULTS), plan=smoke_plan(samples, **change)
    )

    assert all(e.recommendation.kind is DecisionKind.HOLD for e in evaluations)
    assert words in evaluations[-1].recommendation.reason


def test_a_smoke_wave_without_fault_data_does_not_widen():
    samples = equal_world(faults=None)

    evaluations = replayed(
        samples, worlds.policy(THROUGHPUT, AUTO_FAULTS), plan=smoke_plan(samples)
    )

    assert set(decisions(evaluations)) == {(DecisionKind.HOLD, Reason.NO_DATA)}


def test_an_auto_guardrail_of_which_the_planner_said_nothing_is_required():
    samples = equal_world(faults=worlds.faults([(70, 3.0)]))

    evaluations = replayed(
        samples,
        worlds.policy(THROUGHPUT, AUTO_FAULTS),
        plan=worlds.live(samples, has_extension=False),
    )

    assert evaluations[-1].guardrails[1].required
    assert evaluations[-1].recommendation.code is Reason.INCONCLUSIVE


def test_a_recording_without_a_kind_of_report_does_not_wait_for_it_where_it_was_auto():
    samples = replace(equal_world(), interval_seconds=None)
    auto = replace(RECOVERY, required=None)

    evaluations = replayed(samples, worlds.policy(THROUGHPUT, auto))

    assert verdicts(evaluations, place=1)[-1] is Verdict.NO_DATA
    assert decisions(evaluations)[-1] == (DecisionKind.WIDEN, Reason.NOT_WORSE)


def test_nothing_required_is_nothing_proven():
    samples = equal_world()

    evaluations = replayed(samples, worlds.policy(replace(THROUGHPUT, required=False)))

    assert all(e.recommendation.kind is DecisionKind.HOLD for e in evaluations)
    assert "no guardrail is required" in evaluations[-1].recommendation.reason


def fault_looks(extension: tuple[float, ...]) -> list[tuple[DecisionKind, Reason]]:
    """Decisions of an undecided wave: the end of its window, then shares of its extension."""
    samples = worlds.world(8, 32, hours=48, faults=worlds.faults([(30, 3.0)]))
    policy = worlds.policy(FAULTS)
    state = judge.initial_state(samples, policy)
    looks = [Look(1, 24 * HOUR, 1.0)]
    looks += [Look(2 + i, (24 + 12 * g) * HOUR, 1.0, g) for i, g in enumerate(extension)]
    found = []
    for look in looks:
        plan = worlds.live(samples, is_extended=look.extension_elapsed > 0)
        (evaluation,), state = judge.evaluate(samples, policy, plan, looks=[look], state=state)
        found.append((evaluation.recommendation.kind, evaluation.recommendation.code))
    return found


def test_an_undecided_wave_is_extended_once_and_then_inconclusive():
    assert fault_looks((0.5, 1.0)) == [
        (DecisionKind.HOLD, Reason.EXTENDED),
        (DecisionKind.HOLD, Reason.EVIDENCE_OPEN),
        (DecisionKind.HOLD, Reason.INCONCLUSIVE),
    ]


def test_the_extensions_end_is_a_checkpoint():
    # Shown neither at the window's end, where all reports are silent, nor before.
    samples = replace(silent_between(4, 16), window_seconds=16 * HOUR)
    policy = worlds.policy(THROUGHPUT)
    looks = [Look(1, 8 * HOUR, 0.5), Look(2, 16 * HOUR, 1.0), Look(3, 24 * HOUR, 1.0, 1.0)]

    evaluations, _ = judge.evaluate(
        samples,
        policy,
        worlds.live(samples, is_extended=True),
        looks=looks,
        state=judge.initial_state(samples, policy),
    )

    assert decisions(evaluations)[-1] == (DecisionKind.WIDEN, Reason.NOT_WORSE)
    assert evaluations[-1].guardrails[0].details["widen_level"] == "1/20"


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(("canaries", "controls"), [(0, 5), (5, 0)])
def test_an_empty_arm_is_refused(canaries, controls):
    samples = worlds.world(canaries, controls, hours=24)

    with pytest.raises(EmptyArm, match="a canary and a control"):
        judge.initial_state(samples, worlds.policy(FAULTS))


def test_looks_go_forward():
    samples = equal_world()
    policy = worlds.policy(THROUGHPUT)

    with pytest.raises(InvalidLevel, match="does not come after"):
        judge.evaluate(
            samples,
            policy,
            worlds.recorded(samples),
            looks=[Look(1, HOUR, 0.1), Look(2, HOUR, 0.2)],
            state=judge.initial_state(samples, policy),
        )


def test_one_machine_per_arm_is_inconclusive_and_says_why():
    samples = worlds.world(1, 1, hours=24, observations=worlds.reports([50.0, 100.0], hours=24))

    evaluations = replayed(samples, worlds.policy(THROUGHPUT))

    assert set(verdicts(evaluations)) == {Verdict.INCONCLUSIVE}
    assert evaluations[-1].guardrails[0].reason == (
        "too few assignments: 2 cannot reach the level 0.05"
    )


def test_a_design_falls_short_where_its_smallest_p_lies_above_the_level():
    design = judge.design_of(worlds.world(2, 6, hours=24))

    short = judge.design_shortfalls(design, worlds.policy(FAULTS), alpha=0.02)

    assert short == {"faults": "too few assignments: 28 cannot reach the level 0.02"}
    assert not judge.design_shortfalls(design, worlds.policy(FAULTS), alpha=0.04)


def test_a_policy_falls_short_that_draws_fewer_paths_than_its_level_needs():
    design = judge.design_of(worlds.world(20, 60, hours=24))

    short = judge.design_shortfalls(design, worlds.policy(FAULTS, resamples=48), alpha=0.02)

    assert short == {"faults": "too few re-assignments: 49 cannot reach the level 0.02"}
    enough = worlds.policy(FAULTS, resamples=49)
    assert not judge.design_shortfalls(design, enough, alpha=0.02)


def test_a_wave_without_alpha_neither_halts_nor_widens():
    samples = worlds.world(
        20, 60, hours=24, observations=worlds.reports(even_speeds(20, 60, ratio=0.9), hours=24)
    )

    evaluations = replayed(
        samples, worlds.policy(THROUGHPUT), plan=worlds.recorded(samples, alpha=0.0)
    )

    assert set(verdicts(evaluations)) == {Verdict.INCONCLUSIVE}
    assert evaluations[-1].guardrails[0].reason == (
        "nothing of the error budget is left to halt on"
    )


def test_before_any_clock_has_started_there_is_no_evidence_and_no_verdict():
    samples = replace(drawn(1), attempts=None)
    clocks = np.full(len(samples.units.name), np.inf)
    samples = replace(samples, units=replace(samples.units, clock_start_seconds=clocks))

    (evaluation,), state = judge.evaluate(
        samples,
        ALL,
        worlds.live(samples),
        looks=[Look(1, 3600.0, 0.0)],
        state=judge.initial_state(samples, ALL),
    )

    assert evaluation.recommendation.kind is DecisionKind.HOLD
    assert evaluation.guardrails[0].reason == (
        "no data: no canary machine has been in service since the clock's start"
    )
    json.dumps(state.to_dict(), allow_nan=False)


def test_no_exposure_in_an_arm_is_no_data():
    samples = worlds.world(5, 5, hours=24, faults=worlds.faults([]))
    left = np.where(np.arange(10) < 5, 0.0, np.inf)
    samples = replace(samples, machines=replace(samples.machines, left_seconds=left))

    evaluations = replayed(samples, worlds.policy(FAULTS))

    assert set(verdicts(evaluations)) == {Verdict.NO_DATA}


# --- one truth, however it is looked at ------------------------------------------------------

ALL = worlds.policy(
    FAULTS, THROUGHPUT, RECOVERY, SEVERE, LOST_WORK, NOVEL, TELEMETRY, resamples=499
)
DRAWN = worlds.Drawn(jobs=3, rate_per_day=0.5, rate_ratio=2.0, burst=0.5, has_recoveries=True)


def drawn(seed: int) -> Samples:
    return replace(DRAWN.draw(seed), known_signatures=frozenset({"xid-79"}))


def test_live_looks_and_a_replay_agree():
    samples = drawn(3)
    plan = worlds.live(samples, has_extension=False)
    looks = worlds.looks(samples, 8)
    state = judge.initial_state(samples, ALL)
    every, end = judge.evaluate(samples, ALL, plan, looks=looks, state=state)

    one_by_one = []
    for look in looks:
        stored = json.loads(json.dumps(state.to_dict()))
        found, state = judge.evaluate(
            samples, ALL, plan, looks=[look], state=WaveState.from_dict(stored)
        )
        one_by_one += found

    assert one_by_one == every
    assert state.to_dict() == end.to_dict()


def test_a_stored_look_replays_to_the_same_integers():
    samples = drawn(4)
    plan = worlds.live(samples)
    looks = worlds.looks(samples, 2)
    (first,), before = judge.evaluate(
        samples, ALL, plan, looks=looks[:1], state=judge.initial_state(samples, ALL)
    )
    (second,), after = judge.evaluate(samples, ALL, plan, looks=looks[1:], state=before)
    details = second.guardrails[0].details

    again = rejudge.replay(
        second.scores,
        design=judge.design_of(samples),
        seed=ALL.seed,
        resamples=ALL.resamples,
        levels={"faults/harm/2": details["halt_level"]},
        states={"faults/harm/2": before.of("faults").halt},
    )

    assert again["faults/harm/2"].to_bytes() == after.of("faults").halt.to_bytes()
    assert first.scores.keys() != second.scores.keys()


def test_a_stored_look_replays_the_scores_of_interruptions_too():
    samples = drawn(4)
    (look,) = worlds.looks(samples, 1)
    (evaluation,), after = judge.evaluate(
        samples, ALL, worlds.live(samples), looks=[look], state=judge.initial_state(samples, ALL)
    )
    name = "recovery_time/harm-sum/1"

    again = rejudge.replay(
        evaluation.scores,
        design=judge.design_of(samples),
        seed=ALL.seed,
        resamples=ALL.resamples,
        levels={name: evaluation.guardrails[2].details["halt_level"]},
        states={},
    )

    assert again[name].to_bytes() == after.of("recovery_time").halt.to_bytes()


def test_a_score_that_was_not_stored_cannot_be_replayed():
    with pytest.raises(AnalysisError, match="no stored score 'a'; stored are b"):
        rejudge.replay(
            {"b": (1, 0)},
            design=judge.design_of(worlds.world(1, 1, hours=1)),
            seed=1,
            resamples=1,
            levels={"a": "1/20"},
            states={},
        )


def test_a_stored_evaluation_is_json():
    samples = drawn(5)

    for evaluation in replayed(samples, ALL):
        for guardrail in evaluation.guardrails:
            json.dumps(guardrail.details, allow_nan=False)


def reordered(samples: Samples, rng: np.random.Generator) -> Samples:
    """The same reports in another order of rows."""

    def shuffled(table: object, *names: str) -> object:
        order = rng.permutation(len(getattr(table, names[0])))
        return replace(table, **{name: getattr(table, name)[order] for name in names})

    assert samples.faults is not None
    return replace(
        samples,
        faults=shuffled(samples.faults, "machine", "time_seconds", "signature"),
        observations=shuffled(
            samples.observations,
            "machine",
            "start_seconds",
            "end_seconds",
            "in_service_seconds",
            "throughput",
            "workload",
        ),
        recoveries=shuffled(
            samples.recoveries,
            "machine",
            "time_seconds",
            "recovered_seconds",
            "recovery_seconds",
            "repeated_seconds",
            "path",
        ),
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_never_changes_a_verdict(seed):
    samples = drawn(seed)

    one = replayed(samples, ALL)
    other = replayed(reordered(samples, np.random.default_rng(seed)), ALL)

    assert [verdicts(one, k) for k in range(7)] == [verdicts(other, k) for k in range(7)]
    assert decisions(one) == decisions(other)


def test_the_unit_of_throughput_never_changes_a_verdict():
    samples = drawn(1)
    rows = samples.observations
    scaled = replace(samples, observations=replace(rows, throughput=rows.throughput / 1024))

    assert decisions(replayed(samples, ALL)) == decisions(replayed(scaled, ALL))


def test_codes_of_strata_are_only_names():
    samples = drawn(2)
    renamed = replace(samples, units=replace(samples.units, stratum=samples.units.stratum * 10 + 7))

    assert replayed(samples, ALL) == replayed(renamed, ALL)


@pytest.mark.parametrize("seed", range(4))
def test_intervals_agree_with_verdicts(seed):
    samples = replace(drawn(seed), known_signatures=None)
    policy = worlds.policy(FAULTS, THROUGHPUT, RECOVERY, SEVERE, resamples=499)

    for evaluation in replayed(samples, policy, number=8):
        faults, throughput, recovery, severe = evaluation.guardrails
        for guardrail, tolerated, margin in ((faults, 1, 2), (recovery, 1, 1.5), (severe, 0, 0.15)):
            low, high = guardrail.repeated.low, guardrail.repeated.high
            assert guardrail.crossed is (low is not None and low >= tolerated and low > 0) or (
                low == tolerated
            )
            if not guardrail.crossed:
                assert guardrail.shown is (high is not None and high <= margin) or high == margin
        low, high = throughput.repeated.low, throughput.repeated.high
        assert throughput.crossed is (high is not None and high <= 0.99)
        if not throughput.crossed:
            assert throughput.shown is (low is not None and low >= 0.98)


# --- exactness by enumeration ----------------------------------------------------------------


def crossing_share(make, guardrail, *, number: int, level: float, attribute: str) -> Fraction:
    """Share of the assignments of 3 of 9 whose own replay ends in the claim."""
    hits, total = 0, 0
    for canaries in combinations(range(9), 3):
        is_canary = np.isin(np.arange(9), canaries)
        samples = make(is_canary)
        samples = replace(samples, units=replace(samples.units, is_canary=is_canary))
        policy = worlds.policy(guardrail, alpha=level, beta=level)
        last = replayed(samples, policy, number=number)[-1].guardrails[0]
        hits += bool(getattr(last, attribute))
        total += 1
    assert total == 84
    return Fraction(hits, total)


def speeds(seed: int) -> np.ndarray:
    """Heavy-tailed hourly values of nine machines, one stuck at zero for a while."""
    rng = np.random.default_rng(seed)
    values = 100 * (1 + 0.02 * rng.standard_t(2, (9, 24)))
    values[4, 3:9] = 0.0
    return np.maximum(values, 0.0)


def slowed(seed: int, drop: float):
    def make(is_canary: np.ndarray) -> Samples:
        value = speeds(seed) * np.where(is_canary, 1 - drop, 1.0)[:, None]
        machine, hour = np.divmod(np.arange(9 * 24), 24)
        rows = worlds.observation_rows(machine, hour.astype(float), value.reshape(-1))
        return worlds.world(3, 6, hours=24, observations=rows)

    return make


@pytest.mark.parametrize("seed", range(2))
def test_the_tolerated_drop_halts_no_more_often_than_its_level(seed):
    share = crossing_share(slowed(seed, 0.01), THROUGHPUT, number=4, level=0.2, attribute="crossed")

    assert 0 < share <= Fraction(1, 5)


@pytest.mark.parametrize("seed", range(2))
def test_a_drop_at_the_margin_is_shown_no_more_often_than_its_level(seed):
    no_halt = replace(THROUGHPUT, halt=False)

    share = crossing_share(slowed(seed, 0.02), no_halt, number=4, level=0.2, attribute="shown")

    assert 0 < share <= Fraction(1, 5)


def test_the_sharp_null_of_faults_halts_no_more_often_than_its_level():
    rows = [(0, 1.0), (0, 30.0), (1, 2.0), (2, 5.0), (2, 28.0), (2, 60.0), (5, 50.0), (8, 70.0)]

    share = crossing_share(
        lambda _: worlds.world(3, 6, hours=72, faults=worlds.faults(rows)),
        FAULTS,
        number=6,
        level=0.2,
        attribute="crossed",
    )

    assert 0 < share <= Fraction(1, 5)


def test_recovery_at_the_margin_is_shown_no_more_often_than_its_level():
    rng = np.random.default_rng(8)
    minutes = np.exp(rng.normal(3.0, 1.2, 27))  # some over 8 h, so that the limit bites

    def make(is_canary: np.ndarray) -> Samples:
        rows = [
            (i % 9, 0.5 + i, float(m) * (1.5 if is_canary[i % 9] else 1.0))
            for i, m in enumerate(minutes)
        ]
        return worlds.world(3, 6, hours=72, recoveries=worlds.recoveries(rows))

    no_halt = replace(RECOVERY, halt=False)
    share = crossing_share(make, no_halt, number=4, level=0.2, attribute="shown")

    assert 0 < share <= Fraction(1, 5)


# --- jobs that mix the arms ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "purity", "expected"),
    [
        ("job", 0.4, Verdict.NO_DATA),
        ("job", 0.95, Verdict.NOT_WORSE),
        ("job", None, Verdict.NOT_WORSE),
        ("machine", 0.4, Verdict.NOT_WORSE),
    ],
)
def test_throughput_that_mixed_jobs_share_is_not_estimable(scope, purity, expected):
    samples = worlds.world(
        20,
        60,
        hours=24,
        observations=worlds.reports(even_speeds(20, 60), hours=24),
        purity=purity,
    )
    plan = worlds.live(samples)

    evaluations = replayed(samples, worlds.policy(replace(THROUGHPUT, scope=scope)), plan=plan)

    assert verdicts(evaluations)[-1] is expected
    widened = any(kind is DecisionKind.WIDEN for kind, _ in decisions(evaluations))
    assert widened == (expected is Verdict.NOT_WORSE)


def test_labels_are_the_same_for_threads_that_evict_each_other():
    sizes = [(4, 16 + extra) for extra in range(8)] * 4
    with ThreadPoolExecutor(max_workers=8) as pool:
        drawn = list(
            pool.map(
                lambda size: (
                    judge.labels_for(worlds.world(*size, hours=24), worlds.policy(THROUGHPUT)).paths
                ),
                sizes,
            )
        )

    assert drawn == drawn[:8] * 4


def test_canaries_gone_dark_do_not_hide_among_reports_that_get_lost():
    # From hour 30 on four of 64 canaries are silent for good, while one report in twenty of
    # everybody gets lost: at a single look that noise may cover them, and nothing may widen.
    rows = worlds.reports(even_speeds(64, 256), hours=72)
    hour = rows.start_seconds / HOUR
    lost = np.random.default_rng(5).random(hour.size) < 0.05
    keep = ~lost & ~((rows.machine < 4) & (hour >= 30))
    kept = worlds.observation_rows(rows.machine[keep], hour[keep], rows.throughput[keep])
    samples = replace(worlds.world(64, 256, hours=72, observations=kept), interval_seconds=HOUR)

    evaluations = replayed(samples, worlds.policy(replace(THROUGHPUT, margin=0.0101)), number=72)

    later = evaluations[34:]
    assert set(verdicts(later)) == {Verdict.NO_DATA}


def test_repeated_work_is_not_known_before_the_interruption_is_over():
    # Ten canaries stand for three hours from hour 2 on, and then repeat four hours of work.
    rows = worlds.recoveries([(machine, 2.0, 180.0) for machine in range(10)], repeated=4 * HOUR)
    samples = worlds.world(10, 30, hours=8, recoveries=rows)

    evaluations = replayed(samples, worlds.policy(LOST_WORK), number=8)

    lost = [evaluation.guardrails[0].estimate for evaluation in evaluations]
    assert lost[3] == pytest.approx(2**0.5)  # at hour 4: two hours so far
    assert lost[5] == pytest.approx(7**0.5)  # at hour 6: three hours, and four repeated
