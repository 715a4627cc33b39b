"""What is remembered of a machine per bundle, and who has cleared it."""

from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from fleet.models import FirmwareBundle, Machine
from rollouts.errors import OrderRefused
from rollouts.models import Clearance
from rollouts.services.plans.population import declined


@transaction.atomic
def clear(
    machine: Machine, *, bundle: FirmwareBundle, actor: User, reason: str, now: datetime
) -> list[Clearance]:
    """Let a machine be offered a bundle again that it failed or fell back from.

    The word is a record per attempt; the failures stay what they are in the evidence.

    Raises
    ------
    OrderRefused
        Without a reason, or where nothing keeps the machine from the bundle.
    """
    reasons = [] if reason.strip() else ["clearing a machine needs a reason"]
    held = declined(bundle).filter(machine=machine).select_for_update(of=("self",)).order_by("pk")
    attempts = list(held)
    if not attempts:
        reasons.append(f"{machine} has not declined bundle {bundle}; there is nothing to clear")
    if reasons:
        raise OrderRefused(reasons)
    return [
        Clearance.objects.create(
            attempt=attempt,
            actor=actor,
            reason=reason.strip()[:300],
            at=now,
            recorded_at=timezone.now(),
        )
        for attempt in attempts
    ]
