"""The window cut into periods and steps: whose machine-time is compared with whose."""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from rollouts.analysis.episodes import Events
from rollouts.analysis.exposure import SECONDS_PER_DAY
from rollouts.analysis.fixes.history import FixHistory
from rollouts.analysis.fixes.ratios import Rows
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray

EARLIER_DAYS = 28.0
"""Machines are alike if they had as many episodes in so many days before the fix."""
MOST_EARLIER = 2
"""So many episodes or more are one class."""
MOST_STEPS = 8
"""Moments at which machines are taken to have been fixed; nearby ones are put together."""
MOST_PERIODS = 8
"""Parts of equal length into which the window is cut besides."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Cuts of the window, the step at which each machine counts as fixed, and days in service.

    `steps` are rising times; `step` is each machine's index among them, or -1 for never. `days` is
    (2, machines, periods): unfixed, fixed. What lies between a machine's own fix and its step is
    neither before nor after for the comparison of alikes; for the others it is fixed.
    """

    history: FixHistory
    steps: FloatArray
    step: IntArray
    cuts: FloatArray
    days: FloatArray

    @classmethod
    def of(cls, history: FixHistory) -> "Grid":
        steps, step = _steps(history)
        equal = np.linspace(0.0, history.window_seconds, MOST_PERIODS + 1)
        cuts = np.unique(np.concatenate([equal, steps]))
        return cls(history, steps, step, cuts, _days(history, cuts))

    @property
    def periods(self) -> int:
        return self.cuts.size - 1

    def amounts(self, events: Events, weights: FloatArray | None = None) -> FloatArray:
        """Events, or what they weigh, as `days` is laid out."""
        history = self.history
        inside = (events.time_seconds >= 0) & (events.time_seconds < history.window_seconds)
        machine, time = events.machine[inside], events.time_seconds[inside]
        period = np.searchsorted(self.cuts, time, side="right") - 1
        is_fixed = time >= history.fixed_seconds[machine]
        size = (2, history.fixed_seconds.size, self.periods)
        flat = np.ravel_multi_index((is_fixed.astype(np.int64), machine, period), size)
        chosen = None if weights is None else weights[inside]
        total = np.bincount(flat, weights=chosen, minlength=math.prod(size))
        return np.asarray(total, dtype=np.float64).reshape(size)

    def concurrent(self, amounts: FloatArray) -> Rows:
        """Fixed and unfixed machine-time within stratum and period."""
        side, machine, period = np.nonzero((self.days > 0) | (amounts > 0))
        return Rows(
            machine=machine.astype(np.int64),
            cell=self.history.stratum[machine] * np.int64(self.periods) + period,
            is_fixed=side == 1,
            amount=amounts[side, machine, period],
            days=self.days[side, machine, period],
        )

    def alike(self, amounts: FloatArray) -> tuple[Rows, int]:
        """As `concurrent`, from each step on, among machines with as many episodes before it.

        Also says how many fixed machines had no such machine to be compared with.
        """
        found: list[Rows] = []
        unmatched = 0
        for index, at in enumerate(self.steps.tolist()):
            cell = self.history.stratum * np.int64(MOST_EARLIER + 1) + self.earlier(at)
            cases, controls = self.step == index, self.history.fixed_seconds > at
            later = np.flatnonzero(self.cuts[:-1] >= at)
            rows = [
                self._rows(side, chosen, later, cell, amounts)
                for side, chosen in ((1, cases), (0, controls))
            ]
            matched = np.isin(cell[cases], rows[1].cell // self.periods)
            unmatched += int((~matched).sum())
            base = np.int64(index) * (int(cell.max(initial=0)) + 1) * self.periods
            found += [_moved(one, base) for one in rows]
        return _joined(found), unmatched

    def _rows(
        self, side: int, chosen: BoolArray, later: IntArray, cell: IntArray, amounts: FloatArray
    ) -> Rows:
        who = np.flatnonzero(chosen)
        days = self.days[side][np.ix_(who, later)]
        amount = amounts[side][np.ix_(who, later)]
        row, column = np.nonzero((days > 0) | (amount > 0))
        return Rows(
            machine=who[row],
            cell=cell[who[row]] * np.int64(self.periods) + later[column],
            is_fixed=np.full(row.size, side == 1),
            amount=amount[row, column],
            days=days[row, column],
        )

    def earlier(self, at: float) -> IntArray:
        """How many episodes each machine had in the time before, at most `MOST_EARLIER`."""
        events = self.history.episodes
        since = at - EARLIER_DAYS * SECONDS_PER_DAY
        recent = (events.time_seconds >= since) & (events.time_seconds < at)
        size = self.history.fixed_seconds.size
        counts = np.bincount(events.machine[recent], minlength=size)
        return np.minimum(counts, MOST_EARLIER).astype(np.int64)


def _steps(history: FixHistory) -> tuple[FloatArray, IntArray]:
    """At most `MOST_STEPS` moments; each machine is fixed by its own."""
    step = np.full(history.fixed_seconds.size, -1, dtype=np.int64)
    fixed = np.flatnonzero(history.is_fixed)
    if not fixed.size:
        return np.empty(0), step
    at = np.maximum(history.fixed_seconds[fixed], 0.0)
    distinct = np.unique(at)
    if distinct.size > MOST_STEPS:
        ranks = np.linspace(0, 1, MOST_STEPS + 1)[1:]
        distinct = np.unique(np.quantile(at, ranks, method="inverted_cdf"))
    step[fixed] = np.searchsorted(distinct, at, side="left")
    return distinct, step


def _days(history: FixHistory, cuts: FloatArray) -> FloatArray:
    size = history.fixed_seconds.size
    days = np.zeros((2, size, cuts.size - 1))
    fixed = history.fixed_seconds[history.span_machine]
    start, end = history.span_start_seconds, history.span_end_seconds
    for period, (low, high) in enumerate(itertools.pairwise(cuts.tolist())):
        for side, (first, last) in enumerate(
            ((start, np.minimum(end, fixed)), (np.maximum(start, fixed), end))
        ):
            span = np.maximum(np.minimum(last, high) - np.maximum(first, low), 0.0)
            days[side, :, period] = np.bincount(history.span_machine, weights=span, minlength=size)
    return days / SECONDS_PER_DAY


def _moved(rows: Rows, base: np.int64) -> Rows:
    return Rows(rows.machine, rows.cell + base, rows.is_fixed, rows.amount, rows.days)


def _joined(rows: list[Rows]) -> Rows:
    def column(name: str) -> FloatArray:
        parts = [getattr(one, name) for one in rows]
        return np.concatenate(parts) if parts else np.empty(0)

    return Rows(
        machine=column("machine").astype(np.int64),
        cell=column("cell").astype(np.int64),
        is_fixed=column("is_fixed").astype(np.bool_),
        amount=column("amount"),
        days=column("days"),
    )
