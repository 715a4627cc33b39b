"""A machine comes back only through its gate: checks, observation, review, and newer faults."""

from datetime import timedelta

import pytest

from fleet import gate_state, services
from fleet.errors import (
    CheckClaimed,
    CheckRefused,
    GatePlanRefused,
    IllegalGateMove,
    ResultConflict,
    SameHands,
)
from fleet.lifecycle import State
from fleet.models import (
    CheckResult,
    Fault,
    Gate,
    GatePlan,
    Incident,
    Machine,
    Repair,
    StateChange,
)
from tests.factories import (
    NOW,
    make_bundle,
    make_fault_report,
    make_gate,
    make_image,
    make_machine,
    make_machines,
    make_user,
    pass_gate,
    passing_value,
    read_gate,
    run_checks,
)

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def before_a_gate(**fields):
    machine = make_machine(versions={"bmc": "4.1"}, **fields)
    gate = make_gate(machine)
    return machine, gate


def check_of(gate, name):
    return gate.checks.get(name=name)


def report(check, value, *, now=NOW, **fields):
    told = {"value": value, "unit": check.unit, "reference": "log 1"} | fields.pop("told", {})
    return services.report_result(
        check, services.Outcome(**told), **{"actor": "bench", "now": now} | fields
    )


def record_fault(machine, *, at, key="f1", **fields):
    services.record(
        [make_fault_report(machine, time=at, source_key=key, **fields)],
        source="tests",
        key=key,
        now=at,
    )


def test_an_automatic_gate_releases_a_machine_once_every_check_has_passed():
    machine, gate = before_a_gate()

    read_gate(gate)
    report(check_of(gate, "settings"), 0)
    run_checks(gate)

    machine.refresh_from_db()
    gate.refresh_from_db()
    change = StateChange.objects.filter(machine=machine).latest("pk")
    assert (gate.status, machine.state) == ("passed", State.IN_SERVICE)
    assert change.gate_record == gate
    assert machine.watch_until == NOW + timedelta(days=7)


def test_without_a_read_back_no_check_can_be_run():
    _, gate = before_a_gate()

    with pytest.raises(CheckRefused, match="first needs versions"):
        report(check_of(gate, "dcgm_r2"), 0)


def test_silence_passes_nothing():
    machine, gate = before_a_gate()
    services.read_back(gate, [], now=NOW)

    services.end_observations(now=NOW + timedelta(days=30))

    gate.refresh_from_db()
    machine.refresh_from_db()
    assert gate.read_at is None
    assert not CheckResult.objects.exists()
    assert (gate.status, machine.state) == ("open", State.AWAITING_VALIDATION)


def test_a_machine_that_runs_another_bundle_than_intended_does_not_pass():
    machine = make_machine(versions={"bmc": "4.1"})
    bundle = make_bundle(images=[make_image("bmc", "4.2")])
    services.set_desired_bundle(
        platform=machine.platform, pool="", bundle=bundle, actor=make_user(), reason="new", now=NOW
    )
    gate = make_gate(machine)

    read_gate(gate, bmc="4.1")
    wrong = check_of(gate, "versions").results.get()
    read_gate(gate, bmc="4.2", now=NOW + HOUR)

    assert gate.bundle == bundle
    assert not wrong.is_passed
    assert "bmc runs 4.1, 4.2 is wanted" in wrong.note
    assert check_of(gate, "versions").results.latest("pk").is_passed


def test_a_new_machine_of_which_nothing_is_wanted_cannot_conform():
    machine = make_machine(versions={"bmc": "4.1"}, state="registered")
    gate = make_gate(machine, kind="new_machine")

    read_gate(gate, bmc="9.9")

    assert not check_of(gate, "versions").results.get().is_passed


def test_a_failed_check_ends_the_gate_and_fails_the_validation():
    machine, gate = before_a_gate()
    read_gate(gate)
    report(check_of(gate, "settings"), 0)

    result = report(check_of(gate, "dcgm_r2"), 2)

    machine.refresh_from_db()
    gate.refresh_from_db()
    assert not result.is_passed
    assert (gate.status, machine.state) == ("failed", State.VALIDATION_FAILED)
    assert "2 tests, needed = 0 tests" in gate.closed_why


