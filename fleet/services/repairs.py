"""Order, do and end repairs; each step moves the machine in the same transaction."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from fleet.errors import IllegalRepairStep, RepairRefused, StaleRepair
from fleet.identity import Swap
from fleet.lifecycle import State, Trigger
from fleet.models import Incident, Machine, Repair, RepairEvent, RepairKind, TicketLink
from fleet.repair import steps
from fleet.repair.steps import Status, Step
from fleet.services.evidence import StoredFile, attach_evidence
from fleet.services.gates import open_gate
from fleet.services.lifecycle import ask_reliability, move_machine
from fleet.services.repair_checks import swapped, wrong_end, wrong_order, wrong_swaps
from fleet.services.swaps import swap_parts

OPEN = (Status.ORDERED, Status.UNDER_WAY, Status.AT_SUPPLIER)
#: A machine found in one of these without a repair is taken over as it stands.
STANDING: Mapping[State, Status] = {
    State.AWAITING_REPAIR: Status.ORDERED,
    State.REPAIRING: Status.UNDER_WAY,
    State.AT_SUPPLIER: Status.AT_SUPPLIER,
}
#: What a step says to the machine; nothing where the machine has been taken elsewhere.
_CANCELS: Mapping[State, Trigger] = {
    State.AWAITING_REPAIR: Trigger.REDIAGNOSE,
    State.REPAIRING: Trigger.FAIL_REPAIR,
    State.AT_SUPPLIER: Trigger.FAIL_REPAIR,
}
#: Steps that ticket systems are told of.
TOLD = frozenset({"ordered", "started", "sent_away", "returned", "closed", "cancelled"})


# --- steps ----------------------------------------------------------------------------------------


@transaction.atomic
def order_repair(
    machine: Machine,
    *,
    kind: str,
    actor: str,
    now: datetime,
    user: User | None = None,
    incident: Incident | None = None,
    component: str = "",
    note: str = "",
) -> Repair:
    """Order work on a machine; it waits for it from then on.

    A machine that waits for a repair, is being repaired or is at its supplier without a record of
    it gets one as it stands.

    Raises
    ------
    RepairRefused
        If a repair of the machine is open, or what is ordered makes no sense.
    IllegalTransition
        If no repair can be ordered in the machine's state.
    MachineHeld
        If it is in its lemon review, and this person is not of those who decide there.
    """
    machine = _locked(machine.pk)
    ask_reliability(machine, user)
    reasons = [*wrong_order(machine, kind, incident), *_open_already(machine)]
    if reasons:
        raise RepairRefused(reasons)
    status = STANDING.get(State(machine.state))
    if status is None:
        status = Status.ORDERED
        move_machine(
            machine, Trigger.ORDER_REPAIR, actor=actor, user=user, now=now, reason=note[:300]
        )
    repair = Repair.objects.create(
        machine=machine,
        incident=incident,
        kind=kind,
        component=component,
        note=note,
        status=status,
        ordered_at=now,
        started_at=None if status is Status.ORDERED else now,
    )
    record_step(repair, "ordered", said=note, actor=actor, user=user, now=now)
    return repair


@transaction.atomic
def assign_repair(
    repair: Repair,
    *,
    actor: str,
    now: datetime,
    user: User | None = None,
    technician_name: str = "",
) -> Repair:
    """Write down who will do the work; nothing else changes. Safe to repeat."""
    repair, _ = _held(repair)
    if Status(repair.status) not in OPEN:
        steps.next_status(Status(repair.status), Step.START)  # raises: it is over
    fields = _technician(user, technician_name)
    if all(getattr(repair, name) == value for name, value in fields.items()):
        return repair
    _set(repair, Status(repair.status), fields)
    record_step(repair, "assigned", said=technician_name or actor, actor=actor, user=user, now=now)
    return repair


@transaction.atomic
def start_repair(
    repair: Repair,
    *,
    actor: str,
    now: datetime,
    user: User | None = None,
    technician_name: str = "",
    note: str = "",
) -> Repair:
    """Begin the work, or go on with it after the machine has come back from its supplier."""
    repair, machine = _held(repair)
    is_back = repair.status == Status.AT_SUPPLIER
    fields = {**_technician(user, technician_name), "started_at": repair.started_at or now}
    _take(repair, Step.START, fields)
    _move(machine, Trigger.START_REPAIR, actor=actor, user=user, now=now, reason=note)
    record_step(
        repair, "returned" if is_back else "started", said=note, actor=actor, user=user, now=now
    )
    return repair


@transaction.atomic
def send_to_supplier(
    repair: Repair,
    *,
    supplier_case: str,
    actor: str,
    now: datetime,
    user: User | None = None,
    note: str = "",
) -> Repair:
    """Let the supplier have the machine or its part, under the supplier's case."""
    repair, machine = _held(repair)
    case = supplier_case.strip() or repair.supplier_case
    if not case:
        raise RepairRefused(["what goes to a supplier needs the number of the supplier's case"])
    _take(repair, Step.SEND_AWAY, {"supplier_case": case})
    _move(machine, Trigger.SEND_AWAY, actor=actor, user=user, now=now, reason=f"case {case}")
    record_step(
        repair, "sent_away", said=_words(f"case {case}", note), actor=actor, user=user, now=now
    )
    return repair


