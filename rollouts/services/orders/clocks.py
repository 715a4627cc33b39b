"""The wall's clock was set: windows keep their length, and widen once somebody has looked."""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from fleet import clock
from fleet import services as fleet
from fleet.models import ClockJump
from fleet.services.clocks import LEAST_JUMP
from rollouts import selectors
from rollouts.lifecycle import Status, WaveStatus
from rollouts.models import ClockHold, Rollout, Wave

#: Waves in these have a window that runs, or is about to.
_OPEN = (WaveStatus.INSTALLING, WaveStatus.SETTLING, WaveStatus.OBSERVING, WaveStatus.HELD)
#: Nothing of a rollout in these is measured against the clock.
_UNTIMED = (Status.DRAFT, Status.AWAITING_APPROVAL, Status.APPROVED, *selectors.ENDED)
#: The same, where time goes on: what stands still is moved along when it resumes.
_STANDING = (*_UNTIMED, Status.PAUSED, Status.HALTED)


def watch(*, wall: datetime) -> ClockJump | None:
    """Look whether the wall's clock was set, and hold the widening of open windows if so.

    The product's time goes on without the jump, so nothing is due early and nothing waits. It
    follows the wall again once nothing runs that the jump could shorten or turn back. Safe to
    repeat; it takes no lock where there is nothing to note.
    """
    seen = fleet.look_at_wall(wall=wall)
    if seen.was_set:
        return _take_note(wall)
    if abs(seen.off) >= LEAST_JUMP and _may_follow(is_forward=seen.off > timedelta(0)):
        fleet.adopt_wall(wall=wall)
    return None


@transaction.atomic
def _take_note(wall: datetime) -> ClockJump | None:
    jump = fleet.record_jump(wall=wall)
    if jump is None or not clock.is_real():
        return jump
    now = clock.now()
    waves = Wave.objects.filter(status__in=_OPEN, rollout__status=Status.RUNNING)
    ClockHold.objects.bulk_create(
        ClockHold(rollout=rollout, jump=jump, at=now, recorded_at=timezone.now())
        for rollout in Rollout.objects.filter(pk__in=waves.values("rollout")).order_by("pk")
    )
    return jump


def _may_follow(*, is_forward: bool) -> bool:
    """Tell whether the product's time may jump: back only where nothing has begun at all."""
    if selectors.has_leases() or selectors.is_anything_in_flight():
        return False
    untouched = _STANDING if is_forward else _UNTIMED
    return not Rollout.objects.exclude(status__in=untouched).exists()
