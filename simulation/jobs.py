"""The virtual scheduler's jobs: how they are placed on machines, and which ran where when.

Placement is a repeated reconcile: it looks at what runs and who may take work, and starts what
fits. A job's size, length and owner follow from the seed and its number in its partition.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction

from fleet.adapters import RunningJob
from simulation.fleet_model import FleetModel, MachineFacts
from simulation.models import VirtualFleet, VirtualJob, VirtualMachine
from simulation.parameters import JobMix
from simulation.streams import Purpose, stream

#: Idle machines by their features; machines of one group have the same ones.
Groups = dict[tuple[tuple[str, str], ...], list[MachineFacts]]
#: How the feature begins that stands for a reservation; its end follows.
UNTIL = "reserved until "
OWNERS = ("ann", "bela", "chen", "dana")


def running_on(machine: VirtualMachine, *, now: datetime) -> VirtualJob | None:
    """Return the job that runs on a machine now, or None."""
    running = VirtualJob.objects.filter(
        fleet=machine.fleet_id, started_at__lte=now, ends_at__gt=now
    )
    return next((job for job in running if machine.index in job.machines), None)


def listed(fleet: VirtualFleet, model: FleetModel, *, now: datetime) -> list[RunningJob] | None:
    """Return the scheduler's list of running jobs; None where machines keep theirs for ever."""
    if model.parameters.jobs is None:
        return None
    return [
        RunningJob(
            name=job.name,
            machines=[model.machines[index].name for index in job.machines],
            kind=job.kind,
            owner=job.owner,
            partition=job.partition,
            started_at=job.started_at,
            expected_end=max(job.expected_end, now),
        )
        for job in fleet.jobs.filter(started_at__lte=now, ends_at__gt=now)
    ]


@transaction.atomic
def place(fleet: VirtualFleet, model: FleetModel, *, now: datetime) -> int:
    """Start the jobs that fit on idle machines which may take work; return how many started.

    Safe to repeat: what runs already is left alone, and a number is given once. A machine that is
    drained, out of service or cordoned is never given a job.
    """
    if model.parameters.jobs is None:
        return 0
    VirtualFleet.objects.select_for_update().get(pk=fleet.pk)
    free = _free(fleet, model, now=now)
    sizes: dict[str, int] = defaultdict(int)
    for facts in model.machines:
        sizes[_partition(facts)] += 1
    return sum(
        _fill(fleet, model, partition, free.get(partition, {}), size=size, now=now)
        for partition, size in sorted(sizes.items())
    )


def _partition(facts: MachineFacts) -> str:
    return f"{facts.layout.prefix}-{facts.site}"


def _free(fleet: VirtualFleet, model: FleetModel, *, now: datetime) -> dict[str, Groups]:
    """Return the idle machines of each partition, by the features that keep jobs apart."""
    running = fleet.jobs.filter(started_at__lte=now, ends_at__gt=now)
    taken = {index for job in running for index in job.machines}
    free: dict[str, Groups] = defaultdict(lambda: defaultdict(list))
    rows = fleet.machines.filter(machine__may_take_work=True, foreign_drain={}).order_by("index")
    for index, drains, features in rows.values_list("index", "drains", "features"):
        if index not in taken and not drains:
            group = tuple(sorted(_standing(features, now=now).items()))
            free[_partition(model.machines[index])][group].append(model.machines[index])
    return free


def _standing(features: dict[str, str], *, now: datetime) -> dict[str, str]:
    """Return the features without those of reservations that have ended."""
    return {
        name: group
        for name, group in features.items()
        if not group.startswith(UNTIL) or datetime.fromisoformat(group.removeprefix(UNTIL)) > now
    }


def _fill(
    fleet: VirtualFleet,
    model: FleetModel,
    partition: str,
    free: Groups,
    *,
    size: int,
    now: datetime,
) -> int:
    """Start the partition's next jobs in their order, until one does not fit or the load is on."""
    mix = model.parameters.jobs or JobMix()
    ordinal = fleet.jobs.filter(partition=partition).count()
    started: list[VirtualJob] = []
    while sum(map(len, free.values())) > (1 - mix.load) * size:
        job, wanted = _job(fleet, partition, ordinal + len(started), mix, now=now)
        # A job never spans two groups; of those it fits into, the one with most room takes it.
        group = max(free, key=lambda name: len(free[name]))
        if wanted > len(free[group]):
            break
        chosen, free[group] = free[group][:wanted], free[group][wanted:]
        job.machines = [facts.index for facts in chosen]
        job.kind = chosen[0].workload
        started.append(job)
    VirtualJob.objects.bulk_create(started)
    return len(started)


def _job(
    fleet: VirtualFleet, partition: str, ordinal: int, mix: JobMix, *, now: datetime
) -> tuple[VirtualJob, int]:
    """Draw the partition's job of that number, and how many machines it wants."""
    address = sum(ord(letter) * 31**at for at, letter in enumerate(partition)) % 2**31
    rng = stream(fleet.seed, Purpose.JOBS, address, ordinal)
    hours = max(0.25, float(rng.exponential(mix.mean_hours)))
    length = timedelta(hours=hours)
    job = VirtualJob(
        fleet=fleet,
        name=f"{partition}-{ordinal + 1:05d}",
        partition=partition,
        ordinal=ordinal,
        owner=OWNERS[int(rng.integers(len(OWNERS)))],
        started_at=now,
        ends_at=now + length,
        expected_end=now + length * mix.overestimate,
    )
    return job, int(rng.choice(mix.sizes))


class Placements:
    """Which job ran on which machine when, over an interval."""

    def __init__(self, fleet: VirtualFleet, *, low: datetime, high: datetime) -> None:
        self._on: dict[int, list[VirtualJob]] = defaultdict(list)
        for job in fleet.jobs.filter(started_at__lt=high, ends_at__gt=low):
            for index in job.machines:
                self._on[index].append(job)

    def job(self, index: int, when: datetime) -> VirtualJob | None:
        """Return the job that ran on a machine at a time, or None."""
        held = self._on.get(index, ())
        return next((job for job in held if job.started_at <= when < job.ends_at), None)

    def mates(self, index: int, when: datetime) -> Sequence[int]:
        """Return the other machines of the job that ran there: they start anew together."""
        job = self.job(index, when)
        return [] if job is None else [other for other in job.machines if other != index]
