"""The throughput guardrail: both tests by re-assignment of rescaled running means."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from rollouts.analysis.evidence import (
    Columns,
    EffectLine,
    Moment,
    figure,
    finite,
    harm_limit,
    margin_limit,
    spent_details,
    stepped_halt,
    stepped_widen_paths,
    varies_nowhere,
    verdict_for,
)
from rollouts.analysis.exposure import clock_start
from rollouts.analysis.guardrails.run import Run
from rollouts.analysis.jumps import Jump, PaceChange, jump_details
from rollouts.analysis.policy import NODE_PROBE, Guardrail
from rollouts.analysis.pooling import harm_z
from rollouts.analysis.power import is_decidable, throughput_ni_power
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray
from rollouts.analysis.scores import UNITS_PER_RATIO, Strata, adjusted, quantised
from rollouts.analysis.throughput import (
    RelativeThroughput,
    ThroughputRatio,
    ThroughputTable,
    relative_throughput,
    throughput_ratio,
)
from rollouts.analysis.verdicts import GuardrailEvaluation, Interval, Verdict
from rollouts.analysis.wave import GuardrailState

LARGEST_FACTOR = 5.0
"""Limits are searched from a fifth of the control's throughput to five times it."""


@dataclass(frozen=True, eq=False)
class ThroughputTrack:
    """One throughput guardrail; `rows` are the usable reports in order of their end."""

    guardrail: Guardrail
    run: Run
    unit: IntArray
    workload: IntArray
    value: FloatArray
    known_at: IntArray
    workloads: tuple[str, ...]

    @classmethod
    def prepare(cls, guardrail: Guardrail, run: Run) -> "ThroughputTrack":
        rows = run.samples.observations
        if rows is None:
            empty = np.empty(0, dtype=np.int64)
            return cls(guardrail, run, empty, empty, np.empty(0), np.zeros(run.as_of.size, int), ())
        names = guardrail.workloads or tuple(sorted(set(rows.workloads) - {NODE_PROBE}))
        place = {name: code for code, name in enumerate(names)}
        code = np.array([place.get(name, -1) for name in rows.workloads], dtype=np.int64)
        workload = code[rows.workload] if code.size else np.empty(0, dtype=np.int64)
        starts = clock_start(run.samples)[rows.machine]
        good = np.isfinite(rows.throughput) & (workload >= 0) & (rows.in_service_seconds > 0)
        good &= rows.start_seconds >= starts
        order = np.flatnonzero(good)
        order = order[np.argsort(rows.end_seconds[order], kind="stable")]
        return cls(
            guardrail=guardrail,
            run=run,
            unit=run.samples.machines.unit[rows.machine[order]],
            workload=workload[order],
            value=rows.throughput[order],
            known_at=np.searchsorted(rows.end_seconds[order], run.as_of, side="right"),
            workloads=names,
        )

    def table(self, index: int) -> ThroughputTable:
        known = int(self.known_at[index])
        return ThroughputTable(
            unit=self.unit[:known],
            workload=self.workload[:known],
            value=self.value[:known],
            units=self.run.units,
            workloads=len(self.workloads),
        )

    # --- scores ----------------------------------------------------------------------------

    @cached_property
    def _strata(self) -> Strata:
        return self.run.adjusting(self.guardrail.metric)

    def columns(self) -> Mapping[str, IntArray]:
        return Columns(
            {
                self._key(k, side, part): partial(self._column, k, side, part)
                for k in range(len(self.run.looks))
                for side in self._drops
                for part in ("sum", "slope")
            }
        )

    def _column(self, index: int, side: str, part: str) -> IntArray:
        got = self._relative(index, side)
        return adjusted(
            quantised(-(got.mean if part == "sum" else got.slope), per_unit=UNITS_PER_RATIO),
            strata=self._strata,
            where=got.is_known,
        )

    def _relative(self, index: int, side: str) -> RelativeThroughput:
        """Kept until another is asked for: a score and its slope are read one after the other."""
        if (index, side) not in self._latest:
            self._latest.clear()
            self._latest[index, side] = relative_throughput(
                self.table(index),
                is_canary=self.run.is_canary,
                factor=1 / (1 - self._drops[side]),
            )
        return self._latest[index, side]

    @cached_property
    def _latest(self) -> dict[tuple[int, str], RelativeThroughput]:
        return {}

    @property
    def _drops(self) -> Mapping[str, float]:
        return {"harm": self.guardrail.tolerance, "widen": self.guardrail.margin}

    def _key(self, index: int, side: str, part: str) -> str:
        return f"{self.guardrail.name}/{side}-{part}/{self.run.looks[index].number}"

    def _line(self, index: int, side: str, sums: Mapping[str, IntArray]) -> EffectLine:
        return EffectLine(
            sums=sums[self._key(index, side, "sum")],
            slope=sums[self._key(index, side, "slope")],
            tested=1 / (1 - self._drops[side]),
        )

    def kept(self, index: int, *, at_checkpoint: bool) -> Mapping[str, IntArray]:
        return {}  # both tests sum the scores

    # --- the period before -----------------------------------------------------------------

    @cached_property
    def _before(self) -> tuple[FloatArray, BoolArray] | None:
        """Mean per unit and workload in the period before, and where there is one."""
        samples = self.run.samples
        levels, rows = samples.levels_before, samples.observations
        place = {name: code for code, name in enumerate(self.workloads)}
        if levels is not None:
            unit, value, names, code = (
                levels.unit,
                levels.throughput,
                levels.workloads,
                levels.workload,
            )
        elif rows is not None:
            early = (rows.end_seconds <= 0) & np.isfinite(rows.throughput)
            early &= rows.in_service_seconds > 0
            unit, value = samples.machines.unit[rows.machine[early]], rows.throughput[early]
            names, code = rows.workloads, rows.workload[early]
        else:
            return None
        known = np.array([place.get(name, -1) for name in names], dtype=np.int64)
        workload = known[code] if known.size else code
        kept = workload >= 0
        if not kept.any():
            return None
        table = ThroughputTable(
            unit[kept], workload[kept], value[kept], self.run.units, len(self.workloads)
        )
        return table.cell_means(value[kept])

    def change(self, index: int) -> PaceChange | None:
        """Each unit against itself, on the workloads that it ran in both periods."""
        if index not in self._changes:
            self._changes[index] = self._change(index)
        return self._changes[index]

    @cached_property
    def _changes(self) -> dict[int, PaceChange | None]:
        return {}

    def _change(self, index: int) -> PaceChange | None:
        if self._before is None:
            return None
        before, was = self._before
        now, is_now = self.table(index).cell_means(self.table(index).value)
        both = was & is_now & (before > 0)
        ratios = np.divide(now, before, out=np.zeros(now.shape), where=both)
        seen = both.sum(axis=1)
        return PaceChange.of(
            np.divide(ratios.sum(axis=1), seen, out=np.full(self.run.units, np.nan), where=seen > 0)
        )

    def jump(self, index: int) -> Jump | None:
        """Did both arms get slower than each was in its own period before, beyond the tolerance?"""
        change = self.change(index)
        if change is None:
            return None
        units = self.run.samples.units
        return change.jump(
            tolerance=self.guardrail.tolerance,
            is_canary=units.is_canary,
            is_near=units.is_near_canary,
        )

    # --- judgement -------------------------------------------------------------------------

    @property
    def absent(self) -> str | None:
        has_table = self.run.samples.observations is not None
        return None if has_table else "no data: observations are not collected"

    def missing(self, index: int) -> str | None:
        if self.absent is not None:
            return self.absent
        for arm, name in ((True, "canary"), (False, "control")):
            seen = self._first_rows[arm] < self.known_at[index]
            if not seen.any():
                return f"no data: no {name} machine has reported a usable throughput"
            if self.guardrail.workloads:
                unseen = [
                    w for w, has in zip(self.workloads, seen.tolist(), strict=True) if not has
                ]
                if unseen:
                    return f"no data: not yet seen in the {name} arm: {', '.join(unseen)}"
        return None

    @cached_property
    def _first_rows(self) -> Mapping[bool, IntArray]:
        """Per arm, the place of the first report of each workload; past the last if none."""
        mine = self.run.is_canary[self.unit]
        found = {}
        for arm in (True, False):
            rows = np.flatnonzero(mine == arm)
            found[arm] = np.full(len(self.workloads), self.unit.size, dtype=np.int64)
            np.minimum.at(found[arm], self.workload[rows], rows)
        return found

    def is_constant(self, index: int) -> bool:
        """Does no report differ from another of its workload?"""
        table = self.table(index)
        return varies_nowhere(table.value, table.workload)

    def is_decidable(self, index: int, *, elapsed: float, bound: float) -> bool:
        table = self.table(index)
        got = relative_throughput(table, is_canary=self.run.is_canary, factor=1.0)
        score = adjusted(
            quantised(got.mean, per_unit=UNITS_PER_RATIO),
            strata=self._strata,
            where=got.is_known,
        )[got.is_known]
        canaries = int((got.is_known & self.run.is_canary).sum())
        controls = int(got.is_known.sum()) - canaries
        sigma = float(np.std(score)) / UNITS_PER_RATIO
        if not canaries or not controls or sigma <= 0:
            return False
        return is_decidable(
            throughput_ni_power(
                sigma,
                n_canary=canaries,
                n_control=controls,
                delta=self.guardrail.margin,
                bound=bound,
            )
        )

    def judge(
        self, moment: Moment, sums: Mapping[str, IntArray]
    ) -> tuple[GuardrailEvaluation, GuardrailState]:
        k = moment.index
        harm, widen = self._line(k, "harm", sums), self._line(k, "widen", sums)
        state = stepped_halt(moment, harm.sums)
        if moment.may_show and not state.is_crossed:
            state = stepped_widen_paths(moment, state, widen)
        low, high = self._limits(moment, harm, widen, state=state)
        found = throughput_ratio(self.table(k), is_canary=self.run.is_canary, strata=self._strata)
        verdict = verdict_for(moment, state)
        canary, control = self.run.counts(k, events=None)
        evaluation = GuardrailEvaluation(
            name=self.guardrail.name,
            metric=self.guardrail.metric,
            verdict=verdict,
            unit="ratio",
            estimate=finite(found.overall.estimate),
            repeated=Interval(low, high, 1 - self.run.policy.beta),
            fixed_look=found.overall.interval,
            canary=canary,
            control=control,
            reason=self._reason(verdict, found.overall.estimate, low, high, moment=moment),
            required=moment.is_required,
            is_decidable=moment.is_decidable,
            crossed=state.is_crossed,
            shown=state.is_shown,
            details={
                **spent_details(moment, state),
                "margin": self.guardrail.margin,
                "tolerance": self.guardrail.tolerance,
                "workloads": self._by_workload(found),
                "statistic": int(harm.sums[0]),
                "widen_statistic": int(widen.sums[0]),
                "harm_z": harm_z(harm.sums),
                **jump_details(self.jump(k)),
            },
        )
        return evaluation, state

    def _limits(
        self, moment: Moment, harm: EffectLine, widen: EffectLine, *, state: GuardrailState
    ) -> tuple[float | None, float | None]:
        """Limits of the ratio canary / control; the factor 1 / ratio is what is tested."""
        if moment.missing is not None or moment.undersized is not None:
            return None, None
        least, most = (
            limit(moment, line, after=state, low=1 / LARGEST_FACTOR, high=_furthest(line))
            for limit, line in ((harm_limit, harm), (margin_limit, widen))
        )
        low = 1 / most if math.isfinite(most) and most > 0 else None
        high = 1 / least if math.isfinite(least) and least > 0 else None
        if low is not None and high is not None and low > high:
            low, high = high, low
        return low, high

    def _by_workload(self, found: ThroughputRatio) -> dict[str, object]:
        return {
            name: {
                "estimate": finite(one.estimate),
                "low": finite(one.interval.low),
                "high": finite(one.interval.high),
                "level": one.interval.level,
            }
            for name, one in zip(self.workloads, found.by_workload, strict=True)
        }

    def _reason(
        self,
        verdict: Verdict,
        estimate: float | None,
        low: float | None,
        high: float | None,
        *,
        moment: Moment,
    ) -> str:
        if verdict is Verdict.NO_DATA:
            return moment.missing or "no data"
        change = "not estimable" if estimate is None else _in_words(estimate)
        if verdict is Verdict.HARMFUL:
            least = "" if high is None else f" (at least {_percent(1 - high)} slower)"
            return f"{change}{least}; {_percent(self.guardrail.tolerance)} is tolerated"
        if verdict is Verdict.NOT_WORSE:
            most = "" if low is None else f" (at most {_percent(max(1 - low, 0.0))} slower)"
            return f"{change}{most}; the margin is {_percent(self.guardrail.margin)}"
        if moment.undersized is not None:
            return moment.undersized
        most = "has no limit yet" if low is None else f"could be {_percent(max(1 - low, 0))} slower"
        return f"{change}; {most}, the margin is {_percent(self.guardrail.margin)}"


def _furthest(line: EffectLine) -> float:
    """Where the search for a limit ends: beyond the tested factor, however large a drop that is."""
    return LARGEST_FACTOR if line.tested < LARGEST_FACTOR else 2 * line.tested


def _percent(share: float) -> str:
    return f"{figure(100 * share)} %"


def _in_words(ratio: float) -> str:
    """Canary throughput in words.

    Examples
    --------
    >>> _in_words(0.981), _in_words(1.02)
    ('1.9 % slower than the control', '2 % faster than the control')
    """
    side = "slower" if ratio < 1 else "faster"
    return f"{_percent(abs(1 - ratio))} {side} than the control"
