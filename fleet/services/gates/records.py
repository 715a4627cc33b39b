"""Where a gate's status changes, and what is said of each step."""

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from django.contrib.auth.models import User
from django.utils import timezone

from fleet.errors import FleetError, StaleGate, StaleMachine
from fleet.faults import happened_at, open_faults
from fleet.lifecycle import AT_THE_GATE, State, Trigger
from fleet.models import Fault, Gate, GateEvent, Machine
from fleet.repair.gating import Move, Status, next_status, possible_moves
from fleet.services.lifecycle import came_before_gate_at, move_machine

logger = logging.getLogger(__name__)

#: Under this name the rules of a plan act, where no person does.
RULE = "gate rule"
_Row = TypeVar("_Row", Gate, Machine)


def lock(gate: Gate) -> Gate:
    """Take the machine's row and read the gate anew; results, reviews and faults come in turn."""
    Machine.objects.select_for_update().only("pk").get(pk=gate.machine_id)
    return Gate.objects.select_related("machine", "plan", "repair", "bundle").get(pk=gate.pk)


def each_alone(rows: Iterable[_Row], act: Callable[[_Row], bool]) -> int:
    """Do one row after the other; what is wrong with one of them holds up no other one.

    Whoever was faster than the sweep leaves a row that says what is next.
    """
    done = 0
    for row in rows:
        try:
            done += act(row)
        except (StaleGate, StaleMachine):
            continue
        except FleetError as error:
            logger.warning("%s is left as it is: %s", row, error)
    return done


def move_gate(
    gate: Gate,
    move: Move,
    *,
    said: str,
    actor: str,
    now: datetime,
    user: User | None = None,
    **fields: Any,
) -> None:
    """Move a gate along its state machine and record the move.

    Raises
    ------
    IllegalGateMove
        If the table has no such move.
    StaleGate
        If somebody else moved the gate since it was read.
    """
    old = Status(gate.status)
    new = next_status(old, move)
    is_end = new in (Status.PASSED, Status.FAILED, Status.VOID)
    changes = {"status": new.value, **fields}
    if is_end:
        changes |= {"closed_at": now, "closed_why": said[:500]}
    if not Gate.objects.filter(pk=gate.pk, status=old).update(**changes):
        raise StaleGate(f"gate {gate.pk} is no longer {old}")
    for name, value in changes.items():
        setattr(gate, name, value)
    say(gate, move.value, said, actor=actor, user=user, now=now)


def say(
    gate: Gate, kind: str, said: str, *, actor: str, now: datetime, user: User | None = None
) -> None:
    """Append one word about a gate."""
    event_row(gate, kind, said, actor=actor, now=now, user=user).save()


def event_row(
    gate: Gate, kind: str, said: str, *, actor: str, now: datetime, user: User | None = None
) -> GateEvent:
    """Make the row of one word about a gate; not stored yet."""
    return GateEvent(
        gate=gate,
        kind=kind,
        said=said[:1000],
        at=now,
        actor=actor,
        user=user,
        recorded_at=timezone.now(),
    )


def closed(gate: Gate) -> str:
    """Say that a gate takes nothing more, and what is possible instead."""
    moves = possible_moves(Status(gate.status))
    why = f": {gate.closed_why}" if gate.closed_why else ""
    return f"gate {gate.pk} of {gate.machine} is {gate.status}{why}; possible: {moves}"


def take_machine_on(
    gate: Gate,
    triggers: Sequence[Trigger],
    *,
    actor: str,
    now: datetime,
    reason: str,
    user: User | None = None,
) -> None:
    """Move the gate's machine, one step after the other; one that has not begun begins first."""
    machine = gate.machine
    if gate.made_for:
        return  # it is in service already, or the rollout's own steps move it
    if machine.state == State.AWAITING_VALIDATION:
        triggers = (Trigger.START_VALIDATION, *triggers)
    for trigger in triggers:
        move_machine(machine, trigger, actor=actor, now=now, reason=reason[:300], user=user)


def stray_why(gate: Gate) -> str:
    """Say why a gate is no longer its machine's way back; empty if it is. The caller holds both.

    The machine was taken elsewhere, or has been: what was shown before that counts no more.
    """
    machine = gate.machine
    if gate.made_for:
        return ""
    if machine.state not in AT_THE_GATE:
        return f"the machine was taken elsewhere: it is {machine.state}"
    came = came_before_gate_at(machine)
    if came is not None and gate.opened_at < came:
        return f"the machine was elsewhere until {came:%Y-%m-%d %H:%M} UTC"
    return ""


def newer_fault(gate: Gate) -> Fault | None:
    """Return the first fault that counts and happened after the gate was opened."""
    return open_faults(gate.machine, since=gate.opened_at).first()


def void_stray(gate: Gate, *, said: str, now: datetime) -> None:
    """End a gate that its machine left; a machine that waits for its checks gets another one."""
    is_further = gate.machine.state != State.AWAITING_VALIDATION
    void(gate, said=said, now=now, moves_machine=is_further)


def void(
    gate: Gate, *, said: str, now: datetime, actor: str = RULE, moves_machine: bool = True
) -> None:
    """End a gate that proves nothing any more; its machine goes to diagnosis.

    The caller holds the machine's row.
    """
    move_gate(gate, Move.VOID, said=said, actor=actor, now=now)
    is_at_gate = not gate.made_for and State(gate.machine.state) in AT_THE_GATE
    if moves_machine and is_at_gate:
        move_machine(gate.machine, Trigger.TAKE_OUT, actor=actor, now=now, reason=said[:300])


def fault_in_words(fault: Fault) -> str:
    where = f" on {fault.component}" if fault.component else ""
    return f"newer fault {fault.signature}{where} at {happened_at(fault):%Y-%m-%d %H:%M} UTC"
