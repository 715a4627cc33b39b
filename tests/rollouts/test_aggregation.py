"""Rows to samples: what had arrived of a wave's roster by a cutoff."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from fleet.models import (
    Fault,
    FaultSignature,
    FirmwareImage,
    Machine,
    Observation,
    Platform,
    Recovery,
    StateChange,
)
from rollouts import policies
from rollouts.aggregation import before, samples_for
from rollouts.aggregation.reading import PRE_DAYS
from rollouts.analysis import judge
from rollouts.analysis.errors import UnitMismatch
from rollouts.analysis.wave import Look, WavePlan
from rollouts.errors import MixedUnit
from rollouts.models import Assignment, Attempt, Block, Membership, Rollout, Wave
from tests import factories

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 2, 10, tzinfo=UTC)
CLOCK = START + timedelta(hours=2)
AS_OF = CLOCK + timedelta(hours=6)


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


def make_wave(
    canaries: list[Machine],
    controls: list[Machine],
    *,
    clocks: list[datetime | None] | None = None,
    blocks: dict[str, int] | None = None,
    units: dict[str, str] | None = None,
    strata: dict[str, str] | None = None,
) -> Wave:
    """A wave whose machines lie in block 1 and stratum `s` unless told otherwise."""
    rollout = Rollout.objects.create(
        name=f"rollout {Rollout.objects.count()}",
        bundle=factories.make_bundle(),
        selector="platform=dgx-h100",
        plan={},
        seed=1,
        author=factories.make_user(),
        created_at=START,
    )
    wave = Wave.objects.create(
        rollout=rollout,
        number=1,
        size=len(canaries),
        window_hours=72.0,
        status="observing",
        started_at=START,
        clock_start=CLOCK,
    )
    made = [
        Block.objects.create(wave=wave, number=number, started_at=START, clock_start=clock)
        for number, clock in enumerate(clocks or [CLOCK], 1)
    ]
    Membership.objects.bulk_create(
        Membership(
            wave=wave,
            block=made[(blocks or {}).get(machine.name, 1) - 1],
            machine=machine,
            unit=(units or {}).get(machine.name, machine.name),
            stratum=(strata or {}).get(machine.name, "s"),
            arm=arm,
        )
        for arm, machines in (("canary", canaries), ("control", controls))
        for machine in machines
    )
    return wave


def machines(*names: str, **fields: Any) -> list[Machine]:
    return factories.make_machines(len(names), names=names, **fields)


def observe(machine: Machine, *, end: datetime, received: datetime | None = None, **fields: Any):
    return Observation.objects.create(
        **{
            "machine": machine,
            "start": end - hours(1),
            "end": end,
            "in_service_seconds": 3600.0,
            "throughput": 1.0,
            "workload": "pretraining",
            "source": "tests",
            "source_key": f"{machine.name} {end} {fields.get('workload', '')}",
            "received_at": received or end,
        }
        | fields
    )


def fail(machine: Machine, *, at: datetime, signature: str = "xid.48", **fields: Any) -> Fault:
    kind = fields.pop("kind", FaultSignature.Kind.HARD)
    row, _ = FaultSignature.objects.get_or_create(name=signature, defaults={"kind": kind})
    return Fault.objects.create(
        **{
            "machine": machine,
            "time": at,
            "signature": row,
            "severity": "major",
            "source": "tests",
            "source_key": f"{machine.name} {at.isoformat()} {signature}",
            "received_at": at,
        }
        | fields
    )


def interrupt(machine: Machine, *, at: datetime, key: str, **fields: Any) -> Recovery:
    return Recovery.objects.create(
        **{
            "machine": machine,
            "time": at,
            "source": "tests",
            "source_key": key,
            "received_at": fields.get("recovered_at") or at,
        }
        | fields
    )


def attempt(wave: Wave, machine: Machine, *, finished: datetime | None, **fields: Any) -> Attempt:
    return Attempt.objects.create(
        **{
            "rollout": wave.rollout,
            "wave": wave,
            "block": wave.blocks.get(number=1),
            "machine": machine,
            "epoch": 0,
            "targets": [],
            "status": "succeeded",
            "created_at": START,
            "finished_at": finished,
        }
        | fields
    )


def move(machine: Machine, old: str, new: str, *, at: datetime) -> StateChange:
    return StateChange.objects.create(
        machine=machine,
        old_state=old,
        new_state=new,
        trigger="test",
        at=at,
        recorded_at=at,
        actor="tests",
        gate="test" if new == "in_service" else "",
    )


# --- the roster ------------------------------------------------------------------------------


def test_machines_and_units_are_in_order_of_name_whatever_their_arm():
    b, a, c = machines("b", "a", "c")

    samples = samples_for(make_wave([b], [c, a]), as_of=AS_OF)

    assert samples.machines.name == samples.units.name == ("a", "b", "c")
    assert samples.units.is_canary.tolist() == [False, True, False]
    assert samples.machines.unit.tolist() == [0, 1, 2]


def test_names_are_ordered_by_code_point_on_every_engine():
    # Collations of a database would put a-1, B and a1 in another order.
    listed = machines("a1", "B", "a-1", "ä")

    samples = samples_for(make_wave(listed[:1], listed[1:]), as_of=AS_OF)

    assert samples.machines.name == ("B", "a-1", "a1", "ä")


def test_a_stratum_is_a_cell_of_stratum_and_block():
    a, b, c, d = machines("a", "b", "c", "d")
    wave = make_wave(
        [a, b],
        [c, d],
        clocks=[CLOCK, CLOCK],
        blocks={"b": 2, "d": 2},
        strata={"d": "t"},
    )

    samples = samples_for(wave, as_of=AS_OF)

    assert samples.units.stratum.tolist() == [0, 1, 0, 2]


def test_time_counts_from_the_first_blocks_clock_and_a_block_starts_with_its_own():
    a, b, c = machines("a", "b", "c")
    wave = make_wave(
        [a],
        [b, c],
        clocks=[CLOCK, CLOCK + timedelta(hours=3, microseconds=250), None],
        blocks={"b": 2, "c": 3},
    )

    samples = samples_for(wave, as_of=AS_OF)

    assert samples.origin == CLOCK
    assert samples.as_of_seconds == 6 * 3600.0
    assert samples.window_seconds == 72 * 3600.0
    assert samples.units.clock_start_seconds.tolist() == [0.0, 10800.00025, np.inf]


def test_a_block_whose_clock_starts_after_the_cutoff_has_not_begun():
    a, b = machines("a", "b")
    wave = make_wave([a], [b], clocks=[CLOCK, AS_OF + hours(1)], blocks={"b": 2})

    samples = samples_for(wave, as_of=AS_OF)

    assert samples.units.clock_start_seconds.tolist() == [0.0, np.inf]


def test_machines_of_a_placement_unit_are_one_unit():
    a, b, c, d = machines("a", "b", "c", "d")
    wave = make_wave([a, b], [c, d], units={"a": "job2", "b": "job2", "c": "job1", "d": "job1"})

    samples = samples_for(wave, as_of=AS_OF)

    assert samples.units.name == ("job1", "job2")
    assert samples.machines.unit.tolist() == [1, 1, 0, 0]
    assert samples.units.is_canary.tolist() == [False, True]


def test_a_unit_in_both_arms_is_an_error():
    a, b = machines("a", "b")
    wave = make_wave([a], [b], units={"a": "job", "b": "job"})

    with pytest.raises(MixedUnit, match="unit 'job' differ in their arm"):
        samples_for(wave, as_of=AS_OF)


def test_a_retired_machine_keeps_its_place():
    a, b = machines("a", "b")
    wave = make_wave([a], [b])
    move(a, "in_service", "retired", at=CLOCK + hours(1))
    Machine.objects.filter(pk=a.pk).update(state="retired", may_take_work=False)

    samples = samples_for(wave, as_of=AS_OF)

    assert samples.machines.name == ("a", "b")
    assert samples.machines.left_seconds.tolist() == [np.inf, np.inf]
    assert samples.service.end_seconds.tolist() == [3600.0, np.inf]


# --- times in service ------------------------------------------------------------------------


def spans(samples) -> list[tuple[str, float, float]]:
    table = samples.service
    return [
        (samples.machines.name[m], start / 3600, end / 3600)
        for m, start, end in zip(table.machine, table.start_seconds, table.end_seconds, strict=True)
    ]


def test_service_starts_and_ends_with_the_changes_of_state():
    [a] = machines("a", now=START - hours(10))
    move(a, "in_service", "draining", at=START)
    move(a, "draining", "updating", at=START + hours(0.5))
    move(a, "verifying", "in_service", at=START + hours(1))
    move(a, "in_service", "draining", at=CLOCK + hours(4))

    samples = samples_for(make_wave([a], []), as_of=AS_OF)

    assert spans(samples) == [("a", -12.0, -2.0), ("a", -1.0, 4.0)]


def test_what_happened_after_the_cutoff_is_not_known():
    [a] = machines("a", now=START - hours(10))
    move(a, "in_service", "draining", at=AS_OF + hours(1))
    move(a, "verifying", "in_service", at=AS_OF + hours(2))

    samples = samples_for(make_wave([a], []), as_of=AS_OF)

    assert spans(samples) == [("a", -12.0, np.inf)]


def test_service_before_the_period_before_is_cut():
    [a] = machines("a", now=START - timedelta(days=400))

    samples = samples_for(make_wave([a], []), as_of=AS_OF)

    assert spans(samples) == [("a", -2.0 - 24 * PRE_DAYS, np.inf)]


def test_a_machine_without_recorded_moves_is_in_service_since_it_entered():
    platform = Platform.objects.create(name="bare")
    a, b, c = (
        Machine.objects.create(
            name=name,
            platform=platform,
            state=state,
            entered_at=START - hours(1),
            registered_at=START - hours(5),
        )
        for name, state in (("a", "in_service"), ("b", "awaiting_repair"), ("c", "draining"))
    )
    move(c, "in_service", "draining", at=CLOCK + hours(1))

    samples = samples_for(make_wave([a], [b, c]), as_of=AS_OF)

    assert spans(samples) == [("a", -3.0, np.inf), ("c", -7.0, 1.0)]


# --- telemetry -------------------------------------------------------------------------------


def test_observations_are_those_since_the_clock_that_had_happened_and_arrived():
    a, b, stranger = machines("a", "b", "stranger")
    wave = make_wave([b], [a])
    observe(a, end=CLOCK)
    observe(a, end=CLOCK + hours(1), throughput=None, in_service_seconds=1800.5)
    observe(b, end=AS_OF, throughput=0.5, workload="inference")
    observe(b, end=AS_OF + hours(1), received=AS_OF)
    observe(a, end=CLOCK + hours(2), received=AS_OF + hours(1))
    observe(stranger, end=CLOCK + hours(1))

    rows = samples_for(wave, as_of=AS_OF).observations

    assert rows.machine.tolist() == [0, 1]
    assert rows.start_seconds.tolist() == [0.0, 5 * 3600.0]
    assert rows.end_seconds.tolist() == [3600.0, 6 * 3600.0]
    assert rows.in_service_seconds.tolist() == [1800.5, 3600.0]
    assert np.isnan(rows.throughput[0])
    assert rows.throughput[1] == 0.5
    assert [rows.workloads[code] for code in rows.workload] == ["pretraining", "inference"]


def test_rows_that_arrived_by_the_evaluation_count_if_it_says_so():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    observe(a, end=AS_OF, received=AS_OF + timedelta(minutes=5))

    late = samples_for(wave, as_of=AS_OF, arrived_by=AS_OF + timedelta(minutes=5))

    assert late.observations.machine.tolist() == [0]
    assert samples_for(wave, as_of=AS_OF).observations is None


def test_rows_of_a_machine_whose_clock_ran_ahead_are_left_out():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    for machine, is_ahead in ((a, True), (b, False)):
        observe(machine, end=CLOCK + hours(1), is_ahead=is_ahead)
        fail(machine, at=CLOCK + hours(1), is_ahead=is_ahead)
        interrupt(machine, at=CLOCK + hours(1), key=machine.name, is_ahead=is_ahead)

    samples = samples_for(wave, as_of=AS_OF)

    assert samples.observations.machine.tolist() == [1]
    assert samples.faults.machine.tolist() == [1]
    assert samples.recoveries.machine.tolist() == [1]


def test_the_interval_is_the_median_of_what_is_reported():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    observe(a, end=CLOCK + hours(1))
    observe(a, end=CLOCK + hours(2))
    observe(b, end=CLOCK + hours(2), start=CLOCK + hours(1.5))

    assert samples_for(wave, as_of=AS_OF).interval_seconds == 3600.0


def test_a_kind_of_report_that_never_came_is_none_and_silence_is_an_empty_table():
    a, b, stranger = machines("a", "b", "stranger")
    wave = make_wave([b], [a])

    nothing = samples_for(wave, as_of=AS_OF)
    observe(stranger, end=START)
    interrupt(stranger, at=START, key="r")
    silence = samples_for(wave, as_of=AS_OF)

    assert nothing.observations is nothing.faults is nothing.recoveries is None
    assert silence.observations.machine.size == 0
    assert silence.faults.machine.size == 0
    assert silence.recoveries.machine.size == 0


def test_faults_are_in_order_with_their_own_severity_and_microseconds():
    a, b, stranger = machines("a", "b", "stranger")
    wave = make_wave([b], [a])
    # Rounding to milliseconds would carry this one into the next second.
    fail(b, at=CLOCK + timedelta(seconds=59, microseconds=999_750), signature="xid.79")
    fail(b, at=CLOCK + timedelta(seconds=5), severity="critical")
    fail(a, at=CLOCK + hours(1))
    fail(a, at=CLOCK - hours(24))
    fail(a, at=AS_OF + hours(1), received_at=AS_OF)
    fail(a, at=CLOCK + hours(2), received_at=AS_OF + hours(1))
    fail(stranger, at=CLOCK + hours(1))

    faults = samples_for(wave, as_of=AS_OF).faults

    assert faults.machine.tolist() == [0, 0, 1, 1]
    assert faults.time_seconds.tolist() == [-86400.0, 3600.0, 5.0, 59.99975]
    assert [faults.signatures[code] for code in faults.signature] == [
        "xid.48",
        "xid.48",
        "xid.48",
        "xid.79",
    ]
    assert faults.severity == ("major", "major", "critical", "major")


def test_signatures_that_do_not_count_are_left_out_and_unknown_ones_are_not():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    fail(a, at=CLOCK, signature="test.user-error", kind=FaultSignature.Kind.NOT_COUNTED)
    fail(a, at=CLOCK, signature="test.never-heard-of", kind=FaultSignature.Kind.UNKNOWN)

    assert samples_for(wave, as_of=AS_OF).faults.signatures == ("test.never-heard-of",)


def test_a_closed_recovery_wins_over_its_open_row():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    interrupt(a, at=CLOCK + hours(1), key="one")
    interrupt(
        a,
        at=CLOCK + hours(1),
        key="one",
        recovered_at=CLOCK + hours(1.5),
        path="replica_restarted",
        repeated_seconds=60.0,
    )
    interrupt(b, at=CLOCK + hours(2), key="two")
    interrupt(b, at=CLOCK - hours(1), key="before")

    rows = samples_for(wave, as_of=AS_OF).recoveries

    assert rows.machine.tolist() == [0, 1]
    assert rows.time_seconds.tolist() == [3600.0, 7200.0]
    np.testing.assert_array_equal(rows.recovered_seconds, [5400.0, np.nan])
    np.testing.assert_array_equal(rows.recovery_seconds, [1800.0, np.nan])
    np.testing.assert_array_equal(rows.repeated_seconds, [60.0, np.nan])
    assert [rows.paths[code] for code in rows.path] == ["replica_restarted", ""]


def test_a_recovery_that_closed_after_the_cutoff_is_still_open():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    interrupt(a, at=AS_OF - hours(1), key="one")
    interrupt(a, at=AS_OF - hours(1), key="one", recovered_at=AS_OF + hours(1), path="job_lost")

    rows = samples_for(wave, as_of=AS_OF).recoveries

    assert rows.machine.tolist() == [0]
    assert np.isnan(rows.recovered_seconds[0])


def test_the_same_source_key_of_another_source_is_another_recovery():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    interrupt(a, at=CLOCK + hours(1), key="one")
    interrupt(b, at=CLOCK + hours(1), key="one", source="other", recovered_at=CLOCK + hours(2))

    assert samples_for(wave, as_of=AS_OF).recoveries.machine.tolist() == [0, 1]


def test_finished_attempts_come_in_order_of_finishing_and_only_triage_says_bricked():
    a, b, c, d, e = machines("a", "b", "c", "d", "e")
    wave = make_wave([a, b, c, d], [e])
    attempt(wave, a, finished=START + hours(1.5), status="never_returned", triage="bricked")
    attempt(wave, b, finished=START + hours(1), status="timed_out")
    attempt(wave, c, finished=START + hours(1.2), status="never_returned", triage="recovered")
    attempt(wave, d, finished=None, status="staging")
    attempt(wave, d, finished=START, status="called_off", number=2)

    rows = samples_for(wave, as_of=AS_OF).attempts

    assert rows.machine.tolist() == [1, 2, 0]
    assert [rows.outcomes[code] for code in rows.outcome] == [
        "timed_out",
        "never_returned",
        "bricked",
    ]


# --- the period before -----------------------------------------------------------------------


def test_the_fault_covariate_is_the_count_before_the_wave():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    for number in range(4):
        fail(a, at=START - hours(1 + number))
    fail(b, at=START - timedelta(days=PRE_DAYS, hours=1))
    fail(b, at=START + hours(1))  # after the wave's start: the arms may differ already

    assert samples_for(wave, as_of=AS_OF).units.covariates["faults"].tolist() == [4.0, 0.0]


def test_the_throughput_covariate_is_relative_to_the_workloads_own_level():
    a, b, c = machines("a", "b", "c")
    wave = make_wave([a], [b, c])
    observe(a, end=START - hours(3), throughput=90.0, workload="slow")
    observe(b, end=START - hours(3), throughput=110.0, workload="slow")
    observe(a, end=START - hours(2), throughput=1.0, workload="fast")
    observe(a, end=START - hours(1), throughput=2.0, workload="fast")
    observe(a, end=START + hours(1), throughput=0.1, workload="fast")
    observe(b, end=START - hours(1), received=START + hours(1), throughput=0.1, workload="fast")

    covariate = samples_for(wave, as_of=AS_OF).units.covariates["throughput"]

    # a: 90/100 on slow, 1.5/1.5 on fast; b: 110/100; c reported nothing.
    np.testing.assert_allclose(covariate, [0.95, 1.1, np.nan])


def test_the_covariates_do_not_change_from_look_to_look():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    observe(a, end=START - hours(1), throughput=0.9)
    first = samples_for(wave, as_of=CLOCK + hours(1))
    observe(a, end=CLOCK + hours(2), throughput=0.2)

    second = samples_for(wave, as_of=AS_OF)

    for metric, values in first.units.covariates.items():
        np.testing.assert_array_equal(values, second.units.covariates[metric])


def test_known_signatures_are_those_that_the_whole_fleet_showed_before():
    a, b, stranger = machines("a", "b", "stranger")
    wave = make_wave([b], [a])
    fail(stranger, at=START - timedelta(days=300), signature="test.old")
    fail(b, at=CLOCK + hours(1), signature="test.new")

    assert samples_for(wave, as_of=AS_OF).known_signatures == {"test.old"}


def test_the_install_baseline_comes_from_completed_rollouts_of_the_same_activation(monkeypatch):
    a, b, c, d = machines("a", "b", "c", "d")
    past = make_wave([a, b, c], [d])
    attempt(past, a, finished=START - hours(50), status="timed_out")
    attempt(past, b, finished=START - hours(50))
    attempt(past, c, finished=START - hours(50))
    wave, other = make_wave([a], [b]), make_wave([a], [b])
    FirmwareImage.objects.filter(bundles=other.rollout.bundle).update(activation="ac_cycle")
    monkeypatch.setattr(before, "LEAST_BASELINE_ATTEMPTS", 3)

    running = samples_for(wave, as_of=AS_OF).install_baseline
    Rollout.objects.filter(pk=past.rollout_id).update(
        status="completed", plan_digest="x", finished_at=START - hours(1)
    )
    completed = samples_for(wave, as_of=AS_OF).install_baseline
    unlike = samples_for(other, as_of=AS_OF).install_baseline

    assert running == unlike == before.FIELD_BASELINE
    assert completed == pytest.approx(1 / 3)


# --- size ------------------------------------------------------------------------------------


def fill(number: int) -> Wave:
    listed = machines(*[f"n{number}-{index:05}" for index in range(number)])
    wave = make_wave(listed[: number // 5], listed[number // 5 :])
    signature, _ = FaultSignature.objects.get_or_create(name="xid.48", defaults={"kind": "hard"})
    Observation.objects.bulk_create(
        Observation(
            machine=machine,
            start=end - hours(1),
            end=end,
            in_service_seconds=3600.0,
            throughput=1.0,
            source="fill",
            source_key=f"{machine.name}-{end}",
            received_at=end,
        )
        for machine in listed
        for end in (START - hours(1), CLOCK + hours(1), CLOCK + hours(2))
    )
    Fault.objects.bulk_create(
        Fault(
            machine=machine,
            time=CLOCK + hours(1),
            signature=signature,
            severity="major",
            source="fill",
            source_key=machine.name,
            received_at=CLOCK + hours(1),
        )
        for machine in listed
    )
    Recovery.objects.bulk_create(
        Recovery(
            machine=machine,
            time=CLOCK + hours(1),
            source="fill",
            source_key=machine.name,
            received_at=CLOCK + hours(1),
        )
        for machine in listed
    )
    return wave


@pytest.mark.parametrize("number", [5, 400])
def test_the_number_of_statements_does_not_grow_with_the_machines(
    number, django_assert_num_queries
):
    wave = Wave.objects.select_related("rollout").get(pk=fill(number).pk)

    with django_assert_num_queries(19):
        samples = samples_for(wave, as_of=AS_OF)

    assert len(samples.machines.name) == number
    assert samples.observations.machine.size == 2 * number
    assert samples.faults.machine.size == samples.recoveries.machine.size == number


# --- what the judge makes of it --------------------------------------------------------------


def test_the_judge_holds_while_a_block_has_not_begun_and_counts_only_the_one_that_has():
    listed = machines(*[f"n{index:02}" for index in range(40)])
    blocks = {machine.name: 1 + index % 2 for index, machine in enumerate(listed)}
    wave = make_wave(listed[:8], listed[8:], clocks=[CLOCK, None], blocks=blocks)
    for machine in listed:
        for hour in range(1, 7):
            observe(machine, end=CLOCK + hours(hour))
    fail(listed[0], at=CLOCK + hours(1))
    fail(listed[1], at=CLOCK + hours(1))
    policy = policies.policy_from(
        {"guardrails": [{"metric": "faults"}, {"metric": "throughput"}], "resamples": 199}
    )
    samples = samples_for(wave, as_of=AS_OF)
    look = Look(number=1, as_of_seconds=samples.as_of_seconds, elapsed=0.25)
    plan = WavePlan(window_seconds=samples.window_seconds, alpha=0.05)

    (outcome,), _ = judge.evaluate(
        samples, policy, plan, looks=[look], state=judge.initial_state(samples, policy)
    )

    faults = next(g for g in outcome.guardrails if g.name == "faults")
    assert outcome.recommendation.kind == "hold"
    assert (faults.canary.machines, faults.canary.events) == (4, 1)
    assert faults.control.machines == 16


# --- who works beside whom -------------------------------------------------------------------


def test_purity_is_the_share_of_exposure_in_jobs_of_one_arm():
    canaries, controls = machines("c1", "c2"), machines("k1", "k2")
    wave = make_wave(canaries, controls)
    for end, jobs in ((1, "a a b b"), (2, "a a b b"), (3, "a a a b")):
        for machine, job in zip([*canaries, *controls], jobs.split(), strict=True):
            observe(machine, end=CLOCK + hours(end), job=f"{job}{end // 3}")

    # In the third hour k1 shares a job with both canaries: they lose a third of their hours.
    assert samples_for(wave, as_of=AS_OF).purity == pytest.approx(2 / 3)


def test_an_hour_without_a_job_is_spent_alone():
    canaries, controls = machines("c1"), machines("k1", "k2")
    wave = make_wave(canaries, controls)
    for machine, job in zip([*canaries, *controls], ("a", "a", ""), strict=True):
        observe(machine, end=CLOCK + hours(1), job=job)
        observe(machine, end=CLOCK + hours(2), job="")

    assert samples_for(wave, as_of=AS_OF).purity == 0.5  # of the canary; of controls 3 of 4


def test_where_no_report_names_a_job_the_present_ones_stand_in():
    canaries, controls = machines("c1", "c2"), machines("k1", "k2")
    wave = make_wave(canaries, controls)
    assert samples_for(wave, as_of=AS_OF).purity is None

    Machine.objects.filter(name__in=("c1", "k1")).update(job="mixed")
    Machine.objects.filter(name="c2").update(job="pure")

    assert samples_for(wave, as_of=AS_OF).purity == 0.5


def test_a_job_with_a_stranger_is_mixed():
    canaries, controls = machines("c1", "c2"), machines("k1", "k2")
    wave = make_wave(canaries, controls)
    machines("stranger", job="shared")
    Machine.objects.filter(name="c1").update(job="shared")

    assert samples_for(wave, as_of=AS_OF).purity == 0.5


PLACED = {"site": "s", "leaf": "", "rack": "", "power_domain": ""}


@pytest.mark.parametrize("place", ["leaf", "rack", "power_domain", "chassis", "nvlink_domain"])
def test_who_shares_a_place_with_a_canary_is_near_it(place: str):
    canaries = machines("c1", **PLACED | {place: "1"})
    controls = [
        *machines("k1", **PLACED | {place: "1"}),
        *machines("k2", **PLACED | {place: "2"}),
        *machines("k3", **PLACED | {place: "1", "site": "elsewhere"}),
    ]
    wave = make_wave(canaries, controls)

    assert samples_for(wave, as_of=AS_OF).units.is_near_canary.tolist() == [1, 1, 0, 0]


def test_who_shared_a_job_with_a_canary_once_is_near_it():
    canaries, controls = machines("c1", leaf="1"), machines("k1", "k2", leaf="2")
    wave = make_wave(canaries, controls)
    observe(canaries[0], end=CLOCK + hours(1), job="together")
    observe(controls[0], end=CLOCK + hours(1), job="together")
    observe(controls[0], end=CLOCK + hours(2), job="alone")
    observe(controls[1], end=CLOCK + hours(2), job="alone too")

    assert samples_for(wave, as_of=AS_OF).units.is_near_canary.tolist() == [1, 1, 0]


def test_a_machine_in_no_known_place_is_never_far():
    canaries = machines("c1", **PLACED | {"leaf": "1"})
    controls = [*machines("k1", **PLACED | {"leaf": "2"}), *machines("k2", **PLACED)]
    wave = make_wave(canaries, controls)

    assert samples_for(wave, as_of=AS_OF).units.is_near_canary.tolist() == [1, 0, 1]


def test_beside_a_canary_in_no_known_place_nobody_is_far():
    canaries = [*machines("c1", **PLACED), *machines("c2", **PLACED | {"leaf": "1"})]
    wave = make_wave(canaries, machines("k1", **PLACED | {"leaf": "2"}))

    assert samples_for(wave, as_of=AS_OF).units.is_near_canary.tolist() == [1, 1, 1]


def test_without_any_place_nobody_knows_who_is_near():
    nowhere = {"rack": "", "leaf": "", "power_domain": "", "chassis": "", "nvlink_domain": ""}
    wave = make_wave(machines("c1", **nowhere), machines("k1", **nowhere))

    assert samples_for(wave, as_of=AS_OF).units.is_near_canary is None


def test_beside_a_machine_of_an_earlier_wave_nobody_is_far():
    (early,) = machines("early", **PLACED | {"leaf": "2"})
    canaries = machines("c1", **PLACED | {"leaf": "1"})
    controls = [
        *machines("k1", **PLACED | {"leaf": "2"}),
        *machines("k2", **PLACED | {"leaf": "3"}),
    ]
    wave = make_wave(canaries, controls)
    first = Wave.objects.create(rollout=wave.rollout, number=0, size=1, window_hours=1.0)
    Assignment.objects.create(
        rollout=wave.rollout,
        machine=early,
        machine_name="early",
        unit="early",
        stratum="s",
        position=0,
        planned_wave=0,
        wave=first,
    )

    assert samples_for(wave, as_of=AS_OF).units.is_near_canary.tolist() == [1, 1, 0]


def test_each_units_level_of_before_is_kept_per_workload():
    canaries, controls = machines("c1"), machines("k1")
    wave = make_wave(canaries, controls)
    observe(canaries[0], end=START - hours(1), throughput=0.9, workload="train")
    observe(canaries[0], end=START - hours(2), throughput=1.1, workload="train")
    observe(controls[0], end=START - hours(1), throughput=7.0, workload="serve")
    observe(controls[0], end=START + hours(1), throughput=99.0, workload="serve")

    levels = samples_for(wave, as_of=AS_OF).levels_before

    assert levels.workloads == ("serve", "train")
    assert levels.unit.tolist() == [0, 1]
    assert levels.workload.tolist() == [1, 0]
    assert levels.throughput.tolist() == [1.0, 7.0]


def test_units_that_the_assignment_did_not_draw_are_refused():
    canaries, controls = machines("c1", "c2"), machines("k1", "k2")
    pairs = {"c1": "a", "c2": "a", "k1": "b", "k2": "b"}
    wave = make_wave(canaries, controls, units=pairs)
    samples = samples_for(wave, as_of=AS_OF)
    policy = policies.policy_from(
        {"guardrails": [{"metric": "throughput"}]}, kind=policies.Kind.PLAN
    )

    with pytest.raises(UnitMismatch, match=r"'group of machines' .* 'machine'"):
        judge.initial_state(samples, policy)
