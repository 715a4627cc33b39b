"""Keep jobs pure: ask the scheduler to place each new job in one arm while a wave is compared."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet

from fleet import adapters
from fleet.errors import AdapterFailed
from rollouts.lifecycle import Status, WaveStatus
from rollouts.models import Membership, Wave

logger = logging.getLogger(__name__)

FEATURE, RESERVATION = "feature", "reservation"
#: Time for the installs of a wave to wait for jobs, in the first reservation.
INSTALLS = timedelta(days=7)
#: A reservation that a wave still needs is renewed so long before it ends.
AHEAD = timedelta(days=1)
_COMPARED = (WaveStatus.INSTALLING, WaveStatus.SETTLING, WaveStatus.OBSERVING)


def arrange(*, now: datetime) -> None:
    """Tell the scheduler of waves that are open, and of those that are over. Safe to repeat.

    What it has not taken is told again at the next call. Never inside a transaction.
    """
    is_reserved = Q(rollout__plan__keep_jobs_pure=RESERVATION)
    ends_soon = Q(reserved_until=None) | Q(reserved_until__lte=now + AHEAD)
    untold = Q(is_kept_apart=False) | (is_reserved & ends_soon)
    for wave in _open_waves().filter(untold).select_related("rollout"):
        arms = wave.members.values_list("machine__name", flat=True).order_by("machine__name")
        groups = {arm.value: list(arms.filter(arm=arm)) for arm in Membership.Arm}
        _tell(wave, groups, now=now)
    over = Wave.objects.filter(is_kept_apart=True).exclude(pk__in=_open_waves().values("pk"))
    for wave in over.select_related("rollout"):
        _tell(wave, {}, now=now)


def refusal(plan: Mapping[str, Any]) -> str:
    """Say why the scheduler cannot do what the plan asks for; empty: it can, or nothing is."""
    how = plan.get("keep_jobs_pure")
    if how == RESERVATION:
        can_do = adapters.job_reservation() is not None
        return "" if can_do else "keep_jobs_pure: the scheduler cannot reserve machines by name"
    if how and adapters.job_placement() is None:
        return "keep_jobs_pure: the scheduler cannot keep the jobs of two arms apart"
    return ""


def _open_waves() -> QuerySet[Wave]:
    return Wave.objects.filter(
        kind=Wave.Kind.CANARY,
        status__in=_COMPARED,
        rollout__status__in=(Status.RUNNING, Status.PAUSED),
        rollout__plan__keep_jobs_pure__in=[True, FEATURE, RESERVATION],
    )


def _tell(wave: Wave, groups: Mapping[str, Sequence[str]], *, now: datetime) -> None:
    """Say which machines stand apart; no groups: none do any more."""
    told = _reserve if wave.rollout.plan["keep_jobs_pure"] == RESERVATION else _keep_apart
    try:
        told(wave, groups, now=now)
    except (OSError, AdapterFailed) as error:
        logger.warning("wave=%s the scheduler did not answer: %s", wave.pk, type(error).__name__)


def _keep_apart(wave: Wave, groups: Mapping[str, Sequence[str]], *, now: datetime) -> None:
    placement = adapters.job_placement()
    if placement is None:
        return
    placement.keep_apart(groups, reason=f"rollout:{wave.rollout_id} wave {wave.number}", now=now)
    Wave.objects.filter(pk=wave.pk).update(is_kept_apart=bool(groups))


def _reserve(wave: Wave, groups: Mapping[str, Sequence[str]], *, now: datetime) -> None:
    """Reserve the canaries for as long as the wave may take from now on with its extension.

    A wave that takes longer, since it was paused or its installs waited, is told anew in time.
    """
    reservation = adapters.job_reservation()
    if reservation is None:
        return
    plan = wave.rollout.plan
    hours = plan["burn_in_hours"] + wave.window_hours * (1 + plan["extension"])
    end = now + timedelta(hours=hours) + INSTALLS
    reservation.reserve(
        groups.get(Membership.Arm.CANARY, ()),
        name=f"coalmine-{wave.rollout_id}-{wave.number}",
        start=now,
        end=end,
    )
    until = end if groups else None
    Wave.objects.filter(pk=wave.pk).update(is_kept_apart=bool(groups), reserved_until=until)
