"""Reads: the return-to-service board, one column per queue with what is then done in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, F, Q, QuerySet

from fleet import queues
from fleet.models import Machine

#: States of each column, those in which a machine waits first.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    **{queue: (queue, *worked) for queue, worked in queues.QUEUES.items()},
    "stopped": queues.STOPPED,
}


@dataclass(frozen=True)
class Card:
    """One machine on its way back: how long it has been there, against how long it should be."""

    name: str
    platform: str
    pool: str
    state: str
    age_hours: float
    goal_hours: float | None
    is_overdue: bool
    owner: str
    held_by: str
    next_step: str


@dataclass(frozen=True)
class Pile:
    """The machines of one state, those first whose deadline comes first."""

    state: str
    is_queue: bool
    total: int
    overdue: int
    cards: Sequence[Card]

    @property
    def left_off(self) -> int:
        return self.total - len(self.cards)


@dataclass(frozen=True)
class Column:
    """One queue and the work that follows it."""

    name: str
    piles: Sequence[Pile]

    @property
    def total(self) -> int:
        return sum(pile.total for pile in self.piles)


def columns(machines: QuerySet[Machine], *, now: datetime, size: int) -> list[Column]:
    """Return the board of these machines with at most `size` cards per state."""
    here = machines.filter(state__in=queues.OUT)
    rows = here.order_by().values_list("state")
    late = Count("pk", filter=Q(deadline_at__lt=now))
    counts = {state: (n, over) for state, n, over in rows.annotate(n=Count("pk"), over=late)}
    return [
        Column(
            name,
            [
                Pile(
                    state=state,
                    is_queue=state in queues.QUEUES,
                    total=counts.get(state, (0, 0))[0],
                    overdue=counts.get(state, (0, 0))[1],
                    cards=cards(listed(here, state)[:size], now=now) if state in counts else (),
                )
                for state in states
            ],
        )
        for name, states in COLUMNS.items()
    ]


def listed(machines: QuerySet[Machine], state: str) -> QuerySet[Machine]:
    """Return the machines of one state, those first whose deadline comes first."""
    own = machines.filter(state=state).select_related("platform", "owner_team", "held_by")
    return own.order_by(F("deadline_at").asc(nulls_last=True), "pk")


def cards(machines: Sequence[Machine] | QuerySet[Machine], *, now: datetime) -> list[Card]:
    """Return what the board says of each machine."""
    return [_card(machine, now=now) for machine in machines]


def _card(machine: Machine, *, now: datetime) -> Card:
    hour = timedelta(hours=1)
    deadline = machine.deadline_at
    return Card(
        name=machine.name,
        platform=machine.platform.name,
        pool=machine.pool,
        state=machine.state,
        age_hours=(now - machine.entered_at) / hour,
        goal_hours=None if deadline is None else (deadline - machine.entered_at) / hour,
        is_overdue=deadline is not None and deadline < now,
        owner=str(machine.owner_team or machine.owner_role),
        held_by=machine.held_by.get_username() if machine.held_by else "",
        next_step=machine.next_step,
    )
