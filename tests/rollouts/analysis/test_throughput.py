import math

import numpy as np
import pytest
from scipy.stats import ttest_ind

from rollouts.analysis.scores import Strata
from rollouts.analysis.throughput import (
    HIGHEST_RELATIVE,
    ThroughputTable,
    relative_throughput,
    throughput_ratio,
    welch_ratio,
    without_nonsense,
)


def table(rows, *, units, workloads=1) -> ThroughputTable:
    """Rows of (unit, workload, value)."""
    unit, workload, value = zip(*rows, strict=True)
    return ThroughputTable(
        np.array(unit), np.array(workload), np.array(value, float), units, workloads
    )


CANARY = np.array([True, False])
ONE = Strata.of(np.zeros(2, int))


def test_workloads_have_equal_weight_however_often_they_ran():
    # Unit 0 runs workload 0 at half speed three times and workload 1 at par once.
    rows = [(0, 0, 50.0)] * 3 + [(1, 0, 100.0)] * 3 + [(0, 1, 7.0), (1, 1, 7.0)]

    got = relative_throughput(table(rows, units=2, workloads=2), is_canary=CANARY, factor=1.0)

    # Level of workload 0 is 75: 2/3 and 4/3, limited to 1.2.
    assert got.mean.tolist() == pytest.approx([(2 / 3 + 1) / 2, (1.2 + 1) / 2])


def test_rescaling_comes_before_levels_and_limits():
    # A true drop of one half, taken out first, leaves two equal units.
    got = relative_throughput(
        table([(0, 0, 50.0), (1, 0, 100.0)], units=2), is_canary=CANARY, factor=2.0
    )

    assert got.mean.tolist() == [1.0, 1.0]


def test_a_boasting_report_counts_no_more_than_the_limit():
    rows = [(0, 0, 1e6)] + [(1, 0, 1.0)] * 99

    got = relative_throughput(table(rows, units=2), is_canary=CANARY, factor=1.0)

    assert got.mean[0] == HIGHEST_RELATIVE


@pytest.mark.parametrize("boast", [1e3, 1e9, 1e18])
def test_a_nonsensical_report_takes_nothing_from_what_the_others_say(boast):
    sound = [(0, 0, 60.0), (0, 0, 60.0), *([(1, 0, 100.0)] * 198)]
    boasting = [(0, 0, boast), *sound[1:]]

    one, other = (
        relative_throughput(table(rows, units=2), is_canary=CANARY, factor=1.0)
        for rows in (sound, boasting)
    )

    assert other.mean[1] == pytest.approx(one.mean[1], rel=0.05)


def test_reports_of_an_honest_workload_are_left_as_they_are():
    value = np.array([0.0, 80.0, 100.0, 120.0, 0.5, 0.6])

    assert without_nonsense(value, np.array([0, 0, 0, 0, 1, 1])).tolist() == value.tolist()


def test_a_nonsensical_report_does_not_make_slow_canaries_look_fast():
    rows = [(0, 0, 1e9), *([(0, 0, 60.0)] * 99), *([(1, 0, 100.0)] * 100)]

    found = throughput_ratio(table(rows, units=2), is_canary=CANARY, strata=ONE)

    assert found.overall.estimate == pytest.approx(0.6, abs=0.1)


def test_the_slope_is_the_derivative_where_levels_are_held():
    rows = [(0, 0, 95.0), (0, 0, 105.0), (1, 0, 100.0)]

    got = relative_throughput(table(rows, units=2), is_canary=CANARY, factor=1.0)

    assert got.slope.tolist() == [1.0, 0.0]


def test_units_that_reported_nothing_are_not_known():
    got = relative_throughput(table([(0, 0, 1.0)], units=2), is_canary=CANARY, factor=1.0)

    assert got.is_known.tolist() == [True, False]


def test_a_workload_at_zero_everywhere_is_zero_not_nan():
    got = relative_throughput(
        table([(0, 0, 0.0), (1, 0, 0.0)], units=2), is_canary=CANARY, factor=1.0
    )

    assert got.mean.tolist() == [0.0, 0.0]


