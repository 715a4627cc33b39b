"""What people command: each order is a record of its own, and the move that follows cites it."""

from collections.abc import Sequence
from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from rollouts import selectors
from rollouts.errors import NotHalted, OrderRefused, SamePerson
from rollouts.lifecycle import (
    FAILURES,
    WAVE_MOVES_WHILE,
    WAVE_TRANSITIONS,
    Status,
    Trigger,
    WaveStatus,
    WaveTrigger,
    next_status,
)
from rollouts.models import Attempt, AttemptEvent, Decision, Order, Rollout, Wave
from rollouts.services.attempts.starts import raise_fence
from rollouts.services.plans.approvals import check_approval, check_bundle
from rollouts.services.records import Cause, lock_family, move, move_wave, record_order
from rollouts.services.waves import on_halt
from rollouts.services.waves.course import extend_window, reopen, shift_clock, start_roll_back


@transaction.atomic
def start(rollout: Rollout, *, actor: User, now: datetime) -> Order:
    """Start an approved rollout; the sweep finds it at once.

    Raises
    ------
    OrderRefused
        If the bundle has been withdrawn since the plan was approved.
    ApprovalExpired
        If the approval is older than the plan lets it be.
    """
    check_approval(rollout, now=now)
    check_bundle(rollout)
    order = record_order(rollout, Order.Kind.START, actor=actor, now=now)
    move(rollout, Trigger.START, cause=order, now=now, started_at=now, due_at=now)
    return order


@transaction.atomic
def pause(rollout: Rollout, *, actor: User, now: datetime, reason: str = "") -> Order:
    """Stop starting attempts and looking at evidence; those in flight go to their end."""
    order = record_order(rollout, Order.Kind.PAUSE, actor=actor, now=now, reason=reason)
    move(rollout, Trigger.PAUSE, cause=order, now=now, due_at=None)
    return order


@transaction.atomic
def resume(rollout: Rollout, *, actor: User, now: datetime, reason: str = "") -> Order:
    """Go on after a pause; the wave's clock moves by its length, so nothing was shortened."""
    next_status(Status(rollout.status), Trigger.RESUME)
    check_bundle(rollout)
    order = record_order(rollout, Order.Kind.RESUME, actor=actor, now=now, reason=reason)
    wave = selectors.current_wave(rollout)
    if wave is not None and wave.status == WaveStatus.HALTED:
        on_halt.let_go(rollout, now=now)
        reopen(wave, cause=order, now=now)
    elif wave is not None:
        shift_clock(wave, paused_at=_paused_at(rollout), now=now)
    move(rollout, Trigger.RESUME, cause=order, now=now, due_at=now)
    return order


def _paused_at(rollout: Rollout) -> datetime:
    last = rollout.transitions.filter(wave=None, new_status=Status.PAUSED).latest("pk")
    return last.at


@transaction.atomic
def halt(
    rollout: Rollout,
    *,
    now: datetime,
    actor: User | None = None,
    reason: str = "",
    decision: Decision | None = None,
) -> Order | None:
    """Halt at once: raise the fence, call off what waits, leave what is in flight to its end.

    Works with the broker down, since it only writes rows. Halting what is halted already is
    recorded and changes nothing; a roll back that runs for the rollout is halted with it. The
    cause is a person (`actor`) or the engine (`decision`).
    """
    order = (
        record_order(rollout, Order.Kind.HALT, actor=actor, now=now, reason=reason)
        if actor is not None
        else None
    )
    rollout = lock_family(rollout)
    cause: Cause = decision or order
    if rollout.status != Status.HALTED:
        _halt(rollout, cause=cause, now=now)
    for child in rollout.children.filter(status__in=(Status.RUNNING, Status.PAUSED)):
        _halt(child, cause=cause, now=now)
    return order


def _halt(rollout: Rollout, *, cause: Cause, now: datetime) -> None:
    detail = "the rollout was halted"
    raise_fence(rollout, Trigger.HALT, cause=cause, now=now, detail=detail, due_at=now)
    wave = selectors.current_wave(rollout)
    if wave is not None and (WaveStatus(wave.status), WaveTrigger.HALT) in WAVE_TRANSITIONS:
        move_wave(wave, WaveTrigger.HALT, cause=cause, now=now, next_look_at=None)


