"""The forecast of turns: who waits for jobs, limits and windows, and what pools lose."""

import math

from rollouts.planning.schedule import Turn, capacity_loss, schedule


def test_whoever_is_ready_first_goes_first_and_holds_nobody_up():
    lane = (("", 1),)
    turns = [Turn("late", 1, 5.0, lane), Turn("a", 1, 0.0, lane), Turn("b", 1, 0.0, lane)]

    starts, _ = schedule(turns, waves={1: 10.0}, hours_each=1.0)

    assert starts == [5.0, 0.0, 1.0]


def test_a_limit_of_two_per_rack_lets_two_be_in_flight_at_once():
    turns = [Turn(f"n{number}", 1, 0.0, (("rack=r1", 2),)) for number in range(5)]

    starts, times = schedule(turns, waves={1: 24.0}, hours_each=1.5)

    assert starts == [0.0, 0.0, 1.5, 1.5, 3.0]
    assert (times[1].installed, times[1].end) == (4.5, 28.5)


def test_nobody_can_tell_when_a_job_without_end_or_a_limit_of_nobody_lets_a_machine_go():
    turns = [Turn("open", 1, math.inf), Turn("shut", 1, 0.0, (("pool=a", 0),)), Turn("n", 1, 0.0)]

    starts, times = schedule(turns, waves={1: 24.0}, hours_each=1.0)

    assert starts == [math.inf, math.inf, 0.0]
    assert times[1].end == 25.0


def test_a_turn_waits_for_the_window_of_its_place():
    turns = [Turn("n1", 1, 0.0, site="ams"), Turn("n2", 1, 0.0, site="fra")]

    starts, _ = schedule(
        turns,
        waves={1: 24.0},
        hours_each=1.0,
        opening=lambda site, pool, hours: max(hours, 22.0) if site == "ams" else math.inf,
    )

    assert starts == [22.0, math.inf]


def test_an_empty_wave_takes_no_time():
    _, times = schedule([Turn("n", 2, 0.0)], waves={1: 48.0, 2: 24.0}, hours_each=1.0)

    assert (times[1].end, times[2].start, times[2].end) == (0.0, 0.0, 25.0)


def test_a_pool_loses_nothing_where_nobody_can_tell_a_start():
    loss = capacity_loss([math.inf], hours_each=1.0, horizon=4.0)

    assert (loss.peak, loss.machine_hours, set(loss.series)) == (0, 0.0, {0})
