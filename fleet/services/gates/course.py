"""Take gates on as their checks say: to observation, review and end; void by a newer fault."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery

from fleet.errors import IllegalGateMove, SameHands
from fleet.faults import HAPPENED_AT, counted_faults
from fleet.gate_state import CheckState, check_states, unfinished, why_not_review
from fleet.lifecycle import AT_THE_GATE, State, Trigger
from fleet.models import Gate, GateEvent, GatePlan, Machine, StateChange
from fleet.repair.gating import UNFINISHED, Move, Stage, Status
from fleet.services.departures import take_out
from fleet.services.gates.records import (
    RULE,
    closed,
    each_alone,
    fault_in_words,
    lock,
    move_gate,
    newer_fault,
    say,
    stray_why,
    take_machine_on,
    void,
    void_stray,
)
from fleet.services.lifecycle import move_machine

#: How long after its time an observation may take to be looked at before it is overdue.
SLACK = timedelta(hours=4)
#: Faults of the last days are looked for among all machines; older ones that come late are not.
RECENT = timedelta(days=2)
DOUBTED = "doubted"


def settle(gate: Gate, *, now: datetime, actor: str = RULE, user: User | None = None) -> None:
    """Take a gate as far as its results say. The caller holds the machine's row (`lock`).

    Silence moves nothing: a check without a result stays missing.
    """
    states = check_states(gate)
    failed = [one for one in states if one.is_failed and not one.is_computed]
    if failed and gate.status in (Status.OPEN, Status.OBSERVING):
        _fail(gate, failed, now=now, actor=actor, user=user)
    elif gate.status == Status.OPEN and _are_passed(states, upto=Stage.REPRESENTATIVE):
        _begin_observation(gate, now=now)
    elif gate.status == Status.OBSERVING and _is_observed(gate, states, now=now):
        _send_to_review(gate, (Trigger.END_OBSERVATION,), now=now)


def _are_passed(states: Sequence[CheckState], *, upto: Stage) -> bool:
    stages = list(Stage)
    last = stages.index(upto)
    return all(one.is_passed for one in states if stages.index(one.stage) <= last)


def _is_observed(gate: Gate, states: Sequence[CheckState], *, now: datetime) -> bool:
    """Tell whether the time is over, was worked in, and the machine has answered since."""
    until = gate.observe_until
    if until is None or until > now or gate.read_at is None or gate.read_at < until:
        return False
    return all(one.is_passed for one in states)


def _fail(
    gate: Gate, failed: Sequence[CheckState], *, now: datetime, actor: str, user: User | None
) -> None:
    said = "; ".join(f"{one.check.title}: {_value(one)}, needed {one.threshold}" for one in failed)
    move_gate(gate, Move.FAIL, said=said, actor=actor, user=user, now=now)
    take_machine_on(
        gate,
        (Trigger.FAIL_CHECKS,),
        actor=actor,
        user=user,
        now=now,
        reason=f"gate {gate.pk}: {said}",
    )


def _value(state: CheckState) -> str:
    result = state.result
    if result is None or result.value is None:
        return (result.note if result else "") or "no value"
    note = f" ({result.note})" if result.note else ""
    return f"{result.value:g} {result.unit}".strip() + note


def _begin_observation(gate: Gate, *, now: datetime) -> None:
    """Let the observation begin, or go to the review where the plan has none."""
    hours = 0.0 if gate.made_for else gate.plan.observation_hours
    if not hours:
        triggers = (Trigger.PASS_CHECKS, Trigger.END_OBSERVATION)
        _send_to_review(gate, triggers, now=now)
        return
    until = now + timedelta(hours=hours)
    said = f"all checks passed; observed for {hours:g} h"
    move_gate(gate, Move.OBSERVE, said=said, actor=RULE, now=now, observe_until=until)
    take_machine_on(gate, (Trigger.PASS_CHECKS,), actor=RULE, now=now, reason=said)
    Machine.objects.filter(pk=gate.machine_id).update(deadline_at=until + SLACK)


def _send_to_review(gate: Gate, triggers: Sequence[Trigger], *, now: datetime) -> None:
    said = "everything that the plan asks has been shown"
    move_gate(gate, Move.SEND_TO_REVIEW, said=said, actor=RULE, now=now)
    take_machine_on(gate, triggers, actor=RULE, now=now, reason=f"gate {gate.pk}: {said}")
    if gate.review == GatePlan.Review.AUTOMATIC:
        _accept(gate, user=None, actor=RULE, reason="the plan asks for no person", now=now)


# --- review ------------------------------------------------------------------


def review_gate(
    gate: Gate,
    *,
    is_accepted: bool,
    user: User,
    reason: str,
    now: datetime,
    owners: Sequence[int] = (),
) -> Gate:
    """Accept a gate, which releases its machine, or reject it, which sends it to diagnosis.

    A fault that came in while the review was read voids the gate in the same transaction.

    Raises
    ------
    IllegalGateMove
        If the gate does not await a review, or became void now.
    SameHands
        If this person did the repair, ran its checks, or has not the role that reviews it.
    StaleGate
        If somebody else was faster.
    """
    gate, refusal = _review(
        gate, is_accepted=is_accepted, user=user, reason=reason, now=now, owners=owners
    )
    if refusal:
        raise IllegalGateMove(refusal)
    return gate


@transaction.atomic
def _review(
    gate: Gate,
    *,
    is_accepted: bool,
    user: User,
    reason: str,
    now: datetime,
    owners: Sequence[int],
) -> tuple[Gate, str]:
    gate = lock(gate)
    if gate.status != Status.AWAITING_REVIEW:
        return gate, closed(gate)
    if why := why_not_review(gate, user, owners=owners):
        raise SameHands(why)
    if why := stray_why(gate):
        void_stray(gate, said=why, now=now)
        return gate, closed(gate)
    if fault := newer_fault(gate):
        void(gate, said=fault_in_words(fault), now=now)
        return gate, closed(gate)
    actor = user.get_username()
    if is_accepted:
        _accept(gate, user=user, actor=actor, reason=reason, now=now)
    else:
        _reject(gate, user=user, actor=actor, reason=reason, now=now)
    return gate, ""


def _accept(gate: Gate, *, user: User | None, actor: str, reason: str, now: datetime) -> None:
    move_gate(gate, Move.ACCEPT, said=reason, actor=actor, user=user, now=now, reviewer=user)
    if gate.made_for:
        return
    move_machine(
        gate.machine,
        Trigger.RELEASE,
        actor=actor,
        user=user,
        now=now,
        reason=f"gate {gate.pk}: {reason}"[:300],
        gate_record=gate,
    )


def _reject(gate: Gate, *, user: User, actor: str, reason: str, now: datetime) -> None:
    move_gate(gate, Move.REJECT, said=reason, actor=actor, user=user, now=now, reviewer=user)
    said = f"gate {gate.pk} rejected: {reason}"[:300]
    machine = gate.machine
    if machine.state == State.IN_SERVICE:  # the gate of an update: it worked meanwhile
        take_out(machine, actor=actor, user=user, reason=said, at_once=False, now=now)
    elif not gate.made_for:
        move_machine(machine, Trigger.REJECT, actor=actor, user=user, now=now, reason=said)


# --- sweeps ------------------------------------------------------------------


def void_gates(*, now: datetime) -> int:
    """End every gate whose machine had a counted fault since it opened; return how many.

    Safe to repeat and to race. A fault that is told late counts by its own time, so what happened
    before the gate opened ends nothing. The gates of waves, of which there may be as many as
    machines, are looked at where a fault is recent; all of a wave's again at its review.
    """
    recent = counted_faults().filter(time__gt=now - RECENT).values("machine")
    of_waves = unfinished().exclude(made_for="").filter(machine__in=recent)
    return _void(unfinished().filter(made_for=""), now=now) + _void(of_waves, now=now)


def void_wave_gates(made_for: str, *, now: datetime) -> int:
    """The same for all gates of one wave, however late their faults were told."""
    return _void(unfinished().filter(made_for=made_for), now=now)


def _void(gates: QuerySet[Gate], *, now: datetime) -> int:
    newer = (
        counted_faults()
        .annotate(happened=HAPPENED_AT)
        .filter(
            machine=OuterRef("machine"),
            time__gt=OuterRef("opened_at"),
            happened__gt=OuterRef("opened_at"),
        )
    )
    found = gates.filter(Exists(newer)).select_related("machine")
    return each_alone(found.order_by("pk"), partial(_void_one, now=now))


@transaction.atomic
def _void_one(gate: Gate, *, now: datetime) -> bool:
    gate = lock(gate)
    if Status(gate.status) not in UNFINISHED:
        return False
    if why := stray_why(gate):
        void_stray(gate, said=why, now=now)
        return True
    fault = newer_fault(gate)
    if fault is not None:
        void(gate, said=fault_in_words(fault), now=now)
    return fault is not None


def doubt_gates(*, now: datetime) -> int:
    """Take out the machines whose gate was passed upon a fault that was told only afterwards.

    Had it been told in time, the gate would have been void. Safe to repeat and to race: a gate is
    doubted once, and of a machine that left service since nothing is asked.
    """
    found = _passed_in_vain(now=now).select_related("machine").order_by("pk")
    return each_alone(found, partial(_doubt_one, now=now))


def _passed_in_vain(*, now: datetime) -> QuerySet[Gate]:
    faults = counted_faults().filter(
        machine=OuterRef("machine"), at__gt=OuterRef("opened_at"), at__lte=OuterRef("closed_at")
    )
    doubted = GateEvent.objects.filter(gate=OuterRef("pk"), kind=DOUBTED)
    passed = Gate.objects.filter(
        status=Status.PASSED,
        made_for="",
        closed_at__gt=now - RECENT,
        machine__state=State.IN_SERVICE,
        machine__entered_at__lte=F("closed_at"),
    )
    return passed.filter(Exists(faults), ~Exists(doubted))


@transaction.atomic
def _doubt_one(gate: Gate, *, now: datetime) -> bool:
    gate = lock(gate)
    fault = newer_fault(gate)
    if fault is None or not _passed_in_vain(now=now).filter(pk=gate.pk).exists():
        return False
    said = f"gate {gate.pk} was passed upon {fault_in_words(fault)}, which was told only after it"
    say(gate, DOUBTED, said, actor=RULE, now=now)
    take_out(gate.machine, actor=RULE, reason=said, at_once=False, now=now)
    return True


def refuse_void(gate: Gate, *, now: datetime) -> None:
    """End the gate if it proves nothing any more, and say so; what was asked of it is not done.

    Raises
    ------
    IllegalGateMove
        If it is void now.
    """
    if _void_one(gate, now=now):
        gate.refresh_from_db()
        raise IllegalGateMove(closed(gate))


def end_observations(*, now: datetime) -> int:
    """Take every gate on whose observation is over; safe to repeat. Return how many moved.

    One whose machine has not answered since, or whose work was not
    reported, stays as it is, and its machine becomes overdue.
    """
    over = Gate.objects.filter(status=Status.OBSERVING, observe_until__lte=now)
    return each_alone(over.order_by("pk"), partial(_settle_one, now=now))


@transaction.atomic
def _settle_one(gate: Gate, *, now: datetime) -> bool:
    gate = lock(gate)
    old = gate.status
    if newer_fault(gate) is not None or stray_why(gate):
        return False  # the next sweep ends it
    settle(gate, now=now)
    return gate.status != old


def clear_strays(*, now: datetime) -> int:
    """End gates whose machine was taken elsewhere by a person or a rule, and may be back since."""
    came = StateChange.objects.filter(
        machine=OuterRef("machine"), new_state=State.AWAITING_VALIDATION
    ).order_by("-pk")
    own = unfinished().filter(made_for="").annotate(came_at=Subquery(came.values("at")[:1]))
    is_elsewhere = ~Q(machine__state__in=AT_THE_GATE)
    strays = own.filter(is_elsewhere | Q(opened_at__lt=F("came_at")))
    return each_alone(strays.order_by("pk"), partial(_void_one, now=now))
