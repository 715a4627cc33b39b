"""Field cases about machines that come back: no failure looks like readiness, no cordon is lost."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from fleet import services
from fleet.errors import CordonStands, FleetError, GateMissing
from fleet.lifecycle import TRANSITIONS, State, Trigger
from fleet.models import Machine
from tests.factories import NOW, make_fault_report, make_machine, make_passed_gate, make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import started

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
_Path = tuple[Trigger, ...]


def paths() -> dict[State, _Path]:
    """The shortest way out of service to each state, by the table's own moves."""
    found: dict[State, _Path] = {State.IN_SERVICE: ()}
    edge = [State.IN_SERVICE]
    while edge:
        here = edge.pop(0)
        for (old, trigger), new in TRANSITIONS.items():
            if old is here and new not in found:
                found[new] = (*found[here], trigger)
                edge.append(new)
    return found


PATHS = paths()
WALK = [pair for pair in TRANSITIONS if pair[0] in PATHS]


def go(machine: Machine, moves: Sequence[Trigger], *, at=NOW) -> None:
    """Move a machine; each move into service carries what it needs."""
    for trigger in moves:
        gate = make_passed_gate(machine, now=at) if trigger is Trigger.RELEASE else None
        services.move_machine(
            machine, trigger, actor="walk", now=at, gate="said" if gate is None else "",
            gate_record=gate,
        )  # fmt: skip


def stands_right(machine: Machine) -> None:
    """Whether it may take work is what its state says, in the row and in every record."""
    stored = Machine.objects.get(pk=machine.pk)
    assert stored.may_take_work == (stored.state == State.IN_SERVICE)
    into = stored.state_changes.filter(new_state=State.IN_SERVICE)
    assert not into.filter(gate="").exists()
    assert not into.filter(trigger=Trigger.RELEASE, gate_record=None).exists()


# --- S24: a failure that looks like readiness -----------------------------------------------------


def test_s24_every_state_but_the_first_can_be_reached_from_service():
    assert set(PATHS) == set(State) - {State.REGISTERED}


@pytest.mark.parametrize(("state", "trigger"), WALK, ids=[f"{s}-{t}" for s, t in WALK])
def test_s24_along_every_edge_only_a_machine_in_service_may_work(state, trigger):
    machine = make_machine()

    go(machine, PATHS[state])
    stands_right(machine)
    go(machine, [trigger])
    stands_right(machine)


@pytest.mark.parametrize("state", [one for one in PATHS if one is not State.IN_SERVICE])
def test_s24_silence_in_a_state_never_makes_a_machine_ready(state):
    # Checks that time out, a BMC that is lost, a person who went home: nothing comes any more.
    machine = make_machine()
    go(machine, PATHS[state])

    for days in (1, 7, 30):
        services.watch_deadlines(now=NOW + timedelta(days=days))
        services.end_break_glasses(now=NOW + timedelta(days=days))
        services.resume_take_outs(now=NOW + timedelta(days=days))
        stands_right(machine)

    assert not Machine.objects.get(pk=machine.pk).may_take_work


@pytest.mark.parametrize("state", [one for one in PATHS if one is not State.IN_SERVICE])
def test_s24_a_worker_that_dies_in_the_middle_of_a_move_leaves_no_ready_machine(state, monkeypatch):
    machine = make_machine()
    go(machine, PATHS[state])

    class Killed(BaseException):
        """A worker that is gone."""

    def die(*args, **kwargs):
        raise Killed

    monkeypatch.setattr("fleet.models.StateChange.objects.create", die)
    for old, trigger in TRANSITIONS:
        if old is state:
            with pytest.raises(Killed):
                go(Machine.objects.get(pk=machine.pk), [trigger])

    stored = Machine.objects.get(pk=machine.pk)
    assert (stored.state, stored.may_take_work) == (state, False)


@pytest.mark.parametrize(
    "broken",
    ["none", "of another machine", "failed", "before the last repair", "before a newer fault"],
)
def test_s24_no_gate_but_the_right_one_releases_a_machine(broken):
    machine = make_machine()
    go(machine, PATHS[State.AWAITING_RELEASE])
    now = NOW + HOUR
    gate = {
        "none": lambda: None,
        "of another machine": lambda: make_passed_gate(make_machine(), now=now),
        "failed": lambda: make_passed_gate(machine, now=now, status="failed"),
        "before the last repair": lambda: make_passed_gate(machine, now=NOW - HOUR),
        "before a newer fault": lambda: make_passed_gate(machine, now=NOW),
    }[broken]()
    if broken == "before a newer fault":
        report = make_fault_report(machine, signature="xid.79", time=NOW + HOUR / 2)
        services.record([report], source="test", key="1", now=now)

    with pytest.raises(GateMissing):
        services.move_machine(machine, Trigger.RELEASE, actor="ann", now=now, gate_record=gate)

    stored = Machine.objects.get(pk=machine.pk)
    assert (stored.state, stored.may_take_work) == (State.AWAITING_RELEASE, False)


