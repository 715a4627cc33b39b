"""One slow machine in a synchronous job: since when, and by how much, against the median worker.

A finding about a machine. It says nothing of firmware: there is no second arm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollouts.analysis.errors import InvalidSample, UnitMismatch
from rollouts.analysis.samples import FloatArray, IntArray
from rollouts.analysis.verdicts import Interval

LEAST_WORKERS = 3
"""With two workers nobody can say which of them is the slow one."""
LEAST_STEPS = 20
"""Steps on each side of a change; a shorter stretch is noise."""
SLOW_SHARE = 0.05
"""A spell is a run of steps that on the whole are slower than this over the worker's usual pace."""


@dataclass(frozen=True)
class Spell:
    """Steps `first` to `last` in which a worker was slowest, and its mean ratio to the median."""

    first: int
    last: int
    ratio: float


@dataclass(frozen=True)
class Shift:
    """The largest change of one worker's pace against the median worker.

    Parameters
    ----------
    worker : str
    step : int
        Index of the first step after the change; its interval is `earliest` to `latest`.
    before, after : float
        Mean ratio of the worker's time to the median worker's; above 1 is slower.
    ratio : float
        `after / before`, with its `interval`.
    spell : Spell or None
        Its worst spell; None if it has none.
    """

    worker: str
    step: int
    earliest: int
    latest: int
    before: float
    after: float
    ratio: float
    interval: Interval
    spell: Spell | None


def shifts(
    seconds: FloatArray,
    *,
    workers: Sequence[str],
    rng: np.random.Generator,
    confidence_level: float = 0.95,
    resamples: int = 999,
) -> tuple[Shift, ...]:
    """The largest change of each worker's pace, whoever slowed down most first.

    Parameters
    ----------
    seconds : (steps, workers) array
        Time that each worker took for each step (or 1 / throughput), in any unit, in order of
        time; NaN where unknown.
    workers : sequence of str
        Their names, in the order of the columns.
    rng : numpy.random.Generator
        Of the bootstrap.
    confidence_level : float
        Two-sided coverage of the intervals of each worker, in (0, 1).
    resamples : int

    Returns
    -------
    tuple of Shift
        Dimensionless ratios. Workers with fewer than 40 known steps are left out.

    Raises
    ------
    UnitMismatch
        If the names do not fit the columns.
    InvalidSample
        With fewer than three workers, a time that is not positive and finite, a level outside
        (0, 1), or less than one resample.

    Notes
    -----
    Each step is divided by the median worker of that step, which takes out what all share. The
    split minimises the squares around two means. Steps resemble their neighbours, so the
    intervals come from a bootstrap of blocks of residuals [1]_ in which the split is searched
    anew; measured coverage of a change of 2 % and more at noise of 1 % is 83 to 93 % at nominal
    95, less with more correlation. They say how large the largest change is, not whether there
    is one: one series has no replicate, so nothing here is a test, and nothing halts on it. A
    spell is the run of steps with the largest sum of log ratios over the worker's own median and
    5 %: a short burst moves the means little and shows there.

    References
    ----------
    .. [1] H. R. Kuensch, Annals of Statistics 17 (1989) 1217-1241.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> seconds = 1 + 0.01 * rng.standard_normal((200, 5))
    >>> seconds[120:, 2] *= 1.1
    >>> worst = shifts(seconds, workers=["a", "b", "c", "d", "e"], rng=rng)[0]
    >>> worst.worker, worst.step, round(worst.ratio, 2)
    ('c', 120, 1.09)
    """
    _check(seconds, workers, confidence_level, resamples)
    relative = relative_pace(seconds)
    known = ~np.isnan(relative)
    found = [
        _shift(
            relative[known[:, place], place],
            steps=np.flatnonzero(known[:, place]),
            worker=name,
            rng=rng,
            confidence_level=confidence_level,
            resamples=resamples,
        )
        for place, name in enumerate(workers)
        if int(known[:, place].sum()) >= 2 * LEAST_STEPS
    ]
    return tuple(sorted(found, key=lambda shift: (-shift.ratio, shift.worker)))


