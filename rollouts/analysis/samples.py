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

from rollouts.analysis.errors import InvalidSample, UnitMismatch

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LARGEST = 1e100
"""No figure is larger: products and sums of such stay far from what a float holds."""
LARGEST_SECONDS = 1e12
"""Some thirty thousand years: no time lies further from the origin."""


def _require_rows(table: object, *names: str) -> None:
    """Every named column is one-dimensional and as long as the first."""
    shapes = {name: np.shape(getattr(table, name)) for name in names}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise UnitMismatch(f"{type(table).__name__} needs columns of one length: got {shapes}")


def _require_codes(table: object, name: str, *, size: int) -> None:
    codes: IntArray = getattr(table, name)
    if codes.size and (codes.min() < 0 or codes.max() >= size):
        raise UnitMismatch(
            f"{type(table).__name__}.{name} must index 0 to {size - 1}: "
            f"got {int(codes.min())} to {int(codes.max())}"
        )


def _require(table: object, name: str, *, allow_nan: bool = False, at_least: float) -> None:
    """No number below `at_least` or beyond all use, and NaN only where it means `unknown`."""
    values: FloatArray = getattr(table, name)
    bad = np.isinf(values) | (values < at_least) | (np.abs(values) > LARGEST)
    if not allow_nan:
        bad |= np.isnan(values)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InvalidSample(
            f"{type(table).__name__}.{name}, row {row}: got {values[row]}, accepted are finite "
            f"numbers{'' if at_least == -np.inf else f' of at least {at_least:g}'}"
            f"{'' if np.abs(values[row]) <= LARGEST else f' up to {LARGEST:g}'}"
        )


def _require_times(table: object, *names: str, allow_inf: bool = False) -> None:
    """Times within reach of the origin; NaN was refused before, where it means nothing."""
    for name in names:
        values: FloatArray = getattr(table, name)
        bad = (np.abs(values) > LARGEST_SECONDS) & ~(np.isposinf(values) & allow_inf)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InvalidSample(
                f"{type(table).__name__}.{name}, row {row}: got {values[row]}, accepted are times "
                f"within {LARGEST_SECONDS:g} s of the origin"
            )


def _require_order(table: object, first: str, second: str) -> None:
    """`second` never lies before `first` (NaN: unknown, allowed)."""
    early, late = getattr(table, first), getattr(table, second)
    bad = late < early
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InvalidSample(
            f"{type(table).__name__}, row {row}: {second} {late[row]} lies before "
            f"{first} {early[row]}"
        )


@dataclass(frozen=True)
class Units:
    """The randomisation units, ordered by name so that the order knows nothing of the arms.

    `stratum` codes the cells inside which re-assignments shuffle (stratum x install block).
    `clock_start_seconds` is when the unit's evidence begins, burn-in included: one instant per
    block, the same for both arms (inf: it has not begun). `covariates` maps a metric to the
    unit's value in the period before (NaN where unknown). `is_near_canary` says which units
    share a job, leaf or domain with a canary (None: not known). `placement` names what the
    assignment drew: `machine`, or the attribute whose values are the units.
    """

    name: tuple[str, ...]
    is_canary: BoolArray
    stratum: IntArray
    clock_start_seconds: FloatArray
    covariates: Mapping[str, FloatArray] = field(default_factory=dict)
    is_near_canary: BoolArray | None = None
    placement: str = "machine"

    def __post_init__(self) -> None:
        _require_rows(self, "is_canary", "stratum", "clock_start_seconds")
        if len(self.name) != self.is_canary.size:
            raise UnitMismatch(f"{len(self.name)} unit names for {self.is_canary.size} rows")
        if len(set(self.name)) != len(self.name):
            raise UnitMismatch("unit names must be unique")
        started = self.clock_start_seconds[~np.isposinf(self.clock_start_seconds)]
        if not (np.abs(started) <= LARGEST_SECONDS).all():
            raise InvalidSample(
                "Units.clock_start_seconds: accepted are times within "
                f"{LARGEST_SECONDS:g} s of the origin, or +inf"
            )
        for metric, values in self.covariates.items():
            if values.shape != self.is_canary.shape or (np.abs(values) > LARGEST).any():
                raise InvalidSample(
                    f"covariate {metric}: accepted is one finite number per unit, up to "
                    f"{LARGEST:g}, NaN if unknown"
                )
        near = self.is_near_canary
        if near is not None and (
            near.shape != self.is_canary.shape or not near[self.is_canary].all()
        ):
            raise UnitMismatch("is_near_canary is one flag per unit, and true for every canary")


@dataclass(frozen=True)
class Machines:
    """The machines behind the units; at risk from `enrolled` to `left` (inf = still there)."""

    name: tuple[str, ...]
    unit: IntArray
    enrolled_seconds: FloatArray
    left_seconds: FloatArray

    def __post_init__(self) -> None:
        _require_rows(self, "unit", "enrolled_seconds", "left_seconds")
        if len(self.name) != self.unit.size:
            raise UnitMismatch(f"{len(self.name)} machine names for {self.unit.size} rows")
        _require(self, "enrolled_seconds", at_least=-np.inf)
        if np.isnan(self.left_seconds).any():
            raise InvalidSample("Machines.left_seconds must not be NaN; infinity means still there")
        _require_times(self, "enrolled_seconds")
        _require_times(self, "left_seconds", allow_inf=True)
        _require_order(self, "enrolled_seconds", "left_seconds")


