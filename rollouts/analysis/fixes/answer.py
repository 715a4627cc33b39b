"""Did the fix work? One of four verdicts, with everything that it rests on."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from rollouts.analysis.exposure import SECONDS_PER_DAY
from rollouts.analysis.fixes.before import Falling, earlier_episodes, falling_of
from rollouts.analysis.fixes.elsewhere import (
    PathMix,
    SignatureShift,
    mix_of,
    rises_of,
    severe_interruptions,
    shifts_of,
)
from rollouts.analysis.fixes.grid import Grid
from rollouts.analysis.fixes.history import FixHistory
from rollouts.analysis.fixes.needs import needed_days
from rollouts.analysis.fixes.ratios import HALVING, LEVEL, Comparison, clustered_ratio
from rollouts.analysis.samples import FloatArray


class FixVerdict(StrEnum):
    """What may be said of a fix."""

    REDUCED = "reduced"
    NOT_REDUCED = "not_reduced"
    MOVED = "moved_elsewhere"
    NOT_ENOUGH = "not_enough_exposure"


@dataclass(frozen=True)
class Ages:
    """Median age, in days, of the machine-time compared; None where ages are not known."""

    fixed: float | None
    unfixed: float | None


@dataclass(frozen=True)
class Answer:
    """Whether a fix worked, and everything that this rests on.

    `needs_days` is how many more machine-days, fixed and unfixed together in their present
    proportion, it takes; None where that cannot be said or is not asked.
    """

    verdict: FixVerdict
    reason: str
    level: float
    concurrent: Comparison
    alike: Comparison
    falling: Falling
    others: Comparison
    shifts: tuple[SignatureShift, ...]
    severe: Comparison
    lost_work: Comparison
    mix_before: PathMix
    mix_after: PathMix
    mix_unfixed: PathMix
    ages: Ages
    fixed_machines: int
    unfixed_machines: int
    fixed_earlier: float | None
    unfixed_earlier: float | None
    needs_days: float | None = None

    @property
    def words(self) -> str:
        """The verdict as it is said."""
        said = self.verdict.replace("_", " ")
        if self.verdict is not FixVerdict.NOT_ENOUGH:
            return said
        if self.needs_days is None:
            return f"{said} (how much more cannot be said)"
        return f"{said} (needs {math.ceil(self.needs_days):,} more machine-days)"


def did_it_work(history: FixHistory, *, level: float = LEVEL) -> Answer:
    """Did the fix reduce the episodes that it was made for?

    Parameters
    ----------
    history : FixHistory
    level : float
        Two-sided coverage of each interval. It is that of one look: who asks again and again
        until an answer pleases will be pleased by chance.

    Returns
    -------
    Answer
        `reduced` if fixed machines had fewer than unfixed ones at the same time, and also fewer
        than those that had failed as often before, with both intervals below 1; before and after
        alone never suffice. `moved elsewhere` if besides something else is proven to have risen:
        all other signatures together, one of them by name, interruptions that cost a job its
        progress, or lost work. `not reduced` if neither comparison saw a reduction and all
        intervals, that of before and after too, exclude a halving: machines chosen because they
        failed go on failing more than others, which alone would hide one.
        Else `not enough exposure`.

    Raises
    ------
    InvalidLevel
        If `level` is not strictly between 0 and 1.

    Notes
    -----
    What the intervals do not cover: nobody drew who was fixed. Machines that are fixed because
    they failed fail less afterwards by themselves; comparing alikes takes away what recent faults
    tell of that and no more. A batch is as old as it is, and what began with the fix began with
    everything else of that day.

    Examples
    --------
    Forty machines, half of them fixed before the window; each unfixed one fails four times in
    100 days, each fixed one once.

    >>> from rollouts.analysis.episodes import Events
    >>> none = Events(np.empty(0, int), np.empty(0))
    >>> machine = np.concatenate([np.arange(20), np.repeat(np.arange(20, 40), 4)])
    >>> time = (np.arange(100) * 37 % 97 + 1) * 86_400.0
    >>> history = FixHistory(
    ...     window_seconds=100 * 86_400.0,
    ...     fixed_seconds=np.where(np.arange(40) < 20, 0.0, np.inf),
    ...     stratum=np.zeros(40, int), entered_seconds=np.full(40, np.nan),
    ...     span_machine=np.arange(40), span_start_seconds=np.zeros(40),
    ...     span_end_seconds=np.full(40, 100 * 86_400.0),
    ...     episodes=Events(machine, time), others=none, signature=np.empty(0, int), signatures=(),
    ...     interruptions=none, path=np.empty(0, int), lost_hours=np.empty(0), paths=())
    >>> answer = did_it_work(history)
    >>> answer.words, round(answer.concurrent.estimate, 2)
    ('reduced', 0.25)
    """
    grid = Grid.of(history)
    counts = grid.amounts(history.episodes)
    concurrent = clustered_ratio(grid.concurrent(counts), level=level)
    alike = _alike(grid, counts, level=level)
    others = clustered_ratio(grid.concurrent(grid.amounts(history.others)), level=level)
    shifts = shifts_of(grid, level=level)
    severe = clustered_ratio(
        grid.concurrent(grid.amounts(severe_interruptions(history))), level=level
    )
    known = np.where(np.isfinite(history.lost_hours), history.lost_hours, 0.0)
    lost = grid.amounts(history.interruptions, known)
    lost_work = clustered_ratio(grid.concurrent(lost), level=level, is_count=False)
    rises = rises_of(others, shifts, severe, lost_work)
    falling = falling_of(grid, counts, level=level)
    verdict, reason = _verdict(concurrent, alike, falling.fixed, rises=rises)
    earlier = earlier_episodes(grid)
    is_short = verdict is FixVerdict.NOT_ENOUGH
    return Answer(
        verdict=verdict,
        reason=reason,
        level=level,
        concurrent=concurrent,
        alike=alike,
        falling=falling,
        others=others,
        shifts=shifts,
        severe=severe,
        lost_work=lost_work,
        mix_before=mix_of(grid, side=0, who=history.is_fixed),
        mix_after=mix_of(grid, side=1, who=history.is_fixed),
        mix_unfixed=mix_of(grid, side=0, who=np.ones(history.stratum.size, dtype=np.bool_)),
        ages=_ages(grid),
        fixed_machines=int(history.is_fixed.sum()),
        unfixed_machines=int((~history.is_fixed).sum()),
        fixed_earlier=earlier[0],
        unfixed_earlier=earlier[1],
        needs_days=needed_days(concurrent, alike, level=level) if is_short else None,
    )


def _alike(grid: Grid, counts: FloatArray, *, level: float) -> Comparison:
    rows, unmatched = grid.alike(counts)
    found = clustered_ratio(rows, level=level)
    return replace(found, left_out=unmatched)


def _verdict(
    concurrent: Comparison, alike: Comparison, before_after: Comparison, *, rises: tuple[str, ...]
) -> tuple[FixVerdict, str]:
    """The verdict, with its reason in words; the reasons do not repeat figures."""
    if concurrent.fixed.days <= 0:
        return FixVerdict.NOT_ENOUGH, "no fixed machine was in service in the window"
    if concurrent.unfixed.days <= 0:
        return (
            FixVerdict.NOT_ENOUGH,
            (
                "no unfixed machine was in service at the same time: a fall from before to after "
                "may have any cause"
            ),
        )
    if concurrent.is_below and alike.is_below:
        if rises:
            return FixVerdict.MOVED, f"it is down, but something else rose: {', '.join(rises)}"
        return (
            FixVerdict.REDUCED,
            (
                "fixed machines had fewer than unfixed ones at the same time, also than those "
                "that had failed as often before"
            ),
        )
    if concurrent.is_below:
        return (
            FixVerdict.NOT_ENOUGH,
            (
                "fixed machines had fewer than unfixed ones at the same time, but not proven "
                "fewer than those that had failed as often before: they may have fallen by "
                "themselves"
            ),
        )
    if concurrent.low is None:
        return (
            FixVerdict.NOT_ENOUGH,
            "fixed and unfixed machines were not in service side by side with any episode",
        )
    compared = [one for one in (concurrent, alike, before_after) if one.low is not None]
    excludes = bool(compared) and all((one.low or 0.0) > HALVING for one in compared)
    is_lower = [(one.estimate or 0.0) < 1.0 for one in (concurrent, alike) if one in compared]
    if excludes and not any(is_lower):
        return FixVerdict.NOT_REDUCED, "no reduction was seen, and the interval excludes a halving"
    if excludes:
        return (
            FixVerdict.NOT_ENOUGH,
            "the interval excludes a halving; a smaller reduction is neither shown nor excluded",
        )
    return FixVerdict.NOT_ENOUGH, "neither a reduction nor the lack of a halving is shown"


def _ages(grid: Grid) -> Ages:
    """Median over the machines with time on each side, in the middle of that time."""
    history = grid.history
    middles = (grid.cuts[:-1] + grid.cuts[1:]) / 2

    def median(side: int) -> float | None:
        days = grid.days[side]
        whole = days.sum(axis=1)
        chosen = (whole > 0) & np.isfinite(history.entered_seconds)
        if not chosen.any():
            return None
        middle = days[chosen] @ middles / whole[chosen]
        age = (middle - history.entered_seconds[chosen]) / SECONDS_PER_DAY
        return float(np.median(age))

    return Ages(median(1), median(0))
