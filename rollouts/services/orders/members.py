"""Orders about single machines of a rollout: try one again, leave one alone."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction

from fleet.lifecycle import State
from rollouts import selectors
from rollouts.errors import OrderRefused
from rollouts.lifecycle import FAILURES, WAITING, AttemptStatus, Status
from rollouts.models import Assignment, Attempt, Order, Rollout
from rollouts.services.attempts.starts import queue_again
from rollouts.services.orders.steering import wake
from rollouts.services.records import lock, move_attempts, record_order

#: A plan that nobody has signed yet is denied and written anew instead.
EXCLUDES_WHILE = (Status.APPROVED, Status.RUNNING, Status.PAUSED)
#: Machines that one refusal names; the others are counted.
MOST_NAMED = 20


@transaction.atomic
def retry(
    rollout: Rollout, *, machines: Sequence[str], actor: User, reason: str, now: datetime
) -> Order:
    """Try failed machines anew, once each; the failures that were stay failures in the evidence.

    A person may order more tries than the plan allows the engine; the order says by how many.

    Raises
    ------
    OrderRefused
        With every machine that cannot be tried again, and why.
    """
    rollout = lock(rollout, *Status)
    reasons = [] if reason.strip() else ["a retry needs a reason"]
    if rollout.status not in (Status.RUNNING, Status.PAUSED):
        reasons.append(f"{rollout} is {rollout.status}; machines are retried while it is running")
    if not machines:
        reasons.append("name at least one machine to try again")
    last = selectors.last_attempts(rollout, names=machines)
    excluded = set(selectors.left_alone(rollout).values_list("machine_name", flat=True))
    reasons += _bounded(
        f"{name} is excluded from this rollout"
        if name in excluded
        else _against_retry(name, last.get(name))
        for name in dict.fromkeys(machines)
    )
    if reasons:
        raise OrderRefused(reasons)
    most = rollout.plan.get("max_attempts", 1)
    beyond = sorted(name for name, attempt in last.items() if attempt.number >= most)
    order = record_order(
        rollout,
        Order.Kind.RETRY,
        actor=actor,
        now=now,
        reason=reason,
        parameters={"machines": sorted(last), "beyond_plan": beyond},
    )
    queue_again(list(last.values()), cause=order, now=now)
    wake(rollout, now)
    return order


def _against_retry(name: str, attempt: Attempt | None) -> str | None:
    if attempt is None:
        return f"{name} has not been tried in this rollout"
    if attempt.status not in FAILURES:
        return f"{name}: its last attempt is {attempt.status}; only a failed one is tried again"
    if attempt.status == AttemptStatus.NEVER_RETURNED and not attempt.triage:
        return f"{name} never returned; triage it first"
    machine = attempt.machine
    if machine.state != State.IN_SERVICE:
        return f"{name} is {machine.state}; it has to be back in service first"
    if not machine.may_take_work:
        return f"{name} is cordoned; it may not take work"
    return None


@transaction.atomic
def exclude(
    rollout: Rollout, *, machines: Sequence[str], actor: User, reason: str, now: datetime
) -> Order:
    """Leave machines alone from now on: nothing more is installed on them by this rollout.

    They stay in their arm and in every denominator (intention to treat). A wave among whose
    canaries a person has chosen so is advisory: the engine does not widen it by itself.

    Raises
    ------
    OrderRefused
        With every machine that cannot be excluded, and why.
    """
    rollout = lock(rollout, *Status)
    reasons = [] if reason.strip() else ["excluding a machine needs a reason"]
    if rollout.status not in EXCLUDES_WHILE:
        wanted = ", ".join(EXCLUDES_WHILE)
        reasons.append(f"{rollout} is {rollout.status}; machines are excluded while it is {wanted}")
    if not machines:
        reasons.append("name at least one machine to exclude")
    names = set(machines)
    places = {
        place.machine_name: place for place in rollout.assignments.filter(machine_name__in=names)
    }
    reasons += _bounded(_against_exclusion(name, places.get(name)) for name in sorted(names))
    if reasons:
        raise OrderRefused(reasons)
    order = record_order(
        rollout,
        Order.Kind.EXCLUDE,
        actor=actor,
        now=now,
        reason=reason,
        parameters={"machines": sorted(names)},
    )
    rollout.assignments.filter(machine_name__in=names).update(exclusion=order)
    excluded = [place.machine_id for place in places.values()]
    waiting = rollout.attempts.filter(machine__in=excluded, status__in=WAITING)
    detail = f"excluded by {actor}"
    move_attempts(waiting, AttemptStatus.CALLED_OFF, now=now, detail=detail, finished_at=now)
    wake(rollout, now)
    return order


def _against_exclusion(name: str, place: Assignment | None) -> str | None:
    if place is None:
        return f"{name} is no machine of this rollout"
    if place.exclusion_id is not None:
        return f"{name} is excluded already"
    return None


def _bounded(found: Iterable[str | None]) -> list[str]:
    """Drop what is fine; name the first refusals and count the rest."""
    reasons = [reason for reason in found if reason is not None]
    more = len(reasons) - MOST_NAMED
    return [*reasons[:MOST_NAMED], f"and {more} machines more"] if more > 0 else reasons
