"""Every pair of status and trigger, legal and not."""

import itertools

import pytest

from rollouts.errors import IllegalTransition
from rollouts.lifecycle import (
    ATTEMPT_TRANSITIONS,
    FAILURES,
    IN_FLIGHT,
    TRANSITIONS,
    WAITING,
    WAVE_TRANSITIONS,
    AttemptStatus,
    Status,
    Trigger,
    WaveStatus,
    WaveTrigger,
    check_attempt_move,
    next_status,
    next_wave_status,
)


@pytest.mark.parametrize(("status", "trigger"), list(itertools.product(Status, Trigger)))
def test_a_rollout_moves_along_the_table_or_not_at_all(status: Status, trigger: Trigger) -> None:
    if (status, trigger) in TRANSITIONS:
        assert next_status(status, trigger) is TRANSITIONS[status, trigger]
    else:
        with pytest.raises(IllegalTransition, match=f"{status} cannot {trigger}"):
            next_status(status, trigger)


@pytest.mark.parametrize(("status", "trigger"), list(itertools.product(WaveStatus, WaveTrigger)))
def test_a_wave_moves_along_the_table_or_not_at_all(
    status: WaveStatus, trigger: WaveTrigger
) -> None:
    if (status, trigger) in WAVE_TRANSITIONS:
        assert next_wave_status(status, trigger) is WAVE_TRANSITIONS[status, trigger]
    else:
        with pytest.raises(IllegalTransition, match="possible"):
            next_wave_status(status, trigger)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(AttemptStatus, AttemptStatus)))
def test_an_attempt_moves_along_the_table_or_not_at_all(
    old: AttemptStatus, new: AttemptStatus
) -> None:
    if new in ATTEMPT_TRANSITIONS.get(old, frozenset()):
        check_attempt_move(old, new)
    else:
        with pytest.raises(IllegalTransition, match=f"{old} cannot become {new}"):
            check_attempt_move(old, new)


def test_a_halt_is_possible_wherever_machines_may_be_at_work() -> None:
    for status in (Status.RUNNING, Status.PAUSED, Status.ROLLING_BACK):
        assert next_status(status, Trigger.HALT) is Status.HALTED


def test_every_attempt_status_is_waiting_in_flight_a_success_or_classified_as_failure() -> None:
    # A new end state that nobody classified would feed no stop rule.
    known = WAITING | IN_FLIGHT | FAILURES | {AttemptStatus.SUCCEEDED, AttemptStatus.CALLED_OFF}

    assert set(AttemptStatus) == known


def test_every_status_in_flight_can_time_out_or_fail() -> None:
    for status in IN_FLIGHT:
        assert ATTEMPT_TRANSITIONS[status] & FAILURES


def test_no_trigger_leads_from_halted_to_running() -> None:
    assert Status.RUNNING not in {
        new for (old, _), new in TRANSITIONS.items() if old is Status.HALTED
    }
