"""The scheduler's list of running jobs, taken over."""

from datetime import timedelta

import pytest

from fleet import services
from fleet.adapters import RunningJob
from fleet.models import Job, Machine
from tests.factories import NOW, make_machine, make_machines

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def job_of(name: str) -> str:
    return Machine.objects.get(name=name).job


def test_a_listed_job_is_stored_with_its_expected_end_and_placed_on_its_machines() -> None:
    make_machines(3, names=["a", "b", "c"])
    job = RunningJob("train", ["a", "b"], owner="ann", started_at=NOW, expected_end=NOW + HOUR)

    services.record_jobs([job], now=NOW)

    stored = Job.objects.get()
    assert (stored.owner, stored.expected_end, stored.is_running) == ("ann", NOW + HOUR, True)
    assert [job_of(name) for name in "abc"] == ["train", "train", ""]


def test_a_job_that_the_scheduler_no_longer_lists_has_ended() -> None:
    make_machine("a")
    services.record_jobs([RunningJob("train", ["a"])], now=NOW)

    services.record_jobs([], now=NOW + HOUR)

    stored = Job.objects.get()
    assert (stored.is_running, stored.ended_at) == (False, NOW + HOUR)
    assert job_of("a") == ""


def test_a_job_that_comes_back_under_its_name_runs_again() -> None:
    make_machines(2, names=["a", "b"])
    for hour, jobs in enumerate([[RunningJob("train", ["a"])], [], [RunningJob("train", ["b"])]]):
        services.record_jobs(jobs, now=NOW + hour * HOUR)

    assert Job.objects.get().is_running
    assert (job_of("a"), job_of("b")) == ("", "train")


def test_the_same_list_twice_changes_nothing() -> None:
    make_machine("a")
    jobs = [RunningJob("train", ["a"], expected_end=NOW + HOUR)]

    services.record_jobs(jobs, now=NOW)
    services.record_jobs(jobs, now=NOW)

    assert Job.objects.count() == 1
    assert job_of("a") == "train"


def test_the_scheduler_names_machines_by_its_own_node_names() -> None:
    make_machine("slot-1", scheduler_node="node001")

    services.record_jobs([RunningJob("train", ["node001"], kind="pre-training")], now=NOW)

    assert job_of("slot-1") == "train"
    assert Machine.objects.get().workload == "pre-training"
