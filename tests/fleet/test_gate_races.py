"""Two at one gate at once: one review, one claim, one result; a fault is never overtaken."""

from functools import partial

import pytest

from fleet import services
from fleet.errors import FleetError, IllegalGateMove
from fleet.lifecycle import State
from fleet.models import CheckResult, Gate, GateCheck, GateEvent, Machine, StateChange
from tests.factories import NOW, make_fault_report, make_gate, make_machine, make_user, read_gate
from tests.fleet.test_races import at_once

pytestmark = pytest.mark.django_db(transaction=True)

TRIES = 5


def waiting_gate():
    machine = make_machine(versions={"bmc": "4.1"})
    gate = make_gate(machine)
    Gate.objects.filter(pk=gate.pk).update(status="awaiting_review", review="human")
    Machine.objects.filter(pk=machine.pk).update(state=State.AWAITING_RELEASE)
    return Gate.objects.get(pk=gate.pk)


def review(gate, *, is_accepted):
    fresh = Gate.objects.get(pk=gate.pk)
    return partial(
        services.review_gate,
        fresh,
        is_accepted=is_accepted,
        user=make_user(),
        reason="read",
        now=NOW,
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
        report = make_fault_report(gate.machine, time=NOW, source_key=f"f{number}")
        Gate.objects.filter(pk=gate.pk).update(opened_at=gate.opened_at.replace(hour=1))

        at_once(
            review(gate, is_accepted=True),
            partial(services.record, [report], source="host", key=f"f{number}", now=NOW),
        )
        services.void_gates(now=NOW)

        machine = Machine.objects.get(pk=gate.machine_id)
        status = Gate.objects.get(pk=gate.pk).status
        # Whichever came first: released before the fault was told, or void and not released.
        assert (status, machine.state) in {
            ("passed", State.IN_SERVICE),
            ("void", State.AWAITING_DIAGNOSIS),
        }
