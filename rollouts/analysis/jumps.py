"""Do both arms do worse than in their own period before, and do machines far from every canary?

A randomised comparison is blind to what hits both arms alike: a heat wave, and canaries that drag
their neighbours. Only units that share nothing with a canary can tell the two apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from rollouts.analysis.errors import InvalidSample
from rollouts.analysis.exposure import SECONDS_PER_DAY
from rollouts.analysis.hazards import jump_z
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray
from rollouts.analysis.scores import UNITS_PER_RATIO
from rollouts.analysis.throughput import HIGHEST_RELATIVE

JUMP_Z = 3.0902
"""One-sided p of .001."""
LEAST_UNITS = 5
"""Units of an arm below which its change is not judged."""
LEAST_FAR_UNITS = 10
"""Units far from every canary below which nothing is called the environment's doing."""


@dataclass(frozen=True)
class Jump:
    """Both arms do worse than before, at one look.

    Parameters
    ----------
    canary, control : float
        z of each arm against its own period before, above `JUMP_Z`.
    far : float or None
        z of the units that share no job, leaf or domain with a canary; None if it cannot be told.
    far_units : int or None
        How many of them there are; None where nobody knows who shares what.
    """

    canary: float
    control: float
    far: float | None
    far_units: int | None

    @property
    def is_environment(self) -> bool:
        enough = self.far_units is not None and self.far_units >= LEAST_FAR_UNITS
        return enough and self.far is not None and self.far > JUMP_Z

    @property
    def words(self) -> str:
        """What the far units say.

        Examples
        --------
        >>> Jump(4.0, 5.0, far=None, far_units=3).words
        'only 3 units share no job, leaf or domain with a canary, too few to tell'
        """
        if self.far_units is None:
            return "who shares a job, leaf or domain with a canary is not known"
        if self.far_units < LEAST_FAR_UNITS:
            return (
                f"only {self.far_units} units share no job, leaf or domain with a canary, "
                "too few to tell"
            )
        does = "do so too" if self.is_environment else "do not"
        return f"{self.far_units} units that share no job, leaf or domain with a canary {does}"