def test_a_gate_is_tried_once_more_and_not_twice():
    machine, gate = before_a_gate()
    read_gate(gate)
    report(check_of(gate, "settings"), 1)
    gate.refresh_from_db()

    again = services.retry_gate(gate, actor="ann", now=NOW + HOUR)
    read_gate(again, now=NOW + HOUR)
    report(check_of(again, "settings"), 1, now=NOW + HOUR)
    again.refresh_from_db()

    assert again.retry_of == gate
    with pytest.raises(IllegalGateMove, match="diagnose anew, or order a repair"):
        services.retry_gate(again, actor="ann", now=NOW + 2 * HOUR)
    machine.refresh_from_db()
    assert machine.state == State.VALIDATION_FAILED


def test_results_for_a_closed_gate_are_refused_with_the_allowed_moves():
    _, gate = before_a_gate()
    read_gate(gate)
    report(check_of(gate, "settings"), 1)

    with pytest.raises(IllegalGateMove, match=r"is failed: .*possible: none"):
        report(check_of(gate, "dcgm_r2"), 0)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"value": float("nan")}, "a finite number is accepted"),
        ({"value": float("inf")}, "a finite number is accepted"),
        ({"unit": "GB/s"}, "accepted: settings"),
        ({"note": "x\u202egnp.exe"}, "printable"),
        ({"reference": "a" * 501}, "at most 500"),
        ({"note": "a\x00b"}, "printable"),
    ],
)
def test_a_result_that_cannot_be_one_is_refused_and_nothing_is_kept(told, said):
    _, gate = before_a_gate()
    read_gate(gate)
    number = CheckResult.objects.count()

    with pytest.raises(CheckRefused, match=said):
        report(check_of(gate, "settings"), 0, told=told)

    assert CheckResult.objects.count() == number


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"value": None}, "no value was reported"),
        ({"reference": ""}, "no evidence was given"),
        ({"has_failed": True}, "the run itself failed"),
    ],
)
def test_what_is_missing_fails(told, said):
    machine, gate = before_a_gate()
    read_gate(gate)
    report(check_of(gate, "settings"), 0)

    result = report(check_of(gate, "dcgm_r2"), 0, told=told)

    machine.refresh_from_db()
    assert not result.is_passed
    assert said in result.note
    assert machine.state == State.VALIDATION_FAILED


def test_nobody_reports_what_the_product_reads_back_itself():
    _, gate = before_a_gate()

    with pytest.raises(CheckRefused, match="made by the product itself"):
        report(check_of(gate, "versions"), 0)


# --- automation -----------------------------------------------------------------------------------


def test_a_claimed_check_is_nobody_elses_until_the_claim_runs_out(monkeypatch):
    _, gate = before_a_gate()
    read_gate(gate)
    check = check_of(gate, "settings")
    claimed = services.claim_check(check, actor="runner 1", now=NOW)

    with pytest.raises(CheckClaimed, match="claimed by runner 1"):
        services.claim_check(check, actor="runner 2", now=NOW)
    with pytest.raises(CheckClaimed, match="claimed by runner 1"):
        report(check, 0)

    wall = claimed.claimed_until + timedelta(seconds=1)
    monkeypatch.setattr("fleet.clock.steady_time", lambda: wall)
    second = services.claim_check(check, actor="runner 2", now=NOW)
    assert second.claimed_by == "runner 2"
    with pytest.raises(CheckClaimed):
        report(check, 0, token=claimed.claim_token, key="r1")


def test_claiming_starts_the_validation():
    machine, gate = before_a_gate()
    read_gate(gate)

    services.claim_check(check_of(gate, "settings"), actor="runner", now=NOW)

    machine.refresh_from_db()
    assert machine.state == State.VALIDATING


def test_a_plan_whose_checks_take_a_day_is_not_overdue_before_that():
    machine = make_machine(versions={"bmc": "4.1"})
    gate = read_gate(make_gate(machine, kind="numerical"))

    services.claim_check(check_of(gate, "settings"), actor="runner", now=NOW)

    machine.refresh_from_db()
    assert machine.deadline_at == NOW + timedelta(hours=4 + 24)


def test_a_machine_that_was_out_again_gets_a_gate_of_its_own_each_time():
    machine, gate = before_a_gate()
    services.move_machine(machine, "take_out", actor="ann", now=NOW + HOUR)

    for trigger in ("order_repair", "start_repair", "close_repair"):
        services.move_machine(machine, trigger, actor="ann", now=NOW + 2 * HOUR)
    again = make_gate(machine, now=NOW + 2 * HOUR)

    gate.refresh_from_db()
    assert (gate.status, again.status) == ("void", "open")


