"""The machine's state machine: one table, walked as a whole."""

import pytest

from fleet.errors import IllegalTransition
from fleet.lifecycle import (
    STATES,
    TRANSITIONS,
    State,
    Trigger,
    may_take_work,
    next_state,
)

PAIRS = [(state, trigger) for state in State for trigger in Trigger]


@pytest.mark.parametrize(("state", "trigger"), PAIRS)
def test_a_pair_is_in_the_table_or_refused_with_what_is_possible(state, trigger):
    if (state, trigger) in TRANSITIONS:
        assert next_state(state, trigger) is TRANSITIONS[state, trigger]
        return

    with pytest.raises(IllegalTransition, match="possible: ") as refusal:
        next_state(state, trigger)
    for old, possible in TRANSITIONS:
        assert (old is not state) or possible in str(refusal.value)


def test_exactly_one_state_may_take_work_and_only_without_a_cordon():
    able = [state for state in State if may_take_work(state, standing_cordons=0)]

    assert able == [State.IN_SERVICE]
    assert not any(may_take_work(state, standing_cordons=1) for state in State)


def test_every_state_has_an_owner_and_a_next_step():
    assert set(STATES) == set(State)
    assert all(rule.owner and rule.next_step for rule in STATES.values())


def test_every_state_but_service_and_the_end_has_a_deadline():
    endless = {state for state, rule in STATES.items() if rule.deadline_hours is None}

    assert endless == {State.IN_SERVICE, State.RETIRED}


def test_every_state_but_the_end_has_a_way_out_and_every_state_but_the_first_a_way_in():
    assert {state for state, _ in TRANSITIONS} == set(State) - {State.RETIRED}
    assert set(TRANSITIONS.values()) == set(State) - {State.REGISTERED}


def test_a_repaired_machine_cannot_reach_service_but_through_validation_and_release():
    # Without the release edge nothing that was taken out for a fault gets back.
    moves = {
        pair: new
        for pair, new in TRANSITIONS.items()
        if pair != (State.AWAITING_RELEASE, Trigger.RELEASE)
    }
    reached, edge = set(), {State.AWAITING_DIAGNOSIS}
    while edge:
        reached |= edge
        edge = {new for (old, _), new in moves.items() if old in edge} - reached

    assert State.IN_SERVICE not in reached
    assert State.VALIDATING in reached


def test_no_failure_leads_into_service():
    failures = {
        Trigger.FAIL_CHECKS,
        Trigger.FAIL_UPDATE,
        Trigger.REJECT,
        Trigger.SUSPECT,
        Trigger.TAKE_OUT,
    }

    ends = {new for (_, trigger), new in TRANSITIONS.items() if trigger in failures}

    assert State.IN_SERVICE not in ends
