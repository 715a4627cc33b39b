from dataclasses import replace

import numpy as np

from rollouts.analysis.exposure import entry_seconds, exposure_at, is_in_service, latest
from rollouts.analysis.samples import Machines, ServiceIntervals, Units
from tests.rollouts.analysis import worlds
from tests.rollouts.analysis.worlds import HOUR


def at(*hours: float) -> np.ndarray:
    return np.array(hours) * HOUR


def test_exposure_is_service_since_the_clock_start():
    sample = worlds.world(
        1,
        1,
        hours=10,
        service=ServiceIntervals(
            np.array([0, 0, 1]), at(-5, 4, 2), np.array([3 * HOUR, np.inf, 6 * HOUR])
        ),
    )

    exposure = exposure_at(sample, at(2, 5, 10))

    assert (exposure.seconds / HOUR).tolist() == [[2, 4, 9], [0, 3, 4]]


def test_without_a_service_table_a_machine_serves_from_enrolment_until_it_leaves():
    sample = worlds.world(1, 1, hours=10)
    sample = replace(
        sample, machines=replace(sample.machines, enrolled_seconds=at(1, 0), left_seconds=at(3, 8))
    )

    exposure = exposure_at(sample, at(2, 10))

    assert (exposure.seconds / HOUR).tolist() == [[1, 2], [2, 8]]


def test_units_are_present_from_their_enrolment_on():
    sample = worlds.world(1, 1, hours=10)
    sample = replace(sample, machines=replace(sample.machines, enrolled_seconds=at(4, 0)))

    assert exposure_at(sample, at(3, 4)).is_present.tolist() == [[False, True], [True, True]]


def test_a_block_whose_clock_has_not_started_has_no_exposure():
    sample = worlds.world(1, 1, hours=10)
    sample = replace(
        sample, units=replace(sample.units, clock_start_seconds=np.array([np.inf, 0.0]))
    )

    exposure = exposure_at(sample, at(5))

    assert exposure.seconds[0, 0] == 0
    assert not exposure.is_present[0, 0]


def test_a_machine_that_left_before_the_clock_started_never_enters():
    sample = worlds.world(1, 2, hours=10)
    machines = replace(
        sample.machines, enrolled_seconds=at(-9, -9, -9), left_seconds=at(20, -1, 20)
    )

    assert entry_seconds(replace(sample, machines=machines)).tolist() == [0, np.inf, 0]


def test_a_fault_outside_every_service_interval_still_lets_its_unit_enter():
    sample = worlds.world(
        1,
        1,
        hours=10,
        service=ServiceIntervals(np.array([1]), at(0), at(10)),
        faults=worlds.faults([(0, 2.0)]),
    )

    exposure = exposure_at(sample, at(3))

    assert exposure.is_present.all()
    assert exposure.seconds[0, 0] == 0


def test_a_recording_does_not_know_at_a_look_who_will_be_at_risk_later():
    sample = worlds.world(
        1,
        2,
        hours=10,
        service=ServiceIntervals(np.array([0, 2]), at(5, 0), at(10, 10)),
        faults=worlds.faults([(1, 7.0)]),
    )

    present = exposure_at(sample, at(3, 6, 8)).is_present

    assert present.tolist() == [[False, True, True], [False, False, True], [True, True, True]]


def test_silence_is_not_service():
    # Both machines report for 3 and 10 hours; the first one's exposure ends with its reports.
    sample = worlds.world(
        1, 1, hours=10, observations=worlds.reports([1, 1], hours=10, until=[3, 10])
    )

    assert (exposure_at(sample, at(2, 8)).seconds / HOUR).tolist() == [[2, 3], [2, 8]]


def test_a_fault_is_a_sign_of_life():
    sample = worlds.world(
        1,
        1,
        hours=10,
        observations=worlds.reports([1, 1], hours=10, until=[3, 10]),
        faults=worlds.faults([(0, 3.5)]),
    )

    assert exposure_at(sample, at(8)).seconds[0, 0] == 3.5 * HOUR


def test_machines_of_one_unit_add_up():
    units = Units(("a", "b"), np.array([True, False]), np.zeros(2, int), np.zeros(2))
    machines = Machines(("p", "q", "r"), np.array([0, 0, 1]), at(0, 1, 0), np.full(3, np.inf))
    sample = replace(worlds.world(1, 1, hours=4), units=units, machines=machines)

    assert (exposure_at(sample, at(2)).seconds[:, 0] / HOUR).tolist() == [3, 2]


def test_the_latest_report_of_a_look_is_not_one_of_the_future():
    found = latest(np.array([0, 0]), np.array([5.0, 1.0]), size=1, as_of=np.array([0.5, 4.0, 5.0]))

    assert found.tolist() == [[-np.inf, 1.0, 5.0]]


def test_only_units_that_served_long_enough_owe_a_report():
    sample = worlds.world(2, 1, hours=10)
    sample = replace(sample, machines=replace(sample.machines, enrolled_seconds=at(0, 4.5, 9)))

    due = is_in_service(sample, since=4 * HOUR, until=5 * HOUR, at_least=0.75 * HOUR)

    assert due.tolist() == [True, False, False]