def test_a_result_told_twice_under_its_key_counts_once_and_another_one_is_refused():
    _, gate = before_a_gate()
    read_gate(gate)
    check = check_of(gate, "settings")
    token = services.claim_check(check, actor="runner", now=NOW).claim_token

    first = report(check, 0, token=token, key="run-1")
    again = report(check, 0, token=token, key="run-1")

    assert first == again
    with pytest.raises(ResultConflict, match="run-1"):
        report(check, 1, token=token, key="run-1")


def test_a_passed_check_is_not_run_again():
    _, gate = before_a_gate()
    read_gate(gate)
    report(check_of(gate, "settings"), 0)

    with pytest.raises(CheckRefused, match="has passed already"):
        report(check_of(gate, "settings"), 0)


# --- observation and review -----------------------------------------------------------------------


def observed_gate(kind="host_part_swap", *, user=None, **fields):
    machine = make_machine(versions={"bmc": "4.1"})
    gate = make_gate(machine, kind=kind, **fields)
    read_gate(gate)
    return machine, run_checks(gate, user=user)


def test_checks_that_pass_begin_the_observation_and_its_end_needs_work_and_an_answer():
    machine, gate = observed_gate()
    end = gate.observe_until
    assert (gate.status, end) == ("observing", NOW + 24 * HOUR)

    services.end_observations(now=end)
    gate.refresh_from_db()
    assert gate.status == "observing"  # no work was reported

    run_checks(gate, now=end)
    services.end_observations(now=end)
    gate.refresh_from_db()
    assert gate.status == "observing"  # it has not answered since

    read_gate(gate, now=end)
    services.end_observations(now=end)
    gate.refresh_from_db()
    machine.refresh_from_db()
    assert (gate.status, machine.state) == ("awaiting_review", State.AWAITING_RELEASE)


def test_hours_that_have_not_passed_cannot_have_been_observed():
    _, gate = observed_gate()

    with pytest.raises(CheckRefused, match="the whole observation, which ends 2026-03-03 12:00"):
        report(check_of(gate, "observed_work"), 24, now=NOW + HOUR)


def test_work_that_breaks_off_in_the_observation_fails_at_once():
    machine, gate = observed_gate()

    report(check_of(gate, "observed_work"), None, now=NOW + HOUR, told={"has_failed": True})

    machine.refresh_from_db()
    assert machine.state == State.VALIDATION_FAILED


def awaiting_review(*, user=None, **fields):
    machine, gate = observed_gate(user=user, **fields)
    end = gate.observe_until
    run_checks(gate, now=end, user=user)
    read_gate(gate, now=end)
    services.end_observations(now=end)
    gate.refresh_from_db()
    return machine, gate, end


def test_whoever_ran_a_check_by_hand_does_not_review_it():
    ann, bob = make_user(), make_user()
    machine, gate, end = awaiting_review(user=ann)

    with pytest.raises(SameHands, match="reported checks of this gate"):
        services.review_gate(gate, is_accepted=True, user=ann, reason="fine", now=end)
    services.review_gate(gate, is_accepted=True, user=bob, reason="fine", now=end)

    machine.refresh_from_db()
    assert machine.state == State.IN_SERVICE


def make_repair(machine, *, kind="host_part_swap", at=NOW, **fields):
    return Repair.objects.create(
        machine=machine, kind=kind, status="closed", ordered_at=at, closed_at=at, **fields
    )


@pytest.mark.parametrize("how", ["technician", "name"])
def test_whoever_did_the_repair_does_not_review_it(how):
    ann = make_user("ann-of-the-floor")
    machine = make_machine(versions={"bmc": "4.1"})
    hands = {"technician": ann} if how == "technician" else {"technician_name": "Ann-of-the-Floor"}
    repair = make_repair(machine, **hands)
    gate = make_gate(machine, kind=repair.kind, repair=repair)
    Gate.objects.filter(pk=gate.pk).update(status="awaiting_review")

    with pytest.raises(SameHands, match="did the repair"):
        services.review_gate(gate, is_accepted=True, user=ann, reason="fine", now=NOW)


def test_a_rejected_gate_sends_the_machine_to_diagnosis():
    machine, gate, end = awaiting_review()

    services.review_gate(gate, is_accepted=False, user=make_user(), reason="odd log", now=end)

    machine.refresh_from_db()
    gate.refresh_from_db()
    assert (gate.status, machine.state) == ("failed", State.AWAITING_DIAGNOSIS)


