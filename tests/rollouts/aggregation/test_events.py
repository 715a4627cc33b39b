"""What happened to the machines of a wave and had arrived by a cutoff."""

from datetime import timedelta

import numpy as np
import pytest

from fleet.models import FaultSignature
from rollouts.aggregation import samples_for
from tests.rollouts.aggregation.world import (
    AS_OF,
    CLOCK,
    START,
    attempt,
    fail,
    hours,
    interrupt,
    machines,
    make_wave,
    observe,
)

pytestmark = pytest.mark.django_db


def test_observations_are_those_since_the_clock_that_had_happened_and_arrived():
    a, b, stranger = machines("a", "b", "stranger")
    wave = make_wave([b], [a])
    observe(a, end=CLOCK)
    observe(a, end=CLOCK + hours(1), throughput=None, in_service_seconds=1800.5)
    observe(b, end=AS_OF, throughput=0.5, workload="inference")
    observe(b, end=AS_OF + hours(1), received=AS_OF)
    observe(a, end=CLOCK + hours(2), received=AS_OF + hours(1))
    observe(stranger, end=CLOCK + hours(1))

    rows = samples_for(wave, as_of=AS_OF).observations

    assert rows.machine.tolist() == [0, 1]
    assert rows.start_seconds.tolist() == [0.0, 5 * 3600.0]
    assert rows.end_seconds.tolist() == [3600.0, 6 * 3600.0]
    assert rows.in_service_seconds.tolist() == [1800.5, 3600.0]
    assert np.isnan(rows.throughput[0])
    assert rows.throughput[1] == 0.5
    assert [rows.workloads[code] for code in rows.workload] == ["pretraining", "inference"]


def test_rows_that_arrived_by_the_evaluation_count_if_it_says_so():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    observe(a, end=AS_OF, received=AS_OF + timedelta(minutes=5))

    late = samples_for(wave, as_of=AS_OF, arrived_by=AS_OF + timedelta(minutes=5))

    assert late.observations.machine.tolist() == [0]
    assert samples_for(wave, as_of=AS_OF).observations is None


def test_rows_of_a_machine_whose_clock_ran_ahead_are_left_out():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    for machine, is_ahead in ((a, True), (b, False)):
        observe(machine, end=CLOCK + hours(1), is_ahead=is_ahead)
        fail(machine, at=CLOCK + hours(1), is_ahead=is_ahead)
        interrupt(machine, at=CLOCK + hours(1), key=machine.name, is_ahead=is_ahead)

    samples = samples_for(wave, as_of=AS_OF)

    assert samples.observations.machine.tolist() == [1]
    assert samples.faults.machine.tolist() == [1]
    assert samples.recoveries.machine.tolist() == [1]


def test_the_interval_is_the_median_of_what_is_reported():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    observe(a, end=CLOCK + hours(1))
    observe(a, end=CLOCK + hours(2))
    observe(b, end=CLOCK + hours(2), start=CLOCK + hours(1.5))

    assert samples_for(wave, as_of=AS_OF).interval_seconds == 3600.0


def test_a_kind_of_report_that_never_came_is_none_and_silence_is_an_empty_table():
    a, b, stranger = machines("a", "b", "stranger")
    wave = make_wave([b], [a])

    nothing = samples_for(wave, as_of=AS_OF)
    observe(stranger, end=START)
    interrupt(stranger, at=START, key="r")
    silence = samples_for(wave, as_of=AS_OF)

    assert nothing.observations is nothing.faults is nothing.recoveries is None
    assert silence.observations.machine.size == 0
    assert silence.faults.machine.size == 0
    assert silence.recoveries.machine.size == 0


