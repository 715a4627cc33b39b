"""The virtual technicians' bench: they diagnose, repair, check and review through the product.

What a machine needs is drawn from the fleet's seed and its incident, so a fleet's story repeats.
Machines that a person has in hand are left to them.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.contrib.auth.models import Group, User

from fleet import services as fleet_services
from fleet.adapters import Step, Target, open_arms
from fleet.gate_state import CheckState, check_states, present_stage
from fleet.identity import Swap
from fleet.lifecycle import State, Trigger
from fleet.models import Gate, Incident, Machine, Repair, RepairKind
from fleet.repair import gating
from fleet.selectors import versions_as_of
from fleet.services.gates.conformance import left_service_at
from simulation.adapters import VirtualInstaller
from simulation.models import VirtualFleet, VirtualOrder
from simulation.streams import Purpose, stream

TECHNICIAN, REVIEWER = "virtual-technician", "virtual-reviewer"
#: After how many minutes in a state somebody gets to a machine.
MINUTES: Mapping[State, float] = {
    State.AWAITING_DIAGNOSIS: 15.0,
    State.DIAGNOSING: 20.0,
    State.AWAITING_REPAIR: 60.0,
    State.REPAIRING: 45.0,
    State.AT_SUPPLIER: 36 * 60.0,
    State.AWAITING_VALIDATION: 10.0,
    State.VALIDATING: 40.0,
    State.VALIDATION_FAILED: 30.0,
    State.OBSERVING: 0.0,
    State.AWAITING_RELEASE: 30.0,
    State.LEMON_REVIEW: 12 * 60.0,
}
#: A machine that could not be taken on is looked at again after so long.
AGAIN = timedelta(minutes=30)
#: What is done about a struck machine, and how often; the part that a swap changes.
WORK = (
    (RepairKind.NODE_REBOOT, 0.45, ""),
    (RepairKind.GPU_RESET, 0.15, ""),
    (RepairKind.HOST_PART_SWAP, 0.40, "bmc"),
)
SUPPLIER_SHARE = 0.15  # of the swaps, whose part the supplier looks at
FAILED_SHARE = 0.12  # of the gates that fail a check the first time


def technician() -> User:
    return _person(TECHNICIAN, group="technician")


def reviewer() -> User:
    return _person(REVIEWER, group="reviewer")


def _person(name: str, *, group: str) -> User:
    """Return one of the bench's people, made if need be; nobody can log in as them."""
    person, is_new = User.objects.get_or_create(username=name)
    if is_new:
        person.set_unusable_password()
        person.save()
        person.groups.set(Group.objects.filter(name=group))
    return person


def is_left_to_people(machine: Machine) -> bool:
    """Tell whether a person who is not of the bench has moved the machine since it left service."""
    own = (TECHNICIAN, REVIEWER)
    if machine.held_by is not None and machine.held_by.username not in own:
        return True
    changes = machine.state_changes.order_by("-pk")
    left = changes.filter(old_state=State.IN_SERVICE).values_list("pk", flat=True).first() or 0
    return changes.filter(pk__gte=left, user__isnull=False).exclude(user__username__in=own).exists()


def due_at(machine: Machine, *, looked_at: datetime | None) -> datetime:
    """Return when somebody next gets to a machine that is out of service.

    Whoever looked at it in its present state, and could not take it on, comes again later.
    """
    state = State(machine.state)
    due = machine.entered_at + timedelta(minutes=MINUTES[state])
    if state is State.OBSERVING and (gate := _gate(machine)) and gate.observe_until is not None:
        due = gate.observe_until
    if looked_at is not None and looked_at > machine.entered_at:
        return max(due, looked_at + AGAIN)
    return due


def work_on(machine: Machine, *, now: datetime) -> None:
    """Do what is next on one machine; what the product refuses is left for people to see."""
    _STEPS[State(machine.state)](machine, now)


def last_order(machine_id: int) -> VirtualOrder | None:
    """Return the machine's newest activation."""
    orders = VirtualOrder.objects.filter(
        machine__machine_id=machine_id, step=VirtualOrder.Step.ACTIVATE
    )
    return orders.order_by("ordinal").last()


def bring_up(order: VirtualOrder | None, *, now: datetime) -> None:
    """Let the machine be up from now on, never in the past: that has been reported already."""
    if order is not None:
        VirtualOrder.objects.filter(
            pk=order.pk, up_at__isnull=True, down_at__isnull=False, down_at__lt=now
        ).update(up_at=now)


# --- diagnosis and repair ----------------------------------------------------------------------