def test_a_gate_is_reviewed_once():
    _, gate, end = awaiting_review()
    services.review_gate(gate, is_accepted=True, user=make_user(), reason="fine", now=end)

    with pytest.raises(IllegalGateMove, match="is passed"):
        services.review_gate(gate, is_accepted=False, user=make_user(), reason="no", now=end)


# --- newer faults ---------------------------------------------------------------------------------


def test_a_newer_fault_voids_the_gate_and_the_machine_goes_to_diagnosis():
    machine, gate = before_a_gate()
    record_fault(machine, at=NOW + HOUR)

    assert services.void_gates(now=NOW + HOUR) == 1
    assert services.void_gates(now=NOW + HOUR) == 0

    machine.refresh_from_db()
    gate.refresh_from_db()
    assert (gate.status, machine.state) == ("void", State.AWAITING_DIAGNOSIS)
    assert "newer fault xid.119" in gate.closed_why


def test_a_fault_of_before_the_gate_that_is_told_late_changes_nothing():
    machine, gate = before_a_gate()
    record_fault(machine, at=NOW - 72 * HOUR)

    services.void_gates(now=NOW + HOUR)

    gate.refresh_from_db()
    assert gate.status == "open"


def test_a_soft_fault_voids_nothing():
    machine, gate = before_a_gate()
    record_fault(machine, at=NOW + HOUR, signature="nvlink.replays")

    services.void_gates(now=NOW + HOUR)

    gate.refresh_from_db()
    assert gate.status == "open"


def test_a_fault_between_reading_the_review_and_the_release_voids_it():
    machine, gate, end = awaiting_review()
    record_fault(machine, at=end)

    with pytest.raises(IllegalGateMove, match="is void: newer fault"):
        services.review_gate(gate, is_accepted=True, user=make_user(), reason="fine", now=end)

    machine.refresh_from_db()
    assert machine.state == State.AWAITING_DIAGNOSIS


def test_a_result_after_a_newer_fault_is_not_kept():
    machine, gate = before_a_gate()
    read_gate(gate)
    record_fault(machine, at=NOW + HOUR)

    with pytest.raises(IllegalGateMove, match="is void"):
        report(check_of(gate, "settings"), 0, now=NOW + HOUR)


# --- which plan -----------------------------------------------------------------------------------


def test_a_second_repair_of_the_part_asks_for_the_longer_gate_and_a_person():
    machine = make_machine()
    make_repair(machine, kind="gpu_reset", component="gpu 3", at=NOW - timedelta(days=10))
    repair = make_repair(machine, kind="gpu_reset", component="gpu 5")

    gate = make_gate(machine, kind="gpu_reset", repair=repair)

    assert (gate.plan.level, gate.review) == (1, "human")
    assert "2nd repair of gpu within 28 days (gpu_reset on 2026-02-20 12:00 UTC)" in gate.why


def test_a_third_repair_of_the_part_sends_the_machine_to_the_lemon_review():
    machine = make_machine()
    for days in (20, 10):
        make_repair(machine, kind="gpu_reset", component="gpu 3", at=NOW - timedelta(days=days))
    repair = make_repair(machine, kind="gpu_swap", component="gpu 3")

    gate = make_gate(machine, kind="gpu_swap", repair=repair)

    machine.refresh_from_db()
    assert gate is None
    assert (machine.state, machine.owner_role) == (State.LEMON_REVIEW, "reliability")
    assert "3rd repair of gpu" in StateChange.objects.filter(machine=machine).latest("pk").reason


def test_after_the_lemon_review_decided_the_longest_gate_is_reviewed_by_reliability():
    machine = make_machine()
    for days in (20, 10):
        make_repair(machine, kind="gpu_reset", component="gpu 3", at=NOW - timedelta(days=days))
    Machine.objects.filter(pk=machine.pk).update(state="lemon_review", may_take_work=False)
    machine.refresh_from_db()
    services.move_machine(
        machine, "order_repair", actor="rel", now=NOW - timedelta(days=1), reason="swap it"
    )
    repair = make_repair(machine, kind="gpu_swap", component="gpu 3")

    gate = make_gate(machine, kind="gpu_swap", repair=repair)

    assert gate is not None
    assert (gate.plan.level, gate.review) == (1, "reliability")


def test_a_machine_that_waits_without_a_gate_gets_one_once():
    machine = make_machine(state="registered")
    services.move_machine(machine, "queue_validation", actor="inventory", now=NOW)

    assert services.open_missing_gates(now=NOW) == 1
    assert services.open_missing_gates(now=NOW) == 0

    assert Gate.objects.get(machine=machine).plan.kind == "new_machine"