def test_faults_are_in_order_with_their_own_severity_and_microseconds():
    a, b, stranger = machines("a", "b", "stranger")
    wave = make_wave([b], [a])
    # Rounding to milliseconds would carry this one into the next second.
    fail(b, at=CLOCK + timedelta(seconds=59, microseconds=999_750), signature="xid.79")
    fail(b, at=CLOCK + timedelta(seconds=5), severity="critical")
    fail(a, at=CLOCK + hours(1))
    fail(a, at=CLOCK - hours(24))
    fail(a, at=AS_OF + hours(1), received_at=AS_OF)
    fail(a, at=CLOCK + hours(2), received_at=AS_OF + hours(1))
    fail(stranger, at=CLOCK + hours(1))

    faults = samples_for(wave, as_of=AS_OF).faults

    assert faults.machine.tolist() == [0, 0, 1, 1]
    assert faults.time_seconds.tolist() == [-86400.0, 3600.0, 5.0, 59.99975]
    assert [faults.signatures[code] for code in faults.signature] == [
        "xid.48",
        "xid.48",
        "xid.48",
        "xid.79",
    ]
    assert faults.severity == ("major", "major", "critical", "major")


def test_signatures_that_do_not_count_are_left_out_and_unknown_ones_are_not():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    fail(a, at=CLOCK, signature="test.user-error", kind=FaultSignature.Kind.NOT_COUNTED)
    fail(a, at=CLOCK, signature="test.never-heard-of", kind=FaultSignature.Kind.UNKNOWN)

    assert samples_for(wave, as_of=AS_OF).faults.signatures == ("test.never-heard-of",)


def test_a_closed_recovery_wins_over_its_open_row():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    interrupt(a, at=CLOCK + hours(1), key="one")
    interrupt(
        a,
        at=CLOCK + hours(1),
        key="one",
        recovered_at=CLOCK + hours(1.5),
        path="replica_restarted",
        repeated_seconds=60.0,
    )
    interrupt(b, at=CLOCK + hours(2), key="two")
    interrupt(b, at=CLOCK - hours(1), key="before")

    rows = samples_for(wave, as_of=AS_OF).recoveries

    assert rows.machine.tolist() == [0, 1]
    assert rows.time_seconds.tolist() == [3600.0, 7200.0]
    np.testing.assert_array_equal(rows.recovered_seconds, [5400.0, np.nan])
    np.testing.assert_array_equal(rows.recovery_seconds, [1800.0, np.nan])
    np.testing.assert_array_equal(rows.repeated_seconds, [60.0, np.nan])
    assert [rows.paths[code] for code in rows.path] == ["replica_restarted", ""]


def test_a_recovery_that_closed_after_the_cutoff_is_still_open():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    interrupt(a, at=AS_OF - hours(1), key="one")
    interrupt(a, at=AS_OF - hours(1), key="one", recovered_at=AS_OF + hours(1), path="job_lost")

    rows = samples_for(wave, as_of=AS_OF).recoveries

    assert rows.machine.tolist() == [0]
    assert np.isnan(rows.recovered_seconds[0])


def test_the_same_source_key_of_another_source_is_another_recovery():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    interrupt(a, at=CLOCK + hours(1), key="one")
    interrupt(b, at=CLOCK + hours(1), key="one", source="other", recovered_at=CLOCK + hours(2))

    assert samples_for(wave, as_of=AS_OF).recoveries.machine.tolist() == [0, 1]


def test_finished_attempts_come_in_order_of_finishing_and_only_triage_says_bricked():
    a, b, c, d, e = machines("a", "b", "c", "d", "e")
    wave = make_wave([a, b, c, d], [e])
    attempt(wave, a, finished=START + hours(1.5), status="never_returned", triage="bricked")
    attempt(wave, b, finished=START + hours(1), status="timed_out")
    attempt(wave, c, finished=START + hours(1.2), status="never_returned", triage="recovered")
    attempt(wave, d, finished=None, status="staging")
    attempt(wave, d, finished=START, status="called_off", number=2)

    rows = samples_for(wave, as_of=AS_OF).attempts

    assert rows.machine.tolist() == [1, 2, 0]
    assert [rows.outcomes[code] for code in rows.outcome] == [
        "timed_out",
        "never_returned",
        "bricked",
    ]
