"""S07: counters that begin anew with a boot are neither a spike nor a rest."""

from datetime import timedelta

import pytest

from fleet import services
from fleet.adapters import Report
from fleet.models import CounterSample, Fault, Machine
from fleet.telemetry.counters import Reading, increase, total
from tests.factories import NOW, make_machine

NAME = "host.dimm_correctable"
MINUTE = timedelta(minutes=1)


def test_s07_a_counter_that_a_boot_set_back_rose_by_what_it_shows_since():
    samples = [Reading(1000, "a"), Reading(1010, "a"), Reading(3, "b"), Reading(8, "b")]

    assert total(samples) == (18, 0)


def test_s07_a_drop_without_a_boot_is_no_wrap_and_no_rate():
    assert increase(Reading(1010, "a"), Reading(3, "a")) is None
    assert total([Reading(1000, "a"), Reading(3, "a"), Reading(8, "a")]) == (5, 1)


def report(machine: Machine, *values: tuple[int, int, str], key: str = "1") -> None:
    """Report (minute, value, boot) triples in one delivery."""
    reports = [
        Report(
            "counter",
            {
                "machine": machine.name,
                "signature": NAME,
                "time": NOW + minute * MINUTE,
                "value": value,
                "boot_id": boot,
            },
        )
        for minute, value, boot in values
    ]
    result = services.record(reports, source="agent", key=key, now=NOW + timedelta(hours=1))
    assert result.refused == []


def rises() -> list[int]:
    faults = Fault.objects.filter(signature__name=NAME).order_by("time")
    return [fault.attributes["increase"] for fault in faults]


@pytest.mark.django_db
def test_s07_what_a_counter_rose_by_becomes_faults_once():
    machine = make_machine()
    values = [(0, 1000, "a"), (1, 1010, "a"), (2, 3, "b"), (3, 8, "b"), (4, 8, "b")]

    report(machine, *values)
    report(machine, *values, key="again")

    assert rises() == [10, 3, 5]


@pytest.mark.django_db
def test_s07_the_reading_before_counts_across_deliveries():
    machine = make_machine()

    report(machine, (0, 1000, "a"))
    report(machine, (1, 1010, "a"), key="2")
    report(machine, (2, 3, "b"), key="3")

    assert rises() == [10, 3]


@pytest.mark.django_db
def test_s07_a_counter_that_went_backwards_is_flagged_and_left_out():
    machine = make_machine()

    report(machine, (0, 1000, "a"), (1, 3, "a"), (2, 8, "a"))

    assert rises() == [5]
    assert CounterSample.objects.get(is_backwards=True).value == 3


@pytest.mark.django_db
def test_s07_a_late_reading_counts_nothing_twice():
    machine = make_machine()
    report(machine, (0, 10, "a"), (2, 20, "a"))

    report(machine, (1, 15, "a"), key="late")

    assert rises() == [10]


@pytest.mark.django_db
@pytest.mark.parametrize("value", [-1, 1.5, True, "7", 2**63])
def test_a_counter_that_is_no_whole_number_is_refused(value):
    fields = {"signature": NAME, "time": NOW, "value": value, "boot_id": "a"}
    one = Report("counter", {"machine": make_machine().name, **fields})

    result = services.record([one], source="agent", key="1", now=NOW)

    assert [refusal.field for refusal in result.refused] == ["value"]
