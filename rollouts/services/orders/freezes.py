"""Site-wide freezes: set by whoever may stop, lifted by whoever may start."""

from collections.abc import Sequence
from datetime import UTC, datetime

from django.contrib.auth.models import User
from django.db import transaction

from rollouts.errors import OrderRefused
from rollouts.lifecycle import WAITING, Status
from rollouts.models import Attempt, Freeze, Rollout


def set_freeze(
    *,
    start: datetime,
    end: datetime,
    reason: str,
    author: User,
    now: datetime,
    sites: Sequence[str] = (),
    pools: Sequence[str] = (),
) -> Freeze:
    """Let no attempt start between `start` and `end`, nor one that could not be over before.

    What is in flight goes to its end. Halts and roll backs are not held up.

    Raises
    ------
    OrderRefused
        If it is over before it begins, lies in the past, or gives no reason.
    """
    reasons = freeze_refusals(start=start, end=end, reason=reason, now=now)
    if reasons:
        raise OrderRefused(reasons)
    return Freeze.objects.create(
        start=start,
        end=end,
        reason=reason,
        sites=sorted(set(sites)),
        pools=sorted(set(pools)),
        author=author,
        created_at=now,
    )


def freeze_refusals(*, start: datetime, end: datetime, reason: str, now: datetime) -> list[str]:
    """List what speaks against such a freeze, for a form to show; empty if nothing does."""
    reasons = []
    if end <= start:
        reasons.append(f"it ends {_at(end)}, not after it begins, {_at(start)}")
    if end <= now:
        reasons.append(f"it holds nobody: it ended {_at(end)}, and it is {_at(now)}")
    if not reason.strip():
        reasons.append("it needs a reason, which everybody who waits is shown")
    return reasons


def _at(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


@transaction.atomic
def lift_freeze(freeze: Freeze, *, actor: User, now: datetime) -> Freeze:
    """End a freeze now; who waited for it may start at once. Safe to repeat."""
    lifted = Freeze.objects.filter(pk=freeze.pk, lifted_at=None)
    if lifted.update(lifted_at=now, lifted_by=actor):
        running = Rollout.objects.filter(status=Status.RUNNING)
        Attempt.objects.filter(status__in=WAITING, rollout__in=running.values("pk")).update(
            forecast_at=None
        )
        running.update(due_at=now)
    freeze.refresh_from_db()
    return freeze
