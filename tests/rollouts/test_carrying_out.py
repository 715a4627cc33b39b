"""Whole rollouts over a fake fleet: who is flashed, what a failure does, what a halt does."""

from collections import Counter
from datetime import timedelta

import pytest

from fleet import services as fleet_services
from fleet.models import FirmwareImage, FirmwareRecord, Machine, StateChange
from rollouts import pipeline, selectors, services, tasks
from rollouts.models import Attempt, Decision, Membership, Order, Rollout, Transition
from tests.factories import make_image, make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import NEW, OLD, started

pytestmark = pytest.mark.django_db


def canaries(rollout: Rollout, *, wave: int = 1) -> list[str]:
    members = Membership.objects.filter(
        wave__rollout=rollout, wave__number=wave, arm="canary"
    ).order_by("machine__name")
    return list(members.values_list("machine__name", flat=True))


def planned(rollout: Rollout, *, wave: int = 1) -> list[str]:
    return list(
        rollout.assignments.filter(planned_wave=wave)
        .order_by("machine_name")
        .values_list("machine_name", flat=True)
    )


def test_a_sound_bundle_reaches_every_machine_and_completes(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(
        fake_fleet,
        machines=140,
        waves=[{"count": 70, "window_hours": 24}, {"rest": True, "window_hours": 24}],
    )

    driver.run(rollout, until="completed")

    assert rollout.status == "completed"
    assert {v["bmc"] for v in fake_fleet.versions.values()} == {NEW}
    assert max(Counter(fake_fleet.flashed).values()) == 1
    assert not Machine.objects.exclude(state="in_service").exists()
    assert [w.status for w in selectors.waves_of(rollout)] == ["widened"] * 3


def test_machines_that_are_not_treated_are_left_alone(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)

    driver.run(rollout, hours=12)

    assert sorted(fake_fleet.flashed) == canaries(rollout) == planned(rollout)
    assert len(fake_fleet.flashed) == 8


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        ("reject", "rejected"),
        ("fail", "failed"),
        ("lie", "wrong_version"),
        ("vanish", "never_returned"),
        ("no_boot", "timed_out"),
        ("half", "partial"),
    ],
)
def test_each_way_to_fail_ends_in_its_class_and_sends_the_machine_to_diagnosis(
    fake_fleet: FakeFleet, driver: Driver, behaviour: str, status: str
) -> None:
    rollout = started(fake_fleet, kinds=("bmc", "bios"))
    bad = planned(rollout)[0]
    fake_fleet.behaviour[bad] = behaviour

    driver.run(rollout, hours=12)

    attempt = Attempt.objects.get(machine__name=bad)
    assert attempt.status == status
    assert attempt.detail
    assert Machine.objects.get(name=bad).state == "awaiting_diagnosis"
    assert not Machine.objects.get(name=bad).may_take_work


@pytest.mark.parametrize("behaviour", ["reject", "fail", "lie", "no_boot", "half"])
def test_eight_of_twenty_ending_in_any_failure_class_halt_the_wave(
    fake_fleet: FakeFleet, driver: Driver, behaviour: str
) -> None:
    rollout = started(
        fake_fleet,
        machines=60,
        kinds=("bmc", "bios"),
        waves=[{"count": 20, "window_hours": 48}],
    )
    for bad in planned(rollout)[:8]:
        fake_fleet.behaviour[bad] = behaviour

    driver.run(rollout, hours=24)

    assert rollout.status == "halted"


def test_a_machine_that_never_returns_holds_new_starts_until_it_is_triaged(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, batch_size=1)
    first = Attempt.objects  # filled once the first block starts
    driver.settle()
    lost = first.get().machine.name
    fake_fleet.behaviour[lost] = "vanish"
    driver.run(rollout, hours=6)
    held = len(fake_fleet.flashed)

    services.triage(first.get(machine__name=lost), outcome="recovered", actor="ann", now=driver.now)
    driver.run(rollout, hours=6)

    assert held == 1
    assert len(fake_fleet.flashed) == 8


