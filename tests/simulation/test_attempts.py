"""Every way in which the virtual fleet fails, through the real pipeline."""

from datetime import timedelta

import pytest

from fleet import tasks as fleet_tasks
from fleet.models import FirmwareRecord, Machine, TelemetryHold
from rollouts import services
from rollouts.models import Rollout
from simulation import jobs
from simulation.adapters import model_of
from simulation.models import VirtualFleet, VirtualOrder
from simulation.parameters import Effect, JobMix
from tests.factories import make_bundle, make_image, make_user
from tests.rollouts.fakes import Driver
from tests.rollouts.plans import document
from tests.simulation.fleets import ORIGIN, make_fleet

pytestmark = pytest.mark.django_db


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(fleet_tasks.clock, "now", lambda: driver.now)
    driver = Driver(monkeypatch, now=ORIGIN)
    return driver


def roll_out(*, activation: str = "reboot", **changes) -> Rollout:
    """A running rollout of one image to three virtual machines."""
    plan = {"waves": [{"count": 3, "window_hours": 48}], "recheck_hours": 1, **changes}
    author = make_user()
    rollout = services.create_draft(
        name="virtual update",
        bundle=make_bundle(images=[make_image("bmc", "2.0", activation=activation)]),
        selector="platform=dgx-h100",
        document={"mode": "automatic", **document(**plan)},
        author=author,
        now=ORIGIN,
        seed=7,
    )
    services.submit(rollout, actor=author, now=ORIGIN)
    services.approve(rollout, actor=make_user(), now=ORIGIN)
    services.start(rollout, actor=author, now=ORIGIN)
    return rollout


def ends(rollout: Rollout) -> set[str]:
    return set(rollout.attempts.values_list("status", flat=True))


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        ("rejected", "rejected"),
        ("failed", "failed"),
        ("busy", "succeeded"),  # it waits, and goes on
        ("stalled", "timed_out"),
        ("wrong_version", "wrong_version"),
        ("needs_ac_cycle", "wrong_version"),
        ("fell_back", "fell_back"),
        ("bricked", "never_returned"),  # until its triage says so
        ("lost_bmc", "degraded"),
        ("disputed", "wrong_version"),
    ],
)
def test_an_install_that_goes_wrong_ends_in_its_class(
    driver: Driver, failure: str, status: str
) -> None:
    make_fleet(non_return=0.0, effects=(Effect("bmc", "2.0", failures={failure: 1.0}),))
    rollout = roll_out()

    driver.run(rollout, hours=5)

    assert ends(rollout) == {status}
    works = status == "succeeded"
    states = set(Machine.objects.filter(attempts__rollout=rollout).values_list("state", flat=True))
    assert states == {"in_service" if works else "awaiting_diagnosis"}


def test_what_needs_an_ac_cycle_succeeds_with_one(driver: Driver) -> None:
    make_fleet(non_return=0.0, effects=(Effect("bmc", "2.0", failures={"needs_ac_cycle": 1.0}),))
    rollout = roll_out(activation="ac_cycle")

    driver.run(rollout, hours=5)

    assert ends(rollout) == {"succeeded"}


def test_an_install_leaves_its_way_in_the_version_history(driver: Driver) -> None:
    make_fleet(non_return=0.0)
    rollout = roll_out()

    driver.run(rollout, hours=5)

    machine = rollout.attempts.first().machine
    records = FirmwareRecord.objects.filter(machine=machine, kind="bmc").order_by("since", "pk")
    # The import's, the read-back's before the update, what was written, what runs.
    assert list(records.values_list("stage", "version")) == [
        ("active", "1.0"),
        ("staged", "2.0"),
        ("active", "2.0"),
    ]


def test_a_bmc_that_renames_its_sensors_succeeds_and_its_telemetry_is_held_back(
    driver: Driver,
) -> None:
    make_fleet(non_return=0.0, effects=(Effect("bmc", "2.0", renames_sensors=True),))
    rollout = roll_out()

    driver.run(rollout, hours=5)
    fleet_tasks.check_holds()

    assert ends(rollout) == {"succeeded"}
    held = TelemetryHold.objects.filter(until=None)
    assert held.count() == 3
    assert "sensor Temp_bmc is gone" in held[0].reasons


def test_machines_with_jobs_are_taken_when_their_jobs_end_and_given_back(driver: Driver) -> None:
    fleet = make_fleet(non_return=0.0, jobs=JobMix(sizes=(2, 4), mean_hours=2.0, load=1.0))
    jobs.place(fleet, model_of(fleet), now=ORIGIN)
    running = _ends_of_jobs(fleet)
    rollout = roll_out(
        drain_timeout_minutes=60, look_minutes=720, caps={"max_unavailable_share": None}
    )
    seen = set()
    for hour in range(1, 25):
        end = ORIGIN + timedelta(hours=hour)
        driver.run(rollout, hours=(end - driver.now) / timedelta(hours=1))
        driver.now = end
        jobs.place(fleet, model_of(fleet), now=driver.now)
        fleet_tasks.watch_jobs()
        seen |= ends(rollout)

    assert ends(rollout) == {"succeeded"}
    assert {"deferred", "draining"} & seen
    for attempt in rollout.attempts.select_related("machine"):
        taken = VirtualOrder.objects.filter(machine__machine=attempt.machine).earliest("ordinal")
        assert taken.taken_at >= running.get(attempt.machine.name, ORIGIN)
    assert (
        Machine.objects.filter(attempts__rollout=rollout).exclude(may_take_work=True).count() == 0
    )


def _ends_of_jobs(fleet: VirtualFleet) -> dict[str, object]:
    model = model_of(fleet)
    return {
        model.machines[index].name: job.ends_at
        for job in fleet.jobs.all()
        for index in job.machines
    }