@dataclass(frozen=True)
class ServiceIntervals:
    """Half-open intervals [start, end) in which a machine was in service."""

    machine: IntArray
    start_seconds: FloatArray
    end_seconds: FloatArray

    def __post_init__(self) -> None:
        _require_rows(self, "machine", "start_seconds", "end_seconds")
        _require(self, "start_seconds", at_least=-np.inf)
        if np.isnan(self.end_seconds).any():
            raise InvalidSample("ServiceIntervals.end_seconds must not be NaN; infinity means open")
        _require_times(self, "start_seconds")
        _require_times(self, "end_seconds", allow_inf=True)
        _require_order(self, "start_seconds", "end_seconds")


@dataclass(frozen=True)
class FaultEvents:
    """Raw fault events, before episodes; `signature` indexes `signatures`."""

    machine: IntArray
    time_seconds: FloatArray
    signature: IntArray
    signatures: tuple[str, ...]
    severity: tuple[str, ...]

    def __post_init__(self) -> None:
        _require_rows(self, "machine", "time_seconds", "signature")
        if len(self.severity) not in (len(self.signatures), self.machine.size):
            raise UnitMismatch("FaultEvents.severity is given per event or per signature")
        _require_codes(self, "signature", size=len(self.signatures))
        _require(self, "time_seconds", at_least=-np.inf)
        _require_times(self, "time_seconds")


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

    def __post_init__(self) -> None:
        _require_rows(
            self,
            "machine",
            "start_seconds",
            "end_seconds",
            "in_service_seconds",
            "throughput",
            "workload",
        )
        _require_codes(self, "workload", size=len(self.workloads))
        _require(self, "start_seconds", at_least=-np.inf)
        _require(self, "end_seconds", at_least=-np.inf)
        _require_times(self, "start_seconds", "end_seconds")
        _require_order(self, "start_seconds", "end_seconds")
        _require(self, "in_service_seconds", at_least=0.0)
        _require(self, "throughput", allow_nan=True, at_least=0.0)


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

    def __post_init__(self) -> None:
        _require_rows(
            self,
            "machine",
            "time_seconds",
            "recovered_seconds",
            "recovery_seconds",
            "repeated_seconds",
            "path",
        )
        _require_codes(self, "path", size=len(self.paths))
        _require(self, "time_seconds", at_least=-np.inf)
        _require(self, "recovered_seconds", allow_nan=True, at_least=-np.inf)
        _require_times(self, "time_seconds", "recovered_seconds")
        _require_order(self, "time_seconds", "recovered_seconds")
        _require(self, "recovery_seconds", allow_nan=True, at_least=0.0)
        _require(self, "repeated_seconds", allow_nan=True, at_least=0.0)


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

    def __post_init__(self) -> None:
        _require_rows(self, "machine", "time_seconds", "outcome")
        _require_codes(self, "outcome", size=len(self.outcomes))
        _require(self, "time_seconds", at_least=-np.inf)
        _require_times(self, "time_seconds")
        if (np.diff(self.time_seconds) < 0).any():
            raise InvalidSample("AttemptRows must be in order of time")

    def later_than(self, seconds: float) -> "AttemptRows":
        """The attempts that ended after an instant."""
        kept = self.time_seconds > seconds
        return AttemptRows(
            machine=self.machine[kept],
            time_seconds=self.time_seconds[kept],
            outcome=self.outcome[kept],
            outcomes=self.outcomes,
        )


@dataclass(frozen=True)
class LevelsBefore:
    """Mean throughput of a unit on a workload in the period before, in the unit of the reports."""

    unit: IntArray
    workload: IntArray
    throughput: FloatArray
    workloads: tuple[str, ...]

    def __post_init__(self) -> None:
        _require_rows(self, "unit", "workload", "throughput")
        _require_codes(self, "workload", size=len(self.workloads))
        _require(self, "throughput", at_least=0.0)


@dataclass(frozen=True)
class Samples:
    """Everything that one comparison knows up to one cutoff.

    `window_seconds` is the planned length of the window; `interval_seconds` the planned length
    of one telemetry interval (None: unknown, recorded cases). `known_signatures` is the
    fleet's catalogue of signatures seen before the window (None: no such catalogue).
    `service` None means: in service from enrolled to left. `purity` is the share of exposure in
    jobs whose machines are all in one arm (None: jobs are not known). `levels_before` None: the
    period before is that of the observations that end before the origin, if there are any.
    `before_seconds` is where the period before ends (None: not known); `faults` holds all of it.
    `withheld` names signatures that cannot be counted at present, each with the reason.
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
    purity: float | None = None
    levels_before: LevelsBefore | None = None
    before_seconds: float | None = None
    withheld: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_codes(self.machines, "unit", size=len(self.units.name))
        if self.levels_before is not None:
            _require_codes(self.levels_before, "unit", size=len(self.units.name))
        for table in (self.service, self.faults, self.observations, self.recoveries, self.attempts):
            if table is not None:
                _require_codes(table, "machine", size=len(self.machines.name))
        for name in ("window_seconds", "interval_seconds"):
            length = getattr(self, name)
            if length is not None and not 0 < length <= LARGEST_SECONDS:
                raise InvalidSample(
                    f"{name} must be positive and at most {LARGEST_SECONDS:g}: got {length}"
                )
        for name in ("as_of_seconds", "before_seconds"):
            time = getattr(self, name)
            if time is not None and not abs(time) <= LARGEST_SECONDS:
                raise InvalidSample(
                    f"{name} must lie within {LARGEST_SECONDS:g} s of the origin: got {time}"
                )
        for name in ("install_baseline", "purity"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise InvalidSample(f"{name} is a share in [0, 1]: got {share}")
