"""First episodes after the windows: evidence with mean one, whoever changes sides."""

import json
import math
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from rollouts.analysis.errors import InvalidSample, UnitMismatch
from rollouts.analysis.sequential import first_episode_log_e
from rollouts.analysis.surveillance import (
    NO_EVIDENCE,
    Evidence,
    Watch,
    Watched,
    merged,
    watch,
)

NEVER = math.inf
VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())


def watched_of(waves: list[int], *, starts: dict[int, float], joins: dict[int, float]) -> Watched:
    """Units by the wave that treats them; a wave that is not listed is never treated."""
    return Watched(
        np.zeros(len(waves), dtype=np.int64),
        np.array([starts.get(wave, NEVER) for wave in waves]),
        np.array([joins.get(wave, NEVER) for wave in waves]),
    )


def logs(found: Watch) -> list[float]:
    return [evidence.log for evidence in found.path]


def test_with_one_wave_it_is_the_first_episode_process():
    rng = np.random.default_rng(1)
    first = np.where(rng.random(40) < 0.5, rng.uniform(1, 9, 40), NEVER)
    watched = watched_of([1] * 10 + [9] * 30, starts={1: -5.0}, joins={1: 0.0})

    found = watch(watched, first)

    order = [int(i) for i in np.argsort(first, kind="stable") if np.isfinite(first[i])]
    expected = first_episode_log_e([("A", i < 10) for i in order], sizes={"A": (10, 30)})
    assert logs(found) == pytest.approx(expected.tolist())
    assert found.episodes == len(order)
    assert found.canary_episodes == sum(i < 10 for i in order)


def test_evidence_has_mean_one_though_waves_start_and_join_on_the_way():
    # Six machines fail at these times whoever is treated; every order of the six places (two
    # waves of two, two held back) is equally likely. Wave 2 starts at 3 and joins at 5.
    times = np.array([1.0, 2.0, 4.0, 6.0, 7.0, NEVER])
    ended, stopped = [], []
    for waves in permutations([1, 1, 2, 2, 9, 9]):
        watched = watched_of(list(waves), starts={1: -9.0, 2: 3.0}, joins={1: 0.0, 2: 5.0})
        e = np.exp(logs(watch(watched, times)))
        reached = np.flatnonzero(e >= 1.3)
        ended.append(e[-1] if e.size else 1.0)
        stopped.append(e[reached[0]] if reached.size else ended[-1])

    assert math.fsum(ended) / len(ended) == pytest.approx(1, rel=1e-12)
    assert math.fsum(stopped) / len(stopped) == pytest.approx(1, rel=1e-12)


def test_a_unit_that_failed_while_it_was_installed_does_not_come_back():
    watched = watched_of([1, 2, 9, 9], starts={1: -9.0, 2: 3.0}, joins={1: 0.0, 2: 5.0})

    found = watch(watched, np.array([NEVER, 4.0, NEVER, 6.0]))

    # At 6 one canary (of wave 1) and two controls are at risk.
    (only,) = logs(found)
    share = 1 / 3
    thetas = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
    assert only == pytest.approx(math.log(sum(1 / (t * share + 1 - share) for t in thetas) / 6))


def test_after_the_release_no_control_is_left_and_nothing_more_is_learned():
    watched = watched_of([1, 1, 9, 9], starts={1: -9.0, 9: 5.0}, joins={1: 0.0})

    found = watch(watched, np.array([1.0, 7.0, 8.0, NEVER]))

    assert found.path[1] == found.path[0]
    assert found.episodes == 2


def test_treated_units_that_fail_first_are_evidence():
    watched = watched_of([1] * 20 + [9] * 80, starts={1: -9.0}, joins={1: 0.0})
    first = np.where(np.arange(100) < 8, np.arange(100) + 1.0, NEVER)

    found = watch(watched, first)

    assert found.highest.reaches(Fraction(100))
    assert watch(watched, first[::-1].copy()).highest == NO_EVIDENCE


def test_a_tolerated_ratio_is_no_evidence_against_itself():
    watched = watched_of([1] * 20 + [9] * 80, starts={1: -9.0}, joins={1: 0.0})
    first = np.where(np.arange(100) < 8, np.arange(100) + 1.0, NEVER)

    assert watch(watched, first, tolerance=3.0).highest < watch(watched, first).highest


def test_canaries_that_fail_as_often_as_others_are_no_evidence_of_more_than_twice():
    # One canary to four controls, and every fifth to fail is one, 800 times over.
    watched = watched_of([1] * 200 + [9] * 800, starts={1: -9.0}, joins={1: 0.0})
    turn = np.arange(1000, dtype=np.float64)
    first = np.concatenate([turn[turn % 5 == 2], turn[turn % 5 != 2]])
    first[first >= 800] = NEVER

    assert watch(watched, first, tolerance=2.0).highest.log < 1


@pytest.mark.parametrize("tolerance", [1.2, 1.5, 2.0, 3.0])
def test_evidence_against_a_tolerated_ratio_has_mean_one_at_most_where_nothing_changed(tolerance):
    watched = watched_of([1, 1, 9, 9, 9, 9], starts={1: -9.0}, joins={1: 0.0})

    mean = math.fsum(
        math.exp(watch(watched, np.array(order, np.float64) + 1, tolerance=tolerance).latest.log)
        for order in permutations(range(6))
    ) / math.factorial(6)

    assert mean <= 1


def test_ratios_that_are_tolerated_are_not_mixed():
    watched = watched_of([1, 9], starts={1: -9.0}, joins={1: 0.0})

    with pytest.raises(InvalidSample, match="above the tolerated one"):
        watch(watched, np.array([1.0, NEVER]), grid=(0.5, 2.0))


