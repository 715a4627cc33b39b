"""The only places where a status changes: a conditional update plus the record that explains it."""

from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from fleet.bulk import insert_filled
from rollouts.errors import StaleRollout
from rollouts.lifecycle import (
    WAVE_MOVES_WHILE,
    AttemptStatus,
    Status,
    Trigger,
    WaveStatus,
    WaveTrigger,
    check_attempt_move,
    next_status,
    next_wave_status,
)
from rollouts.models import Attempt, AttemptEvent, Decision, Order, Rollout, Transition, Wave

Cause = Decision | Order | None


def record_order(
    rollout: Rollout,
    kind: Order.Kind,
    *,
    actor: User,
    now: datetime,
    reason: str = "",
    second_person: User | None = None,
    parameters: dict[str, Any] | None = None,
) -> Order:
    """Record what a named person commands; the move that follows points to it."""
    return Order.objects.create(
        rollout=rollout,
        kind=kind,
        actor=actor,
        second_person=second_person,
        reason=reason,
        parameters=parameters or {},
        at=now,
        recorded_at=timezone.now(),
    )


def lock(rollout: Rollout, *accepted: Status) -> Rollout:
    """Hold the rollout's row to the end of the transaction, and return it as it stands.

    Whatever moves a wave or starts an attempt holds this row, and a halt has to change it: so
    the halt comes before such a move or after it, never in between.

    Raises
    ------
    StaleRollout
        If the rollout stands in none of the accepted statuses.
    """
    held = Rollout.objects.select_for_update(no_key=True).get(pk=rollout.pk)
    if held.status not in accepted:
        raise StaleRollout(f"rollout {held.pk} is {held.status} by now")
    return held


def lock_family(rollout: Rollout) -> Rollout:
    """Hold the rows of parent, rollout and children, always in this order, and return the rollout.

    What moves two of them has to take both locks this way, or two workers wait for each other.
    """
    near = Q(pk=rollout.pk) | Q(pk=rollout.parent_id) | Q(parent=rollout.pk)
    rows = Rollout.objects.select_for_update(no_key=True).filter(near).order_by("pk")
    return next(row for row in rows if row.pk == rollout.pk)


@transaction.atomic
def move(
    rollout: Rollout,
    trigger: Trigger,
    *,
    cause: Cause,
    now: datetime,
    note: str = "",
    **fields: Any,
) -> Transition:
    """Move a rollout along its state machine and record the move.

    The conditional update is the lock: when two workers race, one of them changes no row and
    stops here, before it has any effect on a machine. `fields` are set in the same statement.

    Raises
    ------
    IllegalTransition
        If the table has no such move.
    StaleRollout
        If somebody else moved the rollout since it was read.
    """
    old = Status(rollout.status)
    new = next_status(old, trigger)
    if not Rollout.objects.filter(pk=rollout.pk, status=old).update(status=new, **fields):
        raise StaleRollout(f"rollout {rollout.pk} is no longer {old}")
    rollout.refresh_from_db()
    return _record(rollout, None, trigger, old, new, cause=cause, now=now, note=note)


@transaction.atomic
def move_wave(
    wave: Wave,
    trigger: WaveTrigger,
    *,
    cause: Cause,
    now: datetime,
    note: str = "",
    **fields: Any,
) -> Transition:
    """Move a wave along its state machine and record the move, like `move`.

    Raises
    ------
    StaleRollout
        If somebody else moved the wave, or the rollout no longer lets its waves move so.
    """
    old = WaveStatus(wave.status)
    new = next_wave_status(old, trigger)
    lock(wave.rollout, *WAVE_MOVES_WHILE[trigger])
    if not Wave.objects.filter(pk=wave.pk, status=old).update(status=new, **fields):
        raise StaleRollout(f"wave {wave.pk} is no longer {old}")
    wave.refresh_from_db()
    return _record(wave.rollout, wave, trigger, old, new, cause=cause, now=now, note=note)


def _record(
    rollout: Rollout,
    wave: Wave | None,
    trigger: Trigger | WaveTrigger,
    old: Status | WaveStatus,
    new: Status | WaveStatus,
    *,
    cause: Cause,
    now: datetime,
    note: str,
) -> Transition:
    return Transition.objects.create(
        rollout=rollout,
        wave=wave,
        decision=cause if isinstance(cause, Decision) else None,
        order=cause if isinstance(cause, Order) else None,
        trigger=trigger,
        old_status=old,
        new_status=new,
        note=note,
        at=now,
        recorded_at=timezone.now(),
    )


@transaction.atomic
def move_attempt(
    attempt: Attempt,
    new: AttemptStatus,
    *,
    now: datetime,
    detail: str = "",
    **fields: Any,
) -> AttemptEvent:
    """Move an attempt on and record what was seen; a conditional update, like `move`."""
    old = AttemptStatus(attempt.status)
    check_attempt_move(old, new)
    changed = Attempt.objects.filter(pk=attempt.pk, status=old).update(
        status=new, detail=detail[:300], **fields
    )
    if not changed:
        raise StaleRollout(f"attempt {attempt.pk} is no longer {old}")
    attempt.refresh_from_db()
    return AttemptEvent.objects.create(
        attempt=attempt,
        old_status=old,
        new_status=new,
        detail=detail[:300],
        at=now,
        recorded_at=timezone.now(),
    )


@transaction.atomic
def move_attempts(
    attempts: QuerySet[Attempt],
    new: AttemptStatus,
    *,
    now: datetime,
    detail: str = "",
    **fields: Any,
) -> int:
    """Move many attempts alike, in as many statements as for one; return how many moved.

    A halt of a large rollout must not take longer than that of a small one.
    """
    rows = dict(attempts.select_for_update(no_key=True).values_list("pk", "status"))
    for old in set(rows.values()):
        check_attempt_move(AttemptStatus(old), new)
    if attempts.update(status=new, detail=detail[:300], **fields) != len(rows):
        raise StaleRollout("some of the attempts were moved by somebody else")
    fixed = (new.value, detail[:300], now, timezone.now())
    insert_filled(
        AttemptEvent,
        ("new_status", "detail", "at", "recorded_at", "attempt_id", "old_status"),
        ((*fixed, pk, old) for pk, old in rows.items()),
    )
    return len(rows)


def minutes_of(rollout: Rollout, key: str) -> timedelta:
    """Return a length of time that the plan gives in minutes."""
    return timedelta(minutes=rollout.plan[key])