def jump_details(jump: Jump | None) -> dict[str, object]:
    """What an evaluation keeps of a jump, in JSON (an infinite z is None); empty without one."""
    if jump is None:
        return {}
    return {
        "jump": {
            "canary_z": _finite(jump.canary),
            "control_z": _finite(jump.control),
            "far_z": _finite(jump.far),
            "far_units": jump.far_units,
            "is_environment": jump.is_environment,
        }
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def jump_of(
    z_of: Callable[[BoolArray], float | None],
    *,
    present: BoolArray,
    is_canary: BoolArray,
    is_near: BoolArray | None,
) -> Jump | None:
    """The jump of both arms, or None if an arm does no worse or cannot be compared.

    Parameters
    ----------
    z_of : function of a (units,) mask
        z of "these units do worse than in their own period before"; None if unknown.
    present : (units,) bool array
        Units that count at this look.
    is_canary : (units,) bool array
    is_near : (units,) bool array or None
        Units that share a job, leaf or domain with a canary; None if that is not known.

    Examples
    --------
    >>> everyone = np.ones(24, bool)
    >>> jump = jump_of(lambda units: 4.0, present=everyone, is_canary=np.arange(24) < 4,
    ...                is_near=np.arange(24) < 8)
    >>> jump.is_environment, jump.far_units
    (True, 16)
    """
    canary, control = z_of(present & is_canary), z_of(present & ~is_canary)
    if canary is None or control is None or min(canary, control) <= JUMP_Z:
        return None
    if is_near is None:
        return Jump(canary, control, far=None, far_units=None)
    far = present & ~is_near & ~is_canary
    return Jump(canary, control, far=z_of(far), far_units=int(far.sum()))


@dataclass(frozen=True, eq=False)
class PaceChange:
    """Each unit's throughput since the clock's start over that of before, as whole billionths.

    -1 where either is unknown. Integers, so that a stored look gives the same z again.
    """

    pace: IntArray

    @classmethod
    def of(cls, ratio: FloatArray) -> "PaceChange":
        known = ~np.isnan(ratio)
        whole = np.rint(UNITS_PER_RATIO * np.minimum(ratio[known], HIGHEST_RELATIVE))
        pace = np.full(ratio.shape, -1, dtype=np.int64)
        pace[known] = whole.astype(np.int64)
        return cls(pace)

    def columns(self) -> dict[str, IntArray]:
        """What has to be kept, by name."""
        return {"pace": self.pace}

    def jump(
        self, *, tolerance: float, is_canary: BoolArray, is_near: BoolArray | None
    ) -> Jump | None:
        """Did both arms get slower, beyond the tolerance, than each was before?

        Examples
        --------
        >>> change = PaceChange.of(0.9 + 0.001 * np.arange(30))
        >>> change.jump(tolerance=0.01, is_canary=np.arange(30) < 10, is_near=None).words
        'who shares a job, leaf or domain with a canary is not known'
        """
        known = self.pace >= 0
        ratio = np.where(known, self.pace / UNITS_PER_RATIO, np.nan)
        return jump_of(
            lambda units: drop_z(ratio[units], tolerance=tolerance),
            present=known,
            is_canary=is_canary,
            is_near=is_near,
        )


@dataclass(frozen=True, eq=False)
class FaultChange:
    """Episodes and whole seconds in service per unit, since the clock's start and before.

    -1 episodes: the unit does not count at this look.
    """

    episodes: IntArray
    seconds: IntArray
    episodes_before: IntArray
    seconds_before: IntArray

    def columns(self) -> dict[str, IntArray]:
        """What has to be kept, by name."""
        return {
            "episodes": self.episodes,
            "seconds": self.seconds,
            "episodes-before": self.episodes_before,
            "seconds-before": self.seconds_before,
        }

    def jump(self, *, is_canary: BoolArray, is_near: BoolArray | None) -> Jump | None:
        """Do both arms fail more often than each did before?

        Examples
        --------
        >>> day = np.full(30, 86_400)
        >>> change = FaultChange(4 + np.arange(30) % 3, day, 1 + np.arange(30) % 2, day)
        >>> change.jump(is_canary=np.arange(30) < 10, is_near=np.arange(30) < 15).is_environment
        True
        """
        days, before = self.seconds / SECONDS_PER_DAY, self.seconds_before / SECONDS_PER_DAY
        return jump_of(
            lambda units: jump_z(
                self.episodes[units],
                days[units],
                episodes_before=self.episodes_before[units],
                days_before=before[units],
            ),
            present=self.episodes >= 0,
            is_canary=is_canary,
            is_near=is_near,
        )


def drop_z(ratio: FloatArray, *, tolerance: float) -> float | None:
    """z of "these units got slower by more than `tolerance`", each against its own past.

    Parameters
    ----------
    ratio : (units,) array
        Throughput since the clock's start over that of the period before, each unit's own, mean
        over its workloads; NaN where either is unknown. Above 1.2 counts as 1.2.
    tolerance : float
        Relative drop that is no drop, in [0, 1).

    Returns
    -------
    float or None
        Normal score of Student's t with units as clusters; infinite if all units changed alike
        and by more than the tolerance. None with fewer than five known units, or if all changed
        alike and within it.

    Raises
    ------
    InvalidSample
        If a ratio is negative or infinite.

    Examples
    --------
    >>> ratio = np.array([0.93, 0.95, 0.94, 0.96, 0.92])
    >>> round(drop_z(ratio, tolerance=0.01), 2)
    3.07
    >>> drop_z(np.full(3, 0.9), tolerance=0.01) is None
    True
    """
    known = ratio[~np.isnan(ratio)]
    if np.isinf(known).any() or (known < 0).any():
        raise InvalidSample("a ratio of throughputs is finite and not negative")
    if known.size < LEAST_UNITS:
        return None
    known = np.minimum(known, HIGHEST_RELATIVE)
    excess = 1 - tolerance - float(known.mean())
    error = float(known.std(ddof=1)) / math.sqrt(known.size)
    if error <= 1e-12 * (1 - tolerance):
        return math.inf if excess > 1e-9 else None
    return float(norm.isf(student.sf(excess / error, known.size - 1)))
