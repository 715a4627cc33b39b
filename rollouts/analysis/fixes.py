"""Did a fix reduce the faults that it was made for? Fixed machines against those not yet fixed.

Nobody drew who was fixed, so this is no experiment: it is the comparison that leaves least to
mistake. A machine counts as fixed from its own fix on and as unfixed before it, so no time is
given to a fix that had not happened; both are compared at the same calendar time, within strata;
the machine is the unit, however many faults it has; and where machines were fixed because they
failed, they are compared with unfixed machines that had failed as often by then. A level is that
of one look.
"""

import itertools
import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy.stats import t as student

from rollouts.analysis.episodes import Events
from rollouts.analysis.errors import InvalidLevel, InvalidSample
from rollouts.analysis.exposure import SECONDS_PER_DAY
from rollouts.analysis.hazards import ratio_limits
from rollouts.analysis.power import schoenfeld_events
from rollouts.analysis.proportions import rate_ratio_exact
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray

LEVEL = 0.95
"""Two-sided coverage of each interval, at one look."""
HALVING = 0.5
"""The reduction that an answer is planned for, and that `not reduced` has to exclude."""
POWER = 0.8
"""Of finding a halving, when more machine-days are asked for."""
EARLIER_DAYS = 28.0
"""Machines are alike if they had as many episodes in so many days before the fix."""
MOST_EARLIER = 2
"""So many episodes or more are one class."""
MOST_STEPS = 8
"""Moments at which machines are taken to have been fixed; nearby ones are put together."""
MOST_PERIODS = 8
"""Parts of equal length into which the window is cut besides."""
MOST_MORE = 100.0
"""Nobody is asked for more than so many times the machine-days that there were."""
LEAST_MACHINES = 2
"""A signature that rose on fewer fixed machines is not named as a new pattern."""


class FixVerdict(StrEnum):
    """What may be said of a fix."""

    REDUCED = "reduced"
    NOT_REDUCED = "not_reduced"
    MOVED = "moved_elsewhere"
    NOT_ENOUGH = "not_enough_exposure"


@dataclass(frozen=True, eq=False)
class FixHistory:
    """What is known of the machines in one window; second 0 is its start.

    Parameters
    ----------
    window_seconds : float
        Length of the window.
    fixed_seconds : (machines,) array
        When each machine was fixed: inf for never, 0 or less for before the window.
    stratum : (machines,) int array
        Machines are compared within these (platform, site).
    entered_seconds : (machines,) array
        When each machine first came into service; NaN where not known. Only its age is read.
    span_machine, span_start_seconds, span_end_seconds : (spans,) arrays
        Half-open times in service, which do not overlap.
    episodes : Events
        Of the pattern that the fix was made for. Those before the window tell how often each
        machine had failed by then.
    others : Events
        Episodes of every other signature, one series per machine and signature.
    signature : (other episodes,) int array
        Index into `signatures`.
    signatures : tuple of str
    interruptions : Events
        Interruptions of work, by the time when they began.
    path : (interruptions,) int array
        Index into `paths`.
    lost_hours : (interruptions,) array
        Time to recover and work repeated; NaN where not recorded.
    paths, severe_paths : tuple of str
        Recovery paths, and those of them that cost the whole job its progress.
    """

    window_seconds: float
    fixed_seconds: FloatArray
    stratum: IntArray
    entered_seconds: FloatArray
    span_machine: IntArray
    span_start_seconds: FloatArray
    span_end_seconds: FloatArray
    episodes: Events
    others: Events
    signature: IntArray
    signatures: tuple[str, ...]
    interruptions: Events
    path: IntArray
    lost_hours: FloatArray
    paths: tuple[str, ...]
    severe_paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.window_seconds < math.inf:
            raise InvalidSample(
                f"the window is {self.window_seconds} s long; a positive, finite length is accepted"
            )
        size = self.fixed_seconds.size
        for name in ("stratum", "entered_seconds"):
            if getattr(self, name).shape != (size,):
                raise InvalidSample(f"{name} needs one value for each of {size} machines")
        if np.isnan(self.fixed_seconds).any():
            raise InvalidSample("a machine that was never fixed has inf, not NaN")
        if (self.span_end_seconds < self.span_start_seconds).any():
            raise InvalidSample("a time in service ends before it begins")
        for codes in (
            self.span_machine,
            self.episodes.machine,
            self.others.machine,
            self.interruptions.machine,
        ):
            if codes.size and not 0 <= int(codes.min()) <= int(codes.max()) < size:
                raise InvalidSample(
                    f"machine {int(codes.max())} is named; known are 0 to {size - 1}"
                )

    @property
    def is_fixed(self) -> BoolArray:
        """Which machines were fixed by the window's end."""
        return self.fixed_seconds < self.window_seconds


