"""The virtual fleet behind the product's doors: idempotent, regenerable, honest about time."""

from datetime import timedelta

import pytest

from fleet import services as fleet_services
from fleet.adapters import Phase, Step, Target
from fleet.lifecycle import Trigger
from fleet.models import Fault, Machine, Observation, Recovery
from simulation.adapters import VirtualCollector, VirtualInstaller, VirtualScheduler
from simulation.errors import NoVirtualFleet
from simulation.models import VirtualOrder
from simulation.orders import Outcome
from simulation.parameters import Effect
from tests.simulation.fleets import ORIGIN, make_fleet, tripled

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
NAME = "h100-r01-n1"
NEW = [Target("bmc", "2.0"), Target("bios", "4.0")]
SURE = {"non_return": 0.0}


def versions(name: str, *, now, stage: str = "active") -> dict[str, str]:
    read = VirtualInstaller().read_versions(name, now=now)
    return {reading.kind: reading.version for reading in read if reading.stage == stage}


def fails(outcome: str) -> Effect:
    return Effect("bmc", "2.0", failures={outcome: 1.0})


# --- installer ------------------------------------------------------------------------------


def stage(*, now=ORIGIN, key: str = "s", targets=NEW) -> list:
    """Order the writing of each image, and tell what was answered."""
    installer = VirtualInstaller()
    return [
        installer.apply(NAME, Step.STAGE, [target], key=f"{key}.{at}", now=now)
        for at, target in enumerate(targets)
    ]


def activate(*, now=ORIGIN, key: str = "a", targets=NEW, name: str = NAME):
    return VirtualInstaller().apply(name, Step.ACTIVATE, targets, key=key, now=now)


def test_an_image_is_written_aside_and_shown_as_staged_until_it_runs():
    make_fleet(**SURE)

    first = stage()
    later = stage(now=ORIGIN + HOUR)

    assert {answer.phase for answer in first} == {Phase.STAGING}
    assert {answer.phase for answer in later} == {Phase.DONE}
    assert versions(NAME, now=ORIGIN + HOUR) == {"bmc": "1.0", "bios": "3.1"}
    assert versions(NAME, now=ORIGIN + HOUR, stage="staged") == {"bmc": "2.0", "bios": "4.0"}
    activate(now=ORIGIN + HOUR)
    assert versions(NAME, now=ORIGIN + 3 * HOUR, stage="staged") == {}


def test_an_activation_goes_through_every_phase_and_is_then_read_back():
    make_fleet(**SURE)
    installer = VirtualInstaller()

    activate()
    phases = [
        installer.progress(NAME, key="a", now=ORIGIN + step * timedelta(seconds=20)).phase
        for step in range(90)
    ]

    assert list(dict.fromkeys(phases)) == [Phase.ACTIVATING, Phase.AWAITING_REBOOT, Phase.DONE]
    assert versions(NAME, now=ORIGIN) == {"bmc": "1.0", "bios": "3.1"}
    assert versions(NAME, now=ORIGIN + HOUR) == {"bmc": "2.0", "bios": "4.0"}


def test_an_order_is_taken_once_however_often_it_is_given():
    make_fleet(**SURE)
    activate()

    later = activate(now=ORIGIN + HOUR)

    assert later.phase is Phase.DONE
    assert VirtualOrder.objects.count() == 1


def test_a_machine_does_not_answer_while_it_boots_and_has_a_new_boot_id_afterwards():
    make_fleet(**SURE)
    installer = VirtualInstaller()
    activate()
    order = VirtualOrder.objects.get()

    boots = {
        when: {r.boot_id for r in installer.read_versions(NAME, now=when)}
        for when in (ORIGIN, order.down_at + MINUTE, order.up_at)
    }

    assert boots[order.down_at + MINUTE] == set()
    assert len(boots[ORIGIN]) == len(boots[order.up_at]) == 1
    assert boots[ORIGIN] != boots[order.up_at]


def test_the_reset_of_a_component_boots_no_host():
    make_fleet(**SURE)
    installer = VirtualInstaller()
    before = installer.read_versions(NAME, now=ORIGIN)[0].boot_id

    activate(targets=[Target("bmc", "2.0", activation="reset")])

    after = installer.read_versions(NAME, now=ORIGIN + HOUR)
    assert {reading.boot_id for reading in after} == {before}
    assert versions(NAME, now=ORIGIN + HOUR)["bmc"] == "2.0"


def test_two_witnesses_read_each_version():
    make_fleet()

    readings = VirtualInstaller().read_versions(NAME, now=ORIGIN)

    assert {(r.kind, r.witness) for r in readings} == {
        (kind, witness) for kind in ("bmc", "bios") for witness in ("bmc", "host")
    }


@pytest.mark.parametrize(
    ("outcome", "first", "later"),
    [
        ("rejected", Phase.REJECTED, Phase.REJECTED),
        ("failed", Phase.STAGING, Phase.FAILED),
        ("busy", Phase.BUSY, Phase.DONE),
        ("stalled", Phase.STAGING, Phase.STAGING),
    ],
)
def test_the_writing_of_an_image_can_go_wrong_in_every_way(outcome, first, later):
    make_fleet(effects=(fails(outcome),))

    assert stage()[0].phase is first
    assert stage(now=ORIGIN + 3 * HOUR)[0].phase is later
    is_written = later is Phase.DONE
    staged = versions(NAME, now=ORIGIN + 3 * HOUR, stage="staged")
    assert ("bmc" in staged) == is_written


