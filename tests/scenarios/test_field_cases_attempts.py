"""Field cases of single attempts: every way to fail, and what is remembered of it."""

import random
from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest

from fleet.adapters import Occupancy
from fleet.models import Fault, FirmwareRecord, Machine
from rollouts import selectors, services, tasks
from rollouts.errors import OrderRefused
from rollouts.models import Attempt, Clearance, Decision, Rollout
from rollouts.services.plans.population import read_population
from tests.factories import make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import NEW, OLD, bundle_of, started

pytestmark = pytest.mark.django_db


def planned(rollout: Rollout, *, wave: int = 1) -> list[str]:
    places = rollout.assignments.filter(planned_wave=wave).order_by("machine_name")
    return list(places.values_list("machine_name", flat=True))


def attempt_on(machine: str) -> Attempt:
    return Attempt.objects.select_related("machine", "rollout").get(machine__name=machine)


# --- S04: every kind of failure feeds the stop rule ----------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        ("vanish", "never_returned"),  # never came back
        ("lost_bmc", "degraded"),  # came back degraded
        ("occupied", "timed_out"),
        ("unwritable", "failed"),
        ("disputed", "wrong_version"),  # BMC and host never agree
    ],
)
def test_s04_eight_of_twenty_that_end_in_any_one_way_halt_the_wave(
    fake_fleet: FakeFleet, driver: Driver, behaviour: str, status: str
) -> None:
    # The other ways stand in tests/rollouts/test_carrying_out.py.
    fake_fleet.witnesses = ("bmc", "host")
    rollout = started(
        fake_fleet,
        machines=40,
        waves=[{"count": 20, "window_hours": 48}],
        install_timeout_minutes=5,
        return_timeout_minutes=5,
    )
    bad = planned(rollout)[:8]
    fake_fleet.behaviour.update(dict.fromkeys(bad, behaviour))

    driver.run(rollout, until="halted", hours=24)

    assert rollout.status == "halted"
    assert set(rollout.attempts.filter(machine__name__in=bad).values_list("status")) == {(status,)}
    assert Decision.objects.filter(rollout=rollout, kind="halt").count() == 1


