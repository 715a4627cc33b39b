"""One wave of the benchmark's fleet, drawn as arrays, and the truth that only an oracle knows.

The law is that of `simulation.fleet_model`; that one draws tick by tick for a living fleet,
this one draws a whole window at once, because the benchmark needs thousands of them. Time is
in hours since the window's start while drawing, in seconds in the samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from benchmarks.cells import Cell, generator
from rollouts.analysis.policy import Metric
from rollouts.analysis.samples import (
    AttemptRows,
    FaultEvents,
    Machines,
    ObservationRows,
    RecoveryRows,
    Samples,
    ServiceIntervals,
    Units,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

HOUR = 3_600.0
ORIGIN = datetime(2026, 3, 2, tzinfo=UTC)
PATHS = ("continued", "replica_restarted", "job_restarted_from_checkpoint", "job_lost")
PATH_SHARES = np.array([0.50, 0.33, 0.155, 0.015])
PATH_HOURS = np.array([1.0, 8.0, 30.0, 120.0]) / 60
RECOVERY_CAP_HOURS = 8.0
SHOCK_HIT_SHARE = 0.3
INFANT_RATIO, INFANT_HOURS = 5.0, 2.0
REMOVAL_HOURS = 24.0
DROPOUT_SHARE = 0.2
BASE_SILENCE = 0.005
LOSSY_SHARE = 0.2
NOVEL_PER_DAY = 0.0005
HISTORY_DAYS = 14.0
PRE_HOURS = 24


@dataclass(frozen=True, eq=False)
class Fleet:
    """What a machine keeps from wave to wave; `job` codes its job."""

    job: Ints
    multiplier: Floats
    level: Floats
    job_level: Floats
    job_recovery: Floats


@dataclass(frozen=True, eq=False)
class Wave:
    """One drawn wave: the samples that every judge sees, and the truth.

    `expected` is, per machine and hour of the window, the expected number of faults were the
    firmware harmless. `events` and `speed` are the peers' view: raw alarms per machine and
    hour, and hourly throughput (NaN where none was reported).
    """

    cell: Cell
    samples: Samples
    expected: Floats
    events: Ints
    speed: Floats | None
    speed_before: Floats | None

    @property
    def is_canary(self) -> Bools:
        """Per machine."""
        return self.samples.units.is_canary[self.samples.machines.unit]

    @cached_property
    def added(self) -> Floats:
        """Faults that the firmware is expected to add in each hour, all canaries together."""
        late = np.arange(self.cell.hours) >= self.cell.onset_hours
        hourly = self.expected[self.is_canary].sum(axis=0)
        return np.asarray(hourly * (self.cell.ratio - 1) * late)


def draw_fleet(rng: np.random.Generator, *, jobs: int, per_job: int, lemons: bool) -> Fleet:
    """Machines that differ in how often they fail and how fast they run; fleet means are 1."""
    size = jobs * per_job
    multiplier = np.ones(size)
    if lemons:
        multiplier = rng.gamma(2.0, 0.5, size)
        is_lemon = rng.random(size) < 0.015
        multiplier = multiplier * np.where(is_lemon, rng.uniform(10, 50, size), 1.0)
        multiplier /= multiplier.mean()
    slow = rng.random(size) < 0.01
    level = rng.normal(1.0, 0.02, size) * np.where(slow, 1 - rng.uniform(0.1, 0.3, size), 1.0)
    return Fleet(
        job=np.repeat(np.arange(jobs), per_job),
        multiplier=multiplier,
        level=level,
        job_level=rng.normal(1.0, 0.02, jobs),
        job_recovery=rng.normal(0.0, 0.3, jobs),
    )


def draw_wave(cell: Cell, replication: int) -> Wave:
    """Replication `replication` of a cell; the same arguments give the same wave, always.

    Examples
    --------
    >>> wave = draw_wave(Cell(), 0)
    >>> wave.samples.units.is_canary.sum(), wave.events.shape
    (np.int64(64), (320, 72))
    """
    rng = generator(cell, replication)
    shape = cell.shape
    fleet = draw_fleet(
        rng, jobs=shape.jobs, per_job=shape.canaries + shape.controls, lemons=cell.lemons
    )
    return wave_of(cell, fleet, assign(cell, fleet, rng), rng)


def draw_rollout(cell: Cell, replication: int) -> Iterator[Wave]:
    """The waves of one rollout: each in the order drawn at the start, against all untreated.

    Machines keep what they are from wave to wave; each wave has a window of its own.
    """
    rng = generator(cell, replication)
    jobs, canaries, controls = cell.shape
    fleet = draw_fleet(rng, jobs=jobs, per_job=canaries + controls, lemons=cell.lemons)
    place = np.concatenate([rng.permutation(canaries + controls) for _ in range(jobs)])
    treated = 0
    for count in cell.waves:
        untreated = place >= treated
        here = Fleet(
            job=fleet.job[untreated],
            multiplier=fleet.multiplier[untreated],
            level=fleet.level[untreated],
            job_level=fleet.job_level,
            job_recovery=fleet.job_recovery,
        )
        yield wave_of(cell, here, place[untreated] < treated + count, rng)
        treated += count


def assign(cell: Cell, fleet: Fleet, rng: np.random.Generator) -> Bools:
    """Per machine: is it a canary? Drawn inside every job, or by whole jobs."""
    jobs = int(fleet.job.max()) + 1
    if cell.unit == "job":
        chosen = rng.permutation(jobs)[: jobs // 4]
        return np.isin(fleet.job, chosen)
    is_canary = np.zeros(fleet.job.size, dtype=np.bool_)
    for job in range(jobs):
        members = np.flatnonzero(fleet.job == job)
        count = cell.shape.canaries
        if cell.fractions == "unequal":
            count = count // 2 if job % 2 else count + count // 2
        is_canary[rng.permutation(members)[:count]] = True
    return is_canary


def wave_of(cell: Cell, fleet: Fleet, is_canary: Bools, rng: np.random.Generator) -> Wave:
    """One window on a given fleet with a given assignment."""
    size = fleet.job.size
    clock = np.zeros(size)
    away = np.full((size, 2), np.inf)
    if cell.exposure == "uneven":
        clock[fleet.job % 2 == 1] = 12.0
        start = rng.uniform(0, cell.hours, size)
        gone = rng.random(size) < 0.3
        away[gone] = np.stack([start, start + rng.uniform(2, 24, size)], axis=1)[gone]
    silent_from = np.full(size, np.inf)
    if cell.dropouts != "none":
        drops = rng.random(size) < DROPOUT_SHARE
        if cell.dropouts == "canary":
            drops &= is_canary
        silent_from[drops] = rng.uniform(0, cell.hours, size)[drops]

    primary = _faults(cell, fleet, is_canary, clock, rng)
    primary = _kept(primary, away, silent_from)
    spans = _spans(cell, clock, away)
    if cell.removal:
        primary, spans = _removed(cell, primary, clock)
    alarms = _with_bursts(cell, primary, rng)
    alarms = _kept(alarms, away, silent_from)
    if cell.removal:
        alarms = primary
    needs_speed = cell.policy in ("throughput", "telemetry", "engine") or cell.dropouts != "none"
    speed = speed_before = None
    if needs_speed:
        speed_before, speed = _speed(cell, fleet, is_canary, rng)
        speed = _reported(cell, speed, clock, away, silent_from, is_canary, rng)
    history = rng.poisson(
        (cell.rate * fleet.multiplier + cell.shocks * SHOCK_HIT_SHARE) * HISTORY_DAYS
    )
    samples = _samples(
        cell, fleet, is_canary, clock, primary, alarms, spans, speed, speed_before, history, rng
    )
    return Wave(
        cell=cell,
        samples=samples,
        expected=_expected(cell, fleet, clock, away),
        events=_hourly(alarms, size=size, hours=cell.hours, clock=clock),
        speed=speed,
        speed_before=speed_before,
    )


# --- faults --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Drawn:
    """Machines and times (hours) in order of machine, then time."""

    machine: Ints
    hours: Floats

    @classmethod
    def of(cls, machine: Ints, hours: Floats) -> "Drawn":
        order = np.lexsort((hours, machine))
        return cls(machine[order], hours[order])


def _true_ratio(cell: Cell, is_canary: Bools, hours: Floats, since_install: Floats) -> Floats:
    """What the firmware multiplies a machine's fault rate with at a time."""
    excess = (cell.ratio - 1) * (hours >= cell.onset_hours)
    effect = 1 + excess * np.where(is_canary, 1.0, cell.spill_over)
    if cell.infant != "none":
        young = is_canary & (since_install < INFANT_HOURS)
        effect = effect * np.where(young, INFANT_RATIO, 1.0)
    return np.asarray(effect)


