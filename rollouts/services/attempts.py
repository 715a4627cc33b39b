"""One try on one machine, step by step: drain, stage, activate, read back, return.

Each step reads the attempt's row, asks one adapter (outside any transaction), and records what
follows, so it may be repeated, late or lost. Success is a version read back several times after
the activation, never the installer's word. Every step has a deadline; silence counts.
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from fleet import leases
from fleet import lifecycle as machine_lifecycle
from fleet import services as fleet
from fleet.adapters import Phase, Progress, Reading
from fleet.errors import StaleMachine
from fleet.leases import LEASE
from fleet.models import FirmwareRecord
from fleet.versions import is_same
from rollouts.errors import StaleRollout
from rollouts.lifecycle import IN_FLIGHT, AttemptStatus, Status
from rollouts.models import Assignment, Attempt, Rollout
from rollouts.services import doors
from rollouts.services.records import lock, minutes_of, move_attempt

logger = logging.getLogger(__name__)

#: Between two looks at a machine that is being worked on (by the clock).
POLL = timedelta(minutes=1)
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
        leases.free(wall=timezone.now()), pk__in=attempt_ids, due_at__lte=now
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
        if was_abandoned and _is_overdue(attempt, now):
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
    token, wall = uuid.uuid4().hex, timezone.now()
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
    if attempt.status not in IN_FLIGHT or not _is_overdue(attempt, now):
        due = Attempt.objects.filter(pk=attempt.pk, due_at__lte=now)
        due.update(due_at=now + POLL)
    elif attempt.status == AttemptStatus.DRAINING:
        _return_untouched(attempt, now, detail=detail)
    else:
        _fail(attempt, AttemptStatus.UNKNOWN, now, detail=detail)


def _drain(attempt: Attempt, now: datetime) -> bool:
    """Wait until the machine is idle; nothing is written to it before it leaves this step."""
    if attempt.machine.state != machine_lifecycle.State.DRAINING:
        return _call_off_taken(attempt, now)
    if not _may_write(attempt, attempt.rollout):
        return _return_untouched(attempt, now, detail=f"the rollout was {attempt.rollout.status}")
    if not doors.drain(attempt, now=now):
        if not _is_overdue(attempt, now):
            return _wait(attempt, now)
        return _return_untouched(attempt, now, detail="its work did not end before the deadline")
    readings = doors.read_versions(attempt, now=now)
    if not readings:
        if not _is_overdue(attempt, now):
            return _wait(attempt, now)
        return _fail(attempt, AttemptStatus.UNKNOWN, now, detail="no versions could be read")
    if not _wrong_versions(attempt, readings):
        # Flashed again it would be no evidence of an install, and a risk for nothing.
        detail = "it runs the intended versions already"
        return _return_untouched(attempt, now, detail=detail, is_over=True)
    return _begin_staging(attempt, readings, now)


@transaction.atomic
def _begin_staging(attempt: Attempt, readings: Sequence[Reading], now: datetime) -> bool:
    """Pass the fence, in one transaction with its last look at whether it has fallen."""
    rollout = lock(attempt.rollout, *Status)
    if not _may_write(attempt, rollout):
        return _return_untouched(attempt, now, detail=f"the rollout was {rollout.status}")
    _remember_versions(attempt, readings, now=now)
    _move_machine(attempt, machine_lifecycle.Trigger.START_UPDATE, now)
    move_attempt(
        attempt,
        AttemptStatus.STAGING,
        now=now,
        boot_id_before=_boot_id(readings),
        deadline_at=now + minutes_of(attempt.rollout, "install_timeout_minutes"),
        due_at=now,
    )
    return True


def _may_write(attempt: Attempt, rollout: Rollout) -> bool:
    return rollout.epoch == attempt.epoch and rollout.status == Status.RUNNING


def _may_come_back(attempt: Attempt, rollout: Rollout) -> bool:
    """Tell whether an attempt that is given up now may be started another time."""
    return rollout.epoch == attempt.epoch and rollout.status in (Status.RUNNING, Status.PAUSED)


def _call_off_taken(attempt: Attempt, now: datetime) -> bool:
    """Leave a machine that somebody took before anything was written to it where it is."""
    move_attempt(
        attempt,
        AttemptStatus.CALLED_OFF,
        now=now,
        detail=f"somebody took the machine: it is {attempt.machine.state}",
        finished_at=now,
        deadline_at=None,
        due_at=now,
    )
    return True


def _remember_versions(attempt: Attempt, readings: Sequence[Reading], *, now: datetime) -> None:
    """Record what runs before the update; the roll back goes to exactly these versions."""
    fleet.record_readings(attempt.machine, readings, now=now, evidence={"attempt": attempt.pk})
    Assignment.objects.filter(
        rollout=attempt.rollout, machine=attempt.machine, previous_versions={}
    ).update(previous_versions=_versions_by_part(readings))


def _versions_by_part(readings: Sequence[Reading]) -> dict[str, str]:
    """Return the active version per kind, or per `kind/slot` where a kind's parts differ.

    What witnesses dispute is left out: nobody knows what to go back to.

    Examples
    --------
    >>> nic = [Reading("nic", slot, version, "bmc", "b1") for slot, version in ("a1", "b2")]
    >>> _versions_by_part([*nic, Reading("bmc", "", "7", "bmc", "b1")])
    {'nic/a': '1', 'nic/b': '2', 'bmc': '7'}
    """
    seen: dict[str, dict[str, set[str]]] = {}
    for reading in readings:
        if reading.stage == FirmwareRecord.Stage.ACTIVE:
            slots = seen.setdefault(reading.kind, {})
            slots.setdefault(reading.slot, set()).add(reading.version)
    versions = {}
    for kind, slots in seen.items():
        if len({version for told in slots.values() for version in told}) == 1:
            versions[kind] = next(iter(next(iter(slots.values()))))
            continue
        for slot, told in slots.items():
            if len(told) == 1:
                versions[f"{kind}/{slot}" if slot else kind] = next(iter(told))
    return versions


def _stage(attempt: Attempt, now: datetime) -> bool:
    """Order the install (idempotent by key) and wait until the images are written.

    A machine that somebody has taken meanwhile gets no order that it has not got already.
    """
    is_ours = attempt.machine.state == machine_lifecycle.State.UPDATING
    answer = doors.apply(attempt, now=now) if is_ours else doors.progress(attempt, now=now)
    if answer is None:
        return _wait_or_fail(
            attempt, AttemptStatus.UNKNOWN, now, detail="somebody took it, and it does not answer"
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
    answer = doors.progress(attempt, now=now)
    if answer is None:
        if not _is_overdue(attempt, now):
            return _wait(attempt, now)
        # The installer is silent: the machine itself has to tell whether it came back.
        answer = Progress(Phase.UNREACHABLE, "the installer did not answer before the deadline")
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
            deadline_at=now + minutes_of(attempt.rollout, "return_timeout_minutes"),
        )
        return True
    if answer.phase is Phase.DONE:
        return _begin_verifying(attempt, now)
    return _wait_or_fail(attempt, AttemptStatus.TIMED_OUT, now, detail=answer.detail)


def _await_reboot(attempt: Attempt, now: datetime) -> bool:
    readings = doors.read_versions(attempt, now=now)
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
            deadline_at=now + minutes_of(attempt.rollout, "return_timeout_minutes"),
        )
    return True


def _verify(attempt: Attempt, now: datetime) -> bool:
    readings = doors.read_versions(attempt, now=now)
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
    """End in success and give the machine back; its release is the next step's, due at once."""
    gate = f"firmware gate: attempt {attempt.pk}, intended versions read back"
    with transaction.atomic():
        move_attempt(
            attempt,
            AttemptStatus.SUCCEEDED,
            now=now,
            readings=attempt.readings + 1,
            finished_at=now,
            deadline_at=None,
            due_at=now,
        )
        _move_machine(attempt, machine_lifecycle.Trigger.RETURN, now, gate=gate)
    return True


