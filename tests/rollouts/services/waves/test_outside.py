"""Firmware that comes onto machines of an open comparison by others is found and recorded."""

from datetime import timedelta

import pytest

from fleet import services as fleet_services
from fleet.adapters import Reading, Report
from fleet.models import FirmwareRecord, Machine
from rollouts import selectors, tasks
from rollouts.models import Contamination, Membership, Rollout
from rollouts.services.waves.outside import record_contamination
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import NEW, OLD, started

pytestmark = pytest.mark.django_db


def member(rollout: Rollout, arm: str) -> Machine:
    return Membership.objects.filter(wave__rollout=rollout, arm=arm).first().machine


def staged_on(machine: Machine, fake_fleet: FakeFleet, driver: Driver) -> None:
    """Somebody else has written the new image to a machine and not activated it."""
    fake_fleet.staged[machine.name] = {"bmc": NEW}
    readings = fake_fleet.read_versions(machine.name, now=driver.now)
    fleet_services.record_readings(machine, readings, now=driver.now)


def booted_by_others(machine: Machine, fake_fleet: FakeFleet, driver: Driver) -> None:
    fake_fleet.boots[machine.name] += 1
    fake_fleet.versions[machine.name] = fake_fleet.staged.pop(machine.name)
    driver.now += timedelta(hours=1)
    seen = {
        "machine": machine.name,
        "start": driver.now - timedelta(minutes=30),
        "end": driver.now,
        "in_service_seconds": 1800.0,
        "boot_id": f"{machine.name}-boot-{fake_fleet.boots[machine.name]}",
    }
    report = Report("observation", seen)
    fleet_services.record([report], source="test", key=str(driver.now), now=driver.now)


def test_a_boot_by_others_that_activates_a_staged_image_contaminates_the_control_arm(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    driver.run(rollout, hours=6)
    machine = member(rollout, "control")
    staged_on(machine, fake_fleet, driver)
    tasks.look_outside()
    assert not Contamination.objects.exists()

    booted_by_others(machine, fake_fleet, driver)
    tasks.look_outside()
    tasks.look_outside()

    found = Contamination.objects.get()
    assert (found.machine, found.arm, found.version) == (machine, "control", NEW)
    assert found.was_staged
    assert found.boot_id == f"{machine.name}-boot-2"
    assert Membership.objects.get(machine=machine, wave=found.wave).arm == "control"  # it keeps it
    runs = FirmwareRecord.objects.filter(machine=machine, stage="active").latest("since")
    assert runs.version == NEW


def test_a_staged_image_that_nobody_activated_is_left_alone(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    driver.run(rollout, hours=6)
    staged_on(member(rollout, "control"), fake_fleet, driver)

    tasks.look_outside()

    assert not Contamination.objects.exists()


def test_what_the_rollout_itself_installs_contaminates_nothing(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, recheck_hours=1)
    driver.run(rollout, hours=6)
    fallen = member(rollout, "canary")
    fake_fleet.versions[fallen.name] = {"bmc": OLD}
    driver.run(rollout, hours=3)

    tasks.look_outside()

    assert not Contamination.objects.exists()


def test_a_third_version_on_a_canary_is_recorded_once(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    driver.run(rollout, hours=6)
    machine = member(rollout, "canary")
    wave = selectors.current_wave(rollout)
    other = Reading("bmc", "", "1.9", "host", "boot-9")
    fleet_services.record_readings(machine, [other], now=driver.now)

    first = record_contamination(wave, now=driver.now)
    again = record_contamination(wave, now=driver.now)

    assert [(one.arm, one.version, one.was_staged) for one in first] == [("canary", "1.9", False)]
    assert again == []
