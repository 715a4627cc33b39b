"""What the planner says of halting on faults, against the halting test itself."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rollouts.analysis.halting import Foretold, in_sequence, surprise_halt_power
from rollouts.analysis.outlook import HALT_POWERS, FaultChances, Schedule, outlook
from rollouts.analysis.power import FaultCounts
from tests.rollouts.analysis import worlds
from tests.rollouts.analysis.worlds import FAULTS, Drawn

WAVES = 100
LOOKS = 16


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("jobs", "rate"),
    [
        (2, 0.4),
        pytest.param(4, 0.2, marks=pytest.mark.slow),
        pytest.param(8, 0.05, marks=pytest.mark.slow),
    ],
)
def test_waves_halt_as_often_as_the_planner_said(jobs: int, rate: float):
    drawn = Drawn(jobs=jobs, rate_per_day=rate, days_before=14.0, has_reports=False)
    history = FaultCounts(drawn.counts_before(20_000, seed=jobs), days=14.0)
    schedule = Schedule(4 * jobs, 16 * jobs, days=3.0, halt_level=0.05, checkpoints=[(1.0, 1.827)])

    said = outlook(FaultChances(history), schedule, margin=None, halts=True)

    for seed, (power, ratio) in enumerate(zip(HALT_POWERS, said.halts_on, strict=True), start=jobs):
        assert ratio is not None
        error = math.sqrt(power * (1 - power) / WAVES)
        worse = replace(drawn, rate_ratio=ratio)
        found = worlds.halted(worse, FAULTS, looks_each=LOOKS, waves=WAVES, seed=seed)
        assert found == pytest.approx(power, abs=2.5 * error)


def test_the_first_look_alone_is_the_last_where_a_harm_cannot_be_missed():
    assert in_sequence(1.0, level=0.05) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("level", [1e-4, 0.003, 0.05])
def test_looks_on_the_way_spend_the_level_and_no_more(level: float):
    assert in_sequence(level, level=level) == pytest.approx(level, rel=1e-3)


def test_looks_on_the_way_cost_what_a_simulated_walk_loses():
    # 40,000 Gaussian walks of 16 steps whose drift one look at the end finds with 80 %.
    rng = np.random.default_rng(3)
    level, steps = 0.05, np.arange(1, 17) / 16
    z = np.cumsum(rng.standard_normal((40_000, 16)), axis=1) / 4
    bounds, alive = [], np.ones(40_000, np.bool_)
    for k, time in enumerate(steps):
        crossed = ~alive
        allow = round(40_000 * level * time**0.75) - int(crossed.sum())
        bounds.append(np.sort(z[alive, k])[-allow - 1])
        alive &= z[:, k] <= bounds[-1]
    drift = 0.8416 + 1.6449

    found = ((z + drift * steps) > np.array(bounds)).any(axis=1).mean()

    assert in_sequence(0.8, level=level) == pytest.approx(found, abs=0.015)


def test_counts_that_are_all_equal_foretell_nothing():
    assert Foretold.of(np.full(50, 3)) is None


def test_large_counts_are_taken_together_and_keep_their_mean():
    counts = np.random.default_rng(4).negative_binomial(0.5, 0.01, 2_000)

    told = Foretold.of(counts)

    assert told is not None
    assert told.share.size <= 40
    assert float(told.share @ told.posterior @ told.intensity) == pytest.approx(
        counts.mean(), rel=0.03
    )


def test_a_larger_harm_is_found_more_often():
    told = Foretold.of(np.random.default_rng(5).poisson(np.repeat([0.2, 1.0, 8.0], 200)))
    assert told is not None

    powers = [
        surprise_halt_power(
            told, n_canary=40, n_control=160, part=0.3, rate_ratio=ratio, level=0.01
        )
        for ratio in (1.0, 1.5, 2.0, 4.0, 100.0)
    ]

    assert powers == sorted(powers)
    assert powers[-1] > 0.999
