"""How much error a look may have spent, and what share of it each guardrail gets.

Levels are rationals from integer arithmetic: roots are taken by `math.isqrt`
and rounded down to twelve decimals, so every machine computes the same level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr

from rollouts.analysis.errors import AnalysisError, InvalidLevel, NoGuardrails

FloatArray = npt.NDArray[np.float64]

CHECKPOINTS = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(1))
"""Shares of the planned window from which non-inferiority is judged, once each."""

WINDOW_SHARE = Fraction(4, 5)
"""Of a level: spent within the planned window, where an extension is planned."""
WAVES_SHARE = Fraction(4, 5)
"""Of a rollout's alpha: for its waves; the rest is for surveillance after them."""

METRIC_SHARES: Mapping[str, Fraction] = {
    "faults": Fraction(30, 100),
    "throughput": Fraction(25, 100),
    "novel_signatures": Fraction(15, 100),
    "recovery_time": Fraction(8, 100),
    "severe_path": Fraction(8, 100),
    "lost_work": Fraction(6, 100),
    "install": Fraction(4, 100),
    "telemetry": Fraction(4, 100),
}

_DECIMALS = 10**12


def exact(number: Fraction | float) -> Fraction:
    """The rational that was meant: 0.05 is 1/20, not its nearest binary fraction.

    Examples
    --------
    >>> exact(0.05)
    Fraction(1, 20)
    """
    if isinstance(number, float):
        if not math.isfinite(number):
            raise InvalidLevel(f"a level is a finite number: got {number}")
        return Fraction(repr(number))
    return Fraction(number)


def _level(number: Fraction | float, *, name: str) -> Fraction:
    level = exact(number)
    if not 0 <= level < 1:
        raise InvalidLevel(f"{name} lies in [0, 1): got {number}")
    return level


def _elapsed(number: Fraction | float, *, name: str) -> Fraction:
    elapsed = exact(number)
    if elapsed < 0:
        raise InvalidLevel(f"{name} is not negative: got {number}")
    return min(elapsed, Fraction(1))


def _power(share: Fraction, *, quarters: int) -> Fraction:
    """`share ** (quarters / 4)`, rounded down to twelve decimals, in integers."""
    raised = share**quarters
    scaled = raised.numerator * _DECIMALS**4 // raised.denominator
    return Fraction(math.isqrt(math.isqrt(scaled)), _DECIMALS)


def _spent(
    level: Fraction,
    *,
    elapsed: Fraction,
    extension_elapsed: Fraction,
    has_extension: bool,
    quarters: int,
) -> Fraction:
    if extension_elapsed and not (has_extension and elapsed == 1):
        raise InvalidLevel(
            f"an extension of {float(extension_elapsed):.3g} without a planned one, "
            f"or before the window's end (elapsed {float(elapsed):.3g})"
        )
    if not has_extension:
        return level * _power(elapsed, quarters=quarters)
    window = WINDOW_SHARE * _power(elapsed, quarters=quarters)
    return level * (window + (1 - WINDOW_SHARE) * _power(extension_elapsed, quarters=quarters))


def halt_level(
    alpha: Fraction | float,
    elapsed: Fraction | float,
    extension_elapsed: Fraction | float = 0,
    *,
    has_extension: bool,
) -> Fraction:
    """A(k): the error that a guardrail's halting test may have spent by this look.

    Parameters
    ----------
    alpha : Fraction or float
        The guardrail's level in this wave; a float means its decimal form.
    elapsed : Fraction or float
        f, elapsed over planned time of the window; more than 1 counts as 1.
    extension_elapsed : Fraction or float
        g, elapsed share of the one planned extension; 0 before it begins.
    has_extension : bool
        Whether the plan has one. Recorded cases have none.

    Returns
    -------
    Fraction
        `alpha f**.75` without a planned extension, else `.8 alpha f**.75` and
        then `alpha (.8 + .2 g**.75)`; powers are rounded down to 12 decimals.

    Examples
    --------
    >>> halt_level(0.05, 1, has_extension=True)
    Fraction(1, 25)
    >>> round(float(halt_level(0.05, 0.5, has_extension=False)), 6)
    0.02973
    """
    return _spent(
        _level(alpha, name="alpha"),
        elapsed=_elapsed(elapsed, name="elapsed"),
        extension_elapsed=_elapsed(extension_elapsed, name="extension_elapsed"),
        has_extension=has_extension,
        quarters=3,
    )