def _faults(
    cell: Cell, fleet: Fleet, is_canary: Bools, clock: Floats, rng: np.random.Generator
) -> Drawn:
    first, last = -cell.burn_in_hours, float(cell.hours)
    days = (last - first) / 24
    highest = 1.5 * max(cell.ratio, 1.0) * (INFANT_RATIO if cell.infant != "none" else 1.0)
    count = rng.poisson(cell.rate * fleet.multiplier * highest * days)
    machine = np.repeat(np.arange(count.size), count)
    hours = rng.uniform(first, last, machine.size)
    diurnal = 1 + 0.5 * np.sin(2 * np.pi * hours / 24)
    installed = clock - cell.burn_in_hours
    ratio = _true_ratio(cell, is_canary[machine], hours, hours - installed[machine])
    # Before its install a canary is like any other machine.
    ratio = np.where(hours < installed[machine], 1.0, ratio)
    happens = rng.random(machine.size) * highest < diurnal * ratio
    parts = [(machine[happens], hours[happens])]
    if cell.shocks:
        parts.append(_shocks(cell, fleet, is_canary, installed, first, last, rng))
    return Drawn.of(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))


def _shocks(
    cell: Cell,
    fleet: Fleet,
    is_canary: Bools,
    installed: Floats,
    first: float,
    last: float,
    rng: np.random.Generator,
) -> tuple[Ints, Floats]:
    """Each shock strikes a job within 1.5 minutes; bad firmware is struck more often."""
    jobs = int(fleet.job.max()) + 1
    job = np.repeat(np.arange(jobs), rng.poisson(cell.shocks * (last - first) / 24, jobs))
    when = rng.uniform(first, last, job.size)
    machine, shock = np.nonzero(fleet.job[:, None] == job)
    hours = when[shock] + rng.uniform(0, 0.025, shock.size)
    ratio = _true_ratio(cell, is_canary[machine], hours, np.full(shock.size, np.inf))
    ratio = np.where(hours < installed[machine], 1.0, ratio)
    hit = rng.random(shock.size) < np.minimum(1.0, SHOCK_HIT_SHARE * ratio)
    return machine[hit], hours[hit]


