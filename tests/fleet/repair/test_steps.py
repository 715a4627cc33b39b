"""The table of a repair's steps."""

import pytest

from fleet.errors import IllegalRepairStep
from fleet.models import Repair
from fleet.repair.steps import (
    STEPS,
    TICKET_STATES,
    TICKET_STEPS,
    Status,
    Step,
    next_status,
    steps_from,
    ticket_states_from,
)


def test_the_rows_statuses_are_those_of_the_table():
    assert [status.value for status in Status] == Repair.Status.values


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("step", Step)
def test_a_step_leads_on_or_is_refused_with_what_is_possible(status: Status, step: Step):
    if (status, step) in STEPS:
        assert next_status(status, step) is STEPS[status, step]
        return

    with pytest.raises(IllegalRepairStep) as error:
        next_status(status, step)

    assert all(other.value in str(error.value) for other in steps_from(status))


def test_only_an_end_has_no_way_on():
    ends = {status for status in Status if not steps_from(status)}

    assert ends == {Status.CLOSED, Status.CANCELLED}


def test_a_ticket_system_may_say_what_the_table_lets_happen():
    assert ticket_states_from(Status.UNDER_WAY) == [
        "assigned",
        "waiting_for_supplier",
        "done",
        "cancelled",
    ]
    assert ticket_states_from(Status.CLOSED) == []


def test_what_a_step_leads_to_is_called_as_the_ticket_system_calls_the_step():
    for (_, step), new in STEPS.items():
        assert TICKET_STEPS[TICKET_STATES[new]] is step