def _take(machine: Machine, now: datetime) -> None:
    fleet_services.take(machine, user=technician(), now=now)


def _diagnose(machine: Machine, now: datetime) -> None:
    """Say what is wrong and order the repair; a failed install is answered by a reboot."""
    who: dict[str, Any] = {"actor": TECHNICIAN, "user": technician(), "now": now}
    incident = _incident(machine)
    if incident is None:
        note = "no fault was told; the machine did not come back from an update"
        fleet_services.order_repair(machine, kind=RepairKind.NODE_REBOOT, note=note, **who)
        return
    kind, part = _what_helps(incident)
    where = incident.component or machine.name
    fleet_services.diagnose_and_act(
        incident,
        diagnosis=f"{incident.signature.name} on {where}: {kind.label}",
        cause=Incident.Cause.HARDWARE,
        component=incident.component or part,
        confidence=Incident.Confidence.MEDIUM,
        repair_kind=kind,
        **who,
    )


def _incident(machine: Machine) -> Incident | None:
    """Return the open incident for which the machine is out: the worst, then the newest."""
    standing = machine.incidents.filter(closed_at=None, parent=None).select_related("signature")
    counted = standing.filter(severity__in=("critical", "major")).order_by("severity", "-pk")
    return counted.first()


def _what_helps(incident: Incident) -> tuple[RepairKind, str]:
    """Draw what is done; a part swapped in an open comparison would make its wave advisory."""
    reader = open_arms()
    is_compared = reader is not None and bool(reader.of(incident.machine_id))
    choices = [one for one in WORK if not (one[2] and is_compared)]
    shares = np.array([share for _, share, _ in choices])
    rng = _rng(incident.machine, incident.pk)
    kind, _, part = choices[int(rng.choice(len(choices), p=shares / shares.sum()))]
    return kind, part


def _start(machine: Machine, now: datetime) -> None:
    if repair := _repair(machine):
        fleet_services.start_repair(repair, **_by_technician(), now=now)


def _end(machine: Machine, now: datetime) -> None:
    """End the work with the serials of what was swapped, or send the part to its supplier."""
    repair = _repair(machine)
    if repair is None:
        return
    bring_up(last_order(machine.pk), now=now)
    by, rng = _by_technician(), _rng(machine, repair.pk)
    is_swap = repair.kind == RepairKind.HOST_PART_SWAP
    if is_swap and not repair.supplier_case and rng.random() < SUPPLIER_SHARE:
        case = f"RMA-{repair.pk:04d}"
        fleet_services.send_to_supplier(repair, supplier_case=case, **by, now=now)
        return
    swaps = [_swap(machine, repair)] if is_swap else []
    note = f"{repair.get_kind_display()}; the machine boots and lists all its accelerators"
    fleet_services.close_repair(repair, **by, now=now, swaps=swaps, note=note)


def _by_technician() -> dict[str, Any]:
    worker = technician()
    return {"actor": worker.get_username(), "user": worker}


def _swap(machine: Machine, repair: Repair) -> Swap:
    held = machine.components.filter(kind="bmc", slot="").first()
    old = held.serial if held is not None and held.serial else f"BM-{machine.pk:05d}-0"
    return Swap("bmc", new_serial=f"BM-{machine.pk:05d}-{repair.pk}", old_serial=old)


def _repair(machine: Machine) -> Repair | None:
    """Return the machine's open repair; one that stands without it gets a record."""
    standing = machine.repairs.exclude(status__in=("closed", "cancelled")).first()
    if standing is not None or machine.state == State.LEMON_REVIEW:
        return standing
    who: dict[str, Any] = {"actor": TECHNICIAN, "user": technician()}
    kind = RepairKind.NODE_REBOOT
    return fleet_services.order_repair(machine, kind=kind, now=machine.entered_at, **who)


def _give_another_chance(machine: Machine, now: datetime) -> None:
    """Reset what came back broken too often, and let its longer gate decide."""
    fleet_services.order_repair(
        machine,
        kind=RepairKind.GPU_RESET,
        note="the last try before it is retired",
        actor=REVIEWER,
        user=reviewer(),
        now=now,
    )


# --- the gate ----------------------------------------------------------------------------------


def _pass_gate(machine: Machine, now: datetime) -> None:
    """Read the machine back, and run what its gate asks for at present."""
    gate = _gate(machine)
    if gate is None:
        fleet_services.open_missing_gates(now=now)
        return
    bring_up(last_order(machine.pk), now=now)
    readings = VirtualInstaller().read_versions(machine.name, now=now)
    gate = fleet_services.read_back(gate, readings, now=now)
    if any(one.is_computed and not one.is_passed for one in check_states(gate)):
        _install_what_is_meant(gate, now=now)
        return
    _run_checks(gate, now=now)
    fleet_services.end_observations(now=now)


