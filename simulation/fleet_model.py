"""A seeded virtual fleet: who it is, and what happens to it in each tick. Pure.

Whatever happens in a tick is a function of the seed, the tick and the truth about each machine at
that time. All candidates are drawn for all machines, whatever they run; firmware only decides
which candidates come true (thinning). So a process that was killed draws the same events with the
same keys, and one machine's firmware never changes another machine's fate.

The model of faults, throughput and recoveries is the decision engine's fleet model
(docs/statistics.md); times are seconds since the fleet's origin, and ticks may be negative.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil, floor, log

import numpy as np
from numpy.typing import NDArray

from simulation.parameters import FAILURES, Effect, Layout, Parameters
from simulation.streams import Purpose, stream

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Names = NDArray[np.object_]

DAY = 86_400.0
PATHS = ("continued", "replica_restarted", "job_restarted_from_checkpoint", "job_lost")
CACHED_TICKS = 64


@dataclass(frozen=True)
class MachineFacts:
    """Where a machine stands, and what it is like."""

    index: int
    name: str
    layout: Layout
    site: str
    rack: str
    job: str
    workload: str
    fault_multiplier: float
    throughput_level: float
    is_lemon: bool


@dataclass(frozen=True)
class Profile:
    """What a set of firmware versions does together; see `parameters.Effect`."""

    ratios: Floats
    throughput: float = 1.0
    recovery: float = 1.0
    severe_shift: float = 0.0
    novel: Mapping[str, float] = field(default_factory=dict)
    silence: float = 0.0
    failures: Mapping[str, float] = field(default_factory=dict)
    non_return: float = 0.0


@dataclass(frozen=True)
class Spells:
    """The truth: from `start` to `end` the machine was in service and ran `profile`.

    Only spells in service are listed; they are sorted by machine and start and do not overlap.
    """

    machine: Ints
    start: Floats
    end: Floats
    infant_until: Floats
    profile: Ints
    profiles: tuple[Profile, ...]

    @classmethod
    def build(
        cls,
        rows: Iterable[tuple[int, float, float, float, int]],
        *,
        profiles: Sequence[Profile],
    ) -> "Spells":
        """Make them from (machine, start, end, infant until, profile) rows, in any order."""
        table = np.array(sorted(rows), dtype=np.float64).reshape(-1, 5)
        return cls(
            machine=table[:, 0].astype(np.int64),
            start=table[:, 1],
            end=table[:, 2],
            infant_until=table[:, 3],
            profile=table[:, 4].astype(np.int64),
            profiles=tuple(profiles),
        )

    def at(self, machine: Ints, seconds: Floats) -> Ints:
        """Return each event's spell, or -1 where the machine was not in service then."""
        if not len(self.machine):
            return np.full(len(machine), -1, dtype=np.int64)
        first = min(self.start.min(), seconds.min(initial=np.inf))
        width = max(self.end.max(), seconds.max(initial=-np.inf)) - first + 1.0
        starts = self.machine * width + (self.start - first)
        found = np.searchsorted(starts, machine * width + (seconds - first), side="right") - 1
        clipped = np.maximum(found, 0)
        is_inside = (
            (found >= 0) & (self.machine[clipped] == machine) & (seconds < self.end[clipped])
        )
        return np.where(is_inside, clipped, -1)

    @cached_property
    def ratios(self) -> Floats:
        return np.stack([profile.ratios for profile in self.profiles])

    def of_profile(self, name: str) -> Floats:
        """Return one number of each spell's profile."""
        values = np.array([getattr(profile, name) for profile in self.profiles], dtype=np.float64)
        return values[self.profile]


@dataclass(frozen=True)
class Faults:
    """Fault events; `key` is the same whenever the tick is drawn again."""

    machine: Ints
    seconds: Floats
    signature: Names
    key: Names


@dataclass(frozen=True)
class Recoveries:
    """Interruptions and how they end; `path` indexes `PATHS`."""

    machine: Ints
    start: Floats
    end: Floats
    path: Ints
    repeated_seconds: Floats
    key: Names


@dataclass(frozen=True)
class Observations:
    """One report for each machine that was in service during the tick."""

    machine: Ints
    in_service_seconds: Floats
    throughput: Floats


