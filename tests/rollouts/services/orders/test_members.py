"""Orders about single machines of a rollout: tried again, or left alone."""

from datetime import timedelta
from typing import Any

import pytest

from fleet.models import Machine
from rollouts import pipeline, selectors, services
from rollouts.errors import OrderRefused
from rollouts.lifecycle import AttemptStatus
from rollouts.models import Attempt, Membership, Rollout
from tests.factories import make_user
from tests.rollouts import rows
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import NEW, started

pytestmark = pytest.mark.django_db


def with_one_failure(
    fake_fleet: FakeFleet, driver: Driver, **changes: Any
) -> tuple[Rollout, Machine]:
    """A rollout of which one canary failed by an ordinary failure; it is out for diagnosis."""
    rollout = started(fake_fleet, machines=20, **changes)
    name = rollout.assignments.filter(planned_wave=1).first().machine_name
    fake_fleet.behaviour[name] = "fail"
    driver.run(rollout, hours=2)
    return rollout, Machine.objects.get(name=name)


def repaired(machine: Machine) -> None:
    Machine.objects.filter(pk=machine.pk).update(state="in_service", may_take_work=True)


def retry(rollout: Rollout, *machines: str, driver: Driver, reason: str = "cable") -> Any:
    return services.retry(
        rollout, machines=machines, actor=make_user(), reason=reason, now=driver.now
    )


# --- retry ---------------------------------------------------------------------------------------


