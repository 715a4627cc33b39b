"""Jobs of 64 machines go at the pace of the slowest: canaries drag controls along."""

from datetime import timedelta

import numpy as np
import pytest
from django.core.management import call_command

from fleet.models import Machine, Observation
from rollouts.models import Rollout
from rollouts.replay import replay_jumps
from tests.factories import NOW
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import NEW, started

pytestmark = pytest.mark.django_db

MACHINES, JOB_SIZE, CANARIES = 500, 64, 16
STEP = timedelta(hours=3)
SLOW = 0.95
"""A canary's pace, and so that of every machine of its job."""


class SynchronousWorld:
    """Reports of every machine; whoever shares a job with the new bundle is as slow as it."""

    def __init__(self, fleet: FakeFleet, *, seed: int) -> None:
        self.fleet = fleet
        self.rng = np.random.default_rng(seed)
        self.machines = list(Machine.objects.order_by("name"))
        self.job = self.rng.permutation(len(self.machines)) // JOB_SIZE
        self.level = 1 + 0.01 * self.rng.standard_normal(len(self.machines))
        for machine, job in zip(self.machines, self.job.tolist(), strict=True):
            machine.leaf, machine.rack = f"leaf{job}", f"rack{job}"
        Machine.objects.bulk_update(self.machines, ["leaf", "rack"], batch_size=200)

    def report(self, *, end) -> None:
        runs_new = [self.fleet.versions[machine.name]["bmc"] == NEW for machine in self.machines]
        dragged = np.isin(self.job, self.job[runs_new])
        pace = self.level * (1 + 0.01 * self.rng.standard_normal(self.level.size))
        pace *= np.where(dragged, SLOW, 1.0)
        Observation.objects.bulk_create(
            (
                Observation(
                    machine=machine,
                    start=end - STEP,
                    end=end,
                    in_service_seconds=STEP.total_seconds(),
                    throughput=round(float(speed), 6),
                    workload="train",
                    job=f"job{job}",
                    source="world",
                    source_key=f"{machine.name} {end.isoformat()}",
                    received_at=end,
                )
                for machine, speed, job in zip(self.machines, pace, self.job.tolist(), strict=True)
            ),
            batch_size=500,
        )


class SynchronousDriver(Driver):
    """Lets the world report, whenever a report is due, before the work of an instant."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: SynchronousWorld) -> None:
        super().__init__(monkeypatch)
        self.world = world
        self.reported = NOW - timedelta(days=1)
        self.catch_up()

    def catch_up(self) -> None:
        while self.reported + STEP <= self.now:
            self.reported += STEP
            self.world.report(end=self.reported)

    def settle(self) -> None:
        self.catch_up()
        super().settle()


def test_a_regression_that_drags_both_arms_is_no_environment_and_never_widened(
    fake_fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The harder of the two scopes: by `job`, mixed jobs are no data from the start.
    rollout = started(
        fake_fleet,
        machines=MACHINES,
        waves=[{"count": CANARIES, "window_hours": 24}],
        guardrails=[{"metric": "throughput", "required": True, "scope": "machine"}],
        hold_back=0.1,
        extension=0,
        resamples=199,
    )
    driver = SynchronousDriver(monkeypatch, SynchronousWorld(fake_fleet, seed=3))

    driver.run(rollout, hours=48)

    decisions = Rollout.objects.get(pk=rollout.pk).decisions.order_by("pk")
    codes = set(decisions.values_list("reason_code", flat=True))
    assert "environment" not in codes
    assert not decisions.filter(kind="widen").exists()
    assert "interference" in codes
    last = decisions.exclude(evaluation=None).last()
    assert last.evaluation.inputs["purity"] < 0.9
    assert rollout.waves.get(number=1).status == "held"
    again = replay_jumps(decisions.filter(reason_code="interference").last().evaluation)
    assert again == {"throughput": "interference"}
    call_command("replay", rollout.name)
