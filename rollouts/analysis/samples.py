"""Validated inputs of one comparison: arrays with units in their names, label-blind order.

Time is float64 seconds since `Samples.origin`, the start of the comparison's window; what lies
before has negative time (the period before). Machines and units are addressed by index.
`None` for a table means that this kind of report is not collected at all; an empty table means
that it is collected and nothing came.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Units:
    """The randomisation units, ordered by name so that the order knows nothing of the arms.

    `stratum` codes the cells inside which re-assignments shuffle (stratum x install block).
    `clock_start_seconds` is when the unit's evidence begins, burn-in included: one instant per
    block, the same for both arms. `covariates` maps a metric to the unit's value in the period
    before (NaN where unknown).
    """

    name: tuple[str, ...]
    is_canary: BoolArray
    stratum: IntArray
    clock_start_seconds: FloatArray
    covariates: Mapping[str, FloatArray] = field(default_factory=dict)


@dataclass(frozen=True)
class Machines:
    """The machines behind the units; at risk from `enrolled` to `left` (inf = still there)."""

    name: tuple[str, ...]
    unit: IntArray
    enrolled_seconds: FloatArray
    left_seconds: FloatArray


@dataclass(frozen=True)
class ServiceIntervals:
    """Half-open intervals [start, end) in which a machine was in service."""

    machine: IntArray
    start_seconds: FloatArray
    end_seconds: FloatArray


@dataclass(frozen=True)
class FaultEvents:
    """Raw fault events, before episodes; `signature` indexes `signatures`."""

    machine: IntArray
    time_seconds: FloatArray
    signature: IntArray
    signatures: tuple[str, ...]
    severity: tuple[str, ...]


@dataclass(frozen=True)
class ObservationRows:
    """Interval reports; `throughput` is NaN where the machine reported none."""

    machine: IntArray
    start_seconds: FloatArray
    end_seconds: FloatArray
    in_service_seconds: FloatArray
    throughput: FloatArray
    workload: IntArray
    workloads: tuple[str, ...]


@dataclass(frozen=True)
class RecoveryRows:
    """Interruptions; `recovered_seconds` is NaN while open, `repeated_seconds` NaN if unknown."""

    machine: IntArray
    time_seconds: FloatArray
    recovered_seconds: FloatArray
    recovery_seconds: FloatArray
    repeated_seconds: FloatArray
    path: IntArray
    paths: tuple[str, ...]


@dataclass(frozen=True)
class AttemptRows:
    """Finished install attempts on canaries in order of time; `outcome` indexes `outcomes`.

    Outcomes are `succeeded` or a failure class; `never_returned` counts as a brick only as
    `bricked`, once the bundle's recovery recipe failed.
    """

    machine: IntArray
    time_seconds: FloatArray
    outcome: IntArray
    outcomes: tuple[str, ...]


@dataclass(frozen=True)
class Samples:
    """Everything that one comparison knows up to one cutoff.

    `window_seconds` is the planned length of the window; `interval_seconds` the planned length
    of one telemetry interval (None: unknown, recorded cases). `known_signatures` is the
    fleet's catalogue of signatures seen before the window (None: no such catalogue).
    `service` None means: in service from enrolled to left.
    """

    origin: datetime
    as_of_seconds: float
    window_seconds: float
    units: Units
    machines: Machines
    service: ServiceIntervals | None = None
    faults: FaultEvents | None = None
    observations: ObservationRows | None = None
    recoveries: RecoveryRows | None = None
    attempts: AttemptRows | None = None
    interval_seconds: float | None = None
    known_signatures: frozenset[str] | None = None
    install_baseline: float | None = None
