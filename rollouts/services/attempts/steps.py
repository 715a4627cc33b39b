"""The steps of one attempt: drain, stage, activate, commit, read back, return.

Each step reads the attempt's row, asks one adapter (outside any transaction), and records what
follows, so it may be repeated, late or lost. Success is a version read back several times after
the activation, never the installer's word. Every step has a deadline; silence counts.

Images go in the bundle's order, in legs that share an activation (`planning.legs`). What has been
done per image stands in `Attempt.steps`: positions `staged`, `activated`, `committed`; what
answered `before`; and, once some images took and others did not, how that is `mending`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from fleet import lifecycle as machine_lifecycle
from fleet import services as fleet
from fleet.adapters import Occupancy, Phase, Progress, Reading, Report, Step
from fleet.lifecycle import State
from fleet.models import Cordon, FirmwareBundle
from rollouts import headroom, planning
from rollouts.lifecycle import AttemptStatus, Status
from rollouts.models import Assignment, Attempt, Rollout
from rollouts.services.attempts import doors, readback
from rollouts.services.records import lock, minutes_of, move_attempt

logger = logging.getLogger(__name__)

#: Between two looks at a machine that is being worked on (by the clock).
POLL = timedelta(minutes=1)
#: Between two looks at a machine whose job has hours to go: it may still end early.
_LONG_POLL = timedelta(minutes=10)
#: An attempt that has waited so long for its machine's jobs is given up, whatever they forecast.
_LONGEST_DEFERRAL = timedelta(days=7)
_OnPartial = FirmwareBundle.OnPartial


# --- drain -----------------------------------------------------------------------------------


def drain(attempt: Attempt, now: datetime) -> bool:
    """Wait until the machine is idle, and its activation domain with it.

    Meanwhile only images are staged that may be, where the plan allows it; nothing is activated
    before the attempt leaves this step.
    """
    if attempt.machine.state != State.DRAINING:
        return _call_off_taken(attempt, now)
    if not _may_write(attempt, attempt.rollout):
        return return_untouched(attempt, now, detail=f"the rollout was {attempt.rollout.status}")
    occupancy = doors.drain(attempt, now=now)
    if occupancy.drained_by:
        return _leave_to_its_owner(attempt, occupancy, now)
    if not occupancy.is_idle:
        return _wait_for_work(attempt, occupancy, now)
    if attempt.drained_at is None:
        Attempt.objects.filter(pk=attempt.pk, status=attempt.status).update(drained_at=now)
        attempt.drained_at = now
    if late := headroom.domain_objection(attempt):
        if not is_overdue(attempt, now):
            return wait(attempt, now, detail=f"idle; of its activation domain {late}")
        return return_untouched(attempt, now, detail=f"of its activation domain {late}")
    readings = doors.read_versions(attempt, now=now)
    if not readings:
        if not is_overdue(attempt, now):
            return wait(attempt, now)
        return fail(attempt, AttemptStatus.UNKNOWN, now, detail="no versions could be read")
    if not _wrong(attempt, readings):
        # Flashed again it would be no evidence of an install, and a risk for nothing.
        detail = "it runs the intended versions already"
        return return_untouched(attempt, now, detail=detail, is_over=True)
    gate = headroom.may_write(attempt, now=now)
    if not gate.is_open:
        return _wait_for_window(attempt, gate, now)
    return _begin_staging(attempt, readings, _snapshot(attempt, now), now)


def _wait_for_window(attempt: Attempt, gate: planning.Gate, now: datetime) -> bool:
    """Stay idle where the plan drains ahead of the window that is to open; else give back."""
    ahead = timedelta(minutes=attempt.rollout.plan.get("drain_ahead_minutes", 0))
    if gate.opens_at is not None and gate.opens_at <= now + ahead:
        forecast = {"due": gate.opens_at, "forecast_at": gate.opens_at}
        return wait(attempt, now, detail=gate.reason[:300], **forecast)
    return return_untouched(attempt, now, detail=gate.reason, not_before=gate.opens_at)


def _leave_to_its_owner(attempt: Attempt, occupancy: Occupancy, now: datetime) -> bool:
    """Give back a machine that somebody else drained; their drain stays, and it is asked later."""
    again = now + minutes_of(attempt.rollout, "drain_timeout_minutes")
    detail = f"drained at the scheduler by {occupancy.drained_by}"
    return return_untouched(attempt, now, detail=detail, not_before=again)


def _wait_for_work(attempt: Attempt, occupancy: Occupancy, now: datetime) -> bool:
    """Stay drained while the work can end in time; else give the machine back until it does.

    A machine whose job outlasts the drain works on, and is drained anew shortly before the end
    that the scheduler forecasts.
    """
    until = occupancy.until
    if until is not None and attempt.deadline_at is not None and until > attempt.deadline_at:
        # Drained before the work ends, so that no other work takes its place.
        again = until - minutes_of(attempt.rollout, "drain_timeout_minutes") / 2
        return return_untouched(attempt, now, detail=_work(occupancy), not_before=again)
    if is_overdue(attempt, now):
        detail = f"its work did not end before the deadline: {_work(occupancy)}"
        return return_untouched(attempt, now, detail=detail)
    is_staging = _stage_online(attempt, now)
    is_far = until is not None and until > now + _LONG_POLL and not is_staging
    due = now + _LONG_POLL if is_far else max(until or now, now + POLL)
    return wait(attempt, now, due=due, forecast_at=until, detail=_work(occupancy))


def _work(occupancy: Occupancy) -> str:
    job = f"job {occupancy.job}" if occupancy.job else "its work"
    whose = f" of {occupancy.owner}" if occupancy.owner else ""
    end = f", expected to end {occupancy.until:%Y-%m-%d %H:%M} UTC" if occupancy.until else ""
    return f"waits for {job}{whose}{end}"


def _stage_online(attempt: Attempt, now: datetime) -> bool:
    """Write what may be written while the machine works; tell whether there is more to do.

    What a BMC refuses now it will refuse again once the machine is idle, and the attempt fails
    then: nobody's job is cut for it.
    """
    if not attempt.rollout.plan["stage_while_busy"]:
        return False
    targets = _targets(attempt)
    waiting = [at for at in planning.online_prefix(targets) if at not in _done(attempt, "staged")]
    if not headroom.may_write(attempt, now=now).is_open:
        return False
    if not waiting or not (attempt.steps.get("before") or _begin_online(attempt, now)):
        return False
    answer = _ask(attempt, Step.STAGE, [waiting[0]], now)
    if answer is None or answer.phase is not Phase.DONE:
        return answer is None or answer.phase in (Phase.STAGING, Phase.BUSY)
    _mark(attempt, "staged", [waiting[0]])
    _record(attempt, doors.read_versions(attempt, now=now), now)
    return len(waiting) > 1


def _begin_online(attempt: Attempt, now: datetime) -> bool:
    """Pass the fence before anything is written; false if nothing may or need be."""
    readings = doors.read_versions(attempt, now=now)
    if not readings or not _wrong(attempt, readings):
        return False
    seen = _snapshot(attempt, now)
    with transaction.atomic():
        rollout = lock(attempt.rollout, *Status)
        if not _may_write(attempt, rollout):
            return False
        _remember(attempt, readings, seen, now=now)
    return True


def _may_write(attempt: Attempt, rollout: Rollout) -> bool:
    return rollout.epoch == attempt.epoch and rollout.status == Status.RUNNING


def _may_come_back(attempt: Attempt, rollout: Rollout) -> bool:
    """Tell whether an attempt that is given up now may be started another time."""
    return rollout.epoch == attempt.epoch and rollout.status in (Status.RUNNING, Status.PAUSED)


def _call_off_taken(attempt: Attempt, now: datetime) -> bool:
    """Leave a machine that somebody took before anything was activated on it where it is."""
    detail = f"somebody took the machine: it is {attempt.machine.state}{_staged_only(attempt)}"
    move_attempt(
        attempt,
        AttemptStatus.CALLED_OFF,
        now=now,
        detail=detail,
        finished_at=now,
        deadline_at=None,
        due_at=now,
    )
    return True


# --- stage, activate, commit -----------------------------------------------------------------


@transaction.atomic
def _begin_staging(
    attempt: Attempt, readings: Sequence[Reading], seen: dict[str, Any] | None, now: datetime
) -> bool:
    """Pass the fence, in one transaction with its last look at whether it has fallen."""
    rollout = lock(attempt.rollout, *Status)
    if not _may_write(attempt, rollout):
        return return_untouched(attempt, now, detail=f"the rollout was {rollout.status}")
    _remember(attempt, readings, seen, now=now)
    _move_machine(attempt, machine_lifecycle.Trigger.START_UPDATE, now)
    return _begin_leg(attempt, readings, now)


def _begin_leg(
    attempt: Attempt, readings: Sequence[Reading], now: datetime, *, detail: str = ""
) -> bool:
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
        deadline_at=_deadline(attempt, _leg(attempt), now),
        due_at=now,
    )
    return True


def _remember(
    attempt: Attempt, readings: Sequence[Reading], seen: dict[str, Any] | None, *, now: datetime
) -> None:
    """Record what runs before the update; the roll back goes to exactly these versions."""
    _record(attempt, readings, now)
    Assignment.objects.filter(
        rollout=attempt.rollout, machine=attempt.machine, previous_versions={}
    ).update(previous_versions=readback.versions_by_part(readings))
    if "before" not in attempt.steps:
        before = {"before": readback.answering(readings), "snapshot": seen}
        _write_steps(attempt, {**attempt.steps, **before})


def stage(attempt: Attempt, now: datetime) -> bool:
    """Have each image of the present leg written, in order; each has its own time.

    A machine that somebody has taken meanwhile gets no order that it has not got already.
    """
    leg = _leg(attempt)
    for position in leg:
        if position in _done(attempt, "staged"):
            continue
        answer = _ask(attempt, Step.STAGE, [position], now)
        if answer is None or answer.phase is not Phase.DONE:
            return _not_done(attempt, answer, now, refusal=AttemptStatus.REJECTED)
        _mark(attempt, "staged", [position], deadline_at=_deadline(attempt, leg, now))
    if planning.needs_boot(_of(attempt, leg)):
        _record(attempt, doors.read_versions(attempt, now=now), now)
    deadline = _deadline(attempt, leg, now)
    move_attempt(attempt, AttemptStatus.ACTIVATING, now=now, due_at=now, deadline_at=deadline)
    return True


def activate(attempt: Attempt, now: datetime) -> bool:
    """Activate the leg; where that boots the host, only a new boot id shows that it did."""
    leg = _leg(attempt)
    if _is_activated(attempt, leg):
        return _commit(attempt, (), now)
    answer = _ask(attempt, Step.ACTIVATE, leg, now)
    if answer is None:
        if not is_overdue(attempt, now):
            return wait(attempt, now)
        # The installer is silent: the machine itself has to tell whether it came back.
        answer = Progress(Phase.UNREACHABLE, "the installer did not answer before the deadline")
    is_under_way = answer.phase in (Phase.AWAITING_REBOOT, Phase.UNREACHABLE, Phase.DONE)
    if is_under_way and planning.needs_boot(_of(attempt, leg)):
        move_attempt(
            attempt,
            AttemptStatus.AWAITING_REBOOT,
            now=now,
            detail=answer.detail,
            due_at=now,
            deadline_at=_return_by(attempt, leg, now),
        )
        return True
    if answer.phase is not Phase.DONE:
        return _not_done(attempt, answer, now, refusal=AttemptStatus.FAILED)
    _mark(attempt, "activated", leg)
    return _commit(attempt, (), now)


def await_reboot(attempt: Attempt, now: datetime) -> bool:
    """Wait for the machine under a new boot id."""
    readings = doors.read_versions(attempt, now=now)
    if readings and _is_activated(attempt, _leg(attempt)):
        return _commit(attempt, readings, now)
    if readings and readback.boot_id(readings) != attempt.boot_id_before:
        _mark(attempt, "activated", _leg(attempt))
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
    leg = _leg(attempt)
    if not set(_done(attempt, "committed")).issuperset(leg):
        answer = _ask(attempt, Step.COMMIT, leg, now)
        if answer is None or answer.phase not in (Phase.DONE, Phase.UNKNOWN):
            return _not_done(attempt, answer, now, refusal=AttemptStatus.FAILED)
        _mark(attempt, "committed", leg)
    if _leg(attempt) == leg:
        return _begin_verifying(attempt, now)
    readings = readings or doors.read_versions(attempt, now=now)
    if not readings:
        return wait_or_fail(
            attempt, AttemptStatus.NEVER_RETURNED, now, detail="it does not answer between its legs"
        )
    _record(attempt, readings, now)
    if set(leg) & set(_wrong(attempt, readings)):
        return _begin_verifying(attempt, now)  # what rests on this leg is not put on top of it
    return _begin_leg(attempt, readings, now)


def _ask(attempt: Attempt, step: Step, positions: Sequence[int], now: datetime) -> Progress | None:
    """Order a step for these images, once however often it is asked; None is silence."""
    return doors.apply(
        attempt,
        step,
        _of(attempt, positions),
        part=f"{attempt.steps.get('mending', 'install')}.{positions[0]}",
        is_ours=_is_ours(attempt),
        now=now,
    )


def _not_done(
    attempt: Attempt, answer: Progress | None, now: datetime, *, refusal: AttemptStatus
) -> bool:
    """Wait for a step, or end the attempt in the class that its answer or its silence means."""
    if answer is None:
        is_ours = _is_ours(attempt)
        status = AttemptStatus.TIMED_OUT if is_ours else AttemptStatus.UNKNOWN
        words = "the installer did not answer"
        detail = words if is_ours else f"somebody took the machine, and {words}"
        return wait_or_fail(attempt, status, now, detail=detail)
    if answer.phase is Phase.UNKNOWN:
        return _call_off_taken(attempt, now)
    if answer.phase is Phase.REJECTED:
        return fail(attempt, refusal, now, detail=answer.detail)
    if answer.phase is Phase.FAILED:
        return fail(attempt, AttemptStatus.FAILED, now, detail=answer.detail)
    return wait_or_fail(attempt, AttemptStatus.TIMED_OUT, now, detail=answer.detail or answer.phase)


# --- read back -------------------------------------------------------------------------------


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


def verify(attempt: Attempt, now: datetime) -> bool:
    """Read the versions back until they have been right often enough, by every witness."""
    readings = doors.read_versions(attempt, now=now)
    if not readings:
        return wait_or_fail(
            attempt, AttemptStatus.NEVER_RETURNED, now, detail="it answered once, then no more"
        )
    _record(attempt, readings, now)
    if wrong := _wrong(attempt, readings):
        return _on_wrong(attempt, wrong, readings, now)
    if silent := readback.gone_silent(readings, before=attempt.steps.get("before", ())):
        detail = f"came back without {', '.join(silent)}"
        return wait_or_fail(attempt, AttemptStatus.DEGRADED, now, detail=detail, readings=0)
    if attempt.readings + 1 < attempt.rollout.plan["read_backs"]:
        return wait(attempt, now, readings=F("readings") + 1)
    return _end_well(attempt, now)


def _on_wrong(
    attempt: Attempt, wrong: Mapping[int, str], readings: Sequence[Reading], now: datetime
) -> bool:
    """Wait for what is not right to become so; at the deadline the bundle says what then."""
    detail = f"runs {', '.join(wrong.values())}"
    if not is_overdue(attempt, now):
        return wait(attempt, now, readings=0)
    if attempt.steps.get("mending"):
        return fail(attempt, AttemptStatus.PARTIAL, now, detail=f"{_mended(attempt)}; {detail}")
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
    is_allowed = _may_write(attempt, rollout) and _is_ours(attempt)
    place = planning.Place(site=attempt.machine.site, pool=attempt.machine.pool)
    is_allowed = is_allowed and headroom.gate_of(rollout, place, now=now).is_open
    if rule == _OnPartial.QUARANTINE or attempt.rollout.kind != Rollout.Kind.UPDATE:
        return fail(attempt, AttemptStatus.PARTIAL, now, detail=detail)
    again = _targets(attempt) if rule == _OnPartial.FINISH else _targets_before(attempt)
    if not is_allowed or again is None:
        why = "nothing is known to revert to" if is_allowed else "nothing may be written any more"
        return fail(attempt, AttemptStatus.PARTIAL, now, detail=f"{detail}; {why}")
    done = [at for at in range(len(again)) if at not in _wrong_of(attempt, again, readings)]
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
    _write_steps(attempt, steps)
    return _begin_leg(attempt, readings, now, detail=f"partial: {detail}; the bundle says {rule}")


def _targets_before(attempt: Attempt) -> list[dict[str, Any]] | None:
    place = Assignment.objects.filter(rollout=attempt.rollout, machine=attempt.machine).first()
    return readback.before_targets(attempt.targets, place.previous_versions) if place else None


def _mended(attempt: Attempt) -> str:
    return f"partial: {attempt.steps['partial']}; {attempt.steps['mending']} was tried"


def _end_well(attempt: Attempt, now: datetime) -> bool:
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
            detail=f"{_mended(attempt)} and took: it runs the {what} versions" if is_mended else "",
            readings=attempt.readings + 1,
            finished_at=now,
            deadline_at=None,
            due_at=now,
        )
        _move_machine(attempt, machine_lifecycle.Trigger.RETURN, now, gate=gate)
    return True


def _touches_bmc(attempt: Attempt) -> bool:
    return any(target["kind"] == fleet.BMC for target in attempt.targets)


def _snapshot(attempt: Attempt, now: datetime) -> dict[str, Any] | None:
    """Return what the BMC shows before its update; None if it is not updated or does not say."""
    if "before" in attempt.steps or not _touches_bmc(attempt):
        return None
    seen = doors.snapshot(attempt, now=now)
    return None if seen is None else asdict(seen)


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
    wrong = _wrong(attempt, readings) if readings else {}
    if not wrong:
        return look_again(attempt, now + interval)
    _record(attempt, readings, now)
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
            _move_machine(attempt, machine_lifecycle.Trigger.DRAIN, now, reason=reason)
    return True


def take_out(attempt: Attempt, now: datetime) -> bool:
    """Send a machine that fell back to diagnosis once its work has ended, or at the deadline."""
    if attempt.machine.state != State.DRAINING:
        return look_again(attempt, None)  # somebody has taken it
    occupancy = doors.drain(attempt, now=now)
    if not occupancy.is_idle and not is_overdue(attempt, now):
        return wait(attempt, now, due=max(occupancy.until or now, now + POLL))
    reason = f"attempt {attempt.pk}: {attempt.status}"
    _move_machine(attempt, machine_lifecycle.Trigger.TAKE_OUT, now, reason=reason)
    return look_again(attempt, None)


# --- ends ------------------------------------------------------------------------------------


def look_again(attempt: Attempt, at: datetime | None) -> bool:
    """Let the attempt be due at that time, or never again."""
    Attempt.objects.filter(pk=attempt.pk, status=attempt.status).update(due_at=at)
    return False


def let_go(attempt: Attempt, now: datetime) -> bool:
    """Lift the drain of an attempt that is over, where its machine is in service."""
    return look_again(attempt, None) if release(attempt, now) else False


def release(attempt: Attempt, now: datetime) -> bool:
    """Lift the rollout's drain from a machine in service; safe to repeat, and repeated until done.

    A machine out of service keeps its drain: a scheduler must never be given it. So does one
    that the rollout itself keeps out of work since a halt.
    """
    if attempt.machine.state != State.IN_SERVICE:
        return True
    own = Cordon.objects.filter(machine=attempt.machine, owner=attempt.rollout.actor)
    if own.filter(lifted_at=None).exists():
        return True
    return doors.release(attempt, now=now) or wait(attempt, now)


def is_overdue(attempt: Attempt, now: datetime) -> bool:
    """Tell whether the deadline of the present step is over."""
    return attempt.deadline_at is not None and now >= attempt.deadline_at


def wait(attempt: Attempt, now: datetime, *, due: datetime | None = None, **fields: Any) -> bool:
    """Look again a little later, at the latest at the deadline."""
    due = due or now + POLL
    if attempt.deadline_at is not None and now < attempt.deadline_at:
        due = min(due, attempt.deadline_at)
    Attempt.objects.filter(pk=attempt.pk, status=attempt.status).update(due_at=due, **fields)
    return False


def wait_or_fail(
    attempt: Attempt, status: AttemptStatus, now: datetime, *, detail: str, **fields: Any
) -> bool:
    """Wait, or end the attempt in a failure class once its step's time is over."""
    if not is_overdue(attempt, now):
        return wait(attempt, now, **fields)
    return fail(attempt, status, now, detail=detail)


