"""The virtual fleet behind the product's doors: idempotent, regenerable, honest about time."""

from datetime import timedelta

import pytest

from fleet import services as fleet_services
from fleet.adapters import Phase, Target
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


def versions(name: str, *, now) -> dict[str, str]:
    return {
        reading.kind: reading.version for reading in VirtualInstaller().read_versions(name, now=now)
    }


def fails(outcome: str) -> Effect:
    return Effect("bmc", "2.0", failures={outcome: 1.0})


# --- installer ------------------------------------------------------------------------------


def test_an_order_goes_through_every_phase_and_is_then_read_back():
    make_fleet(**SURE)
    installer = VirtualInstaller()

    first = installer.apply(NAME, NEW, key="a", now=ORIGIN)
    phases = [
        installer.progress(NAME, key="a", now=ORIGIN + step * timedelta(seconds=20)).phase
        for step in range(90)
    ]

    assert first.phase is Phase.STAGING
    assert list(dict.fromkeys(phases)) == [
        Phase.STAGING,
        Phase.ACTIVATING,
        Phase.AWAITING_REBOOT,
        Phase.DONE,
    ]
    assert versions(NAME, now=ORIGIN) == {"bmc": "1.0", "bios": "3.1"}
    assert versions(NAME, now=ORIGIN + HOUR) == {"bmc": "2.0", "bios": "4.0"}


def test_an_order_is_taken_once_however_often_it_is_given():
    make_fleet(**SURE)
    installer = VirtualInstaller()
    installer.apply(NAME, NEW, key="a", now=ORIGIN)

    later = installer.apply(NAME, NEW, key="a", now=ORIGIN + HOUR)

    assert later.phase is Phase.DONE
    assert VirtualOrder.objects.count() == 1


def test_a_machine_does_not_answer_while_it_boots_and_has_a_new_boot_id_afterwards():
    make_fleet(**SURE)
    installer = VirtualInstaller()
    installer.apply(NAME, NEW, key="a", now=ORIGIN)
    order = VirtualOrder.objects.get()

    boots = {
        when: {r.boot_id for r in installer.read_versions(NAME, now=when)}
        for when in (ORIGIN, order.down_at + MINUTE, order.up_at)
    }

    assert boots[order.down_at + MINUTE] == set()
    assert len(boots[ORIGIN]) == len(boots[order.up_at]) == 1
    assert boots[ORIGIN] != boots[order.up_at]


def test_two_witnesses_read_each_version():
    make_fleet()

    readings = VirtualInstaller().read_versions(NAME, now=ORIGIN)

    assert {(r.kind, r.witness) for r in readings} == {
        (kind, witness) for kind in ("bmc", "bios") for witness in ("bmc", "host")
    }


@pytest.mark.parametrize(
    ("outcome", "phase", "runs"),
    [
        ("rejected", Phase.REJECTED, {"bmc": "1.0", "bios": "3.1"}),
        ("failed", Phase.FAILED, {"bmc": "1.0", "bios": "3.1"}),
        ("wrong_version", Phase.DONE, {"bmc": "1.0", "bios": "3.1"}),
        ("partial", Phase.DONE, {"bmc": "2.0", "bios": "3.1"}),
        ("fell_back", Phase.DONE, {"bmc": "1.0", "bios": "3.1"}),
        ("bricked", Phase.AWAITING_REBOOT, {}),
    ],
)
def test_a_firmware_can_make_installs_fail_in_every_way(outcome, phase, runs):
    make_fleet(effects=(fails(outcome),))
    installer = VirtualInstaller()
    installer.apply(NAME, NEW, key="a", now=ORIGIN)

    later = installer.progress(NAME, key="a", now=ORIGIN + 3 * HOUR)

    assert later.phase is phase
    assert versions(NAME, now=ORIGIN + 3 * HOUR) == runs


def test_a_machine_that_falls_back_ran_the_new_version_for_a_while():
    make_fleet(effects=(fails("fell_back"),))
    VirtualInstaller().apply(NAME, NEW, key="a", now=ORIGIN)
    order = VirtualOrder.objects.get()

    assert versions(NAME, now=order.up_at)["bmc"] == "2.0"
    assert versions(NAME, now=order.fell_back_at)["bmc"] == "1.0"


def test_an_order_that_nobody_gave_has_failed():
    make_fleet()

    answer = VirtualInstaller().progress(NAME, key="never given", now=ORIGIN)

    assert answer.phase is Phase.FAILED
    assert "never given" in answer.detail


def test_a_machine_outside_the_virtual_fleet_is_an_error():
    make_fleet()

    with pytest.raises(NoVirtualFleet, match="elsewhere-1"):
        VirtualInstaller().read_versions("elsewhere-1", now=ORIGIN)


@pytest.mark.statistical
def test_as_many_reboots_do_not_return_as_stated():
    make_fleet(400, non_return=0.10)
    installer = VirtualInstaller()

    for machine in Machine.objects.order_by("name"):
        installer.apply(machine.name, NEW, key=machine.name, now=ORIGIN)

    gone = VirtualOrder.objects.filter(outcome=Outcome.NEVER_RETURNED)
    assert 24 <= gone.count() <= 58  # 40 expected of 400; beyond three sd is no chance
    assert not gone.exclude(up_at=None).exists()
    assert gone.filter(is_repaired_by_hand=True).count() > gone.count() / 2


# --- scheduler ------------------------------------------------------------------------------


def test_a_drain_takes_some_minutes():
    make_fleet()
    scheduler = VirtualScheduler()

    scheduler.drain(NAME, reason="rollout:1", now=ORIGIN)

    assert not scheduler.is_idle(NAME, now=ORIGIN)
    assert scheduler.is_idle(NAME, now=ORIGIN + 30 * MINUTE)


def test_draining_again_does_not_begin_anew():
    make_fleet()
    scheduler = VirtualScheduler()
    scheduler.drain(NAME, reason="rollout:1", now=ORIGIN)

    scheduler.drain(NAME, reason="rollout:1", now=ORIGIN + 30 * MINUTE)

    assert scheduler.is_idle(NAME, now=ORIGIN + 30 * MINUTE)


def test_releasing_leaves_the_drain_of_another_reason():
    make_fleet()
    scheduler = VirtualScheduler()
    scheduler.drain(NAME, reason="rollout:1", now=ORIGIN)
    scheduler.drain(NAME, reason="somebody else", now=ORIGIN)

    scheduler.release(NAME, reason="rollout:1", now=ORIGIN + HOUR)

    assert scheduler.is_idle(NAME, now=ORIGIN + HOUR)
    scheduler.release(NAME, reason="somebody else", now=ORIGIN + HOUR)
    assert not scheduler.is_idle(NAME, now=ORIGIN + HOUR)


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
    VirtualInstaller().apply(NAME, NEW, key="a", now=ORIGIN + HOUR)

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
