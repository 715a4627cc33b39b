"""Machines that are flashed and never answer again: silence has a deadline, and is no success."""

from collections import Counter
from datetime import timedelta

import pytest

from fleet.models import Machine
from rollouts import explain, selectors, services
from rollouts.models import Decision, Rollout
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import NEW, started

pytestmark = pytest.mark.django_db

PLAN = {
    "machines": 60,
    "waves": [{"count": 20, "window_hours": 24}, {"count": 20, "window_hours": 24}],
    "return_timeout_minutes": 30,
    "look_minutes": 360,
}


def lost(rollout: Rollout, fake_fleet: FakeFleet, number: int) -> list[str]:
    places = rollout.assignments.filter(planned_wave=1).order_by("machine_name")
    names = list(places.values_list("machine_name", flat=True))[:number]
    fake_fleet.behaviour.update(dict.fromkeys(names, "vanish"))
    return names


def test_three_of_twenty_that_fall_silent_are_failures_at_the_deadline_and_hold_new_starts(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, **PLAN)
    silent = lost(rollout, fake_fleet, 3)
    driver.run(rollout, hours=0.4)
    before = Counter(rollout.attempts.values_list("status", flat=True))
    assert before == {"succeeded": 17, "awaiting_reboot": 3}
    assert not Decision.objects.filter(kind="widen").exists()

    driver.run(rollout, hours=1.6)

    ended = Counter(rollout.attempts.values_list("status", flat=True))
    assert ended == {"succeeded": 17, "never_returned": 3}
    assert selectors.cumulative_attempts(rollout) == (3, 20)
    assert not Machine.objects.filter(name__in=silent).exclude(state="awaiting_diagnosis").exists()
    waits = [c.what for c in explain.explain(rollout)]
    assert [f"triage of {name}" for name in silent] == [w for w in waits if w.startswith("triage")]
    driver.run(rollout, hours=36)
    assert len(fake_fleet.flashed) == 20  # nobody else, until somebody has said why


def test_bricks_halt_at_once_whatever_the_count(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = started(fake_fleet, **PLAN)
    silent = lost(rollout, fake_fleet, 1)
    driver.run(rollout, hours=2)

    attempt = rollout.attempts.get(machine__name=silent[0])
    services.triage(attempt, outcome="bricked", actor="ann", now=driver.now)
    driver.settle()

    rollout.refresh_from_db()
    assert rollout.status == "halted"
    assert Decision.objects.get(kind="halt").reason_code == "hard_stop"


def test_a_machine_that_comes_back_after_its_deadline_stays_a_failure_until_triage(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, **PLAN)
    silent = lost(rollout, fake_fleet, 1)
    driver.run(rollout, hours=2)
    fake_fleet.behaviour.clear()
    fake_fleet.versions[silent[0]] = {"bmc": NEW}
    fake_fleet.boots[silent[0]] += 1

    driver.now += timedelta(hours=1)
    driver.run(rollout, hours=2)

    attempt = rollout.attempts.get(machine__name=silent[0])
    assert (attempt.status, attempt.triage) == ("never_returned", "")
    assert Machine.objects.get(name=silent[0]).state == "awaiting_diagnosis"
    services.triage(attempt, outcome="recovered", actor="ann", now=driver.now)
    assert not selectors.untriaged(rollout).exists()
    assert selectors.cumulative_attempts(rollout) == (1, 20)
