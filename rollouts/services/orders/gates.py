"""Review the firmware gates of a wave, all at once, by who answers for the rollout."""

from datetime import datetime

from django.contrib.auth.models import User

from fleet import services as fleet
from rollouts.models import Wave
from rollouts.wave_gates import made_for, owners_of


def review_gates(wave: Wave, *, user: User, reason: str, now: datetime) -> fleet.Reviewed:
    """Accept what the machines of a wave have shown; those with a newer fault are void.

    Whether the wave widens is the comparison's business: this holds nothing up.

    Raises
    ------
    IllegalGateMove
        If no gate awaits a review, or some lack a check of the smoke wave's drill.
    SameHands
        If this person neither wrote nor approved the rollout.
    """
    return fleet.review_wave_gates(
        made_for(rollout=wave.rollout_id, wave=wave.number),
        user=user,
        owners=owners_of(wave.rollout),
        reason=reason,
        now=now,
    )
