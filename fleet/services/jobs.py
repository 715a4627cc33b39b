"""Take over what the scheduler says is running, and where."""

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from fleet.adapters import RunningJob
from fleet.bulk import batches
from fleet.models import Job, Machine
from fleet.services.watch import watch_bypasses

_LOOK_UP = 1000
_FACTS = ("kind", "owner", "partition", "started_at", "expected_end")


@transaction.atomic
def record_jobs(jobs: Sequence[RunningJob], *, now: datetime) -> None:
    """Make the scheduler's whole list of running jobs the present one; machines follow it.

    A job that is missing from the list has ended. Safe to repeat, and to race: the list that was
    taken last stands. Machines that the list does not name have no job; a name that is no
    machine's scheduler node, nor its name, is left out. A job on a machine that may not take work
    is told of at once.
    """
    listed = {job.name: job for job in jobs}
    known = _known(list(listed))
    Job.objects.bulk_create(
        [_row(job, now=now) for name, job in listed.items() if name not in known],
        batch_size=_LOOK_UP,
        ignore_conflicts=True,
    )
    changed = [_renewed(known[name], job, now=now) for name, job in listed.items() if name in known]
    gone = [_ended(job, now=now) for job in known.values() if _is_over(job, listed)]
    Job.objects.bulk_update(
        [*changed, *gone], [*_FACTS, "is_running", "ended_at", "seen_at"], batch_size=_LOOK_UP
    )
    _place(listed)
    watch_bypasses(now=now)


def _known(names: Sequence[str]) -> dict[str, Job]:
    """Return, locked, the jobs that run by the last list and those of this one."""
    rows = Job.objects.select_for_update().order_by("pk")
    known = {job.name: job for job in rows.filter(is_running=True)}
    for some in batches([name for name in names if name not in known], size=_LOOK_UP):
        known |= {job.name: job for job in rows.filter(name__in=some)}
    return known


def _row(job: RunningJob, *, now: datetime) -> Job:
    return Job(name=job.name, seen_at=now, **{name: getattr(job, name) for name in _FACTS})


def _renewed(row: Job, job: RunningJob, *, now: datetime) -> Job:
    for name in _FACTS:
        setattr(row, name, getattr(job, name))
    row.is_running, row.ended_at, row.seen_at = True, None, now
    return row


def _is_over(job: Job, listed: dict[str, RunningJob]) -> bool:
    return job.is_running and job.name not in listed


def _ended(job: Job, *, now: datetime) -> Job:
    job.is_running, job.ended_at, job.seen_at = False, now, now
    return job


def _place(listed: dict[str, RunningJob]) -> None:
    """Write each machine's present job where it differs from what the row says."""
    job_of = {node: job.name for job in listed.values() for node in job.machines}
    kind_of = {job.name: job.kind for job in listed.values()}
    moved: dict[str, list[int]] = {}
    for pk, name, node, present in Machine.objects.values_list(
        "pk", "name", "scheduler_node", "job"
    ).iterator(chunk_size=5000):
        wanted = job_of.get(node or name, "")
        if wanted != present:
            moved.setdefault(wanted, []).append(pk)
    for wanted, ids in sorted(moved.items()):
        fields = {"job": wanted} | ({"workload": kind_of[wanted]} if kind_of.get(wanted) else {})
        for some in batches(ids, size=_LOOK_UP):
            Machine.objects.filter(pk__in=some).update(**fields)