def fail(attempt: Attempt, status: AttemptStatus, now: datetime, *, detail: str) -> bool:
    """End an attempt in a failure class; the machine goes to diagnosis, never back to work."""
    is_lost = status in (AttemptStatus.PARTIAL, AttemptStatus.NEVER_RETURNED)
    if attempt.steps.get("mending") and not is_lost:
        status, detail = AttemptStatus.PARTIAL, f"{_mended(attempt)}: {status}, {detail}"
    with transaction.atomic():
        move_attempt(
            attempt, status, now=now, detail=detail, finished_at=now, deadline_at=None, due_at=None
        )
        for trigger in _TO_DIAGNOSIS.get(State(attempt.machine.state), ()):
            _move_machine(attempt, trigger, now, reason=f"attempt {attempt.pk}: {status}")
    return False


#: The way to diagnosis; a machine that somebody has taken elsewhere stays where it is.
_TO_DIAGNOSIS: Mapping[State, tuple[machine_lifecycle.Trigger, ...]] = {
    State.DRAINING: (machine_lifecycle.Trigger.TAKE_OUT,),
    State.UPDATING: (machine_lifecycle.Trigger.FAIL_UPDATE,),
    State.VERIFYING: (machine_lifecycle.Trigger.FAIL_UPDATE,),
    State.IN_SERVICE: (
        machine_lifecycle.Trigger.DRAIN,
        machine_lifecycle.Trigger.TAKE_OUT,
    ),
}