def test_a_gate_taken_by_somebody_elsewhere_is_ended():
    machine, gate = before_a_gate()
    services.move_machine(machine, "suspect", actor="ann", now=NOW + HOUR)

    assert services.clear_strays(now=NOW + HOUR) == 1

    gate.refresh_from_db()
    assert gate.status == "void"
    machine.refresh_from_db()
    assert machine.state == State.LEMON_REVIEW


def test_a_new_version_of_a_plan_leaves_open_gates_what_they_had():
    _, gate = before_a_gate()
    old = gate.plan

    new = services.add_gate_plan(
        kind=old.kind,
        level=old.level,
        title="Ours",
        checks=old.checks[:-1],
        workload="none",
        observation_hours=0,
        review="human",
        author=make_user(),
    )
    later = make_gate(make_machine(versions={"bmc": "4.1"}))

    gate.refresh_from_db()
    assert (new.version, gate.plan) == (2, old)
    assert later.plan == new


def test_a_plan_that_leaves_out_conformance_is_refused_with_everything_that_is_wrong():
    with pytest.raises(GatePlanRefused) as caught:
        services.add_gate_plan(
            kind="gpu_swop",
            level=0,
            title="Ours",
            checks=[{"name": "x", "title": "X", "stage": "soon", "rule": {"kind": "~"}}],
            workload="none",
            observation_hours=-1,
            review="nobody",
            author=make_user(),
        )

    assert len(caught.value.reasons) == 5


# --- the fleet's own norm -------------------------------------------------------------------------


def test_a_threshold_follows_the_fleets_own_norm_once_enough_machines_have_passed():
    first = GatePlan.objects.get(kind="gpu_reset", level=0)
    loop = next(one for one in first.checks if one["name"] == "nccl_loopback")
    for machine in make_machines(10, versions={"bmc": "4.1"}):
        gate = read_gate(make_gate(machine))
        report(check_of(gate, "settings"), 0)
        report(check_of(gate, "dcgm_r2"), 0)
        report(check_of(gate, "nccl_loopback"), 500)
    _, gate = before_a_gate()
    read_gate(gate)
    report(check_of(gate, "settings"), 0)
    report(check_of(gate, "dcgm_r2"), 0)

    result = report(check_of(gate, "nccl_loopback"), 450)

    assert passing_value(loop["rule"]) < 450
    assert not result.is_passed
    assert result.threshold == ">= 475 GB/s (5% of the fleet's median 500 of 10)"


# --- partners -------------------------------------------------------------------------------------


def test_a_partner_is_alike_good_and_kept_from_work_until_the_gate_is_over():
    good = make_machine("p-good", versions={"bmc": "4.1"})
    make_machine("p-busy", versions={"bmc": "4.1"}, job="j1")
    make_machine("p-other", versions={"bmc": "4.0"})
    faulty = make_machine("p-faulty", versions={"bmc": "4.1"})
    record_fault(faulty, at=NOW - HOUR)
    gate = make_gate(make_machine(versions={"bmc": "4.1"}), kind="gpu_swap")

    partner = services.reserve_partner(gate, actor="ann", now=NOW)
    services.return_partners(now=NOW)

    good.refresh_from_db()
    assert partner == good
    assert gate.checks.filter(needs_partner=True).exists()
    assert not good.may_take_work
    Gate.objects.filter(pk=gate.pk).update(status="void")
    services.return_partners(now=NOW)
    good.refresh_from_db()
    assert good.may_take_work


# --- a wave's gates -------------------------------------------------------------------------------


def wave_gate(machine, *, is_smoke=False, made_for="rollout:7/wave:1", wrong=0.0):
    found = {
        name: services.Found(wrong if name == "versions" else 0.0, "read back")
        for name in ("versions", "parts", "faults")
    }
    return services.open_firmware_gate(
        machine,
        made_for=made_for,
        bundle=None,
        why="installed",
        found=found,
        is_smoke=is_smoke,
        actor="rollout:7",
        now=NOW,
    )


def test_the_gates_of_a_wave_are_reviewed_at_once_by_an_owner_of_the_rollout():
    owner = make_user()
    gates = [wave_gate(machine) for machine in make_machines(3)]

    with pytest.raises(SameHands):
        services.review_wave_gates(
            "rollout:7/wave:1", user=make_user(), owners=[owner.pk], reason="ok", now=NOW
        )
    done = services.review_wave_gates(
        "rollout:7/wave:1", user=owner, owners=[owner.pk], reason="ok", now=NOW
    )

    assert (done.accepted, {Gate.objects.get(pk=one.pk).status for one in gates}) == (3, {"passed"})