@dataclass(frozen=True)
class _Candidates:
    """Faults that happen if the machine is in service and the mark falls below its chance."""

    machine: Ints
    seconds: Floats
    signature: Ints
    mark: Floats
    is_shock: Bools
    path_mark: Floats
    duration_normal: Floats
    repeat_mark: Floats
    extra_parent: Ints
    extra_delay: Floats
    extra_number: Ints


class FleetModel:
    """One virtual fleet.

    Parameters
    ----------
    seed : int
    parameters : Parameters

    Examples
    --------
    >>> from simulation.parameters import Layout, Parameters, field_signatures
    >>> fleet = FleetModel(
    ...     1,
    ...     Parameters(
    ...         layouts=(Layout("dgx-h100", "h100", 40),),
    ...         signatures=field_signatures(per_machine_day=0.2),
    ...     ),
    ... )
    >>> fleet.machines[0].name, round(float(fleet.multiplier.mean()), 9)
    ('h100-r01-n1', 1.0)
    """

    def __init__(self, seed: int, parameters: Parameters) -> None:
        self.seed = seed
        self.parameters = parameters
        self.signatures = tuple(item.name for item in parameters.signatures)
        self._rates = np.array([item.per_machine_day for item in parameters.signatures])
        self._interrupts = np.array([item.interrupts for item in parameters.signatures])
        self._shared = np.flatnonzero([item.is_shared for item in parameters.signatures])
        self._lay_out()
        self._candidates = lru_cache(CACHED_TICKS)(self._draw_candidates)
        self._innovations = lru_cache(4 * CACHED_TICKS)(self._draw_innovations)

    def __len__(self) -> int:
        return len(self.machines)

    # --- who it is ----------------------------------------------------------------------

    def _lay_out(self) -> None:
        places = [place for layout in self.parameters.layouts for place in _places(layout)]
        size, rng, law = len(places), stream(self.seed, Purpose.LAYOUT), self.parameters
        frailty = rng.gamma(law.frailty_shape, 1 / law.frailty_shape, size)
        is_lemon = rng.random(size) < law.lemon_share
        lemon = np.where(is_lemon, rng.uniform(law.lemon_low, law.lemon_high, size), 1.0)
        self.multiplier: Floats = frailty * lemon / np.mean(frailty * lemon)
        slow = np.where(
            rng.random(size) < law.slow_share, rng.uniform(law.slow_low, law.slow_high, size), 0.0
        )
        self.level: Floats = (1 + law.machine_sd * rng.standard_normal(size)) * (1 - slow)
        self.jobs, self.job_of = np.unique([place[3] for place in places], return_inverse=True)
        self.job_level: Floats = 1 + law.job_sd * rng.standard_normal(len(self.jobs))
        self.job_recovery: Floats = law.recovery_job_sd * rng.standard_normal(len(self.jobs))
        self.members = [np.flatnonzero(self.job_of == job) for job in range(len(self.jobs))]
        self.machines = tuple(
            MachineFacts(
                index, name, layout, site, rack, job, workload,
                float(self.multiplier[index]), float(self.level[index]), bool(is_lemon[index]),
            )
            for index, (layout, name, rack, job, site, workload) in enumerate(places)
        )  # fmt: skip

    def profile(self, versions: Mapping[str, str]) -> Profile:
        """Combine the effects of the firmware that a machine runs (kind to version)."""
        effects = [
            effect
            for effect in self.parameters.effects
            if versions.get(effect.kind) == effect.version
        ]
        return Profile(
            ratios=np.array([_product(e.ratio(name) for e in effects) for name in self.signatures]),
            throughput=_product(effect.throughput for effect in effects),
            recovery=_product(effect.recovery for effect in effects),
            severe_shift=sum(effect.severe_shift for effect in effects),
            novel={e.novel_signature: e.novel_rate for e in effects if e.novel_signature},
            silence=_any_of([self.parameters.silence, *(effect.silence for effect in effects)]),
            failures={name: _any_of([_share(e, name) for e in effects]) for name in FAILURES},
            non_return=_any_of(
                [self.parameters.non_return, *(effect.non_return for effect in effects)]
            ),
        )

    # --- time ---------------------------------------------------------------------------

    def tick_at(self, seconds: float) -> int:
        """Return the tick that a time falls in."""
        return floor(seconds / self.parameters.tick_seconds)

    def tick_start(self, tick: int) -> float:
        return tick * self.parameters.tick_seconds

    @property
    def longest_recovery(self) -> float:
        return self.parameters.recovery_cap_hours * 3600

    # --- faults and recoveries ------------------------------------------------------------

    def happenings(self, tick: int, spells: Spells) -> tuple[Faults, Recoveries]:
        """Return the faults that begin in a tick, extra alarms after them, and what they cost."""
        if not len(spells.machine):
            return _no_faults(), _no_recoveries()
        drawn = self._candidates(tick)
        spell = spells.at(drawn.machine, drawn.seconds)
        happens = np.flatnonzero((spell >= 0) & (drawn.mark < self._chance(drawn, spells, spell)))
        primary = Faults(
            drawn.machine[happens],
            drawn.seconds[happens],
            np.array(self.signatures, dtype=object)[drawn.signature[happens]],
            _keys(tick, "f", happens),
        )
        extra = self._extra_alarms(tick, drawn, happens, spells)
        novel = self._novel(tick, spells)
        interrupting = happens[self._interrupts[drawn.signature[happens]]]
        recoveries = self._recoveries(tick, drawn, interrupting, spells, spell[interrupting])
        return _joined(primary, extra, novel), recoveries

    def _draw_candidates(self, tick: int) -> _Candidates:
        rng = stream(self.seed, Purpose.FAULTS, tick)
        expected = self.multiplier * self._rates.sum() * self._days * self._cap
        machine = np.repeat(np.arange(len(self)), rng.poisson(expected))
        seconds = self.tick_start(tick) + rng.random(len(machine)) * self.parameters.tick_seconds
        signature = self._choose(rng.random(len(machine)), self._rates)
        mark = rng.random(len(machine)) * self._cap
        shock = self._draw_shocks(tick)
        size = len(machine) + len(shock[0])
        extra = rng.poisson(self.parameters.burst_mean, size)
        parent = np.repeat(np.arange(size), extra)
        return _Candidates(
            machine=np.concatenate([machine, shock[0]]),
            seconds=np.concatenate([seconds, shock[1]]),
            signature=np.concatenate([signature, shock[2]]),
            mark=np.concatenate([mark, shock[3]]),
            is_shock=np.arange(size) >= len(machine),
            path_mark=rng.random(size),
            duration_normal=rng.standard_normal(size),
            repeat_mark=rng.random(size),
            extra_parent=parent,
            extra_delay=rng.random(len(parent)) * self.parameters.burst_seconds,
            extra_number=np.arange(len(parent)) - np.repeat(np.cumsum(extra) - extra, extra),
        )

    def _draw_shocks(self, tick: int) -> tuple[Ints, Floats, Ints, Floats]:
        """Draw what strikes a whole job within moments; each member has its own mark."""
        law, rng = self.parameters, stream(self.seed, Purpose.SHOCKS, tick)
        job = np.repeat(
            np.arange(len(self.jobs)),
            rng.poisson(law.shocks_per_job_day * self._days, len(self.jobs)),
        )
        if not len(self._shared):
            job = job[:0]
        when = self.tick_start(tick) + rng.random(len(job)) * law.tick_seconds
        kind = self._choose(rng.random(len(job)), self._rates[self._shared])
        sizes = np.array([len(self.members[j]) for j in job], dtype=np.int64)
        machine = np.concatenate([np.empty(0, np.int64), *(self.members[j] for j in job)])
        delay = rng.random(len(machine)) * law.shock_seconds
        signature = self._shared[np.repeat(kind, sizes)] if len(machine) else machine
        return machine, np.repeat(when, sizes) + delay, signature, rng.random(len(machine))

    def _chance(self, drawn: _Candidates, spells: Spells, spell: Ints) -> Floats:
        """Return what each candidate's mark must stay below; the marks know their own scale."""
        law = self.parameters
        ratio = spells.ratios[spells.profile[spell], drawn.signature]
        diurnal = 1 + law.diurnal * np.sin(2 * np.pi * drawn.seconds / DAY)
        infant = np.where(drawn.seconds < spells.infant_until[spell], law.infant_ratio, 1.0)
        alone = ratio * diurnal * infant
        return np.where(drawn.is_shock, np.minimum(1.0, law.shock_hit_share * ratio), alone)

    def _extra_alarms(self, tick: int, drawn: _Candidates, happens: Ints, spells: Spells) -> Faults:
        chosen = np.flatnonzero(np.isin(drawn.extra_parent, happens))
        parent = drawn.extra_parent[chosen]
        seconds = drawn.seconds[parent] + drawn.extra_delay[chosen]
        kept = spells.at(drawn.machine[parent], seconds) >= 0
        chosen, parent, seconds = chosen[kept], parent[kept], seconds[kept]
        return Faults(
            drawn.machine[parent],
            seconds,
            np.array(self.signatures, dtype=object)[drawn.signature[parent]],
            np.array(
                [
                    f"{tick}.b{p}.{n}"
                    for p, n in zip(parent, drawn.extra_number[chosen], strict=True)
                ],
                dtype=object,
            ),
        )

    def _novel(self, tick: int, spells: Spells) -> Faults:
        """Draw signatures that nobody has seen: the world's own, and those of firmware."""
        law = self.parameters
        rates = {"": law.novel_per_machine_day}
        rates |= {e.novel_signature: e.novel_rate for e in law.effects if e.novel_signature}
        parts = []
        for number, (name, rate) in enumerate(sorted(rates.items())):
            rng = stream(self.seed, Purpose.NOVEL, tick, number)
            size = rng.poisson(rate * len(self) * self._days)
            machine = rng.integers(len(self), size=size)
            seconds = self.tick_start(tick) + rng.random(size) * law.tick_seconds
            spell = spells.at(machine, seconds)
            carries = np.array([not name or name in p.novel for p in spells.profiles])
            kept = np.flatnonzero((spell >= 0) & carries[spells.profile[spell]])
            names = [name or f"unlisted.{tick}.{i}" for i in kept]
            parts.append(
                Faults(
                    machine[kept], seconds[kept], np.array(names, dtype=object),
                    _keys(tick, f"n{number}.", kept),
                )
            )  # fmt: skip
        return _joined(*parts)

    def _recoveries(
        self, tick: int, drawn: _Candidates, chosen: Ints, spells: Spells, spell: Ints
    ) -> Recoveries:
        law, machine = self.parameters, drawn.machine[chosen]
        shares = np.tile(np.array(law.path_shares), (len(chosen), 1))
        shift = np.minimum(spells.of_profile("severe_shift")[spell], shares[:, 1])
        shares[:, 1] -= shift
        shares[:, 2] += shift
        path = (drawn.path_mark[chosen, None] >= np.cumsum(shares, axis=1)[:, :3]).sum(axis=1)
        spread = law.recovery_sigma * drawn.duration_normal[chosen]
        spread += self.job_recovery[self.job_of[machine]]
        median = np.array(law.path_minutes)[path] * 60 * spells.of_profile("recovery")[spell]
        lasts = np.minimum(median * np.exp(spread), self.longest_recovery)
        most_repeated = np.array([0.0, 0.0, law.checkpoint_minutes, 4 * law.checkpoint_minutes])
        return Recoveries(
            machine=machine,
            start=drawn.seconds[chosen],
            end=drawn.seconds[chosen] + lasts,
            path=path,
            repeated_seconds=most_repeated[path] * 60 * drawn.repeat_mark[chosen],
            key=_keys(tick, "r", chosen),
        )

    # --- throughput -----------------------------------------------------------------------

    def observations(self, tick: int, spells: Spells) -> Observations:
        """Return what each machine reports at the end of a tick; one out of service is silent."""
        low, high = self.tick_start(tick), self.tick_start(tick + 1)
        overlap = np.clip(np.minimum(spells.end, high) - np.maximum(spells.start, low), 0, None)
        served = np.bincount(spells.machine, overlap, minlength=len(self)).astype(np.float64)
        firmware = np.bincount(
            spells.machine, overlap * spells.of_profile("throughput"), minlength=len(self)
        )
        silent = np.bincount(
            spells.machine, overlap * spells.of_profile("silence"), minlength=len(self)
        )
        rng = stream(self.seed, Purpose.IDLE, tick)
        silence_mark = rng.random(len(self))
        hours = max(1, round(self.parameters.tick_minutes / 60))
        idle = rng.binomial(hours, self.parameters.idle_share, len(self)) / hours
        reports = np.flatnonzero((served > 0) & (silence_mark * served >= silent))
        speed = self._speed(tick) * (1 - idle)
        return Observations(
            machine=reports,
            in_service_seconds=served[reports],
            throughput=np.maximum(0.0, speed[reports] * firmware[reports] / served[reports]),
        )

    def _speed(self, tick: int) -> Floats:
        law = self.parameters
        job = self.job_level * (
            1 + self._wave(tick, Purpose.JOB_WAVE, law.job_wave_hourly, law.job_wave_sd)
        )
        noise = 1 + self._wave(tick, Purpose.NOISE, law.noise_hourly, law.noise_sd)
        return self.level * job[self.job_of] * noise

    def _wave(self, tick: int, purpose: Purpose, hourly: float, sd: float) -> Floats:
        """Return an AR(1) process at a tick, as the finite sum of its latest innovations.

        An hourly process is averaged over the tick's hours; what is older than 0.1 % is cut off.
        """
        hours = self.parameters.tick_minutes / 60
        decay = hourly**hours
        reach = ceil(log(1e-3) / log(decay)) if 0 < decay < 1 else 0
        weights = decay ** np.arange(reach + 1)
        weights *= sd * _averaging(hourly, hours) / np.sqrt(np.sum(weights**2))
        recent = np.stack([self._innovations(tick - age, purpose) for age in range(reach + 1)])
        return weights @ recent

    def _draw_innovations(self, tick: int, purpose: Purpose) -> Floats:
        size = len(self.jobs) if purpose is Purpose.JOB_WAVE else len(self)
        return stream(self.seed, purpose, tick).standard_normal(size)

    # --- shared ---------------------------------------------------------------------------

    @property
    def _days(self) -> float:
        return self.parameters.tick_seconds / DAY

    @property
    def _cap(self) -> float:
        """The highest factor on a rate that a candidate must leave room for."""
        law = self.parameters
        return (1 + law.diurnal) * law.infant_ratio * law.max_ratio

    @staticmethod
    def _choose(mark: Floats, weights: Floats) -> Ints:
        edges = np.cumsum(weights) / max(weights.sum(), 1e-300)
        return np.minimum(np.searchsorted(edges, mark, side="right"), len(weights) - 1)


