"""Who is tried next: queue attempts, start them within the caps, call off those that wait."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Q
from django.utils import timezone

from fleet import lifecycle as machine_lifecycle
from fleet import services as fleet
from fleet.bulk import insert_filled
from fleet.errors import IllegalTransition, StaleMachine
from fleet.lifecycle import State
from fleet.models import Cordon
from rollouts import headroom, selectors
from rollouts.errors import StaleRollout
from rollouts.lifecycle import WAITING, AttemptStatus, Status, Trigger
from rollouts.models import Action, Attempt, Block, Decision, Order, Rollout
from rollouts.services.records import Cause, lock, minutes_of, move, move_attempt, move_attempts

#: Attempts that start before the rollout's lock is given back.
_MOST_UNDER_ONE_LOCK = 100


@transaction.atomic
def queue(
    block: Block,
    *,
    targets: Mapping[int, list[dict[str, str]]],
    cause: Decision | Order | None,
    now: datetime,
) -> int:
    """Queue one attempt per machine of `targets` (machine id → images in order), once."""
    rollout = Rollout.objects.get(pk=block.wave.rollout_id)  # its epoch may be higher by now
    known = set(
        Attempt.objects.filter(rollout=rollout, block=block).values_list("machine_id", flat=True)
    )
    wanted = {machine: (1, images) for machine, images in targets.items() if machine not in known}
    return _create(block, rollout, wanted, cause=cause, now=now)


def requeue(block: Block, *, since: datetime, cause: Decision | Order | None, now: datetime) -> int:
    """Queue anew whom the halt of `since` called off: nothing had been written to them."""
    rollout = Rollout.objects.get(pk=block.wave.rollout_id)
    off = Attempt.objects.filter(
        block=block, status=AttemptStatus.CALLED_OFF, finished_at__gte=since
    ).order_by("number")
    off = off.exclude(machine__in=selectors.left_alone(rollout))
    wanted = {
        machine: (number + 1, images)
        for machine, number, images in off.values_list("machine_id", "number", "targets")
    }
    return _create(block, rollout, wanted, cause=cause, now=now)


def queue_again(
    attempts: Iterable[Attempt], *, cause: Decision | Order | None, now: datetime
) -> int:
    """Queue another try for each of these ended attempts, in the block in which it was tried."""
    by_block: dict[Block, dict[int, tuple[int, list[dict[str, str]]]]] = {}
    for attempt in attempts:
        wanted = by_block.setdefault(attempt.block, {})
        wanted[attempt.machine_id] = (attempt.number + 1, attempt.targets)
    total = 0
    for block, wanted in by_block.items():
        rollout = Rollout.objects.get(pk=block.wave.rollout_id)
        total += _create(block, rollout, wanted, cause=cause, now=now)
    return total


def _kind_of(rollout: Rollout) -> Action.Kind:
    """Return what an attempt of the rollout does to its machine."""
    is_back = rollout.kind == Rollout.Kind.ROLL_BACK
    return Action.Kind.ROLL_BACK if is_back else Action.Kind.INSTALL


def _create(
    block: Block,
    rollout: Rollout,
    wanted: Mapping[int, tuple[int, list[dict[str, str]]]],
    *,
    cause: Decision | Order | None,
    now: datetime,
) -> int:
    """Create an attempt of that number, with its action, for each machine id."""
    deadline = now + minutes_of(rollout, "drain_timeout_minutes")
    alike = (rollout.pk, block.wave_id, block.pk, rollout.epoch, now, deadline)
    created = insert_filled(
        Attempt,
        (
            *("rollout_id", "wave_id", "block_id", "epoch", "created_at", "deadline_at"),
            *("machine_id", "number", "targets"),
        ),
        ((*alike, machine, number, images) for machine, (number, images) in wanted.items()),
    )
    # In the order of the assignment, which that of the keys keeps.
    queued = Attempt.objects.filter(block=block, created_at=now, status=AttemptStatus.QUEUED)
    fixed = (
        rollout.pk,
        cause.pk if isinstance(cause, Decision) else None,
        cause.pk if isinstance(cause, Order) else None,
        _kind_of(rollout).value,
        now,
        timezone.now(),
    )
    insert_filled(
        Action,
        (
            *("rollout_id", "decision_id", "order_id", "kind", "at", "recorded_at"),
            *("attempt_id", "machine_id"),
        ),
        (
            (*fixed, pk, machine)
            for pk, machine, number in queued.order_by("pk").values_list(
                "pk", "machine_id", "number"
            )
            if wanted.get(machine, (0,))[0] == number
        ),
    )
    return created


def start_waiting(block: Block, *, now: datetime) -> int:
    """Start as many waiting attempts of a block as the caps allow; return how many started.

    The rollout's row is locked while attempts start and a halt has to change that row, so no
    attempt gets a start time after a halt has committed. Few start under one lock: a halt waits
    for no more than those.

    Raises
    ------
    StaleRollout
        If the rollout does not run any more.
    """
    total = 0
    while started := _start_some(block, now=now):
        total += started  # and look behind them: what they filled up is passed over now
    return total


@transaction.atomic
def _start_some(block: Block, *, now: datetime) -> int:
    rollout = lock(block.wave.rollout, Status.RUNNING)
    not_yet = _not_yet(block, now=now)
    _give_up_waiting(block, now=now)
    if Attempt.objects.filter(
        rollout=rollout, status=AttemptStatus.NEVER_RETURNED, triage=""
    ).exists():
        return 0  # new starts wait until it is known why a machine did not come back
    picked = headroom.pick(block, epoch=rollout.epoch, leave_out=not_yet)
    # By machine: two rollouts that want the same machines meet at the first, not crosswise.
    batch = sorted(_first_groups(picked), key=lambda group: group[0].machine_id)
    return sum(_start_together(group, rollout=rollout, now=now) for group in batch)


def _not_yet(block: Block, *, now: datetime) -> Q:
    """Defer who waits where no window is open, and return who may not start for now.

    Besides them those whose forecast, of a job's end, has not come, and those whose machine
    somebody else has drained.
    """
    _defer_drained(block, now=now)
    shut = Q(forecast_at__gt=now)
    patience = minutes_of(block.wave.rollout, "drain_timeout_minutes")
    for place, gate in headroom.closed_places(block, now=now).items():
        here = headroom.at_place(place)
        shut |= here
        waiting = Attempt.objects.filter(here, block=block, status__in=WAITING)
        queued = waiting.filter(status=AttemptStatus.QUEUED)
        move_attempts(queued, AttemptStatus.DEFERRED, now=now, detail=gate.reason)
        sooner = waiting
        if gate.opens_at is not None:
            sooner = waiting.filter(Q(forecast_at=None) | Q(forecast_at__lt=gate.opens_at))
            # Only from then on can the machine be waited for.
            until = gate.opens_at + patience
            waiting.filter(deadline_at__lt=until).update(deadline_at=until)
        sooner.update(forecast_at=gate.opens_at, detail=gate.reason[:300])
    return shut


def _defer_drained(block: Block, *, now: datetime) -> None:
    """Defer who waits for a machine that others have drained at the scheduler, in their words."""
    waiting = Attempt.objects.filter(block=block, status=AttemptStatus.QUEUED)
    drained = Cordon.objects.filter(
        owner__startswith=fleet.AT_SCHEDULER,
        lifted_at=None,
        machine__in=waiting.values("machine"),
    )
    for cordon in drained.order_by("machine"):
        whose = cordon.owner.removeprefix(fleet.AT_SCHEDULER)
        detail = f"drained at the scheduler by {whose}: {cordon.reason}"
        own = waiting.filter(machine=cordon.machine_id)
        move_attempts(own, AttemptStatus.DEFERRED, now=now, detail=detail)


def _first_groups(picked: list[Attempt]) -> list[list[Attempt]]:
    """Return what may start under one lock: machines that activate as one stay together."""
    name = headroom.shared_field(picked[0]) if picked else ""
    groups: dict[object, list[Attempt]] = {}
    for attempt in picked:
        key = getattr(attempt.machine, name) if name else attempt.pk
        groups.setdefault(key, []).append(attempt)
    first: list[list[Attempt]] = []
    for group in groups.values():
        if first and sum(map(len, first)) + len(group) > _MOST_UNDER_ONE_LOCK:
            break
        first.append(sorted(group, key=lambda attempt: attempt.machine_id))
    return first


def _start_together(group: list[Attempt], *, rollout: Rollout, now: datetime) -> int:
    """Start all of these or, where another rollout or a person was faster with one, none."""
    try:
        with transaction.atomic():
            for attempt in group:
                _start(attempt, rollout=rollout, now=now)
    except (IntegrityError, IllegalTransition, StaleMachine, StaleRollout):
        return 0  # the rows say what is next
    return len(group)


def _start(attempt: Attempt, *, rollout: Rollout, now: datetime) -> None:
    move_attempt(
        attempt,
        AttemptStatus.DRAINING,
        now=now,
        started_at=attempt.started_at or now,
        due_at=now,
        forecast_at=None,
        deadline_at=now + minutes_of(rollout, "drain_timeout_minutes"),
    )
    fleet.move_machine(
        attempt.machine,
        machine_lifecycle.Trigger.DRAIN,
        actor=rollout.actor,
        now=now,
        reason=f"attempt {attempt.pk}",
    )


def _give_up_waiting(block: Block, *, now: datetime) -> None:
    """Call off attempts whose machine never became available before the deadline of waiting.

    They are no failures of the firmware; the machine keeps its arm (intention to treat). A
    machine that only waits for a cap is not given up.
    """
    unavailable = Attempt.objects.filter(
        block=block,
        status__in=WAITING,
        deadline_at__lte=now,
        machine__may_take_work=False,
    )
    for attempt in unavailable.select_related("machine"):
        move_attempt(
            attempt,
            AttemptStatus.CALLED_OFF,
            now=now,
            detail=_unavailable(attempt),
            finished_at=now,
        )


def _unavailable(attempt: Attempt) -> str:
    """Say what kept a machine until the deadline: its state, or whose cordon."""
    machine = attempt.machine
    cordon = machine.cordons.filter(lifted_at=None).order_by("since", "pk").first()
    if machine.state == State.IN_SERVICE and cordon is not None:
        return f"machine was cordoned by {cordon.owner} until the deadline: {cordon.reason}"[:300]
    return f"machine was {machine.state} until the deadline"


def raise_fence(
    rollout: Rollout, trigger: Trigger, *, cause: Cause, now: datetime, detail: str, **fields: Any
) -> None:
    """Move a rollout so that it starts nothing more: what waits is called off as `detail` says.

    An attempt of an older epoch never starts; those in flight go to their end.
    """
    move(rollout, trigger, cause=cause, now=now, epoch=F("epoch") + 1, **fields)
    call_off_waiting(rollout, now=now, detail=detail)


def call_off_waiting(rollout: Rollout, *, now: datetime, detail: str) -> int:
    """Call off every attempt that has not been started; those in flight go to their end."""
    waiting = Attempt.objects.filter(rollout=rollout, status__in=WAITING)
    return move_attempts(waiting, AttemptStatus.CALLED_OFF, now=now, detail=detail, finished_at=now)
