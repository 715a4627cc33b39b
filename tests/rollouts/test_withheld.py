"""What a BMC reports after its update counts for nothing until it shows what it showed before."""

from dataclasses import asdict
from datetime import timedelta

import pytest

from fleet import services as fleet_services
from fleet.adapters import Report, Snapshot
from fleet.models import TelemetryHold
from rollouts import pipeline, selectors
from rollouts.models import Membership, Rollout
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import started

pytestmark = pytest.mark.django_db
BEFORE = Snapshot(("gpu1",), ("Temp_GPU1", "Fan1"))
RENAMED = Snapshot(("gpu1",), ("GPU1 Temp", "Fan1"))
PLAN = {
    "guardrails": [
        {"metric": "install", "required": True},
        {"metric": "faults", "name": "bmc faults", "signatures": ["bmc.*"], "required": False},
        {"metric": "faults", "name": "gpu faults", "signatures": ["xid.*"], "required": False},
    ],
    "look_minutes": 60,
    "burn_in_hours": 0,
}


def running(fake_fleet: FakeFleet, driver: Driver) -> Rollout:
    """A rollout after whose update of the BMC one canary shows a sensor under another name."""
    rollout = started(fake_fleet, **PLAN)
    name = rollout.assignments.filter(planned_wave=1).first().machine_name
    fake_fleet.shown[name] = BEFORE
    flash = fake_fleet._flash

    def rename(machine, targets):
        flash(machine, targets)
        if machine == name:
            fake_fleet.shown[name] = RENAMED

    fake_fleet._flash = rename
    driver.run(rollout, hours=2.5)
    return rollout


def verdicts(rollout: Rollout) -> dict[str, tuple[str, str]]:
    evaluation = selectors.latest_evaluation(selectors.current_wave(rollout))
    return {g["name"]: (g["verdict"], g["reason"]) for g in evaluation.guardrails}


def test_a_renamed_sensor_makes_what_the_bmc_tells_no_data_by_name(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = running(fake_fleet, driver)

    hold = TelemetryHold.objects.get()
    said, why = verdicts(rollout)["bmc faults"]

    assert hold.until is None
    assert said == "no_data"
    assert hold.machine.name in why
    assert "sensor Temp_GPU1 is gone" in why
    assert "BMC" not in verdicts(rollout)["gpu faults"][1]


def test_faults_that_a_bmc_told_of_while_held_back_are_left_out_for_good(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = running(fake_fleet, driver)
    hold = TelemetryHold.objects.get()
    wave = selectors.current_wave(rollout)
    other = Membership.objects.filter(wave=wave, arm="control").first().machine
    at = driver.now
    reports = [
        Report("fault", {"machine": machine.name, "time": at, "signature": signature})
        for machine in (hold.machine, other)
        for signature in ("bmc.unreachable", "xid.79")
    ]
    fleet_services.record(reports, source="bmc", key="1", now=at)
    driver.now += timedelta(hours=1)
    fleet_services.hold_telemetry(hold.machine, before=asdict(BEFORE), shown=BEFORE, now=driver.now)

    samples = pipeline.samples_at(wave, as_of=driver.now, now=driver.now)

    told = {
        (samples.machines.name[machine], samples.faults.signatures[signature])
        for machine, signature in zip(samples.faults.machine, samples.faults.signature, strict=True)
    }
    assert told == {
        (hold.machine.name, "xid.79"),
        (other.name, "xid.79"),
        (other.name, "bmc.unreachable"),
    }
    assert samples.withheld == {}
