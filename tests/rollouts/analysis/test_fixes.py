"""Did the fix work? Hand cases, agreement with the engine, and worlds of known truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.fix_worlds import World, most_accepted, verdict_share
from rollouts.analysis.episodes import Events
from rollouts.analysis.errors import InvalidLevel, InvalidSample
from rollouts.analysis.fixes.answer import FixVerdict, did_it_work
from rollouts.analysis.fixes.history import FixHistory
from rollouts.analysis.fixes.ratios import Rows, clustered_ratio
from rollouts.analysis.hazards import FaultTable, rate_ratio
from rollouts.analysis.scores import Strata

DAY = 86_400.0
NOTHING = Events(np.empty(0, dtype=np.int64), np.empty(0))


def events(rows: list[tuple[int, float]]) -> Events:
    """Events from machines and days, in their order."""
    ordered = sorted(rows)
    return Events(
        np.array([machine for machine, _ in ordered], dtype=np.int64),
        np.array([day * DAY for _, day in ordered], dtype=np.float64),
    )


def history(
    rows: list[tuple[int, float]],
    fixed_days: list[float],
    *,
    days: float = 100.0,
    others: list[tuple[int, float]] = (),
    **fields: object,
) -> FixHistory:
    size = len(fixed_days)
    elsewhere = events(list(others))
    known = FixHistory(
        window_seconds=days * DAY,
        fixed_seconds=np.array(fixed_days) * DAY,
        stratum=np.zeros(size, dtype=np.int64),
        entered_seconds=np.full(size, math.nan),
        span_machine=np.arange(size),
        span_start_seconds=np.full(size, -28 * DAY),
        span_end_seconds=np.full(size, days * DAY),
        episodes=events(rows),
        others=elsewhere,
        signature=np.zeros(elsewhere.machine.size, dtype=np.int64),
        signatures=("xid.79",),
        interruptions=NOTHING,
        path=np.empty(0, dtype=np.int64),
        lost_hours=np.empty(0),
        paths=(),
    )
    return replace(known, **fields)


def spread(machines: range, per_machine: int, *, since: float = 0.0, until: float = 100.0):
    """The same number of episodes on each machine, spread over the time, none at once."""
    step = (until - since) / per_machine
    return [
        (machine, since + step * (k + 0.1 + 0.8 * ((machine * 37) % 101) / 101))
        for machine in machines
        for k in range(per_machine)
    ]


# --- the ratio -----------------------------------------------------------------------------------


def test_the_ratio_is_the_engine_s_where_each_machine_has_one_row():
    rng = np.random.default_rng(7)
    days, counts = rng.uniform(5, 30, 200), rng.poisson(2.0, 200)
    fixed, stratum = rng.random(200) < 0.3, rng.integers(0, 3, 200)

    ours = clustered_ratio(Rows(np.arange(200), stratum, fixed, counts.astype(float), days))
    engine = rate_ratio(FaultTable(counts, days, fixed, Strata.of(stratum)))

    assert ours.estimate == pytest.approx(engine.estimate)
    assert ours.low == pytest.approx(engine.interval.low, rel=0.03)
    assert ours.high == pytest.approx(engine.interval.high, rel=0.03)


def test_faults_of_one_bad_machine_do_not_make_the_interval_narrow():
    # 40 of the 60 unfixed faults are one machine's: as independent faults they would exclude 1.
    counts = np.array([1.0] * 30 + [40.0] + [1.0] * 20 + [0.0] * 9)
    rows = Rows(np.arange(60), np.zeros(60, int), np.arange(60) < 30, counts, np.full(60, 10.0))

    found = clustered_ratio(rows)

    assert binom.cdf(30, 90, 0.5) < 0.002
    assert found.high is None or found.high > 1


def test_a_machine_that_is_seen_before_and_after_is_one_machine_not_two():
    # Ten machines with as many faults after as before, each with its own level: paired, the ratio
    # is known well; as twenty machines it would not be.
    level = np.array([1.0, 2, 4, 8, 16, 1, 2, 4, 8, 16])
    once = np.arange(10)
    cells, side = np.zeros(20, int), np.repeat([False, True], 10)
    amounts, days = np.tile(level, 2), np.full(20, 10.0)

    paired = clustered_ratio(Rows(np.tile(once, 2), cells, side, amounts, days))
    apart = clustered_ratio(Rows(np.arange(20), cells, side, amounts, days))

    assert paired.estimate == apart.estimate == 1.0
    assert apart.high / apart.low > 1.5 * paired.high / paired.low


def test_no_fault_on_fixed_machines_has_an_upper_end_only():
    counts = np.r_[np.zeros(20), np.ones(20)]
    rows = Rows(np.arange(40), np.zeros(40, int), np.arange(40) < 20, counts, np.full(40, 10.0))

    found = clustered_ratio(rows)

    assert (found.estimate, found.low) == (0.0, 0.0)
    assert 0 < found.high < 1


def test_a_level_that_is_none_is_refused():
    rows = Rows(np.arange(2), np.zeros(2, int), np.arange(2) < 1, np.ones(2), np.ones(2))

    with pytest.raises(InvalidLevel, match=r"got 1\.5"):
        clustered_ratio(rows, level=1.5)


# --- when a machine counts as fixed --------------------------------------------------------------


def test_time_before_a_machine_s_own_fix_is_unfixed_time():
    # Fixed on day 40 of 100: 40 days unfixed and 60 fixed, beside 100 of the other.
    found = did_it_work(history([(0, 39.0), (0, 41.0)], [40.0, math.inf])).concurrent

    assert (found.unfixed.days, found.fixed.days) == (140.0, 60.0)
    assert (found.unfixed.amount, found.fixed.amount) == (1, 1)


def test_only_time_in_service_counts():
    found = did_it_work(
        history(
            [(0, 10.0)],
            [0.0, math.inf],
            span_machine=np.array([0, 1, 1]),
            span_start_seconds=np.array([0.0, 0.0, 60 * DAY]),
            span_end_seconds=np.array([30 * DAY, 20 * DAY, 100 * DAY]),
        )
    ).concurrent

    assert (found.fixed.days, found.unfixed.days) == (30.0, 60.0)


def test_a_storm_that_hit_everybody_before_the_fix_is_no_reduction():
    # Before and after falls to a tenth; so do the machines that nobody touched.
    storm = spread(range(40), 10, until=50.0) + spread(range(40), 1, since=50.0)

    answer = did_it_work(history(storm, [50.0] * 20 + [math.inf] * 20))

    assert answer.falling.fixed.is_below
    assert answer.falling.by_itself == pytest.approx(0.1, rel=0.3)
    assert answer.concurrent.estimate == pytest.approx(1.0, abs=0.05)
    assert answer.verdict is not FixVerdict.REDUCED


def test_without_an_unfixed_machine_nothing_is_claimed():
    answer = did_it_work(history(spread(range(20), 5, until=50.0), [50.0] * 20))

    assert answer.verdict is FixVerdict.NOT_ENOUGH
    assert answer.falling.fixed.is_below


# --- verdicts ------------------------------------------------------------------------------------


def fixed_from(machines: int, *, at: float = 0.0) -> list[float]:
    """Half of the machines fixed at a day."""
    return [at] * (machines // 2) + [math.inf] * (machines - machines // 2)


def test_fewer_faults_than_at_the_same_time_elsewhere_is_reduced():
    rows = spread(range(20), 1) + spread(range(20, 40), 4)

    answer = did_it_work(history(rows, fixed_from(40)))

    assert answer.words == "reduced"
    assert answer.concurrent.estimate == pytest.approx(0.25)


def test_the_same_rate_with_much_exposure_is_not_reduced():
    answer = did_it_work(history(spread(range(80), 5), fixed_from(80)))

    assert answer.words == "not reduced"


def test_a_small_reduction_that_is_not_proven_claims_nothing():
    # 380 against 400: a halving is excluded, a reduction by a twentieth is not shown.
    rows = spread(range(40), 10)
    thinned = [row for index, row in enumerate(rows) if row[0] >= 20 or index % 20]

    answer = did_it_work(history(thinned, fixed_from(40)))

    assert answer.concurrent.low > 0.5
    assert answer.verdict is FixVerdict.NOT_ENOUGH
    assert "neither shown nor excluded" in answer.reason


def test_few_faults_say_how_many_more_machine_days_it_takes():
    rows = spread(range(2), 1) + spread(range(10, 14), 1)

    answer = did_it_work(history(rows, fixed_from(20)))

    assert answer.verdict is FixVerdict.NOT_ENOUGH
    # Schoenfeld: 65 events in equal halves; at .004 per unfixed machine-day that is some 22,000.
    events_needed = (1.959964 + 0.841621) ** 2 / math.log(2) ** 2 / 0.25
    assert answer.needs_days >= events_needed / (0.004 * 0.75) - 2_000 - 1
    assert f"(needs {math.ceil(answer.needs_days):,} more machine-days)" in answer.words


def test_no_fault_at_all_does_not_invent_a_number():
    answer = did_it_work(history([], fixed_from(20)))

    assert answer.words == "not enough exposure (how much more cannot be said)"


def test_another_signature_that_rises_is_moved_elsewhere():
    rows = spread(range(20), 1) + spread(range(20, 40), 4)
    risen = spread(range(20), 5) + spread(range(20, 40), 1)

    answer = did_it_work(history(rows, fixed_from(40), others=risen))

    assert answer.words == "moved elsewhere"
    assert [(shift.name, shift.is_proven) for shift in answer.shifts] == [("xid.79", True)]


def test_one_machine_with_a_new_signature_does_not_move_it_elsewhere():
    rows = spread(range(20), 1) + spread(range(20, 40), 4)

    answer = did_it_work(history(rows, fixed_from(40), others=spread(range(1), 30)))

    assert answer.words == "reduced"
    assert answer.shifts[0].is_new
    assert not answer.shifts[0].is_proven


def test_more_interruptions_that_cost_a_job_its_progress_are_moved_elsewhere():
    rows = spread(range(20), 1) + spread(range(20, 40), 4)
    stops = events(spread(range(20), 4) + spread(range(20, 40), 1))

    answer = did_it_work(
        history(
            rows,
            fixed_from(40),
            interruptions=stops,
            path=np.zeros(stops.machine.size, dtype=np.int64),
            lost_hours=np.ones(stops.machine.size),
            paths=("job_lost",),
            severe_paths=("job_lost",),
        )
    )

    assert answer.words == "moved elsewhere"
    assert answer.mix_after.counts == {"job_lost": 80}
    assert "lost work" in answer.reason


def test_machines_chosen_for_their_bad_luck_are_compared_with_those_as_unlucky():
    # Ten of twenty unlucky machines are fixed; afterwards all of them are quiet, fixed or not.
    unlucky = spread(range(20), 4, since=-28.0, until=0.0)
    later = spread(range(60), 1)
    fixed = [0.0] * 10 + [math.inf] * 50

    answer = did_it_work(history(unlucky + later, fixed))

    assert answer.falling.fixed.is_below  # before and after alone would say: reduced
    assert answer.falling.by_itself == pytest.approx(0.07, abs=0.02)
    assert answer.alike.estimate == pytest.approx(1.0, abs=0.1)
    assert answer.verdict is not FixVerdict.REDUCED
    assert answer.fixed_earlier == 4
    assert answer.unfixed_earlier == pytest.approx(40 / 50)


def test_a_history_that_names_machines_there_are_not_is_refused():
    with pytest.raises(InvalidSample, match="machine 5 is named; known are 0 to 1"):
        history([(5, 1.0)], [0.0, math.inf])


# --- known truth ---------------------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("has_spells", [False, True])
@pytest.mark.parametrize("chosen", ["at_random", "worst", "after_a_fault"])
def test_a_fix_without_effect_is_seldom_called_one(chosen, has_spells):
    worlds = 40  # 5 % and two standard errors

    world = World(chosen, has_spells=has_spells)
    found = verdict_share(FixVerdict.REDUCED, world, worlds=worlds, seed=11)

    assert found <= most_accepted(worlds)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("has_spells", [False, True])
@pytest.mark.parametrize("chosen", ["at_random", "worst", "after_a_fault"])
def test_in_many_worlds_a_fix_without_effect_is_called_one_at_most_at_the_level(chosen, has_spells):
    worlds = 1_000

    world = World(chosen, has_spells=has_spells)
    found = verdict_share(FixVerdict.REDUCED, world, worlds=worlds, seed=12)

    assert found <= most_accepted(worlds)


@pytest.mark.statistical
def test_a_halving_is_found_with_exposure_enough():
    world = World("at_random", effect=0.5, machines=1_000, days=180.0)
    found = verdict_share(FixVerdict.REDUCED, world, worlds=16, seed=13)

    assert found >= 0.8


@pytest.mark.slow
@pytest.mark.statistical
def test_a_halving_is_seldom_called_not_reduced_however_machines_were_chosen():
    for chosen in ("at_random", "worst", "after_a_fault"):
        world = World(chosen, effect=0.5)
        found = verdict_share(FixVerdict.NOT_REDUCED, world, worlds=400, seed=14)
        assert found <= most_accepted(400), chosen
