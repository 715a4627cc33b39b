"""Read back, mend what took in part, and look again: a later boot may fall back.

Success is a version read back several times after the activation, never the installer's word.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from fleet import lifecycle as machine_lifecycle
from fleet import services as fleet
from fleet.adapters import Reading, Report
from fleet.lifecycle import State
from fleet.models import FirmwareBundle
from rollouts import headroom, planning
from rollouts.lifecycle import AttemptStatus, Status
from rollouts.models import Assignment, Attempt, Rollout
from rollouts.services.attempts import doors, readback
from rollouts.services.attempts.ends import POLL, fail, look_again, release, wait, wait_or_fail
from rollouts.services.attempts.gates import open_gate
from rollouts.services.attempts.installs import begin_leg
from rollouts.services.attempts.rows import (
    has_machine,
    is_overdue,
    may_write,
    mended,
    move_machine,
    record_readings,
    targets_of,
    write_steps,
    wrong_in,
    wrong_of,
)
from rollouts.services.records import lock, minutes_of, move_attempt

_OnPartial = FirmwareBundle.OnPartial


def verify(attempt: Attempt, now: datetime) -> bool:
    """Read the versions back until they have been right often enough, by every witness."""
    readings = doors.read_versions(attempt, now=now)
    if not readings:
        return wait_or_fail(
            attempt, AttemptStatus.NEVER_RETURNED, now, detail="it answered once, then no more"
        )
    record_readings(attempt, readings, now)
    if wrong := wrong_in(attempt, readings):
        return _on_wrong(attempt, wrong, readings, now)
    if silent := readback.gone_silent(readings, before=attempt.steps.get("before", ())):
        detail = f"came back without {', '.join(silent)}"
        return wait_or_fail(attempt, AttemptStatus.DEGRADED, now, detail=detail, readings=0)
    if attempt.readings + 1 < attempt.rollout.plan["read_backs"]:
        return wait(attempt, now, readings=F("readings") + 1)
    return _end_well(attempt, readings, now)


def _on_wrong(
    attempt: Attempt, wrong: Mapping[int, str], readings: Sequence[Reading], now: datetime
) -> bool:
    """Wait for what is not right to become so; at the deadline the bundle says what then."""
    detail = f"runs {', '.join(wrong.values())}"
    if not is_overdue(attempt, now):
        return wait(attempt, now, readings=0)
    if attempt.steps.get("mending"):
        return fail(attempt, AttemptStatus.PARTIAL, now, detail=f"{mended(attempt)}; {detail}")
    if len(wrong) == len(attempt.targets):
        return fail(attempt, AttemptStatus.WRONG_VERSION, now, detail=detail)
    return _mend(attempt, wrong, readings, now, detail=detail)


@transaction.atomic
def _mend(
    attempt: Attempt,
    wrong: Mapping[int, str],
    readings: Sequence[Reading],
    now: datetime,
    *,
    detail: str,
) -> bool:
    """Finish or revert, once, what took in part; or leave it to the diagnosis.

    Writing goes on only while the rollout runs. However it ends, the attempt counts as partial.
    """
    rollout = lock(attempt.rollout, *Status)
    rule = attempt.rollout.bundle.on_partial
    is_allowed = may_write(attempt, rollout) and has_machine(attempt)
    place = planning.Place(site=attempt.machine.site, pool=attempt.machine.pool)
    is_allowed = is_allowed and headroom.gate_of(rollout, place, now=now).is_open
    if rule == _OnPartial.QUARANTINE or attempt.rollout.kind != Rollout.Kind.UPDATE:
        return fail(attempt, AttemptStatus.PARTIAL, now, detail=detail)
    again = targets_of(attempt) if rule == _OnPartial.FINISH else _targets_before(attempt)
    if not is_allowed or again is None:
        why = "nothing is known to revert to" if is_allowed else "nothing may be written any more"
        return fail(attempt, AttemptStatus.PARTIAL, now, detail=f"{detail}; {why}")
    done = [at for at in range(len(again)) if at not in wrong_of(attempt, again, readings)]
    steps = {
        **attempt.steps,
        "mending": rule,
        "install_by": (now + minutes_of(rollout, "install_timeout_minutes")).isoformat(),
        "partial": detail,
        "instead": again,
        "staged": done,
        "activated": done,
        "committed": done,
    }
    write_steps(attempt, steps)
    return begin_leg(attempt, readings, now, detail=f"partial: {detail}; the bundle says {rule}")


def _targets_before(attempt: Attempt) -> list[dict[str, Any]] | None:
    place = Assignment.objects.filter(rollout=attempt.rollout, machine=attempt.machine).first()
    return readback.before_targets(attempt.targets, place.previous_versions) if place else None


def _end_well(attempt: Attempt, readings: Sequence[Reading], now: datetime) -> bool:
    """Give the machine back on what was read; its release is the next step's, due at once.

    One that took in part first ends as partial all the same, though it works again.
    """
    is_mended = bool(attempt.steps.get("mending"))
    status = AttemptStatus.PARTIAL if is_mended else AttemptStatus.SUCCEEDED
    what = "previous" if attempt.steps.get("mending") == _OnPartial.REVERT else "intended"
    gate = f"firmware gate: attempt {attempt.pk}, {what} versions read back"
    _compare_snapshot(attempt, now)
    with transaction.atomic():
        move_attempt(
            attempt,
            status,
            now=now,
            detail=f"{mended(attempt)} and took: it runs the {what} versions" if is_mended else "",
            readings=attempt.readings + 1,
            finished_at=now,
            deadline_at=None,
            due_at=now,
        )
        if attempt.machine.state == State.VERIFYING:
            record = open_gate(attempt, readings, what=what, now=now)
            returned = machine_lifecycle.Trigger.RETURN
            move_machine(attempt, returned, now, gate=gate, gate_record=record)
    return True


def _compare_snapshot(attempt: Attempt, now: datetime) -> None:
    """Hold back the BMC's telemetry if it does not show what it showed before its update."""
    before = attempt.steps.get("snapshot")
    if before is None:
        return
    fleet.hold_telemetry(
        attempt.machine,
        before=before,
        shown=doors.snapshot(attempt, now=now),
        now=now,
        evidence={"attempt": attempt.pk},
    )


