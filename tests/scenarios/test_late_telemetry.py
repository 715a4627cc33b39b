"""Telemetry that comes late or not at all: a look waits for it, and never widens without it."""

from datetime import timedelta

import pytest

from fleet.models import CollectorCursor
from rollouts import pipeline, selectors
from rollouts.models import Decision, Evaluation, Rollout
from tests.rollouts.fakes import FakeFleet
from tests.rollouts.plans import started
from tests.scenarios.world import World, WorldDriver

pytestmark = pytest.mark.django_db

PLAN = {
    "machines": 72,
    "waves": [{"count": 24, "window_hours": 24}],
    "guardrails": [
        {"metric": "faults", "signatures": ["xid.*"], "margin_ratio": 3.0, "required": True}
    ],
    "burn_in_hours": 0,
    "extension": 0,
}


@pytest.fixture
def world(fake_fleet: FakeFleet) -> World:
    return World(fake_fleet, faults_per_hour=0.05, factor=1.0)


def events(evaluation: Evaluation) -> int:
    guardrail = evaluation.guardrails[0]
    return guardrail["canary"]["events"] + guardrail["control"]["events"]


def at_first_look(rollout: Rollout, driver: WorldDriver) -> Evaluation:
    while not rollout.evaluations.exists():
        driver.settle()
        driver.now = selectors.next_due_at()
    return rollout.evaluations.get(look=1)


def test_what_arrives_late_counts_at_the_next_look_and_the_old_one_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = WorldDriver(monkeypatch, world)
    rollout = started(world.fleet, **PLAN)
    world.delay = timedelta(hours=4)
    first = at_first_look(rollout, driver)
    seen = events(first)

    world.delay = timedelta(0)
    driver.run(rollout, hours=7)

    second = rollout.evaluations.get(look=2)
    assert 0 < seen < events(second) / 3
    assert events(rollout.evaluations.get(look=1)) == seen


def test_a_look_waits_for_its_telemetry_but_not_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = WorldDriver(monkeypatch, world)
    rollout = started(world.fleet, **PLAN)
    collector = CollectorCursor.objects.create(collector="x", collected_until=driver.now)
    monkeypatch.setattr(
        pipeline.fleet_selectors,
        "collected_until",
        lambda: CollectorCursor.objects.get(pk=collector.pk).collected_until,
    )
    driver.run(rollout, hours=5)
    wave = selectors.current_wave(rollout)
    cutoff = wave.next_look_at
    driver.now = cutoff + timedelta(minutes=5)
    driver.settle()
    waited = rollout.evaluations.count()

    CollectorCursor.objects.update(collected_until=cutoff)
    driver.now = cutoff + timedelta(minutes=6)
    driver.settle()
    driver.now = selectors.current_wave(rollout).next_look_at + pipeline.GRACE
    driver.settle()

    assert waited == 0
    assert list(rollout.evaluations.order_by("look").values_list("as_of", flat=True)) == [
        cutoff,
        cutoff + timedelta(hours=6),
    ]


def test_a_fleet_that_reports_nothing_is_held_and_never_widened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = WorldDriver(monkeypatch, world)
    rollout = started(world.fleet, **PLAN)
    world.delay = timedelta(days=365)

    driver.run(rollout, hours=24 * 3)

    wave = selectors.waves_of(rollout)[0]
    assert rollout.status == "running"
    assert wave.status in ("observing", "held")
    kinds = set(Decision.objects.values_list("kind", flat=True))
    assert kinds == {"hold"}
    assert {e.guardrails[0]["verdict"] for e in Evaluation.objects.all()} == {"no_data"}
    assert len(world.fleet.flashed) == 24