@dataclass(frozen=True)
class Group:
    """How much of something one group of machine-time had.

    `machines` are those with time in service, `hit` those of them, or besides, with an episode.
    """

    machines: int
    hit: int
    amount: float
    days: float

    @property
    def per_day(self) -> float | None:
        """Per machine-day in service; None without any."""
        return self.amount / self.days if self.days > 0 else None


@dataclass(frozen=True)
class Comparison:
    """One ratio, fixed over unfixed, with its interval at one look.

    `estimate`, `low` and `high` are None where they do not exist; `spread` is the standard error
    of the log ratio and `inflation` its square over what independent faults would have.
    `compared_share` is how much of the fixed machine-time has unfixed time in its cell.
    """

    fixed: Group
    unfixed: Group
    estimate: float | None
    low: float | None
    high: float | None
    method: str
    spread: float | None = None
    inflation: float = 1.0
    compared_share: float = 1.0
    left_out: int = 0

    @property
    def is_below(self) -> bool:
        """The whole interval lies below 1."""
        return self.high is not None and self.high < 1.0

    @property
    def is_above(self) -> bool:
        """The whole interval lies above 1."""
        return self.low is not None and self.low > 1.0


@dataclass(frozen=True)
class SignatureShift:
    """Another signature: how often it came on fixed and unfixed machines."""

    name: str
    comparison: Comparison
    is_new: bool
    is_proven: bool


@dataclass(frozen=True)
class PathMix:
    """Interruptions by the way in which work came back, and what they cost."""

    counts: dict[str, int]
    lost_hours: float
    days: float

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def share(self, path: str) -> float | None:
        return self.counts.get(path, 0) / self.total if self.total else None

    @property
    def lost_hours_per_day(self) -> float | None:
        """Lost hours per machine-day in service; None without any."""
        return self.lost_hours / self.days if self.days > 0 else None


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


