"""Who is at risk, and for how long, at every look of a comparison.

Evidence of a unit begins at its block's clock start, or when its first machine enrols, if that
is later. Where machines report observations, a machine counts as in service up to its last sign
of life only, a report or a fault: silence is not service. Nothing here knows the arms.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rollouts.analysis.errors import InvalidLevel
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray, Samples

SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True, eq=False)
class Exposure:
    """Per unit (rows) and look (columns), cumulative since the clock's start.

    Parameters
    ----------
    as_of : (looks,) array
        Cutoffs in seconds since the samples' origin, rising.
    is_present : (units, looks) bool array
        Enrolled by the look, with the clock running, and ever at risk.
    seconds : (units, looks) array
        In service and alive, summed over the unit's machines.
    is_at_risk : (machines, looks) bool array
        Has been in service by the look.
    """

    as_of: FloatArray
    is_present: BoolArray
    seconds: FloatArray
    is_at_risk: BoolArray

    @cached_property
    def days(self) -> FloatArray:
        return self.seconds / SECONDS_PER_DAY


def service_spans(samples: Samples) -> tuple[IntArray, FloatArray, FloatArray]:
    """Machine, start and end of every time in service; without a table, enrolled to left."""
    if samples.service is not None:
        table = samples.service
        return table.machine, table.start_seconds, table.end_seconds
    machines = samples.machines
    everyone = np.arange(machines.unit.size, dtype=np.int64)
    return everyone, machines.enrolled_seconds, machines.left_seconds


def clock_start(samples: Samples) -> FloatArray:
    """When the evidence of each machine begins: its block's clock start."""
    return samples.units.clock_start_seconds[samples.machines.unit]


def entry_seconds(samples: Samples) -> FloatArray:
    """When each unit enters: the clock runs, a machine is enrolled, and was at risk once.

    Infinite if it never is. A recording knows what is still to come; a look must not.
    """
    units, unit = samples.units, samples.machines.unit
    entry = np.full(units.is_canary.size, np.inf)
    np.minimum.at(entry, unit, samples.machines.enrolled_seconds)
    starts = clock_start(samples)
    at_risk = np.full(entry.size, np.inf)
    machine, start, end = service_spans(samples)
    low = np.maximum(start, starts[machine])
    counts = end > low
    np.minimum.at(at_risk, unit[machine[counts]], low[counts])
    if samples.faults is not None:  # a fault outside the service intervals counts, unexposed
        faults = samples.faults
        late = faults.time_seconds >= starts[faults.machine]
        np.minimum.at(at_risk, unit[faults.machine[late]], faults.time_seconds[late])
    known: FloatArray = np.maximum.reduce([entry, units.clock_start_seconds, at_risk])
    return known


def exposure_at(samples: Samples, as_of: FloatArray) -> Exposure:
    """In-service seconds of every unit since its clock's start, at each cutoff.

    Parameters
    ----------
    samples : Samples
    as_of : (looks,) array
        Cutoffs in seconds since the samples' origin, strictly rising.

    Returns
    -------
    Exposure
        In seconds, per unit and look. Where machines report, service after a machine's last sign of
        life does not count.

    Raises
    ------
    InvalidLevel
        If there is no cutoff, or they do not rise.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from rollouts.analysis.samples import Machines, Units
    >>> units = Units(("a", "b"), np.array([True, False]), np.zeros(2, int), np.array([0.0, 60.0]))
    >>> machines = Machines(("a", "b"), np.arange(2), np.zeros(2), np.array([50.0, np.inf]))
    >>> samples = Samples(datetime(2026, 1, 1, tzinfo=UTC), 100.0, 100.0, units, machines)
    >>> exposure_at(samples, np.array([40.0, 100.0])).seconds.tolist()
    [[40.0, 50.0], [0.0, 40.0]]
    """
    if as_of.ndim != 1 or not as_of.size or (np.diff(as_of) <= 0).any():
        raise InvalidLevel(f"looks need rising cutoffs: got {as_of.tolist()}")
    machine, start, end = service_spans(samples)
    low = np.maximum(start, clock_start(samples)[machine])
    alive = _last_sign_of_life(samples, as_of)
    seconds = np.empty((samples.units.is_canary.size, as_of.size))
    at_risk = np.zeros((samples.machines.unit.size, as_of.size), dtype=np.bool_)
    for k, cutoff in enumerate(as_of):
        limit = np.minimum(end, cutoff if alive is None else alive[machine, k])
        span = np.maximum(limit - low, 0.0)
        seconds[:, k] = np.bincount(
            samples.machines.unit[machine], weights=span, minlength=seconds.shape[0]
        )
        at_risk[machine[span > 0], k] = True
    return Exposure(
        as_of=as_of,
        is_present=entry_seconds(samples)[:, None] <= as_of,
        seconds=seconds,
        is_at_risk=at_risk,
    )


def _last_sign_of_life(samples: Samples, as_of: FloatArray) -> FloatArray | None:
    """Per machine and look, the latest report or fault by then; None without observations."""
    if samples.observations is None:
        return None
    rows = samples.observations
    last = latest(rows.machine, rows.end_seconds, size=samples.machines.unit.size, as_of=as_of)
    if samples.faults is not None:
        faults = samples.faults
        last = np.maximum(
            last, latest(faults.machine, faults.time_seconds, size=last.shape[0], as_of=as_of)
        )
    return last


def latest(index: IntArray, times: FloatArray, *, size: int, as_of: FloatArray) -> FloatArray:
    """Per index and look, the largest time not after the cutoff; -inf where there is none.

    Examples
    --------
    >>> latest(np.array([0, 0, 1]), np.array([1., 5., 3.]), size=2, as_of=np.array([2., 6.]))
    array([[  1.,   5.],
           [-inf,   3.]])
    """
    column = np.searchsorted(as_of, times, side="left")  # first look that knows the row
    known = column < as_of.size
    last = np.full((size, as_of.size), -np.inf)
    np.maximum.at(last, (index[known], column[known]), times[known])
    return np.maximum.accumulate(last, axis=1)


def is_in_service(samples: Samples, *, since: float, until: float, at_least: float) -> BoolArray:
    """Units with a machine in service for at least so many seconds of (since, until]."""
    machine, start, end = service_spans(samples)
    low = np.maximum(np.maximum(start, clock_start(samples)[machine]), since)
    span = np.maximum(np.minimum(end, until) - low, 0.0)
    per_machine = np.bincount(machine, weights=span, minlength=samples.machines.unit.size)
    is_due = np.zeros(samples.units.is_canary.size, dtype=np.bool_)
    is_due[samples.machines.unit[per_machine >= max(at_least, 1e-9)]] = True
    return is_due
