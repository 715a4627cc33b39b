"""A small world behind a rollout: machines that report hourly, by the versions they run."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np

from fleet import services as fleet_services
from fleet.adapters import Report
from tests.factories import NOW
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import NEW

HOUR = timedelta(hours=1)


class World:
    """Makes what each machine reports: hours in service, and faults by its version's rate."""

    def __init__(
        self, fleet: FakeFleet, *, faults_per_hour: float, factor: float, seed: int = 5
    ) -> None:
        self.fleet = fleet
        self.rate = faults_per_hour
        self.factor = factor
        self.rng = np.random.default_rng(seed)
        self.until = NOW
        self.delay = timedelta(0)

    def report(self, *, until: datetime) -> None:
        """Report each full hour once, as soon as the reports' delay is over."""
        reports: list[Report] = []
        while self.until + HOUR + self.delay <= until:
            for machine in sorted(self.fleet.versions):
                reports += self._hour(machine, self.until)
            self.until += HOUR
        if reports:
            key = f"world {self.until.isoformat()}"
            fleet_services.record(reports, source="world", key=key, now=until)

    def _hour(self, machine: str, start: datetime) -> list[Report]:
        runs_new = self.fleet.versions[machine].get("bmc") == NEW
        number = self.rng.poisson(self.rate * (self.factor if runs_new else 1.0))
        at = sorted(self.rng.uniform(0, 3599, number))
        seen = {"machine": machine, "start": start, "end": start + HOUR}
        return [
            Report("observation", {**seen, "in_service_seconds": 3600.0}),
            *(
                Report(
                    "fault",
                    {
                        "machine": machine,
                        "time": start + timedelta(seconds=float(seconds)),
                        "signature": "xid.119",
                    },
                )
                for seconds in at
            ),
        ]


class WorldDriver(Driver):
    """Lets the world report before each instant's work."""

    def __init__(self, monkeypatch: Any, world: World) -> None:
        super().__init__(monkeypatch)
        self.world = world

    def settle(self) -> None:
        self.world.report(until=self.now)
        super().settle()
