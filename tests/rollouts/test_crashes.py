"""Workers die, adapters raise, machines are taken: nothing is flashed twice, nothing sticks."""

from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest
from django.utils import timezone

from fleet import adapters
from fleet import services as fleet_services
from fleet.errors import AdapterFailed
from fleet.lifecycle import Trigger
from fleet.models import Machine
from rollouts import explain, pipeline, selectors, services, tasks
from rollouts.models import (
    Attempt,
    AttemptEvent,
    Decision,
    Evaluation,
    Rollout,
    Transition,
)
from rollouts.services.evidence import cycles
from tests.factories import make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.kills import DeadlyFleet, MortalDriver, Reaper, run_out
from tests.rollouts.plans import NEW, OLD, started

pytestmark = pytest.mark.django_db


def assert_told_once() -> None:
    """Every move, look and decision stands in the records exactly once, and no lease is left."""
    moves = Transition.objects.values_list("rollout", "wave", "old_status", "new_status")
    events = AttemptEvent.objects.values_list("attempt", "old_status", "new_status")
    looks = Evaluation.objects.values_list("wave", "as_of")
    decisions = Decision.objects.values_list("rollout", "wave", "as_of", "kind")
    for rows in (moves, events, looks, decisions):
        assert [row for row, n in Counter(rows).items() if n > 1] == []
    for model in (Rollout, Attempt):
        assert not model.objects.exclude(leased_until=None).exists()


# --- workers that die --------------------------------------------------------------------------


def test_a_worker_killed_before_any_write_or_in_any_call_is_made_good_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reaper = Reaper()
    fleet = DeadlyFleet(reaper)
    monkeypatch.setattr(adapters, "installer", lambda: fleet)
    monkeypatch.setattr(adapters, "scheduler", lambda: fleet)
    driver = MortalDriver(monkeypatch, reaper)
    plan = {"on_halt": {"succeeded": "roll_back"}, "batch_size": 4, "look_minutes": 720}
    rollout = started(fleet, machines=20, **plan)

    driver.run(rollout, hours=30)
    treated = Counter(fleet.flashed)
    services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
    driver.run(rollout, until="rolled_back")

    assert rollout.status == "rolled_back"
    assert len(reaper.points) > 40
    assert sorted(treated.values()) == [1] * 8
    assert Counter(fleet.flashed) == dict.fromkeys(treated, 2)
    assert {v["bmc"] for v in fleet.versions.values()} == {OLD}
    assert not fleet.drained
    assert not Machine.objects.exclude(state="in_service", may_take_work=True).exists()
    assert_told_once()


def test_an_attempt_that_kills_its_workers_holds_no_other_up_and_ends_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch, fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20, drain_timeout_minutes=60)
    driver.settle()
    poison = Attempt.objects.filter(status="awaiting_reboot").first() or Attempt.objects.first()
    reaper = Reaper()
    read = fake_fleet.read_versions

    def deadly(machine, *, now):
        reaper.points.clear()
        if machine == poison.machine.name:
            reaper.visit(("poison",))
        return read(machine, now=now)

    monkeypatch.setattr(fake_fleet, "read_versions", deadly)
    mortal = MortalDriver(monkeypatch, reaper)
    monkeypatch.setattr(Reaper, "__call__", lambda self, execute, *rest: execute(*rest))
    mortal.now = driver.now
    for _ in range(120):
        with reaper.watching():
            tasks.install(selectors.due_attempts(mortal.now))
        mortal.now += timedelta(minutes=2)
        run_out()

    ended = Counter(rollout.attempts.values_list("status", flat=True))
    poison.refresh_from_db()
    assert poison.status in ("unknown", "called_off")
    assert ended["succeeded"] == 7


def test_an_evaluation_that_crashes_three_times_is_held_and_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    driver.run(rollout, hours=3)
    driver.now = selectors.current_wave(rollout).next_look_at

    def crash(*args, **kwargs):
        raise ZeroDivisionError("a row nobody foresaw")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "run_cycle", crash)
        for _ in range(tasks.MOST_CRASHES):
            with pytest.raises(ZeroDivisionError):
                tasks.evaluate(rollout.pk)
        tasks.evaluate(rollout.pk)

    held = rollout.decisions.get(reason_code="evaluation_crashes")
    rollout.refresh_from_db()
    assert (rollout.status, held.kind, rollout.crashes) == ("running", "hold", 0)
    assert rollout.due_at > driver.now
    assert "evaluation" in [c.what for c in explain.explain(rollout)]
    driver.run(rollout, hours=8)
    assert rollout.decisions.order_by("-pk").first().evaluation is not None
    assert "evaluation" not in [c.what for c in explain.explain(rollout)]


