"""What a pause cuts out of the samples."""

from datetime import UTC, datetime

import numpy as np
import pytest

from rollouts.analysis.pauses import Pause, without_pauses
from rollouts.analysis.samples import (
    FaultEvents,
    Machines,
    ObservationRows,
    Samples,
    ServiceIntervals,
    Units,
)

HOUR = 3600.0


def hours(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64) * HOUR


def samples_with(**tables: object) -> Samples:
    return Samples(
        origin=datetime(2026, 3, 2, tzinfo=UTC),
        as_of_seconds=20 * HOUR,
        window_seconds=48 * HOUR,
        units=Units(
            name=("a", "b"),
            is_canary=np.array([True, False]),
            stratum=np.zeros(2, dtype=np.int64),
            clock_start_seconds=hours(0, 12),
        ),
        machines=Machines(
            name=("a", "b"),
            unit=np.arange(2),
            enrolled_seconds=np.full(2, -30 * HOUR),
            left_seconds=np.full(2, np.inf),
        ),
        **tables,
    )


def faults(*at: float) -> FaultEvents:
    return FaultEvents(
        machine=np.zeros(len(at), dtype=np.int64),
        time_seconds=hours(*at),
        signature=np.zeros(len(at), dtype=np.int64),
        signatures=("xid.48",),
        severity=("major",) * len(at),
    )


def test_without_a_pause_nothing_changes() -> None:
    samples = samples_with(faults=faults(1, 2))

    assert without_pauses(samples, []) is samples


def test_a_fault_in_a_pause_does_not_count_and_later_ones_move_back() -> None:
    samples = samples_with(faults=faults(1, 5, 15))

    cut = without_pauses(samples, [Pause(4 * HOUR, 10 * HOUR)])

    assert cut.faults is not None
    assert cut.faults.time_seconds.tolist() == [1 * HOUR, 9 * HOUR]
    assert cut.faults.severity == ("major", "major")
    assert cut.as_of_seconds == 14 * HOUR


def test_a_pause_before_the_window_changes_nothing_of_it() -> None:
    samples = samples_with(faults=faults(-3, 1))

    cut = without_pauses(samples, [Pause(-5 * HOUR, -1 * HOUR)])

    assert cut.faults is not None
    assert cut.faults.time_seconds.tolist() == [-3 * HOUR, 1 * HOUR]


def test_both_arms_clocks_move_alike() -> None:
    cut = without_pauses(samples_with(), [Pause(4 * HOUR, 10 * HOUR)])

    assert cut.units.clock_start_seconds.tolist() == [0.0, 6 * HOUR]


def test_service_time_within_a_pause_is_no_exposure() -> None:
    service = ServiceIntervals(
        machine=np.array([0, 1]), start_seconds=hours(0, 5), end_seconds=hours(20, 9)
    )

    cut = without_pauses(samples_with(service=service), [Pause(4 * HOUR, 10 * HOUR)])

    assert cut.service is not None
    assert (cut.service.end_seconds - cut.service.start_seconds).tolist() == [14 * HOUR, 0.0]


def test_an_observation_that_touches_a_pause_is_left_out_whole() -> None:
    rows = ObservationRows(
        machine=np.array([0, 0, 0]),
        start_seconds=hours(0, 3, 10),
        end_seconds=hours(1, 5, 12),
        in_service_seconds=hours(1, 2, 2),
        throughput=np.array([1.0, 0.9, 1.0]),
        workload=np.zeros(3, dtype=np.int64),
        workloads=("train",),
    )

    cut = without_pauses(samples_with(observations=rows), [Pause(4 * HOUR, 10 * HOUR)])

    assert cut.observations is not None
    assert cut.observations.start_seconds.tolist() == [0.0, 4 * HOUR]
    assert cut.observations.in_service_seconds.tolist() == [1 * HOUR, 2 * HOUR]


def test_two_pauses_add_up() -> None:
    cut = without_pauses(
        samples_with(faults=faults(19)),
        [Pause(1 * HOUR, 3 * HOUR), Pause(5 * HOUR, 8 * HOUR)],
    )

    assert cut.faults is not None
    assert cut.faults.time_seconds == pytest.approx([14 * HOUR])