def test_strata_are_compared_within_themselves():
    # All of stratum 1 is treated: its episodes say nothing.
    watched = Watched(
        np.repeat([0, 1], 10),
        np.where(np.arange(20) < 10, NEVER, -9.0),
        np.where(np.arange(20) < 10, NEVER, 0.0),
    )

    found = watch(watched, np.where(np.arange(20) >= 10, 1.0 + np.arange(20), NEVER))

    assert found.path == (NO_EVIDENCE,) * 10


def test_nonsense_is_refused():
    watched = watched_of([1, 9], starts={1: -9.0}, joins={1: 0.0})
    with pytest.raises(UnitMismatch):
        watch(watched, np.array([1.0]))
    with pytest.raises(InvalidSample, match="NaN"):
        watch(watched, np.array([1.0, np.nan]))
    with pytest.raises(InvalidSample, match="joins"):
        watched_of([1, 9], starts={}, joins={1: 0.0})


def test_evidence_is_made_of_exactly_rounded_arithmetic_only():
    # Recomputed with fractions that are rounded to doubles after every step, as IEEE 754 has it.
    rng = np.random.default_rng(4)
    watched = watched_of([1] * 300 + [9] * 900, starts={1: -9.0}, joins={1: 0.0})
    first = rng.permutation(1200).astype(float) + 1

    found = watch(watched, first)

    parts = [Fraction(1)] * 6
    left = {True: 300, False: 900}
    for unit in np.argsort(first).tolist():
        is_canary = unit < 300
        if left[True] and left[False]:
            null = rounded(rounded(1) / rounded(left[True] + left[False]))
            for index, theta in enumerate((1.25, 1.5, 2.0, 3.0, 5.0, 10.0)):
                below = rounded(rounded(Fraction(theta) * left[True]) + left[False])
                own = rounded(Fraction(theta if is_canary else 1) / below)
                parts[index] = rounded_far(parts[index] * rounded(own / null))
        left[is_canary] -= 1
    mean = found.latest
    exact = sum(parts) / 6
    assert Fraction(mean.mantissa) * Fraction(2) ** mean.exponent == pytest.approx(exact, rel=1e-15)
    assert found.episodes == 1200


def rounded(value: Fraction | int) -> Fraction:
    return Fraction(float(value))


def rounded_far(value: Fraction) -> Fraction:
    """Rounded to 53 bits however small it is."""
    shift = value.denominator.bit_length() - value.numerator.bit_length()
    return rounded(value * Fraction(2) ** shift) / Fraction(2) ** shift


def test_evidence_beyond_the_range_of_a_double_is_still_told_apart():
    watched = watched_of([1] * 2_000 + [9] * 20_000, starts={1: -9.0}, joins={1: 0.0})
    first = np.where(np.arange(22_000) < 1_500, np.arange(22_000) + 1.0, NEVER)

    found = watch(watched, first)

    assert found.highest.exponent > 1_100
    assert found.highest > found.path[700] > found.path[600]
    assert not Evidence(exponent=6, mantissa=0.99).reaches(Fraction(100))


def test_one_process_per_wave_multiplied_would_have_a_mean_above_one():
    # Wave 1, wave 2 and two untreated units; both windows are over; the next to fail stands at
    # any of the four places. Each wave by itself is compared with the same untreated units.
    def alone(wave: int, failed: int) -> float:
        places = [place for place in range(4) if place in (wave, 2, 3)]
        watched = watched_of(
            [1 if place == wave else 9 for place in places], starts={1: -9.0}, joins={1: 0.0}
        )
        first = np.array([1.0 if place == failed else NEVER for place in places])
        return math.exp(watch(watched, first, grid=(2.0,)).latest.log)

    def together(failed: int) -> float:
        watched = watched_of([1, 1, 9, 9], starts={1: -9.0}, joins={1: 0.0})
        first = np.array([1.0 if place == failed else NEVER for place in range(4)])
        return math.exp(watch(watched, first, grid=(2.0,)).latest.log)

    product = math.fsum(alone(0, failed) * alone(1, failed) for failed in range(4)) / 4

    assert product == pytest.approx(33 / 32)
    assert math.fsum(together(failed) for failed in range(4)) / 4 == pytest.approx(1)


def evidence_of(value: float) -> Evidence:
    mantissa, exponent = math.frexp(value)
    return Evidence(exponent=exponent, mantissa=mantissa)


def test_evidence_merges_by_its_mean():
    vector = VECTORS["evalue_merge"]["weighted_average"]
    assert vector["w"] == [0.5, 0.25, 0.25]
    twice, second, third = (evidence_of(value) for value in vector["E"])

    found = merged([twice, twice, second, third])

    assert found == evidence_of(vector["merged"])
    assert found.reaches(Fraction(20)) is vector["halts_at_alpha_05"]


def test_evidence_of_two_families_merged_would_have_a_mean_above_one_at_a_chosen_time():
    # One canary and one control; whichever fails first in one family fails in the other, too, and
    # that is known before it happens: looked at after one if that was bad, else after both.
    watched = watched_of([1, 9], starts={1: -9.0}, joins={1: 0.0})

    def stopped(failed: int) -> float:
        first = np.array([1.0 if place == failed else NEVER for place in range(2)])
        one = watch(watched, first, grid=(2.0,)).latest
        return math.exp(merged([one, one if one > NO_EVIDENCE else NO_EVIDENCE]).log)

    assert (stopped(0) + stopped(1)) / 2 == pytest.approx(13 / 12)
