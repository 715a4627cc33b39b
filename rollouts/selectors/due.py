"""What is due, held or in flight: what the sweep and the stepped clock ask."""

from datetime import datetime, timedelta

from django.db.models import Min, Q

from fleet import clock, leases
from rollouts.lifecycle import IN_FLIGHT, Status
from rollouts.models import Attempt, Rollout

#: Statuses in which the sweep looks at a rollout.
LIVE = (Status.RUNNING, Status.HALTED, Status.ROLLING_BACK)


def due_rollouts(now: datetime, *, limit: int = 500) -> list[int]:
    """Return the rollouts that want to be looked at and that no worker holds."""
    return list(
        Rollout.objects.filter(
            leases.free(wall=clock.steady_time()), due_at__lte=now, status__in=LIVE
        )
        .order_by("due_at")
        .values_list("pk", flat=True)[:limit]
    )


def due_attempts(now: datetime, *, limit: int = 5000) -> list[int]:
    """Return the attempts whose next step is due and that no worker holds."""
    return list(
        Attempt.objects.filter(leases.free(wall=clock.steady_time()), due_at__lte=now)
        .order_by("due_at")
        .values_list("pk", flat=True)[:limit]
    )


def has_due_work(now: datetime) -> bool:
    """Tell whether any row is due or any worker still holds one (for the stepped clock)."""
    held = leases.held(wall=clock.steady_time())
    return (
        Rollout.objects.filter(held | Q(due_at__lte=now, status__in=LIVE)).exists()
        or Attempt.objects.filter(held | Q(due_at__lte=now)).exists()
    )


def next_due_at() -> datetime | None:
    """Return the next instant at which some row is due; None when nothing waits for time."""
    instants = [
        Rollout.objects.filter(status__in=LIVE).aggregate(at=Min("due_at"))["at"],
        Attempt.objects.aggregate(at=Min("due_at"))["at"],
    ]
    return min((at for at in instants if at is not None), default=None)


def has_leases() -> bool:
    """Tell whether some worker has taken a row and not given it back."""
    return (
        Rollout.objects.exclude(leased_until=None).exists()
        or Attempt.objects.exclude(leased_until=None).exists()
    )


def is_anything_in_flight() -> bool:
    """Tell whether any attempt of any rollout is being worked on."""
    return Attempt.objects.filter(status__in=IN_FLIGHT).exists()


def is_in_flight(rollout: Rollout) -> bool:
    """Tell whether some attempt of the rollout is being worked on."""
    return rollout.attempts.filter(status__in=IN_FLIGHT).exists()


def longest_step() -> timedelta:
    """Return the longest time that a scaled clock may advance at once: one evaluation interval."""
    plans = Rollout.objects.filter(status=Status.RUNNING).values_list(
        "plan__look_minutes", flat=True
    )
    minutes = min((value for value in plans if value), default=60.0)
    return timedelta(minutes=minutes)
