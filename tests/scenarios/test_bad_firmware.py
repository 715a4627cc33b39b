"""A bundle that multiplies faults: its wave is halted, and its canaries go back."""

from collections import Counter

import pytest

from rollouts import selectors
from rollouts.models import Decision
from tests.rollouts.fakes import FakeFleet
from tests.rollouts.plans import OLD, started
from tests.scenarios.world import World, WorldDriver

pytestmark = pytest.mark.django_db

PLAN = {
    "waves": [{"count": 20, "window_hours": 48}],
    "guardrails": [
        {"metric": "faults", "signatures": ["xid.*"], "margin_ratio": 2.0, "required": True},
        {"metric": "install", "required": True},
    ],
    "on_halt": {"succeeded": "roll_back"},
    "burn_in_hours": 0,
}


def test_a_bundle_that_multiplies_faults_is_halted_and_rolled_back(
    fake_fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(fake_fleet, faults_per_hour=0.02, factor=8.0)
    driver = WorldDriver(monkeypatch, world)
    rollout = started(fake_fleet, machines=60, **PLAN)

    driver.run(rollout, until="rolled_back", hours=96)

    assert rollout.status == "rolled_back"
    halt = Decision.objects.get(kind="halt")
    assert (halt.reason_code, halt.evaluation is not None) == ("harmful", True)
    assert "faults" in halt.reason
    assert selectors.machines_exposed(rollout) == 20
    assert sorted(Counter(fake_fleet.flashed).values()) == [2] * 20
    assert {versions["bmc"] for versions in fake_fleet.versions.values()} == {OLD}