def ni_level(
    beta: Fraction | float,
    elapsed: Fraction | float,
    *,
    at_extension_end: bool = False,
    has_extension: bool,
) -> Fraction:
    """The error that a non-inferiority test may have spent by this checkpoint.

    `beta t**1.5` without a planned extension, else `.8 beta t**1.5` in the
    window and all of `beta` at the extension's end.

    Examples
    --------
    >>> [float(ni_level(0.05, t, has_extension=False)) for t in (0.25, 1)]
    [0.00625, 0.05]
    """
    return _spent(
        _level(beta, name="beta"),
        elapsed=_elapsed(elapsed, name="elapsed"),
        extension_elapsed=Fraction(int(at_extension_end)),
        has_extension=has_extension,
        quarters=6,
    )


def ni_bounds(
    levels: Sequence[Fraction | float], *, information: Sequence[Fraction | float]
) -> tuple[float, ...]:
    """Bounds for z whose crossing by look k has at most probability `levels[k]`.

    Parameters
    ----------
    levels : sequence
        Cumulative one-sided error at each look, not decreasing, in [0, 1).
    information : sequence
        Positive and increasing; only ratios matter. Elapsed time serves where
        information grows with it, with 1.5 at the end of half a window more.

    Returns
    -------
    tuple of float
        `inf` where a look spends nothing.

    Raises
    ------
    InvalidLevel
        If levels or information are out of order or range.

    Notes
    -----
    Lan and DeMets: with independent increments the density of the statistic
    among paths that have not crossed is carried from look to look by numerical
    integration [1]_ (Gauss-Legendre panels; the bounds of the published tables
    are met to four decimals).

    References
    ----------
    .. [1] K. K. G. Lan, D. L. DeMets, Biometrika 70 (1983) 659-663.

    Examples
    --------
    >>> levels = [ni_level(0.05, t, has_extension=False) for t in CHECKPOINTS]
    >>> [round(z, 3) for z in ni_bounds(levels, information=CHECKPOINTS)]
    [2.498, 2.202, 1.996, 1.827]
    """
    spent = [float(level) for level in levels]
    times = [float(time) for time in information]
    _check_bounds(spent, times)
    bounds: list[float] = []
    flow = _Survivors.start()
    for k, (level, time) in enumerate(zip(spent, times, strict=True)):
        flow, bound = flow.advance(time, spend=level - (spent[k - 1] if k else 0.0))
        bounds.append(bound)
    return tuple(bounds)


def _check_bounds(levels: Sequence[float], times: Sequence[float]) -> None:
    if not levels or len(levels) != len(times):
        raise InvalidLevel(f"one information per level: got {len(levels)} and {len(times)}")
    if any(b < a for a, b in zip([0.0, *levels], [*levels, 1.0], strict=True)) or levels[-1] >= 1:
        raise InvalidLevel(f"cumulative levels rise within [0, 1): got {list(levels)}")
    if any(not a < b for a, b in zip([0.0, *times], [*times, math.inf], strict=True)):
        raise InvalidLevel(f"information is positive and rises: got {list(times)}")


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_REACH = 9.0
"""Standard deviations below zero where the lower tail (1e-19) is cut off."""


