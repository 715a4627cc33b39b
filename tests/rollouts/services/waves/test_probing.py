"""Node probes: both arms in idle gaps at the same instants, measured once, read by their own."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from fleet import adapters
from fleet.adapters import Probed
from fleet.models import Machine, Observation, TelemetryBatch
from rollouts import policies
from rollouts.errors import PlanRefused, PolicyRefused
from rollouts.models import Membership, ProbeRound, Rollout
from rollouts.planning import probing
from rollouts.services.waves.probing import carry_on
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import document, started

pytestmark = pytest.mark.django_db
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
GUARDRAIL = {"metric": "throughput", "workloads": ["node_probe"], "scope": "machine"}
PLAN = {
    "node_probe": {"every_hours": 6},
    "guardrails": [{"metric": "install", "margin": 0.5}, GUARDRAIL],
    "waves": [{"count": 8, "window_hours": 48}],
    "min_exposure_hours": 0,
}


class FakeProber:
    """Measures every machine in the third minute; canaries' firmware may slow them down."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...], datetime]] = []
        self.slow: set[str] = set()
        self.silent: set[str] = set()
        self.length = 3 * MINUTE
        self.is_down = False

    def probe(
        self, machines: Sequence[str], *, key: str, begun: datetime, now: datetime
    ) -> Sequence[Probed]:
        self.asked.append((key, tuple(machines), begun))
        if self.is_down:
            raise TimeoutError
        if now < begun + self.length:
            return []
        return [
            Probed(name, begun, begun + self.length, self._speed(name, len(self.asked)), "boot-1")
            for name in machines
            if name not in self.silent
        ]

    def _speed(self, name: str, turn: int) -> float:
        noise = 0.001 * (hash_of(name, turn) % 7 - 3)
        return (0.9 if name in self.slow else 1.0) + noise


def hash_of(name: str, turn: int) -> int:
    return sum(map(ord, name)) * 31 + 17 * turn


@pytest.fixture
def prober(monkeypatch: pytest.MonkeyPatch) -> FakeProber:
    found = FakeProber()
    monkeypatch.setattr(adapters, "prober", lambda: found)
    return found


def observing(fake_fleet: FakeFleet, driver: Driver, **changes: object) -> Rollout:
    """A rollout whose canaries are in and whose clock has just started."""
    rollout = started(fake_fleet, **{**PLAN, **changes})
    driver.run(rollout, hours=3)
    assert rollout.waves.get(number=1).clock_start
    return rollout


def forget() -> None:
    """Begin as if nothing had been probed yet."""
    for model in (ProbeRound, Observation, TelemetryBatch):
        model.objects.all().delete()


def arms_of(rollout: Rollout, names: Sequence[str]) -> dict[str, int]:
    own = rollout.waves.get(number=1).members.filter(machine__name__in=names)
    return {arm: own.filter(arm=arm).count() for arm in Membership.Arm.values}


def test_both_arms_are_probed_at_the_same_instants_and_each_machine_once_a_period(
    fake_fleet: FakeFleet, driver: Driver, prober: FakeProber
) -> None:
    rollout = observing(fake_fleet, driver, node_probe={"every_hours": 4})

    ahead = rollout.waves.get(number=1).clock_start - driver.now
    driver.run(rollout, hours=11 + ahead / HOUR)

    rounds = list(rollout.waves.get(number=1).probes.all())
    assert [one.period for one in rounds] == [0, 1, 2]
    for one in rounds:
        assert arms_of(rollout, one.machines) == {"canary": 8, "control": 32}
        assert one.machines == sorted(one.machines)
    rows = Observation.objects.filter(workload="node_probe")
    assert {row.end - row.start for row in rows} == {3 * MINUTE}
    assert rows.count() == sum(one.measured for one in rounds)
    assert rows.values("start").distinct().count() == sum(one.measured > 0 for one in rounds)


def test_only_idle_machines_are_probed_and_never_one_arm_alone(
    fake_fleet: FakeFleet, driver: Driver, prober: FakeProber
) -> None:
    rollout = observing(fake_fleet, driver)
    wave = rollout.waves.get(number=1)
    forget()
    canaries = wave.members.filter(arm="canary").values("machine")
    Machine.objects.filter(pk__in=canaries).update(job="train")

    carry_on(wave, now=driver.now)

    assert not wave.probes.exists()

    idle = wave.members.filter(arm="canary").order_by("machine__name")[:2]
    Machine.objects.filter(pk__in=[member.machine_id for member in idle]).update(job="")
    carry_on(wave, now=driver.now)

    assert arms_of(rollout, wave.probes.get().machines) == {"canary": 2, "control": 8}