def test_the_heavy_drill_is_asked_for_in_the_smoke_wave_only():
    smoke, later = make_machines(2)

    drilled = wave_gate(smoke, is_smoke=True)
    usual = wave_gate(later, made_for="rollout:7/wave:2")

    assert drilled.checks.filter(name="recovery_drill").exists()
    assert drilled.status == "open"
    assert not usual.checks.filter(name="recovery_drill").exists()
    assert usual.status == "awaiting_review"
    with pytest.raises(IllegalGateMove, match="checks of"):
        services.review_wave_gates(
            "rollout:7/wave:1", user=make_user(), owners=[], reason="ok", now=NOW
        )


def test_the_review_of_a_wave_does_not_grow_with_its_machines(django_assert_max_num_queries):
    owner = make_user()
    for machine in make_machines(30):
        wave_gate(machine)

    with django_assert_max_num_queries(12):
        done = services.review_wave_gates(
            "rollout:7/wave:1", user=owner, owners=[owner.pk], reason="ok", now=NOW
        )

    assert done.accepted == 30


def test_a_gate_says_what_is_missing():
    _, gate = before_a_gate()

    words = gate_state.missing(gate, gate_state.check_states(gate), now=NOW)

    assert any("has not answered a read-back yet" in word for word in words)


def test_everything_at_once_by_the_factory():
    machine = make_machine(versions={"bmc": "4.1"})
    incident = Incident.objects.none()
    gate = make_gate(machine, kind="thermal", incident=incident.first())

    gate = pass_gate(gate, reviewer=make_user())

    machine.refresh_from_db()
    assert (gate.status, machine.state) == ("passed", State.IN_SERVICE)


def test_a_machine_that_cannot_reach_the_intended_bundle_is_incompatible():
    machine = make_machine(versions={"bmc": "5.0"})
    bundle = make_bundle(images=[make_image("bmc", "4.2", is_downgrade_allowed=False)])
    services.set_desired_bundle(
        platform=machine.platform, pool="", bundle=bundle, actor=make_user(), reason="new", now=NOW
    )
    gate = make_gate(machine)

    read_gate(gate)

    assert check_of(gate, "versions").results.get().note.startswith("incompatible: bmc: ")


def test_a_wave_gate_that_nobody_reviewed_makes_way_for_the_gate_of_a_repair():
    machine = make_machine(versions={"bmc": "4.1"})
    old = wave_gate(machine)

    gate = make_gate(machine)

    old.refresh_from_db()
    assert (old.status, gate.status) == ("void", "open")


def test_a_wave_gate_beside_an_ended_one_does_not_hide_a_machine_that_waits():
    machine = make_machine(versions={"bmc": "4.1"})
    gate = make_gate(machine)
    Gate.objects.filter(pk=gate.pk).update(status="void")
    wave_gate(machine)

    assert services.open_missing_gates(now=NOW) == 1


def test_a_newer_fault_voids_a_gate_of_a_wave_and_leaves_its_machine_to_the_comparison():
    machine = make_machine(versions={"bmc": "4.1"})
    gate = wave_gate(machine)
    record_fault(machine, at=NOW + HOUR)

    services.void_gates(now=NOW + HOUR)

    gate.refresh_from_db()
    machine.refresh_from_db()
    assert (gate.status, machine.state) == ("void", State.IN_SERVICE)


def test_machines_that_conform_are_not_read_again_until_their_observation_is_over():
    _machine, gate = observed_gate()
    end = gate.observe_until

    assert services.due_for_reading(now=NOW + HOUR) == []
    assert services.due_for_reading(now=end) == [gate]

    read_gate(gate, now=end)
    assert services.due_for_reading(now=end + HOUR) == []


def test_a_fault_by_a_clock_that_ran_ahead_is_told_at_the_time_it_was_heard():
    machine, gate = before_a_gate()
    services.record(
        [make_fault_report(machine, time=NOW + 9 * HOUR, source_key="f1")],
        source="tests",
        key="f1",
        now=NOW + HOUR,
    )

    services.void_gates(now=NOW + HOUR)

    gate.refresh_from_db()
    heard = Fault.objects.get()
    assert heard.is_ahead
    assert f"at {heard.received_at:%Y-%m-%d %H:%M} UTC" in gate.closed_why
