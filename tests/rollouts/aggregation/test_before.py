"""What was known before a wave began."""

from datetime import timedelta

import numpy as np
import pytest

from fleet.models import FirmwareImage
from rollouts.aggregation import before, samples_for
from rollouts.aggregation.reading import PRE_DAYS
from rollouts.models import Rollout
from tests.rollouts.aggregation.world import (
    AS_OF,
    CLOCK,
    START,
    attempt,
    fail,
    hours,
    machines,
    make_wave,
    observe,
)

pytestmark = pytest.mark.django_db


def test_the_fault_covariate_is_the_count_before_the_wave():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    for number in range(4):
        fail(a, at=START - hours(1 + number))
    fail(b, at=START - timedelta(days=PRE_DAYS, hours=1))
    fail(b, at=START + hours(1))  # after the wave's start: the arms may differ already

    assert samples_for(wave, as_of=AS_OF).units.covariates["faults"].tolist() == [4.0, 0.0]


def test_the_throughput_covariate_is_relative_to_the_workloads_own_level():
    a, b, c = machines("a", "b", "c")
    wave = make_wave([a], [b, c])
    observe(a, end=START - hours(3), throughput=90.0, workload="slow")
    observe(b, end=START - hours(3), throughput=110.0, workload="slow")
    observe(a, end=START - hours(2), throughput=1.0, workload="fast")
    observe(a, end=START - hours(1), throughput=2.0, workload="fast")
    observe(a, end=START + hours(1), throughput=0.1, workload="fast")
    observe(b, end=START - hours(1), received=START + hours(1), throughput=0.1, workload="fast")

    covariate = samples_for(wave, as_of=AS_OF).units.covariates["throughput"]

    # a: 90/100 on slow, 1.5/1.5 on fast; b: 110/100; c reported nothing.
    np.testing.assert_allclose(covariate, [0.95, 1.1, np.nan])


def test_the_covariates_do_not_change_from_look_to_look():
    a, b = machines("a", "b")
    wave = make_wave([b], [a])
    observe(a, end=START - hours(1), throughput=0.9)
    first = samples_for(wave, as_of=CLOCK + hours(1))
    observe(a, end=CLOCK + hours(2), throughput=0.2)

    second = samples_for(wave, as_of=AS_OF)

    for metric, values in first.units.covariates.items():
        np.testing.assert_array_equal(values, second.units.covariates[metric])


def test_known_signatures_are_those_that_the_whole_fleet_showed_before():
    a, b, stranger = machines("a", "b", "stranger")
    wave = make_wave([b], [a])
    fail(stranger, at=START - timedelta(days=300), signature="test.old")
    fail(b, at=CLOCK + hours(1), signature="test.new")

    assert samples_for(wave, as_of=AS_OF).known_signatures == {"test.old"}


def test_the_install_baseline_comes_from_completed_rollouts_of_the_same_activation(monkeypatch):
    a, b, c, d = machines("a", "b", "c", "d")
    past = make_wave([a, b, c], [d])
    attempt(past, a, finished=START - hours(50), status="timed_out")
    attempt(past, b, finished=START - hours(50))
    attempt(past, c, finished=START - hours(50))
    wave, other = make_wave([a], [b]), make_wave([a], [b])
    FirmwareImage.objects.filter(bundles=other.rollout.bundle).update(activation="ac_cycle")
    monkeypatch.setattr(before, "LEAST_BASELINE_ATTEMPTS", 3)

    running = samples_for(wave, as_of=AS_OF).install_baseline
    Rollout.objects.filter(pk=past.rollout_id).update(
        status="completed", plan_digest="x", finished_at=START - hours(1)
    )
    completed = samples_for(wave, as_of=AS_OF).install_baseline
    unlike = samples_for(other, as_of=AS_OF).install_baseline

    assert running == unlike == before.FIELD_BASELINE
    assert completed == pytest.approx(1 / 3)


def test_each_units_level_of_before_is_kept_per_workload():
    canaries, controls = machines("c1"), machines("k1")
    wave = make_wave(canaries, controls)
    observe(canaries[0], end=START - hours(1), throughput=0.9, workload="train")
    observe(canaries[0], end=START - hours(2), throughput=1.1, workload="train")
    observe(controls[0], end=START - hours(1), throughput=7.0, workload="serve")
    observe(controls[0], end=START + hours(1), throughput=99.0, workload="serve")

    levels = samples_for(wave, as_of=AS_OF).levels_before

    assert levels.workloads == ("serve", "train")
    assert levels.unit.tolist() == [0, 1]
    assert levels.workload.tolist() == [1, 0]
    assert levels.throughput.tolist() == [1.0, 7.0]
