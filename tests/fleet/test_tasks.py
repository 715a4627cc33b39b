"""The collector's task may run twice, late, by several workers, and loses nothing."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from fleet import clock, selectors, tasks
from fleet.adapters import Report
from fleet.models import CollectorCursor, Fault, Heartbeat, Machine
from tests.factories import NOW, make_machine

pytestmark = pytest.mark.django_db

fetched: list[tuple[datetime, datetime]] = []


def is_leased() -> bool:
    return CollectorCursor.objects.filter(leased_until__gte=timezone.now()).exists()


class HourlyFaults:
    """A collector that reports one fault at each full hour in (since, until]."""

    def fetch(self, *, since: datetime, until: datetime) -> Sequence[Report]:
        fetched.append((since, until))
        first = since.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        hours = int((until - first) / timedelta(hours=1)) + 1
        return [fault_at(first + timedelta(hours=hour)) for hour in range(hours)]


class Forgetful(HourlyFaults):
    """A collector that fetches everything since the beginning, each time."""

    def fetch(self, *, since: datetime, until: datetime) -> Sequence[Report]:
        return super().fetch(since=NOW, until=until)


class Broken(HourlyFaults):
    """A collector whose source does not answer."""

    def fetch(self, *, since: datetime, until: datetime) -> Sequence[Report]:
        raise ConnectionError("no route to the source")


class Slow(HourlyFaults):
    """A collector that takes so long that another worker gets the lease."""

    def fetch(self, *, since: datetime, until: datetime) -> Sequence[Report]:
        CollectorCursor.objects.update(lease_token="another")
        return super().fetch(since=since, until=until)


def fault_at(time: datetime) -> Report:
    return Report("fault", {"machine": "m1", "time": time, "signature": "xid.79"})


@pytest.fixture(autouse=True)
def collector(settings):
    fetched.clear()
    use(settings, HourlyFaults)


def use(settings, collector: type) -> None:
    settings.COLLECTOR = f"{__name__}.{collector.__name__}"


@pytest.fixture
def machine() -> Machine:
    clock.set_mode("stepped", at=NOW)
    return make_machine("m1", now=NOW)


def test_without_machines_nothing_is_fetched():
    tasks.collect()

    assert fetched == []
    assert selectors.collected_until() is None


def test_the_first_run_begins_at_the_first_registration_and_goes_on_to_now(machine):
    clock.step_to(NOW + timedelta(hours=3))

    tasks.collect()

    assert fetched == [(NOW, NOW + timedelta(hours=3))]
    assert selectors.collected_until() == NOW + timedelta(hours=3)
    assert Fault.objects.count() == 3


def test_a_long_way_is_gone_in_steps_of_at_most_six_hours(machine):
    clock.step_to(NOW + timedelta(hours=15))

    tasks.collect()

    assert [until - since for since, until in fetched] == [
        timedelta(hours=6),
        timedelta(hours=6),
        timedelta(hours=3),
    ]
    assert Fault.objects.count() == 15


def test_records_say_when_they_really_arrived(machine):
    clock.step_to(NOW + timedelta(hours=15))

    tasks.collect()

    assert set(Fault.objects.values_list("received_at", flat=True)) == {clock.now()}


def test_a_second_run_at_the_same_time_fetches_nothing(machine):
    clock.step_to(NOW + timedelta(hours=3))
    tasks.collect()

    tasks.collect()

    assert len(fetched) == 1


def test_a_later_run_goes_on_from_the_cursor(machine):
    for hours in (3, 5):
        clock.step_to(NOW + timedelta(hours=hours))
        tasks.collect()

    assert fetched[1] == (NOW + timedelta(hours=3), NOW + timedelta(hours=5))
    assert Fault.objects.count() == 5


def test_records_that_are_fetched_again_count_once(machine, settings):
    use(settings, Forgetful)

    for hours in (3, 5):
        clock.step_to(NOW + timedelta(hours=hours))
        tasks.collect()

    assert Fault.objects.count() == 5


def test_a_worker_does_not_collect_while_another_holds_the_lease(machine, settings):
    clock.step_to(NOW + timedelta(hours=3))
    CollectorCursor.objects.create(
        collector=settings.COLLECTOR,
        collected_until=NOW,
        leased_until=timezone.now() + timedelta(seconds=30),
        lease_token="another",
    )

    tasks.collect()

    assert fetched == []
    assert CollectorCursor.objects.get().lease_token == "another"


def test_a_dead_workers_lease_runs_out(machine, settings):
    clock.step_to(NOW + timedelta(hours=3))
    CollectorCursor.objects.create(
        collector=settings.COLLECTOR,
        collected_until=NOW,
        leased_until=timezone.now() - timedelta(seconds=1),
        lease_token="dead",
    )

    tasks.collect()

    assert Fault.objects.count() == 3


def test_the_lease_is_given_back_at_the_end_and_after_an_error(machine, settings):
    clock.step_to(NOW + timedelta(hours=3))
    tasks.collect()
    assert not is_leased()

    use(settings, Broken)
    with pytest.raises(ConnectionError):
        tasks.collect()

    assert not is_leased()


def test_a_source_that_does_not_answer_leaves_the_cursor_where_it_was(machine, settings):
    clock.step_to(NOW + timedelta(hours=3))
    use(settings, Broken)

    with pytest.raises(ConnectionError):
        tasks.collect()

    assert selectors.collected_until() == NOW


def test_a_worker_that_lost_its_lease_stores_nothing(machine, settings):
    clock.step_to(NOW + timedelta(hours=3))
    use(settings, Slow)

    tasks.collect()

    assert selectors.collected_until() == NOW
    assert not Fault.objects.exists()
    assert CollectorCursor.objects.get().lease_token == "another"


def test_a_run_that_takes_too_long_hints_its_successor(
    machine, monkeypatch, django_capture_on_commit_callbacks
):
    clock.step_to(NOW + timedelta(hours=15))
    monkeypatch.setattr(tasks, "LONGEST_RUN_SECONDS", -1.0)
    hinted = []
    monkeypatch.setattr(tasks.collect, "apply_async", lambda args: hinted.append(args))

    with django_capture_on_commit_callbacks(execute=True):
        tasks.collect()

    assert hinted == [()]
    assert not is_leased()


def test_the_heartbeat_writes_the_walls_time_in_one_row():
    before = timezone.now()

    tasks.heartbeat()
    tasks.heartbeat()

    assert Heartbeat.objects.get(name="worker").beat_at >= before


def test_a_cursor_from_a_clock_that_ran_ahead_comes_back_and_collects_on(machine, settings):
    ahead = NOW + timedelta(days=3650)
    CollectorCursor.objects.create(collector=settings.COLLECTOR, collected_until=ahead)
    clock.step_to(NOW + timedelta(hours=3))

    tasks.collect()
    clock.step_to(NOW + timedelta(hours=5))
    tasks.collect()

    assert selectors.collected_until() == NOW + timedelta(hours=5)
    assert Fault.objects.count() == 2


def test_a_lease_from_a_clock_that_ran_ahead_keeps_nobody_from_collecting(machine, settings):
    clock.step_to(NOW + timedelta(hours=3))
    CollectorCursor.objects.create(
        collector=settings.COLLECTOR,
        collected_until=NOW,
        leased_until=timezone.now() + timedelta(days=3650),
        lease_token="dead",
    )

    tasks.collect()

    assert Fault.objects.count() == 3