def _places(layout: Layout) -> Iterable[tuple[Layout, str, str, str, str, str]]:
    for index in range(layout.machines):
        rack, slot = divmod(index, layout.per_rack)
        job = index // layout.per_job
        yield (
            layout,
            f"{layout.prefix}-r{rack + 1:02d}-n{slot + 1}",
            f"{layout.prefix}-r{rack + 1:02d}",
            f"{layout.prefix}-job{job + 1:02d}",
            layout.sites[rack * len(layout.sites) * layout.per_rack // max(layout.machines, 1)
                         % len(layout.sites)],
            layout.workloads[job % len(layout.workloads)],
        )  # fmt: skip


def _averaging(hourly: float, hours: float) -> float:
    """Return the factor on the sd of an hourly AR(1) process by averaging over whole hours."""
    steps = np.arange(max(1, round(hours)))
    return float(np.sqrt(np.mean(hourly ** np.abs(steps[:, None] - steps[None, :]))))


def _product(factors: Iterable[float]) -> float:
    return float(np.prod([1.0, *factors]))


def _any_of(shares: Sequence[float]) -> float:
    """Return the chance that at least one of independent things happens."""
    return 1 - _product(1 - share for share in shares)


def _share(effect: Effect, name: str) -> float:
    return float(effect.failures.get(name, 0.0))


def _keys(tick: int, letter: str, numbers: Ints) -> Names:
    return np.array([f"{tick}.{letter}{number}" for number in numbers], dtype=object)


def _no_faults() -> Faults:
    none = np.empty(0, dtype=object)
    return Faults(np.empty(0, np.int64), np.empty(0), none, none)


def _no_recoveries() -> Recoveries:
    numbers, floats = np.empty(0, np.int64), np.empty(0)
    return Recoveries(numbers, floats, floats, numbers, floats, np.empty(0, dtype=object))


def _joined(*parts: Faults) -> Faults:
    return Faults(
        np.concatenate([part.machine for part in parts]).astype(np.int64),
        np.concatenate([part.seconds for part in parts]),
        np.concatenate([part.signature for part in parts]),
        np.concatenate([part.key for part in parts]),
    )


@lru_cache(4)
def fleet_model(seed: int, parameters: str) -> FleetModel:
    """Return the model of a stored fleet (JSON text), made once a process.

    Laying out and drawing are then not repeated from call to call.
    """
    return FleetModel(seed, Parameters.from_document(json.loads(parameters)))
