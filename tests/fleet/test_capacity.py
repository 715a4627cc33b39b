"""Who stands where, now and then; how long the way back takes; the days that are kept."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models import Q
from django.test.utils import CaptureQueriesContext

from fleet import capacity, services, tasks
from fleet.clock import set_mode
from fleet.lifecycle import Trigger
from fleet.models import CapacityDay, Machine
from fleet.services.capacity import forget_days
from tests.factories import NOW, make_machine, make_machines

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
#: How each trigger of the way back is asked for, in its order.
OUT = (Trigger.DRAIN, Trigger.TAKE_OUT, Trigger.DIAGNOSE, Trigger.ORDER_REPAIR)
WORK = (Trigger.START_REPAIR, Trigger.CLOSE_REPAIR, Trigger.START_VALIDATION, Trigger.PASS_CHECKS)
BACK = (Trigger.END_OBSERVATION,)


def move(machine: Machine, *triggers: Trigger, at: datetime) -> None:
    for trigger in triggers:
        services.move_machine(machine, trigger, actor="kim", now=at)


def told(at: datetime) -> dict[str, Counter[str]]:
    return {one.pool: +one.counts for one in capacity.standings_as_of(at)}


@pytest.mark.django_db
def test_the_table_counts_each_pool_and_platform_apart():
    make_machines(3, pool="a")
    [held, *_] = make_machines(2, pool="b", platform="hgx-b200")
    services.cordon(held, owner="kim", reason="waits", now=NOW)
    make_machine(pool="b", state="retired", platform="hgx-b200")
    watched = make_machine(pool="a")
    Machine.objects.filter(pk=watched.pk).update(watch_until=NOW + DAY)

    rows = capacity.standings(now=NOW)

    assert [
        (one.platform, one.pool, one.installed, one.in_service, one.qualified, one.cordoned)
        for one in rows
    ] == [("dgx-h100", "a", 4, 4, 3, 0), ("hgx-b200", "b", 2, 2, 1, 1)]
    assert [one.canary for one in rows] == [0, 0]


@pytest.mark.django_db
def test_the_past_is_counted_from_the_changes_and_not_from_today():
    machine = make_machine(pool="a", now=NOW - 30 * DAY)
    make_machine(pool="a", now=NOW - 2 * DAY)
    move(machine, *OUT, at=NOW - DAY)

    assert told(NOW - 31 * DAY) == {}
    assert told(NOW - 3 * DAY) == {"a": Counter(in_service=1)}
    assert told(NOW - DAY - HOUR) == {"a": Counter(in_service=2)}
    assert told(NOW) == {"a": Counter(in_service=1, awaiting_repair=1)}


@pytest.mark.django_db
def test_kept_days_say_the_same_as_counting_all_changes_again():
    first, second, third = make_machines(3, pool="a", now=NOW - 10 * DAY)
    move(first, *OUT, at=NOW - 8 * DAY)
    move(second, Trigger.DRAIN, Trigger.TAKE_OUT, at=NOW - 5 * DAY)
    services.keep_days(now=NOW - 6 * DAY)
    move(first, Trigger.START_REPAIR, at=NOW - 4 * DAY)
    move(third, Trigger.DRAIN, at=NOW - HOUR)
    services.keep_days(now=NOW - 2 * DAY)
    services.keep_days(now=NOW)
    kept = {(row.day, row.pool): row.counts for row in CapacityDay.objects.all()}
    with_days = told(NOW - 30 * timedelta(minutes=1))

    CapacityDay.objects.all().delete()

    assert told(NOW - 30 * timedelta(minutes=1)) == with_days
    services.keep_days(now=NOW)
    assert {(row.day, row.pool): row.counts for row in CapacityDay.objects.all()} == kept
    assert len(kept) == 11


@pytest.mark.django_db
def test_a_machine_that_goes_to_another_pool_is_counted_there_from_then_on():
    machine = make_machine(pool="a", now=NOW - 10 * DAY)
    services.relocate(machine, places={"pool": "b"}, actor="kim", now=NOW - 5 * DAY)
    services.keep_days(now=NOW)

    assert told(NOW - 6 * DAY) == {"a": Counter(in_service=1)}
    assert told(NOW - 4 * DAY) == {"b": Counter(in_service=1)}
    days = CapacityDay.objects.filter(pool="b").exclude(counts={})
    assert days.order_by("day").first().day == (NOW - 5 * DAY).date()


@pytest.mark.django_db
def test_what_cannot_be_counted_again_is_kept_from_the_day_it_was_measured():
    machine = make_machine(pool="a", now=NOW - 3 * DAY)
    services.cordon(machine, owner="kim", reason="waits", now=NOW - 2 * DAY)
    services.keep_days(now=NOW - DAY)
    services.keep_days(now=NOW)

    rows = CapacityDay.objects.order_by("day").values_list("cordoned", "qualified", "canary")

    assert list(rows) == [(None, None, None)] * 2 + [(1, 0, 0)] * 2


@pytest.mark.django_db
def test_days_that_something_older_reaches_are_made_anew():
    make_machine(pool="a", now=NOW - 2 * DAY)
    services.keep_days(now=NOW)
    make_machine(pool="a", now=NOW - 9 * DAY)  # recorded later, for an earlier time
    forget_days(since=NOW - 9 * DAY)

    services.keep_days(now=NOW)

    counts = [row.counts for row in CapacityDay.objects.order_by("day")]
    assert counts == [{"in_service": 1}] * 7 + [{"in_service": 2}] * 3


@pytest.mark.django_db
def test_days_are_kept_by_a_task_that_may_run_twice():
    set_mode("stepped", at=NOW)
    make_machine(now=NOW - 2 * DAY)

    tasks.keep_capacity()
    first = list(CapacityDay.objects.order_by("day").values())
    tasks.keep_capacity()

    assert [row | {"id": 0} for row in CapacityDay.objects.order_by("day").values()] == [
        row | {"id": 0} for row in first
    ]
    assert len(first) == 3


@pytest.mark.django_db
def test_each_queue_tells_its_median_its_ninetieth_percentile_and_who_is_past_the_goal():
    machines = make_machines(4, pool="a", now=NOW - 20 * DAY)
    for hours, machine in zip((2.0, 10.0, 30.0), machines, strict=False):
        began = NOW - 10 * DAY
        move(machine, *OUT, at=began)
        move(machine, Trigger.START_REPAIR, at=began + timedelta(hours=hours))
    move(machines[3], *OUT, at=NOW - 2 * DAY)
    services.keep_days(now=NOW)

    seen = capacity.queue_figures(now=NOW, days=28)

    queue = next(one for one in seen.queues if one.state == "awaiting_repair")
    assert queue.figures.median_hours == pytest.approx(10.0)
    assert queue.figures.p90_hours == pytest.approx(26.0)
    assert (queue.figures.ended, queue.figures.open, queue.overdue) == (3, 1, 1)
    assert queue.goal_hours == 24.0
    assert queue.figures.oldest_open_hours == pytest.approx(48.0)
    # 4 entries in 27.5 days; Kaplan-Meier of 2, 10, 30 and 48 open: (2 + 7.5 + 10 + ...) by hand:
    # 2 + 8 x 3/4 + 20 x 2/4 + (672 - 30) x 1/4 = 178.5 h
    assert queue.figures.mean_hours == pytest.approx(178.5)
    assert queue.flow.expected_out == pytest.approx(4 / 27.5 * 178.5 / 24)
    assert seen.bottleneck is not None
    assert seen.bottleneck.state == "awaiting_repair"


@pytest.mark.django_db
def test_figures_of_a_past_time_do_not_know_what_came_after():
    [machine] = make_machines(1, now=NOW - 20 * DAY)
    move(machine, *OUT, at=NOW - 2 * DAY)
    services.keep_days(now=NOW - DAY)
    at = NOW - DAY
    before = capacity.queue_figures(now=at, is_past=True)
    move(machine, Trigger.START_REPAIR, at=NOW)

    assert capacity.queue_figures(now=at, is_past=True) == before
    queue = next(one for one in before.queues if one.state == "awaiting_repair")
    assert (queue.figures.open, queue.overdue) == (1, 0)


@pytest.mark.django_db
def test_of_the_day_of_a_past_time_only_what_had_happened_by_then_counts():
    [machine] = make_machines(1, now=NOW - 20 * DAY)
    move(machine, *OUT, at=NOW - 2 * DAY)
    move(machine, Trigger.START_REPAIR, at=NOW)
    services.keep_days(now=NOW + 2 * DAY)

    before, after = (
        next(one for one in seen.queues if one.state == "awaiting_repair").figures
        for seen in (
            capacity.queue_figures(now=NOW - HOUR, is_past=True),
            capacity.queue_figures(now=NOW + HOUR, is_past=True),
        )
    )

    assert (before.ended, before.open, before.oldest_open_hours) == (0, 1, 47.0)
    assert (after.ended, after.open, after.median_hours) == (1, 0, 48.0)


@pytest.mark.django_db
def test_a_pool_can_be_asked_for_alone():
    one, other = make_machine(pool="a", now=NOW - DAY), make_machine(pool="b", now=NOW - DAY)
    move(one, Trigger.DRAIN, Trigger.TAKE_OUT, at=NOW)
    move(other, Trigger.DRAIN, Trigger.TAKE_OUT, at=NOW)
    services.keep_days(now=NOW)

    seen = capacity.queue_figures(now=NOW, places=Q(pool="a"))

    assert seen.queues[0].figures.open == 1


@pytest.mark.django_db
def test_the_trend_shows_every_day_and_how_long_what_ended_had_waited():
    machine = make_machine(now=NOW - 4 * DAY)
    move(machine, *OUT, at=NOW - 3 * DAY)
    move(machine, Trigger.START_REPAIR, at=NOW - DAY)
    services.keep_days(now=NOW)

    points = capacity.trends(now=NOW, days=90)["awaiting_repair"]

    assert [(point.waiting, point.ended, point.median_hours) for point in points] == [
        (0, 0, None),
        (1, 0, None),
        (1, 0, None),
        (0, 1, 48.0),
        (0, 0, None),
    ]


@pytest.mark.django_db
def test_the_stays_of_a_machine_are_its_changes_and_the_last_one_is_open():
    machine = make_machine(now=NOW - 2 * DAY)
    move(machine, *OUT, at=NOW - DAY)

    stays = capacity.stays_of(machine, until=NOW)

    assert [(stay.state, stay.hours(now=NOW)) for stay in stays] == [
        ("in_service", 24.0),
        ("draining", 0.0),
        ("awaiting_diagnosis", 0.0),
        ("diagnosing", 0.0),
        ("awaiting_repair", 24.0),
    ]


@pytest.mark.django_db
def test_keeping_days_asks_no_more_of_the_database_for_more_machines():
    def statements() -> int:
        CapacityDay.objects.all().delete()
        with CaptureQueriesContext(connection) as told:
            services.keep_days(now=NOW)
            capacity.queue_figures(now=NOW)
        return len(told)

    make_machine(now=NOW - 3 * DAY)
    few = statements()
    for machine in make_machines(20, now=NOW - 3 * DAY):
        move(machine, *OUT, at=NOW - HOUR)

    assert statements() == few


def test_days_are_of_utc():
    assert capacity.day_over(datetime(2026, 3, 2, tzinfo=UTC).date()) < datetime(
        2026, 3, 3, tzinfo=UTC
    )