@pytest.mark.parametrize(
    ("kind", "code", "status"), [("halt", "harmful", "halted"), ("widen", "not_worse", "widened")]
)
def test_what_a_look_decided_before_its_worker_died_is_carried_out_before_the_next_look(
    fake_fleet: FakeFleet, driver: Driver, kind: str, code: str, status: str
) -> None:
    rollout = started(fake_fleet, machines=20, burn_in_hours=0)
    driver.run(rollout, hours=3)
    wave = selectors.current_wave(rollout)
    cycles.decide(rollout, kind, code, "decided, not carried out", as_of=driver.now, wave=wave)
    driver.now = wave.next_look_at

    tasks.evaluate(rollout.pk)

    wave.refresh_from_db()
    assert wave.status == status
    assert not wave.evaluations.exists()


# --- adapters that raise -----------------------------------------------------------------------


class Flaky(FakeFleet):
    """Raises in the calls that `broken` names for a machine, as often as it says."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[tuple[str, str], list[Exception]] = {}

    def _may_raise(self, call: str, machine: str) -> None:
        if errors := self.broken.get((call, machine)):
            raise errors.pop() if len(errors) > 1 else errors[0]

    def apply(self, machine, step, targets, *, key, now):
        answer = super().apply(machine, step, targets, key=key, now=now)
        self._may_raise(step, machine)  # the answer got lost, the order did not
        return answer

    def read_versions(self, machine, *, now):
        self._may_raise("read_versions", machine)
        return super().read_versions(machine, now=now)

    def drain(self, machine, *, reason, now):
        self._may_raise("drain", machine)
        return super().drain(machine, reason=reason, now=now)

    def release(self, machine, *, reason, now):
        self._may_raise("release", machine)
        super().release(machine, reason=reason, now=now)


CALLS = ("drain", "read_versions", "stage", "activate", "commit", "release")


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Flaky:
    fleet = Flaky()
    monkeypatch.setattr(adapters, "installer", lambda: fleet)
    monkeypatch.setattr(adapters, "scheduler", lambda: fleet)
    return fleet


def canaries(rollout: Rollout) -> list[str]:
    places = rollout.assignments.filter(planned_wave=1).order_by("machine_name")
    return list(places.values_list("machine_name", flat=True))


def test_an_adapter_that_raises_for_a_while_costs_time_and_nothing_else(
    flaky: Flaky, driver: Driver
) -> None:
    rollout = started(flaky, machines=20)
    errors = [AdapterFailed("x"), ConnectionError("refused"), TimeoutError("slow")]
    for call, machine in zip(CALLS, canaries(rollout), strict=False):
        flaky.broken[call, machine] = [*errors]
    driver.run(rollout, hours=0.2)
    flaky.broken.clear()

    driver.run(rollout, hours=3)

    assert Counter(rollout.attempts.values_list("status", flat=True)) == {"succeeded": 8}
    assert Counter(flaky.flashed) == Counter(canaries(rollout))
    assert not flaky.drained


def test_an_adapter_that_goes_on_raising_ends_its_attempt_at_the_deadline_only(
    flaky: Flaky, driver: Driver
) -> None:
    rollout = started(flaky, machines=20, drain_timeout_minutes=30)
    names = dict(zip(CALLS, canaries(rollout), strict=False))
    for call, machine in names.items():
        flaky.broken[call, machine] = [ConnectionError("bmc:secret@10.0.0.1")]

    driver.run(rollout, hours=2.2)

    status = dict(rollout.attempts.values_list("machine__name", "status"))
    assert {call: status[name] for call, name in names.items()} == {
        "drain": "called_off",
        "read_versions": "unknown",
        "stage": "timed_out",
        "activate": "succeeded",  # the machine itself says what it runs
        "commit": "timed_out",
        "release": "succeeded",
    }
    assert max(Counter(flaky.flashed).values()) == 1
    assert flaky.drained >= {names["release"]}
    assert not AttemptEvent.objects.filter(detail__contains="secret").exists()
    flaky.broken.clear()
    driver.run(rollout, hours=1)
    assert names["release"] not in flaky.drained


def test_an_adapter_with_a_bug_harms_its_own_machine_only(flaky: Flaky, driver: Driver) -> None:
    rollout = started(flaky, machines=20)
    bad, *others = canaries(rollout)
    flaky.broken["activate", bad] = [KeyError("Members")]

    for _ in range(150):
        for pk in selectors.due_rollouts(driver.now):
            tasks.evaluate(pk)
        if selectors.due_attempts(driver.now):
            with suppress(KeyError):
                tasks.install(selectors.due_attempts(driver.now))
        driver.now += timedelta(minutes=1)

    status = dict(rollout.attempts.values_list("machine__name", "status"))
    assert {status[name] for name in others} == {"succeeded"}
    assert status[bad] == "unknown"
    assert Machine.objects.get(name=bad).state == "awaiting_diagnosis"


def test_a_run_whose_time_is_over_leaves_the_rest_due_and_free(
    monkeypatch: pytest.MonkeyPatch, fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    tasks.evaluate(rollout.pk)
    due = selectors.due_attempts(driver.now)
    monkeypatch.setattr(tasks.turns, "LONGEST_RUN_SECONDS", -1.0)

    tasks.install(due)

    assert len(due) == 8
    assert selectors.due_attempts(driver.now) == due
    assert fake_fleet.flashed == []


# --- machines that are taken away --------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "before", "after"),
    [
        ("busy", "draining", "called_off"),
        ("slow", "staging", "called_off"),
        ("vanish", "awaiting_reboot", "never_returned"),
        ("lie", "verifying", "wrong_version"),
    ],
)
def test_a_machine_that_a_person_takes_stays_theirs_and_its_attempt_ends(
    monkeypatch: pytest.MonkeyPatch,
    fake_fleet: FakeFleet,
    driver: Driver,
    behaviour: str,
    before: str,
    after: str,
) -> None:
    rollout = started(fake_fleet, machines=20)
    taken, *others = canaries(rollout)
    fake_fleet.behaviour[taken] = behaviour
    apply = fake_fleet.apply

    def slow(machine, step, targets, *, key, now):
        answer = apply(machine, step, targets, key=key, now=now)
        return adapters.Progress(adapters.Phase.STAGING) if machine == taken else answer

    if behaviour == "slow":
        monkeypatch.setattr(fake_fleet, "apply", slow)
    driver.run(rollout, hours=0.02)
    attempt = rollout.attempts.get(machine__name=taken)
    assert attempt.status == before

    fleet_services.move_machine(
        Machine.objects.get(name=taken), Trigger.SUSPECT, actor="ann", now=driver.now
    )
    driver.run(rollout, hours=5)

    attempt.refresh_from_db()
    assert attempt.status == after
    assert Machine.objects.get(name=taken).state == "lemon_review"
    status = dict(rollout.attempts.values_list("machine__name", "status"))
    assert {status[name] for name in others} == {"succeeded"}
    assert Counter(fake_fleet.flashed)[taken] == (0 if before in ("draining", "staging") else 1)


def test_a_cordon_set_in_the_middle_outlives_the_rollout(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    driver.settle()
    machine = rollout.attempts.get(machine__name=canaries(rollout)[0]).machine
    fleet_services.cordon(machine, owner="ann", reason="waits for the vendor", now=driver.now)

    driver.run(rollout, hours=3)

    machine.refresh_from_db()
    assert (machine.state, machine.may_take_work) == ("in_service", False)


def test_a_machine_that_runs_the_target_already_is_not_flashed_and_is_no_evidence(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    ahead = canaries(rollout)[0]
    fake_fleet.versions[ahead] = {"bmc": NEW}

    driver.run(rollout, hours=3)

    assert ahead not in fake_fleet.flashed
    assert rollout.attempts.get(machine__name=ahead).status == "called_off"
    assert selectors.cumulative_attempts(rollout) == (0, 7)
    assert Machine.objects.get(name=ahead).may_take_work
    assert ahead not in fake_fleet.drained


def test_a_machine_taken_by_another_rollout_waits_for_its_turn(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    wanted = Machine.objects.get(name=canaries(rollout)[0])
    fleet_services.move_machine(wanted, Trigger.DRAIN, actor="rollout:0", now=driver.now)
    driver.run(rollout, hours=2)
    waited = rollout.attempts.get(machine=wanted).status

    fleet_services.move_machine(
        wanted, Trigger.CALL_OFF, actor="rollout:0", gate="untouched", now=driver.now
    )
    driver.run(rollout, hours=2)

    assert waited == "queued"
    assert rollout.attempts.get(machine=wanted).status == "succeeded"


# --- wake-ups that are lost --------------------------------------------------------------------


def test_an_order_that_comes_while_a_worker_holds_the_rollout_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch, fake_fleet: FakeFleet, driver: Driver
) -> None:
    # The clock may stand still between the two, as in a demo: then both say the same instant.
    rollout = started(fake_fleet, machines=20)
    following = pipeline.next_due

    def order_comes_in(given: Rollout, *, now):
        at = following(given, now=now)
        services.orders.steering.wake(given, now)
        return at

    monkeypatch.setattr(pipeline, "next_due", order_comes_in)
    tasks.evaluate(rollout.pk)

    assert selectors.due_rollouts(driver.now) == [rollout.pk]


def test_a_lease_from_a_clock_that_ran_ahead_holds_nothing(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    ahead = timezone.now() + timedelta(days=3650)
    Rollout.objects.update(leased_until=ahead, lease_token="dead")

    tasks.evaluate(rollout.pk)

    assert rollout.attempts.filter(status="draining").exists()
