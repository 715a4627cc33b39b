import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.analysis.episodes import (
    Events,
    counts_at,
    ends_service,
    episodes,
    family_events,
    first_of_each,
    nearby_end_of_service,
    since_clock,
)
from rollouts.analysis.samples import ServiceIntervals
from tests.rollouts.analysis import worlds
from tests.rollouts.analysis.worlds import DAY, HOUR

GAP = 900.0


def events(*pairs: tuple[int, float]) -> Events:
    ordered = sorted(pairs)
    return Events(np.array([m for m, _ in ordered], int), np.array([t for _, t in ordered], float))


def test_events_closer_than_the_gap_chain_into_one_episode():
    # 0, 10 and 20 minutes: each is within 15 minutes of the one before.
    found = episodes(events((0, 0), (0, 600), (0, 1200)), gap_seconds=GAP)

    assert found.time_seconds.tolist() == [0]


def test_an_event_exactly_at_the_gap_starts_a_new_episode():
    assert episodes(events((0, 0), (0, GAP)), gap_seconds=GAP).machine.size == 2


def test_machines_do_not_share_episodes():
    assert episodes(events((0, 0), (1, 10)), gap_seconds=GAP).machine.tolist() == [0, 1]


def test_an_episode_that_began_before_the_clock_is_no_evidence():
    # The burst starts five minutes before the window and goes on in it.
    sample = worlds.world(1, 1, hours=2, faults=worlds.faults([(0, -5 / 60), (0, 5 / 60)]))

    every = family_events(sample, patterns=("*",))
    counted = since_clock(episodes(every, gap_seconds=GAP), sample)

    assert counted.machine.size == 0


def test_a_family_is_chosen_by_glob_patterns():
    table = worlds.faults(
        [(0, 1.0), (0, 2.0), (1, 3.0)], signatures=("xid-79", "xid-48", "nic-flap")
    )
    sample = worlds.world(1, 1, hours=9, faults=table)

    found = family_events(sample, patterns=("xid-*",))

    assert found.time_seconds.tolist() == [HOUR, 2 * HOUR]


def test_the_same_event_reported_twice_is_one():
    sample = worlds.world(1, 1, hours=9, faults=worlds.faults([(0, 1.0), (0, 1.0), (0, 2.0)]))

    assert family_events(sample, patterns=("*",)).machine.size == 2


def test_a_spell_of_a_machine_counts_once_for_halting():
    found = first_of_each(events((0, 0), (0, DAY - 1), (0, DAY), (1, DAY)), seconds=DAY)

    assert list(zip(found.machine.tolist(), found.time_seconds.tolist(), strict=True)) == [
        (0, 0),
        (0, DAY),
        (1, DAY),
    ]


def test_an_event_counts_from_its_own_time_on():
    table = counts_at(
        events((0, 5.0), (1, 10.0)),
        unit=np.arange(2),
        units=2,
        as_of=np.array([4.0, 5.0, 9.9, 10.0]),
    )

    assert table.tolist() == [[0, 1, 1, 1], [0, 0, 0, 1]]


@pytest.mark.parametrize(("share_near", "expected"), [(2, True), (1, False)])
def test_a_family_ends_service_if_half_of_its_faults_lie_near_an_end(share_near, expected):
    # Four faults; `share_near` of them half an hour before their machine goes out of service.
    ends = np.array([5.5 * HOUR, 6.5 * HOUR, np.inf, np.inf])
    ends[share_near:] = np.inf
    sample = worlds.world(
        2,
        2,
        hours=10,
        service=ServiceIntervals(np.arange(4), np.zeros(4), ends),
        faults=worlds.faults([(0, 5.0), (1, 6.0), (2, 7.0), (3, 8.0)]),
    )
    every = family_events(sample, patterns=("*",))

    near = nearby_end_of_service(every, sample)

    assert ends_service(every, near, as_of=10 * HOUR) is expected


def test_an_end_of_service_that_is_still_to_come_is_not_known():
    sample = worlds.world(
        1,
        1,
        hours=10,
        service=ServiceIntervals(np.arange(2), np.zeros(2), np.array([5.5 * HOUR, np.inf])),
        faults=worlds.faults([(0, 5.0)]),
    )
    every = family_events(sample, patterns=("*",))
    near = nearby_end_of_service(every, sample)

    assert not ends_service(every, near, as_of=5.2 * HOUR)
    assert ends_service(every, near, as_of=5.5 * HOUR)


def test_a_fault_that_is_still_to_come_tells_nothing_of_its_family():
    events = Events(np.array([0, 1]), np.array([100.0, 1500.0]))

    # The second machine has left already when its fault comes, as late reports have it.
    assert not ends_service(events, np.array([np.inf, 900.0]), as_of=1000.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10_000)), max_size=30), st.randoms())
def test_the_order_of_rows_never_changes_the_episodes(pairs, shuffler):
    shuffled = list(pairs)
    shuffler.shuffle(shuffled)
    samples = [
        worlds.world(2, 2, hours=9, faults=worlds.faults([(m, t / 3600) for m, t in rows]))
        for rows in (pairs, shuffled)
    ]

    found = [
        episodes(family_events(s, patterns=("*",)), gap_seconds=GAP).time_seconds.tolist()
        for s in samples
    ]

    assert found[0] == found[1]
