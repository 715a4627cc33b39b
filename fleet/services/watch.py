"""The watchdog: what is past its deadline, and work where none may be."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, Max, Min, OuterRef, Q, QuerySet

from fleet.errors import StaleMachine
from fleet.lifecycle import STATES, State
from fleet.models import Cordon, Job, Machine, Notice, StateChange
from fleet.services.drains import AT_SCHEDULER
from fleet.services.lifecycle import move_machine
from fleet.services.notices import keep_notices, raise_many

OVERDUE = "overdue"
BYPASSED = "gate_bypassed"
ACTOR = "watchdog"
_MOST_PER_RUN = 2000
#: A job may start in the moment in which its machine is drained; no gate was passed by then.
_GRACE = timedelta(minutes=2)


def alarms() -> QuerySet[Notice]:
    """Return the notices that stand, but those of deadlines: they are shown with their machines."""
    standing = Notice.objects.filter(cleared_at=None).exclude(kind=OVERDUE)
    return standing.select_related("machine")


def watch_deadlines(*, now: datetime) -> int:
    """Raise a notice for each machine past its deadline, and clear those that are over.

    Where a state's silence has a safe move, the machine is moved instead. Safe to repeat.
    Returns how many notices are new.
    """
    _clear_overdue(now=now)
    standing = Notice.objects.filter(machine=OuterRef("pk"), kind=OVERDUE, cleared_at=None)
    overdue = Machine.objects.filter(deadline_at__lt=now).exclude(Exists(standing))
    late = overdue.select_related("owner_team", "held_by").order_by("deadline_at")[:_MOST_PER_RUN]
    said_of = {}
    for machine in late:
        if not _moved_on(machine, now=now):
            said_of[machine.pk] = _overdue(machine)
    return raise_many(OVERDUE, said_of, now=now)


def _clear_overdue(*, now: datetime) -> None:
    standing = Notice.objects.filter(kind=OVERDUE, cleared_at=None)
    is_over = (
        Q(machine__deadline_at=None)
        | Q(machine__deadline_at__gte=now)
        | Q(machine__entered_at__gte=F("raised_at"))
    )
    over = list(standing.filter(is_over).values_list("pk", flat=True)[:_MOST_PER_RUN])
    Notice.objects.filter(pk__in=over).update(cleared_at=now)


def _moved_on(machine: Machine, *, now: datetime) -> bool:
    """Make the move that the state's silence calls for; false where a person has to act."""
    silence = STATES[State(machine.state)].silence
    if silence is None:
        return False
    reason = f"nobody did it by {machine.deadline_at:%Y-%m-%d %H:%M}"
    try:
        with transaction.atomic():
            move_machine(machine, silence, actor=ACTOR, now=now, reason=reason)
    except StaleMachine:  # somebody did it just now
        pass
    return True


def _overdue(machine: Machine) -> str:
    owner = machine.held_by or machine.owner_team or machine.owner_role
    return (
        f"{machine.state} since {machine.entered_at:%Y-%m-%d %H:%M}, was to be over by "
        f"{machine.deadline_at:%Y-%m-%d %H:%M} UTC; {owner} has it, next: {machine.next_step}"
    )


def watch_bypasses(*, now: datetime) -> int:
    """Raise `gate_bypassed` for each machine on which a job began that should not have.

    Jobs that were there before the machine left work may end; those of a gate's own checks run in
    the partition that the setting `GATE_PARTITION` names. Safe to repeat. Returns how many are new.
    """
    away = Machine.objects.filter(may_take_work=False).exclude(job="")
    rows = list(away.values_list("pk", "job", "state", "entered_at"))
    machines = [pk for pk, *_ in rows]
    jobs = {job.name: job for job in Job.objects.filter(name__in={job for _, job, *_ in rows})}
    left, cordoned = _left_service(machines), _cordoned(machines)
    said_of = {}
    for pk, name, state, entered_at in rows:
        since = min(filter(None, (left.get(pk, entered_at), cordoned.get(pk))), default=entered_at)
        if state == State.IN_SERVICE:
            if pk not in cordoned:
                continue  # somebody else drained it at the scheduler: the work on it is theirs
            since = cordoned[pk]
        if _is_bypass(jobs.get(name), state, since=since):
            said_of[pk] = (
                f"job {name} runs on it; it is {state} and may take no work since "
                f"{since:%Y-%m-%d %H:%M} UTC"
            )
    return keep_notices(BYPASSED, said_of, now=now)


def _is_bypass(job: Job | None, state: str, *, since: datetime) -> bool:
    if job is None or job.started_at is None:
        return state not in (State.IN_SERVICE, State.DRAINING)  # it may be from before
    if settings.GATE_PARTITION and job.partition == settings.GATE_PARTITION:
        return False
    return job.started_at > since + _GRACE


def _left_service(machines: Iterable[int]) -> dict[int, datetime]:
    changes = StateChange.objects.filter(machine__in=machines, old_state=State.IN_SERVICE)
    return dict(changes.order_by().values_list("machine").annotate(at=Max("at")))


def _cordoned(machines: Iterable[int]) -> dict[int, datetime]:
    """Return since when a cordon of ours stands on each of these machines."""
    cordons = Cordon.objects.filter(machine__in=machines, lifted_at=None).exclude(
        owner__startswith=AT_SCHEDULER
    )
    return dict(cordons.order_by().values_list("machine").annotate(at=Min("since")))
