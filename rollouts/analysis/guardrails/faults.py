"""The fault guardrail: halt by re-assigned scores, widen by matched scores or totals."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, TypedDict

import numpy as np

from rollouts.analysis.episodes import (
    Events,
    counts_at,
    ends_service,
    episodes,
    family_events,
    first_of_each,
    nearby_end_of_service,
    since_clock,
)
from rollouts.analysis.evidence import (
    Moment,
    figure,
    finite,
    harm_bound,
    is_below,
    millionths,
    spent_details,
    stepped_halt,
    stepped_widen,
    verdict_for,
)
from rollouts.analysis.exposure import SECONDS_PER_DAY, service_spans
from rollouts.analysis.foresight import foreseen_counts
from rollouts.analysis.guardrails.run import Run
from rollouts.analysis.hazards import (
    SPELL_SECONDS,
    FaultTable,
    Thinning,
    Totals,
    halt_score,
    rate_ratio,
    surprise_score,
)
from rollouts.analysis.hazards import ratio_limits as limits_of
from rollouts.analysis.jumps import FaultChange, Jump, jump_details
from rollouts.analysis.policy import Guardrail
from rollouts.analysis.pooling import harm_z
from rollouts.analysis.power import FaultRate, effective_margin, fault_ni_power, is_decidable
from rollouts.analysis.proportions import rate_ratio_exact
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray
from rollouts.analysis.scores import Strata
from rollouts.analysis.verdicts import GuardrailEvaluation, Interval, Verdict
from rollouts.analysis.wave import GuardrailState


class _Common(TypedDict):
    """What both halting scores ask for."""

    is_canary: BoolArray
    where: BoolArray
    strata: Strata
    tolerance: float


class Limits(NamedTuple):
    """A repeated interval and whether an end was moved to agree with the verdict."""

    low: float
    high: float
    is_clipped: bool


class Before(NamedTuple):
    """Episodes and in-service days per unit in the period before the window."""

    episodes: IntArray
    days: FloatArray

    @property
    def rate_per_day(self) -> float | None:
        """Of all units together; None without service."""
        total = float(self.days.sum())
        return float(self.episodes.sum()) / total if total > 0 else None


MICROSECONDS = "microseconds"
"""Name under which a checkpoint keeps each unit's time in service."""
TOTALS, THINNING = "totals", "thinning"
HALF = Fraction(1, 2)


def margin_at(rate: float | None, *, margin: float, delta_abs: float) -> float:
    """M_eff: the margin, or more where the frozen rate of before is very small."""
    if rate is None:
        return margin
    if rate <= 0:
        return math.inf
    return effective_margin(margin, rate_before_per_day=rate, delta_abs=delta_abs)


def table_of(
    episodes: IntArray, microseconds: IntArray, *, is_canary: BoolArray, stratum: IntArray
) -> FaultTable:
    """The table of the units that count (episodes not negative), from whole numbers."""
    here = episodes >= 0
    return FaultTable(
        episodes=episodes[here],
        days=microseconds[here] / (1e6 * SECONDS_PER_DAY),
        is_canary=is_canary[here],
        strata=Strata.of(stratum[here]),
    )


def model_of(table: FaultTable, *, method: str) -> Thinning | Totals | None:
    """What "not worse" is judged by."""
    return Totals.of(table) if method == TOTALS else Thinning.of(table)


def margin_z(model: Thinning | Totals | None, margin: float) -> float | None:
    """z of "canaries fail `margin` times as often"; None where nothing can be said."""
    return None if model is None or not math.isfinite(margin) else model.z(margin)


def period_before(guardrail: Guardrail, run: Run) -> Before | None:
    """What the samples know of the time before the window; None if they hold no fault of it."""
    faults = run.samples.faults
    if faults is None or not (faults.time_seconds < 0).any():
        return None
    machine, start, end = service_spans(run.samples)
    unit = run.samples.machines.unit
    served = np.maximum(np.minimum(end, 0.0) - start, 0.0) / SECONDS_PER_DAY
    every = family_events(run.samples, patterns=guardrail.signatures)
    merged = episodes(every, gap_seconds=60 * run.policy.gap_minutes)
    early = unit[merged.machine[merged.time_seconds < 0]]
    return Before(
        episodes=np.bincount(early, minlength=run.units).astype(np.int64),
        days=np.bincount(unit[machine], weights=served, minlength=run.units).astype(np.float64),
    )


