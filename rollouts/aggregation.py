"""From rows to samples: what had arrived of one wave's roster by one cutoff.

Few statements, and never one more for more machines: telemetry is chosen by a sub-select on the
roster. Rows become columns at once. Machines and units are ordered by name, so nothing in the
order tells the arms apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import numpy as np
from django.db.models import (
    Avg,
    Count,
    Exists,
    F,
    Model,
    OuterRef,
    Q,
    QuerySet,
    Sum,
)

from fleet.columns import Seconds, read_columns
from fleet.models import (
    CounterSample,
    Fault,
    FaultSignature,
    FirmwareBundle,
    FirmwareImage,
    Machine,
    Observation,
    Recovery,
    StateChange,
    TelemetryHold,
)
from rollouts.analysis.labels import Design
from rollouts.analysis.neighbours import exposure_purity, near_canaries
from rollouts.analysis.policy import NODE_PROBE
from rollouts.analysis.quality import usable
from rollouts.analysis.samples import (
    AttemptRows,
    BoolArray,
    FaultEvents,
    FloatArray,
    IntArray,
    LevelsBefore,
    Machines,
    ObservationRows,
    RecoveryRows,
    Samples,
    ServiceIntervals,
    Units,
)
from rollouts.errors import MixedUnit
from rollouts.lifecycle import FAILURES, AttemptStatus, Status
from rollouts.models import Assignment, Attempt, Membership, Rollout, Wave

PRE_DAYS = 14
"""Length of the period before a wave, from which covariates come."""

FIELD_BASELINE = 0.013
"""Share of reboots after which a machine does not return, whatever the firmware (field figure)."""

LEAST_BASELINE_ATTEMPTS = 200
"""Fewer finished attempts say less of the fleet than the field's figure does."""

MACHINE = "machine"
"""The placement unit that is the machine itself."""

BRICKED = Attempt.Triage.BRICKED.value

Row = TypeVar("Row", bound=Model)


def samples_for(wave: Wave, *, as_of: datetime, arrived_by: datetime | None = None) -> Samples:
    """Everything about a wave's machines that had happened by `as_of` and arrived by then.

    Parameters
    ----------
    wave : Wave
        With its frozen roster; time counts from the clock start of its first block.
    as_of : datetime
        The cutoff: later events are left out.
    arrived_by : datetime, optional
        Rows received later are left out; by default `as_of` itself.

    Notes
    -----
    Intention to treat: everybody on the roster keeps its place, whatever became of the machine.
    Members of a block whose clock has not started have an infinite clock start.
    """
    cutoff = _Cutoff(
        origin=_origin(wave, as_of=as_of),
        as_of=as_of,
        arrived_by=arrived_by or as_of,
        before=wave.started_at or _origin(wave, as_of=as_of),
    )
    roster = _roster(wave, cutoff)
    observations = _observations(wave, roster, cutoff)
    faults = _faults(wave, roster, cutoff)
    levels = _levels_before(wave, roster, cutoff)
    around = _surroundings(wave, roster, cutoff)
    return Samples(
        origin=cutoff.origin,
        as_of_seconds=cutoff.seconds(as_of),
        window_seconds=wave.window_hours * 3600.0,
        units=Units(
            name=roster.unit_names,
            is_canary=roster.is_canary.astype(np.bool_),
            stratum=roster.stratum,
            clock_start_seconds=roster.clock_start,
            covariates={
                "faults": _faults_before(roster, faults, cutoff),
                "throughput": _throughput_before(roster, levels),
            },
            is_near_canary=around.near_units(roster),
            placement=_placement(wave, roster),
        ),
        machines=roster.machines,
        service=_service(wave, roster, cutoff),
        faults=faults if _collected(Fault, cutoff) or observations is not None else None,
        observations=observations,
        recoveries=_recoveries(wave, roster, cutoff),
        attempts=_attempts(wave, roster, cutoff),
        interval_seconds=_interval_seconds(observations),
        known_signatures=_known_signatures(cutoff),
        install_baseline=install_baseline(wave.rollout),
        purity=around.purity(roster),
        levels_before=levels,
        before_seconds=cutoff.seconds(cutoff.before),
        withheld=_withheld(wave, cutoff),
    )


