"""One guardrail at one look: both tests, their limits, and the verdict that follows.

Every metric that is judged by re-assignment goes through here, so that spending, stickiness and
the agreement of intervals with verdicts are written once.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np

from rollouts.analysis.samples import FloatArray, IntArray
from rollouts.analysis.sequential import (
    CrossingState,
    LinearLook,
    Side,
    SumArray,
    cross,
    invert,
    rejects,
)
from rollouts.analysis.verdicts import GuardrailEvaluation, Verdict
from rollouts.analysis.wave import GuardrailState, Look

FIRST_ROWS = 1_000
LIMIT_TOLERANCE = 1e-5
"""Width at which the search for a repeated limit stops, in the tested effect."""


@dataclass(frozen=True, eq=False)
class Moment:
    """What one guardrail is told at one look.

    Parameters
    ----------
    index : int
        Position among the looks that are evaluated together.
    look : Look
    state : GuardrailState
        After the look before.
    paths : int
        Re-assignments and the observed one.
    halt_level : Fraction or None
        Error that the halting test may have spent by now; None: it never halts.
    whole_alpha : Fraction
        Of the guardrail in this wave, for evidence that is valid at any time.
    checkpoint : float or None
        Elapsed share at which non-inferiority is judged now; None: not at this look.
    widen_level, widen_bound : Fraction, float
        Of the checkpoint; between checkpoints, of the last one (before it, the first planned),
        for the display alone.
    missing : str or None
        Why the guardrail has no data at this look.
    undersized : str or None
        Why the design cannot decide at this level.
    is_required : bool
    is_decidable : bool or None
    """

    index: int
    look: Look
    state: GuardrailState
    paths: int
    halt_level: Fraction | None
    whole_alpha: Fraction
    checkpoint: float | None
    widen_level: Fraction
    widen_bound: float
    missing: str | None
    undersized: str | None
    is_required: bool
    is_decidable: bool | None

    @property
    def may_halt(self) -> bool:
        return self.halt_level is not None and self.missing is None and self.undersized is None

    @property
    def may_show(self) -> bool:
        return (
            self.checkpoint is not None
            and self.missing is None
            and self.undersized is None
            and not self.state.is_crossed
        )


class Columns(Mapping[str, IntArray]):
    """Integer scores by name, each made when it is first read.

    A look reads all of them; who wants only one test's decision need not pay for the other's.
    """

    def __init__(self, makers: Mapping[str, Callable[[], IntArray]]) -> None:
        self._makers = makers
        self._made: dict[str, IntArray] = {}

    def __getitem__(self, name: str) -> IntArray:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class Track(Protocol):
    """A guardrail prepared for a run of looks."""

    @property
    def absent(self) -> str | None:
        """Why there can be no data at any look: this kind of report is not collected."""

    def columns(self) -> Mapping[str, IntArray]:
        """Integer scores whose sums over canaries the looks will need."""

    def missing(self, index: int) -> str | None:
        """Why the metric itself cannot be judged at this look, beyond silence of machines."""

    def is_decidable(self, index: int, *, elapsed: float, bound: float) -> bool:
        """For a recorded case: could a comparison of this size have decided?"""

    def kept(self, index: int, *, at_checkpoint: bool) -> Mapping[str, IntArray]:
        """Whole numbers that judging again needs beyond the scores, under names of the look."""

    def judge(
        self, moment: Moment, sums: Mapping[str, IntArray]
    ) -> tuple[GuardrailEvaluation, GuardrailState]:
        """The evaluation and the state after this look."""


@dataclass(frozen=True, eq=False)
class EffectLine:
    """Sums over canaries as a line in the tested effect; large means harm beyond it.

    `sums` are the integers at `tested`; where `slope` is None only that effect can be tested.
    """

    sums: SumArray
    slope: SumArray | None
    tested: float

    def look(self, level: Fraction) -> LinearLook:
        slope = np.zeros(self.sums.size) if self.slope is None else self.slope.astype(np.float64)
        constant = np.asarray(self.sums - self.tested * slope, dtype=np.float64)
        return LinearLook(constant, slope, level)

    def reversed(self) -> "EffectLine":
        return EffectLine(-self.sums, None if self.slope is None else -self.slope, self.tested)


def stepped_halt(moment: Moment, sums: SumArray) -> GuardrailState:
    """The state after one look of the halting test; a crossing stays."""
    state = moment.state
    if not moment.may_halt or moment.halt_level is None:
        return state
    before = state.halt or CrossingState.initial(moment.paths)
    after = cross(before, sums, level=moment.halt_level)
    look = moment.look.number if after.is_crossed and state.halt_look is None else state.halt_look
    return replace(state, halt=after, halt_look=look)


def stepped_widen(moment: Moment, state: GuardrailState, *, is_shown: bool) -> GuardrailState:
    """Book a judged checkpoint; what was shown stays shown."""
    if moment.checkpoint is None:
        return state
    look = moment.look.number if is_shown and state.shown_look is None else state.shown_look
    return replace(
        state,
        shown_look=look,
        levels=(*state.levels, str(moment.widen_level)),
        fractions=(*state.fractions, moment.checkpoint),
    )


def stepped_widen_paths(moment: Moment, state: GuardrailState, line: EffectLine) -> GuardrailState:
    """One checkpoint of the randomisation test against the margin."""
    before = state.widen or CrossingState.initial(moment.paths)
    after = cross(before, line.reversed().sums, level=moment.widen_level)
    return stepped_widen(moment, replace(state, widen=after), is_shown=after.is_crossed)


def harm_limit(
    moment: Moment, line: EffectLine, *, after: GuardrailState, low: float, high: float
) -> float:
    """Smallest effect that the halting test has not rejected; `-inf` if it rejects none."""
    if moment.halt_level is None or line.slope is None:
        return -math.inf
    before = moment.state.halt
    if before is None or before.is_crossed:
        before = CrossingState.initial(moment.paths)
    look = line.look(moment.halt_level)
    return invert(
        lambda effect: rejects(look, effect, state=before),
        side=Side.BELOW,
        tested=line.tested,
        is_tested_rejected=after.is_crossed,
        low=low,
        high=high,
        tolerance=LIMIT_TOLERANCE,
    )


def margin_limit(
    moment: Moment, line: EffectLine, *, after: GuardrailState, low: float, high: float
) -> float:
    """Largest effect that the test against the margin has not rejected; `inf` if it rejects none.

    At a checkpoint the paths that were spent before stay out; between checkpoints the limit is
    for display, at the last checkpoint's level, and agrees with what was shown.
    """
    reverse = line.reversed()
    before = moment.state.widen if moment.checkpoint is not None else None
    if before is None or before.is_crossed:
        before = CrossingState.initial(moment.paths)
    look = reverse.look(moment.widen_level)
    return invert(
        lambda effect: rejects(look, effect, state=before),
        side=Side.ABOVE,
        tested=line.tested,
        is_tested_rejected=after.is_shown,
        low=low,
        high=high,
        tolerance=LIMIT_TOLERANCE,
    )


def harm_bound(moment: Moment, sums: SumArray) -> float:
    """The look's halting threshold in standard deviations of the re-assigned sums.

    It stands for the bound of a normal test that spends what the look may spend; infinite
    where the look may not let a single path cross.
    """
    if moment.halt_level is None:
        return math.inf
    before = moment.state.halt
    if before is None or before.is_crossed:
        before = CrossingState.initial(moment.paths)
    candidates = np.sort(sums[before.alive].astype(np.float64))
    allow = math.floor(moment.halt_level * moment.paths) - before.used
    deviation = float(np.std(sums))
    if not 0 < allow < candidates.size or deviation == 0:
        return math.inf
    return (float(candidates[-1 - allow]) - float(np.mean(sums))) / deviation


def verdict_for(moment: Moment, state: GuardrailState) -> Verdict:
    """The verdict of one look; only a proof at hand, with data at hand, is `not_worse`."""
    if state.is_crossed and not state.is_tolerated:
        return Verdict.HARMFUL
    if moment.missing is not None:
        return Verdict.NO_DATA
    if moment.undersized is not None or not state.is_shown:
        return Verdict.INCONCLUSIVE
    return Verdict.NOT_WORSE


def varies_nowhere(values: FloatArray, group: IntArray) -> bool:
    """Are there values, and are all of a group exactly equal?

    Examples
    --------
    >>> varies_nowhere(np.array([1.0, 1.0, 7.0]), np.array([0, 0, 1]))
    True
    >>> varies_nowhere(np.array([1.0, 1.1]), np.array([0, 0]))
    False
    """
    if not values.size:
        return False
    for length in (FIRST_ROWS, values.size):  # nearly always the first rows differ already
        some, kind = values[:length], group[:length]
        one = np.full(int(kind.max()) + 1, np.nan)
        one[kind] = some  # any one of the group
        if not (some == one[kind]).all():
            return False
    return True


def is_below(z: float | None, bound: float) -> bool:
    """Is non-inferiority shown by a z against the margin?"""
    return z is not None and z < -bound


def millionths(value: float | None) -> int | None:
    """A figure as a whole number, in which a replay agrees whatever library computes it.

    Examples
    --------
    >>> millionths(-1.96), millionths(None)
    (-1960000, None)
    """
    return None if value is None or not math.isfinite(value) else round(1e6 * value)


def finite(value: float | None) -> float | None:
    """None for what JSON cannot hold: a limit or an estimate that does not exist."""
    return value if value is not None and math.isfinite(value) else None


def figure(value: float) -> str:
    """Two significant figures, without an exponent.

    Examples
    --------
    >>> figure(0.0456), figure(2.64), figure(137.7)
    ('0.046', '2.6', '138')
    """
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.2g}"


def spent_details(moment: Moment, state: GuardrailState) -> dict[str, object]:
    """What the look spent, in JSON: levels as exact fractions, paths used, when decided."""
    return {
        "halt_level": None if moment.halt_level is None else str(moment.halt_level),
        "halt_used": None if state.halt is None else state.halt.used,
        "halt_look": state.halt_look,
        "widen_used": None if state.widen is None else state.widen.used,
        "widen_level": str(moment.widen_level) if moment.checkpoint is not None else None,
        "widen_bound": finite(moment.widen_bound),
        "shown_look": state.shown_look,
    }
