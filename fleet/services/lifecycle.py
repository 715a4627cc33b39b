"""Move a machine along its lifecycle, and cordon it."""

from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from fleet import lifecycle, ownership
from fleet.errors import (
    CordonStands,
    GateMissing,
    MachineBusy,
    MachineHeld,
    RetryUsed,
    StaleMachine,
)
from fleet.faults import open_faults
from fleet.gate_state import why_not_reliability
from fleet.lifecycle import AT_THE_GATE, State, Trigger
from fleet.models import Change, ChangedMachine, Cordon, Gate, Machine, StateChange, TakeOut

WATCH = timedelta(days=7)  # after a repair: a fault in it counts against the repair


@transaction.atomic
def move_machine(
    machine: Machine,
    trigger: Trigger,
    *,
    actor: str,
    now: datetime,
    reason: str = "",
    gate: str = "",
    gate_record: Gate | None = None,
    user: User | None = None,
) -> StateChange:
    """Move a machine along its state machine and record the move.

    The conditional update is the lock: of two workers one changes no row and stops here, before
    it has any effect on the machine. A release needs the gate that the machine has passed;
    another move into service may say in words what vouches for it.

    Raises
    ------
    IllegalTransition
        If the table has no such move.
    RetryUsed
        If the checks were tried once more already since the last repair.
    GateMissing
        If the move leads into service and nothing vouches for it, or the gate does not hold.
    StaleMachine
        If the machine is no longer in the state that was read.
    """
    old = State(machine.state)
    new = lifecycle.next_state(old, trigger)
    if trigger is Trigger.RELEASE:
        _check_gate(machine, gate_record)
    if trigger is Trigger.RETRY:
        _check_retry(machine)
    gate = gate or (f"{gate_record}, {gate_record.plan}"[:200] if gate_record else "")
    if new is State.IN_SERVICE and not gate:
        raise GateMissing(f"{machine.name} cannot {trigger} into service: no gate vouches for it")
    changes = state_fields(new, now=now) | _owner_fields(machine, new)
    if trigger is Trigger.RELEASE:
        changes["watch_until"] = now + WATCH
    if not Machine.objects.filter(pk=machine.pk, state=old).update(**changes):
        raise StaleMachine(f"{machine.name} is no longer {old}")
    for name, value in changes.items():
        setattr(machine, name, value)
    _refresh_may_take_work(machine)
    return StateChange.objects.create(
        machine=machine,
        old_state=old,
        new_state=new,
        trigger=trigger,
        at=now,
        recorded_at=timezone.now(),
        actor=actor,
        reason=reason,
        gate=gate,
        gate_record=gate_record,
        user=user,
    )


def _check_gate(machine: Machine, gate: Gate | None) -> None:
    """Refuse a gate that is not this machine's, not passed, or older than what it must prove."""
    read = machine.state
    lock_machine(machine)
    if machine.state != read:
        raise StaleMachine(f"{machine.name} is no longer {read}")
    if gate is None:
        raise GateMissing(f"{machine.name} cannot be released: no gate record vouches for it")
    passed = Gate.objects.filter(pk=gate.pk, machine=machine).first()
    if passed is None:
        raise GateMissing(f"{gate} is not a gate of {machine.name}")
    if passed.status != Gate.Status.PASSED:
        raise GateMissing(f"{gate} is {passed.status}; a release needs one that is passed")
    since = came_before_gate_at(machine)
    if since is not None and passed.opened_at < since:
        raise GateMissing(
            f"{gate} was opened {passed.opened_at:%Y-%m-%d %H:%M}, before the machine was last "
            f"out for diagnosis or repair, until {since:%Y-%m-%d %H:%M}"
        )
    fault = open_faults(machine, since=passed.opened_at).first()
    if fault is not None:
        raise GateMissing(f"{gate} does not hold: {fault} is newer than it")


def came_before_gate_at(machine: Machine) -> datetime | None:
    """Return when the machine last came before a gate; None if it has never been elsewhere.

    Moves are taken in the order in which they were made, whatever the clock said: a gate that is
    older than this one was for something else.
    """
    away = machine.state_changes.exclude(new_state__in=AT_THE_GATE).order_by("-pk").first()
    if away is None:
        return None
    came = machine.state_changes.filter(pk__gt=away.pk).order_by("pk").first()
    return (came or away).at


def _check_retry(machine: Machine) -> None:
    """Refuse a second retry of the same repair's checks: from there on a person decides."""
    queued = machine.state_changes.filter(new_state=State.AWAITING_VALIDATION).order_by("-pk")
    last = queued.first()
    if last is not None and last.trigger == Trigger.RETRY:
        raise RetryUsed(
            f"the checks of {machine.name} were tried once more {last.at:%Y-%m-%d %H:%M} already; "
            "possible: rediagnose, order_repair, suspect"
        )


