"""Who works beside whom: the jobs and places of a wave's machines, and of those treated earlier."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from django.db.models import Exists, OuterRef, QuerySet, Sum

from fleet.columns import read_columns
from fleet.models import Machine, Observation
from rollouts.aggregation.reading import Cutoff, codes, of_roster
from rollouts.aggregation.roster import Roster
from rollouts.analysis.neighbours import exposure_purity, near_canaries
from rollouts.analysis.policy import NODE_PROBE
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray
from rollouts.models import Assignment, Membership, Wave


@dataclass(frozen=True)
class Surroundings:
    """Jobs and places of the roster, and of whoever got the bundle in an earlier wave.

    A piece is a machine's exposure in one job (-1: in none). `places` holds one code per machine
    for each kind of place that the inventory names at all; `treated_groups` are the codes, over
    jobs and places, in which an earlier wave's machine stands.
    """

    machine: IntArray
    job: IntArray
    seconds: FloatArray
    is_mixed: BoolArray
    places: tuple[IntArray, ...]
    is_unplaced: BoolArray
    treated_groups: IntArray
    has_unplaced_treated: bool

    def purity(self, roster: Roster) -> float | None:
        """Share of exposure in jobs whose machines are all in one arm; None without jobs."""
        share = exposure_purity(
            self.job,
            self.seconds,
            is_canary=roster.is_canary_machine[self.machine],
            is_mixed=self.is_mixed,
        )
        return None if share is None else round(share, 9)

    def near_units(self, roster: Roster) -> BoolArray | None:
        """Units that share a job or a place with a canary; None where no place is known.

        Who stands in no place that the others have may stand anywhere: it is not called far.
        """
        if not self.places:
            return None
        canary = roster.is_canary_machine
        everyone = np.arange(canary.size, dtype=np.int64)
        in_job = self.job >= 0
        machine = [self.machine[in_job], *([everyone] * len(self.places))]
        group = [self.job[in_job], *self.places]
        # One more machine stands for those that earlier waves have treated.
        machine.append(np.full(self.treated_groups.size, canary.size, dtype=np.int64))
        near = near_canaries(
            np.concatenate(machine),
            np.concatenate([*group, self.treated_groups]),
            is_canary=np.append(canary, True),
        )[:-1]
        near |= self.is_unplaced
        if self.has_unplaced_treated or (self.is_unplaced & canary).any():
            near[:] = True
        units = np.zeros(len(roster.unit_names), dtype=np.bool_)
        units[roster.machines.unit[near]] = True
        return units


PLACES = ("leaf", "nvlink_domain", "chassis", "rack", "power_domain")


def surroundings(wave: Wave, roster: Roster, cutoff: Cutoff) -> Surroundings:
    fields = ("job", "site", *PLACES)
    (ids,), columns = read_columns(
        Membership.objects.filter(wave=wave).order_by(),
        numbers=("machine_id",),
        names=[f"machine__{name}" for name in fields],
    )
    order = np.argsort(roster.index(ids))
    here = {
        name: [column[row] for row in order.tolist()]
        for name, column in zip(fields, columns, strict=True)
    }
    earlier = Assignment.objects.filter(rollout=wave.rollout_id, wave__number__lt=wave.number)
    treated = list(
        Machine.objects.filter(pk__in=earlier.values("machine")).values_list(*fields).distinct()
    )
    machine, names, seconds = _pieces(wave, roster, cutoff, present=here["job"])
    treated_jobs = {row[0] for row in treated} | _jobs_of(earlier, cutoff)
    treated_jobs.discard("")
    job, groups = codes([*names, *sorted(treated_jobs), ""])
    job -= 1  # the empty name sorts first: no job
    jobs = len(groups) - 1
    mixed = treated_jobs | _jobs_of_strangers(wave) if jobs else set()
    treated_groups = [job[len(names) : -1]]
    places, unplaced, has_unplaced = [], np.zeros(ids.size, dtype=np.bool_), False
    first = jobs
    for field, name in enumerate(PLACES, start=2):
        mine, theirs = here[name], [row[field] for row in treated]
        if not any(mine) and not any(theirs):
            continue
        keys = [f"{site}\0{place}" for site, place in zip(here["site"], mine, strict=True)]
        keys += [f"{row[1]}\0{row[field]}" for row in treated]
        code, kinds = codes(keys)
        places.append(first + code[: ids.size])
        treated_groups.append(first + code[ids.size :])
        first += len(kinds)
        unplaced |= np.array([not place for place in mine], dtype=np.bool_)
        has_unplaced |= not all(theirs)
    return Surroundings(
        machine=machine,
        job=job[: len(names)],
        seconds=seconds,
        is_mixed=np.array([name in mixed for name in groups[1:]], dtype=np.bool_),
        places=tuple(places),
        is_unplaced=unplaced,
        treated_groups=np.concatenate(treated_groups),
        has_unplaced_treated=has_unplaced,
    )


def _pieces(
    wave: Wave, roster: Roster, cutoff: Cutoff, *, present: Sequence[str]
) -> tuple[IntArray, list[str], FloatArray]:
    """Machine, job and in-service seconds of every piece of exposure since the clock's start.

    A machine of which no report names a job is taken to have been in its present one. Without
    any report of its own it weighs nothing; where nobody reports, all weigh the same.
    """
    rows = (
        of_roster(Observation.objects.filter(is_ahead=False), wave)
        .filter(end__gt=cutoff.origin, end__lte=cutoff.as_of, received_at__lte=cutoff.arrived_by)
        .exclude(workload=NODE_PROBE)
        .order_by()
        .values("machine_id", "job")
        .annotate(seconds=Sum("in_service_seconds"))
    )
    (ids, seconds), (jobs,) = read_columns(rows, numbers=("machine_id", "seconds"), names=("job",))
    machine = roster.index(ids)
    told = {index for index, job in zip(machine.tolist(), jobs, strict=True) if job}
    names = [
        job if index in told else present[index]
        for index, job in zip(machine.tolist(), jobs, strict=True)
    ]
    silent = np.setdiff1d(np.arange(len(present)), machine)
    weight = 0.0 if machine.size else 1.0
    return (
        np.concatenate([machine, silent]).astype(np.int64),
        [*names, *(present[index] for index in silent.tolist())],
        np.round(np.concatenate([seconds, np.full(silent.size, weight)]), 6),
    )


def _jobs_of(treated: QuerySet[Assignment], cutoff: Cutoff) -> set[str]:
    """Jobs that the machines of earlier waves have worked on since the clock's start."""
    rows = Observation.objects.filter(
        machine__in=treated.values("machine"), end__gt=cutoff.origin, end__lte=cutoff.as_of
    )
    return set(rows.exclude(job="").order_by().values_list("job", flat=True).distinct())


def _jobs_of_strangers(wave: Wave) -> set[str]:
    """Present jobs of machines that are in neither arm."""
    members = Membership.objects.filter(wave=wave, machine=OuterRef("pk"))
    rows = Machine.objects.exclude(job="").filter(~Exists(members))
    return set(rows.order_by().values_list("job", flat=True).distinct())