def test_a_brick_in_a_smoke_wave_halts_at_once(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = started(fake_fleet)
    lost = planned(rollout)[0]
    fake_fleet.behaviour[lost] = "vanish"
    driver.run(rollout, hours=3)

    services.triage(
        Attempt.objects.get(machine__name=lost), outcome="bricked", actor="ann", now=driver.now
    )
    driver.settle()

    rollout.refresh_from_db()
    assert rollout.status == "halted"
    assert Decision.objects.filter(kind="halt", reason_code="hard_stop").count() == 1


def test_no_attempt_starts_after_a_halt_and_those_in_flight_go_to_their_end(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(
        fake_fleet,
        waves=[{"count": 8, "window_hours": 48, "allows_smoke": True}],
        guardrails=[{"metric": "install", "halt": False}],
    )
    driver.settle()
    in_flight = set(Attempt.objects.exclude(status="queued").values_list("pk", flat=True))

    services.halt(rollout, actor=make_user(), reason="smoke", now=driver.now)
    driver.run(rollout, hours=12)

    assert rollout.status == "halted"
    assert len(in_flight) == 3
    ended = Counter(Attempt.objects.values_list("status", flat=True))
    assert ended == {"called_off": 5, "succeeded": 3}


def test_a_halt_before_anything_was_written_gives_the_machine_back_untouched(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    busy = planned(rollout)[0]
    fake_fleet.behaviour[busy] = "busy"
    driver.run(rollout, hours=1)

    services.halt(rollout, actor=make_user(), reason="enough", now=driver.now)
    fake_fleet.behaviour[busy] = "ok"
    driver.run(rollout, hours=1)

    machine = Machine.objects.get(name=busy)
    assert machine.state == "in_service"
    assert fake_fleet.versions[busy] == {"bmc": OLD}
    back = StateChange.objects.filter(machine=machine, new_state="in_service").latest("pk")
    assert back.gate == "untouched"


def test_a_halt_rolls_back_to_the_versions_that_ran_before(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, on_halt={"succeeded": "roll_back"})
    driver.run(rollout, hours=12)

    services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
    driver.run(rollout, until="rolled_back")

    assert rollout.status == "rolled_back"
    assert {v["bmc"] for v in fake_fleet.versions.values()} == {OLD}
    child = rollout.children.get()
    assert child.status == "completed"
    assert child.attempts.count() == 8
    latest = FirmwareRecord.objects.filter(machine__name=canaries(rollout)[0], stage="active")
    assert list(latest.order_by("since", "pk").values_list("version", flat=True))[-1] == OLD


def test_a_task_delivered_twice_flashes_once(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = started(fake_fleet)
    for _ in range(400):
        if not selectors.has_due_work(driver.now):
            due = selectors.next_due_at()
            if due is None or rollout.status != "running":
                break
            driver.now = due
        for _ in range(2):
            tasks.evaluate(rollout.pk)
            tasks.install(selectors.due_attempts(driver.now))
        rollout.refresh_from_db()
        if rollout.decisions.count() > 3:
            break

    assert sorted(Counter(fake_fleet.flashed).values()) == [1] * 8
    moves = Counter(Transition.objects.values_list("wave", "old_status", "new_status"))
    assert set(moves.values()) == {1}


def test_a_pause_keeps_the_length_of_the_window(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = started(fake_fleet)
    driver.run(rollout, hours=12)
    before = selectors.waves_of(rollout)[0]
    operator = make_user()

    services.pause(rollout, actor=operator, now=driver.now)
    driver.now = driver.now.replace(year=driver.now.year + 1)
    driver.settle()
    services.resume(rollout, actor=operator, now=driver.now)

    after = selectors.waves_of(rollout)[0]
    passed = driver.now.replace(year=driver.now.year) - driver.now.replace(year=driver.now.year - 1)
    assert after.window_end - before.window_end == passed
    assert after.looks == before.looks


def test_an_override_needs_a_reason_and_a_second_person(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    from rollouts.errors import OrderRefused, SamePerson

    rollout = started(fake_fleet)
    driver.run(rollout, hours=12)
    ann, bob = make_user("ann"), make_user("bob")
    services.halt(rollout, actor=ann, reason="x", now=driver.now)
    rollout.refresh_from_db()

    with pytest.raises(OrderRefused, match="reason"):
        services.override(rollout, actor=ann, second_person=bob, reason=" ", now=driver.now)
    with pytest.raises(SamePerson):
        services.override(rollout, actor=ann, second_person=ann, reason="y", now=driver.now)
    services.override(rollout, actor=ann, second_person=bob, reason="y", now=driver.now)

    assert rollout.status == "paused"
    assert rollout.is_overridden
    assert Order.objects.filter(kind="override", second_person=bob).count() == 1


def test_evidence_before_an_override_does_not_count_again(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    driver.run(rollout, hours=12)
    ann, bob = make_user("ann"), make_user("bob")
    services.halt(rollout, actor=ann, reason="x", now=driver.now)
    rollout.refresh_from_db()
    services.override(rollout, actor=ann, second_person=bob, reason="fixed", now=driver.now)
    old = selectors.waves_of(rollout)[0]

    services.resume(rollout, actor=ann, now=driver.now)

    wave = selectors.waves_of(rollout)[0]
    assert wave.clock_start == driver.now > old.clock_start
    assert "state" not in wave.judge_state
    assert wave.evaluations.count() == old.evaluations.count() > 0


def test_what_happens_in_a_pause_is_no_evidence(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = started(fake_fleet)
    driver.run(rollout, hours=12)
    operator = make_user()
    services.pause(rollout, actor=operator, now=driver.now)
    paused = driver.now
    driver.now += timedelta(hours=5)
    services.resume(rollout, actor=operator, now=driver.now)
    wave = selectors.waves_of(rollout)[0]
    later = driver.now + timedelta(hours=1)

    samples = pipeline.samples_at(wave, as_of=later, now=later)

    assert selectors.pauses(rollout) == [(paused, driver.now)]
    passed = later - wave.clock_start - timedelta(hours=5)
    assert samples.as_of_seconds == passed.total_seconds()
    look = pipeline.look_at(wave, samples, as_of=later)
    assert look.elapsed == pytest.approx(passed / timedelta(hours=48))


def test_a_resumed_override_is_not_halted_again_by_what_was_overridden(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(
        fake_fleet, machines=60, kinds=("bmc", "bios"), waves=[{"count": 20, "window_hours": 48}]
    )
    for bad in planned(rollout)[:8]:
        fake_fleet.behaviour[bad] = "fail"
    driver.run(rollout, hours=24)
    assert rollout.status == "halted"
    ann, bob = make_user("ann"), make_user("bob")
    services.override(rollout, actor=ann, second_person=bob, reason="bad cables", now=driver.now)

    services.resume(rollout, actor=ann, now=driver.now)
    driver.run(rollout, hours=24)

    assert rollout.status == "running"
    assert rollout.decisions.order_by("-pk").first().kind == "hold"


def test_a_roll_back_is_not_taken_for_machines_falling_back(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, on_halt={"succeeded": "roll_back"}, recheck_hours=1)
    driver.run(rollout, hours=12)
    services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)

    driver.run(rollout, until="rolled_back")
    driver.run(rollout, hours=48)

    assert not Attempt.objects.filter(status="fell_back").exists()


def test_a_machine_that_runs_the_old_version_again_fell_back(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, recheck_hours=1)
    driver.run(rollout, hours=6)
    bad = planned(rollout)[0]

    fake_fleet.versions[bad] = {"bmc": OLD}
    fake_fleet.boots[bad] += 1
    driver.run(rollout, hours=2)

    assert Attempt.objects.get(machine__name=bad).status == "fell_back"


def test_a_queue_behind_a_cap_is_never_given_up(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = started(
        fake_fleet,
        caps={"max_in_flight": 1, "max_unavailable_share": None},
        drain_timeout_minutes=5,
    )

    driver.run(rollout, hours=12)

    assert len(fake_fleet.flashed) == 8
    assert not Attempt.objects.filter(status="called_off").exists()


def test_a_machine_that_stays_unavailable_is_called_off_and_no_failure(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, drain_timeout_minutes=60)
    away = planned(rollout)[0]
    fleet_services.cordon(
        Machine.objects.get(name=away), owner="ann", reason="waits for the vendor", now=driver.now
    )

    driver.run(rollout, hours=24)

    assert Attempt.objects.get(machine__name=away).status == "called_off"
    assert selectors.cumulative_attempts(rollout) == (0, 7)
    assert away not in fake_fleet.flashed
    assert Machine.objects.get(name=away).cordons.get().lifted_at is None


def test_what_is_asked_of_a_machine_cites_the_order_or_decision_behind_it(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(
        fake_fleet,
        machines=140,
        waves=[{"count": 70, "window_hours": 24}, {"rest": True, "window_hours": 24}],
        batch_size=35,
    )

    driver.run(rollout, hours=40)

    first, second, _ = selectors.waves_of(rollout)
    assert {action.order.kind for action in rollout.actions.filter(attempt__wave=first)} == {
        "start"
    }
    later = rollout.actions.filter(attempt__wave=second)
    assert later.count() >= 28  # its first block at least
    assert {(action.decision.wave, action.decision.kind) for action in later} == {(first, "widen")}


def test_a_version_that_is_spelt_another_way_is_the_one_that_was_wanted(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    FirmwareImage.objects.filter(version=NEW).update(scheme="vendor_letters")
    fake_fleet.spelling = {NEW: NEW.replace(".", "-")}

    driver.run(rollout, hours=6)

    assert set(Attempt.objects.values_list("status", flat=True)) == {"succeeded"}


def test_a_roll_back_returns_every_part_of_a_kind_to_its_own_version(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, kinds=("nic",), on_halt={"succeeded": "roll_back"})
    two = planned(rollout)[0]
    fake_fleet.versions[two] = {"nic/1": OLD, "nic/2": "1.1"}
    make_image("nic", "1.1")
    driver.run(rollout, hours=12)
    assert fake_fleet.versions[two] == {"nic/1": NEW, "nic/2": NEW}

    services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
    driver.run(rollout, until="rolled_back")

    assert fake_fleet.versions[two] == {"nic/1": OLD, "nic/2": "1.1"}
    back = Attempt.objects.get(rollout__parent=rollout, machine__name=two)
    assert {(target["slot"], target["version"]) for target in back.targets} == {
        ("1", OLD),
        ("2", "1.1"),
    }


def test_triage_is_a_record_of_its_own(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = started(fake_fleet, batch_size=1)
    driver.settle()
    lost = Attempt.objects.get()
    fake_fleet.behaviour[lost.machine.name] = "vanish"
    driver.run(rollout, hours=6)
    lost.refresh_from_db()

    for _ in range(2):
        services.triage(lost, outcome="recovered", actor="ann", now=driver.now)

    told = lost.events.filter(detail__startswith="triaged")
    assert [event.detail for event in told] == ["triaged as recovered by ann"]


def test_a_wave_that_stays_without_data_is_held_at_its_end(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, guardrails=[{"metric": "throughput", "required": True}])

    driver.run(rollout, hours=24 * 7)

    wave = selectors.waves_of(rollout)[0]
    assert wave.status == "held"
    last = selectors.standing_decisions(wave).first()
    assert last.reason_code == "no_data"
    assert last.as_of == wave.extension_end
    assert len(fake_fleet.flashed) == 8


def test_an_advised_widen_waits_for_its_confirmation(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = started(
        fake_fleet, machines=140, waves=[{"count": 70, "window_hours": 24}], mode="advise"
    )
    driver.run(rollout, hours=24 * 7)
    wave = selectors.waves_of(rollout)[0]
    assert wave.status == "observing"
    assert not wave.is_extended

    services.advance(rollout, actor=make_user(), now=driver.now)
    driver.run(rollout, until="completed")

    assert rollout.status == "completed"


def test_installs_are_judged_after_an_override_by_those_of_all_waves(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    # All 70 installs are in before the halt: none falls into the new window, and together they
    # still show that installs are not worse.
    rollout = started(fake_fleet, machines=140, waves=[{"count": 70, "window_hours": 48}])
    driver.run(rollout, hours=10)
    ann, bob = make_user("ann"), make_user("bob")
    services.halt(rollout, actor=ann, reason="x", now=driver.now)
    rollout.refresh_from_db()
    services.override(rollout, actor=ann, second_person=bob, reason="no", now=driver.now)

    services.resume(rollout, actor=ann, now=driver.now)
    driver.run(rollout, until="completed")

    assert rollout.status == "completed"
    assert selectors.waves_of(rollout)[0].status == "widened"