def _recheck(attempt: Attempt, now: datetime) -> bool:
    """Read the versions again while the rollout is open: a later boot may fall back."""
    if not _release(attempt, now):
        return False
    interval = timedelta(hours=attempt.rollout.plan["recheck_hours"])
    if attempt.finished_at is not None and now < attempt.finished_at + interval:
        return _look_again(attempt, attempt.finished_at + interval)
    if attempt.rollout.status != Status.RUNNING:
        # Others may be taking it back; only an open rollout asks again later.
        is_over = attempt.rollout.finished_at is not None
        return _look_again(attempt, None if is_over else now + interval)
    readings = doors.read_versions(attempt, now=now)
    wrong = _wrong_versions(attempt, readings) if readings else []
    if not wrong:
        return _look_again(attempt, now + interval)
    fleet.record_readings(attempt.machine, readings, now=now, evidence={"attempt": attempt.pk})
    move_attempt(
        attempt,
        AttemptStatus.FELL_BACK,
        now=now,
        detail=f"runs {', '.join(wrong)} again",
        due_at=None,
    )
    return False


def _look_again(attempt: Attempt, at: datetime | None) -> bool:
    Attempt.objects.filter(pk=attempt.pk, status=attempt.status).update(due_at=at)
    return False


def _let_go(attempt: Attempt, now: datetime) -> bool:
    """Lift the drain of an attempt that was given up before anything was written."""
    return _look_again(attempt, None) if _release(attempt, now) else False