@transaction.atomic
def return_untouched(
    attempt: Attempt,
    now: datetime,
    *,
    detail: str,
    is_over: bool = False,
    not_before: datetime | None = None,
) -> bool:
    """Give a drained machine back: nothing was activated on it; its release is due at once.

    With a forecast (`not_before`) it waits for that, however long its drains took together.
    """
    rollout = lock(attempt.rollout, *Status)
    patience = 2 * minutes_of(attempt.rollout, "drain_timeout_minutes")
    give_up_at = (attempt.started_at or attempt.created_at) + patience
    if not_before is not None:
        give_up_at = max(attempt.created_at + _LONGEST_DEFERRAL, give_up_at)
    is_over = is_over or now >= give_up_at or not _may_come_back(attempt, rollout)
    move_attempt(
        attempt,
        AttemptStatus.CALLED_OFF if is_over else AttemptStatus.DEFERRED,
        now=now,
        detail=f"{detail}{_staged_only(attempt)}",
        due_at=now,
        drained_at=None,
        forecast_at=None if is_over else not_before,
        deadline_at=give_up_at,
        finished_at=now if is_over else None,
    )
    gate = f"untouched{_staged_only(attempt)}"
    _move_machine(attempt, machine_lifecycle.Trigger.CALL_OFF, now, gate=gate)
    return True


