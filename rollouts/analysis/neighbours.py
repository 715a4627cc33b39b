"""Who shares a job, a leaf or a domain with whom: purity of jobs, and who is near a canary.

Statistics does not undo interference. What can be done is to know where it may be: a synchronous
job goes at the pace of its slowest machine, a power feed or a leaf carries trouble to its
neighbours.
"""

import numpy as np

from rollouts.analysis.errors import InvalidSample, UnitMismatch
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray


def near_canaries(machine: IntArray, group: IntArray, *, is_canary: BoolArray) -> BoolArray:
    """Which machines are in a group with a canary; canaries are near themselves.

    Parameters
    ----------
    machine, group : (memberships,) int arrays
        A machine may be in many groups: its jobs of the window, its leaf, its rack. Codes of
        groups are distinct over all kinds and not negative.
    is_canary : (machines,) bool array
        Whoever runs the new bundle.

    Returns
    -------
    (machines,) bool array

    Raises
    ------
    UnitMismatch
        If the memberships are not pairs, or name a machine that is not there.

    Examples
    --------
    >>> near_canaries(np.array([0, 1, 1, 2, 3]), np.array([0, 0, 1, 1, 2]),
    ...               is_canary=np.array([True, False, False, False])).tolist()
    [True, True, False, False]
    """
    _require_pairs(machine, group, machines=is_canary.size)
    near = is_canary.copy()
    if machine.size:
        has_canary = np.zeros(int(group.max()) + 1, dtype=np.bool_)
        has_canary[group[is_canary[machine]]] = True
        near[machine[has_canary[group]]] = True
    return near


def exposure_purity(
    job: IntArray, seconds: FloatArray, *, is_canary: BoolArray, is_mixed: BoolArray
) -> float | None:
    """Share of exposure in jobs whose machines are all in one arm; of the arm with less of it.

    Parameters
    ----------
    job : (rows,) int array
        Of each piece of exposure; -1: in no job, and so alone.
    seconds : (rows,) array
        In-service seconds of the piece, not negative.
    is_canary : (rows,) bool array
        The arm of the piece's machine.
    is_mixed : (jobs,) bool array
        Jobs that are mixed for other reasons: a machine of neither arm takes part.

    Returns
    -------
    float or None
        In [0, 1]. None if no piece is in any job, or an arm has no exposure: nothing is known.

    Raises
    ------
    UnitMismatch, InvalidSample
        If the columns differ in length, or a duration is negative or not finite.

    Notes
    -----
    The lesser of the two arms, since a few canaries that all sit in mixed jobs would vanish among
    many controls that do not.

    Examples
    --------
    Two canaries and two controls; the second canary shares job 1 with the first control.

    >>> exposure_purity(np.array([0, 1, 1, -1]), np.array([60.0, 60.0, 20.0, 60.0]),
    ...                 is_canary=np.array([True, True, False, False]),
    ...                 is_mixed=np.zeros(2, bool))
    0.5
    """
    shapes = {job.shape, seconds.shape, is_canary.shape}
    if len(shapes) > 1:
        raise UnitMismatch(f"one job, duration and arm per piece: got {sorted(shapes)}")
    if not (np.isfinite(seconds) & (seconds >= 0)).all():
        raise InvalidSample("exposure is finite and not negative")
    in_job = job >= 0
    if not in_job.any():
        return None
    mixed = is_mixed.copy()
    for_canary, for_control = (
        np.bincount(job[in_job & (is_canary == arm)], minlength=mixed.size) > 0
        for arm in (True, False)
    )
    mixed |= for_canary & for_control
    pure = ~in_job
    pure[in_job] = ~mixed[job[in_job]]
    shares = []
    for arm in (True, False):
        mine = seconds[is_canary == arm]
        if mine.sum() <= 0:
            return None
        shares.append(float(mine[pure[is_canary == arm]].sum() / mine.sum()))
    return min(shares)


def _require_pairs(machine: IntArray, group: IntArray, *, machines: int) -> None:
    if machine.shape != group.shape or machine.ndim != 1:
        raise UnitMismatch(
            f"one group per membership: got {machine.shape} machines and {group.shape} groups"
        )
    if machine.size and (machine.min() < 0 or machine.max() >= machines or group.min() < 0):
        raise UnitMismatch(
            f"memberships index machines 0 to {machines - 1} and groups from 0: got machines "
            f"{machine.min()} to {machine.max()}, groups from {group.min()}"
        )