def relative_pace(seconds: FloatArray) -> FloatArray:
    """Each step over the median worker of that step; NaN where unknown.

    Examples
    --------
    >>> relative_pace(np.array([[1.0, 2.0, 4.0], [3.0, np.nan, 5.0]])).tolist()
    [[0.5, 1.0, 2.0], [0.75, nan, 1.25]]
    """
    relative = np.full(seconds.shape, np.nan)
    some = ~np.isnan(seconds).all(axis=1)
    relative[some] = seconds[some] / np.nanmedian(seconds[some], axis=1, keepdims=True)
    return relative


def _check(
    seconds: FloatArray, workers: Sequence[str], confidence_level: float, resamples: int
) -> None:
    if seconds.ndim != 2 or seconds.shape[1] != len(workers):
        raise UnitMismatch(f"{len(workers)} names for times of shape {seconds.shape}")
    if len(workers) < LEAST_WORKERS:
        raise InvalidSample(f"at least {LEAST_WORKERS} workers are needed: got {len(workers)}")
    known = seconds[~np.isnan(seconds)]
    if np.isinf(known).any() or (known <= 0).any():
        raise InvalidSample("times of steps are positive and finite, NaN if unknown")
    if not 0 < confidence_level < 1:
        raise InvalidSample(f"confidence_level lies in (0, 1): got {confidence_level}")
    if resamples < 1:
        raise InvalidSample(f"at least one resample is needed: got {resamples}")


def _shift(
    ratio: FloatArray,
    *,
    steps: IntArray,
    worker: str,
    rng: np.random.Generator,
    confidence_level: float,
    resamples: int,
) -> Shift:
    (split,), (low,), (high,) = _split(ratio[None, :])
    fitted = np.where(np.arange(ratio.size) < split, low, high)
    again = fitted + _blocks(ratio - fitted, rng=rng, resamples=resamples)
    splits, lows, highs = _split(np.maximum(again, 1e-9))
    tail = (1 - confidence_level) / 2
    log_change = math.log(high / low)
    error = np.log(highs / lows) - log_change
    first, last = np.quantile(splits, [tail, 1 - tail], method="nearest").astype(int)
    return Shift(
        worker=worker,
        step=int(steps[split]),
        earliest=int(steps[min(first, split)]),
        latest=int(steps[max(last, split)]),
        before=float(low),
        after=float(high),
        ratio=float(high / low),
        interval=Interval(
            math.exp(log_change - float(np.quantile(error, 1 - tail))),
            math.exp(log_change - float(np.quantile(error, tail))),
            confidence_level,
        ),
        spell=_worst_spell(ratio, steps=steps),
    )


def _split(ratio: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """Per row: length of the first part, and the means of both, with the least squares around."""
    size = ratio.shape[1]
    length = np.arange(LEAST_STEPS, size - LEAST_STEPS + 1)
    total = np.cumsum(ratio, axis=1)
    before = total[:, length - 1] / length
    after = (total[:, -1:] - total[:, length - 1]) / (size - length)
    best = np.argmax(length * (size - length) * (after - before) ** 2, axis=1)
    row = np.arange(ratio.shape[0])
    return length[best], before[row, best], after[row, best]


def _blocks(residual: FloatArray, *, rng: np.random.Generator, resamples: int) -> FloatArray:
    """Residuals put together anew from blocks of neighbours."""
    size = residual.size
    block = min(math.ceil(2 * size ** (1 / 3)), size)
    number = math.ceil(size / block)
    start = rng.integers(0, size - block + 1, (resamples, number, 1))
    chosen = (start + np.arange(block)).reshape(resamples, -1)[:, :size]
    return np.asarray(residual[chosen] - residual.mean())


def _worst_spell(ratio: FloatArray, *, steps: IntArray) -> Spell | None:
    """The run of steps with the largest sum over the usual pace and 5 % (Kadane)."""
    excess = np.log(ratio / np.median(ratio)) - math.log1p(SLOW_SHARE)
    best, here, begin, found = 0.0, 0.0, 0, None
    for place, value in enumerate(excess.tolist()):
        if here <= 0:
            here, begin = 0.0, place
        here += value
        if here > best:
            best, found = here, (begin, place)
    if found is None:
        return None
    first, last = found
    return Spell(int(steps[first]), int(steps[last]), float(ratio[first : last + 1].mean()))
