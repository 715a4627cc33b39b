"""When some images took and others did not: finish, revert or quarantine, as the bundle says."""

import pytest

from fleet.models import FirmwareBundle, Machine
from rollouts.models import Attempt, Rollout
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import NEW, OLD, started

pytestmark = pytest.mark.django_db
KINDS = ("bmc", "bios")


def first_canary(rollout: Rollout) -> str:
    places = rollout.assignments.filter(planned_wave=1).order_by("machine_name")
    return places.values_list("machine_name", flat=True)[0]


def half_installed(
    fake_fleet: FakeFleet, driver: Driver, *, rule: str, behaviour: str = "half_once"
) -> Attempt:
    rollout = started(fake_fleet, kinds=KINDS)
    FirmwareBundle.objects.filter(pk=rollout.bundle_id).update(on_partial=rule)
    bad = first_canary(rollout)
    fake_fleet.behaviour[bad] = behaviour
    driver.run(rollout, hours=12)
    return Attempt.objects.select_related("machine").get(machine__name=bad)


def test_a_partial_install_lists_its_images_and_is_quarantined_unless_told_otherwise(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    attempt = half_installed(fake_fleet, driver, rule="quarantine")

    assert attempt.status == "partial"
    assert attempt.detail == "runs bios 1.0 instead of 2.0"
    assert attempt.machine.state == "awaiting_diagnosis"


def test_a_partial_install_is_finished_where_the_bundle_says_so_and_still_counts_as_partial(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    attempt = half_installed(fake_fleet, driver, rule="finish")

    name = attempt.machine.name
    assert attempt.status == "partial"
    assert "finish was tried and took" in attempt.detail
    assert fake_fleet.versions[name] == {"bmc": NEW, "bios": NEW}
    assert attempt.machine.state == "in_service"
    assert name not in fake_fleet.drained
    assert [step[1:] for step in fake_fleet.steps if step[0] == name] == [
        ("stage", ("bmc",)),
        ("stage", ("bios",)),
        ("activate", ("bmc", "bios")),
        ("commit", ("bmc", "bios")),
        ("stage", ("bios",)),
        ("activate", ("bmc", "bios")),
        ("commit", ("bmc", "bios")),
    ]


def test_a_partial_install_is_reverted_where_the_bundle_says_so(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    attempt = half_installed(fake_fleet, driver, rule="revert")

    assert attempt.status == "partial"
    assert "runs the previous versions" in attempt.detail
    assert fake_fleet.versions[attempt.machine.name] == {"bmc": OLD, "bios": OLD}
    assert attempt.machine.state == "in_service"


def test_a_partial_install_that_cannot_be_finished_is_quarantined(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    attempt = half_installed(fake_fleet, driver, rule="finish", behaviour="half")

    assert attempt.status == "partial"
    assert "finish was tried" in attempt.detail
    assert attempt.machine.state == "awaiting_diagnosis"


def test_nothing_more_is_written_to_a_partial_install_once_the_rollout_is_halted(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    from rollouts import services
    from tests.factories import make_user

    rollout = started(fake_fleet, kinds=KINDS)
    FirmwareBundle.objects.filter(pk=rollout.bundle_id).update(on_partial="finish")
    bad = first_canary(rollout)
    fake_fleet.behaviour[bad] = "half_once"
    driver.run(rollout, hours=0.1)
    assert Attempt.objects.get(machine__name=bad).status == "verifying"

    services.halt(rollout, actor=make_user(), reason="stop", now=driver.now)
    driver.run(rollout, hours=3)

    attempt = Attempt.objects.get(machine__name=bad)
    assert attempt.status == "partial"
    assert "nothing may be written any more" in attempt.detail
    assert fake_fleet.flashed.count(bad) == 1
    assert Machine.objects.get(name=bad).state == "awaiting_diagnosis"


def test_nothing_more_is_written_to_a_partial_install_outside_its_window(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    window = {"start": "12:00", "duration_minutes": 125}
    rollout = started(fake_fleet, kinds=KINDS, windows=[window])
    FirmwareBundle.objects.filter(pk=rollout.bundle_id).update(on_partial="finish")
    bad = first_canary(rollout)
    fake_fleet.behaviour[bad] = "half_once"

    driver.run(rollout, hours=3)

    attempt = Attempt.objects.get(machine__name=bad)
    assert "nothing may be written any more" in attempt.detail
    assert fake_fleet.flashed.count(bad) == 1
