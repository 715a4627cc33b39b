"""After the windows: first episodes of treated machines against those not yet treated.

One e-process per fault family, from the end of the first wave's window to the release. Units
change sides as a rollout goes on: untreated ones are control until their wave starts, count for
nothing while they are installed and judged, and are canaries once their window is over.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from rollouts.analysis.errors import InvalidSample, UnitMismatch
from rollouts.analysis.samples import FloatArray, IntArray
from rollouts.analysis.sequential import FIRST_EPISODE_GRID


@dataclass(frozen=True, eq=False)
class Watched:
    """Units in order of name.

    Parameters
    ----------
    stratum : (units,) int array
    leaves_seconds : (units,) array
        When the unit's own wave started, and it was no control any more; inf: untreated.
    joins_seconds : (units,) array
        When its window was over, and it counts as canary; inf: not yet.
    """

    stratum: IntArray
    leaves_seconds: FloatArray
    joins_seconds: FloatArray

    def __post_init__(self) -> None:
        shapes = {self.stratum.shape, self.leaves_seconds.shape, self.joins_seconds.shape}
        if len(shapes) > 1:
            raise UnitMismatch(f"one stratum and two times per unit: got {sorted(shapes)}")
        if (self.joins_seconds < self.leaves_seconds).any():
            raise InvalidSample("a unit joins the canaries only after it has left the controls")


@dataclass(frozen=True, order=True)
class Evidence:
    """An e-value as `mantissa * 2**exponent`, the mantissa in [.5, 1); larger ones compare larger.

    Only sums, products and quotients of doubles made it, each rounded as IEEE 754 prescribes, so
    it has the same bits on every machine and under every version of every library.

    Examples
    --------
    >>> Evidence(exponent=8, mantissa=0.5).reaches(Fraction(100))
    True
    """

    exponent: int
    mantissa: float

    @property
    def log(self) -> float:
        """Natural logarithm, for people."""
        return math.log(self.mantissa) + self.exponent * math.log(2)

    def reaches(self, needed: Fraction) -> bool:
        """Whether it is at least `needed`, exactly."""
        return Fraction(self.mantissa) * Fraction(2) ** self.exponent >= needed


NO_EVIDENCE = Evidence(exponent=1, mantissa=0.5)
"""1: what it is before any episode."""


@dataclass(frozen=True, eq=False)
class Watch:
    """Evidence after each counted first episode, and how many of them canaries had."""

    path: tuple[Evidence, ...]
    canary_episodes: int
    episodes: int

    @property
    def highest(self) -> Evidence:
        """The largest evidence so far, at least 1."""
        return max((NO_EVIDENCE, *self.path))

    @property
    def latest(self) -> Evidence:
        """The evidence as it stands."""
        return self.path[-1] if self.path else NO_EVIDENCE


def watch(
    watched: Watched,
    first_seconds: FloatArray,
    *,
    tolerance: float = 1.0,
    grid: tuple[float, ...] = FIRST_EPISODE_GRID,
) -> Watch:
    """Evidence that treated units fail more than `tolerance` times as often.

    Parameters
    ----------
    watched : Watched
    first_seconds : (units,) array
        Each unit's first episode since the surveillance began; inf if it had none.
    tolerance : float
    grid : tuple of float
        Rate ratios over the tolerated one, each above 1, that are mixed with equal weight. One that
        is tolerated would turn canaries that fail less into evidence that they fail more.

    Returns
    -------
    Watch
        E >= 1/alpha at any time rejects at level alpha.

    Notes
    -----
    A unit counts once, whatever side it is on, and an episode that counts for neither side still
    takes it out. Given which units have failed so far and where they stood in the drawn order,
    the next to fail stands at any of the remaining places with equal chance; so among those at
    risk it is a canary with their share, and E has mean 1 however unequal the units are [1]_.
    Times at which waves start and end are taken as given.

    References
    ----------
    .. [1] J. ter Schure, M. F. Perez-Ortiz, A. Ly, P. Grunwald, New England
       J. Stat. Data Sci. 2 (2024) 190-214.

    Examples
    --------
    >>> watched = Watched(np.zeros(20, int), np.where(np.arange(20) < 4, 0.0, np.inf),
    ...                   np.where(np.arange(20) < 4, 10.0, np.inf))
    >>> first = np.where(np.arange(20) == 2, 15.0, np.inf)
    >>> round(math.exp(watch(watched, first).highest.log), 4)
    2.1188
    """
    if first_seconds.shape != watched.stratum.shape:
        raise UnitMismatch(
            f"one first episode per unit: got {first_seconds.shape} for {watched.stratum.shape}"
        )
    if np.isnan(first_seconds).any():
        raise InvalidSample("a first episode has a time, or infinity for none: got NaN")
    if min(grid) <= 1:
        raise InvalidSample(f"ratios that are mixed lie above the tolerated one: got {grid}")
    ratios = _Ratios(tuple(ratio * tolerance for ratio in grid), tolerance)
    sides = _Sides.of(watched)
    path, canaries = [], 0
    order = np.argsort(first_seconds, kind="stable")  # ties by name, never by arm
    for unit in order[np.isfinite(first_seconds[order])].tolist():
        now = float(first_seconds[unit])
        canary, control = sides.at_risk(unit, now)
        is_canary, is_control = sides.take_out(unit, now)
        if not (is_canary or is_control):
            continue
        ratios.see(is_canary, canary=canary, control=control)
        canaries += int(is_canary)
        path.append(merged(ratios.evidence))
    return Watch(tuple(path), canaries, len(path))


def merged(values: Sequence[Evidence]) -> Evidence:
    """The mean of several e-values against one null hypothesis, which is an e-value again.

    A product of values that come from the same data is none. Fault families are not merged: who
    failed in one tells on which side the first of another stands, so that the mean of their
    evidence is no evidence at a time that was chosen; each is held against its part of the level.

    Examples
    --------
    >>> merged([Evidence(exponent=3, mantissa=0.5), NO_EVIDENCE])  # 4 and 1: 2.5
    Evidence(exponent=2, mantissa=0.625)
    """
    largest = max(one.exponent for one in values)
    total = math.fsum(math.ldexp(one.mantissa, one.exponent - largest) for one in values)
    mantissa, shift = math.frexp(total / len(values))
    return Evidence(exponent=largest + shift, mantissa=mantissa)


class _Ratios:
    """Likelihood ratios of each rate ratio of a grid over the tolerated one, scaled."""

    def __init__(self, grid: tuple[float, ...], tolerance: float) -> None:
        self._grid, self._tolerance = grid, tolerance
        self.evidence = [NO_EVIDENCE] * len(grid)

    def see(self, is_canary: bool, *, canary: int, control: int) -> None:
        """Multiply by theta^y / (theta pi + 1 - pi), over the same of the tolerated ratio."""
        if not (canary and control):
            return  # with one side at risk alone, who fails is no news
        null = (self._tolerance if is_canary else 1.0) / (self._tolerance * canary + control)
        found = []
        for theta, before in zip(self._grid, self.evidence, strict=True):
            factor = (theta if is_canary else 1.0) / (theta * canary + control) / null
            mantissa, shift = math.frexp(before.mantissa * factor)
            found.append(Evidence(exponent=before.exponent + shift, mantissa=mantissa))
        self.evidence = found


@dataclass(frozen=True, eq=False)
class _Sides:
    """How many units of each stratum and wave have not failed yet; waves share their times."""

    stratum: IntArray
    wave: IntArray
    leaves: FloatArray
    joins: FloatArray
    remaining: IntArray

    @classmethod
    def of(cls, watched: Watched) -> "_Sides":
        times = np.stack([watched.leaves_seconds, watched.joins_seconds], axis=1)
        waves, wave = np.unique(times, axis=0, return_inverse=True)
        _, stratum = np.unique(watched.stratum, return_inverse=True)
        remaining = np.zeros((int(stratum.max(initial=-1)) + 1, waves.shape[0]), dtype=np.int64)
        np.add.at(remaining, (stratum, wave.reshape(-1)), 1)
        return cls(stratum, wave.reshape(-1), waves[:, 0], waves[:, 1], remaining)

    def at_risk(self, unit: int, now: float) -> tuple[int, int]:
        """Canaries and controls of the unit's stratum."""
        here = self.remaining[self.stratum[unit]]
        return int(here[self.joins <= now].sum()), int(here[self.leaves > now].sum())

    def take_out(self, unit: int, now: float) -> tuple[bool, bool]:
        """Whether the unit counted as canary or as control; it counts no more."""
        wave = self.wave[unit]
        self.remaining[self.stratum[unit], wave] -= 1
        return bool(self.joins[wave] <= now), bool(self.leaves[wave] > now)


def in_words(log_e: float) -> str:
    """An e-value for people, however large it is.

    Examples
    --------
    >>> in_words(math.log(1.5)), in_words(math.log(250)), in_words(1000.0)
    ('1.5', '250', '10^434')
    """
    if log_e < math.log(10):
        return f"{math.exp(log_e):.1f}"
    return f"{math.exp(log_e):.0f}" if log_e < math.log(1e6) else f"10^{log_e / math.log(10):.0f}"
