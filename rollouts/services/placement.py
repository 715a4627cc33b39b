"""Keep jobs pure: ask the scheduler to place each new job in one arm while a wave is compared."""

import logging
from datetime import datetime

from django.db.models import QuerySet

from fleet import adapters
from fleet.errors import AdapterFailed
from rollouts.lifecycle import Status, WaveStatus
from rollouts.models import Membership, Wave

logger = logging.getLogger(__name__)

_COMPARED = (WaveStatus.INSTALLING, WaveStatus.SETTLING, WaveStatus.OBSERVING)


def arrange(*, now: datetime) -> None:
    """Tell the scheduler of waves that are open, and of those that are over. Safe to repeat.

    What it has not taken is told again at the next call. Never inside a transaction.
    """
    begun = list(_open_waves().filter(is_kept_apart=False))
    over = list(Wave.objects.filter(is_kept_apart=True).exclude(pk__in=_open_waves().values("pk")))
    placement = adapters.job_placement() if begun or over else None
    if placement is None:
        return
    for wave in begun:
        arms = wave.members.values_list("machine__name", flat=True).order_by("machine__name")
        groups = {arm.value: list(arms.filter(arm=arm)) for arm in Membership.Arm}
        _tell(placement, wave, groups, now=now)
    for wave in over:
        _tell(placement, wave, {}, now=now)


def _open_waves() -> QuerySet[Wave]:
    return Wave.objects.filter(
        kind=Wave.Kind.CANARY,
        status__in=_COMPARED,
        rollout__status__in=(Status.RUNNING, Status.PAUSED),
        rollout__plan__keep_jobs_pure=True,
    )


def _tell(
    placement: adapters.JobPlacement, wave: Wave, groups: dict[str, list[str]], *, now: datetime
) -> None:
    reason = f"rollout:{wave.rollout_id} wave {wave.number}"
    try:
        placement.keep_apart(groups, reason=reason, now=now)
    except (OSError, AdapterFailed) as error:
        logger.warning("wave=%s the scheduler did not answer: %s", wave.pk, type(error).__name__)
        return
    Wave.objects.filter(pk=wave.pk).update(is_kept_apart=bool(groups))