def test_a_round_counts_once_however_often_it_is_looked_at(
    fake_fleet: FakeFleet, driver: Driver, prober: FakeProber
) -> None:
    rollout = observing(fake_fleet, driver)
    wave = rollout.waves.get(number=1)
    forget()
    for now in (driver.now, driver.now, driver.now + MINUTE):
        carry_on(wave, now=now)
    assert wave.probes.get().ended_at is None
    assert not Observation.objects.exists()

    for _ in range(3):
        carry_on(wave, now=driver.now + 4 * MINUTE)

    assert wave.probes.get().measured == 40
    assert Observation.objects.count() == 40
    assert len({key for key, _, _ in prober.asked if key.endswith(f"-{wave.pk}-1")}) == 1


def test_a_prober_that_does_not_answer_is_given_up_and_another_round_follows(
    fake_fleet: FakeFleet, driver: Driver, prober: FakeProber
) -> None:
    rollout = observing(fake_fleet, driver)
    wave = rollout.waves.get(number=1)
    forget()
    prober.is_down = True
    carry_on(wave, now=driver.now)
    carry_on(wave, now=driver.now + 10 * MINUTE)
    assert wave.probes.get().ended_at is None

    carry_on(wave, now=driver.now + 31 * MINUTE)

    assert [one.measured for one in wave.probes.exclude(ended_at=None)] == [0]


def test_a_figure_of_a_machine_that_was_not_asked_or_took_too_long_is_left_out(
    fake_fleet: FakeFleet, driver: Driver, prober: FakeProber
) -> None:
    rollout = observing(fake_fleet, driver)
    wave = rollout.waves.get(number=1)
    forget()
    carry_on(wave, now=driver.now)
    prober.length = 4 * MINUTE

    carry_on(wave, now=driver.now + 5 * MINUTE)

    assert wave.probes.get().measured == 0
    assert not Observation.objects.exists()


def test_firmware_that_slows_single_machines_is_found_by_their_probes(
    fake_fleet: FakeFleet, driver: Driver, prober: FakeProber
) -> None:
    rollout = started(fake_fleet, **PLAN)
    driver.settle()
    members = rollout.waves.get(number=1).members.filter(arm="canary")
    prober.slow = set(members.values_list("machine__name", flat=True))

    driver.run(rollout, until="halted", hours=72)

    assert rollout.status == "halted"
    assert "throughput" in rollout.decisions.filter(kind="halt").first().reason


def test_a_healthy_rollout_widens_on_its_probes(
    fake_fleet: FakeFleet, driver: Driver, prober: FakeProber
) -> None:
    rollout = started(fake_fleet, **PLAN)

    driver.run(rollout, hours=54)

    assert rollout.waves.get(number=1).status == "widened"


def test_without_a_prober_a_plan_that_asks_for_one_is_refused(
    fake_fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "prober", lambda: None)

    with pytest.raises(PlanRefused, match="node_probe: nothing is set up"):
        started(fake_fleet, **PLAN)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"node_probe": None}, "node_probe: null, but a guardrail"),
        ({"guardrails": [{"metric": "install"}]}, "no guardrail is judged by it"),
        ({"guardrails": [{**GUARDRAIL, "scope": "job"}]}, "accepted: machine"),
        (
            {"guardrails": [{**GUARDRAIL, "workloads": ["node_probe", "rl"]}]},
            "node_probe is judged by itself",
        ),
        ({"node_probe": {"every_hours": 0.1}}, "below the least accepted value"),
    ],
)
def test_a_plan_whose_probe_and_guardrails_do_not_match_is_refused(changes, words) -> None:
    with pytest.raises(PolicyRefused, match=words):
        policies.plan_from(document(**{**PLAN, **changes}))


def test_each_arm_gives_the_same_part_of_itself_and_none_alone():
    canaries, controls = [f"c{n}" for n in range(8)], [f"k{n:02}" for n in range(32)]

    few_controls = probing.choose(canaries, controls[:4], sizes=(8, 32), most=100)
    capped = probing.choose(canaries, controls, sizes=(8, 32), most=20)

    assert few_controls == ["c0", "k00", "k01", "k02", "k03"]
    assert capped == [*canaries[:4], *controls[:16]]
    assert probing.choose([], controls, sizes=(8, 32), most=20) == []
