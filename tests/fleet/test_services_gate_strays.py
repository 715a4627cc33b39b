"""Gates that are no longer their machine's way back, and sweeps that meet something odd."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from fleet import services, tasks
from fleet.errors import FleetError, IllegalGateMove
from fleet.lifecycle import State, Trigger
from fleet.models import Cordon, Gate, Machine, Repair
from tests.factories import (
    NOW,
    make_fault_report,
    make_gate,
    make_machine,
    make_machines,
    make_user,
    pass_gate,
    read_gate,
    run_checks,
)
from tests.fleet.repairs_world import closed, under_way
from tests.rollouts.fakes import FakeFleet

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def send_back(machine, *, now):
    """Let the machine work without its gate, and come back to its queue once that is over."""
    machine.refresh_from_db()
    services.break_glass(machine, user=make_user(), reason="needed", until=now + HOUR, now=now)
    services.end_break_glasses(now=now + HOUR)
    order = machine.take_outs.get(ended_at=None)
    services.departures.carry_on(order, is_idle=True, now=now + HOUR)
    machine.refresh_from_db()


def record_fault(machine, *, at, told_at):
    services.record(
        [make_fault_report(machine, time=at, signature="xid.79")],
        source="tests",
        key=f"{machine} {at}",
        now=told_at,
    )


def test_what_was_shown_before_a_broken_glass_counts_no_more():
    machine = make_machine(versions={"bmc": "4.1"})
    gate = read_gate(make_gate(machine))
    settings = gate.checks.get(name="settings")
    services.report_result(
        settings, services.Outcome(0.0, "settings", reference="log"), actor="a", now=NOW
    )

    send_back(machine, now=NOW)

    with pytest.raises(IllegalGateMove, match="is void: the machine was elsewhere until"):
        run_checks(gate, now=NOW + 2 * HOUR)
    services.open_missing_gates(now=NOW + 2 * HOUR)
    again = machine.gates.get(status="open")
    assert not again.checks.filter(results__isnull=False).exists()


def test_an_observation_from_before_a_broken_glass_is_void_and_the_sweep_goes_on():
    machine, other = (make_machine(versions={"bmc": "4.1"}) for _ in range(2))
    gates = [make_gate(one, kind="host_part_swap") for one in (machine, other)]
    for gate in gates:
        run_checks(read_gate(gate))
    send_back(machine, now=NOW)
    until = Gate.objects.get(pk=gates[1].pk).observe_until
    for gate in gates:
        Gate.objects.filter(pk=gate.pk).update(observe_until=until, read_at=until)
    run_checks(gates[1], now=until)

    services.end_observations(now=until)
    services.clear_strays(now=until)

    statuses = [Gate.objects.get(pk=gate.pk).status for gate in gates]
    assert statuses == ["void", "awaiting_review"]


def test_one_machine_that_no_gate_can_be_opened_for_holds_up_no_other_one(monkeypatch):
    odd, plain = (make_machine(versions={"bmc": "4.1"}, state="registered") for _ in range(2))
    for machine in (odd, plain):
        services.move_machine(machine, Trigger.QUEUE_VALIDATION, actor="a", now=NOW)
    whole = services.gates.opening.open_gate

    def refuse(machine, **said):
        if machine.pk == odd.pk:
            raise FleetError("nothing fits")
        return whole(machine, **said)

    monkeypatch.setattr("fleet.services.gates.opening.open_gate", refuse)

    services.open_missing_gates(now=NOW)

    assert (odd.gates.count(), plain.gates.count()) == (0, 1)


def test_a_read_back_that_one_gate_refuses_holds_up_no_other_one(monkeypatch):
    gates = [make_gate(make_machine(versions={"bmc": "4.1"})) for _ in range(2)]
    fake = FakeFleet()
    fake.add([gate.machine.name for gate in gates], bmc="4.1")
    monkeypatch.setattr("fleet.adapters.installer", lambda: fake)
    monkeypatch.setattr("fleet.clock.now", lambda: NOW)
    whole = services.read_back

    def refuse(gate, readings, *, now):
        if gate.pk == gates[0].pk:
            raise FleetError("odd")
        return whole(gate, readings, now=now)

    monkeypatch.setattr(services, "read_back", refuse)

    tasks.follow_gates()

    assert Gate.objects.get(pk=gates[1].pk).read_at == NOW


def test_a_recorded_repair_whose_kind_was_not_kept_stops_no_gate():
    repair = under_way()
    Repair.objects.create(
        machine=repair.machine, status="closed", ordered_at=NOW - HOUR, closed_at=NOW - HOUR
    )

    closed(repair)

    assert repair.machine.gates.get().status == "open"


def test_a_machine_beyond_a_gate_that_it_never_had_is_diagnosed():
    machine = make_machine(versions={"bmc": "4.1"}, state=State.AWAITING_RELEASE)

    services.open_missing_gates(now=NOW)

    machine.refresh_from_db()
    assert machine.state == State.AWAITING_DIAGNOSIS
    assert "no gate is open" in machine.state_changes.latest("pk").reason


def test_a_cordon_is_lifted_also_once_the_clock_was_set_back():
    standing = services.cordon(make_machine(), owner="ann", reason="fan", now=NOW)

    services.lift_cordon(standing, owner="ann", now=NOW - HOUR)

    assert Cordon.objects.get(pk=standing.pk).lifted_at == NOW


def released(kind="gpu_reset"):
    machine = make_machine(versions={"bmc": "4.1"})
    pass_gate(make_gate(machine, kind=kind), reviewer=make_user(), now=NOW + HOUR)
    machine.refresh_from_db()
    assert machine.state == State.IN_SERVICE
    return machine


def test_a_fault_from_before_the_release_that_is_told_after_it_takes_the_machine_out():
    machine = released()
    record_fault(machine, at=NOW + HOUR / 2, told_at=NOW + 2 * HOUR)

    done = [services.doubt_gates(now=NOW + 2 * HOUR) for _ in range(2)]

    machine.refresh_from_db()
    assert (done, machine.state) == ([1, 0], State.DRAINING)
    gate = machine.gates.get()
    assert "told only after it" in gate.events.get(kind="doubted").said


@pytest.mark.parametrize("at", [NOW - timedelta(days=3), NOW - HOUR / 60])
def test_a_fault_from_before_the_gate_doubts_nothing_however_late_it_is_told(at):
    machine = released()
    record_fault(machine, at=at, told_at=NOW + 2 * HOUR)

    assert services.doubt_gates(now=NOW + 2 * HOUR) == 0
    assert Machine.objects.get(pk=machine.pk).state == State.IN_SERVICE


def test_the_sweeps_ask_no_more_of_many_healthy_machines_than_of_few(monkeypatch):
    monkeypatch.setattr("fleet.clock.now", lambda: NOW)
    sweeps = (tasks.follow_up, tasks.follow_gates, tasks.watch)

    def statements():
        with CaptureQueriesContext(connection) as asked:
            for sweep in sweeps:
                sweep()
        return len(asked)

    make_machines(3)
    statements()
    few = statements()
    make_machines(60)

    assert statements() == few < 60
