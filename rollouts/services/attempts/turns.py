"""Whose turn it is: each due attempt is leased and taken as many steps on as are due."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime

from fleet import clock, leases
from fleet.errors import StaleMachine
from fleet.leases import LEASE
from rollouts.errors import StaleRollout
from rollouts.lifecycle import FAILURES, IN_FLIGHT, AttemptStatus
from rollouts.models import Attempt
from rollouts.services.attempts import drains, ends, installs, verifying
from rollouts.services.attempts.ends import POLL, fail, return_untouched
from rollouts.services.attempts.rows import is_overdue

#: Wall time after which a run leaves the rest of its attempts to the next one: a slow machine
#: must not hold a worker for the sum of its neighbours' time-outs.
LONGEST_RUN_SECONDS = 20.0


def advance(attempt_ids: Sequence[int], *, now: datetime) -> None:
    """Take each due attempt one or more steps on. Safe to repeat: only a leased row is touched.

    Each attempt is leased at its turn, so a worker that dies leaves one row behind and not the
    whole message; an attempt over which a worker has died comes last. Whatever one turn raises,
    the others are taken first. Once the run's time is over the rest stays due for the sweep.
    """
    end = time.monotonic() + LONGEST_RUN_SECONDS
    with ExitStack() as turns:
        for attempt in reversed(_due(attempt_ids, now=now)):
            turns.callback(_take_turn, attempt, now=now, end=end)


def _due(attempt_ids: Sequence[int], *, now: datetime) -> list[Attempt]:
    found = Attempt.objects.filter(
        leases.free(wall=clock.steady_time()), pk__in=attempt_ids, due_at__lte=now
    ).select_related("machine", "rollout", "wave")
    return sorted(found, key=lambda attempt: (attempt.lease_token != "", attempt.pk))


def _take_turn(attempt: Attempt, *, now: datetime, end: float) -> None:
    if time.monotonic() > end:
        return
    was_abandoned = attempt.lease_token != ""
    if not _lease(attempt):
        return
    is_done = False
    try:
        if was_abandoned and is_overdue(attempt, now):
            _put_off(attempt, now, detail="a worker died over it; its machine has to be looked at")
        else:
            _step(attempt, now)
        is_done = True
    except (StaleRollout, StaleMachine):
        is_done = True  # somebody else moved it; the row says what is next
    finally:
        try:
            if not is_done:
                _put_off(attempt, now, detail="its step fails inside Coalmine; the log says why")
        finally:
            Attempt.objects.filter(pk=attempt.pk, lease_token=attempt.lease_token).update(
                leased_until=None, lease_token=""
            )


def _lease(attempt: Attempt) -> bool:
    """Take the row if it still stands as it was read and nobody holds it."""
    token, wall = uuid.uuid4().hex, clock.steady_time()
    taken = Attempt.objects.filter(
        leases.free(wall=wall), pk=attempt.pk, status=attempt.status, due_at=attempt.due_at
    ).update(lease_token=token, leased_until=wall + LEASE)
    attempt.lease_token = token
    return bool(taken)


def _step(attempt: Attempt, now: datetime) -> None:
    """Go on from step to step until one of them has to wait."""
    while step := _STEPS.get(AttemptStatus(attempt.status)):
        if not step(attempt, now):
            return
    Attempt.objects.filter(pk=attempt.pk, status=attempt.status).update(due_at=None)


def _put_off(attempt: Attempt, now: datetime, *, detail: str) -> None:
    """Look again a little later, or end the attempt: the deadline holds whatever was raised."""
    attempt.refresh_from_db()
    if attempt.status not in IN_FLIGHT or not is_overdue(attempt, now):
        due = Attempt.objects.filter(pk=attempt.pk, due_at__lte=now)
        due.update(due_at=now + POLL)
    elif attempt.status == AttemptStatus.DRAINING:
        return_untouched(attempt, now, detail=detail)
    else:
        fail(attempt, AttemptStatus.UNKNOWN, now, detail=detail)


_STEPS: Mapping[AttemptStatus, Callable[[Attempt, datetime], bool]] = {
    **dict.fromkeys(FAILURES, ends.let_go),
    AttemptStatus.DRAINING: drains.drain,
    AttemptStatus.STAGING: installs.stage,
    AttemptStatus.ACTIVATING: installs.activate,
    AttemptStatus.AWAITING_REBOOT: installs.await_reboot,
    AttemptStatus.VERIFYING: verifying.verify,
    AttemptStatus.SUCCEEDED: verifying.recheck,
    AttemptStatus.FELL_BACK: verifying.take_out,
    AttemptStatus.DEFERRED: ends.let_go,
    AttemptStatus.CALLED_OFF: ends.let_go,
}
