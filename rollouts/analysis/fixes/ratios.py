"""Rate of fixed over unfixed machine-time, in cells and with the machine as the unit."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from rollouts.analysis.errors import InvalidLevel
from rollouts.analysis.hazards import ratio_limits
from rollouts.analysis.proportions import rate_ratio_exact
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray

LEVEL = 0.95
"""Two-sided coverage of each interval, at one look."""
HALVING = 0.5
"""The reduction that an answer is planned for, and that `not reduced` has to exclude."""


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
            return added(values, cell, where=where, size=cells)

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
            return added(values, pair, where=where, size=pairs)

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


def added(
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
