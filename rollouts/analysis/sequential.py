"""Evidence that stays valid under repeated looks.

`cross` is the sequential randomisation test: it follows the observed path and
its re-assignments together and lets a share of them, bounded by the error level
spent so far, cross. `first_episode_log_e` needs no horizon. Both are exact
under the null, whatever the dependence between machines.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from rollouts.analysis.errors import AnalysisError, InvalidLevel, InvalidSample, UnitMismatch

BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Stratum = TypeVar("Stratum", bound=Hashable)
SumArray = npt.NDArray[np.int64] | npt.NDArray[np.float64]

FIRST_EPISODE_GRID = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_HEADER_BYTES = 17


@dataclass(frozen=True, eq=False)
class CrossingState:
    """Which paths may still cross, how many have, and whether the observed one did.

    A crossing is never taken back. `packed_alive` holds one bit per path, the
    observed path first.
    """

    packed_alive: ByteArray
    paths: int
    used: int
    is_crossed: bool

    @classmethod
    def initial(cls, paths: int) -> CrossingState:
        if paths < 1:
            raise AnalysisError(f"a crossing needs at least the observed path: got {paths} paths")
        return cls(np.packbits(np.ones(paths, dtype=np.bool_)), paths, used=0, is_crossed=False)

    @property
    def alive(self) -> BoolArray:
        return np.unpackbits(self.packed_alive, count=self.paths).view(np.bool_)

    def to_bytes(self) -> bytes:
        """The whole state, for a database row; `from_bytes` gives back the same state."""
        header = self.paths.to_bytes(8, "big") + self.used.to_bytes(8, "big")
        return header + bytes([self.is_crossed]) + zlib.compress(self.packed_alive.tobytes())

    @classmethod
    def from_bytes(cls, stored: bytes) -> CrossingState:
        if len(stored) <= _HEADER_BYTES:
            raise AnalysisError(f"a stored crossing state has over 17 bytes: got {len(stored)}")
        paths, used = (int.from_bytes(stored[at : at + 8], "big") for at in (0, 8))
        try:
            alive = zlib.decompress(stored[_HEADER_BYTES:])
        except zlib.error as error:
            raise AnalysisError(f"stored crossing state cannot be unpacked: {error}") from error
        packed = np.frombuffer(alive, dtype=np.uint8)
        state = cls(packed, paths, used, is_crossed=bool(stored[16]))
        if packed.size != -(-paths // 8) or state.used + int(state.alive.sum()) != paths:
            raise AnalysisError(f"stored crossing state of {paths} paths contradicts itself")
        return state


def cross(state: CrossingState, sums: SumArray, *, level: Fraction) -> CrossingState:
    """One look of the sequential randomisation test.

    Parameters
    ----------
    state : CrossingState
        After the look before; `CrossingState.initial(paths)` at the first.
    sums : (paths,) array
        Cumulative score summed over the canaries of every path, the observed
        one first; large values mean harm.
    level : Fraction
        A(k), the error level spent by the end of this look, in [0, 1].

    Returns
    -------
    CrossingState
        At most `floor(level * paths)` paths have crossed by now.

    Notes
    -----
    Alive paths strictly above the (allow+1)-th largest alive sum cross, where
    `allow` is what the level leaves over; so ties cross whole or not at all,
    and an unfinished share is kept for the next look. Since the rule treats
    all paths alike and under the sharp null the observed path is exchangeable
    with the others, P(it ever crosses) <= the last level, in finite samples and
    with the error of sampling the re-assignments included [1]_.

    References
    ----------
    .. [1] V. Plamadeala, W. F. Rosenberger, Ann. Stat. 40 (2012) 30-47.

    Examples
    --------
    >>> state = cross(CrossingState.initial(4), np.array([9, 3, 3, 1]), level=Fraction(1, 4))
    >>> state.is_crossed, state.used
    (True, 1)
    """
    _check_look(state, sums, level)
    crossing = _crossing(state, sums, level=level)
    if not crossing.any():
        return state
    alive = state.alive & ~crossing
    return CrossingState(
        np.packbits(alive),
        state.paths,
        used=state.used + int(crossing.sum()),
        is_crossed=state.is_crossed or bool(crossing[0]),
    )


def _check_look(state: CrossingState, sums: SumArray, level: Fraction) -> None:
    if sums.shape != (state.paths,):
        raise UnitMismatch(f"one sum per path: got {sums.shape} for {state.paths} paths")
    if sums.dtype.kind == "f" and not np.isfinite(sums).all():
        raise InvalidSample("sums over canaries must be finite: got NaN or infinity")
    if not 0 <= level.numerator <= level.denominator:  # as 0 <= level <= 1, ten times as fast
        raise InvalidLevel(f"a spent error level lies in [0, 1]: got {level}")


def _allowed(state: CrossingState, level: Fraction) -> int:
    """Paths that may still cross by this look."""
    return level.numerator * state.paths // level.denominator - state.used


def _crossing(state: CrossingState, sums: SumArray, *, level: Fraction) -> BoolArray:
    alive = state.alive
    allow = _allowed(state, level)
    if allow <= 0:
        return np.zeros(state.paths, dtype=np.bool_)
    candidates = sums[alive]
    if allow >= candidates.size:  # only at level 1, where everything may cross
        return alive
    place = candidates.size - 1 - allow
    threshold = np.partition(candidates, place)[place]
    return np.asarray(alive & (sums > threshold), dtype=np.bool_)


def p_value(sums: SumArray) -> float:
    """Share of paths at least as harmful as the observed one: one look, no spending.

    Examples
    --------
    >>> p_value(np.array([3, 1, 3, 0]))
    0.5
    """
    return float(np.mean(sums >= sums[0]))


class Side(StrEnum):
    """Which end of the range of an effect a test rejects."""

    BELOW = "below"
    ABOVE = "above"


@dataclass(frozen=True, eq=False)
class LinearLook:
    """Sums of one look as a line in the tested effect: `constant + effect * slope`."""

    constant: SumArray
    slope: SumArray
    level: Fraction

    def sums_at(self, effect: float) -> FloatArray:
        return np.asarray(self.constant + effect * self.slope, dtype=np.float64)


def rejects(look: LinearLook, effect: float, *, state: CrossingState) -> bool:
    """Is the observed path beyond the threshold of this look at this effect?

    `state` is the one before the look (of the test at the tolerated effect):
    paths that crossed earlier stay out and what was used stays used.
    """
    sums = look.sums_at(effect)
    _check_look(state, sums, look.level)
    if state.is_crossed:
        return True
    # Above the (allow+1)-th largest: at most `allow` are as large. Counting beats sorting.
    return int(np.count_nonzero(sums[state.alive] >= sums[0])) <= _allowed(state, look.level)


def invert(
    is_rejected: Callable[[float], bool],
    *,
    side: Side,
    tested: float,
    is_tested_rejected: bool,
    low: float,
    high: float,
    tolerance: float = 1e-6,
) -> float:
    """The limit of the effects that a test rejects: one end of a repeated interval.

    Parameters
    ----------
    is_rejected : callable
        The test of one effect.
    side : Side
        `BELOW` if the test rejects effects below the limit (the result is a
        lower confidence limit), `ABOVE` for an upper one.
    tested : float
        The effect whose verdict is already out, within `[low, high]`.
    is_tested_rejected : bool
        That verdict; it is taken as given, so that interval and verdict cannot
        contradict each other.
    low, high : float
        Where to search, both finite.
    tolerance : float
        Width at which the bisection stops.

    Returns
    -------
    float
        With `BELOW`: at least `tested` if that was rejected, else less than
        `tested` unless `tested` is `low`; `-inf` if no effect down to `low` is
        rejected and `inf` if all up to `high` are. With `ABOVE` the mirror
        image.

    Notes
    -----
    Where a test is not monotone in the effect, this finds one of its limits.

    Examples
    --------
    >>> limit = invert(lambda x: x <= 1.25, side=Side.BELOW, tested=1.0,
    ...                is_tested_rejected=True, low=0.0, high=8.0)
    >>> round(limit, 4)
    1.25
    """
    if not (math.isfinite(low) and math.isfinite(high) and low <= tested <= high):
        raise AnalysisError(f"cannot search from {low} to {high} around {tested}")
    if side is Side.ABOVE:
        return -invert(
            lambda effect: is_rejected(-effect),
            side=Side.BELOW,
            tested=-tested,
            is_tested_rejected=is_tested_rejected,
            low=-high,
            high=-low,
            tolerance=tolerance,
        )
    if is_tested_rejected:
        inside, outside = tested, high
        if is_rejected(high):
            return math.inf
    else:
        inside, outside = low, tested
        if tested == low or not is_rejected(low):
            return -math.inf
    while outside - inside > tolerance:
        middle = (inside + outside) / 2
        if is_rejected(middle):
            inside = middle
        else:
            outside = middle
    return inside


def first_episode_log_e(
    events: Iterable[tuple[Stratum, bool]],
    *,
    sizes: Mapping[Stratum, tuple[int, int]],
    grid: Sequence[float] = FIRST_EPISODE_GRID,
    theta0: float = 1.0,
) -> FloatArray:
    """Log evidence against "canaries fail at most theta0 times as often", after each event.

    Parameters
    ----------
    events : iterable of (stratum, is_canary)
        The first episode of each machine in order of time, ties by machine
        name; repeat episodes of a machine must be left out.
    sizes : mapping of stratum to (canaries, controls)
        At risk at the start.
    grid : sequence of float
        Rate ratios that are mixed with equal weight, all above `theta0`; all below it the evidence
        is against "at least theta0 times as often".
    theta0 : float
        The tolerated rate ratio.

    Returns
    -------
    (number of events,) array
        log E; E >= 1/alpha at any time rejects at level alpha.

    Raises
    ------
    InvalidSample
        If an event's stratum is unknown or has nobody of its arm left at risk.

    Notes
    -----
    Given a label-blind order, the arm of the next machine is a draw without
    replacement, so E is a martingale with mean 1 for any heterogeneity of the
    machines [1]_. A machine leaves the risk set with its first episode.

    References
    ----------
    .. [1] J. ter Schure, M. F. Perez-Ortiz, A. Ly, P. Grunwald, New England
       J. Stat. Data Sci. 2 (2024) 190-214.

    Examples
    --------
    >>> log_e = first_episode_log_e([("A", True)], sizes={"A": (4, 16)})
    >>> round(float(np.exp(log_e[0])), 4)
    2.1188
    """
    theta = np.append(np.asarray(grid, dtype=np.float64), theta0)
    if theta.size < 2 or not (np.isfinite(theta).all() and (theta > 0).all()):
        raise AnalysisError(f"rate ratios are positive and finite: got {list(grid)}, {theta0}")
    at_risk = {stratum: list(arms) for stratum, arms in sizes.items()}
    nobody = [0, 0]
    log_e = np.zeros(theta.size)
    path = []
    for stratum, is_canary in events:
        left, arm = at_risk.get(stratum, nobody), 0 if is_canary else 1
        if left[arm] < 1:
            raise InvalidSample(f"no {'canary' if is_canary else 'control'} at risk in {stratum!r}")
        share = left[0] / sum(left)
        log_e += np.log(theta) * is_canary - np.log(theta * share + 1 - share)
        left[arm] -= 1
        path.append(logsumexp(log_e[:-1]) - math.log(theta.size - 1) - log_e[-1])
    return np.array(path, dtype=np.float64)
