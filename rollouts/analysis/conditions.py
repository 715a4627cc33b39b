"""Workload conditions: did enough machines of both arms run what the plan says they must run.

Who ran what is told without regard to the arms; the arms enter with the counting. Harm is shown and
halts whatever ran; but a wave whose machines ran something else has not been tested, and does not
widen.
"""

from math import ceil

import numpy as np

from rollouts.analysis.exposure import clock_start
from rollouts.analysis.policy import WorkloadCondition
from rollouts.analysis.samples import BoolArray, Samples
from rollouts.analysis.verdicts import ConditionState

SECONDS_PER_HOUR = 3_600.0


def condition_at(
    condition: WorkloadCondition, samples: Samples, *, cutoff: float
) -> ConditionState:
    """Tell whether enough canaries and enough controls ran the named workloads by the cutoff.

    Parameters
    ----------
    condition : WorkloadCondition
    samples : Samples
        Reports that begin before their machine's clock started do not count; silence is not work.
    cutoff : float
        Seconds since the samples' origin.

    Returns
    -------
    ConditionState
        Not met where one arm falls short, with the words of the first that does.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from rollouts.analysis.samples import Machines, ObservationRows, Units
    >>> names = ("a", "b", "c", "d")
    >>> samples = Samples(
    ...     datetime(2026, 1, 1, tzinfo=UTC), 7200.0, 86_400.0,
    ...     Units(names, np.array([True, True, False, False]), np.zeros(4, int), np.zeros(4)),
    ...     Machines(names, np.arange(4), np.zeros(4), np.full(4, np.inf)),
    ...     observations=ObservationRows(
    ...         np.array([0, 2, 3]), np.zeros(3), np.full(3, 3600.0), np.full(3, 3600.0),
    ...         np.ones(3), np.zeros(3, int), ("pretraining",)))
    >>> condition = WorkloadCondition(("pretraining",), least_canaries=2, least_controls=2)
    >>> condition_at(condition, samples, cutoff=7200.0).words
    'workload condition not met: 1 of 2 canaries ran pretraining'
    """
    has_run = _has_run(condition, samples, cutoff=cutoff)
    is_canary = samples.units.is_canary[samples.machines.unit]
    told = []
    for arm, name, least in (
        (is_canary, "canaries", condition.least_canaries),
        (~is_canary, "controls", condition.least_controls),
    ):
        size, ran = int(arm.sum()), int((arm & has_run).sum())
        needed = _needed(least, condition.least_share, size=size)
        told.append((ran >= needed, f"{ran} of {needed} {name} ran {condition.kinds}"))
    short = [words for is_met, words in told if not is_met]
    words = " and ".join(short or [words for _, words in told])
    verb = "not met" if short else "met"
    return ConditionState(f"workload condition {verb}: {words}", is_met=not short)


def _needed(least: int, share: float, *, size: int) -> int:
    """Return how many of an arm must have run it; all of an arm that is smaller than that."""
    return min(max(least, ceil(round(share * size, 9))), size)


def _has_run(condition: WorkloadCondition, samples: Samples, *, cutoff: float) -> BoolArray:
    """Return which machines have served long enough on one of the workloads since their clock."""
    machines = samples.machines.unit.size
    rows = samples.observations
    if rows is None:
        return np.zeros(machines, dtype=np.bool_)
    is_named = np.array([name in condition.workloads for name in rows.workloads], dtype=np.bool_)
    counts = is_named[rows.workload] if is_named.size else np.zeros(0, dtype=np.bool_)
    counts &= (rows.end_seconds <= cutoff) & (
        rows.start_seconds >= clock_start(samples)[rows.machine]
    )
    seconds = np.bincount(
        rows.machine[counts], weights=rows.in_service_seconds[counts], minlength=machines
    )
    return np.asarray(
        (seconds > 0) & (seconds >= condition.least_hours * SECONDS_PER_HOUR - 1e-6), dtype=np.bool_
    )
