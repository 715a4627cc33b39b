"""Drain one machine: wait for its work, its window and its activation domain.

Meanwhile images are staged that may be written while it works.
"""

from datetime import datetime, timedelta

from django.db import transaction

from fleet import services as fleet
from fleet.adapters import Occupancy, Phase, Step
from fleet.lifecycle import State
from rollouts import headroom, planning
from rollouts.lifecycle import IN_FLIGHT, WAITING, AttemptStatus, Status
from rollouts.models import Attempt
from rollouts.services.attempts import doors
from rollouts.services.attempts.ends import POLL, call_off_taken, fail, return_untouched, wait
from rollouts.services.attempts.installs import ask, begin_staging, remember, take_snapshot
from rollouts.services.attempts.rows import (
    done_so_far,
    is_overdue,
    mark,
    may_write,
    record_readings,
    targets_of,
    write_steps,
    wrong_in,
)
from rollouts.services.records import lock, minutes_of

#: Between two looks at a machine whose job has hours to go: it may still end early.
_LONG_POLL = timedelta(minutes=10)


def drain(attempt: Attempt, now: datetime) -> bool:
    """Wait until the machine is idle, and its activation domain with it.

    Meanwhile only images are staged that may be, where the plan allows it; nothing is activated
    before the attempt leaves this step.
    """
    if attempt.machine.state != State.DRAINING or fleet.is_ordered_out(attempt.machine):
        return call_off_taken(attempt, now)
    if attempt.steps.get("accompanies") and attempt.drained_at is not None:
        return _accompany(attempt, now)
    if not may_write(attempt, attempt.rollout):
        if headroom.is_domain_under_way(attempt):
            return wait(attempt, now, detail="stays drained while its activation domain reboots")
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
    if not wrong_in(attempt, readings):
        # Flashed again it would be no evidence of an install, and a risk for nothing.
        write_steps(attempt, {**attempt.steps, "accompanies": True})
        return _accompany(attempt, now)
    gate = headroom.may_write(attempt, now=now)
    if not gate.is_open:
        return _wait_for_window(attempt, gate, now)
    return begin_staging(attempt, readings, take_snapshot(attempt, now), now)


def _accompany(attempt: Attempt, now: datetime) -> bool:
    """Give back a machine that is where it is meant to be, once its activation domain is done.

    It reboots with the others, so it stays drained as long as they are worked on, and has to
    answer afterwards. Where they were put off it is too, so that they can start as one again.
    """
    others = headroom.others_of_domain(attempt)
    detail = "it runs the intended versions already"
    if any(other.status in IN_FLIGHT for other in others):
        return wait(attempt, now, detail=f"{detail}; drained with its activation domain")
    if any(other.status in WAITING for other in others):
        return return_untouched(attempt, now, detail=detail)
    ended = max((other.finished_at for other in others if other.finished_at), default=None)
    if ended is not None and not doors.read_versions(attempt, now=now):
        if now < ended + minutes_of(attempt.rollout, "return_timeout_minutes"):
            return wait(attempt, now)
        detail = "it has not answered since its activation domain was activated"
        return fail(attempt, AttemptStatus.NEVER_RETURNED, now, detail=detail)
    return return_untouched(attempt, now, detail=detail, is_over=True)


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
    staged = done_so_far(attempt, "staged")
    waiting = [at for at in planning.online_prefix(targets_of(attempt)) if at not in staged]
    if not headroom.may_write(attempt, now=now).is_open:
        return False
    if not waiting or not (attempt.steps.get("before") or _begin_online(attempt, now)):
        return False
    answer = ask(attempt, Step.STAGE, [waiting[0]], now)
    if answer is None or answer.phase is not Phase.DONE:
        return answer is None or answer.phase in (Phase.STAGING, Phase.BUSY)
    mark(attempt, "staged", [waiting[0]])
    record_readings(attempt, doors.read_versions(attempt, now=now), now)
    return len(waiting) > 1


def _begin_online(attempt: Attempt, now: datetime) -> bool:
    """Pass the fence before anything is written; false if nothing may or need be."""
    readings = doors.read_versions(attempt, now=now)
    if not readings or not wrong_in(attempt, readings):
        return False
    seen = take_snapshot(attempt, now)
    with transaction.atomic():
        rollout = lock(attempt.rollout, *Status)
        if not may_write(attempt, rollout):
            return False
        remember(attempt, readings, seen, now=now)
    return True
