"""The period before a rollout, by unit: what the planner and the check of the draw read.

A few machines are read from their telemetry. Many are read from the fleet's summaries, which the
fleet keeps ready; where there are none yet, the head of the drawn order stands for all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase

import numpy as np
from django.db.models import Q

from fleet import summaries
from fleet.models import FaultSignature
from fleet.telemetry.digests import Clusters, Digest, Interruptions, Reports
from rollouts.analysis import power
from rollouts.analysis.policy import NODE_PROBE, Guardrail, Metric
from rollouts.analysis.policy import Policy as JudgePolicy
from rollouts.analysis.recovery import SEVERE
from rollouts.analysis.samples import FloatArray, IntArray
from rollouts.analysis.scores import Strata
from rollouts.services.evidence.drawn import Drawn

#: The longest period before that the planner looks at.
PERIOD = timedelta(days=14)
#: Telemetry of no more machines than these is read while somebody waits.
MOST_DIRECT = 1_000
#: Fewer units with throughput in both halves of the period say nothing of its spread.
LEAST_UNITS = 8
#: Fewer interruptions say less of the fleet than the field's figures do.
LEAST_INTERRUPTIONS = 30
#: Summaries older than this are named old.
FRESH = timedelta(hours=2)

_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Source:
    """Where the figures of the period before come from, in words where that matters."""

    words: str
    as_of: datetime | None
    uncovered: int = 0


@dataclass(frozen=True)
class Past:
    """The period before: its length in days, and what each unit did in it, in order of name.

    `sigma` maps a throughput guardrail to the standard deviation of its adjusted unit means.
    `lost` is what interruptions cost each unit; None where nothing was interrupted.
    """

    days: float
    machines: int
    units: int
    episodes: Mapping[str, IntArray]
    interruptions_per_day: float
    sigma: Mapping[str, float]
    recovery_sigma: float = power.RECOVERY_SIGMA
    severe_share: float = power.SEVERE_SHARE
    lost: power.LostWork | None = None
    source: Source = field(default_factory=lambda: Source("no report of the period before", None))

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


@dataclass(frozen=True, eq=False)
class Before:
    """What units reported in (since, until]; `drawn` is who was read: all, or the head."""

    drawn: Drawn
    digest: Digest
    since: datetime
    until: datetime
    source: Source

    @property
    def days(self) -> float:
        return (self.until - self.since).total_seconds() / 86_400


def read_past(drawn: Drawn, policy: JudgePolicy, *, now: datetime) -> Past:
    """Read the period before `now` of everybody who was drawn, stored or not."""
    before = read_before(drawn, now=now)
    if before is None:
        return Past(0.0, drawn.machines, drawn.units, {}, 0.0, {})
    digest, read = before.digest, before.drawn
    interruptions = Table.of(digest.interruptions, read)
    count = float(interruptions.digest.count.sum())
    return Past(
        days=before.days,
        machines=read.machines,
        units=read.units,
        episodes={
            name: read_counts(read, machine)
            for name, (machine, _) in episodes(before, policy).items()
        },
        interruptions_per_day=count / before.days / read.units,
        sigma=_sigmas(before, policy),
        recovery_sigma=_recovery_sigma(interruptions.digest) or power.RECOVERY_SIGMA,
        severe_share=_severe_share(digest, interruptions.digest) or power.SEVERE_SHARE,
        lost=_lost_work(before, interruptions),
        source=before.source,
    )


def read_before(drawn: Drawn, *, now: datetime, whole: bool = False) -> Before | None:
    """Return what the units reported in the period before; None without a report in it.

    Where `whole` is asked for, units are not left out, so nothing is read of many machines that
    have no summary.
    """
    if not drawn.machines:
        return None
    if drawn.machines > MOST_DIRECT:
        kept = summaries.kept(drawn.ids, now=now)
        if kept is not None:
            return _from_summaries(drawn, kept, now=now)
        if whole:
            return None
    read = drawn.head(machines=MOST_DIRECT)
    machines = summaries.of_machines(read.ids.tolist())
    first = summaries.first_report(machines, since=now - PERIOD, until=now)
    if first is None or first >= now:
        return None
    since = max(first, now - PERIOD)
    words = "read from reports"
    if read is not drawn:
        words = f"read from the reports of {read.machines} of {drawn.machines} machines, no summary"
    return Before(
        drawn=read,
        digest=summaries.digest_of(
            machines, since=since, until=now, middle=since + (now - since) / 2
        ),
        since=since,
        until=now,
        source=Source(words, now),
    )


def _from_summaries(drawn: Drawn, kept: summaries.Kept, *, now: datetime) -> Before | None:
    if kept.since >= kept.as_of:
        return None
    words = f"summaries of {kept.as_of:%Y-%m-%d %H:%M} UTC"
    if now - kept.as_of > FRESH:
        words += ", which are old"
    if kept.uncovered:
        words += f"; {kept.uncovered} of {drawn.machines} machines have none"
    reports = kept.digest.reports
    middle = kept.since + (kept.as_of - kept.since) / 2
    days = [date.fromordinal(day) for day in np.unique(reports.part).tolist()]
    late = [d.toordinal() for d in days if summaries.day_start(d) + timedelta(hours=12) >= middle]
    halves = Reports(**{**vars(reports), "part": np.isin(reports.part, late).astype(np.int64)})
    return Before(
        drawn=drawn,
        digest=Digest(**{**vars(kept.digest), "reports": halves}),
        since=kept.since,
        until=kept.as_of,
        source=Source(words, kept.as_of, kept.uncovered),
    )


def read_counts(drawn: Drawn, machine: IntArray) -> IntArray:
    """Count, per unit, how often one of its machines is named."""
    unit, _ = drawn.unit_of(machine)
    return np.bincount(unit, minlength=drawn.units).astype(np.int64)


# --- faults ----------------------------------------------------------------------------------


def episodes(before: Before, policy: JudgePolicy) -> dict[str, tuple[IntArray, IntArray]]:
    """Return machine and start of every episode, per fault guardrail."""
    return episode_starts(before.digest.clusters, policy)


def episode_days(before: Before, policy: JudgePolicy) -> dict[str, IntArray]:
    """Count each unit's machine-days with an episode per fault guardrail, as for halting."""
    found = {}
    for name, (machine, start) in episodes(before, policy).items():
        day = (start - microseconds(before.since)) // (timedelta(days=1) // _MICROSECOND)
        pairs = np.unique(np.stack([machine, day]), axis=1)
        found[name] = read_counts(before.drawn, pairs[0])
    return found


