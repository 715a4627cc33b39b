"""Celery entry points of the fleet: collect what machines report, and show a sign of life."""

import logging
import secrets
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from celery import shared_task
from django.conf import settings
from django.db import transaction
from django.db.models import F, Min, QuerySet
from django.db.utils import OperationalError
from django.utils import timezone

from fleet import adapters, clock, leases, services
from fleet.errors import AdapterFailed, FleetError
from fleet.hints import hint, hint_rarely
from fleet.models import CollectorCursor, Heartbeat, Machine, TelemetryHold
from fleet.services.evidence import sweep_evidence as sweep_files

logger = logging.getLogger(__name__)

LONGEST_STEP = timedelta(hours=6)  # of the clock: bounds the size of one fetch
CLOCK_SLACK = timedelta(minutes=5)  # two hosts' clocks differ by less
LEASE = timedelta(seconds=60)  # of the wall: longer than one fetch may take
LONGEST_RUN_SECONDS = 20.0
MOST_HOLDS = 1000  # of telemetry, that one run checks
TELL_OF_FAULTS = ("fault", "counter")  # kinds of reports


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def collect() -> None:
    """Fetch, step by step, what machines reported since the cursor, until now.

    Safe to repeat and to race: one worker holds the lease; records count once by their keys; a
    step's records and the move of the cursor are one transaction. A worker that dies leaves a
    lease that runs out.
    """
    cursor = _take_cursor(now=clock.now())
    if cursor is None:
        return
    is_behind = False
    try:
        is_behind = _catch_up(cursor, until=clock.now())
    finally:
        _give_back(cursor)
    if is_behind:
        hint(collect)


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def watch_jobs() -> None:
    """Take over what the scheduler says is running. Safe to repeat: the newest list stands."""
    try:
        running = adapters.scheduler().jobs(now=clock.now())
    except (OSError, AdapterFailed) as error:
        logger.warning("the scheduler did not list its jobs: %s", type(error).__name__)
        return
    if running is not None:
        services.record_jobs(running, now=clock.now())


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def watch_drains() -> None:
    """Take over which machines others have drained. Safe to repeat: the newest list stands.

    A scheduler that does not answer changes nothing: what was drained is taken to be so still.
    """
    listing = adapters.drain_listing()
    if listing is None:
        return
    try:
        drains = listing.foreign_drains(now=clock.now())
    except (OSError, AdapterFailed) as error:
        logger.warning("the scheduler did not list its drains: %s", type(error).__name__)
        return
    services.record_foreign_drains(drains, now=clock.now())


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def watch() -> None:
    """Look after what nobody did in time: deadlines, machines at work without their gate, owners.

    Safe to repeat and to race: each notice stands once, and each move looks at where its row is.
    """
    now = clock.now()
    services.refresh_owners()
    if services.end_break_glasses(now=now) + services.resume_take_outs(now=now):
        hint(tell_scheduler)
    services.watch_deadlines(now=now)


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def tell_scheduler() -> None:
    """Tell the scheduler which machines may take work, and end the drains that are done.

    Safe to repeat and to race: it is told what is so, until it was last told that.
    """
    services.tell_scheduler(now=clock.now())


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def check_holds() -> None:
    """Let a BMC's telemetry count again once it shows what it showed before its update.

    Safe to repeat: a hold that is over stays over. Those that were checked longest ago come first,
    and what one run's time does not reach is left to the next: a slow BMC holds up nobody for ever.
    """
    end = time.monotonic() + LONGEST_RUN_SECONDS
    standing = TelemetryHold.objects.filter(until=None).select_related("machine")
    oldest = standing.order_by(F("checked_at").asc(nulls_first=True), "pk")
    for hold in oldest[:MOST_HOLDS]:
        if time.monotonic() > end:
            return
        try:
            shown = adapters.installer().snapshot(hold.machine.name, now=clock.now())
        except (OSError, AdapterFailed):
            shown = None
        services.hold_telemetry(hold.machine, before=hold.before, shown=shown, now=clock.now())


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def follow_up() -> None:
    """Follow faults up, each step on what the one before it wrote down.

    Safe to repeat, to race and to leave off: every step finds by itself what is due. Hinted where
    telemetry brought faults; the beat finds the rest.
    """
    now = clock.now()
    services.record_incidents(now=now)
    services.record_interruptions(now=now)
    services.void_gates(now=now)
    is_doubted = services.doubt_gates(now=now)
    services.charge_repairs(now=now)
    services.end_abandoned(now=now)
    if services.take_out_by_rule(now=now) or is_doubted:
        hint(tell_scheduler)


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def follow_gates() -> None:
    """Take gates on: open those that are missing, read machines back, end observations.

    Safe to repeat and to race: every step is a conditional move of one gate, and a machine that
    does not answer is asked again.
    """
    services.clear_strays(now=clock.now())
    services.open_missing_gates(now=clock.now())
    _read_gates_back()
    services.void_gates(now=clock.now())
    services.end_observations(now=clock.now())
    services.return_partners(now=clock.now())