def design_of(wave: Wave) -> Design:
    """Who could have been canary in a wave: its frozen roster, as every look of it saw it."""
    at = wave.started_at or wave.rollout.created_at
    roster = _roster(wave, _Cutoff(origin=at, as_of=at, arrived_by=at, before=at))
    return Design(stratum=roster.stratum, is_canary=roster.is_canary.astype(np.bool_))


@dataclass(frozen=True)
class _Cutoff:
    """The comparison's origin, its cutoffs, and the end of the period before it."""

    origin: datetime
    as_of: datetime
    arrived_by: datetime
    before: datetime

    def seconds(self, at: datetime) -> float:
        return (at - self.origin).total_seconds()

    @property
    def pre_start(self) -> datetime:
        return self.before - timedelta(days=PRE_DAYS)


def _origin(wave: Wave, *, as_of: datetime) -> datetime:
    """The clock start of the first block; before there is one, nothing has begun by `as_of`."""
    return (wave.clock_start or as_of).astimezone(UTC)


# --- reading ---------------------------------------------------------------------------------


def _since(origin: datetime, epoch: FloatArray) -> FloatArray:
    return np.round(epoch - origin.timestamp(), 6)


def _codes(values: Sequence[str]) -> tuple[IntArray, tuple[str, ...]]:
    """Codes into the sorted distinct values."""
    names = tuple(sorted(set(values)))
    code = {name: index for index, name in enumerate(names)}
    return np.array([code[value] for value in values], dtype=np.int64), names


def _of_roster(rows: QuerySet[Row, Row], wave: Wave) -> QuerySet[Row, Row]:
    """Rows of the wave's machines, chosen by a sub-select: as many parameters for any size."""
    return rows.filter(machine__in=Membership.objects.filter(wave=wave).values("machine"))


def _collected(model: type[Model], cutoff: _Cutoff) -> bool:
    """Has this kind of report ever arrived, from any machine? If not, its silence says nothing."""
    rows: QuerySet[Any, Any] = model._default_manager.filter(received_at__lte=cutoff.arrived_by)
    return rows.exists()


# --- the roster ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Roster:
    """Machines and units by name, and the index of a machine by its key."""

    machines: Machines
    unit_names: tuple[str, ...]
    is_canary: FloatArray
    stratum: IntArray
    clock_start: FloatArray
    sorted_ids: IntArray
    place: IntArray

    @property
    def is_canary_machine(self) -> BoolArray:
        return self.is_canary.astype(np.bool_)[self.machines.unit]

    def index(self, machine_ids: FloatArray) -> IntArray:
        """Index of each machine; every one must be on the roster."""
        return self.place[np.searchsorted(self.sorted_ids, machine_ids.astype(np.int64))]


def _roster(wave: Wave, cutoff: _Cutoff) -> _Roster:
    (ids, is_canary, block, clock, registered), (names, units, strata) = read_columns(
        Membership.objects.filter(wave=wave).order_by(),
        numbers=(
            "machine_id",
            Q(arm=Membership.Arm.CANARY),
            "block__number",
            Seconds(F("block__clock_start")),
            Seconds(F("machine__registered_at")),
        ),
        names=("machine__name", "unit", "stratum"),
    )
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    unit, unit_names = _codes([units[index] for index in order])
    cells = [f"{strata[index]}\0{int(block[index]):05d}" for index in order]
    stratum, _ = _codes(cells)
    start = _since(cutoff.origin, clock[order])
    start = np.where(np.isnan(start) | (start > cutoff.seconds(cutoff.as_of)), np.inf, start)
    first = np.unique(unit, return_index=True)[1]
    for column, what in ((is_canary[order], "arm"), (stratum, "stratum or block")):
        _require_one_value(column, unit=unit, first=first, names=unit_names, what=what)
    keys = ids[order].astype(np.int64)
    place = np.argsort(keys)
    return _Roster(
        machines=Machines(
            name=tuple(names[index] for index in order),
            unit=unit,
            enrolled_seconds=_since(cutoff.origin, registered[order]),
            left_seconds=np.full(keys.size, np.inf),
        ),
        unit_names=unit_names,
        is_canary=is_canary[order][first],
        stratum=stratum[first],
        clock_start=start[first],
        sorted_ids=keys[place],
        place=place.astype(np.int64),
    )


