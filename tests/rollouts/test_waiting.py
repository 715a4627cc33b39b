"""Nothing can be stuck: every state has an end or a reminder, and says what it waits for."""

import itertools
from collections import deque
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from fleet import services as fleet
from fleet.models import Machine
from rollouts import pipeline, selectors, services, tasks
from rollouts.explain import explain, in_words
from rollouts.lifecycle import (
    ATTEMPT_TRANSITIONS,
    IN_FLIGHT,
    PATIENCE,
    TRANSITIONS,
    WAITING,
    WAVE_PATIENCE,
    WAVE_TRANSITIONS,
    AttemptStatus,
    Status,
    Trigger,
    WaveStatus,
    WaveTrigger,
)
from rollouts.models import Attempt, Reminder, Rollout
from rollouts.services.orders import reminders
from tests.factories import NOW, make_user
from tests.rollouts import pages, rows, test_api
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import started

ENDED = {Status.ROLLED_BACK, Status.COMPLETED, Status.CANCELLED}
OVER = {WaveStatus.WIDENED, WaveStatus.SKIPPED}


# --- the tables ----------------------------------------------------------------------------------


def reachable(start: object, moves: dict[object, set[object]]) -> set[object]:
    seen, queue = {start}, deque([start])
    while queue:
        for after in moves.get(queue.popleft(), set()) - seen:
            seen.add(after)
            queue.append(after)
    return seen


def moves_of(table: object) -> dict[object, set[object]]:
    moves: dict[object, set[object]] = {}
    for (old, _), new in table.items():  # type: ignore[attr-defined]
        moves.setdefault(old, set()).add(new)
    return moves


@pytest.mark.parametrize("status", sorted(set(Status) - ENDED))
def test_every_rollout_that_has_not_ended_can_end(status: Status):
    assert reachable(status, moves_of(TRANSITIONS)) & ENDED


@pytest.mark.parametrize("status", sorted(set(WaveStatus) - OVER))
def test_every_wave_that_is_not_over_can_be_got_over(status: WaveStatus):
    assert reachable(status, moves_of(WAVE_TRANSITIONS)) & OVER


@pytest.mark.parametrize("status", sorted(WAITING | IN_FLIGHT))
def test_every_attempt_under_way_can_end(status: AttemptStatus):
    ends = set(AttemptStatus) - WAITING - IN_FLIGHT

    assert reachable(status, dict(ATTEMPT_TRANSITIONS)) & ends


def test_every_rollout_state_runs_by_itself_ends_or_reminds_somebody():
    assert set(PATIENCE) == set(Status) - ENDED - {Status.RUNNING}


def test_every_wave_state_moves_by_the_clock_or_reminds_somebody():
    # Settling ends with its burn-in; a halted wave stands with its rollout, which reminds.
    by_the_clock = {WaveStatus.SETTLING, WaveStatus.HALTED}

    assert set(WAVE_PATIENCE) == set(WaveStatus) - OVER - by_the_clock


def test_a_rollout_can_be_stopped_wherever_it_may_still_do_something():
    for status in set(Status) - ENDED - {Status.HALTED}:
        stops = {Trigger.HALT, Trigger.CANCEL}
        assert any((status, stop) in TRANSITIONS for stop in stops), status
    for status in set(WaveStatus) - OVER - {WaveStatus.PENDING, WaveStatus.HALTED}:
        assert (status, WaveTrigger.HALT) in WAVE_TRANSITIONS


@pytest.mark.django_db
def test_every_step_in_flight_has_a_deadline(fake_fleet: FakeFleet, driver: Driver):
    rollout = started(fake_fleet, machines=20)
    seen: set[str] = set()
    for behaviour in ("busy", "vanish", "no_boot", "fail", "ok"):
        fake_fleet.behaviour = dict.fromkeys(fake_fleet.versions, behaviour)
        for _ in range(12):
            flying = rollout.attempts.filter(status__in=IN_FLIGHT)
            seen |= set(flying.values_list("status", flat=True))
            assert not flying.filter(deadline_at=None).exists()
            due = selectors.next_due_at()
            if due is None:
                break
            driver.now = max(due, driver.now)
            tasks.evaluate(rollout.pk)
            tasks.install(selectors.due_attempts(driver.now))

    assert "draining" in seen
    assert seen & {"awaiting_reboot", "verifying", "activating"}


# --- what is awaited -----------------------------------------------------------------------------


@pytest.mark.django_db
def test_every_state_of_a_rollout_says_what_it_waits_for():
    rollout = rows.submitted()
    rollout.waves.update(status="widened")
    for status in set(Status) - ENDED:
        Rollout.objects.filter(pk=rollout.pk).update(status=status, released_at=NOW)
        rollout.refresh_from_db()

        conditions = explain(rollout)

        assert conditions, status
        assert all(one.what and one.present and one.needed and one.who for one in conditions)


@pytest.mark.django_db
def test_every_state_of_a_wave_says_what_it_waits_for():
    rollout = rows.running(mode="automatic")
    wave = rollout.waves.get(number=1)
    for is_looked_at in (False, True):
        if is_looked_at:
            rows.look(wave, guardrails=[])
        for status in set(WaveStatus) - OVER:
            rollout.waves.filter(pk=wave.pk).update(status=status)
            wave.refresh_from_db()

            assert explain(wave), status
            assert explain(rollout.waves.get(number=2)), status
            assert explain(rollout) == explain(wave), status


