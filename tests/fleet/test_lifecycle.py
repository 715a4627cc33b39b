"""The machine's state machine: one table, walked as a whole."""

import pytest

from fleet.errors import IllegalTransition
from fleet.lifecycle import (
    BREAKABLE,
    STATES,
    TRANSITIONS,
    State,
    Trigger,
    may_take_work,
    next_state,
    way_back,
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


def test_a_repaired_machine_cannot_reach_service_but_by_a_release_or_a_broken_glass():
    # Without those edges nothing that was taken out for a fault gets back.
    doors = {Trigger.RELEASE, Trigger.BREAK_GLASS}
    moves = {pair: new for pair, new in TRANSITIONS.items() if pair[1] not in doors}
    reached, edge = set(), {State.AWAITING_DIAGNOSIS}
    while edge:
        reached |= edge
        edge = {new for (old, _), new in moves.items() if old in edge} - reached

    assert State.IN_SERVICE not in reached
    assert State.VALIDATING in reached


@pytest.mark.parametrize("state", [state for state in State if state is not State.RETIRED])
def test_every_state_has_a_way_out_for_success_and_for_failure_and_its_silence_is_a_move(state):
    rule = STATES[state]

    assert rule.success
    assert rule.failure
    exits = {*rule.success, *rule.failure, *([rule.silence] if rule.silence else [])}
    assert all((state, trigger) in TRANSITIONS for trigger in exits)


def test_every_move_of_the_table_is_a_success_a_failure_or_an_exception_of_its_state():
    # Recurrence, a broken glass, retirement, and the end of a drain after a broken glass.
    rare = {Trigger.SUSPECT, Trigger.BREAK_GLASS, Trigger.RETIRE}
    after_glass = {Trigger.ORDER_REPAIR, Trigger.QUEUE_VALIDATION}

    for state, trigger in TRANSITIONS:
        rule = STATES[state]
        named = {*rule.success, *rule.failure, *rare}
        named |= after_glass if state is State.DRAINING else set()
        assert trigger in named, (state, trigger)


def test_no_silence_leads_into_service():
    moves = [(state, rule.silence) for state, rule in STATES.items() if rule.silence]

    assert moves
    assert all(TRANSITIONS[move] is not State.IN_SERVICE for move in moves)


def test_a_gate_may_be_broken_only_where_nobody_has_hands_on_the_machine():
    hands_on = {
        State.REPAIRING,
        State.AT_SUPPLIER,
        State.UPDATING,
        State.VERIFYING,
        State.DIAGNOSING,
        State.LEMON_REVIEW,
        State.RETIRED,
    }

    assert hands_on.isdisjoint(BREAKABLE)


@pytest.mark.parametrize("state", BREAKABLE)
def test_the_way_back_from_a_broken_glass_ends_in_the_queue_it_came_from(state):
    queue = next_state(State.DRAINING, way_back(state))

    assert queue in (state, State.AWAITING_VALIDATION)
    assert state not in (State.AWAITING_DIAGNOSIS, State.AWAITING_REPAIR) or queue is state


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
