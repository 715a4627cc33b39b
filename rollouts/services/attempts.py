"""One try on one machine, step by step: drain, stage, activate, read back, return.

Each step reads the attempt's row, asks one adapter (outside any transaction), and records what
follows, so it may be repeated, late or lost. Success is a version read back several times after
the activation, never the installer's word. Every step has a deadline; silence counts.
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Count, F, Q
from django.utils import timezone

from fleet import adapters
from fleet import lifecycle as machine_lifecycle
from fleet import services as fleet
from fleet.adapters import Phase, Reading, Target
from fleet.errors import StaleMachine
from fleet.models import Machine
from rollouts import planning
from rollouts.errors import StaleRollout
from rollouts.lifecycle import IN_FLIGHT, WAITING, AttemptStatus, Status
from rollouts.models import Action, Assignment, Attempt, Block, Decision, Order, Rollout
from rollouts.services.records import move_attempt

#: Wall time after which a step whose worker died is taken over.
LEASE = timedelta(seconds=120)
#: Between two looks at a machine that is being worked on (by the clock).
POLL = timedelta(minutes=1)
#: Most waiting attempts that one step considers.
_MOST_AT_ONCE = 1000
#: Statuses of a rollout in which an attempt may start.
STARTABLE = (Status.RUNNING, Status.ROLLING_BACK)


# --- queueing and starting -------------------------------------------------------------------


@transaction.atomic
def queue(
    block: Block,
    *,
    targets: Mapping[int, list[dict[str, str]]],
    kind: Action.Kind,
    cause: Decision | Order | None,
    now: datetime,
) -> int:
    """Queue one attempt per machine of `targets` (machine id → images in order), once."""
    rollout = block.wave.rollout
    known = set(
        Attempt.objects.filter(rollout=rollout, block=block).values_list("machine_id", flat=True)
    )
    created = Attempt.objects.bulk_create(
        [
            Attempt(
                rollout=rollout,
                wave=block.wave,
                block=block,
                machine_id=machine,
                epoch=rollout.epoch,
                targets=images,
                created_at=now,
                deadline_at=now + _minutes(rollout, "drain_timeout_minutes"),
            )
            for machine, images in targets.items()
            if machine not in known
        ],
        batch_size=500,
    )
    Action.objects.bulk_create(
        [
            Action(
                rollout=rollout,
                machine_id=attempt.machine_id,
                attempt=attempt,
                decision=cause if isinstance(cause, Decision) else None,
                order=cause if isinstance(cause, Order) else None,
                kind=kind,
                at=now,
                recorded_at=timezone.now(),
            )
            for attempt in created
        ],
        batch_size=500,
    )
    return len(created)


def start_waiting(block: Block, *, now: datetime) -> int:
    """Start as many waiting attempts of a block as the caps allow; return how many started.

    The rollout's row is locked while attempts start and a halt has to change that row, so no
    attempt gets a start time after a halt has committed.
    """
    with transaction.atomic():
        rollout = Rollout.objects.select_for_update().get(pk=block.wave.rollout_id)
        if rollout.status not in STARTABLE:
            return 0
        _give_up_waiting(block, now=now)
        if Attempt.objects.filter(
            rollout=rollout, status=AttemptStatus.NEVER_RETURNED, triage=""
        ).exists():
            return 0  # new starts wait until it is known why a machine did not come back
        picked = _pick(rollout, block)
        return sum(_start(attempt, rollout=rollout, now=now) for attempt in picked)


def _pick(rollout: Rollout, block: Block) -> list[Attempt]:
    waiting = list(
        Attempt.objects.filter(
            block=block,
            epoch=rollout.epoch,
            status__in=WAITING,
            machine__state=machine_lifecycle.State.IN_SERVICE,
            machine__may_take_work=True,
        )
        .select_related("machine")
        .order_by("pk")[:_MOST_AT_ONCE]
    )
    if not waiting:
        return []
    chosen = planning.startable(
        [_candidate(attempt.machine) for attempt in waiting],
        in_flight=[
            _candidate(attempt.machine)
            for attempt in Attempt.objects.filter(status__in=IN_FLIGHT).select_related("machine")
        ],
        pools=_pools({attempt.machine.pool for attempt in waiting}),
        caps=planning.Caps.of(rollout.plan["caps"]),
    )
    names = set(chosen.start)
    return [attempt for attempt in waiting if attempt.machine.name in names]


def _candidate(machine: Machine) -> planning.Candidate:
    return planning.Candidate(
        name=machine.name,
        domains={
            "rack": machine.rack,
            "chassis": machine.chassis,
            "power_domain": machine.power_domain,
            "nvlink_domain": machine.nvlink_domain,
            "leaf": machine.leaf,
            "pool": machine.pool,
            "site": machine.site,
        },
    )


def _pools(names: set[str]) -> dict[str, planning.Pool]:
    return {
        name: planning.Pool(size=size, unavailable=size - working)
        for name, size, working in _pool_counts(names)
    }


def _pool_counts(names: Collection[str]) -> Iterable[tuple[str, int, int]]:
    """Yield pool, machines in it and how many of them may take work."""
    return (
        Machine.objects.filter(pool__in=list(names))
        .exclude(state=machine_lifecycle.State.RETIRED)
        .values_list("pool")
        .annotate(size=Count("pk"), working=Count("pk", filter=Q(may_take_work=True)))
        .order_by("pool")
        .values_list("pool", "size", "working")
    )


def _start(attempt: Attempt, *, rollout: Rollout, now: datetime) -> int:
    try:
        with transaction.atomic():
            move_attempt(
                attempt,
                AttemptStatus.DRAINING,
                now=now,
                started_at=attempt.started_at or now,
                due_at=now,
                deadline_at=now + _minutes(rollout, "drain_timeout_minutes"),
            )
            fleet.move_machine(
                attempt.machine,
                machine_lifecycle.Trigger.DRAIN,
                actor=_actor(rollout),
                now=now,
                reason=f"attempt {attempt.pk}",
            )
    except (IntegrityError, StaleMachine, StaleRollout):
        return 0  # another rollout or a person was faster; the row says what is next
    return 1


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
            detail=f"machine was {attempt.machine.state} until the deadline",
            finished_at=now,
            due_at=None,
        )


def call_off_waiting(rollout: Rollout, *, now: datetime, detail: str) -> int:
    """Call off every attempt that has not been started; those in flight go to their end."""
    waiting = Attempt.objects.filter(rollout=rollout, status__in=WAITING)
    count = 0
    for attempt in waiting.iterator(chunk_size=500):
        move_attempt(
            attempt,
            AttemptStatus.CALLED_OFF,
            now=now,
            detail=detail,
            finished_at=now,
            due_at=None,
        )
        count += 1
    return count


# --- stepping --------------------------------------------------------------------------------


def advance(attempt_ids: Sequence[int], *, now: datetime) -> None:
    """Take each due attempt one or more steps on. Safe to repeat: only a leased row is touched."""
    for attempt in _lease(attempt_ids, now=now):
        try:
            while _STEPS[AttemptStatus(attempt.status)](attempt, now):
                pass
        except (StaleRollout, StaleMachine):
            continue  # somebody else moved it; the row says what is next
        finally:
            Attempt.objects.filter(pk=attempt.pk, lease_token=attempt.lease_token).update(
                leased_until=None, lease_token=""
            )


def _lease(attempt_ids: Sequence[int], *, now: datetime) -> list[Attempt]:
    token = uuid.uuid4().hex
    wall = timezone.now()
    Attempt.objects.filter(
        Q(leased_until__isnull=True) | Q(leased_until__lt=wall),
        pk__in=attempt_ids,
        due_at__lte=now,
    ).update(lease_token=token, leased_until=wall + LEASE)
    return list(
        Attempt.objects.filter(lease_token=token).select_related("machine", "rollout", "wave")
    )


def _drain(attempt: Attempt, now: datetime) -> bool:
    scheduler = adapters.scheduler()
    name = attempt.machine.name
    scheduler.drain(name, reason=_actor(attempt.rollout), now=now)
    if not scheduler.is_idle(name, now=now):
        if not _is_overdue(attempt, now):
            return _wait(attempt, now)
        return _return_untouched(attempt, now, detail="its work did not end before the deadline")
    if _is_stopped(attempt):
        return _return_untouched(attempt, now, detail="the rollout was halted before it began")
    readings = adapters.installer().read_versions(name, now=now)
    if not readings:
        if not _is_overdue(attempt, now):
            return _wait(attempt, now)
        return _fail(attempt, AttemptStatus.UNKNOWN, now, detail="no versions could be read")
    with transaction.atomic():
        _remember_versions(attempt, readings, now=now)
        _move_machine(attempt, machine_lifecycle.Trigger.START_UPDATE, now)
        move_attempt(
            attempt,
            AttemptStatus.STAGING,
            now=now,
            boot_id_before=_boot_id(readings),
            deadline_at=now + _minutes(attempt.rollout, "install_timeout_minutes"),
            due_at=now,
        )
    return True


def _is_stopped(attempt: Attempt) -> bool:
    """Tell whether the fence fell: nothing has been written yet, so the machine may go back."""
    return not Rollout.objects.filter(
        pk=attempt.rollout_id, epoch=attempt.epoch, status__in=STARTABLE
    ).exists()


def _remember_versions(attempt: Attempt, readings: Sequence[Reading], *, now: datetime) -> None:
    """Record what runs before the update; the roll back goes to exactly these versions."""
    fleet.record_readings(attempt.machine, readings, now=now, evidence={"attempt": attempt.pk})
    Assignment.objects.filter(
        rollout=attempt.rollout, machine=attempt.machine, previous_versions={}
    ).update(previous_versions={r.kind: r.version for r in readings if r.stage == "active"})


def _stage(attempt: Attempt, now: datetime) -> bool:
    """Order the install (idempotent by key) and wait until the images are written."""
    answer = adapters.installer().apply(
        attempt.machine.name,
        [Target(**target) for target in attempt.targets],
        key=f"attempt-{attempt.pk}",
        now=now,
    )
    if answer.phase is Phase.REJECTED:
        return _fail(attempt, AttemptStatus.REJECTED, now, detail=answer.detail)
    if answer.phase is Phase.FAILED:
        return _fail(attempt, AttemptStatus.FAILED, now, detail=answer.detail)
    if answer.phase in (Phase.STAGING, Phase.UNREACHABLE):
        return _wait_or_fail(attempt, AttemptStatus.TIMED_OUT, now, detail=answer.detail)
    move_attempt(attempt, AttemptStatus.ACTIVATING, now=now, due_at=now)
    return True


def _activate(attempt: Attempt, now: datetime) -> bool:
    answer = adapters.installer().progress(
        attempt.machine.name, key=f"attempt-{attempt.pk}", now=now
    )
    if answer.phase in (Phase.REJECTED, Phase.FAILED):
        return _fail(attempt, AttemptStatus.FAILED, now, detail=answer.detail)
    is_over = answer.phase in (Phase.AWAITING_REBOOT, Phase.UNREACHABLE, Phase.DONE)
    if is_over and _needs_boot(attempt):
        # Even where the installer says "done": only a new boot id shows that it was booted.
        move_attempt(
            attempt,
            AttemptStatus.AWAITING_REBOOT,
            now=now,
            due_at=now,
            deadline_at=now + _minutes(attempt.rollout, "return_timeout_minutes"),
        )
        return True
    if answer.phase is Phase.DONE:
        return _begin_verifying(attempt, now)
    return _wait_or_fail(attempt, AttemptStatus.TIMED_OUT, now, detail=answer.detail)


def _await_reboot(attempt: Attempt, now: datetime) -> bool:
    readings = adapters.installer().read_versions(attempt.machine.name, now=now)
    if readings and _boot_id(readings) != attempt.boot_id_before:
        return _begin_verifying(attempt, now)
    if readings:
        # It answers, but it has not booted since: neither a success nor gone for ever.
        return _wait_or_fail(
            attempt, AttemptStatus.TIMED_OUT, now, detail="it did not reboot before the deadline"
        )
    return _wait_or_fail(
        attempt, AttemptStatus.NEVER_RETURNED, now, detail="it has not answered since its reboot"
    )


def _begin_verifying(attempt: Attempt, now: datetime) -> bool:
    with transaction.atomic():
        _move_machine(attempt, machine_lifecycle.Trigger.VERIFY, now)
        move_attempt(
            attempt,
            AttemptStatus.VERIFYING,
            now=now,
            readings=0,
            due_at=now,
            deadline_at=now + _minutes(attempt.rollout, "return_timeout_minutes"),
        )
    return True


def _verify(attempt: Attempt, now: datetime) -> bool:
    readings = adapters.installer().read_versions(attempt.machine.name, now=now)
    if not readings:
        return _wait_or_fail(
            attempt, AttemptStatus.NEVER_RETURNED, now, detail="it answered once, then no more"
        )
    fleet.record_readings(attempt.machine, readings, now=now, evidence={"attempt": attempt.pk})
    wrong = _wrong_versions(attempt, readings)
    if wrong:
        status = (
            AttemptStatus.PARTIAL
            if len(wrong) < len(attempt.targets)
            else AttemptStatus.WRONG_VERSION
        )
        return _wait_or_fail(attempt, status, now, detail=f"runs {', '.join(wrong)}", readings=0)
    if attempt.readings + 1 < attempt.rollout.plan["read_backs"]:
        return _wait(attempt, now, readings=F("readings") + 1)
    return _succeed(attempt, now)


def _succeed(attempt: Attempt, now: datetime) -> bool:
    gate = f"firmware gate: attempt {attempt.pk}, intended versions read back"
    with transaction.atomic():
        move_attempt(
            attempt,
            AttemptStatus.SUCCEEDED,
            now=now,
            readings=attempt.readings + 1,
            finished_at=now,
            deadline_at=None,
            due_at=now + timedelta(hours=attempt.rollout.plan["recheck_hours"]),
        )
        _move_machine(attempt, machine_lifecycle.Trigger.RETURN, now, gate=gate)
    adapters.scheduler().release(attempt.machine.name, reason=_actor(attempt.rollout), now=now)
    return False


def _recheck(attempt: Attempt, now: datetime) -> bool:
    """Read the versions again while the rollout is open: a later boot may fall back."""
    again = now + timedelta(hours=attempt.rollout.plan["recheck_hours"])
    if attempt.rollout.status != Status.RUNNING:
        # Others may be taking it back; only an open rollout asks again later.
        is_over = attempt.rollout.finished_at is not None
        Attempt.objects.filter(pk=attempt.pk).update(due_at=None if is_over else again)
        return False
    readings = adapters.installer().read_versions(attempt.machine.name, now=now)
    wrong = _wrong_versions(attempt, readings) if readings else []
    if not wrong:
        Attempt.objects.filter(pk=attempt.pk).update(due_at=again)
        return False
    fleet.record_readings(attempt.machine, readings, now=now, evidence={"attempt": attempt.pk})
    move_attempt(
        attempt,
        AttemptStatus.FELL_BACK,
        now=now,
        detail=f"runs {', '.join(wrong)} again",
        due_at=None,
    )
    return False


_STEPS: Mapping[AttemptStatus, Callable[[Attempt, datetime], bool]] = {
    AttemptStatus.DRAINING: _drain,
    AttemptStatus.STAGING: _stage,
    AttemptStatus.ACTIVATING: _activate,
    AttemptStatus.AWAITING_REBOOT: _await_reboot,
    AttemptStatus.VERIFYING: _verify,
    AttemptStatus.SUCCEEDED: _recheck,
}


def _needs_boot(attempt: Attempt) -> bool:
    return any(target.get("activation", "reboot") != "none" for target in attempt.targets)


# --- small steps -----------------------------------------------------------------------------


def _wrong_versions(attempt: Attempt, readings: Sequence[Reading]) -> list[str]:
    """List the targets that some witness contradicts or none confirms; all must agree."""
    wrong = []
    for target in attempt.targets:
        seen = {r.version for r in readings if r.kind == target["kind"] and r.stage == "active"}
        if seen != {target["version"]}:
            shown = " and ".join(sorted(seen)) or "nothing readable"
            wrong.append(f"{target['kind']} {shown} instead of {target['version']}")
    return wrong


def _boot_id(readings: Sequence[Reading]) -> str:
    return next((reading.boot_id for reading in readings if reading.boot_id), "")


def _is_overdue(attempt: Attempt, now: datetime) -> bool:
    return attempt.deadline_at is not None and now >= attempt.deadline_at


def _wait(attempt: Attempt, now: datetime, **fields: Any) -> bool:
    due = now + POLL
    if attempt.deadline_at is not None and now < attempt.deadline_at:
        due = min(due, attempt.deadline_at)
    Attempt.objects.filter(pk=attempt.pk, status=attempt.status).update(due_at=due, **fields)
    return False


def _wait_or_fail(
    attempt: Attempt, status: AttemptStatus, now: datetime, *, detail: str, **fields: Any
) -> bool:
    if not _is_overdue(attempt, now):
        return _wait(attempt, now, **fields)
    return _fail(attempt, status, now, detail=detail)


def _fail(attempt: Attempt, status: AttemptStatus, now: datetime, *, detail: str) -> bool:
    """End an attempt in a failure class; the machine goes to diagnosis, never back to work."""
    with transaction.atomic():
        move_attempt(
            attempt, status, now=now, detail=detail, finished_at=now, deadline_at=None, due_at=None
        )
        trigger = (
            machine_lifecycle.Trigger.TAKE_OUT
            if attempt.machine.state == machine_lifecycle.State.DRAINING
            else machine_lifecycle.Trigger.FAIL_UPDATE
        )
        _move_machine(attempt, trigger, now, reason=f"attempt {attempt.pk}: {status}")
    return False


def _return_untouched(attempt: Attempt, now: datetime, *, detail: str) -> bool:
    """Give a drained machine back: nothing was written to it."""
    began = attempt.started_at or attempt.created_at
    give_up_at = began + 2 * _minutes(attempt.rollout, "drain_timeout_minutes")
    is_over = now >= give_up_at or _is_stopped(attempt)
    with transaction.atomic():
        move_attempt(
            attempt,
            AttemptStatus.CALLED_OFF if is_over else AttemptStatus.DEFERRED,
            now=now,
            detail=detail,
            due_at=None,
            deadline_at=give_up_at,
            finished_at=now if is_over else None,
        )
        _move_machine(attempt, machine_lifecycle.Trigger.CALL_OFF, now, gate="untouched")
    adapters.scheduler().release(attempt.machine.name, reason=_actor(attempt.rollout), now=now)
    return False


def _move_machine(
    attempt: Attempt,
    trigger: machine_lifecycle.Trigger,
    now: datetime,
    *,
    gate: str = "",
    reason: str = "",
) -> None:
    fleet.move_machine(
        attempt.machine,
        trigger,
        actor=_actor(attempt.rollout),
        now=now,
        gate=gate,
        reason=reason or f"attempt {attempt.pk}",
    )


def _actor(rollout: Rollout) -> str:
    return f"rollout:{rollout.pk}"


def _minutes(rollout: Rollout, key: str) -> timedelta:
    return timedelta(minutes=rollout.plan[key])
