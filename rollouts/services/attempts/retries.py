"""Try a failed machine again by itself, where the plan allows more than one attempt."""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef

from fleet.lifecycle import State
from rollouts import selectors
from rollouts.lifecycle import FAILURES, AttemptStatus, Status
from rollouts.models import Attempt, Rollout
from rollouts.services.attempts.starts import queue_again
from rollouts.services.records import lock, minutes_of

#: Ends after which another try is one and the same thing again; what fell back has declined, and
#: what never returned is for a person to look at.
RETRIED = FAILURES - {AttemptStatus.FELL_BACK, AttemptStatus.NEVER_RETURNED}


@transaction.atomic
def retry_due(rollout: Rollout, *, now: datetime) -> int:
    """Queue another try for each failed machine that is back in service and has waited its time.

    The wait doubles with each try. The failures that were stay failures in the evidence. Safe to
    repeat: only a machine's newest attempt is looked at.
    """
    most = rollout.plan["max_attempts"]
    if most <= 1:
        return 0
    rollout = lock(rollout, Status.RUNNING)
    return queue_again(_due(rollout, most=most, now=now), cause=None, now=now)


def _due(rollout: Rollout, *, most: int, now: datetime) -> list[Attempt]:
    later = rollout.attempts.filter(machine=OuterRef("machine"), number__gt=OuterRef("number"))
    failed = rollout.attempts.filter(
        ~Exists(later),
        status__in=RETRIED,
        number__lt=most,
        epoch=rollout.epoch,
        machine__state=State.IN_SERVICE,
        finished_at__isnull=False,
    ).exclude(machine__in=selectors.left_alone(rollout))
    return [
        attempt
        for attempt in failed.select_related("block__wave").order_by("number", "pk")
        if attempt.finished_at is not None
        and attempt.finished_at + wait_before(rollout, attempt.number) <= now
    ]


def wait_before(rollout: Rollout, number: int) -> timedelta:
    """Return how long after its failure attempt `number` is followed by the next."""
    return minutes_of(rollout, "retry_wait_minutes") * 2 ** (number - 1)
