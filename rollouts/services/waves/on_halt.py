"""What a plan does with canaries after a halt, besides rolling them back: drain, do not reboot.

A machine in service is cordoned in the rollout's own name, so nobody else's cordon is touched and
none is mistaken for it; the scheduler is told, and told again until it has taken it. One that is
out of service already is left where it is: it is recorded that it is not to be rebooted.
"""

import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from fleet import services as fleet
from fleet.lifecycle import State
from fleet.models import Machine
from rollouts import selectors
from rollouts.errors import OrderRefused
from rollouts.lifecycle import Status, Trigger
from rollouts.models import Action, Attempt, Order, Rollout, Transition
from rollouts.services.attempts import doors
from rollouts.services.records import lock, record_order

#: Machines that one pass cordons; the next pass takes the rest.
MOST_AT_ONCE = 500
#: Wall time after which a pass leaves the rest of telling the scheduler to the next one.
LONGEST_RUN_SECONDS = 20.0
_REASONS = {
    Action.Kind.DRAIN: "out of work since the rollout was halted",
    Action.Kind.DO_NOT_REBOOT: "do not reboot: its firmware may not come back",
}


def carry_out(rollout: Rollout, *, now: datetime) -> None:
    """Do with the canaries what the plan says, as far as the scheduler answers.

    Safe to repeat: what was done with a machine is recorded as an action, and is not done again.
    Never inside a transaction, since the scheduler is told.
    """
    left = list(_left_to_do(rollout)[:MOST_AT_ONCE])
    for attempt in left:
        _cordon(attempt, now=now)
    end = time.monotonic() + LONGEST_RUN_SECONDS
    for attempt in left:
        if time.monotonic() > end:
            return  # a scheduler that is silent must not hold a worker once per machine
        is_working = attempt.machine.state == State.IN_SERVICE
        if not is_working or doors.keep_away(attempt, now=now):
            _record(attempt, now=now)


def is_left(rollout: Rollout) -> bool:
    """Tell whether a halted rollout has yet to do something with a canary."""
    return _left_to_do(rollout).exists()


def _verbs(rollout: Rollout) -> dict[str, str]:
    return {status: verb for status, verb in rollout.plan["on_halt"].items() if verb in _REASONS}


def _left_to_do(rollout: Rollout) -> QuerySet[Attempt]:
    """Return the newest ended attempts of which the plan says what has not been done."""
    was_halted = rollout.transitions.filter(wave=None, trigger=Trigger.HALT).exists()
    if rollout.mode == Rollout.Mode.OBSERVE or not was_halted:
        return Attempt.objects.none()
    newer = Attempt.objects.filter(
        rollout=rollout, machine=OuterRef("machine"), number__gt=OuterRef("number")
    )
    done = Action.objects.filter(
        attempt=OuterRef("pk"), kind__in=sorted(_REASONS), at__gte=_halt(rollout).at
    )
    return (
        Attempt.objects.filter(rollout=rollout, status__in=_verbs(rollout))
        .exclude(Exists(newer))
        .exclude(Exists(done))
        .select_related("machine", "rollout")
        .order_by("machine_id")
    )


@transaction.atomic
def _cordon(attempt: Attempt, *, now: datetime) -> None:
    rollout = lock(attempt.rollout, Status.HALTED, Status.ROLLING_BACK)
    if attempt.machine.state == State.IN_SERVICE:
        reason = _REASONS[Action.Kind(_verbs(rollout)[attempt.status])]
        fleet.cordon(attempt.machine, owner=rollout.actor, reason=reason, now=now)


def _record(attempt: Attempt, *, now: datetime) -> None:
    halt = _halt(attempt.rollout)
    Action.objects.create(
        rollout=attempt.rollout,
        machine=attempt.machine,
        attempt=attempt,
        decision=halt.decision,
        order=halt.order,
        kind=_verbs(attempt.rollout)[attempt.status],
        at=now,
        recorded_at=timezone.now(),
    )


def _halt(rollout: Rollout) -> Transition:
    return rollout.transitions.filter(wave=None, trigger=Trigger.HALT).latest("pk")


@transaction.atomic
def let_go(rollout: Rollout, *, now: datetime, machines: Iterable[Machine] | None = None) -> int:
    """Lift the rollout's own cordons, of these machines or of all; their attempts tell the rest.

    The scheduler's drain is lifted by each machine's newest attempt, which is due at once.
    """
    held = selectors.held_machines(rollout)
    if machines is not None:
        held = held.filter(machine__in=[machine.pk for machine in machines])
    freed = []
    for cordon in held.order_by("machine_id"):
        fleet.lift_cordon(cordon, owner=rollout.actor, now=now)
        freed.append(cordon.machine_id)
    rollout.attempts.filter(machine__in=freed, finished_at__isnull=False).update(due_at=now)
    return len(freed)


@transaction.atomic
def release(
    rollout: Rollout, *, machines: Sequence[str], actor: User, reason: str, now: datetime
) -> Order:
    """Give machines back to work that a halt had taken out of it: somebody knows the cause.

    Raises
    ------
    OrderRefused
        With every machine that this rollout does not hold.
    """
    rollout = lock(rollout, *Status)
    held = {cordon.machine.name: cordon.machine for cordon in selectors.held_machines(rollout)}
    reasons = [] if reason.strip() else ["releasing a machine needs a reason"]
    if not machines:
        reasons.append("name at least one machine to release")
    reasons += [
        f"{name} is not held by {rollout}" for name in sorted(set(machines) - set(held))[:20]
    ]
    if reasons:
        raise OrderRefused(reasons)
    order = record_order(
        rollout,
        Order.Kind.RELEASE,
        actor=actor,
        now=now,
        reason=reason,
        parameters={"machines": sorted(set(machines))},
    )
    let_go(rollout, now=now, machines=[held[name] for name in set(machines)])
    return order