# --- machine-time in cells -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """Machine-time of one machine in one cell, in one of the two conditions.

    Parameters
    ----------
    machine, cell : (rows,) int array
    is_fixed : (rows,) bool array
    amount : (rows,) array
        Episodes, or whatever else adds up.
    days : (rows,) array
        In service.
    """

    machine: IntArray
    cell: IntArray
    is_fixed: BoolArray
    amount: FloatArray
    days: FloatArray

    def group(self, is_fixed: bool) -> Group:
        mine = self.is_fixed if is_fixed else ~self.is_fixed
        exposed = np.unique(self.machine[mine & (self.days > 0)])
        hit = np.unique(self.machine[mine & (self.amount > 0)])
        return Group(
            machines=int(exposed.size),
            hit=int(hit.size),
            amount=float(self.amount[mine].sum()),
            days=float(self.days[mine].sum()),
        )


def clustered_ratio(rows: Rows, *, level: float = LEVEL, is_count: bool = True) -> Comparison:
    """Rate of fixed over unfixed machine-time within cells, with the machine as the unit.

    Parameters
    ----------
    rows : Rows
        A machine may have rows in many cells and in both conditions.
    level : float
        Two-sided coverage at one look, strictly between 0 and 1.
    is_count : bool
        Amounts are counts of events: the interval is never narrower than that of independent ones.

    Returns
    -------
    Comparison
        The Mantel-Haenszel ratio over cells. With an amount of 0 on one side only the limits that
        exist; without machine-time on one side none.

    Raises
    ------
    InvalidLevel
        If `level` is not strictly between 0 and 1.

    Notes
    -----
    With fixed events n1 and time x1, unfixed n0 and x0 in a cell, T = sum n1 x0 / (x1 + x0) and
    B = sum n0 x1 / (x1 + x0); the ratio is T / B, as in `hazards.rate_ratio`. A ratio r is within
    the limits unless (T - r B) / s(r) is beyond the t quantile (Fieller). s(r) comes from leaving
    out one machine at a time [1]_, which also serves cells with a single machine and machines on
    both sides; T's and B's part of it is at least what independent events would have under r. The
    degrees of freedom are the machines that had an event, less one: five faults of one machine say
    little more than one.

    References
    ----------
    .. [1] B. Efron, C. Stein, Ann. Stat. 9 (1981) 586-596.

    Examples
    --------
    Four fixed machines with one fault each in ten days, four unfixed ones with three:

    >>> rows = Rows(np.arange(8), np.zeros(8, int), np.arange(8) < 4,
    ...             np.repeat([1.0, 3.0], 4), np.full(8, 10.0))
    >>> found = clustered_ratio(rows)
    >>> round(found.estimate, 3), round(found.low, 2), round(found.high, 2)
    (0.333, 0.09, 1.19)

    The same twelve faults of the unfixed, all on one machine, show nothing:

    >>> rows = Rows(np.arange(8), np.zeros(8, int), np.arange(8) < 4,
    ...             np.array([1.0, 1, 1, 1, 12, 0, 0, 0]), np.full(8, 10.0))
    >>> clustered_ratio(rows).high is None
    True
    """
    if not 0 < level < 1:
        raise InvalidLevel(f"a level lies strictly between 0 and 1: got {level}")
    fixed, unfixed = rows.group(True), rows.group(False)
    if not (fixed.days > 0 and unfixed.days > 0):
        return Comparison(fixed, unfixed, None, None, None, "no machine-time on one side")
    sums = _Sums.of(rows)
    if sums.top <= 0 and sums.bottom <= 0:
        return Comparison(fixed, unfixed, None, None, None, "nothing happened where both were")
    if sums.bottom <= 0:
        low = _exact_low(fixed, unfixed, level=level) if is_count else None
        return Comparison(fixed, unfixed, None, low, None, "exact, machines hit: unfixed had none")
    bound = float(student.isf((1 - level) / 2, max(sums.hit - 1, 1)))
    low, high = ratio_limits(
        lambda ratio: sums.z(ratio, is_count=is_count), lower_bound=bound, upper_bound=bound
    )
    return Comparison(
        fixed=fixed,
        unfixed=unfixed,
        estimate=sums.top / sums.bottom,
        low=low,
        high=high if math.isfinite(high) else None,
        method="machine-clustered",
        spread=sums.spread(),
        inflation=sums.inflation() if is_count else 1.0,
        compared_share=min(float(sums.cells[1].sum()) / fixed.days, 1.0),
    )


def _exact_low(fixed: Group, unfixed: Group, *, level: float) -> float:
    """The lower end from how many machines were hit: thirty faults of one machine are one."""
    exact = rate_ratio_exact(fixed.hit, fixed.days, 0, unfixed.days, confidence_level=level)
    return exact.low


@dataclass(frozen=True)
class _Sums:
    """T and B with their variances: by machine, and of independent events."""

    top: float
    bottom: float
    var_top: float
    var_bottom: float
    cov: float
    cells: tuple[FloatArray, FloatArray, FloatArray]
    hit: int

    @classmethod
    def of(cls, rows: Rows) -> "_Sums":
        cell = np.unique(rows.cell, return_inverse=True)[1]
        cells = int(cell.max()) + 1
        fixed = rows.is_fixed

        def per_cell(values: FloatArray, where: BoolArray) -> FloatArray:
            return _added(values, cell, where=where, size=cells)

        x1, x0 = per_cell(rows.days, fixed), per_cell(rows.days, ~fixed)
        n1, n0 = per_cell(rows.amount, fixed), per_cell(rows.amount, ~fixed)
        top, bottom = _parts(n1, n0, x1, x0)
        # What each row takes with it when its machine is left out; a machine has few rows per cell.
        pair = np.unique(rows.machine * np.int64(cells) + cell, return_inverse=True)[1]
        pairs = int(pair.max()) + 1
        of_pair = np.zeros(pairs, dtype=np.int64)
        of_pair[pair] = cell
        machine = np.zeros(pairs, dtype=np.int64)
        machine[pair] = np.unique(rows.machine, return_inverse=True)[1]

        def per_pair(values: FloatArray, where: BoolArray) -> FloatArray:
            return _added(values, pair, where=where, size=pairs)

        left = _parts(
            n1[of_pair] - per_pair(rows.amount, fixed),
            n0[of_pair] - per_pair(rows.amount, ~fixed),
            x1[of_pair] - per_pair(rows.days, fixed),
            x0[of_pair] - per_pair(rows.days, ~fixed),
        )
        units = int(machine.max()) + 1
        takes_top = np.bincount(machine, weights=top[of_pair] - left[0], minlength=units)
        takes_bottom = np.bincount(machine, weights=bottom[of_pair] - left[1], minlength=units)
        factor = (units - 1) / units
        a, b = takes_top - takes_top.mean(), takes_bottom - takes_bottom.mean()
        is_used = (x1 > 0) & (x0 > 0)
        hit = np.unique(rows.machine[(rows.amount > 0) & is_used[cell]])
        return cls(
            top=float(top.sum()),
            bottom=float(bottom.sum()),
            var_top=factor * float(a @ a),
            var_bottom=factor * float(b @ b),
            cov=factor * float(a @ b),
            cells=((n1 + n0)[is_used], x1[is_used], x0[is_used]),
            hit=int(hit.size),
        )

    def z(self, ratio: float, *, is_count: bool) -> float | None:
        """z of "the fixed have `ratio` times the rate", negative if they have less."""
        least_top, least_bottom = self.independent(ratio) if is_count else (0.0, 0.0)
        variance = (
            max(self.var_top, least_top)
            + ratio**2 * max(self.var_bottom, least_bottom)
            - 2 * ratio * self.cov
        )
        variance = max(variance, least_top + ratio**2 * least_bottom)
        return (self.top - ratio * self.bottom) / math.sqrt(variance) if variance > 0 else None

    def independent(self, ratio: float) -> tuple[float, float]:
        """Variances of T and B if events were independent and the ratio were this one."""
        events, x1, x0 = self.cells
        base = events / (ratio * x1 + x0)
        whole = x1 + x0
        return (
            float((x0 / whole) ** 2 @ (ratio * base * x1)),
            float((x1 / whole) ** 2 @ (base * x0)),
        )

    def spread(self) -> float | None:
        """Standard error of the log ratio; None where it is 0 or not defined."""
        if self.top <= 0:
            return None
        ratio = self.top / self.bottom
        variance = self.var_top + ratio**2 * self.var_bottom - 2 * ratio * self.cov
        return math.sqrt(variance) / self.top if variance > 0 else None

    def inflation(self) -> float:
        """Variance of T and B over that of independent events; at least 1."""
        ratio = self.top / self.bottom
        least_top, least_bottom = self.independent(max(ratio, HALVING))
        clustered = self.var_top + ratio**2 * self.var_bottom
        least = least_top + ratio**2 * least_bottom
        return max(clustered / least, 1.0) if least > 0 else 1.0


def _added(
    values: FloatArray, code: IntArray, *, size: int, where: BoolArray | None = None
) -> FloatArray:
    """Values added up by code, of the rows of a mask."""
    if where is not None:
        values, code = values[where], code[where]
    return np.asarray(np.bincount(code, weights=values, minlength=size), dtype=np.float64)


def _parts(
    n1: FloatArray, n0: FloatArray, x1: FloatArray, x0: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Each cell's part of T and B; a cell without time on either side has none."""
    # What is left of a cell after a machine is taken out may be a rounding error below nothing.
    x1, x0 = (np.where(x > 1e-9, x, 0.0) for x in (x1, x0))
    whole = x1 + x0
    is_used = (x1 > 0) & (x0 > 0)
    top = np.divide(n1 * x0, whole, out=np.zeros(whole.size), where=is_used)
    bottom = np.divide(n0 * x1, whole, out=np.zeros(whole.size), where=is_used)
    return top, bottom


