"""What was lost, what a job can expect, and how long machines were away."""

from datetime import timedelta
from typing import Any

import pytest

from fleet import losses, services
from fleet.clock import set_mode
from fleet.lifecycle import Trigger
from fleet.models import Job, Machine, ServiceDay
from tests.factories import (
    NOW,
    make_fault_report,
    make_machine,
    make_observation_report,
    make_passed_gate,
)
from tests.fleet.goodput_world import HOUR, MINUTE, record, serve

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def at_noon():
    set_mode("stepped", at=NOW)


def asked(**fields: Any) -> losses.Asked:
    days = {"since": (NOW - timedelta(days=6)).date(), "until": NOW.date()}
    return losses.Asked(**{**days, **fields})


def test_machine_time_is_kept_by_platform_pool_and_kind_of_job():
    first, second = make_machine(pool="a"), make_machine(pool="b")
    reports = [
        make_observation_report(first, workload="Pre-Training"),
        make_observation_report(second, workload="pretraining", in_service_seconds=1800.0),
        make_observation_report(
            second, workload="", start=NOW - 2 * HOUR, end=NOW - HOUR, throughput=None
        ),
    ]
    services.record(reports, source="agents", key="1", now=NOW)

    services.summarise(now=NOW)
    services.summarise(now=NOW + 2 * HOUR)

    kept = ServiceDay.objects.order_by("pool", "job_kind")
    assert list(kept.values_list("pool", "job_kind", "service_hours", "machines")) == [
        ("a", "pre_training", 1.0, 1),
        ("b", "", 1.0, 1),
        ("b", "pre_training", 0.5, 1),
    ]


def move(machine: Machine, trigger: Trigger, hours: float) -> None:
    gate = make_passed_gate(machine) if trigger is Trigger.RELEASE else None
    services.move_machine(
        machine, trigger, actor="ann", now=NOW - 10 * HOUR + hours * HOUR,
        **({"gate": "passed", "gate_record": gate} if gate else {}),
    )  # fmt: skip


def test_the_parts_of_the_way_back_are_measured_from_the_moves():
    machine = make_machine()
    for hours, trigger in enumerate(
        (
            Trigger.DRAIN,
            Trigger.TAKE_OUT,
            Trigger.DIAGNOSE,
            Trigger.ORDER_REPAIR,
            Trigger.START_REPAIR,
            Trigger.CLOSE_REPAIR,
            Trigger.START_VALIDATION,
            Trigger.PASS_CHECKS,
            Trigger.END_OBSERVATION,
        )
    ):
        move(machine, trigger, hours)
    services.keep_days(now=NOW)
    record(detected_at=NOW - HOUR + 3 * MINUTE)

    back = losses.way_back(asked())

    medians = {one.state: one.median_hours for one in back.parts}
    assert medians.pop("detect") == pytest.approx(0.05)
    assert medians.pop("awaiting_release") is None
    assert medians.pop("at_supplier") is None
    assert set(medians.values()) == {1.0}
    assert (back.whole.ended, back.whole.median_hours) == (0, None)


def test_nothing_that_came_back_gives_no_time_and_no_share():
    back = losses.way_back(asked())

    assert [one.median_hours for one in back.parts] == [None] * len(losses.PARTS)
    assert back.availability.reason == "no kept day with machines in this time"


def test_availability_is_in_service_over_installed():
    make_machine()
    out = make_machine()
    services.move_machine(out, Trigger.DRAIN, actor="ann", now=NOW - HOUR)
    services.keep_days(now=NOW)

    back = losses.way_back(asked(since=NOW.date()))

    assert back.availability.value == pytest.approx(0.5)
    assert back.qualified.value == pytest.approx(0.5)


def test_the_ratio_of_a_job_is_its_time_less_what_it_lost():
    Job.objects.create(name="job-1", started_at=NOW - 10 * HOUR, seen_at=NOW)
    record()  # half an hour of ten

    (row,) = losses.report(asked(), now=NOW).jobs

    assert row.ettr.value == pytest.approx(0.95)
    assert row.ettr.reason == "at most: queue time is not recorded"


def test_of_a_job_whose_beginning_nobody_told_there_is_no_ratio():
    record()

    (row,) = losses.report(asked(), now=NOW).jobs

    assert (row.ettr.value, row.ettr.reason) == (None, "when the job began is not known")


def test_the_restart_that_was_seen_is_what_a_job_can_expect():
    machine = make_machine()
    serve(24.0 * 100)
    services.record([make_fault_report(machine)], source="agents", key="1", now=NOW)
    services.record_incidents(now=NOW)
    record()

    seen = losses.report(asked(), now=NOW)
    found = losses.expected(seen, machines=10, checkpoint_minutes=60.0, write_minutes=2.0)

    # 1 failure in 100 machine-days: 0.1 a day for 10 machines; 10 min restart + 30 min again.
    assert seen.rate.value == pytest.approx(0.01)
    assert found.restart_minutes.value == pytest.approx(10.0)
    assert found.ettr.value == pytest.approx((1 - 0.1 * 40 / 1440) / (1 + 2 / 60))
    assert found.mttf_hours.value == pytest.approx(240.0)
