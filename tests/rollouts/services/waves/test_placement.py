"""Jobs kept pure: the scheduler is asked to place each new job in one arm of an open wave."""

from datetime import timedelta

import pytest

from rollouts import services
from rollouts.errors import PlanRefused
from rollouts.services.waves import placement
from tests.factories import make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import started

pytestmark = pytest.mark.django_db


def test_while_a_wave_is_open_its_arms_are_kept_apart_and_no_longer(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, keep_jobs_pure=True)
    driver.run(rollout, hours=1)
    key = f"{rollout.actor} wave 1"
    apart = fake_fleet.apart[key]
    canaries = rollout.waves.first().members.filter(arm="canary")
    assert set(apart["canary"]) == set(canaries.values_list("machine__name", flat=True))
    assert len(apart["control"]) == 32

    services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
    driver.run(rollout, hours=1)

    assert fake_fleet.apart == {key: {}}


def test_a_plan_that_does_not_ask_leaves_the_scheduler_alone(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    driver.run(rollout, hours=1)

    assert fake_fleet.apart == {}


def test_a_scheduler_that_does_not_answer_is_told_again(
    fake_fleet: FakeFleet, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> None:
        raise OSError

    rollout = started(fake_fleet, keep_jobs_pure=True)
    with monkeypatch.context() as patch:
        patch.setattr(fake_fleet, "keep_apart", silent)
        driver.run(rollout, hours=0.2)
    assert fake_fleet.apart == {}

    driver.run(rollout, hours=12)

    assert len(fake_fleet.apart) == 1


def test_a_scheduler_that_cannot_keep_jobs_apart_refuses_the_plan(
    fake_fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(FakeFleet, "keep_apart")

    with pytest.raises(PlanRefused, match="keep_jobs_pure: the scheduler cannot"):
        started(fake_fleet, keep_jobs_pure=True)


def test_the_canaries_are_reserved_by_name_until_the_wave_is_over(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, keep_jobs_pure="reservation")
    driver.run(rollout, hours=1)
    name = f"coalmine-{rollout.pk}-1"
    machines, start, end = fake_fleet.reserved[name]
    canaries = rollout.waves.first().members.filter(arm="canary")
    assert set(machines) == set(canaries.values_list("machine__name", flat=True))
    assert end - start >= timedelta(hours=48 * 1.5)
    assert fake_fleet.apart == {}

    services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
    driver.run(rollout, hours=1)

    assert fake_fleet.reserved[name][0] == []


def test_a_wave_that_takes_longer_than_its_reservation_renews_it_a_day_before_its_end(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, keep_jobs_pure="reservation")
    driver.run(rollout, hours=1)
    services.pause(rollout, actor=make_user(), now=driver.now)
    name = f"coalmine-{rollout.pk}-1"
    machines, _, first_end = fake_fleet.reserved[name]

    placement.arrange(now=first_end - timedelta(hours=25))
    assert fake_fleet.reserved[name][2] == first_end
    placement.arrange(now=first_end - timedelta(hours=23))

    again, start, end = fake_fleet.reserved[name]
    assert (set(again), start) == (set(machines), first_end - timedelta(hours=23))
    assert end > first_end
    assert rollout.waves.get(number=1).reserved_until == end


def test_a_scheduler_that_cannot_reserve_refuses_such_a_plan(
    fake_fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(FakeFleet, "reserve")

    with pytest.raises(PlanRefused, match="cannot reserve machines by name"):
        started(fake_fleet, keep_jobs_pure="reservation")