def episode_starts(clusters: Clusters, policy: JudgePolicy) -> dict[str, tuple[IntArray, IntArray]]:
    """Return machine and first event (microseconds since 1970) of every episode, per guardrail.

    Exactly the episodes of the single events, for every gap that is not shorter than that of the
    clusters: two events of one cluster always belong to one episode.
    """
    present = dict(
        FaultSignature.objects.filter(pk__in=np.unique(clusters.signature).tolist())
        .exclude(kind=FaultSignature.Kind.NOT_COUNTED)
        .values_list("pk", "name")
    )
    gap = timedelta(minutes=policy.gap_minutes) // _MICROSECOND
    found = {}
    for guardrail in policy.guardrails:
        if guardrail.metric is Metric.FAULTS:
            wanted = [key for key, name in present.items() if _matches(name, guardrail.signatures)]
            found[guardrail.name] = _starts(clusters, wanted, gap=gap)
    return found


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in patterns)


def _starts(clusters: Clusters, wanted: list[int], *, gap: int) -> tuple[IntArray, IntArray]:
    chosen = np.isin(clusters.signature, wanted)
    machine, first, last = clusters.machine[chosen], clusters.first[chosen], clusters.last[chosen]
    if not machine.size:
        return machine, first
    order = np.lexsort((first, machine))
    machine, first, last = machine[order], first[order], last[order]
    # On one axis: each machine gets a stretch of its own, farther from the next than any gap.
    stretch = int(last.max() - first.min()) + gap + 1
    shift = np.unique(machine, return_inverse=True)[1] * stretch - int(first.min())
    latest = np.maximum.accumulate(last + shift)
    begins = np.ones(machine.size, dtype=np.bool_)
    begins[1:] = (first + shift)[1:] - latest[:-1] >= gap
    return machine[begins], first[begins]


def clusters_of(drawn: Drawn, *, since: datetime, until: datetime) -> Clusters:
    """Return the fault clusters of the units in a time of any length, from the faults."""
    is_few = drawn.machines <= MOST_DIRECT
    machines = summaries.of_machines(drawn.ids.tolist()) if is_few else Q()
    found = summaries.clusters_between(machines, since=since, until=until)
    _, is_own = drawn.unit_of(found.machine)
    return Clusters(**{name: column[is_own] for name, column in vars(found).items()})


def microseconds(at: datetime) -> int:
    """Return microseconds since 1970."""
    return (at - _EPOCH) // _MICROSECOND


# --- throughput ------------------------------------------------------------------------------


def throughput_before(before: Before, policy: JudgePolicy) -> dict[str, FloatArray]:
    """Return each unit's mean relative throughput per throughput guardrail; NaN if unknown."""
    return {
        guardrail.name: _unit_means(before, guardrail)
        for guardrail in policy.guardrails
        if guardrail.metric is Metric.THROUGHPUT
    }


def _sigmas(before: Before, policy: JudgePolicy) -> dict[str, float]:
    found = {
        guardrail.name: _sigma(before, guardrail)
        for guardrail in policy.guardrails
        if guardrail.metric is Metric.THROUGHPUT
    }
    return {name: sigma for name, sigma in found.items() if sigma is not None}


