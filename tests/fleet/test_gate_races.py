"""Two at one gate at once: one review, one claim, one result; a fault is never overtaken."""

from datetime import timedelta
from functools import partial

import pytest

from fleet import services
from fleet.errors import FleetError, IllegalGateMove
from fleet.lifecycle import State
from fleet.models import CheckResult, Gate, GateCheck, GateEvent, Machine, StateChange
from tests.factories import (
    NOW,
    make_fault_report,
    make_gate,
    make_machine,
    make_user,
    pass_gate,
    read_gate,
)
from tests.fleet.test_races import at_once

pytestmark = pytest.mark.django_db(transaction=True)

TRIES = 5


def waiting_gate():
    machine = make_machine(versions={"bmc": "4.1"})
    gate = make_gate(machine)
    Gate.objects.filter(pk=gate.pk).update(status="awaiting_review", review="human")
    Machine.objects.filter(pk=machine.pk).update(state=State.AWAITING_RELEASE)
    return Gate.objects.get(pk=gate.pk)


def review(gate, *, is_accepted, now=NOW):
    fresh = Gate.objects.get(pk=gate.pk)
    return partial(
        services.review_gate,
        fresh,
        is_accepted=is_accepted,
        user=make_user(),
        reason="read",
        now=now,
    )


def test_of_two_reviewers_one_decides():
    for _ in range(TRIES):
        gate = waiting_gate()

        results = at_once(review(gate, is_accepted=True), review(gate, is_accepted=False))

        refused = [one for one in results if isinstance(one, FleetError)]
        moves = StateChange.objects.filter(machine=gate.machine, old_state=State.AWAITING_RELEASE)
        assert [type(one) for one in refused] == [IllegalGateMove]
        assert moves.count() == 1
        assert GateEvent.objects.filter(gate=gate, kind__in=["accept", "reject"]).count() == 1


def test_of_two_automations_one_claims_the_check():
    for _ in range(TRIES):
        gate = read_gate(make_gate(make_machine(versions={"bmc": "4.1"})))
        check = gate.checks.get(name="settings")
        copies = [GateCheck.objects.get(pk=check.pk) for _ in range(2)]

        results = at_once(
            *(
                partial(services.claim_check, copy, actor=f"runner {number}", now=NOW)
                for number, copy in enumerate(copies)
            )
        )

        assert sum(isinstance(one, FleetError) for one in results) == 1


def test_a_result_told_twice_at_once_counts_once():
    for _ in range(TRIES):
        gate = read_gate(make_gate(make_machine(versions={"bmc": "4.1"})))
        check = gate.checks.get(name="settings")
        token = services.claim_check(check, actor="runner", now=NOW).claim_token
        outcome = services.Outcome(value=0.0, unit="settings", reference="log")
        tell = partial(services.report_result, actor="runner", now=NOW, token=token, key="run")

        results = at_once(
            *(partial(tell, GateCheck.objects.get(pk=check.pk), outcome) for _ in range(2))
        )

        assert len({one.pk for one in results if isinstance(one, CheckResult)}) == 1
        assert CheckResult.objects.filter(gate_check=check).count() == 1


def test_a_fault_and_a_release_at_once_never_leave_a_release_upon_the_fault():
    for number in range(TRIES):
        gate = waiting_gate()
        later = NOW + timedelta(minutes=1)
        report = make_fault_report(gate.machine, time=later, source_key=f"f{number}")

        at_once(
            review(gate, is_accepted=True, now=later),
            partial(services.record, [report], source="host", key=f"f{number}", now=later),
        )
        services.void_gates(now=later)

        machine = Machine.objects.get(pk=gate.machine_id)
        status = Gate.objects.get(pk=gate.pk).status
        # Whichever came first: released before the fault was told, or void and not released.
        assert (status, machine.state) in {
            ("passed", State.IN_SERVICE),
            ("void", State.AWAITING_DIAGNOSIS),
        }


def test_a_release_and_a_cordon_at_once_leave_the_cordon_standing():
    for _ in range(TRIES):
        gate = waiting_gate()
        machine = Machine.objects.get(pk=gate.machine_id)

        at_once(
            review(gate, is_accepted=True),
            partial(services.cordon, machine, owner="ann", reason="fan", now=NOW),
        )

        machine.refresh_from_db()
        assert (machine.state, machine.may_take_work) == (State.IN_SERVICE, False)
        assert machine.cordons.filter(lifted_at=None).count() == 1


def test_a_release_and_an_order_to_take_out_at_once_leave_the_machine_out_of_work():
    for _ in range(TRIES):
        gate = waiting_gate()
        machine = Machine.objects.get(pk=gate.machine_id)
        order = partial(services.take_out, machine, actor="a", reason="x", at_once=True, now=NOW)

        at_once(review(gate, is_accepted=True), order)
        services.clear_strays(now=NOW)

        machine.refresh_from_db()
        assert (machine.state, machine.may_take_work) == (State.AWAITING_DIAGNOSIS, False)
        assert not machine.take_outs.filter(ended_at=None).exists()
        assert Gate.objects.get(pk=gate.pk).status in ("passed", "void")


def test_two_workers_open_a_missing_gate_once():
    for _ in range(TRIES):
        machine = make_machine(versions={"bmc": "4.1"}, state=State.AWAITING_VALIDATION)

        at_once(*[partial(services.open_missing_gates, now=NOW)] * 2)

        assert machine.gates.count() == 1


def test_two_workers_doubt_a_gate_once():
    for number in range(TRIES):
        machine = make_machine(versions={"bmc": "4.1"})
        hour = timedelta(hours=1)
        pass_gate(make_gate(machine), reviewer=make_user(), now=NOW + 2 * hour)
        report = make_fault_report(machine, time=NOW + hour, signature="xid.79")
        services.record([report], source="host", key=f"late {number}", now=NOW + 3 * hour)

        at_once(*[partial(services.doubt_gates, now=NOW + 3 * hour)] * 2)

        assert machine.gates.get().events.filter(kind="doubted").count() == 1
        assert machine.take_outs.count() == 1


def test_an_expired_glass_and_a_check_of_the_old_gate_at_once_show_nothing_by_it():
    for _ in range(TRIES):
        machine = make_machine(versions={"bmc": "4.1"})
        gate = read_gate(make_gate(machine))
        until = NOW + timedelta(hours=1)
        machine.refresh_from_db()
        services.break_glass(machine, user=make_user(), reason="x", until=until, now=NOW)
        outcome = services.Outcome(0.0, "settings", reference="log")
        check = gate.checks.get(name="settings")

        at_once(
            partial(services.end_break_glasses, now=until),
            partial(services.report_result, check, outcome, actor="a", now=until),
        )

        assert not check.results.exists()
        assert machine.take_outs.filter(ended_at=None).count() == 1
        assert not Machine.objects.get(pk=machine.pk).may_take_work