def _staged_only(attempt: Attempt) -> str:
    staged = _of(attempt, _done(attempt, "staged"))
    names = ", ".join(f"{target['kind']} {target['version']}" for target in staged)
    return f"; staged, not activated: {names}" if names else ""


# --- what the row says -----------------------------------------------------------------------


def _targets(attempt: Attempt) -> list[dict[str, Any]]:
    """Return what the attempt is to bring the machine to now: the images, or what reverts them."""
    return list(attempt.steps.get("instead") or attempt.targets)


def _of(attempt: Attempt, positions: Sequence[int]) -> list[dict[str, Any]]:
    targets = _targets(attempt)
    return [targets[at] for at in positions]


def _done(attempt: Attempt, what: str) -> list[int]:
    return list(attempt.steps.get(what, ()))


def _leg(attempt: Attempt) -> list[int]:
    """Return the positions of the first leg that is not committed; the last one if all are."""
    legs = planning.legs(_targets(attempt))
    committed = set(_done(attempt, "committed"))
    return next((leg for leg in legs if not committed.issuperset(leg)), legs[-1])


def _is_activated(attempt: Attempt, leg: Sequence[int]) -> bool:
    return set(_done(attempt, "activated")).issuperset(leg)


def _mark(attempt: Attempt, what: str, positions: Sequence[int], **fields: Any) -> None:
    done = sorted({*_done(attempt, what), *positions})
    _write_steps(attempt, {**attempt.steps, what: done}, **fields)


