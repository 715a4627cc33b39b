"""Node probes on a virtual fleet at work: what a firmware costs shows in the gaps between jobs."""

import pytest

from fleet import tasks as fleet_tasks
from fleet.models import Observation
from rollouts import services
from rollouts.models import Decision, ProbeRound, Rollout
from simulation import jobs
from simulation.adapters import model_of
from simulation.models import VirtualFleet, VirtualJob, VirtualMachine
from simulation.parameters import Effect, JobMix
from tests.factories import make_bundle, make_image, make_user
from tests.rollouts.fakes import Driver
from tests.rollouts.plans import document
from tests.simulation.fleets import ORIGIN, make_fleet

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

PLAN = {
    "mode": "automatic",
    "waves": [{"count": 10, "window_hours": 24}],
    "guardrails": [
        {"metric": "install", "required": False},
        {"metric": "throughput", "workloads": ["node_probe"], "scope": "machine"},
    ],
    "node_probe": {"every_hours": 4},
    "min_exposure_hours": 12,
    "look_minutes": 240,
    "read_backs": 1,
}


class BusyDriver(Driver):
    """Lets the virtual scheduler place its jobs, and the watch see them, before each instant."""

    def settle(self) -> None:
        fleet = VirtualFleet.objects.get()
        jobs.place(fleet, model_of(fleet), now=self.now)
        fleet_tasks.watch_jobs()
        super().settle()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> BusyDriver:
    driver = BusyDriver(monkeypatch, now=ORIGIN)
    monkeypatch.setattr(fleet_tasks.clock, "now", lambda: driver.now)
    return driver


def rolled_out(*effects: Effect) -> Rollout:
    """A running rollout over a fleet that is at work most of the time."""
    mix = JobMix(sizes=(1, 2), mean_hours=2.0, load=0.6)
    make_fleet(80, jobs=mix, non_return=0.0, effects=effects)
    author = make_user()
    rollout = services.create_draft(
        name="probed",
        bundle=make_bundle(images=[make_image("bmc", "2.0")]),
        selector="platform=dgx-h100",
        document=document(**PLAN),
        author=author,
        now=ORIGIN,
        seed=7,
    )
    services.submit(rollout, actor=author, now=ORIGIN)
    services.approve(rollout, actor=make_user(), now=ORIGIN)
    services.start(rollout, actor=author, now=ORIGIN)
    return rollout


def test_a_firmware_that_slows_single_machines_is_halted_by_probes_of_idle_ones(
    driver: BusyDriver,
) -> None:
    rollout = rolled_out(Effect("bmc", "2.0", throughput=0.93))

    driver.run(rollout, until="halted", hours=40)

    assert rollout.status == "halted"
    halt = Decision.objects.get(rollout=rollout, kind="halt")
    assert halt.reason_code == "harmful"
    assert halt.reason.startswith("harmful: throughput is")


def test_a_harmless_firmware_is_probed_in_both_arms_at_once_and_never_at_work(
    driver: BusyDriver,
) -> None:
    rollout = rolled_out()

    driver.run(rollout, hours=30)

    assert rollout.status != "halted"
    arm_of = dict(rollout.waves.get(number=1).members.values_list("machine__name", "arm"))
    rounds = ProbeRound.objects.exclude(ended_at=None)
    assert rounds.count() > 5
    for probe in rounds:
        assert {arm_of[name] for name in probe.machines} == {"canary", "control"}
    probes = Observation.objects.filter(workload="node_probe")
    assert probes.count() > 50
    assert worked_on(probes) == []


def worked_on(probes) -> list[Observation]:
    """The probes of machines that had a job at some time of it."""
    index_of = dict(VirtualMachine.objects.values_list("machine", "index"))
    ran = list(VirtualJob.objects.values_list("machines", "started_at", "ends_at"))
    return [
        probe
        for probe in probes
        for machines, start, end in ran
        if index_of[probe.machine_id] in machines and start < probe.end and end > probe.start
    ]
