"""Drains that others set at the scheduler are cordons of theirs, as long as it lists them."""

from datetime import timedelta

import pytest

from fleet import adapters, services, tasks
from fleet.adapters import ForeignDrain
from fleet.models import Cordon, Machine
from tests.factories import NOW, make_machine

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def standing(machine: Machine) -> list[tuple[str, str]]:
    rows = machine.cordons.filter(lifted_at=None).order_by("owner")
    return list(rows.values_list("owner", "reason"))


def may_take_work(machine: Machine) -> bool:
    machine.refresh_from_db()
    return machine.may_take_work


def test_a_foreign_drain_is_its_owners_cordon_until_the_scheduler_lists_it_no_more():
    machine = make_machine(scheduler_node="node-7")
    drain = ForeignDrain("node-7", owner="alice", reason="bad fan", since=NOW - HOUR)

    assert services.record_foreign_drains([drain], now=NOW) == 1
    assert services.record_foreign_drains([drain], now=NOW + HOUR) == 0

    assert standing(machine) == [("scheduler:alice", "bad fan")]
    assert machine.cordons.get().since == NOW - HOUR
    assert not may_take_work(machine)

    assert services.record_foreign_drains([], now=NOW + 2 * HOUR) == 1
    assert services.record_foreign_drains([], now=NOW + 3 * HOUR) == 0

    assert may_take_work(machine)
    assert machine.cordons.get().lifted_at == NOW + 2 * HOUR


def test_only_cordons_that_stand_for_drains_are_lifted():
    machine = make_machine("m1")
    services.cordon(machine, owner="bob", reason="a test", now=NOW)
    services.record_foreign_drains([ForeignDrain("m1", "alice", "bad fan")], now=NOW)

    services.record_foreign_drains([], now=NOW + HOUR)

    assert standing(machine) == [("bob", "a test")]
    assert not may_take_work(machine)


def test_another_reason_takes_the_place_of_the_first():
    machine = make_machine("m1")
    services.record_foreign_drains([ForeignDrain("m1", "alice", "bad fan")], now=NOW)

    services.record_foreign_drains([ForeignDrain("m1", "bela", "")], now=NOW + HOUR)

    assert standing(machine) == [("scheduler:bela", "no reason given")]
    assert not may_take_work(machine)


def test_a_node_that_is_no_machine_is_left_out():
    assert services.record_foreign_drains([ForeignDrain("login-1", "alice", "x")], now=NOW) == 0
    assert not Cordon.objects.exists()


class Listing:
    def __init__(self, *drains: ForeignDrain, fails: bool = False) -> None:
        self.drains, self.fails = drains, fails

    def foreign_drains(self, *, now: object) -> list[ForeignDrain]:
        if self.fails:
            raise TimeoutError
        return list(self.drains)


def test_a_scheduler_that_does_not_answer_or_cannot_list_changes_nothing(monkeypatch):
    machine = make_machine("m1")
    monkeypatch.setattr(tasks.clock, "now", lambda: NOW)
    monkeypatch.setattr(adapters, "scheduler", lambda: Listing(ForeignDrain("m1", "a", "b")))
    tasks.watch_drains()
    tasks.watch_drains()

    for scheduler in (Listing(fails=True), object()):
        monkeypatch.setattr(adapters, "scheduler", lambda found=scheduler: found)
        tasks.watch_drains()

    assert standing(machine) == [("scheduler:a", "b")]