def _sigma(before: Before, guardrail: Guardrail) -> float | None:
    """Spread of the later half's unit means, adjusted for the earlier half within strata."""
    early, late = (_unit_means(before, guardrail, part=part) for part in (0, 1))
    known = np.isfinite(early) & np.isfinite(late)
    if known.sum() < LEAST_UNITS:
        return None
    strata = Strata.of(before.drawn.stratum)
    x = np.where(known, early - strata.means(np.nan_to_num(early), where=known)[strata.code], 0.0)
    y = np.where(known, late - strata.means(np.nan_to_num(late), where=known)[strata.code], 0.0)
    slope = float(x @ y) / float(x @ x) if x.any() else 0.0
    residual = y - slope * x
    free = int(known.sum()) - np.unique(strata.code[known]).size - 1
    return float(np.sqrt(residual @ residual / free)) if free > 0 else None


def _unit_means(before: Before, guardrail: Guardrail, *, part: int | None = None) -> FloatArray:
    """Mean over machines and workloads of the ratio to the workload's level; NaN if unknown."""
    reports, drawn = before.digest.reports, before.drawn
    wanted = [
        code
        for code, name in enumerate(before.digest.workloads)
        if (name in guardrail.workloads if guardrail.workloads else name != NODE_PROBE)
    ]
    chosen = (reports.count > 0) & np.isin(reports.workload, wanted)
    if part is not None:
        chosen &= reports.part == part
    kinds = len(before.digest.workloads) + 1
    cell = reports.machine[chosen] * kinds + reports.workload[chosen]
    cells, index = np.unique(cell, return_inverse=True)
    count = reports.count[chosen].astype(np.float64)
    total = np.bincount(index, weights=reports.mean[chosen] * count, minlength=cells.size)
    mean = total / np.bincount(index, weights=count, minlength=cells.size)
    workload = cells % kinds
    sizes = np.maximum(np.bincount(workload, minlength=kinds), 1)
    level = np.bincount(workload, weights=mean, minlength=kinds) / sizes
    used = level[workload] > 0
    unit, is_own = drawn.unit_of(cells[used] // kinds)
    ratio = (mean[used] / level[workload[used]])[is_own]
    size = np.bincount(unit, minlength=drawn.units)
    summed = np.bincount(unit, weights=ratio, minlength=drawn.units)
    return np.where(size > 0, summed / np.maximum(size, 1), np.nan)


# --- interruptions ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Table:
    """Interruptions of machines that were drawn, with their units."""

    digest: Interruptions
    unit: IntArray

    @classmethod
    def of(cls, found: Interruptions, drawn: Drawn) -> "Table":
        unit, is_own = drawn.unit_of(found.machine)
        own = {name: column[is_own] for name, column in vars(found).items()}
        return cls(Interruptions(**own), unit)

    def per_unit(self, values: FloatArray | IntArray, *, units: int) -> FloatArray:
        """Add a column up by unit."""
        weights = values.astype(np.float64)
        return np.asarray(np.bincount(self.unit, weights=weights, minlength=units))


def slowness_before(before: Before) -> FloatArray | None:
    """Return per unit how much longer than its path's mean it took to recover, in log seconds.

    None where nothing has recovered.
    """
    table = Table.of(before.digest.interruptions, before.drawn)
    if not table.digest.closed.sum():
        return None
    mean = _path_means(table.digest)
    excess = table.digest.log_sum - table.digest.closed * mean[table.digest.path]
    return table.per_unit(excess, units=before.drawn.units)


def coverage_before(before: Before) -> FloatArray:
    """Return per unit the machine-days that reports cover, as a share of the period."""
    reports = before.digest.reports
    unit, is_own = before.drawn.unit_of(reports.machine)
    covered = reports.covered_seconds[is_own] / (86_400 * before.days)
    return np.asarray(np.bincount(unit, weights=covered, minlength=before.drawn.units))


def _path_means(found: Interruptions) -> FloatArray:
    paths = int(found.path.max(initial=-1)) + 1
    closed = np.bincount(found.path, weights=found.closed, minlength=paths)
    total = np.bincount(found.path, weights=found.log_sum, minlength=paths)
    return np.asarray(total / np.maximum(closed, 1))


def _recovery_sigma(found: Interruptions) -> float | None:
    """Standard deviation of the log recovery time within a path."""
    closed = float(found.closed.sum())
    if closed < LEAST_INTERRUPTIONS:
        return None
    mean = _path_means(found)
    squares = float(found.log_squares.sum() - (found.log_sum * mean[found.path]).sum())
    free = closed - np.unique(found.path[found.closed > 0]).size
    return float(np.sqrt(max(squares, 0.0) / free)) or None


def _severe_share(digest: Digest, found: Interruptions) -> float | None:
    severe = [code for code, name in enumerate(digest.paths) if name in SEVERE]
    if found.count.sum() < LEAST_INTERRUPTIONS:
        return None
    return float(found.count[np.isin(found.path, severe)].sum() / found.count.sum()) or None


def _lost_work(before: Before, table: Table) -> power.LostWork | None:
    if not table.digest.count.sum():
        return None
    units = before.drawn.units
    roots = table.per_unit(table.digest.lost_roots, units=units)
    return power.LostWork(
        mean=float(roots.mean()),
        variance=float(roots.var()),
        within=float(table.digest.lost_hours.sum()) / units,
        days=before.days,
    )
