"""Nothing is forgotten: deadlines raise notices, and work behind a gate's back is told of."""

from datetime import timedelta

import pytest

from fleet import clock, services, tasks
from fleet.adapters import RunningJob
from fleet.lifecycle import Role, State, Trigger
from fleet.models import Machine, Notice, RoleTeam, Team
from tests.factories import NOW, make_machine, make_machines

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def standing(kind: str):
    return Notice.objects.filter(kind=kind, cleared_at=None)


# --- deadlines ------------------------------------------------------------------------------------


def test_a_machine_past_its_deadline_has_a_notice_with_owner_and_next_step():
    RoleTeam.objects.create(role=Role.TRIAGE, team=Team.objects.create(name="triage"))
    machine = make_machine()
    services.move_machine(machine, Trigger.TAKE_OUT, actor="ann", now=NOW)

    assert services.watch_deadlines(now=NOW + HOUR / 2) == 0
    assert services.watch_deadlines(now=NOW + 2 * HOUR) == 1
    assert services.watch_deadlines(now=NOW + 3 * HOUR) == 0

    said = standing("overdue").get().said
    assert "awaiting_diagnosis since 2026-03-02 12:00" in said
    assert "triage has it, next: assign a diagnosis" in said


def test_the_notice_is_over_when_the_machine_moves_on():
    machine = make_machine()
    services.move_machine(machine, Trigger.TAKE_OUT, actor="ann", now=NOW)
    services.watch_deadlines(now=NOW + 2 * HOUR)

    services.move_machine(machine, Trigger.DIAGNOSE, actor="ann", now=NOW + 2 * HOUR)
    services.watch_deadlines(now=NOW + 3 * HOUR)

    assert not standing("overdue").exists()
    assert Notice.objects.get().cleared_at == NOW + 3 * HOUR


def test_a_second_silence_in_another_state_is_told_anew():
    machine = make_machine()
    services.move_machine(machine, Trigger.TAKE_OUT, actor="ann", now=NOW)
    services.watch_deadlines(now=NOW + 2 * HOUR)
    services.move_machine(machine, Trigger.DIAGNOSE, actor="ann", now=NOW + 2 * HOUR)

    services.watch_deadlines(now=NOW + 9 * HOUR)

    assert "diagnosing since" in standing("overdue").get().said


def test_a_silence_with_a_safe_move_takes_it():
    machine = make_machine(state=State.REGISTERED)
    Machine.objects.filter(pk=machine.pk).update(deadline_at=NOW - HOUR)

    services.watch_deadlines(now=NOW)

    stored = Machine.objects.get(pk=machine.pk)
    assert stored.state == State.AWAITING_VALIDATION
    assert stored.state_changes.latest("pk").actor == "watchdog"
    assert not standing("overdue").exists()


def test_a_drain_past_its_deadline_puts_nothing_back():
    machine = make_machine()
    services.take_out(machine, actor="ann", reason="smells", at_once=False, now=NOW)

    services.watch_deadlines(now=NOW + 2 * HOUR)

    stored = Machine.objects.get(pk=machine.pk)
    assert (stored.state, stored.may_take_work) == (State.DRAINING, False)
    assert standing("overdue").get().machine == machine


def test_a_thousand_late_machines_cost_no_statement_each(django_assert_max_num_queries):
    machines = make_machines(1000, state=State.AWAITING_REPAIR)
    Machine.objects.update(deadline_at=NOW - HOUR)

    with django_assert_max_num_queries(12):
        assert services.watch_deadlines(now=NOW) == len(machines)


def test_the_watch_runs_twice():
    clock.set_mode("stepped", at=NOW)
    machine = make_machine(state=State.AWAITING_REPAIR)
    Machine.objects.filter(pk=machine.pk).update(deadline_at=NOW - HOUR)

    tasks.watch()
    tasks.watch()

    assert standing("overdue").count() == 1


# --- work where none may be -----------------------------------------------------------------------


