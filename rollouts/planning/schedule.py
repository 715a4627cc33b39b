"""When each machine's turn is expected to come, and what that takes away from the pools."""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

#: From when on an attempt may start at a site and pool, at a time or later.
Opening = Callable[[str, str, float], float]
#: Points of a pool's series that are kept, whatever the length of the rollout.
MOST_POINTS = 48


class Turn(NamedTuple):
    """A machine that is to be updated in a wave, and from when on its work lets it go.

    Times are hours since the start. `ready` is infinite where nobody knows when the job ends.
    `lanes` names the limits that it stands under, with the most that may be in flight at once;
    `site` and `pool` are what maintenance windows go by.
    """

    name: str
    wave: int
    ready: float
    lanes: tuple[tuple[str, int], ...] = ()
    site: str = ""
    pool: str = ""


@dataclass(frozen=True)
class WaveTimes:
    """When a wave starts, when its last known machine is in, and when its window ends."""

    start: float
    installed: float
    end: float


def schedule(
    turns: Sequence[Turn],
    *,
    waves: Mapping[int, float],
    hours_each: float,
    opening: Opening | None = None,
) -> tuple[list[float], dict[int, WaveTimes]]:
    """Forecast the start of every turn, and of every wave, within the limits.

    Parameters
    ----------
    turns : sequence of Turn
        In the drawn order.
    waves : mapping of wave to hours
        Burn-in and window of each wave, in order; what follows its last install.
    hours_each : float
        Time from a machine's drain to its return.
    opening : callable, optional
        Of site, pool and a time, the first time from then on at which a maintenance window lets
        an attempt start there; infinite where none does.

    Returns
    -------
    list of float
        Start of each turn in hours, infinite where it cannot be told: its job has no known end,
        or a limit lets nobody start.
    dict of int to WaveTimes

    Notes
    -----
    Within a wave whoever is ready first goes first, as the pipeline does it; who is not ready
    holds nobody up. A wave is taken to use its whole window, and not to be extended.

    Examples
    --------
    >>> turns = [Turn("n1", 1, 0.0, (("", 1),)), Turn("n2", 1, 0.0, (("", 1),)), Turn("n3", 2, 9.0)]
    >>> starts, times = schedule(turns, waves={1: 24.0, 2: 48.0}, hours_each=0.5)
    >>> starts
    [0.0, 0.5, 25.0]
    >>> times[1]
    WaveTimes(start=0.0, installed=1.0, end=25.0)
    """
    starts = [math.inf] * len(turns)
    by_wave: dict[int, list[int]] = {number: [] for number in waves}
    for index, turn in enumerate(turns):
        by_wave[turn.wave].append(index)
    times: dict[int, WaveTimes] = {}
    begin = 0.0
    for number, after in waves.items():
        lanes = _Lanes()
        ready = {index: max(begin, turns[index].ready) for index in by_wave[number]}
        own = sorted(by_wave[number], key=ready.__getitem__)
        for index in own:
            turn = turns[index]
            starts[index] = _start(
                turn,
                ready[index],
                lanes=lanes.of(turn.lanes),
                hours_each=hours_each,
                opening=opening,
            )
        known = [starts[index] for index in own if math.isfinite(starts[index])]
        installed = max(known, default=begin - hours_each) + hours_each
        end = installed + after if own else begin
        times[number] = WaveTimes(start=begin, installed=max(installed, begin), end=end)
        begin = end
    return starts, times


class _Lanes:
    """When the places of every lane are free again; turns that share lanes find them at once."""

    def __init__(self) -> None:
        self.ends: dict[str, list[float]] = {}
        self.known: dict[int, list[tuple[list[float], int]]] = {}

    def of(self, lanes: tuple[tuple[str, int], ...]) -> list[tuple[list[float], int]]:
        found = self.known.get(id(lanes))
        if found is None:
            found = [(self.ends.setdefault(name, []), most) for name, most in lanes]
            self.known[id(lanes)] = found
        return found


def _start(
    turn: Turn,
    start: float,
    *,
    lanes: list[tuple[list[float], int]],
    hours_each: float,
    opening: Opening | None,
) -> float:
    """Take a place in every lane that the machine stands under, as early as all of them allow."""
    for taken, most in lanes:
        if most <= 0:
            return math.inf
        if len(taken) >= most and taken[0] > start:
            start = taken[0]
    if opening is not None:
        start = opening(turn.site, turn.pool, start)
    if math.isinf(start):
        return start
    end = start + hours_each
    for taken, most in lanes:
        if len(taken) >= most:
            heapq.heapreplace(taken, end)
        else:
            heapq.heappush(taken, end)
    return start


@dataclass(frozen=True)
class Loss:
    """What a pool loses: the most machines out at once and when, and machine-hours in all.

    `series` is the most that are out in each equal part of `step_hours`, from the start on.
    """

    peak: int
    peak_at: float
    machine_hours: float
    step_hours: float
    series: tuple[int, ...]


def capacity_loss(starts: Sequence[float], *, hours_each: float, horizon: float) -> Loss:
    """Tell how many machines are out at once, over time, when each is out for `hours_each`.

    Examples
    --------
    >>> loss = capacity_loss([0.0, 0.5, 4.0], hours_each=1.0, horizon=5.0)
    >>> loss.peak, loss.peak_at, loss.machine_hours, loss.series[:5]
    (2, 0.5, 3.0, (2, 1, 0, 0, 1))
    """
    out = np.sort(np.array([start for start in starts if math.isfinite(start)]))
    points = min(MOST_POINTS, max(1, math.ceil(horizon)))
    step = max(horizon, hours_each) / points
    if not out.size:
        return Loss(0, 0.0, 0.0, step, (0,) * points)
    # Most are out just after a start: those that began by then less those that are back.
    level = np.arange(1, out.size + 1) - np.searchsorted(out + hours_each, out, side="right")
    peak = int(level.argmax())
    edges = np.arange(points) * step
    bucket = np.minimum((out / step).astype(np.int64), points - 1)
    # At an edge those are out that began before it and are not back yet.
    series = np.searchsorted(out, edges, side="right") - np.searchsorted(
        out + hours_each, edges, side="right"
    )
    np.maximum.at(series, bucket, level)
    return Loss(
        peak=int(level[peak]),
        peak_at=float(out[peak]),
        machine_hours=float(out.size * hours_each),
        step_hours=float(step),
        series=tuple(series.tolist()),
    )
