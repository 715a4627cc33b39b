"""One wave of a virtual fleet as the judge's samples, without a database. Pure.

For benchmarks and for planning a demo: the same generators as behind the product's doors, but
installs take no time and never fail, and everybody's clock starts at once.
"""

from datetime import UTC, datetime

import numpy as np

from rollouts.analysis.samples import (
    FaultEvents,
    Machines,
    ObservationRows,
    RecoveryRows,
    Samples,
    ServiceIntervals,
    Units,
)
from simulation.fleet_model import (
    DAY,
    PATHS,
    Faults,
    FleetModel,
    Ints,
    Observations,
    Profile,
    Recoveries,
    Spells,
)

ORIGIN = datetime(2026, 1, 5, tzinfo=UTC)
_BEFORE = -1e15


def draw_wave(
    model: FleetModel,
    *,
    canaries: Ints,
    controls: Ints,
    new: Profile,
    old: Profile,
    start_tick: int,
    window_hours: float,
    extension: float = 0.5,
    pre_days: float = 7.0,
    burn_in_hours: float = 2.0,
) -> Samples:
    """Draw everything that a wave's roster reports, from the period before to the extension's end.

    Canaries boot into `new` at the tick's start, which begins their infant hours; both arms'
    evidence begins after the burn-in. `canaries` and `controls` index `model.machines`.
    """
    boot = model.tick_start(start_tick)
    start = boot + burn_in_hours * 3600
    end = start + window_hours * 3600 * (1 + extension)
    roster = np.sort(np.concatenate([canaries, controls]))
    first = model.tick_at(boot - pre_days * DAY)
    spells = _spells(model, canaries, controls, boot=boot, end=end, new=new, old=old)
    ticks = range(first, model.tick_at(end) + 1)
    happenings = [model.happenings(tick, spells) for tick in ticks]
    reports = [model.observations(tick, spells) for tick in ticks]
    place = np.full(len(model), -1, dtype=np.int64)
    place[roster] = np.arange(len(roster))
    faults = _faults([one for one, _ in happenings], place, start=start, end=end)
    early = faults.machine[faults.time_seconds < boot - start]
    return Samples(
        origin=ORIGIN,
        as_of_seconds=end - start,
        window_seconds=window_hours * 3600,
        units=Units(
            name=tuple(model.machines[index].name for index in roster),
            is_canary=np.isin(roster, canaries),
            stratum=_strata(model, roster),
            clock_start_seconds=np.zeros(len(roster)),
            covariates={
                "faults": np.bincount(early, minlength=len(roster)).astype(np.float64),
                "throughput": _throughput_before(model, reports, ticks, roster, boot=boot),
            },
        ),
        machines=Machines(
            name=tuple(model.machines[index].name for index in roster),
            unit=np.arange(len(roster)),
            enrolled_seconds=np.full(len(roster), boot - start - pre_days * DAY),
            left_seconds=np.full(len(roster), np.inf),
        ),
        service=ServiceIntervals(
            machine=np.arange(len(roster)),
            start_seconds=np.full(len(roster), boot - start - pre_days * DAY),
            end_seconds=np.full(len(roster), np.inf),
        ),
        faults=faults,
        observations=_observations(model, reports, ticks, place, start=start, end=end),
        recoveries=_recoveries([one for _, one in happenings], place, start=start, end=end),
        interval_seconds=model.parameters.tick_seconds,
        known_signatures=frozenset(model.signatures),
    )


def _spells(
    model: FleetModel,
    canaries: Ints,
    controls: Ints,
    *,
    boot: float,
    end: float,
    new: Profile,
    old: Profile,
) -> Spells:
    infant_until = boot + model.parameters.infant_hours * 3600
    return Spells.build(
        [(index, _BEFORE, boot, _BEFORE, 0) for index in canaries]
        + [(index, boot, end, infant_until, 1) for index in canaries]
        + [(index, _BEFORE, end, _BEFORE, 0) for index in controls],
        profiles=[old, new],
    )


def _strata(model: FleetModel, roster: Ints) -> Ints:
    keys = [(model.machines[i].layout.platform, model.machines[i].site) for i in roster]
    return np.unique([f"{platform}/{site}" for platform, site in keys], return_inverse=True)[1]


def _faults(parts: list[Faults], place: Ints, *, start: float, end: float) -> FaultEvents:
    machine = place[np.concatenate([part.machine for part in parts])]
    seconds = np.concatenate([part.seconds for part in parts])
    names = np.concatenate([part.signature for part in parts])
    kept = np.flatnonzero((machine >= 0) & (seconds < end))
    kinds, codes = np.unique(names[kept].astype(str), return_inverse=True)
    order = np.lexsort((codes, seconds[kept], machine[kept]))
    return FaultEvents(
        machine=machine[kept][order],
        time_seconds=seconds[kept][order] - start,
        signature=codes[order].astype(np.int64),
        signatures=tuple(kinds.tolist()),
        severity=("major",) * len(kept),
    )


def _observations(
    model: FleetModel,
    reports: list[Observations],
    ticks: range,
    place: Ints,
    *,
    start: float,
    end: float,
) -> ObservationRows:
    inside = [
        (model.tick_start(tick), report)
        for tick, report in zip(ticks, reports, strict=True)
        if start < model.tick_start(tick + 1) <= end
    ]
    machine = np.concatenate([place[report.machine] for _, report in inside])
    low = np.concatenate([np.full(len(report.machine), at) for at, report in inside]) - start
    kinds, workload = np.unique([facts.workload for facts in model.machines], return_inverse=True)
    member = np.concatenate([report.machine for _, report in inside])
    order = np.lexsort((low, machine))
    order = order[machine[order] >= 0]
    return ObservationRows(
        machine=machine[order],
        start_seconds=low[order],
        end_seconds=low[order] + model.parameters.tick_seconds,
        in_service_seconds=np.concatenate([r.in_service_seconds for _, r in inside])[order],
        throughput=np.concatenate([r.throughput for _, r in inside])[order],
        workload=workload[member][order].astype(np.int64),
        workloads=tuple(kinds.tolist()),
    )


def _throughput_before(
    model: FleetModel, reports: list[Observations], ticks: range, roster: Ints, *, boot: float
) -> np.ndarray:
    sums, counts = np.zeros(len(model)), np.zeros(len(model))
    for tick, report in zip(ticks, reports, strict=True):
        if model.tick_start(tick + 1) <= boot:
            sums[report.machine] += report.throughput
            counts[report.machine] += 1
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)[roster]


def _recoveries(parts: list[Recoveries], place: Ints, *, start: float, end: float) -> RecoveryRows:
    machine = place[np.concatenate([part.machine for part in parts])]
    began = np.concatenate([part.start for part in parts])
    ended = np.concatenate([part.end for part in parts])
    kept = np.flatnonzero((machine >= 0) & (began >= start) & (began < end))
    order = kept[np.lexsort((began[kept], machine[kept]))]
    return RecoveryRows(
        machine=machine[order],
        time_seconds=began[order] - start,
        recovered_seconds=ended[order] - start,
        recovery_seconds=ended[order] - began[order],
        repeated_seconds=np.concatenate([part.repeated_seconds for part in parts])[order],
        path=np.concatenate([part.path for part in parts])[order],
        paths=PATHS,
    )
