"""The drawn waves keep the law that the benchmark claims for them."""

import numpy as np
import pytest

from benchmarks.cells import Cell
from benchmarks.waves import HOUR, draw_rollout, draw_wave


def canary_and_control_rates(cell, *, waves):
    """Faults per machine-day on the clock, by arm, over some replications."""
    canary = control = 0
    for replication in range(waves):
        wave = draw_wave(cell, replication)
        canary += wave.events[wave.is_canary].sum() / wave.is_canary.sum()
        control += wave.events[~wave.is_canary].sum() / (~wave.is_canary).sum()
    return canary / waves / cell.days, control / waves / cell.days


def test_a_wave_is_the_same_whenever_it_is_drawn():
    cell = Cell(policy="engine", ratio=2.0, dropouts="both")

    first, second = draw_wave(cell, 3), draw_wave(cell, 3)

    assert np.array_equal(first.samples.faults.time_seconds, second.samples.faults.time_seconds)
    assert np.array_equal(first.speed, second.speed, equal_nan=True)


def test_another_replication_or_cell_is_another_wave():
    wave = draw_wave(Cell(), 0)

    assert not np.array_equal(wave.expected, draw_wave(Cell(), 1).expected)
    assert not np.array_equal(wave.expected, draw_wave(Cell(ratio=2.0), 0).expected)


@pytest.mark.statistical
def test_canaries_fail_more_often_by_the_true_ratio():
    # 60 waves, about 2,300 and 3,100 faults: two standard errors of the ratio are below .12.
    canary, control = canary_and_control_rates(Cell(ratio=3.0, lemons=False), waves=60)

    assert control == pytest.approx(0.2, rel=0.06)
    assert canary / control == pytest.approx(3.0, abs=0.25)


@pytest.mark.statistical
def test_expected_faults_are_those_that_happen():
    cell = Cell(exposure="uneven")
    waves = [draw_wave(cell, replication) for replication in range(60)]

    seen = sum(w.events.sum() for w in waves)
    expected = sum(w.expected.sum() for w in waves)

    assert seen == pytest.approx(expected, rel=0.06)


def test_infant_faults_lie_in_the_burn_in_unless_there_is_none():
    with_burn_in = draw_wave(Cell(infant="burn_in", rate=5.0, lemons=False), 0)
    without = draw_wave(Cell(infant="no_burn_in", rate=5.0, lemons=False), 0)

    def first_hours(wave):
        mine = wave.is_canary
        return wave.events[mine, :2].mean() / wave.events[~mine, :2].mean()

    assert first_hours(with_burn_in) < 1.5
    assert first_hours(without) > 3


def test_a_removed_machine_has_no_fault_while_it_is_away():
    wave = draw_wave(Cell(removal=True, rate=1.0), 0)
    faults = wave.samples.faults

    for machine in range(wave.is_canary.size):
        gaps = np.diff(faults.time_seconds[faults.machine == machine])
        assert (gaps >= 24 * HOUR).all()


def test_only_canaries_fall_silent_where_the_cell_says_so():
    wave = draw_wave(Cell(dropouts="canary"), 0)
    last = wave.speed[:, -6:]

    silent = np.isnan(last).all(axis=1)

    assert silent[wave.is_canary].sum() > 0
    assert not silent[~wave.is_canary].any()


def test_throughput_of_canaries_drops_by_the_true_share():
    dropped = draw_wave(Cell(policy="throughput", drop=0.5), 0)
    mine = dropped.is_canary

    after = np.nanmean(dropped.speed, axis=1) / dropped.speed_before

    assert after[mine].mean() == pytest.approx(0.5 * after[~mine].mean(), rel=0.02)


def test_unequal_fractions_keep_the_number_of_canaries():
    wave = draw_wave(Cell(fractions="unequal"), 0)
    units = wave.samples.units

    per_job = np.bincount(units.stratum, weights=units.is_canary)

    assert sorted(set(per_job.tolist())) == [2.0, 6.0]
    assert per_job.sum() == 64


def test_assignment_by_job_makes_jobs_the_units():
    wave = draw_wave(Cell(policy="throughput", unit="job"), 0)

    assert wave.samples.units.is_canary.sum() == 4
    assert len(wave.samples.units.name) == 16
    assert wave.is_canary.sum() == 80


def test_excess_faults_are_what_bad_firmware_adds_after_its_onset():
    wave = draw_wave(Cell(ratio=3.0, onset_hours=24.0), 0)
    harmless = wave.expected[wave.is_canary].sum(axis=0)

    assert wave.added[:24].sum() == 0
    assert wave.added.sum() == pytest.approx(2 * harmless[24:].sum())


def test_a_rollout_treats_every_machine_once_and_compares_it_with_all_untreated():
    cell = Cell(size="400", waves=(1, 3, 8))

    waves = list(draw_rollout(cell, 0))

    assert [int(w.is_canary.sum()) for w in waves] == [20, 60, 160]
    assert [int((~w.is_canary).sum()) for w in waves] == [380, 320, 160]
