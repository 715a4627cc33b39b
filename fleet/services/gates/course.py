"""Take gates on as their checks say: to observation, review and end; void by a newer fault."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet

from fleet.errors import IllegalGateMove, SameHands, StaleGate, StaleMachine
from fleet.faults import HAPPENED_AT, counted_faults
from fleet.gate_state import CheckState, check_states, unfinished, why_not_review
from fleet.gating import Move, Stage, Status
from fleet.lifecycle import State, Trigger
from fleet.models import Gate, GatePlan, Machine
from fleet.services.departures import take_out
from fleet.services.gates.records import (
    RULE,
    closed,
    fault_in_words,
    lock,
    move_gate,
    newer_fault,
    say,
    take_machine_on,
    void,
)
from fleet.services.lifecycle import move_machine

#: How long after its time an observation may take to be looked at before it is overdue.
SLACK = timedelta(hours=4)
#: Faults of the last days are looked for among all machines; older ones that come late are not.
RECENT = timedelta(days=2)


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
    return sum(_void_one(gate, now=now) for gate in found.order_by("pk"))


@transaction.atomic
def _void_one(gate: Gate, *, now: datetime) -> bool:
    gate = lock(gate)
    fault = newer_fault(gate)
    if fault is None or Status(gate.status) not in _UNFINISHED:
        return False
    void(gate, said=fault_in_words(fault), now=now)
    return True


_UNFINISHED = (Status.OPEN, Status.OBSERVING, Status.AWAITING_REVIEW)


def refuse_void(gate: Gate, *, now: datetime) -> None:
    """End the gate if a newer fault is there, and say so; what was asked of it is not done.

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
    return sum(_settle_one(gate, now=now) for gate in over.order_by("pk"))


def _settle_one(gate: Gate, *, now: datetime) -> bool:
    try:
        with transaction.atomic():
            gate = lock(gate)
            old = gate.status
            if newer_fault(gate) is not None:
                return False  # the next sweep of faults ends it
            settle(gate, now=now)
            return gate.status != old
    except (StaleGate, StaleMachine):
        return False  # somebody else moved it; the row says what is next


def clear_strays(*, now: datetime) -> int:
    """End gates whose machine is no longer before them: taken elsewhere by a person or a rule."""
    at_gate = (
        State.AWAITING_VALIDATION,
        State.VALIDATING,
        State.OBSERVING,
        State.AWAITING_RELEASE,
    )
    strays = unfinished().filter(made_for="").exclude(machine__state__in=at_gate)
    count = 0
    for gate in strays.annotate(state=F("machine__state")).order_by("pk"):
        with transaction.atomic():
            held = lock(gate)
            is_stray = held.machine.state not in at_gate
            if is_stray and Status(held.status) in _UNFINISHED:
                said = f"the machine was taken elsewhere: it is {held.machine.state}"
                void(held, said=said, now=now)
                count += 1
    return count


def note(gate: Gate, text: str, *, user: User, now: datetime) -> None:
    """Append a person's word to a gate."""
    say(gate, "note", text, actor=user.get_username(), user=user, now=now)
