"""Moves carry their reasons, the gate guards service, and cordons belong to their owners."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from fleet import lifecycle, services
from fleet.errors import CordonStands, GateMissing, StaleMachine
from fleet.lifecycle import State, Trigger
from fleet.models import Cordon, Machine, StateChange
from tests.factories import NOW, make_machine, make_passed_gate

pytestmark = pytest.mark.django_db

INTO_SERVICE = [pair for pair, new in lifecycle.TRANSITIONS.items() if new is State.IN_SERVICE]
MOVES = list(lifecycle.TRANSITIONS.items())


@pytest.mark.parametrize(("pair", "new"), MOVES, ids=[f"{o}-{t}" for (o, t), _ in MOVES])
def test_a_move_sets_owner_next_step_deadline_and_flag_and_records_itself(pair, new):
    old, trigger = pair
    machine = make_machine(state=old)

    passed = make_passed_gate(machine) if trigger is Trigger.RELEASE else None

    change = services.move_machine(
        machine, trigger, actor="ann", now=NOW, reason="because", gate="gate 1", gate_record=passed
    )

    stored = Machine.objects.get(pk=machine.pk)
    rule = lifecycle.STATES[new]
    hours = rule.deadline_hours
    assert (stored.state, stored.owner_role, stored.next_step) == (new, rule.owner, rule.next_step)
    assert stored.entered_at == NOW
    assert stored.deadline_at == (None if hours is None else NOW + timedelta(hours=hours))
    assert stored.may_take_work == (new is State.IN_SERVICE)
    assert (machine.state, machine.may_take_work) == (stored.state, stored.may_take_work)
    assert (change.old_state, change.new_state, change.trigger) == (old, new, trigger)
    assert (change.actor, change.reason, change.gate) == ("ann", "because", "gate 1")
    assert change.gate_record == passed


@pytest.mark.parametrize(("state", "trigger"), INTO_SERVICE)
def test_no_edge_into_service_without_a_gate(state, trigger):
    machine = make_machine(state=state)

    with pytest.raises(GateMissing, match=machine.name):
        services.move_machine(machine, trigger, actor="ann", now=NOW)

    assert Machine.objects.get(pk=machine.pk).state == state


def test_the_database_refuses_a_change_into_service_without_a_gate():
    machine = make_machine()

    with pytest.raises(IntegrityError), transaction.atomic():
        StateChange.objects.create(
            machine=machine,
            old_state="draining",
            new_state="in_service",
            trigger="call_off",
            at=NOW,
            recorded_at=NOW,
            actor="ann",
        )


@pytest.mark.parametrize("state", [state for state in State if state is not State.IN_SERVICE])
def test_the_database_refuses_work_for_a_machine_out_of_service(state):
    machine = make_machine(state=state)

    with pytest.raises(IntegrityError), transaction.atomic():
        Machine.objects.filter(pk=machine.pk).update(may_take_work=True)


def test_of_two_workers_that_move_a_machine_one_stops():
    machine = make_machine()
    same = Machine.objects.get(pk=machine.pk)
    services.move_machine(machine, Trigger.DRAIN, actor="one", now=NOW)

    with pytest.raises(StaleMachine, match="no longer in_service"):
        services.move_machine(same, Trigger.DRAIN, actor="two", now=NOW)

    assert machine.state_changes.filter(trigger="drain").count() == 1


def test_a_release_opens_a_watch_period_of_seven_days():
    machine = make_machine(state=State.AWAITING_RELEASE)

    gate = make_passed_gate(machine)

    services.move_machine(machine, Trigger.RELEASE, actor="ann", now=NOW, gate_record=gate)

    assert Machine.objects.get(pk=machine.pk).watch_until == NOW + timedelta(days=7)


def test_a_return_from_an_update_opens_no_watch_period():
    machine = make_machine(state=State.VERIFYING)

    services.move_machine(machine, Trigger.RETURN, actor="rollout:1", now=NOW, gate="read back")

    assert Machine.objects.get(pk=machine.pk).watch_until is None


def test_a_cordon_takes_the_machine_out_of_work_and_its_lift_gives_it_back():
    machine = make_machine()

    cordon = services.cordon(machine, owner="ann", reason="noise", now=NOW)
    assert not Machine.objects.get(pk=machine.pk).may_take_work

    services.lift_cordon(cordon, owner="ann", now=NOW + timedelta(hours=1))
    assert Machine.objects.get(pk=machine.pk).may_take_work
    assert Cordon.objects.get().lifted_by == "ann"


def test_a_rollout_that_ends_leaves_another_owners_cordon_standing():
    machine = make_machine()
    services.cordon(machine, owner="ann", reason="waiting for vendor", now=NOW)
    own = services.cordon(machine, owner="rollout:1", reason="update", now=NOW)

    services.lift_cordon(own, owner="rollout:1", now=NOW)

    assert list(machine.cordons.filter(lifted_at=None).values_list("owner", flat=True)) == ["ann"]
    assert not Machine.objects.get(pk=machine.pk).may_take_work


def test_nobody_lifts_anothers_cordon():
    machine = make_machine()
    cordon = services.cordon(machine, owner="ann", reason="waiting for vendor", now=NOW)

    with pytest.raises(CordonStands, match="ann"):
        services.lift_cordon(cordon, owner="rollout:1", now=NOW)

    assert Cordon.objects.get().lifted_at is None


def test_one_owner_may_hold_for_two_reasons():
    machine = make_machine()
    first = services.cordon(machine, owner="ann", reason="one", now=NOW)
    services.cordon(machine, owner="ann", reason="two", now=NOW)

    services.lift_cordon(first, owner="ann", now=NOW)

    assert not Machine.objects.get(pk=machine.pk).may_take_work


def test_the_same_cordon_twice_is_one():
    machine = make_machine()

    first = services.cordon(machine, owner="ann", reason="noise", now=NOW)
    second = services.cordon(machine, owner="ann", reason="noise", now=NOW + timedelta(hours=1))

    assert first == second
    assert second.since == NOW


def test_a_lift_may_be_repeated_and_keeps_its_first_time():
    machine = make_machine()
    cordon = services.cordon(machine, owner="ann", reason="noise", now=NOW)
    services.lift_cordon(cordon, owner="ann", now=NOW)

    services.lift_cordon(cordon, owner="ann", now=NOW + timedelta(hours=1))

    assert Cordon.objects.get().lifted_at == NOW


def test_a_cordoned_machine_that_comes_back_into_service_takes_no_work():
    machine = make_machine(state=State.VERIFYING)
    services.cordon(machine, owner="ann", reason="noise", now=NOW)

    services.move_machine(machine, Trigger.RETURN, actor="rollout:1", now=NOW, gate="read back")

    stored = Machine.objects.get(pk=machine.pk)
    assert (stored.state, stored.may_take_work) == (State.IN_SERVICE, False)


def test_lifting_a_cordon_out_of_service_gives_no_work():
    machine = make_machine(state=State.REPAIRING)
    cordon = services.cordon(machine, owner="ann", reason="noise", now=NOW)

    services.lift_cordon(cordon, owner="ann", now=NOW)

    assert not Machine.objects.get(pk=machine.pk).may_take_work
