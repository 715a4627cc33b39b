import numpy as np
import pytest
from scipy.stats import hypergeom

from rollouts.analysis.quality import (
    Coverage,
    coverage,
    heard_until,
    report_spacing,
    sample_ratio_p,
)
from tests.rollouts.analysis import worlds
from tests.rollouts.analysis.worlds import HOUR


def test_half_of_an_arm_is_enough_to_be_heard():
    assert Coverage(10, 20, 40, 80).problem("reports") is None


def test_under_half_of_an_arm_is_no_data():
    assert Coverage(20, 20, 39, 80).problem("reports") == (
        "no data: 39 of 80 control units sent reports since the look before"
    )


def test_canaries_that_fall_silent_more_often_are_no_data():
    # 14 of 20 canaries against all 80 controls.
    found = Coverage(14, 20, 80, 80)

    assert found.p_fewer_canaries == pytest.approx(hypergeom.cdf(14, 100, 20, 94))
    assert "canaries fell silent more often" in found.problem("reports")


def test_controls_that_fall_silent_more_often_are_not_the_firmwares_doing():
    assert Coverage(20, 20, 60, 80).problem("reports") is None


def test_an_arm_that_owes_nothing_is_not_silent():
    assert Coverage(0, 0, 0, 0).problem("reports") is None


def test_only_a_finite_throughput_is_a_usable_report():
    rows = worlds.observation_rows(np.array([0, 1]), np.zeros(2), np.array([np.nan, 1.0]))
    sample = worlds.world(1, 1, hours=4, observations=rows)
    as_of = np.array([2 * HOUR])

    assert heard_until(sample, as_of, needs_throughput=False)[:, 0].tolist() == [HOUR, HOUR]
    assert heard_until(sample, as_of, needs_throughput=True)[:, 0].tolist() == [-np.inf, HOUR]


def test_a_report_that_comes_late_is_new_at_the_look_that_sees_it():
    # The look at 2 h sees only the report of the first hour, which came after the look at 1 h.
    sample = worlds.world(1, 1, hours=4, observations=worlds.reports([1, 1], hours=1))
    heard = heard_until(sample, np.array([2.5 * HOUR]), needs_throughput=False)[:, 0]

    late = coverage(
        sample,
        heard=heard,
        heard_before=np.full(2, -np.inf),
        since=1.4 * HOUR,
        until=2.5 * HOUR,
        spacing=HOUR,
    )
    old = coverage(
        sample, heard=heard, heard_before=heard, since=1.4 * HOUR, until=2.5 * HOUR, spacing=HOUR
    )

    assert (late.heard_canary, old.heard_canary) == (1, 0)


def test_looks_closer_than_reports_look_back_over_one_spacing():
    sample = worlds.world(1, 1, hours=4, observations=worlds.reports([1, 1], hours=2))
    until = 2.5 * HOUR
    heard = heard_until(sample, np.array([until]), needs_throughput=False)[:, 0]

    found = coverage(
        sample, heard=heard, heard_before=heard, since=until - 60, until=until, spacing=HOUR
    )

    assert found.problem("reports") is None


def test_the_spacing_of_a_recording_is_nearly_the_longest_between_two_reports():
    sample = worlds.world(1, 1, hours=9, observations=worlds.reports([1, 1], hours=9))

    assert report_spacing(sample) == HOUR


def test_who_contributes_should_not_depend_on_the_arm():
    is_canary = np.arange(100) < 20

    assert sample_ratio_p(np.ones(100, bool), is_canary=is_canary) == 1.0
    assert sample_ratio_p(np.arange(100) >= 10, is_canary=is_canary) < 1e-6