def _with_bursts(cell: Cell, primary: Drawn, rng: np.random.Generator) -> Drawn:
    if not cell.bursts:
        return primary
    extra = rng.poisson(cell.bursts, primary.machine.size)
    machine = np.repeat(primary.machine, extra)
    hours = np.repeat(primary.hours, extra) + rng.random(machine.size)
    return Drawn.of(
        np.concatenate([primary.machine, machine]), np.concatenate([primary.hours, hours])
    )


def _kept(drawn: Drawn, away: Floats, silent_from: Floats) -> Drawn:
    """Without what happened while the machine was away or had fallen silent."""
    start, end = away[drawn.machine, 0], away[drawn.machine, 1]
    here = (drawn.hours < start) | (drawn.hours >= end)
    here &= drawn.hours < silent_from[drawn.machine]
    return Drawn(drawn.machine[here], drawn.hours[here])


def _spans(cell: Cell, clock: Floats, away: Floats) -> tuple[Ints, Floats, Floats] | None:
    """Service intervals (machine, start, end) in hours; None: always in service."""
    if cell.exposure == "full":
        return None
    size = clock.size
    enrolled = clock - cell.burn_in_hours
    machine = np.tile(np.arange(size), 2)
    start = np.concatenate([enrolled, np.maximum(away[:, 1], enrolled)])
    end = np.concatenate([np.maximum(away[:, 0], enrolled), np.full(size, np.inf)])
    real = (end > start) & np.isfinite(start)
    return machine[real], start[real], end[real]


def _removed(
    cell: Cell, primary: Drawn, clock: Floats
) -> tuple[Drawn, tuple[Ints, Floats, Floats]]:
    """Each fault takes its machine away for a day; nothing can happen to it meanwhile."""
    kept = np.zeros(primary.machine.size, dtype=np.bool_)
    rows: list[tuple[int, float, float]] = []
    back = clock - cell.burn_in_hours
    since = back.copy()
    pairs = zip(primary.machine.tolist(), primary.hours.tolist(), strict=True)
    for place, (machine, hour) in enumerate(pairs):
        if hour < since[machine]:
            continue
        kept[place] = True
        rows.append((machine, since[machine], hour))
        since[machine] = hour + REMOVAL_HOURS
    rows.extend((machine, float(hour), np.inf) for machine, hour in enumerate(since))
    table = np.array(rows)
    spans = table[:, 0].astype(np.int64), table[:, 1], table[:, 2]
    return Drawn(primary.machine[kept], primary.hours[kept]), spans