# --- the window in periods -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Grid:
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
    def of(cls, history: FixHistory) -> "_Grid":
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


# --- the answer ------------------------------------------------------------------------------


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
    grid = _Grid.of(history)
    counts = grid.amounts(history.episodes)
    concurrent = clustered_ratio(grid.concurrent(counts), level=level)
    alike = _alike(grid, counts, level=level)
    others = clustered_ratio(grid.concurrent(grid.amounts(history.others)), level=level)
    shifts = _shifts(grid, level=level)
    severe = clustered_ratio(grid.concurrent(grid.amounts(_severe(history))), level=level)
    known = np.where(np.isfinite(history.lost_hours), history.lost_hours, 0.0)
    lost = grid.amounts(history.interruptions, known)
    lost_work = clustered_ratio(grid.concurrent(lost), level=level, is_count=False)
    rises = _rises(others, shifts, severe, lost_work)
    falling = _falling(grid, counts, level=level)
    verdict, reason = _verdict(concurrent, alike, falling.fixed, rises=rises)
    earlier = _earlier(grid)
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
        mix_before=_mix(grid, side=0, who=history.is_fixed),
        mix_after=_mix(grid, side=1, who=history.is_fixed),
        mix_unfixed=_mix(grid, side=0, who=np.ones(history.stratum.size, dtype=np.bool_)),
        ages=_ages(grid),
        fixed_machines=int(history.is_fixed.sum()),
        unfixed_machines=int((~history.is_fixed).sum()),
        fixed_earlier=earlier[0],
        unfixed_earlier=earlier[1],
        needs_days=_needs(concurrent, alike, level=level) if is_short else None,
    )