def _require_one_value(
    column: FloatArray | IntArray,
    *,
    unit: IntArray,
    first: IntArray,
    names: Sequence[str],
    what: str,
) -> None:
    """The machines of a unit were randomised together, so they share arm, stratum and block."""
    bad = np.flatnonzero(column != column[first][unit])
    if bad.size:
        raise MixedUnit(f"the machines of unit {names[unit[bad[0]]]!r} differ in their {what}")


def _placement(wave: Wave, roster: _Roster) -> str:
    """What the assignment drew, as the roster shows it."""
    is_machine = roster.unit_names == roster.machines.name
    planned = str(wave.rollout.plan.get("unit", MACHINE))
    return planned if is_machine or planned != MACHINE else "group of machines"


def _faults_before(roster: _Roster, faults: FaultEvents, cutoff: _Cutoff) -> FloatArray:
    """A unit's fault count in the period before the wave; the judge takes its square root."""
    early = faults.machine[faults.time_seconds < cutoff.seconds(cutoff.before)]
    counts = np.bincount(roster.machines.unit[early], minlength=len(roster.unit_names))
    return counts.astype(np.float64)


def _levels_before(wave: Wave, roster: _Roster, cutoff: _Cutoff) -> LevelsBefore:
    """Each machine's mean throughput per workload in the period before.

    Only what had arrived when the wave started counts, so the value never changes.
    """
    rows = (
        _of_roster(Observation.objects.filter(is_ahead=False), wave)
        .filter(
            end__gt=cutoff.pre_start,
            end__lte=cutoff.before,
            received_at__lte=cutoff.before,
            throughput__isnull=False,
        )
        .order_by()
        .values("machine_id", "workload")
        .annotate(mean=Avg("throughput"))
    )
    (ids, mean), (workloads,) = read_columns(
        rows, numbers=("machine_id", "mean"), names=("workload",)
    )
    workload, kinds = _codes(workloads)
    machine = roster.index(ids)
    order = np.lexsort((workload, machine))
    return LevelsBefore(
        unit=roster.machines.unit[machine[order]],
        workload=workload[order],
        # A server may add up in another order each time.
        throughput=np.round(mean[order], 9),
        workloads=kinds,
    )


def _throughput_before(roster: _Roster, levels: LevelsBefore) -> FloatArray:
    """A unit's throughput in the period before: mean over workloads of the ratio to its level.

    The level of a workload is the mean over all machines of the roster that ran it, both arms.
    """
    kinds = len(levels.workloads)
    per_kind = np.bincount(levels.workload, minlength=kinds)
    total = np.bincount(levels.workload, weights=levels.throughput, minlength=kinds)
    level = total / np.maximum(per_kind, 1)
    is_probe = np.array([name == NODE_PROBE for name in levels.workloads], dtype=np.bool_)
    known = (level[levels.workload] > 0) & ~is_probe[levels.workload]
    ratio = levels.throughput[known] / level[levels.workload[known]]
    unit, units = levels.unit[known], len(roster.unit_names)
    count = np.bincount(unit, minlength=units)
    sums = np.bincount(unit, weights=ratio, minlength=units)
    return np.where(count > 0, sums / np.maximum(count, 1), np.nan)


# --- who works beside whom -------------------------------------------------------------------


@dataclass(frozen=True)
class _Surroundings:
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

    def purity(self, roster: _Roster) -> float | None:
        """Share of exposure in jobs whose machines are all in one arm; None without jobs."""
        share = exposure_purity(
            self.job,
            self.seconds,
            is_canary=roster.is_canary_machine[self.machine],
            is_mixed=self.is_mixed,
        )
        return None if share is None else round(share, 9)

    def near_units(self, roster: _Roster) -> BoolArray | None:
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


