"""Evidence of several waves put together: for people to look at, and for telemetry's proof."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import norm

from rollouts.analysis.errors import InvalidSample, UnitMismatch
from rollouts.analysis.samples import FloatArray, IntArray


def harm_z(sums: FloatArray | IntArray) -> float | None:
    """The observed sum in standard deviations of the re-assigned ones; large means harm.

    Parameters
    ----------
    sums : (paths,) array
        Of the observed assignment first, then of the re-assignments.

    Returns
    -------
    float or None
        None where all sums are equal: the data cannot tell the assignments apart.

    Examples
    --------
    >>> round(harm_z(np.array([4, 0, 2, 2])), 3)
    1.414
    >>> harm_z(np.zeros(4)) is None
    True
    """
    values = np.asarray(sums, dtype=np.float64)
    deviation = float(values.std())
    if deviation <= 0:
        return None
    return (float(values[0]) - float(values.mean())) / deviation


def pooled_z(z: Sequence[float], *, information: Sequence[float]) -> float:
    """One z of all waves so far: `Σ ω_w z_w` with `ω_w²` the planned share of the information.

    Parameters
    ----------
    z : sequence of float
        One per judged wave.
    information : sequence of float
        As planned before the rollout began, in any unit, positive; what the waves later saw must
        not move it, or the sum would lean to whichever wave looked better.

    Returns
    -------
    float
        Standard normal under no effect (asymptotic), if the waves are taken as they come. For
        display: waves follow one another only as long as none halts.

    Raises
    ------
    UnitMismatch, InvalidSample
        If the two differ in length or are empty, or information is not positive and finite.

    Examples
    --------
    >>> round(pooled_z([1.0, 2.0], information=[1.0, 4.0]), 4)
    2.2361
    """
    if len(z) != len(information) or not z:
        raise UnitMismatch(f"one planned information per wave: got {len(z)} and {len(information)}")
    planned = np.asarray(information, dtype=np.float64)
    if not (np.isfinite(planned) & (planned > 0)).all() or not np.isfinite(z).all():
        raise InvalidSample(f"information is positive and finite: got {list(information)}")
    weight = np.sqrt(planned / planned.sum())
    return float(weight @ np.asarray(z, dtype=np.float64))


def upper_tail(z: float) -> float:
    """One-sided p of a z; for display.

    Examples
    --------
    >>> round(upper_tail(1.6449), 3)
    0.05
    """
    return float(norm.sf(z))


def pooled_difference(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Differences of several waves as one, weighted by their precision.

    Parameters
    ----------
    parts : sequence of (estimate, standard error)
        At least one; errors are positive. The errors are those under the margin, so that a wave
        without a single silent machine is not taken as infinitely precise.

    Returns
    -------
    (estimate, standard error)

    Raises
    ------
    InvalidSample
        If there is no part, or an error is not positive and finite.

    Notes
    -----
    Waves have canaries of their own but share controls, so their errors are not quite
    independent; with one canary to several controls nearly all of an error is the canaries'.

    Examples
    --------
    >>> pooled_difference([(0.02, 0.02), (0.0, 0.02)])
    (0.01, 0.01414213562373095)
    """
    if not parts or not all(math.isfinite(d) and 0 < e < math.inf for d, e in parts):
        raise InvalidSample(f"finite differences with positive errors are accepted: got {parts}")
    weight = np.array([error**-2 for _, error in parts])
    estimate = float(weight @ np.array([found for found, _ in parts])) / float(weight.sum())
    return estimate, float(weight.sum() ** -0.5)
