"""The virtual fleet's one task."""

import secrets
from datetime import datetime, timedelta

from celery import shared_task
from django.conf import settings
from django.db.models import Q
from django.db.utils import OperationalError
from django.utils import timezone

from fleet import clock
from fleet.hints import hint
from fleet.models import Clock
from fleet.tasks import keep_capacity, summarise
from rollouts import selectors
from simulation import jobs, technician
from simulation.adapters import model_of
from simulation.models import VirtualFleet

LEASE = timedelta(seconds=60)


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def reconcile() -> None:
    """Let scaled time pass, and let the technicians work at what is due.

    Safe to repeat and to race: the clock's tick is a compare-and-set, one worker holds the lease,
    and each step looks at where its row stands.
    """
    if not settings.SIMULATION_ENABLED:
        return
    before = clock.now()
    clock.tick(wall=timezone.now(), longest=selectors.longest_step())
    if clock.now().date() != before.date():
        # By the wall, which the beat follows, a day of the fleet is over in minutes.
        hint(keep_capacity)
        hint(summarise)
    token = _take_lease()
    if token is None:
        return
    try:
        now = clock.now()
        _let_jobs_run(now)
        technician.triage_silent(now=now)
        if _is_living():
            technician.take_out_struck(now=now)
        technician.work_on_queue(now=now)
    finally:
        VirtualFleet.objects.filter(lease_token=token).update(lease_token="", leased_until=None)


def _is_living() -> bool:
    """Tell whether time passes by itself; the demo's driver tells its story without people."""
    return Clock.objects.filter(pk=1, mode=Clock.Mode.SCALED).exists()


def _let_jobs_run(now: datetime) -> None:
    """Place the fleet's jobs, where they come and go."""
    fleet = VirtualFleet.objects.first()
    if fleet is not None:
        jobs.place(fleet, model_of(fleet), now=now)


def _take_lease() -> str | None:
    token, wall = secrets.token_hex(16), timezone.now()
    free = Q(leased_until=None) | Q(leased_until__lt=wall)
    taken = VirtualFleet.objects.filter(free).update(lease_token=token, leased_until=wall + LEASE)
    return token if taken else None
