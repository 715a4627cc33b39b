"""What went before the fix: how often who had failed by then, and what falls by itself."""

from dataclasses import dataclass

import numpy as np

from rollouts.analysis.exposure import SECONDS_PER_DAY
from rollouts.analysis.fixes.grid import EARLIER_DAYS, MOST_EARLIER, Grid
from rollouts.analysis.fixes.history import FixHistory
from rollouts.analysis.fixes.ratios import Comparison, Rows, added, clustered_ratio
from rollouts.analysis.samples import FloatArray


@dataclass(frozen=True)
class Falling:
    """Rates before and after: of the fixed, and of unfixed machines with as many faults by then.

    What the unfixed fell by, nothing that was done to them explains: it is regression to the mean.
    """

    fixed: Comparison
    alike_before: float | None
    alike_after: float | None

    @property
    def by_itself(self) -> float | None:
        """Rate after over rate before, of machines to which nothing was done."""
        if not self.alike_before or self.alike_after is None:
            return None
        return self.alike_after / self.alike_before


def falling_of(grid: Grid, counts: FloatArray, *, level: float) -> Falling:
    """Before and after of the fixed; and of unfixed machines that were like them at each step."""
    history = grid.history
    days, amounts = grid.days.sum(axis=2), counts.sum(axis=2)
    # The time before the window tells of the fixed too.
    past_days, past = _past(history, 0.0, until=history.fixed_seconds)
    days[0] += past_days
    amounts[0] += past
    side, machine = np.nonzero(((days > 0) | (amounts > 0)) & history.is_fixed)
    own = Rows(
        machine=machine.astype(np.int64),
        cell=history.stratum[machine],
        is_fixed=side == 1,
        amount=amounts[side, machine],
        days=days[side, machine],
    )
    before, after = _by_itself(grid, counts)
    return Falling(clustered_ratio(own, level=level), before, after)


def _by_itself(grid: Grid, counts: FloatArray) -> tuple[float | None, float | None]:
    """Rates of unfixed machines in the time before each step and after it, as the fixed weigh."""
    history = grid.history
    weight, before, after = 0.0, 0.0, 0.0
    for index, at in enumerate(grid.steps.tolist()):
        cell = history.stratum * np.int64(MOST_EARLIER + 1) + grid.earlier(at)
        cases, controls = grid.step == index, history.fixed_seconds > at
        later = grid.cuts[:-1] >= at
        past_days, past = _past(history, at)
        size = int(cell.max(initial=0)) + 1

        future_days = grid.days[0][:, later].sum(axis=1)
        future = counts[0][:, later].sum(axis=1)
        x0 = added(past_days, cell, where=controls, size=size)
        x1 = added(future_days, cell, where=controls, size=size)
        n0 = added(past, cell, where=controls, size=size)
        n1 = added(future, cell, where=controls, size=size)
        wanted = np.bincount(cell[cases], minlength=size) * ((x0 > 0) & (x1 > 0))
        weight += float(wanted.sum())
        before += float(wanted @ np.divide(n0, x0, out=np.zeros(size), where=x0 > 0))
        after += float(wanted @ np.divide(n1, x1, out=np.zeros(size), where=x1 > 0))
    return (before / weight, after / weight) if weight else (None, None)


def _past(
    history: FixHistory, at: float, *, until: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Days in service and episodes of each machine in the time before a step, or its own fix."""
    size = history.fixed_seconds.size
    since = at - EARLIER_DAYS * SECONDS_PER_DAY
    last = np.full(size, at) if until is None else np.minimum(until, at)
    of_span = history.span_machine
    span = np.minimum(history.span_end_seconds, last[of_span])
    span -= np.maximum(history.span_start_seconds, since)
    days = added(np.maximum(span, 0.0) / SECONDS_PER_DAY, of_span, size=size)
    events = history.episodes
    recent = (events.time_seconds >= since) & (events.time_seconds < last[events.machine])
    return days, np.bincount(events.machine[recent], minlength=size).astype(np.float64)


def earlier_episodes(grid: Grid) -> tuple[float | None, float | None]:
    """Mean number of episodes before the fix, of the fixed and of those unfixed by then."""
    totals = np.zeros((2, 2))
    for index, at in enumerate(grid.steps.tolist()):
        _, past = _past(grid.history, at)
        cases = grid.step == index
        size = float(cases.sum())
        controls = grid.history.fixed_seconds > at
        totals[0] += (float(past[cases].sum()), size)
        if controls.any():
            totals[1] += (size * float(past[controls].mean()), size)
    fixed, unfixed = ((float(a / b) if b else None) for a, b in totals)
    return fixed, unfixed