def _expected(cell: Cell, fleet: Fleet, clock: Floats, away: Floats) -> Floats:
    """Expected harmless faults per machine and hour, on the clock and in service."""
    edges = np.arange(cell.hours + 1) / 24
    # The integral of 1 + sin(2 pi t) / 2 over each hour.
    share = np.diff(edges - np.cos(2 * np.pi * edges) / (4 * np.pi))
    start = np.arange(cell.hours)
    here = start >= clock[:, None]
    here &= (start < away[:, :1]) | (start >= away[:, 1:])
    per_day = cell.rate * fleet.multiplier[:, None] * share
    return np.asarray((per_day + cell.shocks * SHOCK_HIT_SHARE / 24) * here)


def _hourly(drawn: Drawn, *, size: int, hours: int, clock: Floats) -> Ints:
    inside = (drawn.hours >= clock[drawn.machine]) & (drawn.hours < hours)
    cell = drawn.machine[inside] * hours + drawn.hours[inside].astype(np.int64)
    return np.bincount(cell, minlength=size * hours).reshape(size, hours).astype(np.int64)


# --- throughput ----------------------------------------------------------------------------


def _autoregressive(rng: np.random.Generator, rows: int, hours: int, *, decay: float) -> Floats:
    """Stationary AR(1) of standard deviation .03, rows by hours."""
    noise = rng.standard_normal((rows, hours))
    noise[:, 1:] *= np.sqrt(1 - decay**2)
    return np.asarray(0.03 * lfilter([1.0], [1.0, -decay], noise, axis=1))


