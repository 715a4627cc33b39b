"""Field cases about orders and about a fleet that changes under a rollout."""

from collections import Counter
from datetime import timedelta

import pytest

from fleet import services as fleet
from fleet.errors import MachineBusy
from fleet.models import Machine
from rollouts import pipeline, selectors, services, tasks
from rollouts.explain import explain
from rollouts.models import Evaluation, Rollout
from rollouts.roster import roster_changes
from tests.factories import make_fault_report, make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import started

pytestmark = pytest.mark.django_db

CAP = {"max_unavailable_share": None}


def planned(rollout: Rollout, wave: int) -> list[Machine]:
    places = rollout.assignments.filter(planned_wave=wave).select_related("machine")
    return [place.machine for place in places.order_by("position")]


def retire(machines: list[Machine], driver: Driver) -> None:
    for machine in machines:
        fleet.retire_machine(machine, actor="ann", now=driver.now, reason="sold")


# --- S09: machines that leave in the middle ------------------------------------------------------


def test_s09_five_of_the_six_that_were_tried_failed_whoever_was_retired_before(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20, waves=[{"count": 10, "window_hours": 48}])
    ten = planned(rollout, 1)
    done, gone, bad = ten[0], ten[1:5], ten[5:]
    for machine in gone:
        fleet.cordon(machine, owner="ann", reason="to be sold", now=driver.now)
    fake_fleet.behaviour = {machine.name: "fail" for machine in bad}
    driver.settle()
    retire([Machine.objects.get(pk=machine.pk) for machine in gone], driver)

    driver.run(rollout, until="halted")
    driver.run(rollout, hours=2)

    assert rollout.status == "halted"
    assert selectors.cumulative_attempts(rollout) == (5, 6)
    ended = dict(rollout.attempts.values_list("machine__name", "status"))
    assert ended[done.name] == "succeeded"
    assert {ended[machine.name] for machine in bad} == {"failed"}
    assert {ended[machine.name] for machine in gone} == {"called_off"}


