"""The virtual technicians: triage, repair, release by a gate; each step once."""

from datetime import timedelta

import pytest

from fleet import clock
from fleet import services as fleet_services
from fleet.adapters import Step, Target
from fleet.lifecycle import State, Trigger
from fleet.models import FirmwareRecord, Gate, Machine, Repair, StateChange
from fleet.tasks import follow_up
from rollouts.models import Attempt, Block, Rollout, Wave
from simulation import technician
from simulation.adapters import VirtualInstaller
from simulation.models import VirtualOrder
from simulation.parameters import Effect
from simulation.tasks import reconcile
from tests.factories import make_fault_report
from tests.simulation.fleets import ORIGIN, make_fleet

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
NAME = "h100-r01-n1"
ALWAYS_GONE = {"non_return": 1.0, "return_by_hand": 1.0}


@pytest.fixture
def users(django_user_model):
    return django_user_model.objects.create_user("author")


def gone(users, *, now=ORIGIN) -> Attempt:
    """An attempt whose machine went down and did not come back, with its rows."""
    machine = Machine.objects.get(name=NAME)
    for trigger in (Trigger.DRAIN, Trigger.START_UPDATE, Trigger.FAIL_UPDATE):
        fleet_services.move_machine(machine, trigger, actor="test", now=now)
    image = fleet_services.create_image(kind="bmc", version="2.0")
    bundle = fleet_services.create_bundle(
        name="new", version="2.0", images=[image], platforms=[machine.platform], author=users,
        now=now,
    )  # fmt: skip
    rollout = Rollout.objects.create(
        name="r", bundle=bundle, selector="x=y", plan={}, plan_digest="d", seed=1,
        status="running", author=users, created_at=now,
    )  # fmt: skip
    wave = Wave.objects.create(rollout=rollout, number=1, size=1, window_hours=1)
    VirtualInstaller().apply(NAME, Step.ACTIVATE, [Target("bmc", "2.0")], key="k", now=now)
    return Attempt.objects.create(
        rollout=rollout, wave=wave, block=Block.objects.create(wave=wave, number=1),
        machine=machine, epoch=0, targets=[], status="never_returned", created_at=now,
        finished_at=now + HOUR,
    )  # fmt: skip


def test_a_machine_that_a_power_cycle_brings_back_is_triaged_as_recovered(users):
    make_fleet(**ALWAYS_GONE)
    attempt = gone(users)

    assert technician.triage_silent(now=ORIGIN + 10 * HOUR) == 1

    attempt.refresh_from_db()
    assert attempt.triage == Attempt.Triage.RECOVERED
    assert VirtualOrder.objects.get().up_at == ORIGIN + 10 * HOUR


def test_nobody_looks_before_the_technician_has_time(users):
    make_fleet(**ALWAYS_GONE)
    attempt = gone(users)

    assert technician.triage_silent(now=ORIGIN + timedelta(minutes=10)) == 0

    attempt.refresh_from_db()
    assert attempt.triage == ""


def test_what_a_power_cycle_does_not_bring_back_is_coincident_hardware(users):
    make_fleet(non_return=1.0, return_by_hand=0.0)
    attempt = gone(users)

    technician.triage_silent(now=ORIGIN + 10 * HOUR)

    attempt.refresh_from_db()
    assert attempt.triage == Attempt.Triage.COINCIDENT_HARDWARE
    assert VirtualOrder.objects.get().up_at is None


def test_only_what_the_firmware_bricked_is_a_brick(users):
    make_fleet(effects=(Effect("bmc", "2.0", failures={"bricked": 1.0}),))
    attempt = gone(users)

    technician.triage_silent(now=ORIGIN + 10 * HOUR)

    attempt.refresh_from_db()
    assert attempt.triage == Attempt.Triage.BRICKED


def test_triage_twice_changes_nothing(users):
    make_fleet(**ALWAYS_GONE)
    gone(users)
    technician.triage_silent(now=ORIGIN + 10 * HOUR)
    before = VirtualOrder.objects.values().get()

    assert technician.triage_silent(now=ORIGIN + 11 * HOUR) == 0

    assert VirtualOrder.objects.values().get() == before


def test_an_untriaged_machine_stays_in_its_queue(users):
    make_fleet(**ALWAYS_GONE)
    gone(users)

    assert technician.work_on_queue(now=ORIGIN + 100 * HOUR) == 0

    assert Machine.objects.get(name=NAME).state == State.AWAITING_DIAGNOSIS


def pass_time(now, *, hours: float) -> None:
    end = now + hours * HOUR
    while (due := technician.next_due_at()) is not None and due <= end:
        now = max(now, due)
        technician.work_on_queue(now=now)


