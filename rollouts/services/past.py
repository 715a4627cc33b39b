"""The period before a rollout, by unit: what the planner and the check of the draw read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

import numpy as np
from django.db.models import Avg, Case, Min, QuerySet, Value, When

from fleet.models import Fault, FaultSignature, Machine, Observation, Recovery
from rollouts.analysis import power
from rollouts.analysis.policy import Guardrail, Metric
from rollouts.analysis.policy import Policy as JudgePolicy
from rollouts.analysis.samples import FloatArray, IntArray
from rollouts.analysis.scores import Strata
from rollouts.models import Assignment, Rollout

#: The longest period before that the planner looks at.
PERIOD = timedelta(days=14)
#: The spread of throughput is taken from about so many units, the first of the drawn order.
MOST_UNITS = 2_000
#: Fewer units with throughput in both halves of the period say nothing of its spread.
LEAST_UNITS = 8


@dataclass(frozen=True)
class Past:
    """The period before: its length in days, and what each unit did in it, in order of name.

    `sigma` maps a throughput guardrail to the standard deviation of its adjusted unit means.
    """

    days: float
    machines: int
    units: int
    episodes: Mapping[str, IntArray]
    interruptions_per_day: float
    sigma: Mapping[str, float]

    def history(self, guardrail: Guardrail) -> power.FaultCounts | None:
        counts = self.episodes.get(guardrail.name)
        if counts is None or not self.days or not counts.size:
            return None
        return power.FaultCounts(counts, days=self.days)

    def fault_rate(self, guardrail: Guardrail) -> float | None:
        """Return episodes per machine-day, or None where nothing is known."""
        counts = self.episodes.get(guardrail.name)
        if counts is None or not self.days or not self.machines:
            return None
        return float(counts.sum()) / self.days / self.machines


@dataclass(frozen=True)
class Population:
    """Machines, each with the index of its unit; units by name, with stratum and planned wave."""

    machines: QuerySet[Machine]
    names: tuple[str, ...]
    ids: IntArray
    unit: IntArray
    stratum: IntArray
    planned_wave: IntArray

    @property
    def units(self) -> int:
        return int(self.stratum.size)

    def unit_of(self, machine_ids: Sequence[int]) -> IntArray:
        return self.unit[np.searchsorted(self.ids, np.array(machine_ids, dtype=np.int64))]


def read_past(rollout: Rollout, policy: JudgePolicy, *, now: datetime) -> Past:
    """Read the period before `now` of everybody who was drawn."""
    population = population_of(Assignment.objects.filter(rollout=rollout))
    since = period_start(population, now=now)
    days = (now - since).total_seconds() / 86_400 if since else 0.0
    if since is None or not days or not population.units:
        return Past(0.0, population.ids.size, population.units, {}, 0.0, {})
    interruptions = (
        Recovery.objects.filter(
            machine__in=population.machines, time__gt=since, time__lte=now, is_ahead=False
        )
        .values("source", "source_key")
        .distinct()
        .count()
    )
    return Past(
        days=days,
        machines=population.ids.size,
        units=population.units,
        episodes=_episodes(population, policy, since=since, now=now),
        interruptions_per_day=interruptions / days / population.units,
        sigma=_sigmas(_sample(rollout, population), policy, since=since, now=now),
    )


def _sample(rollout: Rollout, population: Population) -> Population:
    """Return enough units to estimate a spread: the drawn order is random, so is its head."""
    if population.units <= MOST_UNITS:
        return population
    each = -(-MOST_UNITS // np.unique(population.stratum).size)
    return population_of(Assignment.objects.filter(rollout=rollout, position__lt=each))


def population_of(places: QuerySet[Assignment]) -> Population:
    """Read who stands at these places of the drawn order."""
    rows = list(
        places.order_by("machine_id").values_list("machine_id", "unit", "stratum", "planned_wave")
    )
    names, first, unit = np.unique([row[1] for row in rows], return_index=True, return_inverse=True)
    _, stratum = np.unique([rows[index][2] for index in first.tolist()], return_inverse=True)
    return Population(
        machines=Machine.objects.filter(pk__in=places.order_by().values("machine")),
        names=tuple(names.tolist()),
        ids=np.array([row[0] for row in rows], dtype=np.int64),
        unit=unit.astype(np.int64),
        stratum=stratum.astype(np.int64),
        planned_wave=np.array([rows[index][3] for index in first.tolist()], dtype=np.int64),
    )


def period_start(population: Population, *, now: datetime) -> datetime | None:
    """Return the start of the period before: its default length, or since reports began."""
    reports = Observation.objects.filter(machine__in=population.machines, end__gt=now - PERIOD)
    first = reports.aggregate(at=Min("start"))["at"]
    return None if first is None else max(first, now - PERIOD)


def _episodes(
    population: Population, policy: JudgePolicy, *, since: datetime, now: datetime
) -> dict[str, IntArray]:
    """Count each unit's episodes per fault guardrail, by the gap rule on each machine."""
    return {
        name: _per_unit(population, [machine for machine, _ in starts])
        for name, starts in episode_starts(population, policy, since=since, now=now).items()
    }


