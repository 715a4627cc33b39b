"""The scheduler is told of every change until it has taken it; what may not work it never gets."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone

from fleet import services, tasks
from fleet.adapters import Occupancy
from fleet.leases import LEASE
from fleet.lifecycle import State, Trigger
from fleet.models import Machine, SchedulerWord, TakeOut
from tests.factories import NOW, make_machine, make_machines, make_passed_gate

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


class Recorder:
    """A scheduler that keeps what it was told; drains by reason, as ours does."""

    drains: dict[str, set[str]]
    foreign: dict[str, str]
    busy: set[str]
    is_away = False
    calls = 0

    def drain(self, machine: str, *, reason: str, now) -> Occupancy:
        self._called()
        if whose := Recorder.foreign.get(machine):
            return Occupancy(is_idle=False, drained_by=whose)
        Recorder.drains.setdefault(machine, set()).add(reason)
        return Occupancy(is_idle=machine not in Recorder.busy)

    def release(self, machine: str, *, reason: str, now) -> None:
        self._called()
        Recorder.drains.get(machine, set()).discard(reason)

    def jobs(self, *, now) -> None:
        return None

    @staticmethod
    def _called() -> None:
        Recorder.calls += 1
        if Recorder.is_away:
            raise ConnectionError("the scheduler is away")


@pytest.fixture(autouse=True)
def scheduler(settings) -> Iterator[type[Recorder]]:
    settings.SCHEDULER = f"{__name__}.Recorder"
    Recorder.drains, Recorder.foreign, Recorder.busy = {}, {}, set()
    Recorder.is_away, Recorder.calls = False, 0
    return Recorder


def tell(*, now=NOW) -> int:
    return services.tell_scheduler(now=now)


def reasons(machine: Machine) -> set[str]:
    return Recorder.drains.get(machine.name, set())


def test_a_machine_out_of_service_is_drained_and_freed_when_it_is_back():
    machine = make_machine(state=State.AWAITING_RELEASE)
    tell()
    assert reasons(machine) == {"coalmine"}

    gate = make_passed_gate(machine)
    services.move_machine(machine, Trigger.RELEASE, actor="ann", now=NOW, gate_record=gate)
    tell()

    assert reasons(machine) == set()


def test_what_was_told_is_not_told_again_for_an_hour():
    make_machine(state=State.AWAITING_REPAIR)
    make_machine()

    assert (tell(), tell(now=NOW + HOUR / 2)) == (1, 0)
    assert Recorder.calls == 1
    assert tell(now=NOW + 2 * HOUR) == 1


def test_a_scheduler_that_was_away_is_told_when_it_is_back():
    machine = make_machine(state=State.AWAITING_REPAIR)
    Recorder.is_away = True
    assert tell() == 0

    Recorder.is_away = False

    assert tell() == 1
    assert reasons(machine) == {"coalmine"}


def test_a_release_that_was_lost_is_repeated():
    machine = make_machine(state=State.AWAITING_RELEASE)
    tell()
    gate = make_passed_gate(machine)
    services.move_machine(machine, Trigger.RELEASE, actor="ann", now=NOW, gate_record=gate)
    Recorder.is_away = True
    tell()
    assert reasons(machine) == {"coalmine"}

    Recorder.is_away = False
    tell()

    assert reasons(machine) == set()


def test_a_scheduler_that_is_away_is_asked_a_few_times_and_then_left():
    make_machines(20, state=State.AWAITING_REPAIR)
    Recorder.is_away = True

    tell()

    assert Recorder.calls == 3


def test_one_machine_that_it_does_not_know_holds_up_no_other(monkeypatch):
    strange, *others = make_machines(5, state=State.AWAITING_REPAIR)
    plain = Recorder.drain

    def drain(self, machine, **words):
        if machine == strange.name:
            raise ConnectionError("no such node")
        return plain(self, machine, **words)

    monkeypatch.setattr(Recorder, "drain", drain)

    assert tell() == 4
    assert all(reasons(machine) for machine in others)


def test_a_cordon_by_a_person_is_told_and_its_lift_too():
    machine = make_machine()
    cordon = services.cordon(machine, owner="ann", reason="waiting for vendor", now=NOW)
    tell()
    assert reasons(machine) == {"coalmine"}

    services.lift_cordon(cordon, owner="ann", now=NOW)
    tell()

    assert reasons(machine) == set()


@pytest.mark.parametrize("state", [State.DRAINING, State.UPDATING, State.VERIFYING])
def test_a_machine_in_a_rollouts_hands_is_the_rollouts_to_speak_of(state):
    make_machine(state=state)

    assert tell() == 0
    assert Recorder.calls == 0


def test_a_machine_that_a_rollout_drained_is_kept_away_under_the_rollouts_reason_only():
    machine = make_machine()
    Recorder().drain(machine.name, reason="rollout:7", now=NOW)
    for trigger in (Trigger.DRAIN, Trigger.START_UPDATE, Trigger.FAIL_UPDATE):
        services.move_machine(machine, trigger, actor="rollout:7", now=NOW)

    tell()

    assert reasons(machine) == {"rollout:7"}
    Machine.objects.filter(pk=machine.pk).update(state=State.AWAITING_RELEASE)
    machine.refresh_from_db()
    gate = make_passed_gate(machine)
    services.move_machine(machine, Trigger.RELEASE, actor="ann", now=NOW, gate_record=gate)
    tell()
    assert reasons(machine) == set()


def test_a_machine_that_a_rollout_gave_back_is_kept_away_later_under_our_own_reason():
    machine = make_machine()
    for trigger, gate in ((Trigger.DRAIN, ""), (Trigger.CALL_OFF, "untouched")):
        services.move_machine(machine, trigger, actor="rollout:7", now=NOW, gate=gate)
    services.move_machine(machine, Trigger.TAKE_OUT, actor="kim", now=NOW)

    tell()

    assert reasons(machine) == {"coalmine"}


def test_a_drain_that_a_rollout_leaves_behind_under_a_persons_cordon_is_lifted_with_it():
    machine = make_machine()
    cordon = services.cordon(machine, owner="ann", reason="waiting for vendor", now=NOW)
    Recorder().drain(machine.name, reason="rollout:7", now=NOW)
    assert services.keep_drained(machine, reason="rollout:7", now=NOW)

    tell()
    assert reasons(machine) == {"rollout:7"}
    services.lift_cordon(cordon, owner="ann", now=NOW)
    tell()

    assert reasons(machine) == set()


def test_a_machine_that_somebody_else_drained_stays_theirs():
    machine = make_machine(state=State.AWAITING_RELEASE)
    Recorder.foreign = {machine.name: "bob: mine"}
    tell()
    assert SchedulerWord.objects.get().answer == "bob: mine"

    gate = make_passed_gate(machine)
    services.move_machine(machine, Trigger.RELEASE, actor="ann", now=NOW, gate_record=gate)

    assert tell() == 0
    assert Recorder.calls == 1  # theirs was not lifted


def test_a_drain_by_order_ends_once_the_machine_is_idle():
    machine = make_machine()
    services.take_out(machine, actor="ann", reason="smells", at_once=False, now=NOW)
    Recorder.busy = {machine.name}
    tell()
    assert Machine.objects.get(pk=machine.pk).state == State.DRAINING

    Recorder.busy = set()
    tell(now=NOW + HOUR)

    assert Machine.objects.get(pk=machine.pk).state == State.AWAITING_DIAGNOSIS
    assert TakeOut.objects.get().ended_at == NOW + HOUR
    assert reasons(machine) == {"coalmine"}


def test_an_order_that_stood_through_an_update_drains_the_machine_when_it_is_back():
    machine = make_machine(state=State.VERIFYING)
    services.take_out(machine, actor="ann", reason="smells", at_once=False, now=NOW)
    services.move_machine(machine, Trigger.RETURN, actor="rollout:1", now=NOW, gate="read back")
    assert not Machine.objects.get(pk=machine.pk).may_take_work

    tasks.watch()
    tell()

    assert Machine.objects.get(pk=machine.pk).state == State.AWAITING_DIAGNOSIS


def test_a_machine_that_another_worker_speaks_of_is_left_to_it():
    machine = make_machine(state=State.AWAITING_REPAIR)
    wall = timezone.now()
    SchedulerWord.objects.create(machine=machine, leased_until=wall + LEASE, lease_token="other")

    assert tell() == 0
    assert Recorder.calls == 0


def test_a_retired_machine_is_never_given_work():
    machine = make_machine()
    services.retire_machine(machine, actor="ann", now=NOW)

    tell()

    assert reasons(machine) == {"coalmine"}
    assert tell(now=NOW + 2 * HOUR) == 0


def test_the_task_runs_twice():
    make_machine(state=State.AWAITING_REPAIR)

    tasks.tell_scheduler()
    tasks.tell_scheduler()

    assert Recorder.calls == 1
