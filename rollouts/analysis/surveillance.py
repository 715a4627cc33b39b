"""After the windows: first episodes of treated machines against those not yet treated.

One e-process per fault family, from the end of the first wave's window to the release. Units
change sides as a rollout goes on: untreated ones are control until their wave starts, count for
nothing while they are installed and judged, and are canaries once their window is over.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

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


@dataclass(frozen=True, eq=False)
class Watch:
    """Log evidence after each counted first episode, and how many of them canaries had."""

    log_e: FloatArray
    canary_episodes: int
    episodes: int

    @property
    def highest(self) -> float:
        """The largest log evidence so far, at least 0: what it was before any episode."""
        return max(0.0, float(self.log_e.max(initial=0.0)))


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
        Rate ratios that are mixed with equal weight.

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
    >>> round(float(np.exp(watch(watched, first).log_e[0])), 4)
    2.1188
    """
    if first_seconds.shape != watched.stratum.shape:
        raise UnitMismatch(
            f"one first episode per unit: got {first_seconds.shape} for {watched.stratum.shape}"
        )
    if np.isnan(first_seconds).any():
        raise InvalidSample("a first episode has a time, or infinity for none: got NaN")
    theta = np.append(np.asarray(grid, dtype=np.float64), tolerance)
    log_e = np.zeros(theta.size)
    sides = _Sides.of(watched)
    path, canaries = [], 0
    order = np.argsort(first_seconds, kind="stable")  # ties by name, never by arm
    for unit in order[np.isfinite(first_seconds[order])].tolist():
        now = float(first_seconds[unit])
        canary, control = sides.at_risk(unit, now)
        is_canary, is_control = sides.take_out(unit, now)
        if not (is_canary or is_control):
            continue
        share = canary / (canary + control)
        log_e += np.log(theta) * is_canary - np.log(theta * share + 1 - share)
        canaries += int(is_canary)
        path.append(float(logsumexp(log_e[:-1])) - math.log(theta.size - 1) - float(log_e[-1]))
    return Watch(np.array(path, dtype=np.float64), canaries, len(path))


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
