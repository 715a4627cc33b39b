"""Stage, activate, commit: an attempt's images, leg by leg, in the bundle's order.

Each step reads the attempt's row, asks one adapter (outside any transaction), and records what
follows, so it may be repeated, late or lost. Images go in legs that share an activation
(`planning.legs`); each image has its own time.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.db import transaction

from fleet import lifecycle as machine_lifecycle
from fleet import services as fleet
from fleet.adapters import Phase, Progress, Reading, Step
from rollouts import planning
from rollouts.lifecycle import AttemptStatus, Status
from rollouts.models import Assignment, Attempt
from rollouts.services.attempts import doors, readback
from rollouts.services.attempts.ends import (
    call_off_taken,
    fail,
    return_untouched,
    wait,
    wait_or_fail,
)
from rollouts.services.attempts.rows import (
    done_so_far,
    has_machine,
    images_at,
    is_activated,
    is_overdue,
    mark,
    may_write,
    move_machine,
    present_leg,
    record_readings,
    return_by,
    step_deadline,
    write_steps,
    wrong_in,
)
from rollouts.services.records import lock, minutes_of, move_attempt


@transaction.atomic
def begin_staging(
    attempt: Attempt, readings: Sequence[Reading], seen: dict[str, Any] | None, now: datetime
) -> bool:
    """Pass the fence, in one transaction with its last look at whether it has fallen."""
    rollout = lock(attempt.rollout, *Status)
    if not may_write(attempt, rollout):
        return return_untouched(attempt, now, detail=f"the rollout was {rollout.status}")
    remember(attempt, readings, seen, now=now)
    move_machine(attempt, machine_lifecycle.Trigger.START_UPDATE, now)
    return begin_leg(attempt, readings, now)


def begin_leg(
    attempt: Attempt, readings: Sequence[Reading], now: datetime, *, detail: str = ""
) -> bool:
    """Go on to the first leg that is not committed; one time of install runs for all legs."""
    install_by = now + minutes_of(attempt.rollout, "install_timeout_minutes")
    attempt.steps = {"install_by": install_by.isoformat(), **attempt.steps}  # for all legs
    move_attempt(
        attempt,
        AttemptStatus.STAGING,
        now=now,
        detail=detail,
        boot_id_before=readback.boot_id(readings),
        steps=attempt.steps,
        forecast_at=None,
        deadline_at=step_deadline(attempt, present_leg(attempt), now),
        due_at=now,
    )
    return True


def remember(
    attempt: Attempt, readings: Sequence[Reading], seen: dict[str, Any] | None, *, now: datetime
) -> None:
    """Record what runs before the update; the roll back goes to exactly these versions."""
    record_readings(attempt, readings, now)
    Assignment.objects.filter(
        rollout=attempt.rollout, machine=attempt.machine, previous_versions={}
    ).update(previous_versions=readback.versions_by_part(readings))
    if "before" not in attempt.steps:
        before = {"before": readback.answering(readings), "snapshot": seen}
        write_steps(attempt, {**attempt.steps, **before})


def stage(attempt: Attempt, now: datetime) -> bool:
    """Have each image of the present leg written, in order; each has its own time.

    A machine that somebody has taken meanwhile gets no order that it has not got already.
    """
    leg = present_leg(attempt)
    for position in leg:
        if position in done_so_far(attempt, "staged"):
            continue
        answer = ask(attempt, Step.STAGE, [position], now)
        if answer is None or answer.phase is not Phase.DONE:
            return _not_done(attempt, answer, now, refusal=AttemptStatus.REJECTED)
        mark(attempt, "staged", [position], deadline_at=step_deadline(attempt, leg, now))
    if planning.needs_boot(images_at(attempt, leg)):
        record_readings(attempt, doors.read_versions(attempt, now=now), now)
    deadline = step_deadline(attempt, leg, now)
    move_attempt(attempt, AttemptStatus.ACTIVATING, now=now, due_at=now, deadline_at=deadline)
    return True


def activate(attempt: Attempt, now: datetime) -> bool:
    """Activate the leg; where that boots the host, only a new boot id shows that it did."""
    leg = present_leg(attempt)
    if is_activated(attempt, leg):
        return _commit(attempt, (), now)
    answer = ask(attempt, Step.ACTIVATE, leg, now)
    if answer is None:
        if not is_overdue(attempt, now):
            return wait(attempt, now)
        # The installer is silent: the machine itself has to tell whether it came back.
        answer = Progress(Phase.UNREACHABLE, "the installer did not answer before the deadline")
    is_under_way = answer.phase in (Phase.AWAITING_REBOOT, Phase.UNREACHABLE, Phase.DONE)
    if is_under_way and planning.needs_boot(images_at(attempt, leg)):
        move_attempt(
            attempt,
            AttemptStatus.AWAITING_REBOOT,
            now=now,
            detail=answer.detail,
            due_at=now,
            deadline_at=return_by(attempt, leg, now),
        )
        return True
    if answer.phase is not Phase.DONE:
        return _not_done(attempt, answer, now, refusal=AttemptStatus.FAILED)
    mark(attempt, "activated", leg)
    return _commit(attempt, (), now)


def await_reboot(attempt: Attempt, now: datetime) -> bool:
    """Wait for the machine under a new boot id."""
    readings = doors.read_versions(attempt, now=now)
    if readings and is_activated(attempt, present_leg(attempt)):
        return _commit(attempt, readings, now)
    if readings and readback.boot_id(readings) != attempt.boot_id_before:
        mark(attempt, "activated", present_leg(attempt))
        return _commit(attempt, readings, now)
    if readings:
        # It answers, but it has not booted since: neither a success nor gone for ever.
        return wait_or_fail(
            attempt, AttemptStatus.TIMED_OUT, now, detail="it did not reboot before the deadline"
        )
    return wait_or_fail(
        attempt, AttemptStatus.NEVER_RETURNED, now, detail="it has not answered since its reboot"
    )


def _commit(attempt: Attempt, readings: Sequence[Reading], now: datetime) -> bool:
    """Make the leg's images lasting, then go on to the next leg, or read everything back."""
    leg = present_leg(attempt)
    if not set(done_so_far(attempt, "committed")).issuperset(leg):
        answer = ask(attempt, Step.COMMIT, leg, now)
        if answer is None or answer.phase not in (Phase.DONE, Phase.UNKNOWN):
            return _not_done(attempt, answer, now, refusal=AttemptStatus.FAILED)
        mark(attempt, "committed", leg)
    if present_leg(attempt) == leg:
        return _begin_verifying(attempt, now)
    readings = readings or doors.read_versions(attempt, now=now)
    if not readings:
        return wait_or_fail(
            attempt, AttemptStatus.NEVER_RETURNED, now, detail="it does not answer between its legs"
        )
    record_readings(attempt, readings, now)
    if set(leg) & set(wrong_in(attempt, readings)):
        return _begin_verifying(attempt, now)  # what rests on this leg is not put on top of it
    return begin_leg(attempt, readings, now)


