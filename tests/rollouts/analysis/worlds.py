"""Small recorded worlds for the judge's tests: built by hand, or drawn from a seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from rollouts.analysis import judge
from rollouts.analysis.policy import Guardrail, Metric, Policy
from rollouts.analysis.samples import (
    AttemptRows,
    FaultEvents,
    Machines,
    ObservationRows,
    RecoveryRows,
    Samples,
    Units,
)
from rollouts.analysis.wave import Look, WavePlan

HOUR = 3600.0
DAY = 86_400.0
ORIGIN = datetime(2026, 1, 1, tzinfo=UTC)
WEIGHTS = {
    Metric.FAULTS: 0.30,
    Metric.THROUGHPUT: 0.25,
    Metric.NOVEL_SIGNATURES: 0.15,
    Metric.RECOVERY_TIME: 0.08,
    Metric.SEVERE_PATH: 0.08,
    Metric.LOST_WORK: 0.06,
    Metric.INSTALL: 0.04,
    Metric.TELEMETRY: 0.04,
}

FAULTS = Guardrail("faults", Metric.FAULTS, True, True, 2.0, 1.0, ends_service=False)
THROUGHPUT = Guardrail("throughput", Metric.THROUGHPUT, True, True, 0.02, 0.01)
RECOVERY = Guardrail("recovery_time", Metric.RECOVERY_TIME, True, True, 1.5, 1.0)
SEVERE = Guardrail("severe_path", Metric.SEVERE_PATH, True, True, 0.15, 0.0)
LOST_WORK = Guardrail("lost_work", Metric.LOST_WORK, False, True, 0.0, 0.0)
NOVEL = Guardrail("novel_signatures", Metric.NOVEL_SIGNATURES, False, True, 0.0, 0.0)
INSTALL = Guardrail("install", Metric.INSTALL, True, True, 0.04, 0.01)
TELEMETRY = Guardrail("telemetry", Metric.TELEMETRY, True, True, 0.05, 0.0)


def policy(*guardrails: Guardrail, **fields: object) -> Policy:
    given = {"resamples": 1999, "min_exposure_hours": 0.0, **fields}
    return Policy(guardrails=guardrails, weights=WEIGHTS, **given)  # type: ignore[arg-type]


def recorded(samples: Samples, *, alpha: float = 0.05) -> WavePlan:
    return WavePlan(samples.window_seconds, alpha, is_recorded=True, has_extension=False)


def live(samples: Samples, *, alpha: float = 0.05, **fields: object) -> WavePlan:
    return replace(WavePlan(samples.window_seconds, alpha), **fields)  # type: ignore[arg-type]


def looks(samples: Samples, number: int) -> list[Look]:
    """Equally spaced over the window, the last at its end."""
    window = samples.window_seconds
    return [Look(k, k * window / number, k / number) for k in range(1, number + 1)]


def roster(
    canaries: int, controls: int, *, strata: Sequence[int] | None = None
) -> tuple[Units, Machines]:
    """Machines that are their own units: canaries first, there from the start to the end."""
    n = canaries + controls
    names = tuple(f"m{i:05d}" for i in range(n))
    codes = np.zeros(n, np.int64) if strata is None else np.asarray(strata, np.int64)
    units = Units(names, np.arange(n) < canaries, codes, np.zeros(n))
    return units, Machines(names, np.arange(n), np.zeros(n), np.full(n, np.inf))


def world(
    canaries: int,
    controls: int,
    *,
    hours: float,
    strata: Sequence[int] | None = None,
    **tables: object,
) -> Samples:
    units, machines = roster(canaries, controls, strata=strata)
    window = hours * HOUR
    return Samples(ORIGIN, window, window, units, machines, **tables)  # type: ignore[arg-type]


def faults(
    rows: Sequence[tuple[int, float]], *, signature: str = "xid-79", signatures: Sequence[str] = ()
) -> FaultEvents:
    """(machine, hour) pairs, all of one signature, or of the given one each."""
    names = tuple(sorted(set(signatures))) or (signature,)
    code = [names.index(name) for name in signatures] or [0] * len(rows)
    return FaultEvents(
        machine=np.array([machine for machine, _ in rows], np.int64),
        time_seconds=np.array([hour * HOUR for _, hour in rows], np.float64),
        signature=np.array(code, np.int64),
        signatures=names,
        severity=("critical",) * len(names),
    )


def reports(
    levels: Sequence[float],
    *,
    hours: int,
    workload: str = "train",
    until: Sequence[int] | None = None,
) -> ObservationRows:
    """One report per machine and hour with the machine's own constant throughput.

    `until` ends a machine's reports after so many hours.
    """
    ends = [hours] * len(levels) if until is None else list(until)
    machine = np.repeat(np.arange(len(levels)), ends)
    hour = np.concatenate([np.arange(end) for end in ends]) if ends else np.empty(0)
    return observation_rows(machine, hour, np.asarray(levels, np.float64)[machine], workload)


def observation_rows(
    machine: np.ndarray, hour: np.ndarray, throughput: np.ndarray, workload: str = "train"
) -> ObservationRows:
    return ObservationRows(
        machine=machine.astype(np.int64),
        start_seconds=hour * HOUR,
        end_seconds=(hour + 1) * HOUR,
        in_service_seconds=np.full(machine.size, HOUR),
        throughput=throughput,
        workload=np.zeros(machine.size, np.int64),
        workloads=(workload,),
    )


def recoveries(
    rows: Sequence[tuple[int, float, float]], *, path: str = "continued", repeated: float = 0.0
) -> RecoveryRows:
    """(machine, hour, minutes to recover) of one path; infinite minutes: still open."""
    minutes = np.array([m for _, _, m in rows], np.float64)
    at = np.array([hour * HOUR for _, hour, _ in rows], np.float64)
    seconds = np.where(np.isfinite(minutes), minutes * 60, np.nan)
    return RecoveryRows(
        machine=np.array([machine for machine, _, _ in rows], np.int64),
        time_seconds=at,
        recovered_seconds=at + seconds,
        recovery_seconds=seconds,
        repeated_seconds=np.full(len(rows), repeated),
        path=np.zeros(len(rows), np.int64),
        paths=(path,),
    )


def installs(outcomes: Sequence[str]) -> AttemptRows:
    """One finished attempt per canary, in order, before the clock starts."""
    names = tuple(sorted({*outcomes, "succeeded"}))
    return AttemptRows(
        machine=np.arange(len(outcomes)),
        time_seconds=np.linspace(-2 * HOUR, -HOUR, len(outcomes)),
        outcome=np.array([names.index(outcome) for outcome in outcomes], np.int64),
        outcomes=names,
    )


@dataclass(frozen=True)
class Drawn:
    """A fleet with the field's nuisances, drawn like the virtual fleet.

    Four canaries and sixteen controls per job; jobs are strata. Machines differ (gamma, shape
    2), some are lemons, every fault may bring a burst, shocks hit whole jobs.
    """

    jobs: int
    rate_per_day: float
    days: int = 3
    rate_ratio: float = 1.0
    drop: float = 0.0
    recovery_factor: float = 1.0
    severe_rise: float = 0.0
    lemons: float = 0.015
    burst: float = 0.0
    shocks_per_day: float = 0.0
    has_reports: bool = True
    has_recoveries: bool = False
    days_before: float = 0.0

    def draw(self, seed: int) -> Samples:
        rng = np.random.default_rng(seed)
        n = 20 * self.jobs
        strata = np.repeat(np.arange(self.jobs), 20)
        is_canary = np.zeros(n, np.bool_)
        for job in range(self.jobs):
            is_canary[job * 20 + rng.choice(20, 4, replace=False)] = True
        names = tuple(f"m{i:05d}" for i in range(n))
        machines = Machines(names, np.arange(n), np.zeros(n), np.full(n, np.inf))
        window = self.days * DAY
        weight = self._weights(rng, n)
        hits = self._hits(rng, strata, is_canary, weight)
        units = Units(names, is_canary, strata, np.zeros(n), self._past(rng, weight))
        return Samples(
            ORIGIN,
            window,
            window,
            units,
            machines,
            faults=self._with_bursts(rng, *hits),
            observations=self._reports(rng, strata, is_canary) if self.has_reports else None,
            recoveries=self._recoveries(rng, is_canary, *hits) if self.has_recoveries else None,
            interval_seconds=HOUR,
        )

    def _weights(self, rng: np.random.Generator, machines: int) -> np.ndarray:
        weight = rng.gamma(2.0, 0.5, machines)
        lemon = rng.random(machines) < self.lemons
        weight[lemon] *= rng.uniform(10, 50, int(lemon.sum()))
        return weight / (1 + self.lemons * 29)  # the fleet's mean stays 1

    def counts_before(self, machines: int, *, seed: int) -> np.ndarray:
        """Faults per machine of a fleet of this kind in the days before."""
        rng = np.random.default_rng(seed)
        return self._past(rng, self._weights(rng, machines))[Metric.FAULTS].astype(np.int64)

    def _past(self, rng: np.random.Generator, weight: np.ndarray) -> dict[str, np.ndarray]:
        if not self.days_before:
            return {}
        count = rng.poisson(self.rate_per_day * self.days_before * weight)
        return {Metric.FAULTS: count.astype(np.float64)}

    def _hits(
        self,
        rng: np.random.Generator,
        strata: np.ndarray,
        is_canary: np.ndarray,
        weight: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        n = strata.size
        factor = np.where(is_canary, self.rate_ratio, 1.0)
        count = rng.poisson(self.rate_per_day * self.days * weight * factor)
        machine = np.repeat(np.arange(n), count)
        time = rng.uniform(0, self.days * DAY, machine.size)
        for job in np.unique(strata):
            for at in rng.uniform(0, self.days * DAY, rng.poisson(self.shocks_per_day * self.days)):
                members = np.flatnonzero(strata == job)
                struck = members[rng.random(members.size) < np.minimum(0.3 * factor[members], 1)]
                machine = np.append(machine, struck)
                time = np.append(time, at + rng.uniform(0, 90, struck.size))
        return machine, np.minimum(time, self.days * DAY - 1)

    def _with_bursts(
        self, rng: np.random.Generator, machine: np.ndarray, time: np.ndarray
    ) -> FaultEvents:
        extra = rng.poisson(self.burst, machine.size)
        again = np.repeat(machine, extra)
        after = np.repeat(time, extra) + rng.uniform(0, HOUR, again.size)
        every = np.concatenate([machine, again]).astype(np.int64)
        return FaultEvents(
            machine=every,
            time_seconds=np.concatenate([time, after]),
            signature=np.zeros(every.size, np.int64),
            signatures=("xid-79",),
            severity=("critical",),
        )

    def _reports(
        self, rng: np.random.Generator, strata: np.ndarray, is_canary: np.ndarray
    ) -> ObservationRows:
        """Hourly: machine level sd 2 %, job level sd 2 %, noise sd 3 %, AR(1) .5."""
        n, hours = strata.size, 24 * self.days
        level = 1 + 0.02 * rng.standard_normal(n)
        level += (0.02 * rng.standard_normal(int(strata.max()) + 1))[strata]
        noise = np.empty((n, hours))
        noise[:, 0] = rng.standard_normal(n)
        for hour in range(1, hours):
            noise[:, hour] = 0.5 * noise[:, hour - 1] + np.sqrt(0.75) * rng.standard_normal(n)
        value = (level[:, None] + 0.03 * noise) * np.where(is_canary, 1 - self.drop, 1.0)[:, None]
        value *= rng.random((n, hours)) >= 0.002
        machine, hour = np.divmod(np.arange(n * hours), hours)
        return observation_rows(machine, hour.astype(np.float64), 100 * value.reshape(-1))

    def _recoveries(
        self, rng: np.random.Generator, is_canary: np.ndarray, machine: np.ndarray, time: np.ndarray
    ) -> RecoveryRows:
        path = rng.choice(4, machine.size, p=[0.5, 0.33, 0.155, 0.015])
        if self.severe_rise:  # instead of a replica the whole job restarts
            moves = rng.random(machine.size) < self.severe_rise / 0.33
            path[moves & (path == 1) & is_canary[machine]] = 2
        median = np.array([60.0, 480.0, 1800.0, 7200.0])[path]
        factor = np.where(is_canary[machine], self.recovery_factor, 1.0)
        seconds = np.minimum(median * np.exp(0.7 * rng.standard_normal(machine.size)), 8 * HOUR)
        seconds = seconds * factor
        return RecoveryRows(
            machine=machine.astype(np.int64),
            time_seconds=time,
            recovered_seconds=time + seconds,
            recovery_seconds=seconds,
            repeated_seconds=np.zeros(machine.size),
            path=path.astype(np.int64),
            paths=("continued", "replica_restarted", "job_restarted_from_checkpoint", "job_lost"),
        )


def halted(drawn: Drawn, guardrail: Guardrail, *, looks_each: int, waves: int, seed: int) -> float:
    """Share of waves that the judge halts by this guardrail alone, at level .05."""
    found = 0
    for wave in range(waves):
        samples = drawn.draw(1000 * seed + wave)
        alone = policy(guardrail, resamples=499, seed=wave)
        evaluations, _ = judge.evaluate(
            samples,
            alone,
            recorded(samples),
            looks=looks(samples, looks_each),
            state=judge.initial_state(samples, alone),
        )
        found += evaluations[-1].guardrails[0].crossed
    return found / waves
