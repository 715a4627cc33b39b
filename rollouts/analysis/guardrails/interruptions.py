"""Guardrails on interruptions: time to recover, and the share that took a severe path."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from rollouts.analysis.differences import Outcomes, difference_of
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
from rollouts.analysis.guardrails.difference import judged_difference, kept_outcomes
from rollouts.analysis.guardrails.run import Run
from rollouts.analysis.policy import Guardrail
from rollouts.analysis.pooling import harm_z
from rollouts.analysis.power import is_decidable, recovery_ni_power, severe_ni_power
from rollouts.analysis.recovery import (
    CAP_SECONDS,
    SEVERE,
    Interruptions,
    Path,
    RelativeRecovery,
    per_root_count,
    recovery_ratio,
    relative_recovery,
)
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray, RecoveryRows
from rollouts.analysis.scores import UNITS_PER_LOG, quantised
from rollouts.analysis.verdicts import GuardrailEvaluation, Interval, Verdict
from rollouts.analysis.wave import GuardrailState

LARGEST_LOG = math.log(50.0)
"""Limits of a recovery ratio are searched up to fifty times, and down to a fiftieth."""
LEAST_RECOVERIES = 30
LEAST_PATHS = 100
"""Canary interruptions expected in the window before `auto` asks for non-inferiority."""


def interruptions_at(run: Run, index: int, *, for_widening: bool) -> Interruptions:
    """What the look knows: open ones so far to halt, at the cap to widen.

    To widen, only interruptions that began at least eight hours ago count: leaving out the open
    ones would favour widening.
    """
    rows = run.samples.recoveries
    if rows is None:
        empty = np.empty(0, dtype=np.int64)
        return Interruptions(empty, empty, np.empty(0), np.empty(0, dtype=np.bool_))
    cutoff = float(run.as_of[index])
    begun = rows.time_seconds >= clock_start(run.samples)[rows.machine]
    begun &= rows.time_seconds <= (cutoff - CAP_SECONDS if for_widening else cutoff)
    is_open = ~(rows.recovered_seconds <= cutoff)
    taken = np.where(is_open, cutoff - rows.time_seconds, _seconds(rows))
    if for_widening:
        taken = np.where(is_open, CAP_SECONDS, taken)
    return Interruptions(
        unit=run.samples.machines.unit[rows.machine[begun]],
        path=rows.path[begun],
        seconds=np.maximum(taken[begun], 0.0),
        is_open=is_open[begun],
    )


def _seconds(rows: RecoveryRows) -> FloatArray:
    """The reported duration, else the time between the two reports."""
    reported = rows.recovery_seconds
    between = rows.recovered_seconds - rows.time_seconds
    return np.asarray(np.where(np.isfinite(reported), reported, between), dtype=np.float64)


def is_begun(run: Run, index: int) -> BoolArray:
    """Recovery rows on the clock that began by the look."""
    rows = run.samples.recoveries
    if rows is None:
        return np.empty(0, dtype=np.bool_)
    begun = rows.time_seconds >= clock_start(run.samples)[rows.machine]
    return np.asarray(begun & (rows.time_seconds <= run.as_of[index]))


def recoveries_absent(run: Run) -> str | None:
    has_table = run.samples.recoveries is not None
    return None if has_table else "no data: recoveries are not collected"


def arm_events(run: Run, unit: IntArray) -> tuple[int, int]:
    mine = run.is_canary[unit]
    return int(mine.sum()), int((~mine).sum())


@dataclass(frozen=True, eq=False)
class RecoveryTrack:
    """Time to recover within its path: both tests by re-assignment."""

    guardrail: Guardrail
    run: Run

    @classmethod
    def prepare(cls, guardrail: Guardrail, run: Run) -> "RecoveryTrack":
        return cls(guardrail, run)

    @property
    def _factors(self) -> Mapping[str, float]:
        return {
            "harm": math.log(self.guardrail.tolerance),
            "widen": math.log(self.guardrail.margin),
        }

    def _key(self, index: int, side: str, part: str) -> str:
        return f"{self.guardrail.name}/{side}-{part}/{self.run.looks[index].number}"

    def columns(self) -> Mapping[str, IntArray]:
        return Columns(
            {
                self._key(k, side, part): partial(self._column, k, side, part)
                for k in range(len(self.run.looks))
                for side in self._factors
                for part in ("sum", "slope", "count")
            }
        )

    def _column(self, index: int, side: str, part: str) -> IntArray:
        got = self._relative(index, side)
        if part == "count":
            return got.count
        return quantised(got.total if part == "sum" else got.slope, per_unit=UNITS_PER_LOG)

    def _relative(self, index: int, side: str) -> RelativeRecovery:
        """Kept until another is asked for: its three parts are read one after the other."""
        if (index, side) not in self._latest:
            self._latest.clear()
            self._latest[index, side] = relative_recovery(
                interruptions_at(self.run, index, for_widening=side == "widen"),
                is_canary=self.run.is_canary,
                log_factor=self._factors[side],
                stratum=self.run.strata.code,
            )
        return self._latest[index, side]

    @cached_property
    def _latest(self) -> dict[tuple[int, str], RelativeRecovery]:
        return {}

    def _line(self, index: int, side: str, sums: Mapping[str, IntArray]) -> EffectLine:
        count = sums[self._key(index, side, "count")]
        return EffectLine(
            sums=per_root_count(sums[self._key(index, side, "sum")], count),
            slope=sums[self._key(index, side, "slope")] / np.sqrt(count + 2.0),
            tested=self._factors[side],
        )

    def kept(self, index: int, *, at_checkpoint: bool) -> Mapping[str, IntArray]:
        return {}  # both tests sum the scores

    @property
    def absent(self) -> str | None:
        return recoveries_absent(self.run)

    def missing(self, index: int) -> str | None:
        return self.absent

    def is_constant(self, index: int) -> bool:
        """Did all of a path last equally long, and does none that is open last longer?"""
        rows = interruptions_at(self.run, index, for_widening=False)
        over = ~rows.is_open
        longest = np.zeros(int(rows.path.max(initial=-1)) + 1)
        longest[rows.path[over]] = rows.seconds[over]
        if (rows.seconds > longest[rows.path]).any():
            return False
        return varies_nowhere(rows.seconds[over], rows.path[over])

    def is_decidable(self, index: int, *, elapsed: float, bound: float) -> bool:
        rows = interruptions_at(self.run, index, for_widening=False)
        canary, control = (n / max(elapsed, 1e-9) for n in arm_events(self.run, rows.unit))
        if canary < LEAST_RECOVERIES or control <= 0:
            return False
        power = recovery_ni_power(canary, control, bound=bound, margin_ratio=self.guardrail.margin)
        return is_decidable(power)

    def judge(
        self, moment: Moment, sums: Mapping[str, IntArray]
    ) -> tuple[GuardrailEvaluation, GuardrailState]:
        k = moment.index
        harm, widen = self._line(k, "harm", sums), self._line(k, "widen", sums)
        state = stepped_halt(moment, harm.sums)
        if moment.may_show and not state.is_crossed:
            state = stepped_widen_paths(moment, state, widen)
        rows = interruptions_at(self.run, k, for_widening=False)
        found = recovery_ratio(rows, is_canary=self.run.is_canary)
        low, high = self._limits(moment, harm, widen, state=state, rows=rows)
        verdict = verdict_for(moment, state)
        canary, control = self.run.counts(k, events=arm_events(self.run, rows.unit))
        evaluation = GuardrailEvaluation(
            name=self.guardrail.name,
            metric=self.guardrail.metric,
            verdict=verdict,
            unit="ratio",
            estimate=finite(found.estimate),
            repeated=Interval(low, high, 1 - self.run.policy.beta),
            fixed_look=found.interval,
            canary=canary,
            control=control,
            reason=self._reason(verdict, found.estimate, low, high, moment=moment),
            required=moment.is_required,
            is_decidable=moment.is_decidable,
            crossed=state.is_crossed,
            shown=state.is_shown,
            details={
                **spent_details(moment, state),
                "margin": self.guardrail.margin,
                "tolerance": self.guardrail.tolerance,
                "open": {
                    "canary": int(self.run.is_canary[rows.unit[rows.is_open]].sum()),
                    "control": int((~self.run.is_canary[rows.unit[rows.is_open]]).sum()),
                },
                "statistic": int(harm.sums[0]),
                "widen_statistic": int(widen.sums[0]),
                "harm_z": harm_z(harm.sums),
            },
        )
        return evaluation, state

    def _limits(
        self,
        moment: Moment,
        harm: EffectLine,
        widen: EffectLine,
        *,
        state: GuardrailState,
        rows: Interruptions,
    ) -> tuple[float | None, float | None]:
        """Limits of the ratio of recovery times; its log is what is tested."""
        if moment.missing is not None or moment.undersized is not None or not rows.unit.size:
            return None, None
        least, most = (
            limit(moment, line, after=state, low=-LARGEST_LOG, high=_furthest(line))
            for limit, line in ((harm_limit, harm), (margin_limit, widen))
        )
        low = math.exp(least) if math.isfinite(least) else None
        high = math.exp(most) if math.isfinite(most) else None
        if low is not None and high is not None and low > high:
            low, high = high, low
        return low, high

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
        if estimate is None:
            return "not estimable: an arm has had no interruption"
        times = f"{figure(estimate)} times the control's"
        margin = f"the margin is {figure(self.guardrail.margin)}"
        if verdict is Verdict.HARMFUL:
            return times if low is None else f"{times} (at least {figure(low)})"
        if verdict is Verdict.NOT_WORSE:
            most = "" if high is None else f"at most {figure(high)}; "
            return f"{times} ({most}{margin})"
        if moment.undersized is not None:
            return moment.undersized
        most = "no upper limit yet" if high is None else f"could be {figure(high)}"
        return f"{times}; {most}, {margin}"


def _furthest(line: EffectLine) -> float:
    """Where the search for a limit ends: beyond the tested ratio, however large that is."""
    return LARGEST_LOG if line.tested < LARGEST_LOG else 2 * line.tested


@dataclass(frozen=True, eq=False)
class SeverePathTrack:
    """Share of interruptions that restarted the job from a checkpoint, or lost it."""

    guardrail: Guardrail
    run: Run
    severity: FloatArray
    """Per path code: 1 severe, 0 not, NaN while the path is not known."""
    unmapped: tuple[str, ...]

    @classmethod
    def prepare(cls, guardrail: Guardrail, run: Run) -> "SeverePathTrack":
        rows = run.samples.recoveries
        names = () if rows is None else rows.paths
        known = {path.value: float(path in SEVERE) for path in Path}
        known.update({"": math.nan, "unknown": math.nan})
        mapped = [guardrail.paths.get(name, name) for name in names]
        unmapped = tuple(
            name for name, path in zip(names, mapped, strict=True) if path not in known
        )
        severity = np.array([known.get(path, math.nan) for path in mapped], dtype=np.float64)
        return cls(guardrail, run, severity, unmapped)

    def _outcomes(self, index: int) -> tuple[FloatArray, IntArray]:
        """Severe paths and interruptions of known path, per unit."""
        rows = self.run.samples.recoveries
        if rows is None:
            return np.zeros(self.run.units), np.zeros(self.run.units, dtype=np.int64)
        begun = is_begun(self.run, index)
        value = self.severity[rows.path] if self.severity.size else np.empty(0)
        used = begun & np.isfinite(value)
        unit = self.run.samples.machines.unit[rows.machine[used]]
        total = np.bincount(unit, weights=value[used], minlength=self.run.units)
        return total.astype(np.float64), np.bincount(unit, minlength=self.run.units)

    def _key(self, index: int, part: str) -> str:
        return f"{self.guardrail.name}/harm-{part}/{self.run.looks[index].number}"

    def columns(self) -> Mapping[str, IntArray]:
        columns: dict[str, IntArray] = {}
        for k in range(len(self.run.looks)):
            total, count = self._outcomes(k)
            pool = float(total.sum()) / max(int(count.sum()), 1)
            scaled = np.where(self.run.is_canary, self.guardrail.tolerance, 0.0) * count
            excess = total - scaled - pool * count
            columns[self._key(k, "sum")] = quantised(excess, per_unit=UNITS_PER_LOG)
            columns[self._key(k, "count")] = count.astype(np.int64)
        return columns

    def kept(self, index: int, *, at_checkpoint: bool) -> Mapping[str, IntArray]:
        if not at_checkpoint:
            return {}
        look = self.run.looks[index].number
        return kept_outcomes(*self._outcomes(index), name=self.guardrail.name, look=look)

    @property
    def absent(self) -> str | None:
        return recoveries_absent(self.run)

    def missing(self, index: int) -> str | None:
        if self.absent is not None:
            return self.absent
        if self.unmapped:
            return f"no data: paths without a severity: {', '.join(self.unmapped)}"
        return None

    def is_decidable(self, index: int, *, elapsed: float, bound: float) -> bool:
        _, count = self._outcomes(index)
        canary = float(count[self.run.is_canary].sum()) / max(elapsed, 1e-9)
        control = float(count[~self.run.is_canary].sum()) / max(elapsed, 1e-9)
        if canary < LEAST_PATHS or control <= 0:
            return False
        power = severe_ni_power(canary, control, bound=bound, margin=self.guardrail.margin)
        return is_decidable(power)

    def judge(
        self, moment: Moment, sums: Mapping[str, IntArray]
    ) -> tuple[GuardrailEvaluation, GuardrailState]:
        k = moment.index
        harm = per_root_count(sums[self._key(k, "sum")], sums[self._key(k, "count")])
        total, count = self._outcomes(k)
        found = difference_of(Outcomes(total, count, self.run.is_canary, self.run.strata))
        canary, control = self.run.counts(
            k,
            events=(int(count[self.run.is_canary].sum()), int(count[~self.run.is_canary].sum())),
        )
        return judged_difference(
            self.guardrail,
            self.run,
            moment=moment,
            harm=harm,
            found=found,
            counts=(canary, control),
            words="share of interruptions with a severe path",
        )