def test_s24_a_fault_from_days_ago_that_is_told_now_voids_no_release():
    machine = make_machine()
    go(machine, PATHS[State.AWAITING_RELEASE])
    gate = make_passed_gate(machine, now=NOW)
    report = make_fault_report(machine, signature="xid.79", time=NOW - timedelta(days=3))
    services.record([report], source="test", key="1", now=NOW + HOUR)

    services.move_machine(machine, Trigger.RELEASE, actor="ann", now=NOW + HOUR, gate_record=gate)

    assert Machine.objects.get(pk=machine.pk).may_take_work


def test_s24_the_checks_of_one_repair_are_tried_again_once():
    machine = make_machine()
    go(machine, PATHS[State.VALIDATION_FAILED])
    go(machine, [Trigger.RETRY, Trigger.START_VALIDATION, Trigger.FAIL_CHECKS])

    with pytest.raises(FleetError, match="tried once more"):
        go(machine, [Trigger.RETRY])
    go(machine, [Trigger.ORDER_REPAIR, Trigger.START_REPAIR, Trigger.CLOSE_REPAIR])
    go(machine, [Trigger.START_VALIDATION, Trigger.FAIL_CHECKS, Trigger.RETRY])

    assert machine.state == State.AWAITING_VALIDATION


# --- S25: a cordon that somebody else set ---------------------------------------------------------


def test_s25_a_machine_that_comes_back_through_its_gate_stays_held_by_whoever_holds_it():
    machine = make_machine()
    held = services.cordon(machine, owner="ann", reason="waiting for vendor", now=NOW)
    go(machine, [Trigger.TAKE_OUT])
    own = services.cordon(machine, owner="gate:1", reason="partner of a check", now=NOW)
    go(machine, [Trigger.DIAGNOSE, Trigger.FIND_NO_FAULT, Trigger.START_VALIDATION])
    go(machine, [Trigger.PASS_CHECKS, Trigger.END_OBSERVATION])
    services.lift_cordon(own, owner="gate:1", now=NOW)
    go(machine, [Trigger.RELEASE])

    stored = Machine.objects.get(pk=machine.pk)
    assert (stored.state, stored.may_take_work) == (State.IN_SERVICE, False)
    for owner in ("gate:1", "rollout:1", "bob", "watchdog"):
        with pytest.raises(CordonStands, match="ann's"):
            services.lift_cordon(held, owner=owner, now=NOW)
    services.lift_cordon(held, owner="ann", now=NOW)
    assert Machine.objects.get(pk=machine.pk).may_take_work


def test_s25_neither_order_nor_broken_glass_nor_its_end_lifts_a_cordon():
    machine = make_machine()
    go(machine, PATHS[State.AWAITING_REPAIR])
    ann = make_user()
    glass = services.break_glass(machine, user=ann, reason="x", until=NOW + HOUR, now=NOW)
    services.cordon(machine, owner="ann", reason="waiting for vendor", now=NOW)

    services.take_out(machine, actor="bob", reason="smells", at_once=False, now=NOW)
    services.end_break_glasses(now=NOW + 2 * HOUR)
    services.watch_deadlines(now=NOW + 9 * HOUR)

    glass.refresh_from_db()
    assert glass.ended_at is not None
    assert machine.cordons.get().lifted_at is None


# --- a rollout and a person want the same machine -------------------------------------------------


def test_a_rollout_gives_up_a_machine_that_is_ordered_out_while_it_drains(
    fake_fleet: FakeFleet, driver: Driver
):
    rollout = started(fake_fleet, machines=20)
    fake_fleet.behaviour = dict.fromkeys(fake_fleet.versions, "busy")
    driver.settle()
    attempt = rollout.attempts.filter(status="draining").first()
    machine = attempt.machine

    services.take_out(machine, actor="ann", reason="smells", at_once=False, now=driver.now)
    assert Machine.objects.get(pk=machine.pk).state == State.DRAINING
    driver.run(rollout, hours=1)
    services.tell_scheduler(now=driver.now)
    fake_fleet.behaviour[machine.name] = "ok"
    services.tell_scheduler(now=driver.now)

    attempt.refresh_from_db()
    assert attempt.status == "called_off"
    assert machine.name not in fake_fleet.flashed
    assert Machine.objects.get(pk=machine.pk).state == State.AWAITING_DIAGNOSIS
    assert machine.name in fake_fleet.drained


def test_s25_the_scheduler_is_not_given_a_machine_that_a_person_holds_when_its_rollout_is_done(
    fake_fleet: FakeFleet, driver: Driver
):
    rollout = started(fake_fleet, machines=20)
    driver.settle()
    attempt = rollout.attempts.exclude(started_at=None).first()
    machine = attempt.machine
    held = services.cordon(machine, owner="ann", reason="waiting for vendor", now=driver.now)

    driver.run(rollout, hours=4)
    services.tell_scheduler(now=driver.now)

    attempt.refresh_from_db()
    assert attempt.status == "succeeded"
    assert machine.name in fake_fleet.drained
    services.lift_cordon(held, owner="ann", now=driver.now)
    services.tell_scheduler(now=driver.now)
    assert machine.name not in fake_fleet.drained
