"""What is judged and how strictly: a policy, validated once and frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

from rollouts.analysis.errors import InvalidPolicy, NoGuardrails


class Metric(StrEnum):
    """A kind of guardrail; each has one estimator."""

    INSTALL = "install"
    FAULTS = "faults"
    NOVEL_SIGNATURES = "novel_signatures"
    THROUGHPUT = "throughput"
    RECOVERY_TIME = "recovery_time"
    SEVERE_PATH = "severe_path"
    LOST_WORK = "lost_work"
    TELEMETRY = "telemetry"


LEAST_BETA = 1e-6
"""A proof surer than that is beyond what bounds are computed for."""

_NOT_NEGATIVE = (
    "gap_minutes",
    "burn_in_hours",
    "min_exposure_hours",
    "extension",
    "max_excess_faults",
    "delta_abs",
    "hold_back",
    "surveillance_days",
    "purity_floor",
)

NODE_PROBE = "node_probe"
"""The workload of a machine's own probe; counts only where a guardrail names it."""


@dataclass(frozen=True)
class Guardrail:
    """One metric that must not get worse, by its margin.

    Parameters
    ----------
    name : str
        Unique in the policy, e.g. ``faults:DBE``.
    metric : Metric
    required : bool or None
        Whether widening needs its non-inferiority; None means `auto`: required where decidable.
    halt : bool
        False makes it report-only: it takes no share of alpha and never halts.
    margin : float
        Non-inferiority margin in the metric's own unit: a ratio for faults and recovery time
        (2.0 = twice), a relative drop for throughput (0.02), a difference of probabilities for
        severe path, install and telemetry (0.15, 0.04, 0.05).
    tolerance : float
        The effect under the halt null: a ratio for faults and recovery time (1.0), a relative
        drop for throughput (0.01), else a difference (0).
    signatures : tuple of str
        Glob patterns of the fault family (faults only).
    workloads : tuple of str
        Workloads that count (throughput only); empty means all that were reported, but for node
        probes. Listed workloads must all have been seen in both arms before the metric can be
        judged.
    paths : mapping of str to str
        Maps a recording's own recovery paths to the four severities `continued`,
        `replica_restarted`, `job_restarted_from_checkpoint`, `job_lost` (severe path only).
    scope : str
        `job` or `machine`: whether machines of one synchronous job share the outcome.
    ends_service : bool or None
        Whether a fault takes its machine out of service; None means `auto`: at least half of
        the family's faults, both arms pooled, lie within an hour of a service interval's end.
    """

    name: str
    metric: Metric
    required: bool | None
    halt: bool
    margin: float
    tolerance: float
    signatures: tuple[str, ...] = ("*",)
    workloads: tuple[str, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    scope: str = "machine"
    ends_service: bool | None = None

    def __post_init__(self) -> None:
        ratio = self.metric in (Metric.FAULTS, Metric.RECOVERY_TIME)
        least = 1.0 if ratio else 0.0
        for field_name in ("margin", "tolerance"):
            value = getattr(self, field_name)
            if not (isfinite(value) and value >= least and (ratio or value < 1)):
                accepted = "a ratio of at least 1" if ratio else "a share in [0, 1)"
                raise InvalidPolicy(f"{self.name}: {field_name} {value}; {accepted} is accepted")
        if self.metric is not Metric.NOVEL_SIGNATURES and self.margin < self.tolerance:
            raise InvalidPolicy(
                f"{self.name}: margin {self.margin} lies below the tolerance {self.tolerance}"
            )
        if self.metric is Metric.FAULTS and not self.signatures:
            raise InvalidPolicy(f"{self.name}: at least one signature pattern is needed")

    @property
    def is_probed(self) -> bool:
        """Whether it is judged by node probes alone."""
        return self.metric is Metric.THROUGHPUT and self.workloads == (NODE_PROBE,)


@dataclass(frozen=True)
class WorkloadCondition:
    """What has to have run in a wave's window, on enough machines of both arms, before it widens.

    A machine counts once it has reported `least_hours` in service on any of `workloads`. Of each
    arm at least so many are needed, and at least `least_share` of it; of a smaller arm all.
    """

    workloads: tuple[str, ...]
    least_canaries: int = 1
    least_controls: int = 1
    least_share: float = 0.5
    least_hours: float = 1.0

    def __post_init__(self) -> None:
        if not self.workloads:
            raise InvalidPolicy("a workload condition needs at least one workload")
        if not 0 <= self.least_share <= 1:
            raise InvalidPolicy(f"least_share lies in [0, 1]: got {self.least_share}")
        for name in ("least_canaries", "least_controls", "least_hours"):
            if not getattr(self, name) >= 0:
                raise InvalidPolicy(f"{name} must not be negative: got {getattr(self, name)}")

    @property
    def kinds(self) -> str:
        return " or ".join(self.workloads)


@dataclass(frozen=True)
class Policy:
    """The shared core of plans and recorded cases; defaults live in `policy.schema.json`.

    Shares and levels lie in [0, 1]; `weights` maps a metric to its share of alpha and is
    renormalised over the guardrails that may halt.
    """

    guardrails: tuple[Guardrail, ...]
    weights: Mapping[Metric, float]
    unit: str = "machine"
    strata: tuple[str, ...] = ()
    covariates: Mapping[str, str] = field(default_factory=dict)
    alpha: float = 0.05
    beta: float = 0.05
    seed: int = 1
    resamples: int = 19_999
    gap_minutes: float = 15.0
    looks: int = 72
    burn_in_hours: float = 2.0
    min_exposure_hours: float = 24.0
    extension: float = 0.5
    smoke_widen: bool = True
    max_excess_faults: float = 20.0
    max_bricks: int | None = None
    delta_abs: float = 0.005
    hold_back: float = 0.1
    surveillance_days: float = 7.0
    purity_floor: float = 0.9
    workload_conditions: tuple[WorkloadCondition, ...] = ()

    def __post_init__(self) -> None:
        if not self.guardrails:
            raise NoGuardrails("a policy needs at least one guardrail")
        names = [guardrail.name for guardrail in self.guardrails]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidPolicy(f"guardrail names must be unique: got {', '.join(twice)} twice")
        for name in ("alpha", "beta"):
            if not 0 < getattr(self, name) < 1:
                raise InvalidPolicy(f"{name} lies in (0, 1): got {getattr(self, name)}")
        if self.beta < LEAST_BETA:
            raise InvalidPolicy(f"beta is at least {LEAST_BETA:g}: got {self.beta}")
        for name, least in (("resamples", 1), ("looks", 1), ("seed", 0)):
            value = getattr(self, name)
            if not value >= least or value != value // 1:
                raise InvalidPolicy(f"{name} is a whole number of at least {least}: got {value}")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise InvalidPolicy(f"{name} must be finite and not negative: got {value}")
        for metric, weight in self.weights.items():
            if not (isfinite(weight) and weight >= 0):
                raise InvalidPolicy(f"weight of {metric} must not be negative: got {weight}")