@dataclass(frozen=True, eq=False)
class FaultTrack:
    """One fault family over a run of looks; counts are units by looks."""

    guardrail: Guardrail
    run: Run
    raw: IntArray
    count: IntArray
    spell_count: IntArray
    has_event: BoolArray
    family_takes_out: tuple[bool, ...]
    margin: float
    before: Before | None

    @classmethod
    def prepare(cls, guardrail: Guardrail, run: Run) -> "FaultTrack":
        samples, before = run.samples, period_before(guardrail, run)
        every = family_events(samples, patterns=guardrail.signatures)
        events = since_clock(every, samples)
        merged = episodes(every, gap_seconds=60 * run.policy.gap_minutes)
        counted = since_clock(merged, samples)
        unit, units, as_of = samples.machines.unit, run.units, run.as_of
        machine = np.arange(samples.machines.unit.size)
        hits = counts_at(events, unit=machine, units=machine.size, as_of=run.as_of)
        return cls(
            guardrail=guardrail,
            run=run,
            raw=counts_at(events, unit=unit, units=units, as_of=as_of) * run.exposure.is_present,
            count=counts_at(counted, unit=unit, units=units, as_of=as_of),
            spell_count=counts_at(
                first_of_each(counted, seconds=SPELL_SECONDS), unit=unit, units=units, as_of=as_of
            ),
            has_event=(hits > 0) & run.exposure.is_present[unit],
            family_takes_out=cls._takes_out(guardrail, run),
            margin=cls._margin(guardrail, run, before),
            before=before,
        )

    @staticmethod
    def _takes_out(guardrail: Guardrail, run: Run) -> tuple[bool, ...]:
        if guardrail.ends_service is not None:
            return (guardrail.ends_service,) * len(run.looks)
        every = family_events(run.samples, patterns=guardrail.signatures)
        near = nearby_end_of_service(every, run.samples)
        return tuple(ends_service(every, near, as_of=float(cutoff)) for cutoff in run.as_of)

    @staticmethod
    def _margin(guardrail: Guardrail, run: Run, before: Before | None) -> float:
        rate = run.plan.frozen_fault_rate.get(guardrail.name)
        if rate is None and run.plan.is_recorded and before is not None:
            rate = before.rate_per_day
        return margin_at(rate, margin=guardrail.margin, delta_abs=run.policy.delta_abs)

    def columns(self) -> Mapping[str, IntArray]:
        return {self._key(k): self._score(k) for k in range(len(self.run.looks))}

    def _score(self, index: int) -> IntArray:
        """By what the past foretold where it tells units apart, else by spells with an episode."""
        days = self.run.exposure.days[:, index]
        common: _Common = {
            "is_canary": self.run.is_canary,
            "where": self.run.present(index),
            "strata": self.run.strata,
            "tolerance": self.guardrail.tolerance,
        }
        if self.foreseen is None:
            return halt_score(self.spell_count[:, index], days, **common)
        return surprise_score(self.count[:, index], days, foreseen=self.foreseen, **common)

    @cached_property
    def foreseen(self) -> FloatArray | None:
        """What the period before lets expect of each unit; None where it tells none apart."""
        before = self._counts_before()
        if before is None:
            return None
        known = before[np.isfinite(before)]
        if not known.size or (known == known[0]).all():
            return None
        return foreseen_counts(before)

    def _counts_before(self) -> FloatArray | None:
        """This family's episodes per unit before the wave; failing that, all faults as given."""
        given = self.run.samples.units.covariates.get(self.guardrail.metric)
        end = self.run.samples.before_seconds
        if given is None or end is None or self.run.samples.faults is None:
            return given
        unit = self.run.samples.machines.unit
        every = family_events(self.run.samples, patterns=self.guardrail.signatures)
        early = every.time_seconds < end
        merged = episodes(
            Events(every.machine[early], every.time_seconds[early]),
            gap_seconds=60 * self.run.policy.gap_minutes,
        )
        return np.bincount(unit[merged.machine], minlength=self.run.units).astype(np.float64)

    def _key(self, index: int) -> str:
        return f"{self.guardrail.name}/harm/{self.run.looks[index].number}"

    def table(self, index: int) -> FaultTable:
        return table_of(
            self._episodes(index),
            self.run.microseconds(index),
            is_canary=self.run.is_canary,
            stratum=self.run.samples.units.stratum,
        )

    def _episodes(self, index: int) -> IntArray:
        """Episodes per unit; -1 where the unit does not count at this look."""
        return np.where(self.run.present(index), self.count[:, index], -1)

    def kept(self, index: int, *, at_checkpoint: bool) -> Mapping[str, IntArray]:
        if not at_checkpoint:
            return {}
        number = self.run.looks[index].number
        return {
            f"{self.guardrail.name}/episodes/{number}": self._episodes(index),
            f"{MICROSECONDS}/{number}": self.run.microseconds(index),
        }

    @property
    def absent(self) -> str | None:
        return None if self.run.samples.faults is not None else "no data: faults are not collected"

    def missing(self, index: int) -> str | None:
        if self.absent is not None:
            return self.absent
        for arm, name in ((True, "canary"), (False, "control")):
            if not self._has_exposure[arm][index]:
                return f"no data: no {name} machine has been in service since the clock's start"
        return None

    @cached_property
    def _has_exposure(self) -> Mapping[bool, BoolArray]:
        """Per arm and look: has a unit that is present been in service?"""
        exposed = self.run.exposure.is_present & (self.run.exposure.seconds > 0)
        arms = {True: self.run.is_canary, False: ~self.run.is_canary}
        return {arm: np.asarray(exposed[mine].any(axis=0)) for arm, mine in arms.items()}

    def is_decidable(self, index: int, *, elapsed: float, bound: float) -> bool:
        table = self.table(index)
        used = table.days > 0
        canaries, controls = (
            int((used & table.is_canary).sum()),
            int((used & ~table.is_canary).sum()),
        )
        if not canaries or not controls or not table.count(False) or not math.isfinite(self.margin):
            return False
        power = fault_ni_power(
            FaultRate(table.count(False) / table.exposure(False)),
            n_canary=canaries,
            n_control=controls,
            days=table.exposure(True) / canaries / max(elapsed, 1e-9),
            margin=self.margin,
            bound=bound,
        )
        return is_decidable(power)

    def change(self, index: int) -> FaultChange | None:
        """Episodes and service now and in the period before; None where they are not compared.

        Whole days are compared, so that the time of day is no reason.
        """
        before = self.before
        if before is None or not self.run.has_whole_day(index):
            return None
        return FaultChange(
            episodes=self._episodes(index),
            seconds=np.rint(self.run.exposure.seconds[:, index]).astype(np.int64),
            episodes_before=before.episodes,
            seconds_before=np.rint(before.days * SECONDS_PER_DAY).astype(np.int64),
        )

    def jump(self, index: int) -> Jump | None:
        """Do both arms fail more often than each did in its own period before?"""
        change = self.change(index)
        if change is None:
            return None
        units = self.run.samples.units
        return change.jump(is_canary=units.is_canary, is_near=units.is_near_canary)

    def judge(
        self, moment: Moment, sums: Mapping[str, IntArray]
    ) -> tuple[GuardrailEvaluation, GuardrailState]:
        k = moment.index
        harm = sums[self._key(k)]
        state = stepped_halt(moment, harm)
        table = self.table(k)
        model = model_of(table, method=self.method(k))
        z = margin_z(model, self.margin)
        if moment.may_show and not state.is_crossed:
            state = stepped_widen(moment, state, is_shown=is_below(z, moment.widen_bound))
        fixed = rate_ratio(table)
        limits = self._limits(table, model, moment=moment, state=state, harm=harm)
        verdict = verdict_for(moment, state)
        canary, control = self.run.counts(
            k,
            machine_events=self.has_event[:, k],
            events=(
                int(self.raw[self.run.is_canary, k].sum()),
                int(self.raw[~self.run.is_canary, k].sum()),
            ),
        )
        evaluation = GuardrailEvaluation(
            name=self.guardrail.name,
            metric=self.guardrail.metric,
            verdict=verdict,
            unit="ratio",
            estimate=finite(fixed.estimate),
            repeated=Interval(finite(limits.low), finite(limits.high), 1 - self.run.policy.beta),
            fixed_look=fixed.interval,
            canary=canary,
            control=control,
            reason=self._reason(verdict, table, fixed.estimate, limits, moment=moment),
            required=moment.is_required,
            is_decidable=moment.is_decidable,
            crossed=state.is_crossed,
            shown=state.is_shown,
            details={
                **spent_details(moment, state),
                "margin": finite(self.margin),
                "episodes": {"canary": table.count(True), "control": table.count(False)},
                "widen_method": self.method(k),
                "widen_z": millionths(z),
                "fixed_look_method": fixed.method,
                "is_clipped": limits.is_clipped,
                "statistic": int(harm[0]),
                "harm_z": harm_z(harm),
                **jump_details(self.jump(k)),
            },
        )
        return evaluation, state

    def method(self, index: int) -> str:
        """How "not worse" is judged."""
        return TOTALS if self.family_takes_out[index] else THINNING

    def _limits(
        self,
        table: FaultTable,
        model: Thinning | Totals | None,
        *,
        moment: Moment,
        state: GuardrailState,
        harm: IntArray,
    ) -> Limits:
        """Both ends at the look's spending, then clipped to what the tests decided."""
        if model is not None:
            low, high = limits_of(
                model.z,
                lower_bound=harm_bound(moment, harm),
                upper_bound=moment.widen_bound,
            )
        else:
            low, high = _low_without_control(table, moment=moment), math.inf
        if not table.count(True):
            low = 0.0
        tolerated = self.guardrail.tolerance
        clipped_low = max(low, tolerated) if state.is_crossed else min(low, tolerated)
        clipped_high = high
        if state.is_shown:
            clipped_high = min(high, self.margin)
        elif not state.is_crossed and math.isfinite(self.margin):
            clipped_high = max(high, self.margin)
        clipped_low = min(clipped_low, clipped_high)
        return Limits(clipped_low, clipped_high, (clipped_low, clipped_high) != (low, high))

    def _reason(
        self,
        verdict: Verdict,
        table: FaultTable,
        estimate: float | None,
        limits: Limits,
        *,
        moment: Moment,
    ) -> str:
        if verdict is Verdict.NO_DATA:
            return moment.missing or "no data"
        times = (
            f"{figure(estimate)} times the control's"
            if estimate is not None
            else (f"{table.count(True)} episodes against none of the control")
        )
        if verdict is Verdict.HARMFUL:
            return f"{times} (at least {figure(limits.low)})"
        margin = self._margin_in_words()
        if verdict is Verdict.NOT_WORSE:
            return f"{times} (at most {figure(limits.high)}; {margin})"
        if moment.undersized is not None:
            return moment.undersized
        if not math.isfinite(self.margin):
            return "undecidable: no episode in the period before"
        most = (
            f"could be {figure(limits.high)}"
            if math.isfinite(limits.high)
            else "no upper limit yet"
        )
        return f"{times}; {most}, {margin}"

    def _margin_in_words(self) -> str:
        if self.margin > self.guardrail.margin:
            return (
                f"the margin is {figure(self.margin)}: "
                f"{self.run.policy.delta_abs:g} more episodes per machine-day"
            )
        return f"the margin is {figure(self.margin)}"


def _low_without_control(table: FaultTable, *, moment: Moment) -> float:
    """Exact lower limit where no control failed: the level that the look may have spent."""
    level = moment.halt_level
    if not level or not table.count(True) or min(table.exposure(True), table.exposure(False)) <= 0:
        return 0.0
    if level >= HALF:  # a policy may spend so much; no lower limit is as weak
        return 0.0
    exact = rate_ratio_exact(
        table.count(True),
        table.exposure(True),
        table.count(False),
        table.exposure(False),
        confidence_level=1 - 2 * float(level),
    )
    return exact.low