def test_the_unit_of_throughput_never_changes_a_score():
    rows = [(0, 0, 95.0), (0, 1, 3.0), (1, 0, 100.0), (1, 1, 3.1)]
    scaled = [(u, w, v * (1e6 if w else 1e-3)) for u, w, v in rows]

    a, b = (
        relative_throughput(table(r, units=2, workloads=2), is_canary=CANARY, factor=1.01)
        for r in (rows, scaled)
    )

    assert a.mean == pytest.approx(b.mean, rel=1e-14)


def test_with_one_stratum_it_is_welchs_interval():
    rng = np.random.default_rng(3)
    logs = np.concatenate([rng.normal(0, 0.02, 8), rng.normal(0.01, 0.05, 20)])
    is_canary = np.arange(28) < 8
    expected = ttest_ind(logs[:8], logs[8:], equal_var=False).confidence_interval(0.95)

    found = welch_ratio(logs, is_canary=is_canary, strata=Strata.of(np.zeros(28, int)))

    assert math.log(found.interval.low) == pytest.approx(expected.low)
    assert math.log(found.interval.high) == pytest.approx(expected.high)


def test_strata_of_different_speed_do_not_bias_the_ratio():
    # Slow stratum 0 holds most canaries; within strata the arms are equal.
    logs = np.array([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    is_canary = np.array([1, 1, 1, 0, 1, 0, 0], bool)

    found = welch_ratio(logs, is_canary=is_canary, strata=Strata.of(np.array([0] * 4 + [1] * 3)))

    assert found.estimate == 1.0


def test_one_machine_per_arm_has_an_estimate_but_no_interval():
    found = welch_ratio(np.log([0.9, 1.0]), is_canary=CANARY, strata=ONE)

    assert found.estimate == pytest.approx(0.9)
    assert (found.interval.low, found.interval.high) == (None, None)


def test_an_empty_arm_has_no_estimate():
    found = welch_ratio(np.zeros(2), is_canary=np.zeros(2, bool), strata=ONE)

    assert found.estimate is None


def test_repeated_runs_of_a_machine_are_one_machine():
    rng = np.random.default_rng(1)
    level = rng.normal(100, 2, 10)
    once = [(u, 0, level[u]) for u in range(10)]
    is_canary, strata = np.arange(10) < 5, Strata.of(np.zeros(10, int))

    one, three = (
        throughput_ratio(table(rows, units=10), is_canary=is_canary, strata=strata).overall
        for rows in (once, once * 3)
    )

    assert three.interval.low == pytest.approx(one.interval.low)


def test_the_overall_ratio_is_the_mean_over_workloads_each_shown_by_itself():
    rows = [(u, w, 100.0 * (0.9 if u < 5 and w == 1 else 1.0)) for u in range(10) for w in range(2)]

    found = throughput_ratio(
        table(rows, units=10, workloads=2),
        is_canary=np.arange(10) < 5,
        strata=Strata.of(np.zeros(10, int)),
    )

    assert [one.estimate for one in found.by_workload] == pytest.approx([1.0, 0.9])
    assert found.overall.estimate == pytest.approx(math.sqrt(0.9))


def test_a_workload_of_one_arm_only_is_not_compared():
    rows = [(0, 0, 1.0), (1, 0, 1.0), (0, 1, 5.0)]

    found = throughput_ratio(table(rows, units=2, workloads=2), is_canary=CANARY, strata=ONE)

    assert found.by_workload[1].estimate is None
    assert found.overall.estimate == 1.0


def test_the_estimate_is_adjusted_for_the_period_before_as_the_test_is() -> None:
    # Canaries happen to be slow machines: 5 % below the others before, and 5 % below after.
    before = np.array([0.95, 0.95, 0.96, 0.94, 1.0, 1.01, 0.99, 1.0, 1.0, 0.95])
    strata = Strata.of(np.zeros(10, dtype=np.int64), covariate=before)
    is_canary = np.arange(10) < 4

    ratio = welch_ratio(np.log(before), is_canary=is_canary, strata=strata)
    plain = welch_ratio(
        np.log(before), is_canary=is_canary, strata=Strata.of(np.zeros(10, dtype=np.int64))
    )

    assert plain.estimate == pytest.approx(0.959, abs=0.002)
    assert ratio.estimate == pytest.approx(1.0, abs=0.002)