@pytest.mark.parametrize(
    ("outcome", "phase", "runs"),
    [
        ("wrong_version", Phase.DONE, {"bmc": "1.0", "bios": "3.1"}),
        ("partial", Phase.DONE, {"bmc": "2.0", "bios": "3.1"}),
        ("fell_back", Phase.DONE, {"bmc": "1.0", "bios": "3.1"}),
        ("needs_ac_cycle", Phase.DONE, {"bmc": "1.0", "bios": "3.1"}),
        ("bricked", Phase.AWAITING_REBOOT, {}),
    ],
)
def test_an_activation_can_go_wrong_in_every_way(outcome, phase, runs):
    make_fleet(effects=(fails(outcome),))
    activate()

    later = VirtualInstaller().progress(NAME, key="a", now=ORIGIN + 3 * HOUR)

    assert later.phase is phase
    assert versions(NAME, now=ORIGIN + 3 * HOUR) == runs


def test_what_needs_an_ac_cycle_runs_after_one():
    make_fleet(effects=(fails("needs_ac_cycle"),), **SURE)

    activate(targets=[Target("bmc", "2.0", activation="ac_cycle")])

    assert versions(NAME, now=ORIGIN + HOUR)["bmc"] == "2.0"


def test_a_bmc_that_is_lost_leaves_the_host_as_the_only_witness():
    make_fleet(effects=(fails("lost_bmc"),))
    installer = VirtualInstaller()
    activate()
    later = ORIGIN + HOUR

    assert {r.witness for r in installer.read_versions(NAME, now=ORIGIN)} == {"bmc", "host"}
    assert {r.witness for r in installer.read_versions(NAME, now=later)} == {"host"}
    with pytest.raises(ConnectionError):
        installer.snapshot(NAME, now=later)


def test_a_host_that_never_sees_the_new_image_contradicts_the_bmc():
    make_fleet(effects=(fails("disputed"),))
    activate()

    told = VirtualInstaller().read_versions(NAME, now=ORIGIN + HOUR)

    assert {(r.witness, r.version) for r in told if r.kind == "bmc"} == {
        ("bmc", "2.0"),
        ("host", "0.0"),
    }


def test_a_bmc_shows_the_same_sensors_unless_its_firmware_renames_them():
    make_fleet(effects=(Effect("bmc", "2.0", renames_sensors=True),), **SURE)
    installer = VirtualInstaller()
    before = installer.snapshot(NAME, now=ORIGIN)
    activate()

    after = installer.snapshot(NAME, now=ORIGIN + HOUR)

    assert before.inventory == after.inventory
    assert "Temp_bmc" in before.sensors
    assert "Temp_bmc" not in after.sensors


def test_a_machine_that_falls_back_ran_the_new_version_for_a_while():
    make_fleet(effects=(fails("fell_back"),))
    activate()
    order = VirtualOrder.objects.get()

    assert versions(NAME, now=order.up_at)["bmc"] == "2.0"
    assert versions(NAME, now=order.fell_back_at)["bmc"] == "1.0"


def test_an_order_that_nobody_gave_is_not_known():
    make_fleet()

    answer = VirtualInstaller().progress(NAME, key="never given", now=ORIGIN)

    assert answer.phase is Phase.UNKNOWN
    assert "never given" in answer.detail


def test_a_machine_outside_the_virtual_fleet_is_an_error():
    make_fleet()

    with pytest.raises(NoVirtualFleet, match="elsewhere-1"):
        VirtualInstaller().read_versions("elsewhere-1", now=ORIGIN)


@pytest.mark.statistical
def test_as_many_reboots_do_not_return_as_stated():
    make_fleet(400, non_return=0.10)

    for machine in Machine.objects.order_by("name"):
        activate(key=machine.name, name=machine.name)

    gone = VirtualOrder.objects.filter(outcome=Outcome.NEVER_RETURNED)
    assert 24 <= gone.count() <= 58  # 40 expected of 400; beyond three sd is no chance
    assert not gone.exclude(up_at=None).exists()
    assert gone.filter(is_repaired_by_hand=True).count() > gone.count() / 2


# --- scheduler ------------------------------------------------------------------------------


def is_idle(*, now, reason: str = "rollout:1") -> bool:
    return VirtualScheduler().drain(NAME, reason=reason, now=now).is_idle


def test_a_drain_takes_some_minutes_and_says_how_many():
    make_fleet()

    answer = VirtualScheduler().drain(NAME, reason="rollout:1", now=ORIGIN)

    assert not answer.is_idle
    assert ORIGIN < answer.until < ORIGIN + 30 * MINUTE
    assert is_idle(now=answer.until)