def _speed(
    cell: Cell, fleet: Fleet, is_canary: Bools, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Mean of the 24 h before, and hourly throughput of the window."""
    hours = PRE_HOURS + cell.hours
    jobs = int(fleet.job.max()) + 1
    job = fleet.job_level[:, None] * (1 + _autoregressive(rng, jobs, hours, decay=0.9))
    noise = 1 + _autoregressive(rng, fleet.job.size, hours, decay=0.5)
    speed = fleet.level[:, None] * job[fleet.job] * noise
    speed[rng.random(speed.shape) < 0.002] = 0.0
    speed = np.maximum(speed, 0.0)
    speed[is_canary, PRE_HOURS:] *= 1 - cell.drop
    return speed[:, :PRE_HOURS].mean(axis=1), speed[:, PRE_HOURS:]


def _reported(
    cell: Cell,
    speed: Floats,
    clock: Floats,
    away: Floats,
    silent_from: Floats,
    is_canary: Bools,
    rng: np.random.Generator,
) -> Floats:
    """NaN where the machine sent nothing: away, silent, not begun, or lost on the way."""
    start = np.arange(cell.hours)
    lost = rng.random(speed.shape) < BASE_SILENCE
    if cell.silence:
        lost |= is_canary[:, None] & (rng.random(speed.shape) < cell.silence)
    if cell.lossy:
        is_lossy = is_canary & (rng.random(is_canary.size) < cell.lossy)
        lost |= is_lossy[:, None] & (rng.random(speed.shape) < LOSSY_SHARE)
    lost |= start < clock[:, None]
    lost |= (start + 1 > away[:, :1]) & (start < away[:, 1:])
    lost |= start + 1 > silent_from[:, None]
    return np.where(lost, np.nan, speed)


# --- samples -------------------------------------------------------------------------------


def _samples(
    cell: Cell,
    fleet: Fleet,
    is_canary: Bools,
    clock: Floats,
    primary: Drawn,
    alarms: Drawn,
    spans: tuple[Ints, Floats, Floats] | None,
    speed: Floats | None,
    speed_before: Floats | None,
    history: Ints,
    rng: np.random.Generator,
) -> Samples:
    size = fleet.job.size
    names = tuple(f"j{job:03d}-m{i:04d}" for i, job in enumerate(fleet.job.tolist()))
    whole = cell.policy == "engine"
    return Samples(
        origin=ORIGIN,
        as_of_seconds=cell.hours * HOUR,
        window_seconds=cell.window_hours * HOUR,
        units=_units(cell, fleet, is_canary, clock, names, speed_before, history),
        machines=Machines(
            name=names,
            unit=fleet.job if cell.unit == "job" else np.arange(size),
            enrolled_seconds=(clock - cell.burn_in_hours) * HOUR,
            left_seconds=np.full(size, np.inf),
        ),
        service=None
        if spans is None
        else ServiceIntervals(spans[0], spans[1] * HOUR, spans[2] * HOUR),
        faults=_fault_events(cell, is_canary, alarms, rng),
        observations=None if speed is None else _observations(speed),
        recoveries=_recoveries(cell, fleet, is_canary, primary, rng)
        if whole or cell.policy in ("recovery_time", "severe_path")
        else None,
        attempts=_attempts(cell, is_canary, clock, rng)
        if whole or cell.policy == "install"
        else None,
        interval_seconds=HOUR,
        known_signatures=frozenset({"fault"}),
        install_baseline=0.013,
    )


def _units(
    cell: Cell,
    fleet: Fleet,
    is_canary: Bools,
    clock: Floats,
    names: tuple[str, ...],
    speed_before: Floats | None,
    history: Ints,
) -> Units:
    covariates: dict[str, Floats] = {}
    if cell.unit == "job":
        first = np.unique(fleet.job, return_index=True)[1]
        if speed_before is not None:
            total = np.bincount(fleet.job, weights=speed_before)
            covariates[Metric.THROUGHPUT] = total / np.bincount(fleet.job)
        return Units(
            name=tuple(names[i].split("-")[0] for i in first),
            is_canary=is_canary[first],
            stratum=np.zeros(first.size, dtype=np.int64),
            clock_start_seconds=clock[first] * HOUR,
            covariates=covariates,
        )
    if speed_before is not None:
        covariates[Metric.THROUGHPUT] = speed_before
    if cell.history:
        covariates[Metric.FAULTS] = history.astype(np.float64)
    return Units(
        name=names,
        is_canary=is_canary,
        stratum=fleet.job,
        clock_start_seconds=clock * HOUR,
        covariates=covariates,
    )


def _fault_events(
    cell: Cell, is_canary: Bools, alarms: Drawn, rng: np.random.Generator
) -> FaultEvents:
    machine, hours = alarms.machine, alarms.hours
    signature = np.zeros(machine.size, dtype=np.int64)
    if cell.policy == "engine":
        per_day = NOVEL_PER_DAY + cell.novel * is_canary
        count = rng.poisson(per_day * cell.hours / 24)
        novel = np.repeat(np.arange(is_canary.size), count)
        machine = np.concatenate([machine, novel])
        hours = np.concatenate([hours, rng.uniform(0, cell.hours, novel.size)])
        signature = np.concatenate([signature, np.ones(novel.size, dtype=np.int64)])
    return FaultEvents(
        machine=machine,
        time_seconds=hours * HOUR,
        signature=signature,
        signatures=("fault", "never_seen_before"),
        severity=("recoverable", "recoverable"),
    )


def _observations(speed: Floats) -> ObservationRows:
    hour, machine = np.nonzero(np.isfinite(speed).T)
    return ObservationRows(
        machine=machine,
        start_seconds=HOUR * hour.astype(np.float64),
        end_seconds=HOUR * (hour + 1).astype(np.float64),
        in_service_seconds=np.full(hour.size, HOUR),
        throughput=speed[machine, hour],
        workload=np.zeros(hour.size, dtype=np.int64),
        workloads=("train",),
    )


def _recoveries(
    cell: Cell, fleet: Fleet, is_canary: Bools, primary: Drawn, rng: np.random.Generator
) -> RecoveryRows:
    machine = primary.machine
    mine = is_canary[machine]
    shares = np.tile(PATH_SHARES, (machine.size, 1))
    shares[:, 1] -= cell.severe * mine
    shares[:, 2] += cell.severe * mine
    mark = rng.random(machine.size)
    path = (mark[:, None] >= np.cumsum(shares, axis=1)[:, :3]).sum(axis=1)
    spread = 0.7 * rng.standard_normal(machine.size) + fleet.job_recovery[fleet.job[machine]]
    factor = np.where(mine, cell.recovery, 1.0)
    hours = np.minimum(PATH_HOURS[path] * factor * np.exp(spread), RECOVERY_CAP_HOURS)
    repeated = np.array([0.0, 0.0, 0.5, 2.0])[path] * rng.random(machine.size)
    return RecoveryRows(
        machine=machine,
        time_seconds=primary.hours * HOUR,
        recovered_seconds=(primary.hours + hours) * HOUR,
        recovery_seconds=hours * HOUR,
        repeated_seconds=repeated * HOUR,
        path=path,
        paths=PATHS,
    )


def _attempts(cell: Cell, is_canary: Bools, clock: Floats, rng: np.random.Generator) -> AttemptRows:
    """One install per canary, in the hour before its burn-in begins."""
    machine = np.flatnonzero(is_canary)
    hours = clock[machine] - cell.burn_in_hours - rng.random(machine.size)
    order = np.argsort(hours, kind="stable")
    failed = rng.random(machine.size) < cell.install
    return AttemptRows(
        machine=machine[order],
        time_seconds=hours[order] * HOUR,
        outcome=failed[order].astype(np.int64),
        outcomes=("succeeded", "never_returned"),
    )
