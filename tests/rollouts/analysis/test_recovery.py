import math

import numpy as np
import pytest

from rollouts.analysis.recovery import (
    CAP_SECONDS,
    Interruptions,
    per_root_count,
    recovery_ratio,
    relative_recovery,
)

CANARY = np.array([True, False])


def rows(*given, paths=None) -> Interruptions:
    """(unit, seconds, is_open)."""
    unit, seconds, is_open = zip(*given, strict=True)
    return Interruptions(
        np.array(unit),
        np.zeros(len(unit), int) if paths is None else np.array(paths),
        np.array(seconds, float),
        np.array(is_open, bool),
    )


def closed(seconds) -> Interruptions:
    """One interruption on each unit, over by now."""
    return rows(*((unit, taken, False) for unit, taken in enumerate(seconds)))


def test_recoveries_are_compared_within_their_path():
    # The canary's slow path has a slow median: nothing stands out.
    got = relative_recovery(
        rows(
            (0, 1000, False), (1, 1000, False), (0, 10, False), (1, 10, False), paths=[1, 1, 0, 0]
        ),
        is_canary=CANARY,
        log_factor=0.0,
    )

    assert got.total.tolist() == pytest.approx([0.0, 0.0])


def test_the_total_is_the_excess_over_the_pooled_mean():
    # logs 0, 0 and ln 8 around the median 0; pooled mean ln 8 / 3.
    got = relative_recovery(
        rows((0, 80, False), (1, 10, False), (1, 10, False)), is_canary=CANARY, log_factor=0.0
    )

    assert got.total.tolist() == pytest.approx([2 / 3 * math.log(8), -2 / 3 * math.log(8)])
    assert got.count.tolist() == [1, 2]


def test_the_factor_is_taken_out_before_the_limit():
    # 16 h at a true factor of 2 is 8 h, the limit, as the control's 8 h.
    got = relative_recovery(
        rows((0, 2 * CAP_SECONDS, False), (1, CAP_SECONDS, False)),
        is_canary=CANARY,
        log_factor=math.log(2),
    )

    assert got.total.tolist() == [0.0, 0.0]


def test_an_open_interruption_is_not_rescaled():
    got = relative_recovery(
        rows((0, CAP_SECONDS, True), (1, CAP_SECONDS, False)),
        is_canary=CANARY,
        log_factor=math.log(2),
    )

    assert got.total.tolist() == [0.0, 0.0]


def test_a_recovery_in_no_time_counts_as_a_second():
    got = relative_recovery(rows((0, 0, False), (1, 1, False)), is_canary=CANARY, log_factor=0.0)

    assert got.total.tolist() == [0.0, 0.0]


def test_no_interruption_at_all_is_no_excess():
    nothing = Interruptions(np.empty(0, int), np.empty(0, int), np.empty(0), np.empty(0, bool))

    got = relative_recovery(nothing, is_canary=CANARY, log_factor=0.0)

    assert got.total.tolist() == [0.0, 0.0]


def test_totals_go_over_the_root_of_two_more_interruptions():
    assert per_root_count(np.array([10, -10, 9]), np.array([0, 2, 7])).tolist() == [7, -5, 3]


def test_what_jobs_differ_in_is_taken_out():
    # Two jobs of a hundred, each alike in itself: 100 s and 400 s; all of it is the job.
    rng = np.random.default_rng(1)
    job = np.repeat([0, 1], 100)
    seconds = np.array([100.0, 400.0])[job] * np.exp(0.01 * rng.standard_normal(200))
    one_each = closed(seconds)

    found = relative_recovery(one_each, is_canary=np.arange(200) < 4, log_factor=0.0, stratum=job)

    assert np.abs(found.total).max() < 0.05
    assert found.total.sum() == pytest.approx(0.0, abs=1e-9)


def test_jobs_that_differ_by_chance_only_are_left_alone():
    rng = np.random.default_rng(2)
    seconds = 100.0 * np.exp(0.7 * rng.standard_normal(400))
    one_each = closed(seconds)
    canary = np.arange(400) < 80

    plain = relative_recovery(one_each, is_canary=canary, log_factor=0.0)
    job = np.arange(400) % 100
    adjusted = relative_recovery(one_each, is_canary=canary, log_factor=0.0, stratum=job)

    assert np.corrcoef(plain.total, adjusted.total)[0, 1] > 0.98


def test_the_slope_stays_the_derivative_where_jobs_are_taken_out():
    rng = np.random.default_rng(3)
    job = np.arange(60) % 5
    seconds = 100.0 * np.exp(0.3 * rng.standard_normal(60) + 0.5 * job)
    one_each, canary = closed(seconds), np.arange(60) % 4 == 0

    def at(effect):
        return relative_recovery(one_each, is_canary=canary, log_factor=effect, stratum=job)

    here, there = at(0.1), at(0.1 + 1e-6)
    moved = there.total[canary].sum() - here.total[canary].sum()
    # Medians are held in the slope; they move all canaries and controls of a path alike.
    assert moved / 1e-6 == pytest.approx(here.slope[canary].sum(), rel=0.05)


def test_the_ratio_of_geometric_means_by_hand():
    # Canary e^0, e^2 against e^0, e^0: mean difference 1.
    found = recovery_ratio(
        rows((0, 100, False), (1, 100 * math.e**2, False), (2, 100, False), (3, 100, False)),
        is_canary=np.arange(4) < 2,
    )

    assert found.estimate == pytest.approx(math.e)


def test_interruptions_of_one_machine_are_not_independent():
    rng = np.random.default_rng(2)
    seconds = np.exp(rng.normal(6, 0.7, 40))
    spread = rows(*[(u, s, False) for u, s in enumerate(seconds)])
    lumped = rows(*[(u // 10, s, False) for u, s in enumerate(np.sort(seconds))])

    wide = recovery_ratio(lumped, is_canary=np.arange(4) % 2 == 0).interval
    plain = recovery_ratio(spread, is_canary=np.arange(40) % 2 == 0).interval

    assert wide.high / wide.low > plain.high / plain.low


def test_an_arm_without_an_interruption_has_no_ratio():
    assert recovery_ratio(rows((0, 5, False)), is_canary=CANARY).estimate is None
