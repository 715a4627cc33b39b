"""Celery's entry points: load, call, chain. Rows hold the truth; a message is a hint to look.

Every task may be delivered twice, late or not at all: a lease keeps two workers apart, a
conditional update keeps an effect from happening twice, and the sweep finds what was missed.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial

from celery import current_task, shared_task
from django.db import OperationalError, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from fleet import clock, leases
from fleet.hints import hint
from rollouts import pipeline, selectors
from rollouts.analysis.verdicts import DecisionKind, Reason
from rollouts.errors import StaleRollout
from rollouts.models import Attempt, Rollout
from rollouts.services.attempts import turns
from rollouts.services.evidence import cycles
from rollouts.services.orders import clocks, reminders
from rollouts.services.plans import approvals
from rollouts.services.waves import outside, placement

logger = logging.getLogger(__name__)

_TICK = timedelta(microseconds=1)
#: Workers that may die over one rollout before its evaluation is held (a poison message).
MOST_CRASHES = 3
#: Attempts that one message hands to a worker.
CHUNK = 50


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True)
def sweep() -> int:
    """Find every due row and hint at it. Safe to repeat: it changes no row that is due."""
    clocks.watch(wall=timezone.now())
    now = clock.now()
    rollouts = selectors.due_rollouts(now)
    for rollout in rollouts:
        hint(evaluate, rollout)
    due = selectors.due_attempts(now)
    for start in range(0, len(due), CHUNK):
        hint(install, due[start : start + CHUNK])
    return len(rollouts) + len(due)


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True)
def remind() -> int:
    """Record whatever has waited for a person too long, and ask anew for approvals that expired.

    Safe to repeat: each time counts once.
    """
    approvals.expire_approvals(now=clock.now())
    return reminders.remind(now=clock.now())


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True)
def look_outside() -> int:
    """Find firmware that others put onto machines of an open comparison; renew reservations.

    Safe to repeat: what was read or recorded before is not recorded again. A rollout that is
    paused is not evaluated, and its jobs are kept pure all the same.
    """
    now, found = clock.now(), 0
    placement.arrange(now=now)
    for wave in outside.open_waves():
        outside.read_rebooted(wave, now=now)
        found += len(outside.record_contamination(wave, now=now))
    return found


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True)
def evaluate(rollout_id: int) -> None:
    """Take the due look, then enact. Safe to repeat: a wave has one evaluation per look."""
    now = clock.now()
    with _lease(rollout_id, now=now) as rollout:
        if rollout is None:
            return
        if rollout.crashes > MOST_CRASHES:
            _hold_after_crashes(rollout, now=now)
            return
        pipeline.evaluate(rollout, now=now)
        pipeline.enact(rollout, now=now)


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True)
def enact(rollout_id: int) -> None:
    """Carry out what is decided. Safe to repeat: each move is a conditional update."""
    now = clock.now()
    with _lease(rollout_id, now=now) as rollout:
        if rollout is not None:
            pipeline.enact(rollout, now=now)


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True)
def install(attempt_ids: Sequence[int]) -> None:
    """Take due attempts a step on. Safe to repeat: each is leased, its order has one key."""
    now = clock.now()
    try:
        turns.advance(attempt_ids, now=now)
    finally:
        _wake_finished(attempt_ids, now=now)


def _wake_finished(attempt_ids: Sequence[int], *, now: datetime) -> None:
    """Let a rollout whose attempts ended be looked at: its block may be complete."""
    ended = Attempt.objects.filter(pk__in=attempt_ids, finished_at=now)
    for rollout in ended.order_by("rollout").values_list("rollout", flat=True).distinct():
        Rollout.objects.filter(pk=rollout, status__in=selectors.LIVE).update(due_at=now)
        hint(enact, rollout)


@contextmanager
def _lease(rollout_id: int, *, now: datetime) -> Iterator[Rollout | None]:
    """Hold a due rollout while it is worked on; None if it is not due or somebody holds it.

    `crashes` is raised when it is taken and cleared when it is handed back: a worker that dies
    in between leaves it raised. An order that comes meanwhile sets `due_at` anew and wins, also
    where the clock stands still: taking sets it a tick back, to what no order ever sets.
    """
    token = uuid.uuid4().hex
    wall = clock.steady_time()
    taken = Rollout.objects.filter(
        leases.free(wall=wall), pk=rollout_id, due_at__lte=now, status__in=selectors.LIVE
    ).update(
        lease_token=token,
        leased_until=wall + leases.LEASE,
        due_at=now - _TICK,
        crashes=F("crashes") + 1,
    )
    if not taken:
        yield None
        return
    rollout = Rollout.objects.select_related("bundle", "parent").get(pk=rollout_id)
    is_done = False
    try:
        with leases.kept(partial(_renew, rollout_id, token)):
            yield rollout
        is_done = True
    except StaleRollout as stale:
        logger.info("rollout=%s somebody else was faster: %s", rollout_id, stale)
        is_done = True
    finally:
        mine = Rollout.objects.filter(pk=rollout_id, lease_token=token)
        if is_done:
            _hand_back(rollout, mine, now=now)
        # After an error the count of crashes stays raised, and the sweep tries again.
        mine.update(leased_until=None, lease_token="")


def _renew(rollout_id: int, token: str) -> None:
    """A look at a large fleet takes longer than a lease; one that has been taken over stays so."""
    Rollout.objects.filter(pk=rollout_id, lease_token=token).update(
        leased_until=clock.steady_time() + leases.LEASE
    )


def _hand_back(rollout: Rollout, mine: QuerySet[Rollout], *, now: datetime) -> None:
    rollout.refresh_from_db()
    following = pipeline.next_due(rollout, now=now)
    is_unchanged = mine.filter(due_at=now - _TICK).update(due_at=following)
    mine.update(crashes=0)
    if not is_unchanged or (following is not None and following <= now):
        hint(enact, rollout.pk)


def _task_named() -> str:
    task = current_task and current_task.request.id
    return f" for task {task}" if task else ""


@transaction.atomic
def _hold_after_crashes(rollout: Rollout, *, now: datetime) -> None:
    """Stop trying for one look interval, say so, and leave the others to go on."""
    cycles.decide(
        rollout,
        DecisionKind.HOLD,
        Reason.EVALUATION_CRASHES,
        f"hold: the evaluation ended its worker {MOST_CRASHES} times; see the worker's log"
        f"{_task_named()}",
        as_of=now,
    )
    later = now + timedelta(minutes=rollout.plan["look_minutes"])
    Rollout.objects.filter(pk=rollout.pk).update(due_at=later)