@transaction.atomic
def override(
    rollout: Rollout,
    *,
    actor: User,
    second_person: User,
    reason: str,
    now: datetime,
) -> Order:
    """Take a halted rollout to paused, against a verdict: a reason and a second person.

    Resuming then opens a new window on data from then on, with the alpha the wave has left. A
    rollout that was halted because its bundle was withdrawn is never taken up again.
    """
    if rollout.status != Status.HALTED:
        raise NotHalted(f"{rollout} is {rollout.status}; only a halted rollout can be overridden")
    check_bundle(rollout)
    _check_second_person(actor, second_person, reason, what="an override")
    order = record_order(
        rollout,
        Order.Kind.OVERRIDE,
        actor=actor,
        second_person=second_person,
        reason=reason,
        now=now,
    )
    move(rollout, Trigger.OVERRIDE, cause=order, now=now, is_overridden=True, due_at=None)
    return order


@transaction.atomic
def advance(
    rollout: Rollout,
    *,
    actor: User,
    now: datetime,
    second_person: User | None = None,
    reason: str = "",
) -> Order:
    """Widen a held wave (reason and second person), or confirm an advised widen (neither)."""
    _check_is_open(rollout, WaveTrigger.ADVANCE)
    wave = selectors.current_wave(rollout)
    if wave is None or wave.status not in (WaveStatus.HELD, WaveStatus.OBSERVING):
        seen = "no open wave" if wave is None else f"a wave that is {wave.status}"
        raise OrderRefused([f"only a held wave or an advised widen can be advanced, not {seen}"])
    if wave.status == WaveStatus.HELD:
        _check_second_person(actor, second_person, reason, what="widening a held wave")
    elif selectors.clock_holds(rollout):
        raise OrderRefused(["the clock was set during the window; acknowledge that first"])
    elif selectors.advised_widen(wave) is None:
        raise OrderRefused([f"the engine has not advised to widen {wave}"])
    order = record_order(
        rollout,
        Order.Kind.ADVANCE,
        actor=actor,
        second_person=second_person,
        reason=reason,
        now=now,
        parameters={"wave": wave.number},
    )
    move_wave(wave, WaveTrigger.ADVANCE, cause=order, now=now, finished_at=now, next_look_at=None)
    wake(rollout, now)
    return order


@transaction.atomic
def extend(rollout: Rollout, *, actor: User, now: datetime, reason: str = "") -> Order:
    """Give the wave its one planned extension now."""
    _check_is_open(rollout, WaveTrigger.ADVANCE)
    wave = _open_wave(rollout)
    if wave.is_extended:
        raise OrderRefused([f"{wave} has had its one extension"])
    order = record_order(
        rollout,
        Order.Kind.EXTEND,
        actor=actor,
        now=now,
        reason=reason,
        parameters={"wave": wave.number},
    )
    extend_window(wave, now=now)
    wake(rollout, now)
    return order


@transaction.atomic
def skip_wave(
    rollout: Rollout,
    *,
    actor: User,
    second_person: User,
    reason: str,
    now: datetime,
) -> Order:
    """Go on to the next wave without this one's verdict: a reason and a second person."""
    _check_is_open(rollout, WaveTrigger.SKIP)
    wave = selectors.current_wave(rollout)
    if wave is None:
        raise OrderRefused([f"{rollout} has no wave left to skip"])
    _check_second_person(actor, second_person, reason, what="skipping a wave")
    order = record_order(
        rollout,
        Order.Kind.SKIP_WAVE,
        actor=actor,
        second_person=second_person,
        reason=reason,
        now=now,
        parameters={"wave": wave.number},
    )
    move_wave(wave, WaveTrigger.SKIP, cause=order, now=now, finished_at=now, next_look_at=None)
    wake(rollout, now)
    return order


@transaction.atomic
def roll_back(rollout: Rollout, *, actor: User, now: datetime, reason: str = "") -> Order:
    """Take the treated machines back to the versions they came from, as the plan fixed it."""
    order = record_order(rollout, Order.Kind.ROLL_BACK, actor=actor, now=now, reason=reason)
    start_roll_back(rollout, cause=order, now=now)
    return order


