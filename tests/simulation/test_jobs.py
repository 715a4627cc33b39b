"""The virtual scheduler's jobs: placed only where they may be, kept to their end, hit as one."""

from datetime import timedelta

import pytest

from fleet import services as fleet_services
from fleet import tasks as fleet_tasks
from fleet.lifecycle import Trigger
from fleet.models import Job, Machine
from simulation import jobs
from simulation.adapters import VirtualCollector, VirtualScheduler, drain_as, model_of
from simulation.models import VirtualFleet, VirtualJob
from simulation.parameters import JobMix
from tests.simulation.fleets import ORIGIN, make_fleet

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
MIX = JobMix(sizes=(2, 4), mean_hours=4.0, overestimate=1.5, load=0.9)


def busy_fleet(**changes) -> VirtualFleet:
    return make_fleet(**{"jobs": MIX, **changes})


def place(fleet: VirtualFleet, *, now=ORIGIN) -> int:
    return jobs.place(fleet, model_of(fleet), now=now)


def occupied(now) -> list[int]:
    running = VirtualJob.objects.filter(started_at__lte=now, ends_at__gt=now)
    return [index for job in running for index in job.machines]


def test_jobs_fill_the_fleet_to_its_load_and_share_no_machine():
    fleet = busy_fleet()

    assert place(fleet) > 0
    assert place(fleet) == 0  # again: nothing more fits

    taken = occupied(ORIGIN)
    assert len(taken) == len(set(taken))
    assert 0.6 * 40 <= len(taken) <= 40
    assert {len(job.machines) for job in VirtualJob.objects.all()} <= {2, 4}


def test_no_job_spans_two_arms_that_are_kept_apart_until_that_is_lifted():
    fleet = busy_fleet()
    names = [machine.name for machine in model_of(fleet).machines]
    arms = {"canary": names[::3], "control": names[1::3]}
    scheduler = VirtualScheduler()

    scheduler.keep_apart(arms, reason="rollout:1 wave 1", now=ORIGIN)
    place(fleet)

    arm_of = {name: arm for arm, own in arms.items() for name in own}
    spread = [
        {arm_of.get(names[index], "") for index in job.machines} for job in VirtualJob.objects.all()
    ]
    assert {frozenset(arms) for arms in spread} == {
        frozenset({"canary"}),
        frozenset({"control"}),
        frozenset({""}),
    }

    scheduler.keep_apart({}, reason="rollout:1 wave 1", now=ORIGIN)

    assert not fleet.machines.exclude(features={}).exists()


def test_the_same_seed_places_the_same_jobs():
    first = [(job.name, job.machines, job.ends_at) for job in _placed(busy_fleet())]

    VirtualJob.objects.all().delete()

    assert [(job.name, job.machines, job.ends_at) for job in _placed(fleet_again())] == first


def fleet_again() -> VirtualFleet:
    return VirtualFleet.objects.get()


def _placed(fleet: VirtualFleet) -> list[VirtualJob]:
    place(fleet)
    return list(fleet.jobs.order_by("name"))


def test_a_machine_that_may_take_no_work_or_is_drained_is_never_given_a_job():
    fleet = busy_fleet()
    first, second, *_ = Machine.objects.order_by("name")
    fleet_services.move_machine(first, Trigger.DRAIN, actor="test", now=ORIGIN)
    VirtualScheduler().drain(second.name, reason="rollout:1", now=ORIGIN)

    for hour in range(24):
        place(fleet, now=ORIGIN + hour * HOUR)

    indices = dict(fleet.machines.values_list("machine__name", "index"))
    given = {index for job in fleet.jobs.all() for index in job.machines}
    assert not {indices[first.name], indices[second.name]} & given
    assert fleet.jobs.count() > 20


def test_a_drained_machine_keeps_its_job_to_the_end_and_says_until_when():
    fleet = busy_fleet()
    place(fleet)
    job = fleet.jobs.first()
    name = model_of(fleet).machines[job.machines[0]].name
    scheduler = VirtualScheduler()

    answer = scheduler.drain(name, reason="rollout:1", now=ORIGIN)
    place(fleet, now=job.ends_at)
    later = scheduler.drain(name, reason="rollout:1", now=job.ends_at)

    assert (answer.is_idle, answer.job, answer.owner) == (False, job.name, job.owner)
    assert answer.until == job.expected_end > job.ends_at  # users ask for more than they need
    assert later.is_idle


