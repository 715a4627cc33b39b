"""Open gates: for a repair, for machines that wait without one, and once more after a failure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Exists, OuterRef

from fleet.errors import IllegalGateMove
from fleet.gate_state import why_not_retry
from fleet.intended import intended_bundle
from fleet.lifecycle import AT_THE_GATE, State, Trigger
from fleet.models import (
    Gate,
    GateCheck,
    Incident,
    JobImpact,
    Machine,
    Observation,
    Repair,
    RepairKind,
)
from fleet.repair.gating import UNFINISHED
from fleet.services.gates import conformance, plans
from fleet.services.gates.records import RULE, each_alone, lock, say, void
from fleet.services.lifecycle import move_machine

_BEFORE_THE_FAULT = timedelta(hours=2)  # in which an observation tells what the job ran on


@transaction.atomic
def open_gate(
    machine: Machine,
    *,
    kind: str,
    repair: Repair | None,
    incident: Incident | None,
    actor: str,
    now: datetime,
    user: User | None = None,
) -> Gate | None:
    """Open the gate that a machine has to pass before it works again.

    Safe to repeat: the gate of the same repair is returned as it is. A machine that came back
    broken too often gets none and goes to the lemon review; None then.

    Raises
    ------
    IllegalGateMove
        If the machine does not wait for validation.
    """
    held = Machine.objects.select_for_update().get(pk=machine.pk)
    if held.state != State.AWAITING_VALIDATION:
        raise IllegalGateMove(
            f"{held.name} is {held.state}; a gate opens for one that is awaiting_validation"
        )
    machine.state = held.state
    if standing := _standing(held, repair=repair, now=now):
        return standing
    chosen = plans.choose(machine, kind=kind, incident=incident, now=now, repair=repair)
    if chosen.is_lemon:
        reason = chosen.why[:300]
        move_machine(machine, Trigger.SUSPECT, actor=actor, now=now, reason=reason, user=user)
        return None
    bundle, bundle_why = intended_bundle(machine, now=now)
    gate = Gate(
        machine=machine,
        plan=chosen.plan,
        repair=repair,
        incident=incident,
        why=chosen.why,
        pattern=pattern_of(incident),
        bundle=bundle,
        bundle_why=bundle_why[:300],
        review=chosen.review,
        opened_at=now,
    )
    return create(gate, checks=chosen.plan.checks, actor=actor, now=now, user=user)


def _standing(machine: Machine, *, repair: Repair | None, now: datetime) -> Gate | None:
    """Return the gate that is open for this repair; one that is for something else is void."""
    standing = machine.gates.filter(status__in=UNFINISHED).first()
    if standing is None:
        return None
    is_same = not standing.made_for and standing.repair_id == (repair.pk if repair else None)
    if is_same and standing.opened_at >= machine.entered_at:
        return standing
    said = "another gate took its place: the machine left service since"
    void(lock(standing), said=said, now=now, moves_machine=False)
    return None


def create(
    gate: Gate,
    *,
    checks: Sequence[dict[str, Any]],
    actor: str,
    now: datetime,
    user: User | None = None,
) -> Gate:
    """Store a gate with its checks, and say why it is this one."""
    gate.save()
    has_settings = conformance.reads_settings(gate.machine)
    GateCheck.objects.bulk_create(
        check_row(gate, check, position=position, rule=_rule(check, has_settings=has_settings))
        for position, check in enumerate(checks)
    )
    say(gate, "opened", gate.why, actor=actor, user=user, now=now)
    return gate


def check_row(
    gate: Gate, check: dict[str, Any], *, position: int, rule: dict[str, Any]
) -> GateCheck:
    """Make the row of one check of a plan; not stored yet."""
    is_asked = "computed" in check["rule"] and "computed" not in rule
    return GateCheck(
        gate=gate,
        position=position,
        name=check["name"],
        title=check["title"],
        stage=check["stage"],
        unit=check.get("unit", ""),
        rule=rule,
        needs_evidence=check.get("needs_evidence", False) or is_asked,
        needs_partner=bool(check.get("partners")),
    )


def _is_asked(check: dict[str, Any], has_settings: bool) -> bool:
    """Tell whether settings have to be reported: nothing reads them back from this machine."""
    return check["rule"].get("computed") == "settings" and not has_settings


def _rule(check: dict[str, Any], *, has_settings: bool) -> dict[str, Any]:
    rule = check["rule"]
    if not _is_asked(check, has_settings):
        return rule
    return {name: value for name, value in rule.items() if name != "computed"}


def open_missing_gates(*, now: datetime, most: int = 200) -> int:
    """Open a gate for each machine that waits for validation without one; return how many.

    Safe to repeat. So a worker that died between two steps leaves no machine behind.
    """
    own = Gate.objects.filter(machine=OuterRef("pk"), status__in=UNFINISHED, made_for="")
    lacking = Machine.objects.filter(~Exists(own), state__in=AT_THE_GATE)
    due = lacking.filter(entered_at__lte=now)  # of a clock that was set back: once it is there
    return each_alone(due.order_by("entered_at", "pk")[:most], partial(_open_missing, now=now))


@transaction.atomic
def _open_missing(machine: Machine, *, now: datetime) -> bool:
    """Open the machine's gate; one that is further on than its gate is diagnosed again."""
    held = Machine.objects.select_for_update().get(pk=machine.pk)
    if held.gates.filter(status__in=UNFINISHED, made_for="").exists():
        return False
    if held.state == State.AWAITING_VALIDATION:
        kind, repair = _what_for(held)
        incident = repair.incident if repair else None
        opened = open_gate(held, kind=kind, repair=repair, incident=incident, actor=RULE, now=now)
        return opened is not None
    if held.state in AT_THE_GATE:
        reason = f"it is {held.state} and no gate is open: nothing was shown"
        move_machine(held, Trigger.TAKE_OUT, actor=RULE, now=now, reason=reason)
    return False


