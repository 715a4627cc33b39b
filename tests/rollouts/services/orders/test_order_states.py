"""Orders in every state: each acts as a whole, or is refused and leaves no trace."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from fleet.models import Machine
from rollouts import selectors, services
from rollouts.errors import RolloutError
from rollouts.lifecycle import IllegalTransition, Status
from rollouts.models import Attempt, Order, Rollout, Transition, Wave
from tests.factories import make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import NEW, OLD, document, started

pytestmark = pytest.mark.django_db

BACK = {"on_halt": {"succeeded": "roll_back"}}


def small(fake_fleet: FakeFleet, **changes: Any) -> Rollout:
    return started(fake_fleet, machines=20, **changes)


def halted(rollout: Rollout, driver: Driver) -> Rollout:
    services.halt(rollout, actor=make_user(), reason="x", now=driver.now)
    rollout.refresh_from_db()
    return rollout


def resumed(rollout: Rollout, driver: Driver) -> Rollout:
    """Override a halt by two people, and resume."""
    ann, bob = make_user(), make_user()
    services.override(rollout, actor=ann, second_person=bob, reason="seen", now=driver.now)
    services.resume(rollout, actor=ann, now=driver.now)
    rollout.refresh_from_db()
    return rollout


# --- every order in every state ------------------------------------------------------------------


def every_order() -> dict[str, Callable[..., Any]]:
    ann, bob = make_user(), make_user()
    two = {"actor": ann, "second_person": bob, "reason": "x"}
    one = {"actor": ann}
    return {
        "submit": lambda r, now: services.submit(r, now=now, **one),
        "approve": lambda r, now: services.approve(r, now=now, **one),
        "deny": lambda r, now: services.deny(r, now=now, reason="x", **one),
        "start": lambda r, now: services.start(r, now=now, **one),
        "pause": lambda r, now: services.pause(r, now=now, **one),
        "resume": lambda r, now: services.resume(r, now=now, **one),
        "halt": lambda r, now: services.halt(r, now=now, **one),
        "override": lambda r, now: services.override(r, now=now, **two),
        "advance": lambda r, now: services.advance(r, now=now, **two),
        "extend": lambda r, now: services.extend(r, now=now, **one),
        "skip_wave": lambda r, now: services.skip_wave(r, now=now, **two),
        "roll_back": lambda r, now: services.roll_back(r, now=now, **one),
        "cancel": lambda r, now: services.cancel(r, now=now, **one),
    }


@pytest.mark.parametrize("wave_status", ["observing", "held"])
def test_every_order_in_every_state_acts_or_is_refused_and_leaves_no_trace(
    fake_fleet: FakeFleet, driver: Driver, wave_status: str
) -> None:
    rollout = small(fake_fleet)
    driver.settle()
    halted(rollout, driver)
    orders = every_order()
    del orders["submit"]  # a draft has no roster yet; see the next test
    steers_a_wave = {"advance", "extend", "skip_wave"}
    acted = set()
    for status in Status:
        for name, order in orders.items():
            Rollout.objects.filter(pk=rollout.pk).update(status=status)
            Wave.objects.filter(rollout=rollout, number=1).update(
                status=wave_status, is_extended=False
            )
            given = Rollout.objects.get(pk=rollout.pk)
            before = (Order.objects.count(), Transition.objects.count())
            try:
                order(given, driver.now)
            except (RolloutError, IllegalTransition):
                after = (Order.objects.count(), Transition.objects.count())
                assert after == before, (status, name)
                assert Rollout.objects.get(pk=rollout.pk).status == status
            else:
                acted.add((status, name))
                assert Order.objects.count() == before[0] + 1, (status, name)

    assert (Status.RUNNING, "halt") in acted
    assert {s for s, name in acted if name in steers_a_wave} <= {Status.RUNNING, Status.PAUSED}
    assert {s for s, name in acted if name == "resume"} <= {Status.PAUSED}


def test_a_rollout_that_runs_is_not_submitted_again(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = small(fake_fleet)
    driver.settle()

    with pytest.raises(IllegalTransition, match="running cannot submit"):
        services.submit(rollout, actor=rollout.author, now=driver.now)

    assert rollout.assignments.count() == 20


def test_a_second_click_on_an_order_is_told_and_does_nothing(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = small(fake_fleet)
    driver.run(rollout, hours=3)
    wave = selectors.current_wave(rollout)
    Wave.objects.filter(pk=wave.pk).update(status="held")
    ann, bob = make_user(), make_user()
    services.advance(rollout, actor=ann, second_person=bob, reason="x", now=driver.now)

    with pytest.raises(RolloutError):
        services.advance(rollout, actor=ann, second_person=bob, reason="x", now=driver.now)

    assert rollout.orders.filter(kind="advance").count() == 1
    assert selectors.current_wave(rollout).number == 2


def test_a_word_of_triage_is_not_silently_replaced(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = small(fake_fleet)
    driver.settle()
    attempt = rollout.attempts.first()
    Attempt.objects.filter(pk=attempt.pk).update(status="never_returned")
    attempt.refresh_from_db()
    services.triage(attempt, outcome="recovered", actor="ann", now=driver.now)

    services.triage(attempt, outcome="recovered", actor="bob", now=driver.now)
    with pytest.raises(RolloutError, match="recovered already"):
        services.triage(attempt, outcome="bricked", actor="bob", now=driver.now)


# --- pause and halt ------------------------------------------------------------------------------


def test_a_pause_gives_machines_that_only_drain_back_and_resuming_takes_them_again(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = small(fake_fleet)
    busy = rollout.assignments.filter(planned_wave=1).first().machine_name
    fake_fleet.behaviour[busy] = "busy"
    driver.run(rollout, hours=1)
    ann = make_user()
    services.pause(rollout, actor=ann, now=driver.now)
    driver.run(rollout, hours=1)
    waits = rollout.attempts.get(machine__name=busy)
    assert waits.status == "deferred"
    assert Machine.objects.get(name=busy).may_take_work
    assert busy not in fake_fleet.drained

    fake_fleet.behaviour[busy] = "ok"
    services.resume(rollout, actor=ann, now=driver.now)
    driver.run(rollout, hours=2)

    waits.refresh_from_db()
    assert waits.status == "succeeded"


def test_a_rollout_halted_again_after_an_override_is_halted(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = small(fake_fleet)
    driver.settle()
    halted(rollout, driver)
    ann, bob = make_user(), make_user()
    services.override(rollout, actor=ann, second_person=bob, reason="seen", now=driver.now)

    halted(rollout, driver)

    assert rollout.status == "halted"


def test_installing_goes_on_after_an_override_where_the_halt_stopped_it(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = small(
        fake_fleet, batch_size=4, caps={"max_in_flight": 3, "max_unavailable_share": None}
    )
    driver.settle()
    halted(rollout, driver)
    driver.run(rollout, hours=1)
    stopped = Counter(fake_fleet.flashed)

    resumed(rollout, driver)
    driver.run(rollout, hours=3)

    wave = selectors.current_wave(rollout)
    assert len(stopped) == 3
    assert sorted(Counter(fake_fleet.flashed).values()) == [1] * 8
    assert not wave.blocks.filter(clock_start=None).exists()
    assert wave.clock_start >= selectors.reopened_at(wave)
    assert wave.window_end - wave.clock_start == timedelta(hours=48)


def test_an_in_flight_attempt_that_succeeds_after_the_halt_changes_nothing_else(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = small(fake_fleet)
    driver.settle()
    halted(rollout, driver)
    moves = rollout.transitions.count()

    driver.run(rollout, hours=3)

    assert Counter(rollout.attempts.values_list("status", flat=True)) == {"succeeded": 8}
    assert rollout.transitions.count() == moves
    assert selectors.due_rollouts(driver.now) == []


# --- back ----------------------------------------------------------------------------------------


def test_a_roll_back_waits_for_who_is_in_flight_and_takes_them_back_too(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = small(fake_fleet, caps={"max_in_flight": 3, "max_unavailable_share": None}, **BACK)
    driver.settle()
    ann = make_user()
    services.pause(rollout, actor=ann, now=driver.now)
    in_flight = rollout.attempts.filter(started_at__isnull=False).count()

    services.roll_back(rollout, actor=ann, now=driver.now)
    driver.run(rollout, until="rolled_back")

    assert in_flight == 3
    assert rollout.status == "rolled_back"
    assert sorted(Counter(fake_fleet.flashed).values()) == [2, 2, 2]
    assert {v["bmc"] for v in fake_fleet.versions.values()} == {OLD}


def test_a_halt_during_a_roll_back_stops_the_roll_back_itself(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = small(fake_fleet, caps={"max_in_flight": 2, "max_unavailable_share": None}, **BACK)
    driver.run(rollout, hours=2)
    halted(rollout, driver)
    driver.settle()
    child = rollout.children.get()

    halted(rollout, driver)
    driver.run(rollout, hours=2)

    child.refresh_from_db()
    assert (rollout.status, child.status) == ("halted", "halted")
    assert Counter(child.attempts.values_list("status", flat=True)) == {
        "succeeded": 2,
        "called_off": 6,
    }

    # The second roll back leaves those alone that went back already.
    services.roll_back(rollout, actor=make_user(), now=driver.now)
    driver.run(rollout, until="rolled_back")

    assert rollout.status == "rolled_back"
    assert [child.assignments.count() for child in rollout.children.order_by("pk")] == [8, 6]
    assert sorted(Counter(fake_fleet.flashed).values()) == [2] * 8


def test_a_roll_back_has_a_name_that_is_free_and_is_not_rolled_back_itself(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = small(fake_fleet, **BACK)
    driver.run(rollout, hours=2)
    Rollout.objects.filter(pk=rollout.pk).update(name="u" * 200)
    rollout.refresh_from_db()
    services.create_draft(
        name="u" * 180 + " roll back 1",
        bundle=rollout.bundle,
        selector=rollout.selector,
        document=document(),
        author=make_user(),
        now=driver.now,
    )

    halted(rollout, driver)
    driver.run(rollout, until="rolled_back")

    child = rollout.children.get()
    assert child.name == "u" * 180 + " roll back 2"
    with pytest.raises(RolloutError, match="is a roll back"):
        services.roll_back(child, actor=make_user(), now=driver.now)
    assert NEW not in {v["bmc"] for v in fake_fleet.versions.values()}


def test_a_halt_takes_the_same_statements_however_many_attempts_wait(
    fake_fleet: FakeFleet, driver: Driver, django_assert_max_num_queries: Callable[..., Any]
) -> None:
    rollout = small(fake_fleet, caps={"max_in_flight": 1, "max_unavailable_share": None})
    driver.settle()
    waiting = rollout.attempts.filter(status="queued").count()

    with django_assert_max_num_queries(25):
        halted(rollout, driver)

    assert waiting == 7
    assert (
        rollout.attempts.filter(status="called_off", events__new_status="called_off").count() == 7
    )
