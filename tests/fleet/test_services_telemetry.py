"""Records count once, wrong ones are refused one by one, and nothing is dropped in silence."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from fleet import services
from fleet.adapters import Report
from fleet.errors import BatchConflict
from fleet.models import Fault, FaultSignature, Observation, Recovery, TelemetryBatch
from tests.factories import (
    NOW,
    make_fault_report,
    make_machine,
    make_machines,
    make_observation_report,
    make_recovery_report,
)

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(minutes=1)


def record(*reports: Report, key: str = "batch-1", now: datetime = LATER) -> services.BatchResult:
    return services.record(reports, source="test", key=key, now=now)


def test_each_kind_of_report_is_stored():
    machine = make_machine()

    result = record(
        make_fault_report(machine), make_observation_report(machine), make_recovery_report(machine)
    )

    assert (result.accepted, result.duplicates, result.refused) == (3, 0, [])
    assert Fault.objects.get().signature.name == "xid.119"
    assert Observation.objects.get().in_service_seconds == 3600
    assert Recovery.objects.get().recovered_at is None


def test_two_identical_rows_of_a_batch_count_once():
    machine = make_machine()

    result = record(make_fault_report(machine), make_fault_report(machine))

    assert (result.accepted, result.duplicates) == (1, 1)
    assert Fault.objects.count() == 1


def test_a_row_counts_once_over_batches():
    machine = make_machine()
    record(make_fault_report(machine), key="first")

    result = record(make_fault_report(machine), key="second")

    assert (result.accepted, result.duplicates) == (0, 1)
    assert Fault.objects.count() == 1


def test_the_same_instant_in_two_zones_is_one_record():
    machine = make_machine()

    result = record(
        make_fault_report(machine, time="2026-03-02T12:00:00Z"),
        make_fault_report(machine, time="2026-03-02T13:00:00+01:00"),
    )

    assert (result.accepted, result.duplicates) == (1, 1)
    assert Fault.objects.get().time == datetime(2026, 3, 2, 12, tzinfo=UTC)


def test_source_keys_belong_to_their_source():
    machine = make_machine()
    report = make_fault_report(machine, source_key="k")
    services.record([report], source="one", key="b", now=LATER)

    result = services.record([report], source="two", key="b", now=LATER)

    assert result.accepted == 1


def test_a_repeated_batch_answers_what_it_answered_first():
    machine = make_machine()
    reports = (make_fault_report(machine), make_fault_report(machine, time="yesterday"))
    first = record(*reports)

    second = record(*reports)

    assert second == first
    assert (second.accepted, second.duplicates, len(second.refused)) == (1, 0, 1)
    assert TelemetryBatch.objects.count() == 1


def test_a_batch_key_for_other_content_is_a_conflict():
    machine = make_machine()
    record(make_fault_report(machine))

    with pytest.raises(BatchConflict, match="batch-1"):
        record(make_fault_report(machine, job="other"))

    assert Fault.objects.count() == 1


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("machine", "no-such", "no machine"),
        ("machine", None, "name of a machine"),
        ("time", "2026-03-02T12:00:00", "no zone"),
        ("time", NOW.replace(tzinfo=None), "no zone"),
        ("time", "soon", "RFC 3339"),
        ("time", "0001-01-01T00:00:00+14:00", "calendar"),
        ("time", None, "RFC 3339"),
        ("signature", "", "text"),
        ("signature", "x" * 101, "100 characters"),
        ("severity", "awful", "one of info"),
        ("component", "a\x00b", "cannot be stored"),
        ("component", "\ud800", "cannot be stored"),
        ("machine", "\x00", "no machine"),
        ("source_key", "\x00", "cannot be stored"),
        ("source_key", 7, "text"),
        ("attributes", {"a": "\x00"}, "cannot be stored"),
        ("attributes", {"\ud800": 1}, "cannot be stored"),
        ("attributes", {"value": float("nan")}, "NaN"),
        ("attributes", [1], "object"),
        ("machnie", "m1", "no such field"),
    ],
)
def test_a_wrong_fault_is_refused_by_field_and_value_and_the_others_are_stored(name, value, reason):
    machine = make_machine()

    result = record(
        make_fault_report(machine, **{name: value}), make_fault_report(machine, job="right")
    )

    assert result.accepted == 1
    [refusal] = result.refused
    assert (refusal.index, refusal.field) == (0, name)
    assert reason in refusal.reason
    assert Fault.objects.get().job == "right"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("throughput", float("nan")),
        ("throughput", float("inf")),
        ("throughput", 1e101),
        ("throughput", "n/a"),
        ("throughput", ""),
        ("throughput", True),
        ("in_service_seconds", -1),
        ("in_service_seconds", 10**400),
        ("in_service_seconds", None),
        ("in_service_seconds", 3700),
        ("end", NOW - timedelta(hours=1)),
        ("end", NOW - timedelta(hours=2)),
    ],
)
def test_an_observation_that_cannot_be_true_is_refused(name, value):
    machine = make_machine()

    result = record(make_observation_report(machine, **{name: value}))

    assert (result.accepted, len(result.refused)) == (0, 1)
    assert result.refused[0].field == name
    assert not Observation.objects.exists()


def test_an_unknown_kind_of_report_is_refused():
    result = record(Report("gossip", {"machine": make_machine().name}))

    assert result.refused[0].field == "kind"


def test_a_recovery_cannot_end_before_it_began():
    result = record(make_recovery_report(make_machine(), recovered_at=NOW - timedelta(seconds=1)))

    assert result.refused[0].field == "recovered_at"


def test_the_end_of_an_interruption_is_a_second_row_under_the_same_key():
    machine = make_machine()
    closed = make_recovery_report(
        machine, recovered_at=LATER, path="continued", recovery_seconds=60
    )
    record(make_recovery_report(machine), key="open")

    result = record(closed, key="closed")

    assert result.accepted == 1
    keys = Recovery.objects.values_list("source_key", flat=True)
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_both_rows_of_an_interruption_may_come_in_one_batch():
    machine = make_machine()
    closed = make_recovery_report(machine, recovered_at=LATER, path="continued")

    result = record(make_recovery_report(machine), closed, make_recovery_report(machine))

    assert (result.accepted, result.duplicates) == (2, 1)


def test_an_unknown_signature_joins_the_catalogue_as_unknown():
    machine = make_machine()
    early, late = NOW - timedelta(hours=2), NOW - timedelta(hours=1)
    record(make_fault_report(machine, signature="vendor.42", time=late), key="late")

    record(make_fault_report(machine, signature="vendor.42", time=early), key="early")

    signature = FaultSignature.objects.get(name="vendor.42")
    assert signature.kind == FaultSignature.Kind.UNKNOWN
    assert signature.first_seen_at == early
    assert Fault.objects.filter(signature=signature).count() == 2


def test_severity_comes_from_the_catalogue_unless_reported():
    machine = make_machine()

    record(
        make_fault_report(machine, signature="xid.79"),
        make_fault_report(machine, signature="xid.79", severity="info"),
    )

    assert set(Fault.objects.values_list("severity", flat=True)) == {"critical", "info"}


def test_a_time_ahead_of_the_server_is_stored_and_marked():
    machine = make_machine()
    edge = LATER + timedelta(minutes=5)

    result = record(
        make_fault_report(machine, time=edge),
        make_fault_report(machine, time=edge + timedelta(seconds=1)),
        make_observation_report(machine, end=edge + timedelta(hours=1)),
        make_recovery_report(machine, recovered_at=edge + timedelta(hours=1)),
    )

    assert result.accepted == 4
    assert list(Fault.objects.order_by("time").values_list("is_ahead", flat=True)) == [False, True]
    assert Observation.objects.get().is_ahead
    assert Recovery.objects.get().is_ahead


def test_extra_attributes_of_a_fault_are_kept():
    record(make_fault_report(make_machine(), attributes={"gpu": 3, "text": 'naïve "quote"'}))

    assert Fault.objects.get().attributes == {"gpu": 3, "text": 'naïve "quote"'}


def test_twenty_thousand_reports_take_under_three_seconds(django_assert_max_num_queries):
    machines = make_machines(200)
    reports = [
        make_fault_report(machine, time=NOW - timedelta(minutes=minute))
        if minute % 2
        else make_observation_report(
            machine,
            start=(NOW - timedelta(minutes=minute + 1)).isoformat(),
            end=(NOW - timedelta(minutes=minute)).isoformat(),
            in_service_seconds=60,
        )
        for machine in machines
        for minute in range(100)
    ]

    begin = time.process_time()
    with django_assert_max_num_queries(20):
        result = record(*reports)
    seconds = time.process_time() - begin

    assert result.accepted == 20_000
    assert seconds < 3