def episode_days(
    population: Population, policy: JudgePolicy, *, since: datetime, now: datetime
) -> dict[str, IntArray]:
    """Count each unit's machine-days with an episode per fault guardrail, as for halting."""
    return {
        name: _per_unit(
            population,
            [
                machine
                for machine, _ in {(machine, (time - since).days) for machine, time in starts}
            ],
        )
        for name, starts in episode_starts(population, policy, since=since, now=now).items()
    }


def _per_unit(population: Population, machine_ids: Sequence[int]) -> IntArray:
    units = population.unit_of(machine_ids)
    return np.bincount(units, minlength=population.units).astype(np.int64)


def episode_starts(
    population: Population, policy: JudgePolicy, *, since: datetime, now: datetime
) -> dict[str, list[tuple[int, datetime]]]:
    """Return machine and first event of every episode, per fault guardrail."""
    rows = list(
        Fault.objects.filter(
            machine__in=population.machines, time__gt=since, time__lte=now, is_ahead=False
        )
        .exclude(signature__kind=FaultSignature.Kind.NOT_COUNTED)
        .order_by("machine_id", "time")
        .values_list("machine_id", "time", "signature__name")
    )
    gap = timedelta(minutes=policy.gap_minutes)
    found = {}
    for guardrail in policy.guardrails:
        if guardrail.metric is not Metric.FAULTS:
            continue
        wanted = _matching({name for _, _, name in rows}, guardrail.signatures)
        starts: list[tuple[int, datetime]] = []
        machine, last = None, None
        for row_machine, time, name in rows:
            if name not in wanted:
                continue
            if row_machine != machine or last is None or time - last >= gap:
                starts.append((row_machine, time))
            machine, last = row_machine, time
        found[guardrail.name] = starts
    return found


def _matching(names: set[str], patterns: tuple[str, ...]) -> set[str]:
    return {name for name in names if any(fnmatchcase(name, glob) for glob in patterns)}


# --- throughput ------------------------------------------------------------------------------


Report = tuple[int, str, int, float]
"""Machine, workload, half of the period (0, 1), mean throughput."""


def throughput_before(
    population: Population, policy: JudgePolicy, *, since: datetime, now: datetime
) -> dict[str, FloatArray]:
    """Return each unit's mean relative throughput per throughput guardrail; NaN if unknown."""
    return {
        name: _unit_means(population, rows)
        for name, rows in _reports(population, policy, since=since, now=now).items()
    }


def _sigmas(
    population: Population, policy: JudgePolicy, *, since: datetime, now: datetime
) -> dict[str, float]:
    found = {
        name: _sigma(population, rows)
        for name, rows in _reports(population, policy, since=since, now=now).items()
    }
    return {name: sigma for name, sigma in found.items() if sigma is not None}


def _reports(
    population: Population, policy: JudgePolicy, *, since: datetime, now: datetime
) -> dict[str, list[Report]]:
    guardrails = [g for g in policy.guardrails if g.metric is Metric.THROUGHPUT]
    if not guardrails:
        return {}
    middle = since + (now - since) / 2
    rows = list(
        Observation.objects.filter(
            machine__in=population.machines,
            end__gt=since,
            end__lte=now,
            is_ahead=False,
            throughput__isnull=False,
        )
        .order_by()
        .annotate(half=Case(When(end__lte=middle, then=Value(0)), default=Value(1)))
        .values("machine_id", "workload", "half")
        .annotate(mean=Avg("throughput"))
        .values_list("machine_id", "workload", "half", "mean")
    )
    # A server may add up in another order each time: what replays must not depend on that.
    rounded = [(machine, kind, half, round(mean, 9)) for machine, kind, half, mean in rows]
    return {
        guardrail.name: [
            row for row in rounded if not guardrail.workloads or row[1] in guardrail.workloads
        ]
        for guardrail in guardrails
    }


def _sigma(population: Population, rows: list[Report]) -> float | None:
    """Spread of the later half's unit means, adjusted for the earlier half within strata."""
    halves = [_unit_means(population, [row for row in rows if row[2] == half]) for half in (0, 1)]
    early, late = halves
    known = np.isfinite(early) & np.isfinite(late)
    if known.sum() < LEAST_UNITS:
        return None
    strata = Strata.of(population.stratum)
    x = np.where(known, early - strata.means(np.nan_to_num(early), where=known)[strata.code], 0.0)
    y = np.where(known, late - strata.means(np.nan_to_num(late), where=known)[strata.code], 0.0)
    slope = float(x @ y) / float(x @ x) if x.any() else 0.0
    residual = y - slope * x
    free = int(known.sum()) - np.unique(strata.code[known]).size - 1
    return float(np.sqrt(residual @ residual / free)) if free > 0 else None


def _unit_means(population: Population, rows: list[Report]) -> FloatArray:
    """Mean over machines and workloads of the ratio to the workload's level; NaN if unknown."""
    if not rows:
        return np.full(population.units, np.nan)
    mean = np.array([row[3] for row in rows], dtype=np.float64)
    _, workload = np.unique([row[1] for row in rows], return_inverse=True)
    level = np.bincount(workload, weights=mean) / np.bincount(workload)
    used = level[workload] > 0
    unit = population.unit_of([row[0] for row in rows])[used]
    ratio = mean[used] / level[workload][used]
    size = np.bincount(unit, minlength=population.units)
    total = np.bincount(unit, weights=ratio, minlength=population.units)
    return np.where(size > 0, total / np.maximum(size, 1), np.nan)
