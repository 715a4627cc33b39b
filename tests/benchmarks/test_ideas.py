"""What was tried is measured by the product's own parts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
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
    assert found["log(1 + spells of 4 h), few  [adopted, no past]"] == product.halt


VECTORS = json.loads(
    (Path(__file__).parents[1] / "rollouts" / "analysis" / "vectors.json").read_text()
)


def test_the_smallest_p_of_several_metrics_meets_its_vector():
    vector = VECTORS["minp_combination"]
    parts = [np.array(vector[name])[:, None] for name in ("m1", "m2")]

    found = ideas.least_p(parts, shares=list(vector["weights"].values()))

    assert found[:, 0] == pytest.approx(vector["stat"])


def test_the_log_rank_at_the_margin_meets_its_vector():
    vector = VECTORS["ni_logrank_margin"]

    found = ideas.logrank_at_margin(
        [bool(label) for label in vector["labels"]],
        at_risk=tuple(vector["risk_start"]),
        margin=vector["M"],
    )

    assert found == pytest.approx((vector["U"], vector["V"], vector["z"]), rel=1e-10)


def test_a_wave_far_below_the_margin_is_shown_by_both_ways():
    found = ideas.shown_at_the_end(draw_wave(Cell(rate=0.5, history=True), 0), margin=4.0)

    assert list(found.values()) == [True, True]
