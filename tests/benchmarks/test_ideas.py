"""What was tried is measured by the product's own parts."""

from dataclasses import replace

import pytest

from benchmarks import ideas, swift
from benchmarks.cells import Cell
from benchmarks.waves import draw_wave


@pytest.mark.parametrize("replication", range(3))
def test_the_adopted_score_is_the_products(replication):
    cell = Cell(size="8+32", rate=0.5, ratio=4.0, history=True)
    wave = draw_wave(cell, replication)

    found = ideas.halted(wave, replication=replication, resamples=99)

    product = swift.decided(wave, replication=replication, resamples=99)
    assert found[ideas.ADOPTED] == product.halt


@pytest.mark.parametrize("replication", range(3))
def test_so_is_the_one_that_is_adopted_without_a_past(replication):
    # Equal exposure: expecting by stratum or over all differs by constants within strata only.
    cell = Cell(size="8+32", rate=0.5, ratio=4.0, history=True)
    wave = draw_wave(cell, replication)
    units = replace(wave.samples.units, covariates={})
    without = replace(wave, samples=replace(wave.samples, units=units))

    found = ideas.halted(wave, replication=replication, resamples=99)

    product = swift.decided(without, replication=replication, resamples=99)
    assert found["log(1 + days)  [adopted without a past]"] == product.halt