@pytest.mark.django_db
def test_every_state_of_an_attempt_under_way_says_what_it_waits_for():
    rollout = rows.running()
    pipeline.enact(rollout, now=NOW)
    attempt = rollout.attempts.first()
    Attempt.objects.filter(rollout=rollout).exclude(pk=attempt.pk).update(status="called_off")
    Machine.objects.update(state="in_service", may_take_work=True)
    under_way = WAITING | IN_FLIGHT | {AttemptStatus.NEVER_RETURNED}
    for status, stands in itertools.product(under_way, ("running", "paused")):
        Attempt.objects.filter(pk=attempt.pk).update(status=status)
        Rollout.objects.filter(pk=rollout.pk).update(status=stands)

        assert explain(Attempt.objects.get(pk=attempt.pk)), (status, stands)


@pytest.mark.django_db
def test_every_state_of_a_machine_out_of_work_says_what_it_waits_for():
    machine = rows.submitted().assignments.first().machine
    for state in set(Machine.State) - {Machine.State.IN_SERVICE, Machine.State.RETIRED}:
        machine.state = state

        assert explain(machine)[0].present == state


@pytest.mark.django_db
def test_a_machine_names_every_cordon_and_the_attempt_on_it():
    rollout = rows.running()
    pipeline.enact(rollout, now=NOW)
    machine = rollout.attempts.filter(status="draining").first().machine
    fleet.cordon(machine, owner="ann", reason="waiting for the vendor", now=NOW)
    fleet.cordon(machine, owner="bob", reason="cabling", now=NOW)

    said = [(one.what, one.present, one.who) for one in explain(machine)]

    assert said == [
        ("state", "draining", "scheduler"),
        ("cordon", "waiting for the vendor", "ann"),
        ("cordon", "cabling", "bob"),
        (f"attempt on {machine}", "draining", "the scheduler"),
    ]


@pytest.mark.django_db
def test_page_api_command_and_notification_say_the_same():
    rollout = rows.running()
    rollout.waves.filter(number=1).update(status="held", started_at=NOW)
    client = test_api.client_of("viewer")
    out = StringIO()

    [said] = client.get(f"/api/v1/rollouts/{rollout.pk}").json()["blocked_by"]
    waves = client.get(f"/api/v1/rollouts/{rollout.pk}/waves").json()["results"]
    page = pages.detail(pages.client_of("viewer"), rollout)
    call_command("explain", "rollout", rollout.name, stdout=out)

    assert said["needed"] == "advanced, skipped or rolled back"
    assert next(wave for wave in waves if wave["number"] == 1)["blocked_by"] == [said]
    assert said["needed"] in page
    assert said["needed"] in out.getvalue()
    reminders.remind(now=NOW + timedelta(days=2))
    assert out.getvalue().strip() in Reminder.objects.get(subject="wave 1").text


@pytest.mark.django_db
def test_a_machine_is_explained_over_the_api_and_on_the_command_line():
    machine = rows.running().assignments.first().machine
    fleet.cordon(machine, owner="ann", reason="cabling", now=NOW)
    out = StringIO()

    answer = test_api.client_of("viewer").get(f"/api/v1/machines/{machine.name}/explanation")
    call_command("explain", "machine", machine.name, stdout=out)

    assert [one["present"] for one in answer.json()] == ["cabling"]
    assert "cabling" in out.getvalue()
    with pytest.raises(CommandError, match="no machine 'nobody'"):
        call_command("explain", "machine", "nobody")


# --- reminders -----------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_state_that_outlasts_its_patience_is_recorded_once_each_time():
    rollout = rows.submitted()
    since = selectors.standing_since(rollout)
    for status, patience in PATIENCE.items():
        Rollout.objects.filter(pk=rollout.pk).update(status=status)

        early = reminders.remind(now=since + 0.9 * patience)
        first = [reminders.remind(now=since + 1.1 * patience) for _ in range(2)]
        late = reminders.remind(now=since + 5.5 * patience)

        assert (early, first, late) == (0, [1, 0], 1), status
        found = Reminder.objects.filter(status=status, subject="rollout")
        assert list(found.values_list("number", flat=True)) == [1, 5]


@pytest.mark.django_db
def test_an_advised_widen_that_nobody_confirms_is_reminded_of():
    rollout = rows.running(mode="advise")
    rows.look(rollout.waves.get(number=1), kind="widen", code="not_worse", guardrails=[])

    reminders.remind(now=NOW + timedelta(days=3))

    assert "the engine advises to widen" in Reminder.objects.get(subject="wave 1").text


@pytest.mark.django_db
def test_a_wave_that_only_collects_evidence_reminds_nobody():
    rollout = rows.running()
    rows.look(rollout.waves.get(number=1))

    assert reminders.remind(now=NOW + timedelta(days=30)) == 0


@pytest.mark.django_db
def test_the_home_page_shows_what_waits_too_long_until_it_has_moved_on(
    monkeypatch: pytest.MonkeyPatch,
):
    rollout = rows.submitted()
    monkeypatch.setattr(tasks.clock, "now", lambda: NOW + timedelta(days=3))
    assert [tasks.remind(), tasks.remind()] == [1, 0]
    client = pages.client_of("viewer")

    before = client.get(reverse("rollouts:home")).content.decode()
    services.approve(rollout, actor=make_user(), now=NOW + timedelta(days=3))
    after = client.get(reverse("rollouts:home")).content.decode()

    words = "rollout has been awaiting_approval for 3 days"
    assert words in before
    assert words not in after


@pytest.mark.django_db
def test_an_ended_rollout_has_nothing_to_say():
    rollout = rows.submitted()
    services.cancel(rollout, actor=make_user(), now=NOW)

    assert in_words(explain(rollout)) == "waits for nothing"