def test_the_product_takes_the_schedulers_list_over(monkeypatch):
    fleet = busy_fleet()
    place(fleet)
    monkeypatch.setattr(fleet_tasks.clock, "now", lambda: ORIGIN)

    fleet_tasks.watch_jobs()
    fleet_tasks.watch_jobs()

    assert Job.objects.filter(is_running=True).count() == fleet.jobs.count()
    placed = Machine.objects.exclude(job="").count()
    assert placed == len(occupied(ORIGIN))


def test_a_fleet_whose_jobs_never_change_lists_none(monkeypatch):
    make_fleet()
    monkeypatch.setattr(fleet_tasks.clock, "now", lambda: ORIGIN)
    before = set(Machine.objects.values_list("job", flat=True))

    fleet_tasks.watch_jobs()

    assert VirtualScheduler().jobs(now=ORIGIN) is None
    assert set(Machine.objects.values_list("job", flat=True)) == before


def test_a_fault_that_throws_a_job_back_does_so_on_all_its_machines():
    fleet = busy_fleet(per_machine_day=20.0)
    for hour in range(0, 48, 2):
        place(fleet, now=ORIGIN + hour * HOUR)

    reports = VirtualCollector().fetch(since=ORIGIN, until=ORIGIN + 48 * HOUR)

    restarts = [
        report.fields
        for report in reports
        if report.kind == "recovery"
        and report.fields.get("path") == "job_restarted_from_checkpoint"
        and report.fields["job"]
    ]
    assert restarts
    by_start: dict[tuple, set[str]] = {}
    for fields in restarts:
        by_start.setdefault((fields["job"], fields["time"]), set()).add(fields["machine"])
    sizes = {job.name: len(job.machines) for job in fleet.jobs.all()}
    assert all(len(machines) == sizes[job] for (job, _), machines in by_start.items())


def test_machines_of_a_synchronous_job_report_the_throughput_of_its_slowest():
    fleet = busy_fleet()
    place(fleet)

    reports = VirtualCollector().fetch(since=ORIGIN, until=ORIGIN + 2 * HOUR)

    seen: dict[str, set[float]] = {}
    for report in reports:
        if report.kind == "observation" and report.fields["job"]:
            seen.setdefault(report.fields["job"], set()).add(report.fields["throughput"])
    assert len(seen) > 3
    assert {len(values) for values in seen.values()} == {1}


def test_what_somebody_else_drained_gets_no_job_and_is_not_given_back_with_ours():
    fleet = busy_fleet()
    scheduler = VirtualScheduler()
    names = [machine.name for machine in model_of(fleet).machines[:4]]
    scheduler.drain(names[0], reason="rollout:1", now=ORIGIN)
    for name in names:
        drain_as("alice", name, reason="bad fan", now=ORIGIN)

    answer = scheduler.drain(names[0], reason="rollout:1", now=ORIGIN)
    scheduler.release(names[0], reason="rollout:1", now=ORIGIN)
    place(fleet)

    assert (answer.is_idle, answer.drained_by) == (False, "alice: bad fan")
    assert not set(range(4)) & set(occupied(ORIGIN))
    assert [drain.machine for drain in scheduler.foreign_drains(now=ORIGIN)] == names

    drain_as("alice", names[0], reason="", now=ORIGIN)

    assert scheduler.drain(names[0], reason="rollout:1", now=ORIGIN).is_idle
    assert len(scheduler.foreign_drains(now=ORIGIN)) == 3


def test_no_job_spans_a_reservation_and_others_until_it_ends():
    fleet = busy_fleet()
    names = [machine.name for machine in model_of(fleet).machines]
    scheduler = VirtualScheduler()
    reserved = set(range(0, 40, 3))
    chosen = [names[index] for index in sorted(reserved)]
    scheduler.reserve(chosen, name="coalmine-1-1", start=ORIGIN, end=ORIGIN + HOUR)

    place(fleet)
    early = [set(job.machines) for job in VirtualJob.objects.all()]
    VirtualJob.objects.update(ends_at=ORIGIN + 2 * HOUR)
    place(fleet, now=ORIGIN + 3 * HOUR)
    late = [set(job.machines) for job in VirtualJob.objects.filter(started_at__gt=ORIGIN)]

    assert early
    assert all(machines <= reserved or not machines & reserved for machines in early)
    assert any(machines & reserved and machines - reserved for machines in late)
