"""Guardrails on one figure per unit: novel signatures, lost work, telemetry."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rollouts.analysis.differences import Outcomes, difference_of
from rollouts.analysis.evidence import Moment
from rollouts.analysis.exposure import clock_start, service_spans
from rollouts.analysis.guardrails.difference import judged_difference, kept_outcomes
from rollouts.analysis.guardrails.interruptions import (
    interruptions_at,
    is_begun,
    recoveries_absent,
)
from rollouts.analysis.guardrails.run import Run
from rollouts.analysis.policy import Guardrail, Metric
from rollouts.analysis.proportions import novel_p_value
from rollouts.analysis.quality import report_spacing
from rollouts.analysis.recovery import CAP_SECONDS
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray
from rollouts.analysis.scores import UNITS_PER_RATIO, adjusted, quantised
from rollouts.analysis.verdicts import GuardrailEvaluation
from rollouts.analysis.wave import GuardrailState

LEAST_NOVEL_MACHINES = 2
"""A single machine with a new signature never halts; it asks for a review."""
REPORTED_SHARE = 0.9
"""A machine that reported in fewer of its intervals counts as silent."""


class Figures(NamedTuple):
    """One look: the figure per unit, which units have one, events per arm (None: no events)."""

    value: FloatArray
    is_known: BoolArray
    events: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class UnitTrack:
    """Halts by re-assignment of one figure per unit; widens by a clustered z if it has a margin."""

    guardrail: Guardrail
    run: Run
    figures: tuple[Figures, ...]
    absent: str | None
    words: str
    has_margin: bool
    as_points: bool

    def _key(self, index: int) -> str:
        return f"{self.guardrail.name}/harm/{self.run.looks[index].number}"

    def columns(self) -> Mapping[str, IntArray]:
        shift = np.where(self.run.is_canary, self.guardrail.tolerance, 0.0)
        strata = self.run.adjusting(self.guardrail.metric)
        return {
            self._key(k): adjusted(
                quantised(np.where(known, value - shift, 0.0), per_unit=UNITS_PER_RATIO),
                strata=strata,
                where=known,
            )
            for k, (value, known, _) in enumerate(self.figures)
        }

    def kept(self, index: int, *, at_checkpoint: bool) -> Mapping[str, IntArray]:
        if not (self.has_margin and at_checkpoint):
            return {}
        value, known, _ = self.figures[index]
        look = self.run.looks[index].number
        return kept_outcomes(
            np.where(known, value, 0.0), known, name=self.guardrail.name, look=look
        )

    def missing(self, index: int) -> str | None:
        if self.absent is not None:
            return self.absent
        known = self.figures[index].is_known
        for arm, name in ((True, "canary"), (False, "control")):
            if not (known & (self.run.is_canary == arm)).any():
                return f"no data: no {name} unit to count yet"
        return None

    def is_decidable(self, index: int, *, elapsed: float, bound: float) -> bool:
        """Could the margin be told from no difference with so many units?"""
        value, known, _ = self.figures[index]
        canaries = int((known & self.run.is_canary).sum())
        controls = int(known.sum()) - canaries
        if not self.has_margin or not canaries or not controls:
            return False
        share = float(value[known].mean())
        worse = min(share + self.guardrail.margin, 1.0)
        spread = worse * (1 - worse) / canaries + share * (1 - share) / controls
        return self.guardrail.margin >= bound * math.sqrt(spread)

    def judge(
        self, moment: Moment, sums: Mapping[str, IntArray]
    ) -> tuple[GuardrailEvaluation, GuardrailState]:
        value, known, events = self.figures[moment.index]
        found = difference_of(
            Outcomes(
                np.where(known, value, 0.0),
                known.astype(np.int64),
                self.run.is_canary,
                self.run.strata,
            )
        )
        evaluation, state = judged_difference(
            self.guardrail,
            self.run,
            moment=moment,
            harm=sums[self._key(moment.index)],
            found=found,
            counts=self.run.counts(moment.index, events=events),
            words=self.words,
            has_margin=self.has_margin,
            as_points=self.as_points,
        )
        if self.guardrail.metric is not Metric.NOVEL_SIGNATURES:
            return evaluation, state
        p_value = _fixed_look_p(value, known, is_canary=self.run.is_canary)
        details = {**evaluation.details, "fixed_look_p": p_value}
        return replace(evaluation, details=details), state


# --- novel signatures ----------------------------------------------------------------------


def novel_rows(run: Run, index: int) -> BoolArray:
    """Fault rows on the clock, by the look, whose signature the catalogue does not know."""
    faults, known = run.samples.faults, run.samples.known_signatures
    if faults is None or known is None:
        return np.zeros(0 if faults is None else faults.machine.size, dtype=np.bool_)
    is_novel = np.array([name not in known for name in faults.signatures], dtype=np.bool_)
    here = faults.time_seconds >= clock_start(run.samples)[faults.machine]
    here &= faults.time_seconds <= run.as_of[index]
    return np.asarray(here & is_novel[faults.signature]) if is_novel.size else here


class Sightings(NamedTuple):
    """Which units showed which signature never seen before: one row per unit and signature."""

    unit: IntArray
    signature: IntArray
    names: tuple[str, ...]

    def unacknowledged(
        self, *, is_canary: BoolArray, acknowledged: frozenset[str]
    ) -> tuple[str, ...]:
        """Those that a canary shows and nobody has acknowledged."""
        codes = np.unique(self.signature[is_canary[self.unit]]).tolist()
        return tuple(sorted({self.names[code] for code in codes} - acknowledged))


NO_SIGHTING = Sightings(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), ())


def sightings(run: Run, index: int) -> Sightings:
    """The signatures never seen before, by the look; it knows no arms."""
    faults, rows = run.samples.faults, novel_rows(run, index)
    if faults is None or not rows.any():
        return NO_SIGHTING
    pairs = np.stack([run.samples.machines.unit[faults.machine[rows]], faults.signature[rows]])
    unit, code = np.unique(pairs, axis=1)
    kinds, place = np.unique(code, return_inverse=True)
    names = tuple(faults.signatures[kind] for kind in kinds.tolist())
    return Sightings(unit.astype(np.int64), place.reshape(-1).astype(np.int64), names)


def _novel_figures(run: Run, index: int) -> Figures:
    faults = run.samples.faults
    value = np.zeros(run.units)
    if faults is None:
        return Figures(value, run.present(index), None)
    rows = novel_rows(run, index)
    unit = run.samples.machines.unit[faults.machine[rows]]
    value[unit] = 1.0
    mine = run.is_canary[unit]
    events = (int(mine.sum()), int((~mine).sum()))
    if value.sum() < LEAST_NOVEL_MACHINES:
        return Figures(np.zeros(run.units), run.present(index), events)
    return Figures(value, run.present(index), events)


def _fixed_look_p(value: FloatArray, known: BoolArray, *, is_canary: BoolArray) -> float | None:
    """Of one look without strata, for people; None with no more than a single unit."""
    shown = known & (value > 0)
    if shown.sum() < LEAST_NOVEL_MACHINES:
        return None
    return novel_p_value(
        int(known.sum()),
        n_canary=int((known & is_canary).sum()),
        machines=int(shown.sum()),
        of_which_canary=int((shown & is_canary).sum()),
    )


def prepare_novel(guardrail: Guardrail, run: Run) -> UnitTrack:
    absent = None
    if run.samples.faults is None:
        absent = "no data: faults are not collected"
    elif run.samples.known_signatures is None:
        absent = "no data: there is no catalogue of signatures seen before"
    return _track(
        guardrail,
        run,
        figures=_novel_figures,
        absent=absent,
        words="share of machines with a signature never seen before",
        has_margin=False,
    )


# --- lost work -----------------------------------------------------------------------------


def _lost_figures(run: Run, index: int) -> Figures:
    """Root of the hours lost per interruption (at most 8), summed per unit."""
    rows = run.samples.recoveries
    if rows is None:
        return Figures(np.zeros(run.units), run.present(index), None)
    known = interruptions_at(run, index, for_widening=False)
    # What had to be repeated is known once the interruption is over, in a replay as well.
    is_over = rows.recovered_seconds <= run.as_of[index]
    told = np.where(is_over, np.nan_to_num(rows.repeated_seconds, nan=0.0), 0.0)
    repeated = told[is_begun(run, index)]
    hours = np.minimum(known.seconds + repeated, CAP_SECONDS) / 3_600.0
    value = np.bincount(known.unit, weights=np.sqrt(hours), minlength=run.units)
    mine = run.is_canary[known.unit]
    events = (int(mine.sum()), int((~mine).sum()))
    return Figures(value.astype(np.float64), run.present(index), events)


def prepare_lost_work(guardrail: Guardrail, run: Run) -> UnitTrack:
    return _track(
        guardrail,
        run,
        figures=_lost_figures,
        absent=recoveries_absent(run),
        words="mean root-hours lost per machine",
        has_margin=False,
        as_points=False,
    )


# --- telemetry -----------------------------------------------------------------------------


def _telemetry_figures(run: Run, index: int) -> Figures:
    """1 if a unit's machines reported in under 90 % of the intervals that they served.

    Reports need not begin with the service: each piece of it owes one interval less than fits.
    """
    spacing = report_spacing(run.samples)
    rows = run.samples.observations
    if rows is None or spacing <= 0:
        nobody = np.zeros(run.units, dtype=np.bool_)
        return Figures(np.zeros(run.units), nobody, None)
    samples, cutoff = run.samples, float(run.as_of[index])
    machine, start, end = service_spans(samples)
    low = np.maximum(start, clock_start(samples)[machine])
    span = np.maximum(np.minimum(end, cutoff) - low, 0.0)
    unit = samples.machines.unit
    whole = np.maximum(np.floor(span / spacing) - 1, 0.0)
    owed = np.bincount(unit[machine], weights=whole, minlength=run.units)
    here = (rows.end_seconds <= cutoff) & (rows.start_seconds >= clock_start(samples)[rows.machine])
    sent = np.bincount(unit[rows.machine[here]], minlength=run.units)
    known = run.present(index) & (owed >= 1)
    return Figures((sent < REPORTED_SHARE * owed).astype(np.float64), known, None)


def prepare_telemetry(guardrail: Guardrail, run: Run) -> UnitTrack:
    absent = None
    if run.samples.observations is None:
        absent = "no data: observations are not collected"
    return _track(
        guardrail,
        run,
        figures=_telemetry_figures,
        absent=absent,
        words="share of silent machines",
        has_margin=True,
    )


def _track(
    guardrail: Guardrail,
    run: Run,
    *,
    figures: Callable[[Run, int], Figures],
    absent: str | None,
    words: str,
    has_margin: bool,
    as_points: bool = True,
) -> UnitTrack:
    return UnitTrack(
        guardrail=guardrail,
        run=run,
        figures=tuple(figures(run, k) for k in range(len(run.looks))),
        absent=absent,
        words=words,
        has_margin=has_margin,
        as_points=as_points,
    )
