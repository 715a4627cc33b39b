"""A repair's state machine, one table; and what ticket systems call its steps. Pure."""

from collections.abc import Mapping
from enum import StrEnum

from fleet.errors import IllegalRepairStep


class Status(StrEnum):
    """Where a repair stands."""

    ORDERED = "ordered"
    UNDER_WAY = "under_way"
    AT_SUPPLIER = "at_supplier"
    CLOSED = "closed"
    CANCELLED = "cancelled"


class Step(StrEnum):
    """What moves a repair on. `start` from the supplier: it is back, work goes on here."""

    START = "start"
    SEND_AWAY = "send_away"
    CLOSE = "close"
    CANCEL = "cancel"


STEPS: Mapping[tuple[Status, Step], Status] = {
    (Status.ORDERED, Step.START): Status.UNDER_WAY,
    (Status.ORDERED, Step.SEND_AWAY): Status.AT_SUPPLIER,
    (Status.ORDERED, Step.CANCEL): Status.CANCELLED,
    (Status.UNDER_WAY, Step.SEND_AWAY): Status.AT_SUPPLIER,
    (Status.UNDER_WAY, Step.CLOSE): Status.CLOSED,
    (Status.UNDER_WAY, Step.CANCEL): Status.CANCELLED,
    (Status.AT_SUPPLIER, Step.START): Status.UNDER_WAY,
    (Status.AT_SUPPLIER, Step.CLOSE): Status.CLOSED,
    (Status.AT_SUPPLIER, Step.CANCEL): Status.CANCELLED,
}

#: Steps by which somebody laid hands on a repair; none of them reviews its gate.
HANDS = ("assigned", "started", "returned", "closed")

#: What a ticket system says of a repair, and what it asks for. `assigned` only names somebody.
TICKET_STEPS: Mapping[str, Step | None] = {
    "assigned": None,
    "in_progress": Step.START,
    "waiting_for_supplier": Step.SEND_AWAY,
    "done": Step.CLOSE,
    "cancelled": Step.CANCEL,
}
#: What each status is called there; said to ticket systems, and told apart from an order.
TICKET_STATES: Mapping[Status, str] = {
    Status.ORDERED: "open",
    Status.UNDER_WAY: "in_progress",
    Status.AT_SUPPLIER: "waiting_for_supplier",
    Status.CLOSED: "done",
    Status.CANCELLED: "cancelled",
}


def steps_from(status: Status) -> list[Step]:
    """Return the steps that a repair can take from here, in the order of the table.

    Examples
    --------
    >>> [step.value for step in steps_from(Status.ORDERED)]
    ['start', 'send_away', 'cancel']
    """
    return [step for old, step in STEPS if old is status]


def next_status(status: Status, step: Step) -> Status:
    """Return the status that `step` leads to.

    Raises
    ------
    IllegalRepairStep
        If the table has no such step; the message lists what is possible.
    """
    try:
        return STEPS[status, step]
    except KeyError:
        possible = ", ".join(steps_from(status)) or "none, it is over"
        raise IllegalRepairStep(
            f"a repair that is {status} cannot {step}; possible: {possible}"
        ) from None


def ticket_states_from(status: Status) -> list[str]:
    """Return what a ticket system may say of a repair that stands here.

    Examples
    --------
    >>> ticket_states_from(Status.ORDERED)
    ['assigned', 'in_progress', 'waiting_for_supplier', 'cancelled']
    """
    steps = steps_from(status)
    if not steps:
        return []
    return [state for state, step in TICKET_STEPS.items() if step is None or step in steps]