def test_s09_a_retired_machine_holds_up_nobody(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = started(fake_fleet, machines=20, caps={**CAP, "max_in_flight": 1})
    driver.settle()
    waiting = rollout.attempts.filter(status="queued").first().machine
    retire([waiting], driver)

    driver.run(rollout, hours=10)

    attempt = rollout.attempts.get(machine=waiting)
    assert (attempt.status, attempt.started_at) == ("called_off", None)
    assert "retired" in attempt.detail
    assert selectors.current_wave(rollout).status == "observing"


def test_s09_a_wave_whose_machines_all_left_is_skipped_as_empty_and_the_rollout_finishes(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(
        fake_fleet,
        machines=90,
        look_minutes=1440,
        recheck_hours=500,
        waves=[
            {"count": 64, "window_hours": 24},
            {"count": 9, "window_hours": 24},
            {"count": 8, "window_hours": 24},
        ],
    )
    driver.run(rollout, hours=30)
    while selectors.current_wave(rollout).number < 2:
        driver.run(rollout, hours=3)
    third = planned(rollout, 3)
    names = sorted(machine.name for machine in third)
    retire(third, driver)

    driver.run(rollout, until="completed")

    wave = rollout.waves.get(number=3)
    assert rollout.status == "completed"
    assert (len(third), wave.status) == (8, "skipped")
    assert wave.transitions.get().note == "empty"
    assert [name for name, _ in roster_changes(rollout).retired.machines] == names
    assert not set(names) & set(fake_fleet.flashed)


def test_s09_a_machine_with_an_attempt_in_flight_is_not_deleted(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    driver.settle()
    attempt = rollout.attempts.exclude(started_at=None).first()

    with pytest.raises(MachineBusy, match="has to end"):
        retire([attempt.machine], driver)
    driver.run(rollout, hours=3)
    retire([Machine.objects.get(pk=attempt.machine_id)], driver)

    attempt.refresh_from_db()
    assert attempt.status == "succeeded"
    assert Machine.objects.get(pk=attempt.machine_id).state == "retired"


def test_s09_who_leaves_stays_in_the_arms_that_evidence_is_counted_on(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    driver.run(rollout, hours=6)
    wave = selectors.current_wave(rollout)
    before = pipeline.samples_at(wave, as_of=driver.now, now=driver.now)
    leaves = wave.members.filter(arm="control").first().machine
    retire([leaves], driver)

    after = pipeline.samples_at(wave, as_of=driver.now, now=driver.now)

    assert list(after.units.is_canary) == list(before.units.is_canary)


# --- S11: a stop beats what was ordered before ---------------------------------------------------


def test_s11_a_halt_beats_forty_queued_attempts_and_an_order_to_go_on(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(
        fake_fleet,
        machines=60,
        waves=[{"count": 45, "window_hours": 24}],
        caps={**CAP, "max_in_flight": 5},
    )
    driver.settle()
    ann, bob = make_user("ann"), make_user("bob")
    two = {"actor": ann, "second_person": bob}
    in_flight = rollout.attempts.exclude(started_at=None).count()

    services.halt(rollout, actor=ann, now=driver.now)
    halted_at = driver.now
    driver.run(rollout, hours=6)
    states = Counter(rollout.attempts.values_list("status", flat=True))
    services.override(rollout, **two, reason="seen", now=driver.now)
    rollout.refresh_from_db()
    services.resume(rollout, actor=ann, now=driver.now)

    assert in_flight == 5
    assert states == {"succeeded": 5, "called_off": 40}
    assert not rollout.attempts.filter(started_at__gt=halted_at, status="succeeded").exists()
    # Resuming goes on where the halt stopped it; it skips and widens nothing.
    assert selectors.current_wave(rollout).number == 1
    assert not rollout.transitions.filter(trigger__in=("skip", "widen", "advance")).exists()


# --- S12: no verdict from old evidence -----------------------------------------------------------


def test_s12_after_a_halt_a_new_window_opens_and_the_old_verdict_stays_as_it_was(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    driver.run(rollout, hours=14)
    ann, bob = make_user("ann"), make_user("bob")
    wave = selectors.current_wave(rollout)
    canary = wave.members.filter(arm="canary").first().machine
    report = make_fault_report(canary, time=driver.now - timedelta(minutes=30))
    fleet.record([report], source="t", key="before", now=driver.now)
    services.halt(rollout, actor=ann, now=driver.now)
    old = list(Evaluation.objects.filter(wave=wave).values())
    driver.now += timedelta(hours=1)
    rollout.refresh_from_db()
    services.override(rollout, actor=ann, second_person=bob, reason="mended", now=driver.now)
    services.resume(rollout, actor=ann, now=driver.now)
    resumed = driver.now

    driver.run(rollout, hours=20)

    wave.refresh_from_db()
    later = Evaluation.objects.filter(wave=wave, as_of__gt=resumed)
    assert wave.clock_start == resumed
    assert wave.window_end == resumed + timedelta(hours=48)
    assert later.exists()
    assert later.order_by("look").first().elapsed < 0.2
    assert not wave.decisions.filter(kind="widen").exists()
    assert list(Evaluation.objects.filter(pk__in=[row["id"] for row in old]).values()) == old
    samples = pipeline.samples_at(wave, as_of=driver.now, now=driver.now)
    since = (resumed - samples.origin).total_seconds()
    assert (samples.faults.time_seconds < since).sum() == 1
    assert wave.clock_start > driver.now - timedelta(hours=20, minutes=1)


# --- S19: one rollout that kills its evaluation --------------------------------------------------


def test_s19_the_rollout_whose_evaluation_crashes_says_so_to_everybody_who_asks(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    driver.settle()
    Rollout.objects.filter(pk=rollout.pk).update(
        crashes=tasks.MOST_CRASHES, due_at=driver.now, leased_until=None
    )

    tasks.evaluate(rollout.pk)

    said = [one for one in explain(rollout) if one.what == "evaluation"]
    assert len(said) == 1
    assert said[0].due is not None


# --- S25: others' cordons ------------------------------------------------------------------------


def test_s25_a_rollout_never_lifts_a_cordon_that_it_did_not_set(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    driver.settle()
    attempt = rollout.attempts.exclude(started_at=None).first()
    machine = attempt.machine
    fleet.cordon(machine, owner="ann", reason="waiting for vendor", now=driver.now)
    fleet.cordon(machine, owner="bob", reason="cabling", now=driver.now)

    driver.run(rollout, hours=4)

    machine.refresh_from_db()
    attempt.refresh_from_db()
    assert attempt.status == "succeeded"
    assert (machine.state, machine.may_take_work) == ("in_service", False)
    assert [one.who for one in explain(machine)] == ["ann", "bob"]