def _surroundings(wave: Wave, roster: _Roster, cutoff: _Cutoff) -> _Surroundings:
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
    job, groups = _codes([*names, *sorted(treated_jobs), ""])
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
        code, kinds = _codes(keys)
        places.append(first + code[: ids.size])
        treated_groups.append(first + code[ids.size :])
        first += len(kinds)
        unplaced |= np.array([not place for place in mine], dtype=np.bool_)
        has_unplaced |= not all(theirs)
    return _Surroundings(
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
    wave: Wave, roster: _Roster, cutoff: _Cutoff, *, present: Sequence[str]
) -> tuple[IntArray, list[str], FloatArray]:
    """Machine, job and in-service seconds of every piece of exposure since the clock's start.

    A machine of which no report names a job is taken to have been in its present one. Without
    any report of its own it weighs nothing; where nobody reports, all weigh the same.
    """
    rows = (
        _of_roster(Observation.objects.filter(is_ahead=False), wave)
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


def _jobs_of(treated: QuerySet[Assignment], cutoff: _Cutoff) -> set[str]:
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


# --- what happened ---------------------------------------------------------------------------


def _service(wave: Wave, roster: _Roster, cutoff: _Cutoff) -> ServiceIntervals:
    """Times in service, from the machines' own changes of state, since the period before."""
    in_service = Machine.State.IN_SERVICE.value
    moves = _of_roster(StateChange.objects.all(), wave).filter(
        Q(new_state=in_service) | Q(old_state=in_service)
    )
    (ids, at, enters, key), _ = read_columns(
        moves.order_by(),
        numbers=("machine_id", Seconds(F("at")), Q(new_state=in_service), "pk"),
    )
    machine, at = roster.index(ids), _since(cutoff.origin, at)
    order = np.lexsort((key, at, machine))
    machine, at, is_entry = machine[order], at[order], enters[order].astype(np.bool_)

    is_last = np.append(machine[1:] != machine[:-1], True)[: machine.size]
    is_first = np.append(True, machine[1:] != machine[:-1])[: machine.size]
    following = np.where(is_last, np.inf, np.append(at[1:], np.inf)[: at.size])
    leads_out = is_first & ~is_entry  # it was in service since before its first recorded move
    still, since = _never_moved(wave, roster, moved=np.unique(machine), cutoff=cutoff)
    return _clipped(
        machine=np.concatenate([machine[is_entry], machine[leads_out], still]),
        start=np.concatenate(
            [at[is_entry], roster.machines.enrolled_seconds[machine[leads_out]], since]
        ),
        end=np.concatenate([following[is_entry], at[leads_out], np.full(still.size, np.inf)]),
        cutoff=cutoff,
    )


def _never_moved(
    wave: Wave, roster: _Roster, *, moved: IntArray, cutoff: _Cutoff
) -> tuple[IntArray, FloatArray]:
    """Machines in service without any recorded move, and since when."""
    if moved.size == len(roster.machines.name):
        return np.empty(0, dtype=np.int64), np.empty(0)
    rows = Membership.objects.filter(wave=wave, machine__state=Machine.State.IN_SERVICE)
    (ids, entered), _ = read_columns(
        rows.order_by(), numbers=("machine_id", Seconds(F("machine__entered_at")))
    )
    machine = roster.index(ids)
    unmoved = ~np.isin(machine, moved)
    return machine[unmoved], _since(cutoff.origin, entered[unmoved])


def _clipped(
    *, machine: IntArray, start: FloatArray, end: FloatArray, cutoff: _Cutoff
) -> ServiceIntervals:
    """Since the period before, and as known at the cutoff: an end after it is still open."""
    end = np.where(end > cutoff.seconds(cutoff.as_of), np.inf, end)
    start = np.maximum(start, cutoff.seconds(cutoff.pre_start))
    kept = (start <= cutoff.seconds(cutoff.as_of)) & (end > start)
    order = np.lexsort((start[kept], machine[kept]))
    return ServiceIntervals(
        machine=machine[kept][order],
        start_seconds=start[kept][order],
        end_seconds=end[kept][order],
    )


def _faults(wave: Wave, roster: _Roster, cutoff: _Cutoff) -> FaultEvents:
    """Faults since the period before; signatures that the catalogue does not count are left out."""
    rows = (
        _of_roster(Fault.objects.filter(is_ahead=False), wave)
        .filter(
            time__gte=cutoff.pre_start,
            time__lte=cutoff.as_of,
            received_at__lte=cutoff.arrived_by,
        )
        .exclude(signature__kind=FaultSignature.Kind.NOT_COUNTED)
    )
    if TelemetryHold.objects.filter(machine__in=wave.members.values("machine")).exists():
        rows = rows.exclude(_of_held_bmcs())
    (ids, time), (signatures, severities) = read_columns(
        rows.order_by(),
        numbers=("machine_id", Seconds(F("time"))),
        names=("signature__name", "severity"),
    )
    machine, time = roster.index(ids), _since(cutoff.origin, time)
    signature, names = _codes(signatures)
    severity, grades = _codes(severities)
    order = np.lexsort((severity, signature, time, machine))
    return FaultEvents(
        machine=machine[order],
        time_seconds=time[order],
        signature=signature[order],
        signatures=names,
        # One severity per event: the same signature may come in several.
        severity=tuple(grades[code] for code in severity[order]),
    )


#: Families of signatures that a BMC tells of.
BMC_FAMILIES = ("bmc", "thermal")
#: Machines that are named where their BMC's telemetry is held back.
_MOST_HELD = 3


def _withheld(wave: Wave, cutoff: _Cutoff) -> dict[str, str]:
    """Name the signatures that cannot be counted at this cutoff, and why."""
    return {**_of_fallen_counters(wave, cutoff), **_of_bmcs(wave, cutoff)}


def _of_fallen_counters(wave: Wave, cutoff: _Cutoff) -> dict[str, str]:
    """Name what counters of the wave's machines count that went backwards in the window."""
    fallen = CounterSample.objects.filter(
        is_backwards=True,
        time__gt=cutoff.origin,
        time__lte=cutoff.as_of,
        machine__in=wave.members.values("machine"),
    ).order_by("-time")
    names = fallen.values_list("signature", "machine__name", "time")[:_MOST_HELD]
    return {
        signature: f"its counter went backwards on {machine} at {time:%Y-%m-%d %H:%M}"
        for signature, machine, time in names
    }


def _of_bmcs(wave: Wave, cutoff: _Cutoff) -> dict[str, str]:
    """Name the signatures that no BMC of the wave may tell of while one of them is held back."""
    holds = (
        TelemetryHold.objects.filter(machine__in=wave.members.values("machine"))
        .filter(since__lte=cutoff.as_of)
        .filter(Q(until=None) | Q(until__gt=cutoff.as_of))
        .select_related("machine")
        .order_by("machine__name")
    )
    held = [f"{hold.machine} ({', '.join(hold.reasons)})" for hold in holds[: _MOST_HELD + 1]]
    if not held:
        return {}
    more = " and more" if len(held) > _MOST_HELD else ""
    reason = f"since its update the BMC does not match of {'; '.join(held[:_MOST_HELD])}{more}"
    names = FaultSignature.objects.filter(family__in=BMC_FAMILIES).values_list("name", flat=True)
    return dict.fromkeys(names, reason)


def _of_held_bmcs() -> Q:
    """Return the condition on faults that a BMC told of while it was held back."""
    holds = TelemetryHold.objects.filter(
        machine=OuterRef("machine"), since__lte=OuterRef("time")
    ).filter(Q(until=None) | Q(until__gt=OuterRef("time")))
    return Q(Exists(holds), signature__family__in=BMC_FAMILIES)


def _observations(wave: Wave, roster: _Roster, cutoff: _Cutoff) -> ObservationRows | None:
    """Interval reports since the first block's clock start; None if none ever came."""
    if not _collected(Observation, cutoff):
        return None
    rows = _of_roster(Observation.objects.filter(is_ahead=False), wave).filter(
        end__gt=cutoff.origin, end__lte=cutoff.as_of, received_at__lte=cutoff.arrived_by
    )
    (ids, start, end, in_service, throughput), (workloads,) = read_columns(
        rows.order_by(),
        numbers=(
            "machine_id",
            Seconds(F("start")),
            Seconds(F("end")),
            "in_service_seconds",
            "throughput",
        ),
        names=("workload",),
    )
    machine = roster.index(ids)
    workload, kinds = _codes(workloads)
    order = np.lexsort((throughput, workload, end, start, machine))
    return ObservationRows(
        machine=machine[order],
        start_seconds=_since(cutoff.origin, start)[order],
        end_seconds=_since(cutoff.origin, end)[order],
        in_service_seconds=in_service[order],
        throughput=throughput[order],
        workload=workload[order],
        workloads=kinds,
    )


def _interval_seconds(observations: ObservationRows | None) -> float | None:
    """Length of a report's interval: the median, both arms pooled; node probes are none."""
    if observations is None:
        return None
    own = usable(observations, needs_throughput=False, is_probe=False)
    if not own.any():
        return None
    return float(np.median((observations.end_seconds - observations.start_seconds)[own]))


def _recoveries(wave: Wave, roster: _Roster, cutoff: _Cutoff) -> RecoveryRows | None:
    """Interruptions since the first block's clock start; a closed row wins over its open one."""
    if not _collected(Recovery, cutoff):
        return None
    arrived = Recovery.objects.filter(received_at__lte=cutoff.arrived_by, is_ahead=False)
    closed = arrived.filter(
        source=OuterRef("source"), source_key=OuterRef("source_key"), recovered_at__isnull=False
    )
    rows = (
        _of_roster(arrived, wave)
        .filter(time__gte=cutoff.origin, time__lte=cutoff.as_of)
        .filter(Q(recovered_at__isnull=False) | ~Exists(closed))
    )
    (ids, time, recovered, taken, repeated), (paths,) = read_columns(
        rows.order_by(),
        numbers=(
            "machine_id",
            Seconds(F("time")),
            Seconds(F("recovered_at")),
            "recovery_seconds",
            "repeated_seconds",
        ),
        names=("path",),
    )
    machine, time = roster.index(ids), _since(cutoff.origin, time)
    recovered = _since(cutoff.origin, recovered)
    path, names = _codes(paths)
    is_open = ~(recovered <= cutoff.seconds(cutoff.as_of))
    recovered = np.where(is_open, np.nan, recovered)
    taken = np.where(is_open, np.nan, np.where(np.isnan(taken), recovered - time, taken))
    order = np.lexsort((path, recovered, time, machine))
    return RecoveryRows(
        machine=machine[order],
        time_seconds=time[order],
        recovered_seconds=recovered[order],
        recovery_seconds=taken[order],
        repeated_seconds=repeated[order],
        path=path[order],
        paths=names,
    )


def _attempts(wave: Wave, roster: _Roster, cutoff: _Cutoff) -> AttemptRows:
    """Finished attempts of the wave in order of finishing; triage alone says that one bricked."""
    outcomes = [AttemptStatus.SUCCEEDED, *FAILURES]
    rows = _of_roster(Attempt.objects.first_tries(), wave).filter(
        wave=wave, status__in=outcomes, finished_at__lte=cutoff.as_of
    )
    (ids, time, key), (statuses, triages) = read_columns(
        rows.order_by(),
        numbers=("machine_id", Seconds(F("finished_at")), "pk"),
        names=("status", "triage"),
    )
    seen = [
        BRICKED if triage == BRICKED else status
        for status, triage in zip(statuses, triages, strict=True)
    ]
    outcome, names = _codes(seen)
    machine, time = roster.index(ids), _since(cutoff.origin, time)
    order = np.lexsort((key, time))
    return AttemptRows(
        machine=machine[order],
        time_seconds=time[order],
        outcome=outcome[order],
        outcomes=names,
    )


# --- what the fleet knew before --------------------------------------------------------------


def _known_signatures(cutoff: _Cutoff) -> frozenset[str]:
    """Signatures that any machine of the fleet had shown before the wave started."""
    shown = Fault.objects.filter(signature=OuterRef("pk"), time__lt=cutoff.before)
    return frozenset(FaultSignature.objects.filter(Exists(shown)).values_list("name", flat=True))


def install_baseline(rollout: Rollout) -> float:
    """Share of installs that fail though nothing is wrong with the firmware."""
    return install_baseline_of(rollout.bundle_id, before=rollout.created_at)


def install_baseline_of(bundle_id: int, *, before: datetime) -> float:
    """Share of installs of a bundle's kind that fail though nothing is wrong with the firmware.

    Taken from rollouts that completed before and whose bundles are activated in the same way;
    where they had too few attempts, the field's figure.
    """
    same_activation = FirmwareBundle.objects.filter(
        images__activation__in=FirmwareImage.objects.filter(bundles=bundle_id).values("activation")
    )
    past = Attempt.objects.filter(
        rollout__status=Status.COMPLETED,
        rollout__finished_at__lte=before,
        rollout__bundle__in=same_activation.values("pk"),
        status__in=[AttemptStatus.SUCCEEDED, *FAILURES],
    ).aggregate(attempts=Count("pk"), failures=Count("pk", filter=Q(status__in=FAILURES)))
    if past["attempts"] < LEAST_BASELINE_ATTEMPTS:
        return FIELD_BASELINE
    return float(past["failures"] / past["attempts"])
