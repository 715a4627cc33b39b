"""How many installs may be in flight: as many as may still fail."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.analysis.pacing import failure_budget, most_in_flight
from rollouts.analysis.proportions import hard_stop, install_log_e


def test_before_the_first_install_two_may_fail_and_three_would_stop():
    assert failure_budget([], alpha=0, tolerated=None) == 2


def test_each_early_failure_takes_one_off():
    assert failure_budget([True], alpha=0, tolerated=None) == 1
    assert failure_budget([False, True, True], alpha=0, tolerated=None) == 0


def test_failures_after_the_tenth_install_stop_nothing_unless_a_guardrail_does():
    # Of the first ten only one was failed; the ninth and tenth place are taken.
    assert failure_budget([True] + [False] * 8, alpha=0, tolerated=None) is None
    # ln E of 2 failures in 9 at p0 = 1 % is above ln 1/.05 (2 of 8: 3.75).
    assert failure_budget([True] + [False] * 7, alpha=0.05, tolerated=0.01) == 0


@given(
    is_failed=st.lists(st.booleans(), max_size=60),
    alpha=st.sampled_from([1e-4, 1e-3, 0.01, 0.05]),
    tolerated=st.sampled_from([0.01, 0.02, 0.1]),
)
def test_the_budget_is_the_last_number_of_failures_that_does_not_halt(is_failed, alpha, tolerated):
    def halts(more: int) -> bool:
        rows = [*is_failed, *[True] * more]
        log_e = install_log_e(sum(rows), len(rows), p0=tolerated) if rows else -math.inf
        is_stopped = hard_stop(rows, bricks=0, max_bricks=0) is not None
        return is_stopped or log_e >= -math.log(alpha)

    budget = failure_budget(is_failed, alpha=alpha, tolerated=tolerated)

    assert budget is not None
    assert halts(budget + 1)
    if budget:
        assert not halts(budget)


@given(budget=st.integers(0, 50), attempts=st.integers(0, 500), failed=st.floats(0, 1))
def test_later_waves_start_as_many_as_their_upper_bound_lets_fail(budget, attempts, failed):
    failures = int(attempts * failed)

    most = most_in_flight(budget, failures=failures, attempts=attempts, is_smoke=False)

    assert most >= 1
    assert most >= budget
    if attempts == 0:
        assert most == max(budget, 1)


def test_good_installs_speed_a_rollout_up():
    # With no failure among n the upper bound is 1 - .05^(1/n): 13.9 % of 20, 2.95 % of 100.
    paces = [most_in_flight(2, failures=0, attempts=n, is_smoke=False) for n in (0, 20, 100)]

    assert paces == [2, 14, 67]


@pytest.mark.parametrize("budget", [0, 2, 7])
def test_a_smoke_wave_has_one_more_in_flight_than_may_fail(budget):
    assert most_in_flight(budget, failures=0, attempts=50, is_smoke=True) == budget + 1
