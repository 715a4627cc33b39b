"""The virtual technicians: they power-cycle what does not return, repair, and release by a gate."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from fleet import services as fleet_services
from fleet.errors import GateMissing, StaleMachine
from fleet.lifecycle import State, Trigger
from fleet.models import Gate, GatePlan, Machine, RepairKind
from rollouts import services as rollout_services
from rollouts.lifecycle import AttemptStatus
from rollouts.models import Attempt
from simulation.adapters import VirtualInstaller
from simulation.models import VirtualMachine, VirtualOrder
from simulation.orders import Outcome

ACTOR = "virtual technician"

#: What comes next in each state, and after how many minutes in it.
WORK: Mapping[State, tuple[Trigger, float]] = {
    State.AWAITING_DIAGNOSIS: (Trigger.DIAGNOSE, 15.0),
    State.DIAGNOSING: (Trigger.ORDER_REPAIR, 20.0),
    State.AWAITING_REPAIR: (Trigger.START_REPAIR, 60.0),
    State.REPAIRING: (Trigger.CLOSE_REPAIR, 45.0),
    State.AWAITING_VALIDATION: (Trigger.START_VALIDATION, 10.0),
    State.VALIDATING: (Trigger.PASS_CHECKS, 40.0),
    State.OBSERVING: (Trigger.END_OBSERVATION, 120.0),
    State.AWAITING_RELEASE: (Trigger.RELEASE, 30.0),
}


def triage_silent(*, now: datetime) -> int:
    """Look after machines whose attempt never returned; return how many were triaged.

    Safe to repeat: an order that came up is not brought up again, a triaged attempt is not
    triaged again.
    """
    done = 0
    for attempt in _untriaged():
        order = _last_order(attempt.machine_id)
        if order is None or (order.by_hand_at and order.by_hand_at > now):
            continue
        outcome = _look_after(order, now=now)
        rollout_services.triage(attempt, outcome=outcome, actor=ACTOR, now=now)
        done += 1
    return done


def work_on_queue(*, now: datetime) -> int:
    """Move each machine that is out of service one step on, where its time has come."""
    done = 0
    for machine in _waiting():
        trigger, minutes = WORK[State(machine.state)]
        if machine.entered_at + timedelta(minutes=minutes) > now:
            continue
        try:
            _step(machine, trigger, now=now)
        except StaleMachine:  # somebody else moved it; the next round sees where it stands
            continue
        done += 1
    return done


def next_due_at() -> datetime | None:
    """Return when there is something to do next, or None."""
    untriaged = _untriaged()
    orders = [_last_order(attempt.machine_id) for attempt in untriaged]
    instants = [order.by_hand_at or order.taken_at for order in orders if order]
    silent = {attempt.machine_id for attempt in untriaged}
    queue = _in_queues().values_list("pk", "state", "entered_at")
    instants += [
        entered_at + timedelta(minutes=WORK[State(state)][1])
        for machine, state, entered_at in queue
        if machine not in silent
    ]
    return min(instants, default=None)


def _untriaged() -> list[Attempt]:
    return list(
        Attempt.objects.filter(status=AttemptStatus.NEVER_RETURNED, triage="")
        .select_related("machine")
        .order_by("pk")
    )


def _waiting() -> list[Machine]:
    """Return the virtual machines in a queue; one that nobody has triaged stays where it is."""
    silent = {attempt.machine_id for attempt in _untriaged()}
    return [machine for machine in _in_queues().order_by("name") if machine.pk not in silent]


def _in_queues() -> QuerySet[Machine]:
    return Machine.objects.filter(
        state__in=list(WORK), pk__in=VirtualMachine.objects.values("machine")
    )


def _last_order(machine_id: int) -> VirtualOrder | None:
    """Return the machine's newest activation."""
    orders = VirtualOrder.objects.filter(
        machine__machine_id=machine_id, step=VirtualOrder.Step.ACTIVATE
    )
    return orders.order_by("ordinal").last()


def _look_after(order: VirtualOrder, *, now: datetime) -> Attempt.Triage:
    """Power-cycle the machine, and say what it was."""
    if order.outcome == Outcome.BRICKED:
        return Attempt.Triage.BRICKED
    if order.outcome == Outcome.NEVER_RETURNED and not order.is_repaired_by_hand:
        return Attempt.Triage.COINCIDENT_HARDWARE
    _bring_up(order, now=now)
    return Attempt.Triage.RECOVERED


def _bring_up(order: VirtualOrder | None, *, now: datetime) -> None:
    """Let the machine be up from now on, never in the past: that has been reported already."""
    if order is not None:
        VirtualOrder.objects.filter(
            pk=order.pk, up_at__isnull=True, down_at__isnull=False, down_at__lt=now
        ).update(up_at=now)


def _step(machine: Machine, trigger: Trigger, *, now: datetime) -> None:
    if trigger is Trigger.CLOSE_REPAIR:
        _bring_up(_last_order(machine.pk), now=now)
    if trigger is Trigger.RELEASE:
        _release(machine, now=now)
    else:
        fleet_services.move_machine(machine, trigger, actor=ACTOR, now=now)


def _release(machine: Machine, *, now: datetime) -> None:
    """Release a machine by its gate; one that had a fault meanwhile is diagnosed again."""
    try:
        with transaction.atomic():
            gate = _passed_gate(machine, now=now)
            fleet_services.move_machine(
                machine,
                Trigger.RELEASE,
                actor=ACTOR,
                now=now,
                gate=gate.why[:200],
                gate_record=gate,
            )
    except GateMissing as error:
        fleet_services.move_machine(
            machine, Trigger.REJECT, actor=ACTOR, now=now, reason=str(error)[:300]
        )


def _passed_gate(machine: Machine, *, now: datetime) -> Gate:
    """Return the gate of a machine that was looked at since it began to wait for validation."""
    queued = machine.state_changes.filter(new_state=State.AWAITING_VALIDATION).order_by("-pk")
    plan, _ = GatePlan.objects.get_or_create(
        kind=RepairKind.NO_FAULT_FOUND,
        level=9,  # no recurrence asks for it: no machine gets this plan but by these hands
        version=1000,
        defaults={
            "title": "virtual diagnostics",
            "checks": [],
            "workload": "2 h of representative workload",
            "author": ACTOR,
            "recorded_at": timezone.now(),
        },
    )
    return Gate.objects.create(
        machine=machine,
        plan=plan,
        why=_said(machine, now=now),
        status=Gate.Status.PASSED,
        opened_at=queued.values_list("at", flat=True)[0],
        closed_at=now,
    )


def _said(machine: Machine, *, now: datetime) -> str:
    """Read the versions back into the history and say what vouches for the machine."""
    readings = VirtualInstaller().read_versions(machine.name, now=now)
    fleet_services.record_readings(machine, readings, now=now, evidence={"gate": ACTOR})
    runs = ", ".join(f"{r.kind} {r.version}" for r in readings if r.witness == "bmc")
    return f"diagnostics and 2 h of representative workload passed; runs {runs}"[:200]