def test_a_triaged_machine_goes_the_whole_way_back_and_through_its_gate(users):
    make_fleet(**ALWAYS_GONE)
    gone(users)
    now = ORIGIN + 10 * HOUR
    technician.triage_silent(now=now)

    pass_time(now, hours=16)

    machine = Machine.objects.get(name=NAME)
    gate = Gate.objects.get(machine=machine, status="passed")
    release = StateChange.objects.filter(machine=machine).order_by("pk").last()
    assert machine.state == State.IN_SERVICE
    assert machine.watch_until is not None
    assert (release.trigger, release.gate_record) == (Trigger.RELEASE, gate)
    assert gate.repair.outcome == "repaired"
    # No rollout wants it and no bundle is set: it was put back to what it ran before.
    active = FirmwareRecord.objects.filter(machine=machine, kind="bmc").order_by("since").last()
    assert (active.version, active.stage) == ("1.0", "active")


def struck(*, now=ORIGIN) -> Machine:
    """A machine at work whose accelerator has just fallen off the bus."""
    machine = Machine.objects.get(name=NAME)
    report = make_fault_report(machine, time=now, signature="xid.79", component="gpu 3")
    fleet_services.record([report], source="tests", key="k", now=now)
    follow_up()
    return machine


def test_a_struck_machine_is_taken_out_once_and_comes_back(users):
    make_fleet()
    clock.set_mode("stepped", at=ORIGIN)
    machine = struck()

    taken = [technician.take_out_struck(now=ORIGIN) for _ in range(2)]
    pass_time(ORIGIN, hours=120)

    machine.refresh_from_db()
    incident = machine.incidents.get()
    assert taken == [1, 0]
    assert machine.state == State.IN_SERVICE
    assert incident.diagnosis
    assert incident.repairs.filter(outcome="repaired").exists()


def test_no_machine_is_taken_out_of_a_pool_of_which_many_are_out(users):
    make_fleet()
    clock.set_mode("stepped", at=ORIGIN)
    machine = struck()
    pool = Machine.objects.filter(pool=machine.pool).exclude(pk=machine.pk)
    for other in pool[: pool.count() // 5]:
        fleet_services.move_machine(other, Trigger.TAKE_OUT, actor="test", now=ORIGIN)

    assert technician.take_out_struck(now=ORIGIN) == 0


def test_a_machine_that_a_person_has_in_hand_is_left_to_them(users):
    make_fleet()
    machine = Machine.objects.get(name=NAME)
    fleet_services.move_machine(machine, Trigger.TAKE_OUT, actor="test", now=ORIGIN)
    fleet_services.take(machine, user=users, now=ORIGIN)

    pass_time(ORIGIN, hours=4)

    machine.refresh_from_db()
    assert machine.state == State.DIAGNOSING
    assert technician.next_due_at() is None

    fleet_services.order_repair(
        machine, kind="thermal", actor="author", user=users, now=ORIGIN + 5 * HOUR
    )
    machine.refresh_from_db()
    assert machine.held_by is None
    assert technician.next_due_at() is None


def test_what_could_not_be_done_is_tried_again_later(users):
    make_fleet(**ALWAYS_GONE)
    machine = Machine.objects.get(name=NAME)
    fleet_services.move_machine(machine, Trigger.TAKE_OUT, actor="test", now=ORIGIN)
    other = fleet_services.order_repair(machine, kind="thermal", actor="test", now=ORIGIN)
    Repair.objects.filter(pk=other.pk).update(status="closed", closed_at=ORIGIN)
    now = ORIGIN + 3 * HOUR

    technician.work_on_queue(now=now)

    assert technician.next_due_at() > now


def test_each_state_takes_its_time(users):
    make_fleet(**ALWAYS_GONE)
    gone(users)
    now = ORIGIN + 10 * HOUR
    technician.triage_silent(now=now)

    technician.work_on_queue(now=now)
    technician.work_on_queue(now=now)

    assert Machine.objects.get(name=NAME).state == State.DIAGNOSING


def test_it_says_when_there_is_something_to_do_next(users):
    make_fleet(**ALWAYS_GONE)
    assert technician.next_due_at() is None

    gone(users)

    assert technician.next_due_at() == VirtualOrder.objects.get().by_hand_at


def test_reconcile_does_nothing_where_simulation_is_off(users, settings):
    settings.SIMULATION_ENABLED = False
    make_fleet(**ALWAYS_GONE)
    attempt = gone(users)

    reconcile()

    attempt.refresh_from_db()
    assert attempt.triage == ""


def test_reconcile_may_run_twice(users):
    make_fleet(**ALWAYS_GONE)
    attempt = gone(users)  # long ago by the wall's clock

    reconcile()
    reconcile()

    attempt.refresh_from_db()
    assert attempt.triage == Attempt.Triage.RECOVERED


def test_reconcile_leaves_a_fleet_alone_that_somebody_holds(users):
    from django.utils import timezone

    fleet = make_fleet(**ALWAYS_GONE)
    attempt = gone(users)
    type(fleet).objects.update(leased_until=timezone.now() + HOUR, lease_token="other")

    reconcile()

    attempt.refresh_from_db()
    assert attempt.triage == ""