@dataclass(frozen=True, eq=False)
class _Survivors:
    """Mass of the Brownian path at `time`, on quadrature points, where nothing crossed yet."""

    time: float
    points: FloatArray
    mass: FloatArray

    @classmethod
    def start(cls) -> _Survivors:
        return cls(0.0, np.zeros(1), np.ones(1))

    def advance(self, time: float, *, spend: float) -> tuple[_Survivors, float]:
        step = math.sqrt(time - self.time)
        root = math.sqrt(time)

        def excess(z: float) -> float:
            return float(self.mass @ ndtr((self.points - z * root) / step)) - spend

        if spend <= 0 or excess(-_REACH) <= 0:
            bound, top = math.inf, _REACH
        else:
            bound = top = float(brentq(excess, -_REACH, 40.0, xtol=1e-12))
        # Panels one step deviation wide: 16 nodes integrate the kernel to 1e-12 there.
        edges = np.linspace(
            -_REACH * root, top * root, max(2, math.ceil((top + _REACH) * root / step) + 1)
        )
        half = np.diff(edges) / 2
        points = ((edges[:-1] + edges[1:]) / 2)[:, None] + half[:, None] * _NODES
        points = points.reshape(-1)
        weights = (half[:, None] * _WEIGHTS).reshape(-1)
        return _Survivors(time, points, weights * self._density(points, step=step)), bound

    def _density(self, points: FloatArray, *, step: float) -> FloatArray:
        shift = (points[:, None] - self.points[None, :]) / step
        kernel = np.exp(-0.5 * shift * shift) / (step * math.sqrt(2 * math.pi))
        return np.asarray(kernel @ self.mass, dtype=np.float64)


@dataclass(frozen=True)
class HaltClaim:
    """What a listed guardrail claims of the error budget."""

    metric: str
    halts: bool = True


def share_alpha(
    alpha: Fraction | float,
    guardrails: Mapping[str, HaltClaim],
    *,
    waves: int,
    has_surveillance: bool,
    weights: Mapping[str, Fraction | float] = METRIC_SHARES,
) -> dict[str, Fraction]:
    """Each guardrail's level in one wave; their sum over guardrails and waves is the budget.

    Parameters
    ----------
    alpha : Fraction or float
        Of the whole rollout.
    guardrails : mapping of name to HaltClaim
        All that the policy lists. One that does not halt gets 0.
    waves : int
        Planned waves, at least 1. A recorded case has one.
    has_surveillance : bool
        Whether a fifth is kept for the time after the windows. Recorded cases: no.
    weights : mapping of metric to share
        Renormalised over the metrics that are listed and halt; guardrails of one
        metric divide its share equally.

    Raises
    ------
    NoGuardrails
        If none is listed.
    AnalysisError
        If a metric has no weight, or the halting ones have none together.

    Examples
    --------
    >>> claims = {"hard": HaltClaim("faults"), "soft": HaltClaim("faults"),
    ...           "speed": HaltClaim("throughput"), "lost": HaltClaim("lost_work", halts=False)}
    >>> shares = share_alpha(0.05, claims, waves=1, has_surveillance=False)
    >>> {name: str(share) for name, share in shares.items()}
    {'hard': '3/220', 'soft': '3/220', 'speed': '1/44', 'lost': '0'}
    """
    if not guardrails:
        raise NoGuardrails("an error budget needs at least one guardrail")
    if waves < 1:
        raise AnalysisError(f"a rollout has at least one wave: got {waves}")
    unknown = sorted({claim.metric for claim in guardrails.values()} - set(weights))
    if unknown:
        raise AnalysisError(f"no weight for {', '.join(unknown)}; known are {', '.join(weights)}")
    total = _level(alpha, name="alpha")
    budget = (total * WAVES_SHARE if has_surveillance else total) / waves
    halting = [claim.metric for claim in guardrails.values() if claim.halts]
    share = {metric: exact(weights[metric]) for metric in set(halting)}
    whole = sum(share.values(), Fraction(0))
    if halting and (whole <= 0 or min(share.values()) < 0):
        raise AnalysisError(f"weights of halting guardrails are not negative: got {share}")
    return {
        name: budget * share[claim.metric] / whole / halting.count(claim.metric)
        if claim.halts
        else Fraction(0)
        for name, claim in guardrails.items()
    }


def surveillance_alpha(alpha: Fraction | float) -> Fraction:
    """What a rollout keeps for the surveillance after its windows.

    Examples
    --------
    >>> surveillance_alpha(0.05)
    Fraction(1, 100)
    """
    return _level(alpha, name="alpha") * (1 - WAVES_SHARE)