def _run_checks(gate: Gate, *, now: datetime) -> None:
    """Report each check of the present stage; the first one of an unlucky gate fails."""
    rng = _rng(gate.machine, 2**32 + gate.pk)
    is_unlucky = gate.retry_of_id is None and rng.random() < FAILED_SHARE
    fleet = VirtualFleet.objects.get()
    while gate.status in (gating.Status.OPEN, gating.Status.OBSERVING):
        states = check_states(gate)
        stage = present_stage(states)
        todo = [one for one in states if one.stage is stage and not one.is_passed]
        if not todo or (gate.observe_until is not None and now < gate.observe_until):
            return
        if any(one.check.needs_partner for one in todo) and gate.partner_id is None:
            fleet_services.reserve_partner(gate, actor=TECHNICIAN, user=technician(), now=now)
        for one in todo:
            value = _value(one, rng=rng, is_bad=is_unlucky)
            outcome = fleet_services.Outcome(
                value=value, unit=one.check.unit, reference=f"bench/{fleet.seed}/{one.check.pk}.log"
            )
            fleet_services.report_result(
                one.check, outcome, actor=TECHNICIAN, user=technician(), now=now
            )
            is_unlucky = False
        gate.refresh_from_db()


def _value(state: CheckState, *, rng: np.random.Generator, is_bad: bool) -> float:
    """Return what a check measures: what its rule asks for and a little more, or far too little."""
    rule = state.check.rule.get("fallback", state.check.rule)
    limit, kind = float(rule.get("value", 0.0)), rule["kind"]
    if kind == "equals":
        return limit + 1 if is_bad else limit
    digits = 0 if limit.is_integer() else 2  # who asks for two boots counts whole ones
    if kind == "<=":
        return round(limit * (1.4 if is_bad else 0.85 + 0.02 * rng.random()), digits)
    return round(limit * (0.7 if is_bad else 1.04 + 0.02 * rng.random()), digits)


def _install_what_is_meant(gate: Gate, *, now: datetime) -> None:
    """Put on a machine the versions that its gate asks for: its bundle's, else what it ran."""
    left = left_service_at(gate)
    if gate.bundle is not None:
        wanted = {one.image.kind: one.image.version for one in gate.bundle.places.all()}
    else:
        wanted = versions_as_of(gate.machine, at=left) if left is not None else {}
    targets = [Target(part.split("/")[0], version) for part, version in sorted(wanted.items())]
    key = f"bench/{gate.pk}/{now:%Y%m%d%H%M}"
    VirtualInstaller().apply(gate.machine.name, Step.ACTIVATE, targets, key=key, now=now)


def _after_failure(machine: Machine, now: datetime) -> None:
    """Run the checks once more; a gate that failed twice sends its machine to diagnosis."""
    gate = machine.gates.order_by("-pk").first()
    who: dict[str, Any] = {"actor": TECHNICIAN, "user": technician(), "now": now}
    if gate is not None and gate.retry_of_id is None:
        fleet_services.retry_gate(gate, **who)
    else:
        fleet_services.move_machine(machine, Trigger.REDIAGNOSE, reason="failed twice", **who)


def _review(machine: Machine, now: datetime) -> None:
    gate = _gate(machine)
    if gate is not None and gate.status == gating.Status.AWAITING_REVIEW:
        said = "results and logs read; nothing stands out"
        fleet_services.review_gate(gate, is_accepted=True, user=reviewer(), reason=said, now=now)


def _gate(machine: Machine) -> Gate | None:
    """Return the gate that stands before the machine, if one does."""
    return machine.gates.filter(status__in=gating.UNFINISHED, made_for="").first()


def _rng(machine: Machine, address: int) -> np.random.Generator:
    return stream(VirtualFleet.objects.get().seed, Purpose.BENCH, machine.pk, address)


_STEPS: Mapping[State, Callable[[Machine, datetime], None]] = {
    State.AWAITING_DIAGNOSIS: _take,
    State.DIAGNOSING: _diagnose,
    State.AWAITING_REPAIR: _start,
    State.REPAIRING: _end,
    State.AT_SUPPLIER: _start,
    State.AWAITING_VALIDATION: _pass_gate,
    State.VALIDATING: _pass_gate,
    State.OBSERVING: _pass_gate,
    State.VALIDATION_FAILED: _after_failure,
    State.AWAITING_RELEASE: _review,
    State.LEMON_REVIEW: _give_another_chance,
}
