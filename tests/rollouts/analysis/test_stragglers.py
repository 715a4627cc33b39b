"""A slow machine of a synchronous job: since when, by how much."""

import numpy as np
import pytest

from rollouts.analysis.errors import InvalidSample, UnitMismatch
from rollouts.analysis.stragglers import Shift, relative_pace, shifts

NAMES = ["a", "b", "c", "d", "e"]


def found(seconds: np.ndarray, **options: object) -> dict[str, Shift]:
    given = {"workers": NAMES, "rng": np.random.default_rng(2), **options}
    return {shift.worker: shift for shift in shifts(seconds, **given)}


def noisy(steps: int = 120, *, seed: int = 1) -> np.ndarray:
    return 30 * (1 + 0.01 * np.random.default_rng(seed).standard_normal((steps, 5)))


def test_means_and_split_by_hand():
    seconds = np.full((60, 5), 30.0)
    seconds[36:, 1] = 36.0

    shift = found(seconds)["b"]

    assert (shift.step, shift.before, shift.after) == (36, 1.0, pytest.approx(1.2))
    assert (shift.earliest, shift.latest) == (36, 36)
    assert shift.interval.low == pytest.approx(1.2)
    assert (shift.spell.first, shift.spell.last) == (36, 59)
    assert shift.spell.ratio == pytest.approx(1.2)


def test_the_split_is_the_one_with_the_least_squares():
    seconds = noisy()
    seconds[70:, 3] *= 1.03

    ratio = relative_pace(seconds)[:, 3]
    squares = [
        sum(((part - part.mean()) ** 2).sum() for part in (ratio[:k], ratio[k:]))
        for k in range(20, 101)
    ]

    assert found(seconds)["d"].step == 20 + int(np.argmin(squares))


def test_whoever_slowed_down_most_comes_first():
    seconds = noisy()
    seconds[50:, 4] *= 1.2
    seconds[50:, 0] *= 1.1
    seconds[50:, 2] *= 0.8

    assert [s.worker for s in shifts(seconds, workers=NAMES, rng=np.random.default_rng(1))][:2] == [
        "e",
        "a",
    ]


def test_what_slows_all_workers_is_nobodys_shift():
    seconds = noisy()
    seconds[50:] *= 3

    assert all(abs(shift.ratio - 1) < 0.02 for shift in found(seconds).values())


def test_a_short_burst_shows_as_a_spell():
    seconds = noisy()
    seconds[61:65, 2] *= 2

    spell = found(seconds)["c"].spell

    assert (spell.first, spell.last) == (61, 64)
    assert spell.ratio == pytest.approx(2, abs=0.05)


def test_a_worker_at_its_usual_pace_has_no_spell():
    assert found(np.full((60, 5), 30.0))["a"].spell is None


def test_the_unit_of_time_changes_nothing():
    seconds = noisy()
    seconds[50:, 4] *= 1.2

    once, again = found(seconds)["e"], found(1000 * seconds)["e"]

    assert once.step == again.step
    assert once.ratio == pytest.approx(again.ratio)


def test_unknown_steps_are_left_out_and_steps_keep_their_numbers():
    seconds = noisy()
    seconds[50:, 4] *= 1.2
    seconds[10:20] = np.nan
    seconds[:45, 1] = np.nan

    assert found(seconds)["e"].step == 50
    assert found(seconds)["b"].step >= 65


def test_a_worker_with_too_few_steps_is_left_out():
    seconds = noisy()
    seconds[39:, 0] = np.nan

    assert set(found(seconds)) == set("bcde")


def test_the_same_seed_gives_the_same_interval():
    assert found(noisy())["a"] == found(noisy())["a"]


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf])
def test_impossible_times_are_refused(bad):
    seconds = noisy()
    seconds[3, 3] = bad

    with pytest.raises(InvalidSample, match="positive and finite"):
        found(seconds)


def test_too_few_workers_and_impossible_options_are_refused():
    with pytest.raises(InvalidSample, match="at least 3 workers"):
        found(noisy()[:, :2], workers=["a", "b"])
    with pytest.raises(InvalidSample, match="confidence_level"):
        found(noisy(), confidence_level=1.0)
    with pytest.raises(InvalidSample, match="resample"):
        found(noisy(), resamples=0)
    with pytest.raises(UnitMismatch, match="4 names"):
        found(noisy(), workers=NAMES[:4])


@pytest.mark.statistical
@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.85), (0.7, 0.76)])
def test_intervals_of_a_real_change_cover_it_about_as_often_as_documented(correlation, least):
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(100):
        noise = rng.standard_normal(350)
        for step in range(1, 350):
            noise[step] += correlation * noise[step - 1]
        pace = (1 + 0.01 * noise[50:]) * np.where(np.arange(300) < 180, 1.0, 1.1)
        steady = np.ones((300, 2))  # two of three: the median worker
        found = shifts(
            np.column_stack([pace, steady]), workers=["x", "y", "z"], rng=rng, resamples=99
        )
        interval = next(shift.interval for shift in found if shift.worker == "x")
        covered += interval.low <= 1.1 <= interval.high

    assert covered / 100 >= least