def test_s04_eight_of_twenty_that_roll_themselves_back_halt_the_wave(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(
        fake_fleet, machines=40, waves=[{"count": 20, "window_hours": 48}], recheck_hours=0.5
    )
    driver.run(rollout, hours=0.3)
    assert set(rollout.attempts.values_list("status", flat=True)) == {"succeeded"}

    for bad in planned(rollout)[:8]:
        fake_fleet.versions[bad] = {"bmc": OLD}
        fake_fleet.boots[bad] += 1
    driver.run(rollout, until="halted", hours=6)

    assert rollout.status == "halted"
    assert rollout.attempts.filter(status="fell_back").count() == 8


# --- S06: success is what is read back, after a boot ---------------------------------------------


def test_s06_the_old_version_after_the_boot_is_no_success_whatever_the_installer_said(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    liar = planned(rollout)[0]
    fake_fleet.behaviour[liar] = "lie"

    driver.run(rollout, hours=3)

    attempt = attempt_on(liar)
    assert (attempt.status, attempt.detail) == ("wrong_version", f"runs bmc {OLD} instead of {NEW}")


def test_s06_a_later_boot_into_the_old_version_is_a_failure_that_is_judged_anew(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, recheck_hours=0.5)
    driver.run(rollout, hours=0.3)
    fallen = planned(rollout)[0]
    assert selectors.cumulative_attempts(rollout) == (0, 8)

    fake_fleet.versions[fallen] = {"bmc": OLD}
    fake_fleet.boots[fallen] += 1
    driver.run(rollout, hours=1)

    attempt = attempt_on(fallen)
    assert attempt.status == "fell_back"
    assert selectors.cumulative_attempts(rollout) == (1, 8)
    assert attempt.machine.state == "awaiting_diagnosis"
    assert not attempt.machine.may_take_work
    assert fallen in fake_fleet.drained
    assert Fault.objects.get(machine=attempt.machine).signature.name == "boot.not_activated"
    runs = FirmwareRecord.objects.filter(machine=attempt.machine, stage="active").latest("since")
    assert (runs.version, runs.evidence["boot_id"]) == (OLD, f"{fallen}-boot-3")


def test_s06_without_a_new_boot_id_it_awaits_its_reboot_and_is_no_success(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, return_timeout_minutes=60)
    stays = planned(rollout)[0]
    fake_fleet.behaviour[stays] = "no_boot"

    driver.run(rollout, hours=0.9)
    waiting = attempt_on(stays)
    driver.run(rollout, hours=3)

    assert waiting.status == "awaiting_reboot"
    assert attempt_on(stays).status == "timed_out"


def test_a_fallen_machine_leaves_service_only_once_its_work_has_ended(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, recheck_hours=0.5)
    driver.run(rollout, hours=0.3)
    fallen = planned(rollout)[0]
    fake_fleet.versions[fallen] = {"bmc": OLD}
    fake_fleet.behaviour[fallen] = "busy"
    driver.run(rollout, hours=1)
    meanwhile = Machine.objects.get(name=fallen)

    del fake_fleet.behaviour[fallen]
    driver.run(rollout, hours=1)

    assert (meanwhile.state, meanwhile.may_take_work) == ("draining", False)
    assert Machine.objects.get(name=fallen).state == "awaiting_diagnosis"


# --- S13: a machine that did not accept a bundle is remembered -----------------------------------


def offered(bundle, rollout: Rollout) -> set[str]:
    return {str(name) for name in read_population(bundle, rollout.selector, besides=None).names}


def back_in_service(name: str) -> None:
    Machine.objects.filter(name=name).update(state="in_service", may_take_work=True)


@pytest.mark.parametrize("behaviour", ["fell back", "fail", "lie"])
def test_s13_a_machine_that_failed_or_left_a_bundle_is_not_offered_it_again_until_cleared(
    fake_fleet: FakeFleet, driver: Driver, behaviour: str
) -> None:
    rollout = started(fake_fleet, recheck_hours=0.5)
    declining = planned(rollout)[0]
    if behaviour == "fell back":
        driver.run(rollout, hours=0.3)
        fake_fleet.versions[declining] = {"bmc": OLD}
    else:
        fake_fleet.behaviour[declining] = behaviour
    driver.run(rollout, hours=3)
    services.cancel(rollout, actor=make_user(), now=driver.now)
    back_in_service(declining)

    assert declining not in offered(rollout.bundle, rollout)
    assert declining in offered(bundle_of("bios"), rollout)  # another bundle is offered normally

    machine, ann = Machine.objects.get(name=declining), make_user("ann")
    with pytest.raises(OrderRefused, match="reason"):
        services.clear(machine, bundle=rollout.bundle, actor=ann, reason=" ", now=driver.now)
    services.clear(
        machine, bundle=rollout.bundle, actor=ann, reason="cable replaced", now=driver.now
    )

    assert declining in offered(rollout.bundle, rollout)
    told = Clearance.objects.get()
    assert (told.actor, told.reason, told.attempt) == (ann, "cable replaced", attempt_on(declining))
    with pytest.raises(OrderRefused, match="nothing to clear"):
        services.clear(machine, bundle=rollout.bundle, actor=ann, reason="again", now=driver.now)


def test_s13_there_is_one_automatic_attempt_per_machine_unless_the_plan_says_more(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    failing = planned(rollout)[0]
    fake_fleet.behaviour[failing] = "fail"
    driver.run(rollout, hours=1)
    back_in_service(failing)

    driver.run(rollout, hours=12)

    assert rollout.attempts.filter(machine__name=failing).count() == 1


def test_s13_a_plan_that_allows_more_attempts_tries_again_after_a_wait_that_doubles(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, max_attempts=3, retry_wait_minutes=120, look_minutes=60)
    failing = planned(rollout)[0]
    fake_fleet.behaviour[failing] = "fail"
    for _ in range(12):
        driver.run(rollout, hours=1)
        driver.now += timedelta(hours=1)
        back_in_service(failing)

    tries = list(rollout.attempts.filter(machine__name=failing).order_by("number"))
    assert [attempt.status for attempt in tries] == ["failed"] * 3
    waits = [
        (later.created_at - earlier.finished_at) / timedelta(hours=1)
        for earlier, later in pairwise(tries)
    ]
    assert 2 <= waits[0] < 4 <= waits[1] < 7
    assert selectors.cumulative_attempts(rollout) == (1, 8)


# --- S16: one message, many deliveries -----------------------------------------------------------


def test_s16_a_message_delivered_six_times_in_any_order_flashes_once(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    order = random.Random(3)
    kept: list[list[int]] = []
    for _ in range(120):
        tasks.evaluate(rollout.pk)
        kept.append(selectors.due_attempts(driver.now))
        for _ in range(6):
            tasks.install(order.choice(kept))
        driver.now = selectors.next_due_at() or driver.now
        if not rollout.attempts.exclude(status="succeeded").exists():
            break

    assert Counter(fake_fleet.flashed) == Counter(planned(rollout))
    assert rollout.attempts.count() == 8
    assert set(rollout.attempts.values_list("status", flat=True)) == {"succeeded"}


# --- what one attempt does, image by image -------------------------------------------------------


def test_images_go_in_the_bundles_order_and_share_a_boot_only_with_their_neighbours(
    fake_fleet: FakeFleet, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ("bmc", "bios", "nic", "cpld")
    ways = {"bmc": "reset", "bios": "reboot", "nic": "reboot", "cpld": "ac_cycle"}
    from tests.rollouts import plans

    make_image = plans.make_image
    monkeypatch.setattr(
        plans, "make_image", lambda kind, version: make_image(kind, version, activation=ways[kind])
    )
    rollout = started(fake_fleet, kinds=kinds)
    one = planned(rollout)[0]

    driver.run(rollout, hours=3)

    assert attempt_on(one).status == "succeeded"
    assert [step[1:] for step in fake_fleet.steps if step[0] == one] == [
        ("stage", ("bmc",)),
        ("activate", ("bmc",)),
        ("commit", ("bmc",)),
        ("stage", ("bios",)),
        ("stage", ("nic",)),
        ("activate", ("bios", "nic")),
        ("commit", ("bios", "nic")),
        ("stage", ("cpld",)),
        ("activate", ("cpld",)),
        ("commit", ("cpld",)),
    ]


def test_nothing_is_put_on_top_of_an_image_that_did_not_take(
    fake_fleet: FakeFleet, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.rollouts import plans

    ways, make_image = {"bmc": "reboot", "cpld": "ac_cycle"}, plans.make_image
    monkeypatch.setattr(
        plans, "make_image", lambda kind, version: make_image(kind, version, activation=ways[kind])
    )
    rollout = started(fake_fleet, kinds=("bmc", "cpld"))
    liar = planned(rollout)[0]
    fake_fleet.behaviour[liar] = "lie"

    driver.run(rollout, hours=3)

    assert attempt_on(liar).status == "wrong_version"
    assert ("stage", ("cpld",)) not in [step[1:] for step in fake_fleet.steps if step[0] == liar]


def test_an_image_has_its_own_time_to_be_written(
    fake_fleet: FakeFleet, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.rollouts import plans

    make_image = plans.make_image
    monkeypatch.setattr(
        plans, "make_image", lambda kind, version: make_image(kind, version, timeout_minutes=5)
    )
    rollout = started(fake_fleet)
    slow = planned(rollout)[0]
    fake_fleet.behaviour[slow] = "occupied"

    driver.run(rollout, hours=0.2)

    attempt = attempt_on(slow)
    assert (attempt.status, attempt.detail) == ("timed_out", "another update is running")
    assert attempt.finished_at - attempt.started_at == timedelta(minutes=5)


def test_two_witnesses_that_disagree_are_a_dispute_and_no_success(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    fake_fleet.witnesses = ("bmc", "host")
    rollout = started(fake_fleet)
    torn = planned(rollout)[0]
    fake_fleet.behaviour[torn] = "disputed"

    driver.run(rollout, hours=3)

    attempt = attempt_on(torn)
    assert attempt.status == "wrong_version"
    assert attempt.detail == f"runs bmc disputed: bmc {NEW}, host {OLD} instead of {NEW}"
    assert FirmwareRecord.objects.filter(machine=attempt.machine, is_disputed=True).count() == 2


def test_a_bmc_that_falls_silent_leaves_the_machine_degraded(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    fake_fleet.witnesses = ("bmc", "host")
    rollout = started(fake_fleet)
    lost = planned(rollout)[0]
    fake_fleet.behaviour[lost] = "lost_bmc"

    driver.run(rollout, hours=3)

    attempt = attempt_on(lost)
    assert (attempt.status, attempt.detail) == ("degraded", "came back without bmc by bmc")


# --- work that has to end first -------------------------------------------------------------------


def test_a_machine_waits_for_its_job_and_says_for_whose_and_until_when(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    busy = planned(rollout)[0]
    end = driver.now + timedelta(hours=5)
    fake_fleet.work[busy] = Occupancy(False, "train-7", "ann", end)

    driver.run(rollout, hours=4)
    waiting = attempt_on(busy)
    driver.run(rollout, hours=3)

    assert (waiting.status, waiting.forecast_at) == ("draining", end)
    assert waiting.detail.startswith("waits for job train-7 of ann, expected to end 2026-03-02 17:")
    assert attempt_on(busy).status == "succeeded"


def test_a_machine_whose_job_outlasts_the_drain_works_on_and_is_taken_when_it_ends(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, drain_timeout_minutes=120)
    busy = planned(rollout)[0]
    end = driver.now + timedelta(hours=30)
    fake_fleet.work[busy] = Occupancy(False, "train-7", "ann", end)

    driver.run(rollout, hours=10)
    deferred = attempt_on(busy)
    gate = deferred.machine.state_changes.latest("pk").gate
    driver.run(rollout, hours=26)

    assert deferred.status == "deferred"
    assert deferred.forecast_at == end - timedelta(hours=1)
    assert deferred.machine.may_take_work
    assert gate == "untouched"
    assert attempt_on(busy).status == "succeeded"
    assert selectors.cumulative_attempts(rollout) == (0, 8)


def test_an_image_that_may_is_written_while_the_job_runs_and_activated_after_it(
    fake_fleet: FakeFleet, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.rollouts import plans

    make_image = plans.make_image
    monkeypatch.setattr(
        plans,
        "make_image",
        lambda kind, version: make_image(kind, version, stages_online=kind != "bios"),
    )
    rollout = started(fake_fleet, kinds=("bmc", "bios", "nic"), stage_while_busy=True)
    busy = planned(rollout)[0]
    fake_fleet.work[busy] = Occupancy(False, "train", "ann", driver.now + timedelta(hours=5))

    driver.run(rollout, hours=4)
    meanwhile = [step[1:] for step in fake_fleet.steps if step[0] == busy]
    shown = FirmwareRecord.objects.filter(machine__name=busy, stage="staged")
    staged = list(shown.values_list("kind", "version"))
    driver.run(rollout, hours=3)

    # What follows the BIOS in the bundle's order waits with it.
    assert meanwhile == [("stage", ("bmc",))]
    assert staged == [("bmc", NEW)]
    assert attempt_on(busy).status == "succeeded"
    assert fake_fleet.versions[busy] == dict.fromkeys(("bmc", "bios", "nic"), NEW)
    assert [s[1] for s in fake_fleet.steps if s[0] == busy].count("stage") == 3


def test_a_halt_gives_back_a_machine_with_staged_images_and_says_which(
    fake_fleet: FakeFleet, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.rollouts import plans

    make_image = plans.make_image
    monkeypatch.setattr(
        plans, "make_image", lambda kind, version: make_image(kind, version, stages_online=True)
    )
    rollout = started(fake_fleet, stage_while_busy=True)
    busy = planned(rollout)[0]
    fake_fleet.work[busy] = Occupancy(False, "train", "ann", driver.now + timedelta(hours=5))
    driver.run(rollout, hours=1)

    services.halt(rollout, actor=make_user(), reason="stop", now=driver.now)
    driver.run(rollout, hours=1)

    attempt = attempt_on(busy)
    assert attempt.status == "called_off"
    assert attempt.detail.endswith("; staged, not activated: bmc 2.0")
    assert fake_fleet.versions[busy] == {"bmc": OLD}
    assert attempt.machine.state == "in_service"
