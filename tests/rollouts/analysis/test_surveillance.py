"""First episodes after the windows: evidence with mean one, whoever changes sides."""

import math
from itertools import permutations

import numpy as np
import pytest

from rollouts.analysis.errors import InvalidSample, UnitMismatch
from rollouts.analysis.sequential import first_episode_log_e
from rollouts.analysis.surveillance import Watched, watch

NEVER = math.inf


def watched_of(waves: list[int], *, starts: dict[int, float], joins: dict[int, float]) -> Watched:
    """Units by the wave that treats them; a wave that is not listed is never treated."""
    return Watched(
        np.zeros(len(waves), dtype=np.int64),
        np.array([starts.get(wave, NEVER) for wave in waves]),
        np.array([joins.get(wave, NEVER) for wave in waves]),
    )


def test_with_one_wave_it_is_the_first_episode_process():
    rng = np.random.default_rng(1)
    first = np.where(rng.random(40) < 0.5, rng.uniform(1, 9, 40), NEVER)
    watched = watched_of([1] * 10 + [9] * 30, starts={1: -5.0}, joins={1: 0.0})

    found = watch(watched, first)

    order = [int(i) for i in np.argsort(first, kind="stable") if np.isfinite(first[i])]
    expected = first_episode_log_e([("A", i < 10) for i in order], sizes={"A": (10, 30)})
    assert found.log_e == pytest.approx(expected)
    assert found.episodes == len(order)
    assert found.canary_episodes == sum(i < 10 for i in order)


def test_evidence_has_mean_one_though_waves_start_and_join_on_the_way():
    # Six machines fail at these times whoever is treated; every order of the six places (two
    # waves of two, two held back) is equally likely. Wave 2 starts at 3 and joins at 5.
    times = np.array([1.0, 2.0, 4.0, 6.0, 7.0, NEVER])
    ended, stopped = [], []
    for waves in permutations([1, 1, 2, 2, 9, 9]):
        watched = watched_of(list(waves), starts={1: -9.0, 2: 3.0}, joins={1: 0.0, 2: 5.0})
        e = np.exp(watch(watched, times).log_e)
        reached = np.flatnonzero(e >= 1.3)
        ended.append(e[-1] if e.size else 1.0)
        stopped.append(e[reached[0]] if reached.size else ended[-1])

    assert math.fsum(ended) / len(ended) == pytest.approx(1, rel=1e-12)
    assert math.fsum(stopped) / len(stopped) == pytest.approx(1, rel=1e-12)


def test_a_unit_that_failed_while_it_was_installed_does_not_come_back():
    watched = watched_of([1, 2, 9, 9], starts={1: -9.0, 2: 3.0}, joins={1: 0.0, 2: 5.0})

    found = watch(watched, np.array([NEVER, 4.0, NEVER, 6.0]))

    # At 6 one canary (of wave 1) and two controls are at risk.
    (only,) = found.log_e
    share = 1 / 3
    thetas = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
    assert only == pytest.approx(math.log(sum(1 / (t * share + 1 - share) for t in thetas) / 6))


def test_after_the_release_no_control_is_left_and_nothing_more_is_learned():
    watched = watched_of([1, 1, 9, 9], starts={1: -9.0, 9: 5.0}, joins={1: 0.0})

    found = watch(watched, np.array([1.0, 7.0, 8.0, NEVER]))

    assert found.log_e[1] == found.log_e[0]
    assert found.episodes == 2


def test_treated_units_that_fail_first_are_evidence():
    watched = watched_of([1] * 20 + [9] * 80, starts={1: -9.0}, joins={1: 0.0})
    first = np.where(np.arange(100) < 8, np.arange(100) + 1.0, NEVER)

    found = watch(watched, first)

    assert found.highest > math.log(100)
    assert watch(watched, first[::-1].copy()).highest == 0


def test_a_tolerated_ratio_is_no_evidence_against_itself():
    watched = watched_of([1] * 20 + [9] * 80, starts={1: -9.0}, joins={1: 0.0})
    first = np.where(np.arange(100) < 8, np.arange(100) + 1.0, NEVER)

    assert watch(watched, first, tolerance=3.0).highest < watch(watched, first).highest


def test_strata_are_compared_within_themselves():
    # All of stratum 1 is treated: its episodes say nothing.
    watched = Watched(
        np.repeat([0, 1], 10),
        np.where(np.arange(20) < 10, NEVER, -9.0),
        np.where(np.arange(20) < 10, NEVER, 0.0),
    )

    found = watch(watched, np.where(np.arange(20) >= 10, 1.0 + np.arange(20), NEVER))

    assert found.log_e == pytest.approx(np.zeros(10))


def test_nonsense_is_refused():
    watched = watched_of([1, 9], starts={1: -9.0}, joins={1: 0.0})
    with pytest.raises(UnitMismatch):
        watch(watched, np.array([1.0]))
    with pytest.raises(InvalidSample, match="NaN"):
        watch(watched, np.array([1.0, np.nan]))
    with pytest.raises(InvalidSample, match="joins"):
        watched_of([1, 9], starts={}, joins={1: 0.0})
