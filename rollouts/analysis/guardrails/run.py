"""What all guardrails of one run of looks share."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rollouts.analysis.errors import NoLooks
from rollouts.analysis.exposure import SECONDS_PER_DAY, Exposure, exposure_at
from rollouts.analysis.policy import Metric, Policy
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray, Samples
from rollouts.analysis.scores import Strata
from rollouts.analysis.verdicts import ArmCounts
from rollouts.analysis.wave import Look, WavePlan

SECONDS_PER_HOUR = 3_600.0


@dataclass(frozen=True, eq=False)
class Run:
    """Samples, policy and plan with the looks that are evaluated together."""

    samples: Samples
    policy: Policy
    plan: WavePlan
    looks: tuple[Look, ...]

    def __post_init__(self) -> None:
        if not self.looks:
            raise NoLooks("an evaluation needs at least one look")

    @cached_property
    def as_of(self) -> FloatArray:
        return np.array([look.as_of_seconds for look in self.looks], dtype=np.float64)

    @cached_property
    def exposure(self) -> Exposure:
        return exposure_at(self.samples, self.as_of)

    @cached_property
    def strata(self) -> Strata:
        return Strata.of(self.samples.units.stratum)

    @property
    def is_canary(self) -> BoolArray:
        return self.samples.units.is_canary

    @property
    def units(self) -> int:
        return int(self.is_canary.size)

    @property
    def first_clock(self) -> float:
        """When the first block's clock started, in seconds since the origin."""
        return float(self.samples.units.clock_start_seconds.min())

    def has_whole_day(self, index: int) -> bool:
        """Is the window a day old? Before that, the time of day is a reason of its own."""
        return float(self.as_of[index]) - self.first_clock >= SECONDS_PER_DAY

    def present(self, index: int) -> BoolArray:
        return np.asarray(self.exposure.is_present[:, index])

    def microseconds(self, index: int) -> IntArray:
        """In-service time per unit since the clock's start, whole, so that it can be kept."""
        return np.rint(self.exposure.seconds[:, index] * 1e6).astype(np.int64)

    def adjusting(self, metric: Metric) -> Strata:
        """Strata with the metric's covariate."""
        values = self.samples.units.covariates.get(metric)
        return Strata.of(self.samples.units.stratum, covariate=values)

    def counts(
        self, index: int, *, machine_events: BoolArray | None = None, events: tuple[int, int] | None
    ) -> tuple[ArmCounts, ArmCounts]:
        """Machines at risk (in service, or with an event), events and machine-hours per arm."""
        seen = self.exposure.is_at_risk[:, index]
        if machine_events is not None:
            seen = seen | machine_events
        is_canary = self.is_canary[self.samples.machines.unit]
        hours = self.exposure.seconds[:, index] / SECONDS_PER_HOUR
        arms = []
        for place, arm in enumerate((True, False)):
            arms.append(
                ArmCounts(
                    machines=int((seen & (is_canary == arm)).sum()),
                    events=None if events is None else events[place],
                    exposure_hours=float(hours[self.is_canary == arm].sum()),
                )
            )
        return arms[0], arms[1]