def recheck(attempt: Attempt, now: datetime) -> bool:
    """Read the versions again while the rollout is open: a later boot may fall back."""
    if not release(attempt, now):
        return False
    interval = timedelta(hours=attempt.rollout.plan["recheck_hours"])
    if attempt.finished_at is not None and now < attempt.finished_at + interval:
        return look_again(attempt, attempt.finished_at + interval)
    if attempt.rollout.status != Status.RUNNING:
        # Others may be taking it back; only an open rollout asks again later.
        is_over = attempt.rollout.finished_at is not None
        return look_again(attempt, None if is_over else now + interval)
    readings = doors.read_versions(attempt, now=now)
    wrong = wrong_in(attempt, readings) if readings else {}
    if not wrong:
        return look_again(attempt, now + interval)
    record_readings(attempt, readings, now)
    return _fall_back(attempt, f"runs {', '.join(wrong.values())} again", now)


def _fall_back(attempt: Attempt, detail: str, now: datetime) -> bool:
    """Take a machine that left the bundle by itself out of service; it is drained first."""
    fault = {
        "machine": attempt.machine.name,
        "time": now,
        "signature": "boot.not_activated",
        "source_key": f"attempt-{attempt.pk}",
    }
    with transaction.atomic():
        move_attempt(
            attempt,
            AttemptStatus.FELL_BACK,
            now=now,
            detail=detail,
            due_at=now,
            deadline_at=now + minutes_of(attempt.rollout, "drain_timeout_minutes"),
        )
        fleet.record(
            [Report("fault", fault)], source="coalmine", key=f"fell-back-{attempt.pk}", now=now
        )
        if attempt.machine.state == State.IN_SERVICE:
            reason = f"attempt {attempt.pk}: {AttemptStatus.FELL_BACK}"
            move_machine(attempt, machine_lifecycle.Trigger.DRAIN, now, reason=reason)
    return True


def take_out(attempt: Attempt, now: datetime) -> bool:
    """Send a machine that fell back to diagnosis once its work has ended, or at the deadline."""
    if attempt.machine.state != State.DRAINING:
        return look_again(attempt, None)  # somebody has taken it
    occupancy = doors.drain(attempt, now=now)
    if not occupancy.is_idle and not is_overdue(attempt, now):
        return wait(attempt, now, due=max(occupancy.until or now, now + POLL))
    reason = f"attempt {attempt.pk}: {attempt.status}"
    move_machine(attempt, machine_lifecycle.Trigger.TAKE_OUT, now, reason=reason)
    return look_again(attempt, None)
