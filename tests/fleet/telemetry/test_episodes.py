"""Incidents depend on which faults there are, never on the order in which they came."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.telemetry import episodes
from fleet.telemetry.episodes import Episode, Seen, Span

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
GAPS = {"nic": timedelta(minutes=30), "gpu.gsp": timedelta(minutes=10)}


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def seen(key: int, minutes: float, *, machine: int = 1, family: str = "nic") -> Seen:
    return Seen(key, (machine, family), at(minutes), f"{family}.x", "0")


def fed_one_by_one(faults: list[Seen]) -> list[tuple]:
    """What is known after faults came singly: series, ends and keys of each incident."""
    spans: dict[int, Span] = {}
    members: dict[int, set[int]] = {}
    for number, fault in enumerate(faults):
        for one in episodes.join(spans.values(), [fault], gaps=GAPS):
            own = {each.key for each in one.faults}
            for span in one.spans:
                own |= members.pop(span.key)
                del spans[span.key]
            spans[number] = Span(number, one.series, one.first, one.last)
            members[number] = own
    return sorted((s.series, s.first, s.last, sorted(members[k])) for k, s in spans.items())


def fed_at_once(faults: list[Seen]) -> list[tuple]:
    return sorted(
        (one.series, one.first, one.last, sorted(each.key for each in one.faults))
        for one in episodes.join([], faults, gaps=GAPS)
    )


@given(
    times=st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from(sorted(GAPS)), st.integers(1, 2)),
        min_size=1,
        max_size=14,
    ),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_order_of_arrival_gives_the_same_incidents(times, data):
    faults = [
        seen(key, minutes, family=family, machine=machine)
        for key, (minutes, family, machine) in enumerate(times)
    ]
    shuffled = data.draw(st.permutations(faults))

    assert fed_one_by_one(shuffled) == fed_at_once(faults)


def test_a_fault_exactly_a_gap_later_begins_another_incident():
    found = episodes.join([], [seen(1, 0), seen(2, 30)], gaps=GAPS)

    assert [len(one.faults) for one in found] == [1, 1]


def test_a_fault_within_a_long_incident_joins_it_however_far_its_ends_are():
    long = Span(5, (1, "nic"), at(0), at(300))

    [one] = episodes.join([long], [seen(1, 150)], gaps=GAPS)

    assert (one.spans, one.first, one.last) == ((long,), at(0), at(300))


def test_incidents_that_no_new_fault_touches_are_left_out():
    far = Span(5, (1, "nic"), at(0), at(1))

    [one] = episodes.join([far], [seen(1, 90)], gaps=GAPS)

    assert one.spans == ()


def test_a_family_without_a_gap_is_refused():
    with pytest.raises(KeyError):
        episodes.join([], [seen(1, 0, family="unheard-of")], gaps=GAPS)


# --- sympathetic codes ---------------------------------------------------------------------------

SYMPATHIES = {
    "xid.45": ["xid.*"],
    "xid.63": ["xid.48"],
    "pcie.aer": ["xid.79"],
    "xid.154": ["xid.*"],
}


def episode(key: int, *names: str, minutes: float = 0, machine: int = 1) -> Episode:
    return Episode(key, machine, at(minutes), at(minutes), frozenset(names))


@pytest.mark.parametrize("minutes", [-4, 0, 5])
def test_a_sympathetic_code_has_its_parent_whether_it_comes_first_or_late(minutes):
    shapes = [episode(1, "xid.48"), episode(2, "xid.63", minutes=minutes)]

    assert episodes.parents(shapes, sympathies=SYMPATHIES) == {1: None, 2: 1}


@pytest.mark.parametrize(
    "child",
    [
        episode(2, "xid.63", minutes=6),  # too far
        episode(2, "xid.63", machine=2),  # another machine
        episode(2, "pcie.aer"),  # accompanies something else
        episode(2, "xid.63", "xid.94"),  # says something of its own too
    ],
)
def test_what_accompanies_nothing_stands_for_itself(child):
    found = episodes.parents([episode(1, "xid.48"), child], sympathies=SYMPATHIES)

    assert found[2] is None


def test_two_sympathetic_codes_are_not_each_others_parents():
    shapes = [episode(1, "xid.45"), episode(2, "xid.154")]

    assert episodes.parents(shapes, sympathies=SYMPATHIES) == {1: None, 2: None}


def test_of_two_possible_parents_the_nearest_counts():
    shapes = [
        episode(1, "xid.48", minutes=-4),
        episode(2, "xid.79", minutes=1),
        episode(3, "xid.45"),
    ]

    assert episodes.parents(shapes, sympathies=SYMPATHIES)[3] == 2