def ask(attempt: Attempt, step: Step, positions: Sequence[int], now: datetime) -> Progress | None:
    """Order a step for these images, once however often it is asked; None is silence."""
    return doors.apply(
        attempt,
        step,
        images_at(attempt, positions),
        part=f"{attempt.steps.get('mending', 'install')}.{positions[0]}",
        is_ours=has_machine(attempt),
        now=now,
    )


def _not_done(
    attempt: Attempt, answer: Progress | None, now: datetime, *, refusal: AttemptStatus
) -> bool:
    """Wait for a step, or end the attempt in the class that its answer or its silence means."""
    if answer is None:
        is_ours = has_machine(attempt)
        status = AttemptStatus.TIMED_OUT if is_ours else AttemptStatus.UNKNOWN
        words = "the installer did not answer"
        detail = words if is_ours else f"somebody took the machine, and {words}"
        return wait_or_fail(attempt, status, now, detail=detail)
    if answer.phase is Phase.UNKNOWN:
        return call_off_taken(attempt, now)
    if answer.phase is Phase.REJECTED:
        return fail(attempt, refusal, now, detail=answer.detail)
    if answer.phase is Phase.FAILED:
        return fail(attempt, AttemptStatus.FAILED, now, detail=answer.detail)
    return wait_or_fail(attempt, AttemptStatus.TIMED_OUT, now, detail=answer.detail or answer.phase)


def _begin_verifying(attempt: Attempt, now: datetime) -> bool:
    with transaction.atomic():
        move_machine(attempt, machine_lifecycle.Trigger.VERIFY, now)
        move_attempt(
            attempt,
            AttemptStatus.VERIFYING,
            now=now,
            readings=0,
            due_at=now,
            deadline_at=now + minutes_of(attempt.rollout, "return_timeout_minutes"),
        )
    return True


def _touches_bmc(attempt: Attempt) -> bool:
    return any(target["kind"] == fleet.BMC for target in attempt.targets)


def take_snapshot(attempt: Attempt, now: datetime) -> dict[str, Any] | None:
    """Return what the BMC shows before its update; None if it is not updated or does not say."""
    if "before" in attempt.steps or not _touches_bmc(attempt):
        return None
    seen = doors.snapshot(attempt, now=now)
    return None if seen is None else asdict(seen)
