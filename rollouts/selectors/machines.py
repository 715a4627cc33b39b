"""What became of a rollout's machines and attempts."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db.models import Count, QuerySet

from fleet.lifecycle import State
from fleet.models import Cordon, StateChange
from rollouts.lifecycle import FAILURES, WAITING, AttemptStatus
from rollouts.models import Assignment, Attempt, Rollout


def held_machines(rollout: Rollout) -> QuerySet[Cordon]:
    """Return the cordons that stand in the rollout's own name, since a halt."""
    return Cordon.objects.filter(owner=rollout.actor, lifted_at=None).select_related("machine")


def attempt_counts(rollout: Rollout) -> dict[str, int]:
    """Return how many attempts stand in each status."""
    counts = rollout.attempts.values("status").annotate(n=Count("pk")).order_by("status")
    return {row["status"]: row["n"] for row in counts}


def machines_exposed(rollout: Rollout) -> int:
    """Count machines on which an attempt got past draining: they ever saw the new bundle."""
    return (
        rollout.attempts.exclude(status__in=[*WAITING, AttemptStatus.DRAINING])
        .exclude(status=AttemptStatus.CALLED_OFF)
        .values("machine")
        .distinct()
        .count()
    )


def lost_machine_hours(rollout: Rollout, *, until: datetime) -> float:
    """Return the machine-hours out of service that this rollout caused, up to `until`.

    A machine is out from the rollout's drain until its next move into service.
    """
    changes = StateChange.objects.filter(
        machine__in=rollout.attempts.values("machine"), at__lte=until
    ).order_by("machine", "at", "pk")
    mine = f"rollout:{rollout.pk}"
    seconds, left_at, machine = 0.0, None, None
    rows = changes.values_list("machine", "new_state", "at", "actor").iterator(chunk_size=5000)
    for row_machine, state, at, actor in rows:
        if row_machine != machine:
            seconds += _open_seconds(left_at, until)
            machine, left_at = row_machine, None
        if state == State.DRAINING and actor == mine and left_at is None:
            left_at = at
        elif state == State.IN_SERVICE and left_at is not None:
            seconds += (at - left_at).total_seconds()
            left_at = None
    return (seconds + _open_seconds(left_at, until)) / 3600


def _open_seconds(left_at: datetime | None, until: datetime) -> float:
    return 0.0 if left_at is None else max((until - left_at).total_seconds(), 0.0)


def last_attempts(rollout: Rollout, *, names: Iterable[str]) -> dict[str, Attempt]:
    """Return the newest attempt on each of these machines that has one, by name."""
    rows = rollout.attempts.filter(machine__name__in=set(names)).order_by("number")
    found = rows.select_related("machine", "block__wave")
    return {attempt.machine.name: attempt for attempt in found}


def left_alone(rollout: Rollout) -> QuerySet[Assignment, Any]:
    """Return the keys of the machines that a person has excluded from the rollout."""
    return rollout.assignments.filter(exclusion__isnull=False).values("machine")


def declined_in(rollout: Rollout) -> QuerySet[Attempt]:
    """Return the rollout's attempts after which nobody has cleared their machine, by machine."""
    if rollout.kind != Rollout.Kind.UPDATE:
        return rollout.attempts.none()
    held = rollout.attempts.filter(status__in=FAILURES, clearance=None)
    return held.select_related("machine").order_by("machine__name", "pk")


def untriaged(rollout: Rollout) -> QuerySet[Attempt]:
    """Return the attempts whose machine never came back and nobody has said why."""
    return rollout.attempts.filter(status=AttemptStatus.NEVER_RETURNED, triage="").select_related(
        "machine"
    )