@transaction.atomic
def close_repair(
    repair: Repair,
    *,
    actor: str,
    now: datetime,
    user: User | None = None,
    technician_name: str = "",
    swaps: Sequence[Swap] = (),
    outcome: str = Repair.Outcome.REPAIRED,
    note: str = "",
    evidence: Sequence[StoredFile] = (),
) -> Repair:
    """End the work: its parts and its proofs are kept, and the machine's gate opens.

    A closed repair is no ready machine: it waits for its validation. Where no fault was found, the
    gate is the one for that, which is longer.

    Raises
    ------
    RepairRefused
        If parts are missing or cannot be so; it lists every reason, and nothing is done.
    IllegalRepairStep
        If the repair has not begun, or is over.
    """
    repair, machine = _held(repair)
    is_found = outcome == Repair.Outcome.REPAIRED
    steps.next_status(Status(repair.status), Step.CLOSE)
    reasons = [*wrong_end(repair, swaps, outcome=outcome), *wrong_swaps(machine, swaps, now=now)]
    if reasons:
        raise RepairRefused(reasons)
    is_away = repair.status == Status.AT_SUPPLIER
    names = _technician(user, technician_name) if repair.technician is None and not is_away else {}
    _take(repair, Step.CLOSE, {**names, "closed_at": now, "outcome": outcome})
    if swaps:
        swap_parts(machine, swaps, repair=repair, actor=actor, now=now)
    for file in evidence:
        attach_evidence(file, repair=repair, actor=actor, user=user, now=now)
    trigger = Trigger.FIND_NO_FAULT if is_away and not is_found else Trigger.CLOSE_REPAIR
    _move(machine, trigger, actor=actor, user=user, now=now, reason=note)
    said = _words("" if is_found else "no fault found", *map(swapped, swaps), note)
    record_step(repair, "closed", said=said, actor=actor, user=user, now=now)
    open_gate(
        machine,
        kind=repair.kind if is_found else RepairKind.NO_FAULT_FOUND,
        repair=repair,
        incident=repair.incident,
        actor=actor,
        now=now,
    )
    return repair


@transaction.atomic
def cancel_repair(
    repair: Repair, *, reason: str, actor: str, now: datetime, user: User | None = None
) -> Repair:
    """Give a repair up; a machine that waited for it is to be diagnosed again.

    A machine that has been taken elsewhere meanwhile, such as to a review, stays there.
    """
    repair, machine = _held(repair)
    if not reason.strip():
        raise RepairRefused(["say why the repair is given up"])
    _take(repair, Step.CANCEL, {"closed_at": now})
    if trigger := _CANCELS.get(State(machine.state)):
        _move(machine, trigger, actor=actor, user=user, now=now, reason=reason)
    record_step(repair, "cancelled", said=reason, actor=actor, user=user, now=now)
    return repair


def end_abandoned(*, now: datetime) -> int:
    """Give up the repairs of machines that were retired meanwhile; return how many.

    Safe to repeat and to race: a repair is given up once.
    """
    done = 0
    abandoned = Repair.objects.filter(machine__state=State.RETIRED, status__in=OPEN)
    for repair in abandoned.order_by("pk"):
        with suppress(IllegalRepairStep, StaleRepair):  # somebody else was faster
            cancel_repair(repair, reason="the machine was retired", actor="rule", now=now)
            done += 1
    return done


def record_step(
    repair: Repair,
    kind: str,
    *,
    actor: str,
    now: datetime,
    user: User | None = None,
    said: str = "",
) -> RepairEvent:
    """Append what happened, and let the ticket systems be told where it concerns them."""
    event = RepairEvent.objects.create(
        repair=repair,
        kind=kind,
        said=said[:1000],
        at=now,
        actor=actor,
        user=user,
        recorded_at=timezone.now(),
    )
    if kind in TOLD:
        for system in (name for name, address in settings.TICKET_SYSTEMS.items() if address):
            link, is_new = TicketLink.objects.get_or_create(
                system=system, repair=repair, defaults={"newest": event.pk}
            )
            if not is_new:
                TicketLink.objects.filter(pk=link.pk).update(
                    newest=event.pk, attempts=0, next_at=None
                )
    return event


# --- parts of a step ------------------------------------------------------------------------------


def _locked(machine_id: int) -> Machine:
    return Machine.objects.select_for_update().get(pk=machine_id)


def _held(repair: Repair) -> tuple[Repair, Machine]:
    """Return repair and machine as they are now; both stay so until the transaction ends."""
    machine = _locked(repair.machine_id)
    fresh = Repair.objects.select_related("incident", "technician").get(pk=repair.pk)
    fresh.machine = machine
    return fresh, machine


def _take(repair: Repair, step: Step, fields: Mapping[str, Any]) -> None:
    new = steps.next_status(Status(repair.status), step)
    _set(repair, Status(repair.status), {**fields, "status": new.value})


def _set(repair: Repair, old: Status, fields: Mapping[str, Any]) -> None:
    if fields and not Repair.objects.filter(pk=repair.pk, status=old).update(**fields):
        raise StaleRepair(f"repair {repair.pk} is no longer {old}; look at it again")
    for name, value in fields.items():
        setattr(repair, name, value)


def _move(
    machine: Machine,
    trigger: Trigger,
    *,
    actor: str,
    user: User | None,
    now: datetime,
    reason: str,
) -> None:
    move_machine(machine, trigger, actor=actor, user=user, now=now, reason=reason[:300])


def _technician(user: User | None, name: str) -> dict[str, Any]:
    """What a repair's row says of whoever does the work: a person, or whom a ticket names."""
    said = {"technician": user, "technician_name": name}
    return {field: value for field, value in said.items() if value}


def _open_already(machine: Machine) -> list[str]:
    standing = Repair.objects.filter(machine=machine, status__in=OPEN).first()
    if standing is None:
        return []
    return [f"repair {standing.pk} of {machine.name} is {standing.status}; it has to end first"]


def _words(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