def _alike(grid: _Grid, counts: FloatArray, *, level: float) -> Comparison:
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


def _rises(
    others: Comparison,
    shifts: tuple[SignatureShift, ...],
    severe: Comparison,
    lost_work: Comparison,
) -> tuple[str, ...]:
    found = ["all other signatures together"] if others.is_above else []
    found += [shift.name for shift in shifts if shift.is_proven]
    found += ["interruptions that cost a job its progress"] if severe.is_above else []
    return tuple(found + (["lost work"] if lost_work.is_above else []))


def _shifts(grid: _Grid, *, level: float) -> tuple[SignatureShift, ...]:
    """The other signatures that fixed machines had, those that may be new patterns first.

    A rise is proven at the level divided by how many were looked at, and on two machines.
    """
    history = grid.history
    inside = (history.others.time_seconds >= 0) & (
        history.others.time_seconds < history.window_seconds
    )
    after = inside & (history.others.time_seconds >= history.fixed_seconds[history.others.machine])
    names = np.unique(history.signature[after]).tolist()
    found = []
    for code in names:
        mine = history.signature == code
        events = Events(history.others.machine[mine], history.others.time_seconds[mine])
        rows = grid.concurrent(grid.amounts(events))
        strict = clustered_ratio(rows, level=1 - (1 - level) / len(names))
        is_proven = strict.is_above and strict.fixed.hit >= LEAST_MACHINES
        is_new = not bool((mine & ~after).any())
        found.append(
            SignatureShift(history.signatures[code], strict, is_new=is_new, is_proven=is_proven)
        )
    return tuple(sorted(found, key=_unlikely_first))