def _write_steps(attempt: Attempt, steps: dict[str, Any], **fields: Any) -> None:
    Attempt.objects.filter(pk=attempt.pk, status=attempt.status).update(steps=steps, **fields)
    attempt.steps = steps
    for name, value in fields.items():
        setattr(attempt, name, value)


def _deadline(attempt: Attempt, leg: Sequence[int], now: datetime) -> datetime:
    """Return by when the present step must be done: its image's time, within that of the plan."""
    install_by = datetime.fromisoformat(attempt.steps["install_by"])
    minutes = [
        target["timeout_minutes"] for target in _of(attempt, leg) if "timeout_minutes" in target
    ]
    return min(install_by, now + timedelta(minutes=max(minutes))) if minutes else install_by


def _return_by(attempt: Attempt, leg: Sequence[int], now: datetime) -> datetime:
    """Return by when a machine must be back; what is done by hand has its image's time as well."""
    usual = now + minutes_of(attempt.rollout, "return_timeout_minutes")
    if not planning.is_by_hand(_of(attempt, leg)):
        return usual
    hands = [target.get("timeout_minutes", 0) for target in _of(attempt, leg)]
    return usual + timedelta(minutes=max(hands))


def _is_ours(attempt: Attempt) -> bool:
    """Tell whether the machine still is in the attempt's hands."""
    return attempt.machine.state in (State.DRAINING, State.UPDATING, State.VERIFYING)


def _wrong(attempt: Attempt, readings: Sequence[Reading]) -> dict[int, str]:
    return _wrong_of(attempt, _targets(attempt), readings)


def _wrong_of(
    attempt: Attempt, targets: Sequence[Mapping[str, Any]], readings: Sequence[Reading]
) -> dict[int, str]:
    places = attempt.rollout.bundle.places
    schemes = dict(places.values_list("image__kind", "image__scheme"))
    return readback.wrong_positions(targets, readings, schemes=schemes)


def _record(attempt: Attempt, readings: Sequence[Reading], now: datetime) -> None:
    if readings:
        fleet.record_readings(attempt.machine, readings, now=now, evidence={"attempt": attempt.pk})


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
    if (State(machine.state), trigger) not in machine_lifecycle.TRANSITIONS:
        logger.info("attempt=%s leaves %s where it is: %s", attempt.pk, machine, machine.state)
        return
    fleet.move_machine(
        machine,
        trigger,
        actor=attempt.rollout.actor,
        now=now,
        gate=gate[:200],
        reason=reason or f"attempt {attempt.pk}",
    )
