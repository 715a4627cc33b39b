"""Two workers at once: the database's locks keep every promise that one worker keeps."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from django.db import connection

from fleet import services
from fleet.errors import FleetError, MachineHeld, StaleMachine
from fleet.lifecycle import State, Trigger
from fleet.models import (
    Fault,
    FaultSignature,
    Incident,
    IncidentFault,
    Machine,
    StateChange,
    TakeOut,
)
from tests.factories import (
    NOW,
    make_fault_report,
    make_machine,
    make_machines,
    make_passed_gate,
    make_reading,
    make_user,
)

pytestmark = pytest.mark.django_db(transaction=True)

TRIES = 10


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls in threads that start together; return results and domain errors in order."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait(timeout=10)
        try:
            return call()
        except FleetError as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_a_cordon_set_while_the_machine_comes_back_stands():
    for _ in range(TRIES):
        machine = make_machine(state=State.VERIFYING)
        same = Machine.objects.get(pk=machine.pk)

        at_once(
            partial(services.move_machine, machine, Trigger.RETURN, actor="r", now=NOW, gate="g"),
            partial(services.cordon, same, owner="ann", reason="noise", now=NOW),
        )

        stored = Machine.objects.get(pk=machine.pk)
        assert (stored.state, stored.may_take_work) == (State.IN_SERVICE, False)


def test_of_two_moves_at_once_one_happens():
    for _ in range(TRIES):
        machine = make_machine()
        copies = [Machine.objects.get(pk=machine.pk) for _ in range(2)]
        drain = partial(services.move_machine, trigger=Trigger.DRAIN, actor="r", now=NOW)

        results = at_once(*(partial(drain, copy) for copy in copies))

        assert {type(result) for result in results} == {StateChange, StaleMachine}
        assert machine.state_changes.filter(trigger=Trigger.DRAIN).count() == 1


def test_of_two_people_who_take_a_machine_at_once_one_has_it():
    ann, bob = make_user(), make_user()
    for _ in range(TRIES):
        machine = make_machine(state=State.AWAITING_REPAIR)
        copies = [Machine.objects.get(pk=machine.pk) for _ in range(2)]

        results = at_once(
            partial(services.take, copies[0], user=ann, now=NOW),
            partial(services.take, copies[1], user=bob, now=NOW),
        )

        assert {type(result) for result in results} == {Machine, MachineHeld}
        assert machine.hand_overs.count() == 1
        assert Machine.objects.get(pk=machine.pk).held_by == machine.hand_overs.get().new_person


def test_a_machine_that_waits_for_a_diagnosis_is_begun_by_one_of_two():
    ann, bob = make_user(), make_user()
    machine = make_machine(state=State.AWAITING_DIAGNOSIS)
    copies = [Machine.objects.get(pk=machine.pk) for _ in range(2)]

    results = at_once(
        partial(services.take, copies[0], user=ann, now=NOW),
        partial(services.take, copies[1], user=bob, now=NOW),
    )

    assert sum(isinstance(result, Machine) for result in results) == 1
    assert machine.state_changes.filter(trigger=Trigger.DIAGNOSE).count() == 1


def test_two_orders_to_take_out_at_once_are_one():
    for _ in range(TRIES):
        machine = make_machine()
        copies = [Machine.objects.get(pk=machine.pk) for _ in range(2)]
        order = partial(services.take_out, actor="r", reason="x", at_once=False, now=NOW)

        results = at_once(*(partial(order, copy) for copy in copies))

        assert {type(result) for result in results} == {TakeOut}
        assert machine.take_outs.count() == 1
        assert machine.state_changes.filter(trigger=Trigger.DRAIN).count() == 1


def test_two_workers_by_rule_take_no_more_than_a_fifth_of_a_pool(settings):
    settings.TAKE_OUT = True
    machines = make_machines(10, pool="train")
    reports = [make_fault_report(machine, signature="xid.79") for machine in machines[:6]]
    services.record(reports, source="s", key="k", now=NOW)
    services.record_incidents(now=NOW)

    at_once(*[partial(services.take_out_by_rule, now=NOW)] * 2)

    assert Machine.objects.exclude(state=State.IN_SERVICE).count() == 2


def test_a_broken_glass_and_a_release_at_once_let_one_through():
    for _ in range(TRIES):
        machine = make_machine(state=State.AWAITING_RELEASE)
        copies = [Machine.objects.get(pk=machine.pk) for _ in range(2)]
        until, gate = NOW + timedelta(hours=1), make_passed_gate(machine)

        at_once(
            partial(services.break_glass, copies[0], user=make_user(), reason="x", until=until,
                    now=NOW),
            partial(services.move_machine, copies[1], Trigger.RELEASE, actor="r", now=NOW,
                    gate_record=gate),
        )  # fmt: skip

        into = machine.state_changes.filter(
            new_state=State.IN_SERVICE, old_state="awaiting_release"
        )
        assert into.count() == 1
        assert Machine.objects.get(pk=machine.pk).may_take_work


def test_one_batch_sent_twice_at_once_counts_once_and_answers_the_same():
    reports = [make_fault_report(make_machine())]

    first, second = at_once(*[lambda: services.record(reports, source="s", key="k", now=NOW)] * 2)

    assert first == second
    assert Fault.objects.count() == 1


def test_batches_that_share_records_in_opposite_order_both_end():
    machine = make_machine()
    reports = [
        make_fault_report(machine, time=NOW - timedelta(minutes=minute), signature=f"new.{minute}")
        for minute in range(300)
    ]

    results = at_once(
        lambda: services.record(reports, source="s", key="a", now=NOW),
        lambda: services.record(reports[::-1], source="s", key="b", now=NOW),
    )

    assert sorted(result.accepted for result in results) == [0, 300]
    assert Fault.objects.count() == 300
    assert FaultSignature.objects.filter(name__startswith="new.").count() == 300


def test_one_read_back_recorded_twice_at_once_appends_once():
    machine = make_machine()

    at_once(
        *[lambda: services.record_readings(machine, [make_reading()], now=NOW, evidence={})] * 2
    )

    assert machine.firmware.count() == 1


def test_two_workers_put_each_fault_into_one_incident():
    for number in range(3):
        machines = make_machines(5)
        reports = [make_fault_report(machine) for machine in machines]
        services.record(reports, source="test", key=f"race-{number}", now=NOW)
        record = partial(services.record_incidents, now=NOW)

        results = at_once(record, record)

        assert sorted(results) == [0, 5]
        assert Incident.objects.filter(machine__in=machines).count() == 5
        assert IncidentFault.objects.filter(incident__machine__in=machines).count() == 5


def test_a_fault_that_goes_on_while_its_incident_is_diagnosed_keeps_the_diagnosis():
    machine = make_machine()
    services.record([make_fault_report(machine)], source="test", key="first", now=NOW)
    services.record_incidents(now=NOW)
    for number in range(1, 4):
        incident = Incident.objects.get()
        later = make_fault_report(machine, time=NOW + timedelta(minutes=number))
        services.record([later], source="test", key=str(number), now=NOW)
        said = {"diagnosis": f"word {number}", "cause": "hardware", "actor": "ann", "now": NOW}

        at_once(
            partial(services.record_incidents, now=NOW),
            partial(services.diagnose_incident, incident, **said),
        )

        incident.refresh_from_db()
        assert (incident.diagnosis, incident.fault_count) == (f"word {number}", number + 1)
