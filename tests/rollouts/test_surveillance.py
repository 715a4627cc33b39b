"""After a wave's window its machines are watched against the untreated ones until the release."""

from datetime import timedelta

import pytest

from fleet import services as fleet_services
from fleet.models import Machine
from rollouts import selectors, services
from rollouts.models import Decision, Rollout
from rollouts.services import surveillance
from tests.factories import make_fault_report, make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import started

pytestmark = pytest.mark.django_db

GUARDRAILS = [
    {"metric": "install", "required": True},
    {"metric": "faults", "required": False},
]


def in_the_second_wave(fake_fleet: FakeFleet, driver: Driver) -> Rollout:
    """A rollout a day after its first wave, which proved nothing and was advanced by hand."""
    rollout = started(
        fake_fleet,
        machines=60,
        waves=[{"count": 20, "window_hours": 24}, {"count": 5, "window_hours": 240}],
        guardrails=GUARDRAILS,
        extension=0,
    )
    driver.run(rollout, hours=36)
    ann, bob = make_user(), make_user()
    services.advance(rollout, actor=ann, second_person=bob, reason="calm", now=driver.now)
    driver.run(rollout, hours=24)
    first, second, _ = selectors.waves_of(rollout)
    assert (first.status, second.status) == ("widened", "observing")
    assert first.window_end < driver.now
    return rollout


def fail(rollout: Rollout, driver: Driver, *, number: int, wave: int | None) -> None:
    """Faults of the last hour on so many machines of a wave, or on untreated ones."""
    chosen = rollout.assignments.order_by("machine_name")
    chosen = chosen.filter(wave__number=wave) if wave else chosen.filter(wave=None)
    names = chosen.values_list("machine_name", flat=True)[:number]
    reports = [
        make_fault_report(machine, time=driver.now - timedelta(minutes=50 - k))
        for k, machine in enumerate(Machine.objects.filter(name__in=names))
    ]
    fleet_services.record(reports, source="test", key=f"{wave} {driver.now}", now=driver.now)


def halts(rollout: Rollout) -> list[Decision]:
    return list(rollout.decisions.filter(kind="halt"))


def test_machines_of_an_earlier_wave_that_fail_too_often_halt_the_rollout(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    fail(rollout, driver, number=12, wave=1)

    driver.run(rollout, hours=12)

    assert rollout.status == "halted"
    (halt,) = halts(rollout)
    assert halt.reason_code == "harmful"
    assert halt.reason.startswith(
        "surveillance after the windows: 12 of 12 first episodes of faults were on units with "
        "the new bundle (20 of them, 35 untreated); E = "
    )
    assert halt.reason.endswith(", 100 halts")


def test_untreated_machines_that_fail_alike_are_no_reason_to_halt(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    fail(rollout, driver, number=7, wave=1)
    fail(rollout, driver, number=12, wave=None)

    driver.run(rollout, hours=12)

    assert rollout.status == "running"


def test_faults_before_the_end_of_the_window_are_not_counted_here(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    wave = selectors.waves_of(rollout)[0]
    later, driver.now = driver.now, wave.window_end
    fail(rollout, driver, number=12, wave=1)
    driver.now = later

    driver.run(rollout, hours=12)

    assert rollout.status == "running"


def test_one_crossing_is_one_decision(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    Rollout.objects.filter(pk=rollout.pk).update(mode="observe")
    fail(rollout, driver, number=12, wave=1)

    driver.run(rollout, hours=24)

    assert rollout.status == "running"  # in this mode nothing is carried out
    assert len(halts(rollout)) == 1


def test_what_was_overridden_does_not_halt_again(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    fail(rollout, driver, number=12, wave=1)
    driver.run(rollout, hours=12)
    ann, bob = make_user("ann"), make_user("bob")
    services.override(rollout, actor=ann, second_person=bob, reason="a power cut", now=driver.now)
    services.resume(rollout, actor=ann, now=driver.now)

    driver.run(rollout, hours=24)

    assert rollout.status == "running"
    assert len(halts(rollout)) == 1


def test_before_any_window_is_over_there_is_nothing_to_look_back_at(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    driver.run(rollout, hours=12)

    wave = selectors.waves_of(rollout)[0]

    assert surveillance.look_back(wave, as_of=driver.now) is None
