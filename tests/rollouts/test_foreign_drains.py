"""Machines that somebody else drained at the scheduler: not picked, not given back by us."""

import pytest

from fleet import adapters
from fleet import services as fleet
from fleet.adapters import ForeignDrain
from fleet.models import Machine
from rollouts.explain import explain
from rollouts.models import Attempt, Rollout
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import started

pytestmark = pytest.mark.django_db


def drained_canary(fleet_: FakeFleet, driver: Driver, **changes: object) -> tuple[Rollout, str]:
    """A running rollout that installs one after the other, and a canary that still waits."""
    waves = [{"count": 3, "window_hours": 48}]
    changes = {"waves": waves, "drain_timeout_minutes": 60, **changes}
    rollout = started(fleet_, machines=16, caps={"max_in_flight": 1}, **changes)
    driver.settle()
    last = rollout.attempts.order_by("-pk").first()
    assert last.status == "queued"
    name = last.machine.name
    fleet_.foreign[name] = ForeignDrain(name, owner="alice", reason="bad fan")
    return rollout, name


def attempt_on(name: str) -> Attempt:
    return Attempt.objects.get(machine__name=name)


def test_a_machine_that_somebody_else_drained_is_not_picked_and_says_whose_it_is(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout, name = drained_canary(fake_fleet, driver, drain_timeout_minutes=60 * 24)
    fleet.record_foreign_drains(fake_fleet.foreign_drains(now=driver.now), now=driver.now)

    driver.run(rollout, hours=3)

    attempt = attempt_on(name)
    assert (attempt.status, attempt.started_at) == ("deferred", None)
    assert attempt.detail == "drained at the scheduler by alice: bad fan"
    [condition] = explain(attempt)
    assert (condition.present, condition.who) == ("bad fan", "scheduler:alice")
    assert name not in fake_fleet.flashed
    assert rollout.attempts.filter(status="succeeded").exists()  # the others go on

    fake_fleet.foreign.clear()
    fleet.record_foreign_drains([], now=driver.now)
    driver.run(rollout, hours=4)

    assert attempt_on(name).status == "succeeded"


def test_a_drain_that_no_list_has_told_of_yet_is_respected_at_the_drain_itself(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout, name = drained_canary(fake_fleet, driver)

    driver.run(rollout, hours=3)

    attempt = attempt_on(name)
    assert attempt.status == "deferred"
    assert attempt.detail.startswith("drained at the scheduler by alice: bad fan")
    assert attempt.forecast_at > driver.now
    assert name not in fake_fleet.drained
    assert name not in fake_fleet.flashed
    assert Machine.objects.get(name=name).state == "in_service"

    fake_fleet.foreign.clear()
    driver.run(rollout, hours=4)

    assert attempt_on(name).status == "succeeded"


def test_a_machine_drained_while_it_is_updated_stays_theirs_when_it_comes_back(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    driver.settle()
    canary = rollout.attempts.filter(status__in=("staging", "activating", "verifying")).first()
    name = canary.machine.name
    drain = ForeignDrain(name, owner="alice", reason="bad fan")
    fleet.record_foreign_drains([drain], now=driver.now)

    driver.run(rollout, hours=4)

    machine = Machine.objects.get(name=name)
    assert attempt_on(name).status == "succeeded"
    assert (machine.state, machine.may_take_work) == ("in_service", False)


def test_a_machine_that_stays_drained_is_called_off_at_the_deadline_by_its_owners_words(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout, name = drained_canary(fake_fleet, driver)
    fleet.record_foreign_drains(fake_fleet.foreign_drains(now=driver.now), now=driver.now)

    driver.run(rollout, hours=5)

    attempt = attempt_on(name)
    assert attempt.status == "called_off"
    assert attempt.detail == ("machine was cordoned by scheduler:alice until the deadline: bad fan")
    assert rollout.waves.get(number=1).members.filter(machine__name=name, arm="canary").exists()


def test_a_scheduler_that_cannot_list_drains_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "scheduler", object)

    assert adapters.drain_listing() is None
