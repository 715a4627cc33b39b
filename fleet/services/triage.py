"""A diagnosis and what it asks for, in one act: a repair, or the gate of what was not found."""

from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from fleet.errors import IllegalTransition, IncidentRefused
from fleet.lifecycle import State, Trigger
from fleet.models import Gate, Incident, Machine, Repair, RepairKind
from fleet.services.diagnoses import diagnose_incident
from fleet.services.gates import open_gate
from fleet.services.lifecycle import lock_machine, move_machine
from fleet.services.repairs import order_repair


@transaction.atomic
def diagnose_again(
    machine: Machine, *, reason: str, actor: str, now: datetime, user: User | None = None
) -> Machine:
    """Send a machine that failed its checks back to whoever diagnoses.

    Raises
    ------
    IllegalTransition
        If it is in any other state: there its own orders lead to a diagnosis.
    """
    lock_machine(machine)
    if machine.state != State.VALIDATION_FAILED:
        raise IllegalTransition(
            f"{machine} is {machine.state}; accepted: one that is {State.VALIDATION_FAILED}"
        )
    move_machine(machine, Trigger.REDIAGNOSE, actor=actor, user=user, now=now, reason=reason)
    return machine


@transaction.atomic
def diagnose_and_act(
    incident: Incident,
    *,
    cause: str,
    actor: str,
    now: datetime,
    repair_kind: str = "",
    user: User | None = None,
    **said: Any,
) -> Repair | Gate | None:
    """Diagnose an incident and do at once what follows from it: both, or neither.

    A repair of the kind that is named is ordered. Where no fault was found the machine goes to the
    gate for that, which asks for more than a repair's; None if it is a lemon by then.

    Raises
    ------
    IncidentRefused
        If neither a kind of repair is named nor no fault found, or both; or what
        `diagnose_incident` refuses.
    IllegalTransition
        If nothing of it can be done in the machine's state.
    """
    is_found = cause != Incident.Cause.NO_FAULT_FOUND
    if is_found != bool(repair_kind):
        raise IncidentRefused(
            f"repair_kind {repair_kind!r} with cause {cause!r}: a kind of repair is needed, and "
            "none where no fault was found"
        )
    whose: dict[str, Any] = {"actor": actor, "user": user, "now": now}
    diagnose_incident(incident, cause=cause, repair_kind=repair_kind, **said, **whose)
    if not is_found:
        return _to_gate(incident, reason=incident.diagnosis[:300], **whose)
    return order_repair(
        incident.machine,
        kind=repair_kind,
        incident=incident,
        component=incident.component,
        **whose,
    )


def _to_gate(incident: Incident, *, reason: str, **whose: Any) -> Gate | None:
    machine = Machine.objects.select_for_update().get(pk=incident.machine_id)
    move_machine(machine, Trigger.FIND_NO_FAULT, reason=reason, **whose)
    kind = RepairKind.NO_FAULT_FOUND
    return open_gate(machine, kind=kind, repair=None, incident=incident, **whose)
