"""Machines and units of a wave: their order, cells and clock starts."""

from datetime import timedelta

import numpy as np
import pytest

from fleet.models import Machine
from rollouts.aggregation import samples_for
from rollouts.errors import MixedUnit
from tests.rollouts.aggregation.world import AS_OF, CLOCK, hours, machines, make_wave, move

pytestmark = pytest.mark.django_db


def test_machines_and_units_are_in_order_of_name_whatever_their_arm():
    b, a, c = machines("b", "a", "c")

    samples = samples_for(make_wave([b], [c, a]), as_of=AS_OF)

    assert samples.machines.name == samples.units.name == ("a", "b", "c")
    assert samples.units.is_canary.tolist() == [False, True, False]
    assert samples.machines.unit.tolist() == [0, 1, 2]


def test_names_are_ordered_by_code_point_on_every_engine():
    # Collations of a database would put a-1, B and a1 in another order.
    listed = machines("a1", "B", "a-1", "ä")

    samples = samples_for(make_wave(listed[:1], listed[1:]), as_of=AS_OF)

    assert samples.machines.name == ("B", "a-1", "a1", "ä")


def test_a_stratum_is_a_cell_of_stratum_and_block():
    a, b, c, d = machines("a", "b", "c", "d")
    wave = make_wave(
        [a, b],
        [c, d],
        clocks=[CLOCK, CLOCK],
        blocks={"b": 2, "d": 2},
        strata={"d": "t"},
    )

    samples = samples_for(wave, as_of=AS_OF)

    assert samples.units.stratum.tolist() == [0, 1, 0, 2]


def test_time_counts_from_the_first_blocks_clock_and_a_block_starts_with_its_own():
    a, b, c = machines("a", "b", "c")
    wave = make_wave(
        [a],
        [b, c],
        clocks=[CLOCK, CLOCK + timedelta(hours=3, microseconds=250), None],
        blocks={"b": 2, "c": 3},
    )

    samples = samples_for(wave, as_of=AS_OF)

    assert samples.origin == CLOCK
    assert samples.as_of_seconds == 6 * 3600.0
    assert samples.window_seconds == 72 * 3600.0
    assert samples.units.clock_start_seconds.tolist() == [0.0, 10800.00025, np.inf]


def test_a_block_whose_clock_starts_after_the_cutoff_has_not_begun():
    a, b = machines("a", "b")
    wave = make_wave([a], [b], clocks=[CLOCK, AS_OF + hours(1)], blocks={"b": 2})

    samples = samples_for(wave, as_of=AS_OF)

    assert samples.units.clock_start_seconds.tolist() == [0.0, np.inf]


def test_machines_of_a_placement_unit_are_one_unit():
    a, b, c, d = machines("a", "b", "c", "d")
    wave = make_wave([a, b], [c, d], units={"a": "job2", "b": "job2", "c": "job1", "d": "job1"})

    samples = samples_for(wave, as_of=AS_OF)

    assert samples.units.name == ("job1", "job2")
    assert samples.machines.unit.tolist() == [1, 1, 0, 0]
    assert samples.units.is_canary.tolist() == [False, True]


def test_a_unit_in_both_arms_is_an_error():
    a, b = machines("a", "b")
    wave = make_wave([a], [b], units={"a": "job", "b": "job"})

    with pytest.raises(MixedUnit, match="unit 'job' differ in their arm"):
        samples_for(wave, as_of=AS_OF)


def test_a_retired_machine_keeps_its_place():
    a, b = machines("a", "b")
    wave = make_wave([a], [b])
    move(a, "in_service", "retired", at=CLOCK + hours(1))
    Machine.objects.filter(pk=a.pk).update(state="retired", may_take_work=False)

    samples = samples_for(wave, as_of=AS_OF)

    assert samples.machines.name == ("a", "b")
    assert samples.machines.left_seconds.tolist() == [np.inf, np.inf]
    assert samples.service.end_seconds.tolist() == [3600.0, np.inf]