def _release(attempt: Attempt, now: datetime) -> bool:
    """Lift the rollout's drain from a machine in service; safe to repeat, and repeated until done.

    A machine out of service keeps its drain: a scheduler must never be given it.
    """
    if attempt.machine.state != machine_lifecycle.State.IN_SERVICE:
        return True
    return doors.release(attempt, now=now) or _wait(attempt, now)


_STEPS: Mapping[AttemptStatus, Callable[[Attempt, datetime], bool]] = {
    AttemptStatus.DRAINING: _drain,
    AttemptStatus.STAGING: _stage,
    AttemptStatus.ACTIVATING: _activate,
    AttemptStatus.AWAITING_REBOOT: _await_reboot,
    AttemptStatus.VERIFYING: _verify,
    AttemptStatus.SUCCEEDED: _recheck,
    AttemptStatus.DEFERRED: _let_go,
    AttemptStatus.CALLED_OFF: _let_go,
}


def _needs_boot(attempt: Attempt) -> bool:
    return any(target.get("activation", "reboot") != "none" for target in attempt.targets)


# --- small steps -----------------------------------------------------------------------------


def _wrong_versions(attempt: Attempt, readings: Sequence[Reading]) -> list[str]:
    """List the targets that some witness contradicts or none confirms; all must agree.

    BMC and host may spell one version in two ways that the image's scheme knows to be the same.
    """
    places = attempt.rollout.bundle.places
    schemes = dict(places.values_list("image__kind", "image__scheme"))
    wrong = []
    for target in attempt.targets:
        kind, wanted = target["kind"], target["version"]
        slot = target.get("slot", "")
        seen = {
            reading.version
            for reading in readings
            if reading.kind == kind
            and reading.stage == FirmwareRecord.Stage.ACTIVE
            and slot in ("", reading.slot)
        }
        if not seen or not all(is_same(one, wanted, scheme=schemes[kind]) for one in seen):
            shown = " and ".join(sorted(seen)) or "nothing readable"
            part = f"{kind} {slot}" if slot else kind
            wrong.append(f"{part} {shown} instead of {wanted}")
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
        for trigger in _TO_DIAGNOSIS.get(machine_lifecycle.State(attempt.machine.state), ()):
            _move_machine(attempt, trigger, now, reason=f"attempt {attempt.pk}: {status}")
    return False


#: The way to diagnosis; a machine that somebody has taken elsewhere stays where it is.
_TO_DIAGNOSIS: Mapping[machine_lifecycle.State, tuple[machine_lifecycle.Trigger, ...]] = {
    machine_lifecycle.State.DRAINING: (machine_lifecycle.Trigger.TAKE_OUT,),
    machine_lifecycle.State.UPDATING: (machine_lifecycle.Trigger.FAIL_UPDATE,),
    machine_lifecycle.State.VERIFYING: (machine_lifecycle.Trigger.FAIL_UPDATE,),
    machine_lifecycle.State.IN_SERVICE: (
        machine_lifecycle.Trigger.DRAIN,
        machine_lifecycle.Trigger.TAKE_OUT,
    ),
}


@transaction.atomic
def _return_untouched(
    attempt: Attempt, now: datetime, *, detail: str, is_over: bool = False
) -> bool:
    """Give a drained machine back: nothing was written to it; its release is due at once."""
    rollout = lock(attempt.rollout, *Status)
    began = attempt.started_at or attempt.created_at
    give_up_at = began + 2 * minutes_of(attempt.rollout, "drain_timeout_minutes")
    is_over = is_over or now >= give_up_at or not _may_come_back(attempt, rollout)
    move_attempt(
        attempt,
        AttemptStatus.CALLED_OFF if is_over else AttemptStatus.DEFERRED,
        now=now,
        detail=detail,
        due_at=now,
        deadline_at=give_up_at,
        finished_at=now if is_over else None,
    )
    _move_machine(attempt, machine_lifecycle.Trigger.CALL_OFF, now, gate="untouched")
    return True


def _move_machine(
    attempt: Attempt,
    trigger: machine_lifecycle.Trigger,
    now: datetime,
    *,
    gate: str = "",
    reason: str = "",
) -> None:
    """Move the machine, unless somebody has taken it out of the rollout's hands.

    The attempt then goes on without it: what was begun is read back, and stays where it was put.
    """
    machine = attempt.machine
    if (machine_lifecycle.State(machine.state), trigger) not in machine_lifecycle.TRANSITIONS:
        logger.info("attempt=%s leaves %s where it is: %s", attempt.pk, machine, machine.state)
        return
    fleet.move_machine(
        machine,
        trigger,
        actor=attempt.rollout.actor,
        now=now,
        gate=gate,
        reason=reason or f"attempt {attempt.pk}",
    )