def test_draining_again_does_not_begin_anew():
    make_fleet()

    assert not is_idle(now=ORIGIN)
    assert is_idle(now=ORIGIN + 30 * MINUTE)


def test_releasing_leaves_the_drain_of_another_reason():
    make_fleet()
    scheduler = VirtualScheduler()
    scheduler.drain(NAME, reason="rollout:1", now=ORIGIN)
    scheduler.drain(NAME, reason="somebody else", now=ORIGIN)

    scheduler.release(NAME, reason="rollout:1", now=ORIGIN + HOUR)

    assert is_idle(now=ORIGIN + HOUR, reason="somebody else")
    scheduler.release(NAME, reason="somebody else", now=ORIGIN + HOUR)
    assert not is_idle(now=ORIGIN + HOUR)


# --- collector ------------------------------------------------------------------------------


def fetch(since, until) -> list:
    return list(VirtualCollector().fetch(since=since, until=until))


def by_key(reports) -> dict:
    return {(r.kind, r.fields["source_key"], "recovered_at" in r.fields): r.fields for r in reports}


def test_the_same_interval_is_fetched_again_with_the_same_keys_and_contents():
    make_fleet()

    first = fetch(ORIGIN, ORIGIN + 6 * HOUR)
    again = fetch(ORIGIN, ORIGIN + 6 * HOUR)

    assert {report.kind for report in first} == {"fault", "observation", "recovery"}
    assert first == again


def test_small_steps_fetch_what_one_large_step_does():
    make_fleet()
    whole = by_key(fetch(ORIGIN, ORIGIN + 12 * HOUR))

    parts = [
        report
        for step in range(36)
        for report in fetch(ORIGIN + step * HOUR / 3, ORIGIN + (step + 1) * HOUR / 3)
    ]

    assert len(by_key(parts)) == len(parts)
    closed_or_plain = {key: fields for key, fields in by_key(parts).items() if key in whole}
    assert closed_or_plain == whole
    # What the large step did not need to say: that an interruption was open for a while.
    assert {key[0] for key in set(by_key(parts)) - set(whole)} <= {"recovery"}


def test_an_interruption_is_reported_open_and_then_closed_under_one_key():
    make_fleet()
    reports = [
        report
        for step in range(24)
        for report in fetch(ORIGIN + step * HOUR / 4, ORIGIN + (step + 1) * HOUR / 4)
        if report.kind == "recovery"
    ]
    opened = {r.fields["source_key"] for r in reports if "recovered_at" not in r.fields}
    closed = {r.fields["source_key"]: r.fields for r in reports if "recovered_at" in r.fields}

    both = opened & set(closed)

    assert both
    assert all(closed[key]["recovered_at"] > closed[key]["time"] for key in both)


def test_everything_fetched_is_accepted_once():
    make_fleet()
    reports = fetch(ORIGIN, ORIGIN + 6 * HOUR)
    now = ORIGIN + 6 * HOUR

    first = fleet_services.record(reports, source="virtual", key="1", now=now)
    again = fleet_services.record(reports, source="virtual", key="2", now=now)

    assert first.refused == []
    assert first.accepted == len(reports)
    assert (again.accepted, again.duplicates) == (0, len(reports))
    assert Fault.objects.exists()
    assert Recovery.objects.exists()
    assert Observation.objects.count() == 3 * 40


def test_a_machine_out_of_service_reports_nothing():
    make_fleet(per_machine_day=20.0)
    machine = Machine.objects.get(name=NAME)
    fleet_services.move_machine(machine, Trigger.DRAIN, actor="test", now=ORIGIN + HOUR)

    reports = fetch(ORIGIN, ORIGIN + 4 * HOUR)

    mine = [r for r in reports if r.fields["machine"] == NAME]
    seen = [r.fields for r in mine if r.kind == "observation"]
    assert [fields["in_service_seconds"] for fields in seen] == [3600.0]
    assert all(r.fields["time"] <= ORIGIN + HOUR for r in mine if r.kind == "fault")


def test_new_firmware_acts_from_the_boot_on():
    make_fleet(per_machine_day=5.0, non_return=0.0, effects=(Effect("bmc", "2.0", throughput=0.5),))
    activate(now=ORIGIN + HOUR)

    seen = [
        r.fields["throughput"]
        for r in fetch(ORIGIN, ORIGIN + 8 * HOUR)
        if r.kind == "observation" and r.fields["machine"] == NAME
    ]

    assert 0.6 < seen[0] < 1.1  # half old, half new
    assert all(value < 0.6 for value in seen[1:])


def test_tripled_firmware_keeps_the_keys_of_what_would_have_happened_anyway():
    # Common random numbers: the same seed, once with and once without the effect.
    fleet = make_fleet(non_return=0.0, effects=(tripled(),))
    plain = by_key(fetch(ORIGIN, ORIGIN + 12 * HOUR))
    fleet.machines.update(versions={"bmc": "2.0", "bios": "3.1"})

    tripled_too = by_key(fetch(ORIGIN, ORIGIN + 12 * HOUR))

    faults = {key for key in plain if key[0] == "fault"}
    assert faults < {key for key in tripled_too if key[0] == "fault"}
