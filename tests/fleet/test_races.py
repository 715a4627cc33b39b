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
from fleet.errors import StaleMachine
from fleet.lifecycle import State, Trigger
from fleet.models import Fault, FaultSignature, Machine, StateChange
from tests.factories import NOW, make_fault_report, make_machine, make_reading

pytestmark = pytest.mark.django_db(transaction=True)

TRIES = 10


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls in threads that start together; return results and domain errors in order."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait(timeout=10)
        try:
            return call()
        except StaleMachine as error:
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