def test_a_failed_machine_is_tried_again_by_order_once_it_is_back_in_service(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout, machine = with_one_failure(fake_fleet, driver)
    fake_fleet.behaviour.clear()
    repaired(machine)

    order = retry(rollout, machine.name, driver=driver)
    driver.run(rollout, hours=2)

    tries = rollout.attempts.filter(machine=machine).order_by("number")
    assert [attempt.status for attempt in tries] == ["failed", "succeeded"]
    assert tries.last().actions.get().order == order
    assert order.parameters == {"machines": [machine.name], "beyond_plan": [machine.name]}
    assert fake_fleet.versions[machine.name] == {"bmc": NEW}


def test_a_retry_that_succeeds_leaves_the_failure_in_the_evidence(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout, machine = with_one_failure(fake_fleet, driver)
    before = selectors.cumulative_attempts(rollout)
    wave = selectors.current_wave(rollout)
    fake_fleet.behaviour.clear()
    repaired(machine)

    retry(rollout, machine.name, driver=driver)
    driver.run(rollout, hours=2)

    assert before == (1, 8)
    assert selectors.cumulative_attempts(rollout) == (1, 8)
    assert sorted(selectors.install_outcomes(wave)) == ["failed"] + ["succeeded"] * 7
    samples = pipeline.samples_at(wave, as_of=driver.now, now=driver.now)
    assert len(samples.attempts.outcome) == 8


def test_a_machine_that_bricks_at_its_second_try_counts_as_a_brick(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout, machine = with_one_failure(fake_fleet, driver)
    repaired(machine)
    retry(rollout, machine.name, driver=driver)
    second = rollout.attempts.get(machine=machine, number=2)
    Attempt.objects.filter(pk=second.pk).update(
        status=AttemptStatus.NEVER_RETURNED, triage="bricked", finished_at=driver.now
    )

    outcomes = selectors.install_outcomes(selectors.current_wave(rollout))

    assert outcomes.count("bricked") == 1


def test_a_retry_names_every_machine_that_cannot_be_tried_and_does_nothing(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout, machine = with_one_failure(fake_fleet, driver)
    done = rollout.attempts.filter(status="succeeded").first().machine.name
    orders = rollout.orders.count()

    with pytest.raises(OrderRefused) as refusal:
        retry(rollout, machine.name, done, "r9999", driver=driver, reason=" ")

    assert refusal.value.reasons == [
        "a retry needs a reason",
        f"{machine.name} is awaiting_diagnosis; it has to be back in service first",
        f"{done}: its last attempt is succeeded; only a failed one is tried again",
        "r9999 has not been tried in this rollout",
    ]
    assert rollout.orders.count() == orders
    assert not rollout.attempts.filter(number=2).exists()


def test_a_machine_that_never_returned_is_triaged_before_it_is_tried_again(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout, machine = with_one_failure(fake_fleet, driver)
    repaired(machine)
    rollout.attempts.filter(machine=machine).update(status="never_returned")

    with pytest.raises(OrderRefused, match="triage it first"):
        retry(rollout, machine.name, driver=driver)


def test_nothing_is_retried_after_a_halt(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout, machine = with_one_failure(fake_fleet, driver)
    repaired(machine)
    services.halt(rollout, actor=make_user(), now=driver.now)

    with pytest.raises(OrderRefused, match="is halted"):
        retry(rollout, machine.name, driver=driver)


def test_a_machine_of_an_earlier_wave_can_be_tried_again_while_a_later_one_runs(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout, machine = with_one_failure(fake_fleet, driver)
    wave = selectors.current_wave(rollout)
    wave.__class__.objects.filter(pk=wave.pk).update(status="widened", next_look_at=None)
    fake_fleet.behaviour.clear()
    repaired(machine)

    retry(rollout, machine.name, driver=driver)
    driver.run(rollout, hours=3)

    assert rollout.attempts.get(machine=machine, number=2).status == "succeeded"


# --- exclude -------------------------------------------------------------------------------------


def test_an_excluded_machine_is_left_alone_and_stays_in_its_arm(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    name = rollout.assignments.filter(planned_wave=1).first().machine_name

    services.exclude(
        rollout, machines=[name], actor=make_user(), reason="vendor test", now=driver.now
    )
    driver.run(rollout, hours=2)

    wave = selectors.current_wave(rollout)
    member = wave.members.get(machine__name=name)
    assert member.arm == Membership.Arm.CANARY
    assert wave.members.filter(arm="canary").count() == 8
    assert name not in fake_fleet.flashed
    assert not rollout.attempts.filter(machine__name=name).exists()
    samples = pipeline.samples_at(wave, as_of=driver.now, now=driver.now)
    assert int(samples.units.is_canary.sum()) == 8


def test_excluding_calls_off_what_waits_and_lets_the_block_close(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(
        fake_fleet, machines=20, caps={"max_in_flight": 1, "max_unavailable_share": None}
    )
    driver.settle()
    waiting = rollout.attempts.filter(status="queued").first()

    services.exclude(
        rollout,
        machines=[waiting.machine.name],
        actor=make_user(),
        reason="reserved",
        now=driver.now,
    )

    waiting.refresh_from_db()
    assert waiting.status == "called_off"
    driver.run(rollout, hours=10)
    assert selectors.current_wave(rollout).status != "installing"


def test_a_wave_with_an_excluded_canary_is_advisory_and_waits_for_its_confirmation(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = rows.running(mode="automatic")
    pipeline.enact(rollout, now=driver.now)
    wave = rollout.waves.get(number=1)
    rows.look(wave, kind="widen", code="not_worse")
    rollout.waves.filter(pk=wave.pk).update(status="observing")
    name = wave.members.filter(arm="canary").first().machine.name
    services.exclude(rollout, machines=[name], actor=make_user(), reason="x", now=driver.now)
    rollout.refresh_from_db()

    pipeline.enact(rollout, now=driver.now + timedelta(hours=7))
    wave.refresh_from_db()
    untouched = wave.status
    services.advance(rollout, actor=make_user(), now=driver.now + timedelta(hours=8))

    wave.refresh_from_db()
    assert (untouched, wave.status) == ("observing", "widened")


def test_excluding_needs_a_reason_and_machines_of_the_rollout(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)

    with pytest.raises(OrderRefused) as refusal:
        services.exclude(
            rollout, machines=["elsewhere"], actor=make_user(), reason="", now=driver.now
        )
    with pytest.raises(OrderRefused, match="at least one machine"):
        services.exclude(rollout, machines=[], actor=make_user(), reason="x", now=driver.now)

    assert refusal.value.reasons == [
        "excluding a machine needs a reason",
        "elsewhere is no machine of this rollout",
    ]
