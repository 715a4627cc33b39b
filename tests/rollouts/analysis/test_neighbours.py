"""Who is near a canary, and how pure the jobs are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.analysis.errors import InvalidSample, UnitMismatch
from rollouts.analysis.neighbours import exposure_purity, near_canaries


def pieces(*rows: tuple[int, float, bool], mixed: int = 0, jobs: int = 4) -> float | None:
    """(job, seconds, is canary) rows; the last `mixed` jobs are mixed for other reasons."""
    job, seconds, canary = zip(*rows, strict=True)
    return exposure_purity(
        np.array(job),
        np.array(seconds, np.float64),
        is_canary=np.array(canary),
        is_mixed=np.arange(jobs) >= jobs - mixed,
    )


def test_jobs_of_one_arm_are_pure():
    assert pieces((0, 10, True), (0, 10, True), (1, 50, False)) == 1.0


def test_a_job_of_both_arms_is_mixed_for_all_its_machines():
    assert pieces((0, 10, True), (1, 30, True), (1, 10, False), (2, 90, False)) == 0.25


def test_the_arm_with_less_purity_counts():
    assert pieces((0, 10, True), (1, 30, False), (3, 10, False), mixed=1) == 0.75


def test_without_any_job_nothing_is_known():
    assert pieces((-1, 10, True), (-1, 10, False)) is None


def test_an_arm_without_exposure_has_no_purity():
    assert pieces((0, 0, True), (1, 10, False)) is None


@pytest.mark.parametrize("seconds", [-1.0, np.nan, np.inf])
def test_impossible_exposure_is_refused(seconds):
    with pytest.raises(InvalidSample, match="finite and not negative"):
        pieces((0, seconds, True), (1, 10, False))


def test_columns_of_different_length_are_refused():
    with pytest.raises(UnitMismatch):
        exposure_purity(
            np.zeros(2, int), np.ones(3), is_canary=np.ones(2, bool), is_mixed=np.zeros(1, bool)
        )
    with pytest.raises(UnitMismatch):
        near_canaries(np.array([0, 5]), np.array([0, 0]), is_canary=np.array([True, False]))


@given(
    memberships=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5)), max_size=30),
    canaries=st.sets(st.integers(0, 7)),
)
def test_near_is_sharing_any_group_with_any_canary(memberships, canaries):
    is_canary = np.isin(np.arange(8), list(canaries))
    expected = [
        m in canaries
        or any(m == a and b in canaries and g == h for a, g in memberships for b, h in memberships)
        for m in range(8)
    ]

    machine = np.array([m for m, _ in memberships], np.int64)
    group = np.array([g for _, g in memberships], np.int64)
    near = near_canaries(machine, group, is_canary=is_canary)

    assert near.tolist() == expected