def _unlikely_first(shift: SignatureShift) -> tuple[float, float, str]:
    comparison = shift.comparison
    return (-(comparison.low or 0.0), -comparison.fixed.amount, shift.name)


def _severe(history: FixHistory) -> Events:
    codes = [index for index, path in enumerate(history.paths) if path in history.severe_paths]
    chosen = np.isin(history.path, codes)
    return Events(history.interruptions.machine[chosen], history.interruptions.time_seconds[chosen])


def _mix(grid: _Grid, *, side: int, who: BoolArray) -> PathMix:
    """Of machine-time on one side; unfixed time of the never and the not yet fixed alike."""
    history, events = grid.history, grid.history.interruptions
    is_fixed = events.time_seconds >= history.fixed_seconds[events.machine]
    inside = (events.time_seconds >= 0) & (events.time_seconds < history.window_seconds)
    chosen = inside & who[events.machine] & (is_fixed == (side == 1))
    numbers = np.bincount(history.path[chosen], minlength=len(history.paths))
    return PathMix(
        counts=dict(zip(history.paths, numbers.tolist(), strict=True)),
        lost_hours=float(np.nansum(history.lost_hours[chosen])),
        days=float(grid.days[side][who].sum()),
    )


def _falling(grid: _Grid, counts: FloatArray, *, level: float) -> Falling:
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


def _by_itself(grid: _Grid, counts: FloatArray) -> tuple[float | None, float | None]:
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
        x0 = _added(past_days, cell, where=controls, size=size)
        x1 = _added(future_days, cell, where=controls, size=size)
        n0 = _added(past, cell, where=controls, size=size)
        n1 = _added(future, cell, where=controls, size=size)
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
    days = _added(np.maximum(span, 0.0) / SECONDS_PER_DAY, of_span, size=size)
    events = history.episodes
    recent = (events.time_seconds >= since) & (events.time_seconds < last[events.machine])
    return days, np.bincount(events.machine[recent], minlength=size).astype(np.float64)


def _earlier(grid: _Grid) -> tuple[float | None, float | None]:
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


def _ages(grid: _Grid) -> Ages:
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


def _needs(concurrent: Comparison, alike: Comparison, *, level: float) -> float | None:
    """Machine-days beyond those had: of the comparison that wants more.

    Enough to find a halving (`POWER`), and at least enough for the ratio seen to be told from 1
    or from a halving, whichever is farther.
    """
    whole = _more(concurrent, level=level)
    if whole is None or alike.estimate is None:
        return whole
    # Machines that stand as controls at several steps have their days counted there each time.
    days = concurrent.fixed.days + concurrent.unfixed.days
    matched = _more(alike, level=level)
    share = days / (alike.fixed.days + alike.unfixed.days)
    return None if matched is None else max(whole, matched * share)


def _more(one: Comparison, *, level: float) -> float | None:
    had = one.fixed.days + one.unfixed.days
    amount = one.fixed.amount + one.unfixed.amount
    rate = one.unfixed.per_day or (amount / had if had > 0 else 0.0)
    if rate <= 0:
        return None
    share = one.fixed.days / had if one.fixed.days > 0 and one.unfixed.days > 0 else 0.5
    events = schoenfeld_events(
        HALVING, canary_fraction=share, alpha=(1 - level) / 2, beta=1 - POWER
    )
    whole = events * one.inflation / (rate * (share * HALVING + 1 - share))
    more = max(whole - had, _to_tell(one, had=had, level=level), 0.0)
    return more if had <= 0 or more <= MOST_MORE * had else None


def _to_tell(one: Comparison, *, had: float, level: float) -> float:
    if not one.estimate or one.spread is None:
        return 0.0
    seen = math.log(one.estimate)
    gap = max(abs(seen), abs(seen - math.log(HALVING)))
    if one.low is not None and one.low > HALVING:
        gap = abs(seen)  # a halving is excluded; what is left is whether there is any reduction
    if gap <= 0:
        return 0.0
    bound = float(student.isf((1 - level) / 2, 1_000))
    return had * ((bound * one.spread / gap) ** 2 - 1)
