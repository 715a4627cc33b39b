"""What a plan does with canaries after a halt: drain them, or see that nobody reboots them."""

import itertools
from collections import Counter
from datetime import timedelta

import pytest

from fleet import services as fleet
from fleet.models import Cordon, Machine
from rollouts import services
from rollouts.errors import OrderRefused
from rollouts.models import Action, Rollout
from rollouts.services.waves import on_halt
from tests.factories import make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import OLD, started

pytestmark = pytest.mark.django_db


def halted(fake_fleet: FakeFleet, driver: Driver, verb: str) -> Rollout:
    rollout = started(fake_fleet, on_halt={"succeeded": verb}, recheck_hours=1)
    driver.run(rollout, hours=3)
    services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
    return driver.run(rollout, hours=3)


def canaries(rollout: Rollout) -> set[str]:
    return set(rollout.attempts.values_list("machine__name", flat=True))


def idle(rollout: Rollout) -> set[str]:
    machines = Machine.objects.filter(name__in=canaries(rollout), may_take_work=False)
    return set(machines.values_list("name", flat=True))


@pytest.mark.parametrize(
    ("verb", "reason"),
    [
        ("drain", "out of work since the rollout was halted"),
        ("do_not_reboot", "do not reboot: its firmware may not come back"),
    ],
)
def test_canaries_at_work_are_cordoned_by_the_rollout_and_stay_drained(
    fake_fleet: FakeFleet, driver: Driver, verb: str, reason: str
) -> None:
    rollout = halted(fake_fleet, driver, verb)

    assert idle(rollout) == fake_fleet.drained == canaries(rollout)
    assert set(Cordon.objects.values_list("owner", "reason", "lifted_at")) == {
        (rollout.actor, reason, None)
    }
    actions = rollout.actions.filter(kind=verb)
    assert actions.count() == 8
    assert {action.order.kind for action in actions} == {"halt"}


def test_canaries_that_are_left_go_on_working(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = halted(fake_fleet, driver, "leave")

    assert idle(rollout) == fake_fleet.drained == set()


def test_whoever_ends_after_the_halt_is_drained_too(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = started(fake_fleet, on_halt={"succeeded": "drain"})
    driver.settle()

    services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
    driver.run(rollout, hours=3)

    succeeded = set(
        rollout.attempts.filter(status="succeeded").values_list("machine__name", flat=True)
    )
    assert succeeded
    assert idle(rollout) == succeeded


def test_a_failed_machine_is_out_of_service_already_and_is_marked_not_to_be_rebooted(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, kinds=("bmc", "bios"))
    half = rollout.assignments.filter(planned_wave=1).first().machine_name
    fake_fleet.behaviour[half] = "half"
    driver.run(rollout, hours=6)

    services.halt(rollout, actor=make_user(), reason="partial", now=driver.now)
    driver.run(rollout, hours=1)

    ended = rollout.attempts.get(machine__name=half)
    assert ended.status == "partial"
    assert ended.actions.filter(kind="do_not_reboot").exists()
    assert not Cordon.objects.exists()


def test_the_scheduler_is_told_again_until_it_answers(
    fake_fleet: FakeFleet, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = started(fake_fleet, on_halt={"succeeded": "drain"})
    driver.run(rollout, hours=3)
    with monkeypatch.context() as patch:
        patch.setattr(fake_fleet, "drain", lambda *_, **__: (_ for _ in ()).throw(OSError()))
        services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
        driver.run(rollout, hours=1)
        assert len(idle(rollout)) == 8
        assert not Action.objects.filter(kind="drain").exists()

    driver.run(rollout, hours=1)

    assert fake_fleet.drained == canaries(rollout)
    assert Counter(rollout.actions.values_list("kind", flat=True))["drain"] == 8


def test_resuming_after_an_override_puts_canaries_back_to_work(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = halted(fake_fleet, driver, "drain")
    ann, bob = make_user(), make_user()
    services.override(rollout, actor=ann, second_person=bob, reason="a cable", now=driver.now)

    rollout.refresh_from_db()
    services.resume(rollout, actor=ann, now=driver.now)
    driver.run(rollout, hours=1)

    assert idle(rollout) == fake_fleet.drained == set()


def test_a_second_halt_drains_them_again(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = halted(fake_fleet, driver, "drain")
    ann, bob = make_user(), make_user()
    services.override(rollout, actor=ann, second_person=bob, reason="a cable", now=driver.now)
    rollout.refresh_from_db()
    services.resume(rollout, actor=ann, now=driver.now)
    driver.run(rollout, hours=1)
    driver.now += timedelta(hours=1)

    services.halt(rollout, actor=ann, reason="again", now=driver.now)
    driver.run(rollout, hours=1)

    assert len(idle(rollout)) == 8


def test_a_person_releases_machines_by_name_and_nobody_elses_cordon_is_lifted(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = halted(fake_fleet, driver, "drain")
    first, second, *_ = sorted(canaries(rollout))
    fleet.cordon(
        Machine.objects.get(name=second), owner="ann", reason="waits for parts", now=driver.now
    )

    services.release(
        rollout, machines=[first, second], actor=make_user(), reason="cable", now=driver.now
    )
    driver.run(rollout, hours=1)

    assert idle(rollout) == canaries(rollout) - {first}
    assert first not in fake_fleet.drained
    assert Cordon.objects.get(owner="ann").lifted_at is None


@pytest.mark.parametrize(("verb", "back"), [("leave", 8), ("drain", 8), ("do_not_reboot", 0)])
def test_a_person_takes_everybody_back_but_those_that_are_not_to_be_rebooted(
    fake_fleet: FakeFleet, driver: Driver, verb: str, back: int
) -> None:
    rollout = halted(fake_fleet, driver, verb)

    services.roll_back(rollout, actor=make_user(), reason="slow", now=driver.now)
    driver.run(rollout, until="rolled_back", hours=12)

    assert rollout.status == "rolled_back"
    returned = [name for name in canaries(rollout) if fake_fleet.versions[name]["bmc"] == OLD]
    assert len(returned) == back
    assert len(idle(rollout)) == 8 - back


def test_only_what_the_rollout_holds_is_released(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = halted(fake_fleet, driver, "leave")

    with pytest.raises(OrderRefused) as refused:
        services.release(rollout, machines=["r0039"], actor=make_user(), reason="", now=driver.now)

    assert refused.value.reasons == [
        "releasing a machine needs a reason",
        "r0039 is not held by update",
    ]


def test_in_observe_mode_a_halt_does_nothing_with_canaries(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, mode="observe", on_halt={"succeeded": "drain"})
    driver.run(rollout, hours=3)

    services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
    driver.run(rollout, hours=1)

    assert idle(rollout) == set()


def test_a_silent_scheduler_holds_no_worker_once_per_machine(
    fake_fleet: FakeFleet, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = started(fake_fleet, on_halt={"succeeded": "drain"})
    driver.run(rollout, hours=3)
    asked: list[str] = []

    def silent(machine: str, **_: object) -> None:
        asked.append(machine)
        raise TimeoutError

    with monkeypatch.context() as patch:
        seconds = itertools.count(step=15)  # one time-out takes 15 s of a pass's 20 s
        patch.setattr(on_halt.time, "monotonic", lambda: float(next(seconds)))
        patch.setattr(fake_fleet, "drain", silent)
        services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
        on_halt.carry_out(Rollout.objects.get(pk=rollout.pk), now=driver.now)

    assert len(asked) == 1
    assert len(idle(rollout)) == 8  # kept from work by their rows, whatever the scheduler does