def _what_for(machine: Machine) -> tuple[str, Repair | None]:
    """Tell what brought the machine before the gate, from its last way there."""
    into = machine.state_changes.filter(new_state=State.AWAITING_VALIDATION).order_by("-at", "-pk")
    last = into.first()
    repair = machine.repairs.filter(status=Repair.Status.CLOSED).order_by("-closed_at").first()
    if last is None or last.old_state == State.REGISTERED:
        return RepairKind.NEW_MACHINE, None
    if last.trigger == Trigger.FIND_NO_FAULT and last.old_state == State.DIAGNOSING:
        return RepairKind.NO_FAULT_FOUND, None
    if repair is None:
        return RepairKind.NO_FAULT_FOUND, None
    is_found = repair.outcome != Repair.Outcome.NO_FAULT_FOUND
    # Of a recorded repair the kind was not kept: its gate is the one that asks for most.
    kind = repair.kind if is_found and repair.kind else RepairKind.NO_FAULT_FOUND
    return kind, repair


@transaction.atomic
def retry_gate(gate: Gate, *, actor: str, now: datetime, user: User | None = None) -> Gate:
    """Run the checks of a failed gate once more, all of them, in a gate of its own.

    Raises
    ------
    IllegalGateMove
        If the gate has not failed, or is a retry itself: from there on a person decides.
    """
    gate = lock(gate)
    machine = gate.machine
    if why := why_not_retry(gate):
        raise IllegalGateMove(why)
    move_machine(
        machine, Trigger.RETRY, actor=actor, now=now, reason=f"retry of gate {gate.pk}", user=user
    )
    again = Gate(
        machine=machine,
        plan=gate.plan,
        repair=gate.repair,
        incident=gate.incident,
        why=f"retry of gate {gate.pk}, which failed: {gate.closed_why}; {gate.why}",
        pattern=gate.pattern,
        bundle=gate.bundle,
        bundle_why=gate.bundle_why,
        review=gate.review,
        retry_of=gate,
        opened_at=now,
    )
    return create(again, checks=gate.plan.checks, actor=actor, now=now, user=user)


# --- the pattern that showed the fault -----------------------------------------------------------


def pattern_of(incident: Incident | None) -> str:
    """Say under which communication pattern the fault showed, as far as it was recorded."""
    if incident is None:
        return ""
    member = incident.members.select_related("fault").order_by("fault__time").first()
    job = _job_of(incident, member.fault.job if member else "")
    where = f"; the fault named {incident.component}" if incident.component else ""
    if not job:
        return f"no job was on it when {incident.family} showed{where}"
    machines = _machines_of(job, incident)
    leaf = f", rail or leaf {incident.machine.leaf}" if incident.machine.leaf else ""
    if machines > 1:
        return f"all-reduce over {machines} machines of job {job}{leaf}{where}"[:300]
    return f"job {job} on this machine alone{where}"[:300]


def _job_of(incident: Incident, told: str) -> str:
    if told:
        return told
    jobs = JobImpact.objects.filter(incident=incident).exclude(job="").order_by("pk")
    if impact := jobs.first():
        return impact.job
    near = Observation.objects.filter(
        machine=incident.machine,
        start__lte=incident.opened_at,
        end__gt=incident.opened_at - _BEFORE_THE_FAULT,
    ).exclude(job="")
    return near.order_by("-end").values_list("job", flat=True).first() or ""


def _machines_of(job: str, incident: Incident) -> int:
    """Count the machines of a job: by accelerators where the impact says them, else as it runs."""
    impact = JobImpact.objects.filter(
        incident=incident, job=job, accelerators__isnull=False
    ).first()
    if impact is not None and impact.accelerators:
        return -(-impact.accelerators // max(1, incident.machine.platform.accelerators))
    return Machine.objects.filter(job=job).exclude(pk=incident.machine_id).count() + 1