def _read_gates_back() -> None:
    """Read back the machines whose gates wait for it, as far as one run's time goes."""
    end = time.monotonic() + LONGEST_RUN_SECONDS
    for gate in services.due_for_reading(now=clock.now()):
        if time.monotonic() > end:
            return
        try:
            readings = adapters.installer().read_versions(gate.machine.name, now=clock.now())
        except (OSError, AdapterFailed):
            readings = ()
        try:
            services.read_back(gate, readings, now=clock.now())
        except FleetError as error:  # one gate holds up no other one
            logger.warning("%s is left as it is: %s", gate, error)


@shared_task
def heartbeat() -> None:
    """Write down that a worker took a task and reached the database. Safe to repeat."""
    Heartbeat.objects.update_or_create(name="worker", defaults={"beat_at": timezone.now()})


def _take_cursor(*, now: datetime) -> CollectorCursor | None:
    """Return the cursor with a fresh lease, or None if another worker is at it."""
    own = CollectorCursor.objects.filter(collector=settings.COLLECTOR)
    if not own.exists() and not _make_cursor(now=now):
        return None
    wall = clock.steady_time()
    token = secrets.token_hex(16)
    free = leases.free(wall=wall, lease=LEASE)
    taken = own.filter(free).update(lease_token=token, leased_until=wall + LEASE)
    if not taken:
        return None
    _rewind(own, now=now)
    return own.get(lease_token=token)


def _rewind(own: QuerySet[CollectorCursor], *, now: datetime) -> None:
    """Come back from a time that the clock has not reached: it ran ahead and was set back.

    What is fetched again counts once.
    """
    if own.filter(collected_until__gt=now + CLOCK_SLACK).update(collected_until=now):
        logger.warning("the clock was set back; collecting again from %s", now.isoformat())


def _make_cursor(*, now: datetime) -> bool:
    """Begin where the first machine was registered; False if there is none."""
    begin = Machine.objects.aggregate(first=Min("registered_at"))["first"]
    if begin is None:
        return False
    CollectorCursor.objects.get_or_create(
        collector=settings.COLLECTOR, defaults={"collected_until": min(begin, now)}
    )
    return True


def _catch_up(cursor: CollectorCursor, *, until: datetime) -> bool:
    """Take steps until `until`; return whether some are left when the run's time is over."""
    collector = adapters.collector()
    end = time.monotonic() + LONGEST_RUN_SECONDS
    while cursor.collected_until < until:
        if time.monotonic() > end:
            return True
        step_end = min(cursor.collected_until + LONGEST_STEP, until)
        reports = collector.fetch(since=cursor.collected_until, until=step_end)
        if not _keep(cursor, reports, until=step_end):
            return False
    return False


def _keep(cursor: CollectorCursor, reports: Sequence[adapters.Report], *, until: datetime) -> bool:
    """Record one step and move the cursor; False if the lease went to another worker."""
    with transaction.atomic():
        moved = CollectorCursor.objects.filter(pk=cursor.pk, lease_token=cursor.lease_token).update(
            collected_until=until, leased_until=clock.steady_time() + LEASE
        )
        if not moved:
            logger.warning("the lease of collector %s went to another worker", cursor.collector)
            return False
        key = f"{cursor.lease_token}/{until.isoformat()}"  # nobody else can have used it
        result = services.record(reports, source=cursor.collector, key=key, now=clock.now())
    cursor.collected_until = until
    if any(report.kind in TELL_OF_FAULTS for report in reports):
        hint_rarely(follow_up)
    if result.refused:
        first = result.refused[0]
        logger.warning(
            "%d of %d collected records were refused; the first: %s %r: %s",
            len(result.refused),
            len(reports),
            first.field,
            first.value,
            first.reason,
        )
    return True


def _give_back(cursor: CollectorCursor) -> None:
    CollectorCursor.objects.filter(pk=cursor.pk, lease_token=cursor.lease_token).update(
        lease_token="", leased_until=None
    )


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def summarise() -> None:
    """Remake the summaries of telemetry that are due, as far as one run's time goes.

    Safe to repeat and to race: each summary is leased while it is made, from rows that count once.
    """
    if services.summarise(now=clock.now()):
        hint(summarise)


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def sweep_evidence() -> None:
    """Remove files that were begun and never finished, or belong to no record. Safe to repeat."""
    if removed := sweep_files():
        logger.info("removed %d files of which no record tells", removed)


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def tell_tickets() -> None:
    """Tell ticket systems how repairs stand that they do not know of.

    Safe to repeat and to race: what is told is leased, and carries the same identifier again.
    """
    services.tell_tickets()


@shared_task(acks_late=True, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def keep_capacity() -> None:
    """Keep how many machines stood where, day by day. Safe to repeat: days are remade."""
    services.keep_days(now=clock.now())