def runs(*machines: Machine, started=NOW, **fields) -> RunningJob:
    names = [machine.name for machine in machines]
    return RunningJob("job-1", names, started_at=started, **fields)


def out(state: str = State.AWAITING_REPAIR) -> Machine:
    machine = make_machine()
    services.move_machine(machine, Trigger.TAKE_OUT, actor="ann", now=NOW)
    Machine.objects.filter(pk=machine.pk).update(state=state)
    machine.refresh_from_db()
    return machine


@pytest.mark.parametrize(
    "state",
    [state for state in State if state not in (State.IN_SERVICE, State.REGISTERED)],
)
def test_a_job_that_begins_on_a_machine_that_may_not_work_is_told_at_once(state):
    machine = out(state)

    services.record_jobs([runs(machine, started=NOW + HOUR)], now=NOW + HOUR + MINUTE)

    notice = standing("gate_bypassed").get()
    assert notice.machine == machine
    assert notice.raised_at == NOW + HOUR + MINUTE
    assert f"job job-1 runs on it; it is {state}" in notice.said


def test_a_job_that_was_there_before_may_end():
    machine = make_machine()
    services.record_jobs([runs(machine, started=NOW - HOUR)], now=NOW)
    services.take_out(machine, actor="ann", reason="dead", at_once=True, now=NOW)

    services.record_jobs([runs(machine, started=NOW - HOUR)], now=NOW + HOUR)

    assert not standing("gate_bypassed").exists()


def test_the_notice_is_over_when_the_job_is_gone_or_the_machine_may_work():
    machine = out()
    services.record_jobs([runs(machine, started=NOW + HOUR)], now=NOW + HOUR)

    services.record_jobs([], now=NOW + 2 * HOUR)

    assert Notice.objects.get().cleared_at == NOW + 2 * HOUR


def test_a_job_whose_start_nobody_knows_is_told_of_on_a_machine_out_of_service():
    machine = out()

    services.record_jobs([runs(machine, started=None)], now=NOW + HOUR)

    assert standing("gate_bypassed").count() == 1


def test_a_job_that_begins_on_a_cordoned_machine_is_told_and_one_from_before_is_not():
    machine, other = make_machines(2)
    for one in (machine, other):
        services.cordon(one, owner="ann", reason="noise", now=NOW)

    old = RunningJob("old", [other.name], started_at=NOW - HOUR)
    services.record_jobs([runs(machine, started=NOW + HOUR), old], now=NOW + HOUR)

    assert standing("gate_bypassed").get().machine == machine


def test_work_on_a_machine_that_somebody_else_drained_is_theirs():
    machine = make_machine()
    services.cordon(machine, owner="scheduler:bob", reason="mine", now=NOW)

    services.record_jobs([runs(machine, started=NOW + HOUR)], now=NOW + HOUR)

    assert not standing("gate_bypassed").exists()


def test_the_checks_of_a_gate_run_in_a_partition_of_their_own(settings):
    settings.GATE_PARTITION = "validation"
    machine, other = out(State.VALIDATING), out(State.VALIDATING)

    check = runs(machine, started=NOW + HOUR, partition="validation")
    work = RunningJob("job-2", [other.name], started_at=NOW + HOUR, partition="train")
    services.record_jobs([check, work], now=NOW + HOUR)

    assert standing("gate_bypassed").get().machine == other


# --- notices --------------------------------------------------------------------------------------


def test_a_notice_stands_once_keeps_its_time_and_takes_new_words():
    machine = make_machine()

    first = services.raise_notice(machine, "stuck", "one", now=NOW)
    second = services.raise_notice(machine, "stuck", "two", now=NOW + HOUR)

    assert first == second
    assert (Notice.objects.get().raised_at, Notice.objects.get().said) == (NOW, "two")
    assert services.clear_notice(machine, "stuck", now=NOW + HOUR)
    assert not services.clear_notice(machine, "stuck", now=NOW + HOUR)
