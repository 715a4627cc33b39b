"""The wall's clock is set while rollouts run: windows keep their length, and nothing waits."""

from datetime import UTC, datetime, timedelta

import pytest

import fleet.clock
from fleet.models import Clock, ClockJump, ClockReading, Machine
from rollouts import selectors, services, tasks
from rollouts.errors import OrderRefused
from rollouts.explain import explain
from rollouts.models import Rollout
from rollouts.services.orders import clocks
from tests.factories import make_machine, make_user
from tests.rollouts import pages, rows, test_api
from tests.rollouts.fakes import FakeFleet
from tests.rollouts.plans import started

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
START = datetime(2026, 3, 2, 12, tzinfo=UTC)
TEN_YEARS = timedelta(days=3652)


class FakeHost:
    """A host whose wall clock can be set, beside a steady one that only goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.steady = START, 1000.0
        monkeypatch.setattr(fleet.clock, "steady_seconds", lambda: self.steady)
        monkeypatch.setattr("django.utils.timezone.now", lambda: self.wall)

    def passes(self, length: timedelta) -> None:
        self.wall += length
        self.steady += length.total_seconds()

    def is_set(self, by: timedelta) -> None:
        self.wall += by


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    found = FakeHost(monkeypatch)
    clocks.watch(wall=found.wall)
    return found


def looked_at(rollout: Rollout) -> None:
    """An open window of 48 h, seen once."""
    wave = rollout.waves.get(number=1)
    rows.look(wave, guardrails=[])
    rollout.waves.filter(pk=wave.pk).update(
        clock_start=START,
        window_end=START + 48 * HOUR,
        extension_end=START + 72 * HOUR,
        next_look_at=START + 6 * HOUR,
    )


# --- the time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [-HOUR, HOUR, TEN_YEARS, -TEN_YEARS])
def test_the_product_time_goes_on_when_the_wall_is_set(host: FakeHost, by: timedelta):
    host.passes(HOUR)
    host.is_set(by)
    before = fleet.clock.now()
    jump = clocks.watch(wall=host.wall)
    host.passes(HOUR)

    assert before == START + HOUR
    assert fleet.clock.now() == START + 2 * HOUR
    assert jump is not None
    assert (jump.seconds, jump.before) == (by.total_seconds(), START + HOUR)


def test_a_jump_is_written_down_once_and_so_is_its_way_back(host: FakeHost):
    rows.running()
    host.is_set(TEN_YEARS)
    seen = [clocks.watch(wall=host.wall) for _ in range(3)]
    host.is_set(-TEN_YEARS)
    back = [clocks.watch(wall=host.wall) for _ in range(3)]

    assert [jump is not None for jump in (*seen, *back)] == [True, False, False] * 2
    assert [jump.seconds for jump in ClockJump.objects.order_by("pk")] == [
        TEN_YEARS.total_seconds(),
        -TEN_YEARS.total_seconds(),
    ]
    assert ClockReading.objects.get().set_by_seconds == 0.0


def test_small_corrections_of_the_wall_are_followed(host: FakeHost):
    for _ in range(10):
        host.passes(HOUR)
        host.is_set(timedelta(seconds=20))
        clocks.watch(wall=host.wall)

    assert fleet.clock.now() == host.wall
    assert not ClockJump.objects.exists()


def test_a_host_that_nobody_has_looked_at_goes_by_its_wall(monkeypatch: pytest.MonkeyPatch):
    host = FakeHost(monkeypatch)
    host.is_set(HOUR)

    assert fleet.clock.now() == START + HOUR


def test_the_time_follows_the_wall_again_once_nothing_runs(host: FakeHost):
    rollout = rows.running()
    machine = make_machine(state="diagnosing")
    Machine.objects.filter(pk=machine.pk).update(deadline_at=START + HOUR)
    host.is_set(3 * HOUR)
    clocks.watch(wall=host.wall)
    clocks.watch(wall=host.wall)
    while_running = fleet.clock.now()

    services.pause(rollout, actor=make_user(), now=fleet.clock.now())
    clocks.watch(wall=host.wall)

    machine.refresh_from_db()
    assert while_running == START
    assert fleet.clock.now() == START + 3 * HOUR == host.wall
    assert machine.deadline_at == START + 4 * HOUR


def test_the_time_does_not_go_back_under_a_rollout_that_has_begun(host: FakeHost):
    rollout = rows.running()
    host.is_set(-3 * HOUR)
    for _ in range(2):
        clocks.watch(wall=host.wall)
    services.pause(rollout, actor=make_user(), now=fleet.clock.now())
    clocks.watch(wall=host.wall)
    while_paused = fleet.clock.now()

    services.cancel(rollout, actor=make_user(), now=fleet.clock.now())
    clocks.watch(wall=host.wall)

    assert while_paused == START
    assert fleet.clock.now() == host.wall


def test_a_scaled_clock_notes_the_jump_and_holds_nothing(host: FakeHost):
    looked_at(rows.running())
    Clock.objects.create(pk=1, mode="scaled", virtual_time=START, rate=1.0)
    host.is_set(HOUR)

    assert clocks.watch(wall=host.wall) is not None
    assert selectors.clock_holds(Rollout.objects.get()) == []


# --- leases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [HOUR, -HOUR, TEN_YEARS, -TEN_YEARS])
def test_no_lease_is_handed_out_twice_when_the_wall_is_set(host: FakeHost, by: timedelta):
    rollout = rows.running()
    until = fleet.clock.steady_time() + timedelta(seconds=120)
    Rollout.objects.update(leased_until=until, lease_token="first")

    host.is_set(by)
    at_once = selectors.due_rollouts(START + HOUR)
    clocks.watch(wall=host.wall)
    after = selectors.due_rollouts(START + HOUR)
    tasks.evaluate(rollout.pk)
    host.passes(timedelta(seconds=121))

    assert (at_once, after) == ([], [])
    assert Rollout.objects.get().lease_token == "first"
    assert selectors.due_rollouts(START + HOUR) == [rollout.pk]


# --- windows -------------------------------------------------------------------------------------


def test_an_open_window_is_not_shortened_and_waits_for_somebody_to_look(host: FakeHost):
    rollout = rows.running(mode="automatic")
    looked_at(rollout)
    rows.look(rollout.waves.get(number=1), 2, kind="widen", code="not_worse", guardrails=[])
    host.is_set(HOUR)
    tasks.sweep()
    rollout.refresh_from_db()

    tasks.evaluate(rollout.pk)
    held = rollout.waves.get(number=1)
    waits = [one for one in explain(rollout) if one.what == "clock"]
    with pytest.raises(OrderRefused, match="acknowledge that first"):
        services.advance(rollout, actor=make_user(), now=fleet.clock.now())
    services.acknowledge(
        rollout, clock=True, actor=make_user(), reason="ntp", now=fleet.clock.now()
    )
    tasks.evaluate(rollout.pk)

    assert (held.status, held.window_end) == ("observing", START + 48 * HOUR)
    assert "+3600 s" in waits[0].present
    assert rollout.waves.get(number=1).status == "widened"
    assert any(row["kind"] == "clock" for row in selectors.timeline(rollout))
    with pytest.raises(OrderRefused, match="no clock was set"):
        services.acknowledge(rollout, clock=True, actor=make_user(), now=fleet.clock.now())


def test_the_clock_is_acknowledged_over_the_api_and_on_the_page(host: FakeHost):
    client = pages.client_of("operator")
    for number, give in enumerate(("api", "page")):
        rollout = rows.running(name=give, machines=12, mode="automatic")
        looked_at(rollout)
        host.is_set(HOUR if number == 0 else -HOUR)
        tasks.sweep()
        assert "acknowledge" in pages.offered(pages.detail(client, rollout))

        if give == "api":
            nothing = test_api.order(test_api.client_of("operator"), rollout, "acknowledge")
            assert nothing.status_code == 409
            test_api.order(test_api.client_of("operator"), rollout, "acknowledge", clock=True)
        else:
            pages.give(client, rollout, "acknowledge", clock="on")

        assert selectors.clock_holds(rollout) == []
        services.cancel(Rollout.objects.get(pk=rollout.pk), actor=make_user(), now=START)


def test_evaluations_go_on_within_two_intervals_of_every_jump(
    fake_fleet: FakeFleet, host: FakeHost
) -> None:
    rollout = started(
        fake_fleet,
        machines=20,
        look_minutes=30,
        burn_in_hours=0,
        min_exposure_hours=1,
        waves=[{"count": 8, "window_hours": 6}],
    )
    looks = []
    for jump in (timedelta(0), -HOUR, HOUR, TEN_YEARS, -TEN_YEARS):
        host.is_set(jump)
        before = rollout.evaluations.count()
        for _ in range(6):
            host.passes(timedelta(minutes=10))
            tasks.sweep()
            work_off(fleet.clock.now())
        looks.append(rollout.evaluations.count() - before)

    wave = rollout.waves.get(number=1)
    assert all(looks), looks
    assert wave.window_end - wave.clock_start == 6 * HOUR
    assert not rollout.attempts.filter(status="timed_out").exists()
    assert fleet.clock.now() == START + 5 * HOUR
    assert rollout.clock_holds.count() == 4


def work_off(now: datetime) -> None:
    for _ in range(50):
        rollouts, attempts = selectors.due_rollouts(now), selectors.due_attempts(now)
        for due in rollouts:
            tasks.evaluate(due)
        tasks.install(attempts)
        if not rollouts and not attempts:
            return
