"""What incidents did to jobs: told by people and systems, or made of what machines told."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fleet import services, tasks
from fleet.adapters import RunningJob
from fleet.clock import set_mode
from fleet.errors import ImpactConflict, ImpactRefused
from fleet.models import FaultSignature, Incident, JobImpact, Machine
from fleet.services import Impact
from tests.factories import (
    NOW,
    make_fault_report,
    make_machine,
    make_machines,
    make_recovery_report,
)

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
CHECKPOINT = "job_restarted_from_checkpoint"


def told(**fields: Any) -> Impact:
    """A restart of a job of 64 accelerators from its checkpoint: 10 min, 20 min of work again."""
    said: dict[str, Any] = {
        "outcome": CHECKPOINT,
        "fault_at": NOW,
        "source_key": "1",
        "job": "job-1",
        "resumed_at": NOW + 10 * MINUTE,
        "repeated_seconds": 1200.0,
        "accelerators": 64,
    }
    return Impact(**said | fields)


def record(impact: Impact, *, source: str = "trainer") -> JobImpact:
    return services.record_impact(impact, source=source, now=NOW + HOUR)[0]


def interrupt(*machines: Machine, key: str = "1", now: Any = NOW + HOUR, **fields: Any) -> None:
    """Let machines tell of an interruption that lasted ten minutes."""
    ended = {"recovered_at": NOW + 10 * MINUTE, "path": CHECKPOINT, "repeated_seconds": 1200.0}
    reports = [make_recovery_report(machine, **ended | fields) for machine in machines]
    services.record(reports, source="agents", key=f"recovery {key}", now=now)


def fail(machine: Machine, *, at: Any = NOW, now: Any = NOW + MINUTE, **fields: Any) -> Incident:
    key = f"{machine.name} {at} {fields}"
    reports = [make_fault_report(machine, time=at, **fields)]
    services.record(reports, source="agents", key=key, now=now)
    services.record_incidents(now=now)
    return Incident.objects.filter(machine=machine).latest("pk")


def standing() -> list[JobImpact]:
    return list(JobImpact.objects.filter(corrected_by=None).order_by("fault_at", "pk"))


# --- told ----------------------------------------------------------------------------------------


def test_the_loss_is_reckoned_by_the_formula_of_the_outcome():
    row = record(told())

    assert row.accelerator_hours_lost == pytest.approx((600 + 1200) * 64 / 3600)
    assert row.formula == "checkpoint: (recovery + repeated) x all"


def test_what_a_formula_needs_and_nobody_told_gives_no_loss():
    row = record(told(accelerators=None))

    assert row.accelerator_hours_lost is None
    assert row.formula.startswith("checkpoint")


def test_repeated_seconds_follow_from_steps_and_their_mean_time():
    row = record(told(repeated_seconds=None, repeated_steps=40, step_seconds=30.0))

    assert row.repeated_seconds == 1200.0


def test_the_same_key_of_the_same_source_is_the_same_impact():
    first = services.record_impact(told(), source="trainer", now=NOW + HOUR)
    again = services.record_impact(told(), source="trainer", now=NOW + 2 * HOUR)

    assert first == (again[0], True)
    assert again[1] is False
    assert JobImpact.objects.count() == 1


def test_a_key_that_was_used_for_something_else_is_a_conflict():
    record(told())

    with pytest.raises(ImpactConflict, match=r"'1' before, as impact \d+, with another accel"):
        record(told(accelerators=128))


def test_a_correction_is_a_new_row_that_takes_the_place_of_the_old():
    wrong = record(told())
    right = record(told(source_key="2", accelerators=128, corrects=wrong))

    assert standing() == [right]
    assert JobImpact.objects.count() == 2


def test_a_row_is_corrected_once():
    wrong = record(told())
    right = record(told(source_key="2", accelerators=128, corrects=wrong))

    with pytest.raises(ImpactRefused, match=f"corrected by impact {right.pk} already"):
        record(told(source_key="3", accelerators=256, corrects=wrong))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"resumed_at": NOW - MINUTE}, "resumed_at: .* is before .*, when it began"),
        ({"detected_at": NOW - MINUTE}, "detected_at: .* is before"),
        ({"detected_at": NOW + 11 * MINUTE}, "detected_at: .* is after .*, when work resumed"),
        ({"fault_at": NOW + 2 * HOUR, "resumed_at": None}, "fault_at: .* is still to come"),
        ({"replicas_affected": 9, "replicas_total": 8}, "9 is more than the 8"),
        ({"replicas_affected": 1}, "1 of how many"),
        ({"repeated_seconds": -1.0}, "repeated_seconds: -1.0; 0 to"),
        ({"repeated_seconds": float("nan")}, "repeated_seconds: nan; 0 to"),
        ({"accelerators": 0}, "accelerators: 0; a whole number from 1"),
        ({"slowdown": 1.5}, "slowdown: 1.5; a share"),
        ({"outcome": "exploded"}, "outcome: 'exploded' is unknown; accepted: continued"),
        ({"cause": "gremlins"}, "cause: 'gremlins' is unknown"),
        ({"job_kind": "mining"}, "job_kind: 'mining' is unknown"),
        ({"outcome": "no_job"}, "job: 'job-1', but the outcome says that there was no job"),
        ({"source_key": " "}, "source_key: empty"),
        ({"job": "a\x00"}, "job: .* none of them NUL"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(fields: dict[str, Any], reason: str):
    with pytest.raises(ImpactRefused, match=reason):
        record(told(**fields))

    assert not JobImpact.objects.exists()


def test_everything_that_is_wrong_is_told_at_once():
    with pytest.raises(ImpactRefused) as error:
        record(told(accelerators=0, slowdown=-1.0, resumed_at=NOW - MINUTE))

    assert len(error.value.reasons) == 3


def test_an_incident_has_its_own_cause_and_machine():
    incident = fail(make_machine())

    with pytest.raises(ImpactRefused, match="has its own, name it there"):
        record(told(incident=incident, cause="hardware"))
    with pytest.raises(ImpactRefused, match=r"is not .* of the incident"):
        record(told(incident=incident, machine=make_machine()))
    assert record(told(incident=incident)).machine == incident.machine


def test_a_pre_empted_job_is_another_one():
    first = record(told())

    with pytest.raises(ImpactRefused, match="the same job"):
        record(told(source_key="2", caused_by=first))
    second = record(told(source_key="2", job="job-2", caused_by=first))
    assert list(first.pre_empted.all()) == [second]


# --- made of interruptions -----------------------------------------------------------------------


def test_an_interruption_becomes_the_impact_of_the_incident_of_its_machine():
    machine = make_machine(job="job-1", workload="pretraining")
    incident = fail(machine, at=NOW - MINUTE)
    interrupt(machine)

    services.record_interruptions(now=NOW + HOUR)

    (row,) = standing()
    assert (row.incident, row.machine, row.job) == (incident, machine, "job-1")
    assert (row.outcome, row.job_kind) == (CHECKPOINT, "pre_training")
    assert (row.fault_at, row.resumed_at) == (NOW, NOW + 10 * MINUTE)
    assert row.detected_at == NOW + MINUTE
    assert row.accelerators == 8
    assert row.accelerator_hours_lost == pytest.approx(1800 * 8 / 3600)


def test_all_machines_of_a_job_tell_of_one_interruption():
    first, second, third = make_machines(3, job="job-1")
    incident = fail(second)
    interrupt(first, second, third)

    services.record_interruptions(now=NOW + HOUR)

    (row,) = standing()
    assert (row.incident, row.accelerators) == (incident, 24)


@pytest.mark.parametrize(
    ("minutes", "is_explained"), [(-11, False), (-10, True), (5, True), (6, False)]
)
def test_a_fault_explains_from_ten_minutes_before_to_five_after(minutes: int, is_explained: bool):
    machine = make_machine()
    fail(machine, at=NOW + minutes * MINUTE)
    interrupt(machine)

    services.record_interruptions(now=NOW + 3 * HOUR)

    assert [row.incident is not None for row in standing()] == [is_explained]


def test_the_fault_that_counts_explains_before_one_that_is_closer():
    machine = make_machine()
    hard = fail(machine, at=NOW - 5 * MINUTE, signature="xid.79")
    fail(machine, at=NOW, signature="xid.63", severity="minor")
    interrupt(machine)

    services.record_interruptions(now=NOW + HOUR)

    assert [row.incident for row in standing()] == [hard]


def test_what_nothing_explains_is_put_down_once_faults_have_had_time_to_arrive():
    interrupt(make_machine(), now=NOW + HOUR)

    before = services.record_interruptions(now=NOW + HOUR + 59 * MINUTE)
    after = services.record_interruptions(now=NOW + 2 * HOUR)

    assert (before, after) == (0, 1)
    assert [(row.incident, row.cause) for row in standing()] == [(None, "")]


def test_a_fault_that_comes_within_the_hour_still_explains():
    machine = make_machine()
    interrupt(machine)
    services.record_interruptions(now=NOW + HOUR)
    incident = fail(machine, now=NOW + HOUR + 30 * MINUTE)

    services.record_interruptions(now=NOW + HOUR + 31 * MINUTE)

    assert [row.incident for row in standing()] == [incident]


def test_interruptions_are_put_down_once_however_often_it_runs():
    machine = make_machine(job="job-1")
    fail(machine)
    interrupt(machine)

    made = [services.record_interruptions(now=NOW + hours * HOUR) for hours in (1, 2, 3, 4)]

    assert made == [1, 0, 0, 0]


def test_an_interruption_that_has_no_end_waits_for_it():
    machine = make_machine()
    fail(machine)
    services.record([make_recovery_report(machine)], source="agents", key="open", now=NOW)
    before = services.record_interruptions(now=NOW + 3 * HOUR)
    interrupt(machine, now=NOW + 3 * HOUR)

    after = services.record_interruptions(now=NOW + 3 * HOUR)

    assert (before, after) == (0, 1)


def test_what_came_in_since_the_time_was_read_is_left_for_the_next_run(
    caplog: pytest.LogCaptureFixture,
):
    (machine,) = make_machines(1)
    fail(machine)
    interrupt(machine, job="j", now=NOW + HOUR)

    early = services.record_interruptions(now=NOW + 5 * MINUTE)
    later = services.record_interruptions(now=NOW + HOUR)

    assert (early, later) == (0, 1)
    assert caplog.text == ""


def test_of_a_job_that_runs_nowhere_any_more_the_size_is_not_known():
    machine = make_machine()
    fail(machine)
    interrupt(machine)

    services.record_interruptions(now=NOW + HOUR)

    assert [(row.accelerators, row.accelerator_hours_lost) for row in standing()] == [(None, None)]


def test_of_a_job_that_began_after_the_interruption_the_size_is_not_known():
    machine = make_machine()
    fail(machine)
    running = RunningJob(name="job-1", machines=(machine.name,), started_at=NOW + 30 * MINUTE)
    services.record_jobs([running], now=NOW + HOUR)
    interrupt(machine)

    services.record_interruptions(now=NOW + HOUR)

    assert [row.accelerators for row in standing()] == [None]


def test_what_a_job_system_tells_takes_the_place_of_what_machines_told():
    machine = make_machine(job="job-1")
    incident = fail(machine)
    interrupt(machine)
    services.record_interruptions(now=NOW + HOUR)

    row = record(told(fault_at=NOW + 2 * MINUTE, incident=incident, accelerators=512))

    assert standing() == [row]


def test_machines_do_not_tell_again_what_a_job_system_told():
    machine = make_machine(job="job-1")
    row = record(told(fault_at=NOW + 2 * MINUTE, incident=fail(machine)))
    interrupt(machine)

    services.record_interruptions(now=NOW + 3 * HOUR)

    assert standing() == [row]


def test_two_interruptions_of_a_job_apart_count_twice():
    machine = make_machine(job="job-1")
    fail(machine)
    interrupt(machine, key="1")
    later = {"time": NOW + 20 * MINUTE, "recovered_at": NOW + 30 * MINUTE}
    interrupt(machine, key="2", **later)

    services.record_interruptions(now=NOW + 3 * HOUR)

    assert [row.fault_at for row in standing()] == [NOW, NOW + 20 * MINUTE]


def test_faults_are_followed_up_into_impacts_and_twice_changes_nothing():
    set_mode("stepped", at=NOW + HOUR)
    machine = make_machine(job="job-1")
    services.record([make_fault_report(machine)], source="agents", key="fault", now=NOW)
    interrupt(machine)

    tasks.follow_up()
    tasks.follow_up()

    assert [row.incident is not None for row in standing()] == [True]


def test_a_batch_is_walked_through_to_its_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fleet.services.interruptions.BATCH", 2)
    machines = make_machines(5)
    for machine in machines:
        fail(machine)
    interrupt(*machines, job="")

    made = [services.record_interruptions(now=NOW + hours * HOUR) for hours in (1, 5, 6)]

    assert made == [5, 0, 0]


def test_an_odd_interruption_holds_up_no_other(caplog: pytest.LogCaptureFixture):
    odd, plain = make_machines(2)
    for machine in (odd, plain):
        fail(machine)
    interrupt(odd, key="odd", job="", repeated_seconds=1e12)
    interrupt(plain, key="plain", job="")

    services.record_interruptions(now=NOW + HOUR)

    assert [row.machine for row in standing()] == [plain]
    assert "repeated_seconds: 1000000000000.0; 0 to" in caplog.text


def test_a_merged_incident_passes_its_impacts_on():
    machine = make_machine()
    FaultSignature.objects.filter(family="gpu.gsp").update(gap_minutes=15)
    first = fail(machine, at=NOW - 20 * MINUTE)
    second = fail(machine, at=NOW + 5 * MINUTE)
    fail(machine, at=NOW - 8 * MINUTE, now=NOW + 2 * MINUTE)
    second.refresh_from_db()
    assert second.merged_into == first

    row = record(replace(told(), incident=second))

    assert row.incident == first