@transaction.atomic
def cancel(rollout: Rollout, *, actor: User, now: datetime, reason: str = "") -> Order:
    """End a rollout where it stands; cancelling undoes nothing."""
    order = record_order(rollout, Order.Kind.CANCEL, actor=actor, now=now, reason=reason)
    raise_fence(
        rollout,
        Trigger.CANCEL,
        cause=order,
        now=now,
        detail="the rollout was cancelled",
        finished_at=now,
        due_at=None,
    )
    return order


@transaction.atomic
def acknowledge(
    rollout: Rollout,
    *,
    actor: User,
    now: datetime,
    signatures: Sequence[str] = (),
    clock: bool = False,
    reason: str = "",
) -> Order:
    """Say that somebody has looked: at these novel signatures, at a clock that was set.

    Only then may widening go on.
    """
    holds = [hold.jump_id for hold in selectors.clock_holds(rollout)] if clock else []
    if clock and not holds:
        raise OrderRefused([f"no clock was set that {rollout} waits for"])
    if not signatures and not clock:
        raise OrderRefused(["name at least one signature to acknowledge, or the clock"])
    order = record_order(
        rollout,
        Order.Kind.ACKNOWLEDGE,
        actor=actor,
        now=now,
        reason=reason,
        parameters={"signatures": sorted(signatures), "clock_jumps": holds},
    )
    wake(rollout, now)
    return order


@transaction.atomic
def triage(attempt: Attempt, *, outcome: str, actor: str, now: datetime) -> None:
    """Say why a machine did not come back: recovered, coincident hardware, or bricked.

    Only a machine that the bundle's recovery recipe could not bring back is a brick. New starts
    have waited for this word.
    """
    if attempt.status not in FAILURES:
        raise OrderRefused([f"only a failed attempt is triaged, this one is {attempt.status}"])
    if attempt.triage not in ("", outcome):
        raise OrderRefused([f"{attempt.machine} was triaged as {attempt.triage} already"])
    accepted = Attempt.Triage.values
    if outcome not in accepted:
        raise OrderRefused([f"unknown outcome {outcome!r}; accepted: {', '.join(accepted)}"])
    if Attempt.objects.filter(pk=attempt.pk, triage="").update(triage=outcome):
        AttemptEvent.objects.create(
            attempt=attempt,
            old_status=attempt.status,
            new_status=attempt.status,
            detail=f"triaged as {outcome} by {actor}",
            at=now,
            recorded_at=timezone.now(),
        )
    attempt.refresh_from_db()
    wake(attempt.rollout, now)


def wake(rollout: Rollout, now: datetime) -> None:
    """Let a rollout that is under way be looked at now; the sweep finds it."""
    Rollout.objects.filter(
        pk=rollout.pk, status__in=(Status.RUNNING, Status.ROLLING_BACK, Status.HALTED)
    ).update(due_at=now)


def _check_is_open(rollout: Rollout, trigger: WaveTrigger) -> None:
    """Refuse to steer the waves of a rollout that is not under way; the row decides, not memory."""
    accepted = WAVE_MOVES_WHILE[trigger]
    status = Rollout.objects.values_list("status", flat=True).get(pk=rollout.pk)
    if status not in accepted:
        wanted = " or ".join(sorted(accepted))
        raise OrderRefused([f"{rollout} is {status}; its waves are steered while it is {wanted}"])


def _open_wave(rollout: Rollout) -> Wave:
    wave = selectors.current_wave(rollout)
    if wave is None or wave.status not in (WaveStatus.OBSERVING, WaveStatus.SETTLING):
        seen = "has no open wave" if wave is None else f"has a wave that is {wave.status}"
        raise OrderRefused([f"{rollout} {seen}; only a wave under observation can be extended"])
    return wave


def _check_second_person(
    actor: User,
    second_person: User | None,
    reason: str,
    *,
    what: str,
) -> None:
    reasons = []
    if not reason.strip():
        reasons.append(f"{what} needs a reason")
    if second_person is None:
        reasons.append(f"{what} needs a second person")
    if reasons:
        raise OrderRefused(reasons)
    if second_person is not None and second_person.pk == actor.pk:
        raise SamePerson(f"{what} needs a second person, not {actor} twice")
