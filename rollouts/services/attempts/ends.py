"""How a step of an attempt ends: look again later, give the machine back, or fail.

Every step has a deadline; silence counts.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from fleet import lifecycle as machine_lifecycle
from fleet import services as fleet
from fleet.lifecycle import State
from fleet.models import Cordon
from rollouts.lifecycle import AttemptStatus, Status
from rollouts.models import Attempt
from rollouts.services.attempts import doors
from rollouts.services.attempts.rows import (
    is_overdue,
    may_come_back,
    mended,
    move_machine,
    staged_only,
)
from rollouts.services.records import lock, minutes_of, move_attempt

#: Between two looks at a machine that is being worked on (by the clock).
POLL = timedelta(minutes=1)
#: An attempt that has waited so long for its machine's jobs is given up, whatever they forecast.
_LONGEST_DEFERRAL = timedelta(days=7)


def call_off_taken(attempt: Attempt, now: datetime) -> bool:
    """Leave a machine that somebody took before anything was activated on it where it is."""
    detail = f"somebody took the machine: it is {attempt.machine.state}{staged_only(attempt)}"
    move_attempt(
        attempt,
        AttemptStatus.CALLED_OFF,
        now=now,
        detail=detail,
        finished_at=now,
        deadline_at=None,
        due_at=now,
    )
    return True


def look_again(attempt: Attempt, at: datetime | None) -> bool:
    """Let the attempt be due at that time, or never again."""
    Attempt.objects.filter(pk=attempt.pk, status=attempt.status).update(due_at=at)
    return False


def let_go(attempt: Attempt, now: datetime) -> bool:
    """Lift the drain of an attempt that is over, where its machine is in service."""
    return look_again(attempt, None) if release(attempt, now) else False


def release(attempt: Attempt, now: datetime) -> bool:
    """Lift the rollout's drain from a machine in service; safe to repeat, and repeated until done.

    A machine out of service keeps its drain: a scheduler must never be given it. So does one
    that is cordoned, by the rollout itself since a halt or by a person. The drain is lifted when
    the machine may take work again.
    """
    if _is_kept_away(attempt) and fleet.keep_drained(
        attempt.machine, reason=attempt.rollout.actor, now=now
    ):
        return True
    return doors.release(attempt, now=now) or wait(attempt, now)


def _is_kept_away(attempt: Attempt) -> bool:
    cordons = Cordon.objects.filter(machine=attempt.machine, lifted_at=None)
    ours = cordons.exclude(owner__startswith=fleet.AT_SCHEDULER)
    return attempt.machine.state != State.IN_SERVICE or ours.exists()


def wait(attempt: Attempt, now: datetime, *, due: datetime | None = None, **fields: Any) -> bool:
    """Look again a little later, at the latest at the deadline."""
    due = due or now + POLL
    if attempt.deadline_at is not None and now < attempt.deadline_at:
        due = min(due, attempt.deadline_at)
    Attempt.objects.filter(pk=attempt.pk, status=attempt.status).update(due_at=due, **fields)
    return False


def wait_or_fail(
    attempt: Attempt, status: AttemptStatus, now: datetime, *, detail: str, **fields: Any
) -> bool:
    """Wait, or end the attempt in a failure class once its step's time is over."""
    if not is_overdue(attempt, now):
        return wait(attempt, now, **fields)
    return fail(attempt, status, now, detail=detail)


def fail(attempt: Attempt, status: AttemptStatus, now: datetime, *, detail: str) -> bool:
    """End an attempt in a failure class; the machine goes to diagnosis, never back to work."""
    is_lost = status in (AttemptStatus.PARTIAL, AttemptStatus.NEVER_RETURNED)
    if attempt.steps.get("mending") and not is_lost:
        status, detail = AttemptStatus.PARTIAL, f"{mended(attempt)}: {status}, {detail}"
    with transaction.atomic():
        move_attempt(
            attempt, status, now=now, detail=detail, finished_at=now, deadline_at=None, due_at=None
        )
        for trigger in _TO_DIAGNOSIS.get(State(attempt.machine.state), ()):
            move_machine(attempt, trigger, now, reason=f"attempt {attempt.pk}: {status}")
    return False


#: The way to diagnosis; a machine that somebody has taken elsewhere stays where it is.
_TO_DIAGNOSIS: Mapping[State, tuple[machine_lifecycle.Trigger, ...]] = {
    State.DRAINING: (machine_lifecycle.Trigger.TAKE_OUT,),
    State.UPDATING: (machine_lifecycle.Trigger.FAIL_UPDATE,),
    State.VERIFYING: (machine_lifecycle.Trigger.FAIL_UPDATE,),
    State.IN_SERVICE: (
        machine_lifecycle.Trigger.DRAIN,
        machine_lifecycle.Trigger.TAKE_OUT,
    ),
}


@transaction.atomic
def return_untouched(
    attempt: Attempt,
    now: datetime,
    *,
    detail: str,
    is_over: bool = False,
    not_before: datetime | None = None,
) -> bool:
    """Give a drained machine back: nothing was activated on it; its release is due at once.

    With a forecast (`not_before`) it waits for that, however long its drains took together.
    """
    rollout = lock(attempt.rollout, *Status)
    patience = 2 * minutes_of(attempt.rollout, "drain_timeout_minutes")
    give_up_at = (attempt.started_at or attempt.created_at) + patience
    if not_before is not None:
        give_up_at = max(attempt.created_at + _LONGEST_DEFERRAL, give_up_at)
    is_over = is_over or now >= give_up_at or not may_come_back(attempt, rollout)
    move_attempt(
        attempt,
        AttemptStatus.CALLED_OFF if is_over else AttemptStatus.DEFERRED,
        now=now,
        detail=f"{detail}{staged_only(attempt)}",
        due_at=now,
        drained_at=None,
        forecast_at=None if is_over else not_before,
        deadline_at=give_up_at,
        finished_at=now if is_over else None,
    )
    gate = f"untouched{staged_only(attempt)}"
    move_machine(attempt, machine_lifecycle.Trigger.CALL_OFF, now, gate=gate)
    return True