def _owner_fields(machine: Machine, state: State) -> dict[str, Any]:
    """Return whose the machine becomes: who has it keeps it as long as the owner role stays."""
    role = lifecycle.STATES[state].owner
    if machine.owner_role == role:
        return {}
    team = ownership.team_for(role, site=machine.site, pool=machine.pool)
    return {
        "owner_team_id": team,
        "is_handed_over": False,
        "held_by_id": None,
        "held_since": None,
    }


#: Something is being done to the machine in these; it ends, and the machine retires after it.
_BUSY = (State.DRAINING, State.UPDATING, State.VERIFYING)


def ask_reliability(machine: Machine, user: User | None) -> None:
    """Let a machine in its lemon review be sent on by those who own reliability alone.

    Raises
    ------
    MachineHeld
        If a team has taken that role, and this person is not of it.
    """
    if machine.state != State.LEMON_REVIEW or user is None:
        return
    if reason := why_not_reliability(user):
        raise MachineHeld(f"{machine.name} is in its lemon review: {reason}")


@transaction.atomic
def retire_machine(
    machine: Machine, *, actor: str, now: datetime, reason: str = "", user: User | None = None
) -> Machine:
    """Take a machine out of the fleet for good; its name and its records stay.

    This is what deleting a machine means. Safe to repeat.

    Raises
    ------
    MachineBusy
        If the machine is being drained or updated: an attempt on it has to end first.
    MachineHeld
        If it is in its lemon review, and this person is not of those who decide there.
    """
    lock_machine(machine)
    ask_reliability(machine, user)
    old = State(machine.state)
    if old is State.RETIRED:
        return machine
    if old in _BUSY:
        raise MachineBusy(
            f"{machine.name} is {old}: what is under way on it has to end before it retires"
        )
    is_direct = (old, Trigger.RETIRE) in lifecycle.TRANSITIONS
    for trigger in (Trigger.RETIRE,) if is_direct else (Trigger.SUSPECT, Trigger.RETIRE):
        move_machine(machine, trigger, actor=actor, now=now, reason=reason, user=user)
    change = Change.objects.create(
        source="inventory",
        key=f"{machine.name}/retired",
        kind=Change.Kind.RETIREMENT,
        what="machine",
        machine_count=1,
        old=old,
        new=State.RETIRED,
        note=f"by {actor}: {reason}"[:500],
        at=now,
        reported_by=user,
        recorded_at=timezone.now(),
    )
    ChangedMachine.objects.create(change=change, machine=machine)
    return machine


def state_fields(state: State, *, now: datetime) -> dict[str, Any]:
    """Return what a machine's row says on entering a state; not yet whether it may take work."""
    rule = lifecycle.STATES[state]
    hours = rule.deadline_hours
    return {
        "state": state.value,
        "owner_role": rule.owner.value,
        "next_step": rule.next_step,
        "entered_at": now,
        "deadline_at": None if hours is None else now + timedelta(hours=hours),
        "may_take_work": False,
    }


@transaction.atomic
def cordon(machine: Machine, *, owner: str, reason: str, now: datetime) -> Cordon:
    """Set a cordon, or return the one that stands for the same owner and reason already."""
    lock_machine(machine)
    standing, _ = Cordon.objects.get_or_create(
        machine=machine, owner=owner, reason=reason, lifted_at=None, defaults={"since": now}
    )
    _refresh_may_take_work(machine)
    return standing


@transaction.atomic
def lift_cordon(cordon: Cordon, *, owner: str, now: datetime) -> Cordon:
    """Lift the owner's own cordon; the machine takes work when no other one stands.

    Safe to repeat: a lifted cordon stays as it was lifted.

    Raises
    ------
    CordonStands
        If the cordon is somebody else's.
    """
    if cordon.owner != owner:
        raise CordonStands(
            f"the cordon on {cordon.machine} ({cordon.reason}) is {cordon.owner}'s; "
            f"{owner} cannot lift it"
        )
    lock_machine(cordon.machine)
    at = max(now, cordon.since)  # the clock may have been set back meanwhile
    Cordon.objects.filter(pk=cordon.pk, lifted_at=None).update(lifted_at=at, lifted_by=owner)
    cordon.refresh_from_db(fields=["lifted_at", "lifted_by"])
    _refresh_may_take_work(cordon.machine)
    return cordon


def lock_machine(machine: Machine, *also: str) -> None:
    """Take the machine's row, so that what is done to it comes in turn; read its state anew.

    `also` names other columns that are read anew with it.
    """
    names = ("state", *also)
    locked = Machine.objects.select_for_update().only(*names).get(pk=machine.pk)
    for name in names:
        setattr(machine, name, getattr(locked, name))


def _refresh_may_take_work(machine: Machine) -> None:
    """Set the flag from state and cordons; the caller holds the machine's row.

    An order to take it out counts as a cordon: so none works between an update and its drain.
    """
    standing = Cordon.objects.filter(machine=machine, lifted_at=None).count()
    standing += TakeOut.objects.filter(machine=machine, ended_at=None).count()
    value = lifecycle.may_take_work(State(machine.state), standing_cordons=standing)
    Machine.objects.filter(pk=machine.pk).exclude(may_take_work=value).update(may_take_work=value)
    machine.may_take_work = value
