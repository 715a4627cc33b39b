"""What other systems released too early; here the gate keeps it (field cases, part D)."""

from datetime import timedelta

import pytest

from fleet import services, tasks
from fleet.errors import IllegalGateMove
from fleet.lifecycle import State
from fleet.models import GateEvent, StateChange
from tests.factories import (
    NOW,
    make_fault_report,
    make_gate,
    make_machine,
    make_observation_report,
    make_user,
    read_gate,
    run_checks,
)

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def repaired():
    """A machine whose accelerator was swapped after an uncorrectable memory error."""
    machine = make_machine(versions={"bmc": "4.1", "gpu": "96.1"})
    make_machine(versions={"bmc": "4.1", "gpu": "96.1"})  # one to be lent
    return machine, make_gate(machine, kind="gpu_swap")


def health_is_green(machine, *, at):
    """Every automatic check of a machine on which nothing runs says that it is fine."""
    services.record(
        [make_observation_report(machine, start=at - MINUTE, end=at, in_service_seconds=0.0)],
        source="health",
        key=f"green-{at.isoformat()}",
        now=at,
    )
    services.record_incidents(now=at)
    services.void_gates(now=at)
    services.end_observations(now=at)


def test_s23_health_that_turns_green_on_an_idle_machine_moves_nothing():
    machine, gate = repaired()
    moves = StateChange.objects.filter(machine=machine).count()

    for minutes in (1, 2, 60, 24 * 60):
        health_is_green(machine, at=NOW + minutes * MINUTE)

    machine.refresh_from_db()
    gate.refresh_from_db()
    assert (machine.state, machine.may_take_work) == (State.AWAITING_VALIDATION, False)
    assert gate.status == "open"
    assert StateChange.objects.filter(machine=machine).count() == moves


def test_s23_the_gate_asks_for_diagnostic_load_observation_and_a_reviewer_each_with_evidence():
    technician, reviewer = make_user(), make_user()
    machine, gate = repaired()
    read_gate(gate)
    run_checks(gate, user=technician)
    gate.refresh_from_db()
    end = gate.observe_until
    states = [(machine_state(machine), gate.status)]

    run_checks(gate, user=technician, now=end)
    read_gate(gate, now=end)
    services.end_observations(now=end)
    gate.refresh_from_db()
    states.append((machine_state(machine), gate.status))
    services.review_gate(gate, is_accepted=True, user=reviewer, reason="logs read", now=end)
    states.append((machine_state(machine), "passed"))

    asked = {check.name: check for check in gate.checks.all()}
    assert {"dcgm_r4", "representative_load", "all_reduce_2_nodes"} <= set(asked)
    assert all(asked[name].needs_evidence for name in ("dcgm_r4", "representative_load"))
    assert asked["representative_load"].rule == {"kind": ">=", "value": 60}
    assert states == [
        (State.OBSERVING, "observing"),
        (State.AWAITING_RELEASE, "awaiting_review"),
        (State.IN_SERVICE, "passed"),
    ]
    assert StateChange.objects.filter(machine=machine).latest("pk").gate_record == gate


def machine_state(machine):
    machine.refresh_from_db()
    return machine.state


def test_s23_a_fault_under_load_voids_everything_that_was_shown():
    machine, gate = repaired()
    read_gate(gate)
    run_checks(gate)
    gate.refresh_from_db()
    at = NOW + 10 * MINUTE
    services.record(
        [make_fault_report(machine, time=at, signature="xid.48", source_key="f")],
        source="host",
        key="f",
        now=at,
    )

    tasks.follow_up()

    gate.refresh_from_db()
    assert (machine_state(machine), gate.status) == (State.AWAITING_DIAGNOSIS, "void")
    with pytest.raises(IllegalGateMove, match="is void"):
        services.review_gate(
            gate, is_accepted=True, user=make_user(), reason="it looked fine", now=at
        )
    assert GateEvent.objects.filter(gate=gate, kind="void").get().said.startswith("newer fault")


def test_a_silent_machine_stays_before_its_gate_and_is_asked_again(monkeypatch):
    machine, gate = repaired()
    asked = []

    class Silent:
        def read_versions(self, name, *, now):
            asked.append(name)
            raise TimeoutError

    monkeypatch.setattr("fleet.adapters.installer", Silent)

    tasks.follow_gates()
    tasks.follow_gates()

    gate.refresh_from_db()
    assert asked == [machine.name]  # and not again at once
    assert (gate.read_at, gate.status) == (None, "open")
