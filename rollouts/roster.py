"""How the fleet changed under a rollout: who left, moved, is out of service, or came late."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from fleet import selectors as fleet_selectors
from fleet.errors import SelectorError
from fleet.lifecycle import State
from fleet.models import Change, ChangedMachine
from rollouts.models import Assignment, Rollout

#: Machines of a kind that are listed; the others are counted.
MOST = 50
#: States that a rollout itself puts its machines into.
_OURS = (State.IN_SERVICE, State.DRAINING, State.UPDATING, State.VERIFYING, State.RETIRED)


@dataclass(frozen=True)
class Listed:
    """How many, and the first of them with what is to be said of each."""

    count: int
    machines: tuple[tuple[str, str], ...]

    @property
    def more(self) -> int:
        return self.count - len(self.machines)


@dataclass(frozen=True)
class RosterChanges:
    """What has changed since the assignment was drawn. Nobody leaves a denominator for it."""

    retired: Listed
    moved: Listed
    out_of_service: Listed
    excluded: Listed
    late: Listed

    @property
    def is_empty(self) -> bool:
        every = (self.retired, self.moved, self.out_of_service, self.excluded, self.late)
        return not any(one.count for one in every)


def roster_changes(rollout: Rollout) -> RosterChanges:
    """Return who of a rollout's machines left, moved or is out, by the name it was assigned under.

    Machines that came later and that the selector would match are shown, never added: the order
    was drawn without them.
    """
    places = Assignment.objects.filter(rollout=rollout).select_related("machine")
    places = places.order_by("machine_name")
    left_out = places.filter(exclusion__isnull=False).select_related("exclusion__actor")
    return RosterChanges(
        retired=_listed(places.filter(machine__state=State.RETIRED), _left),
        moved=_moved(rollout),
        out_of_service=_listed(
            places.exclude(machine__state__in=_OURS),
            lambda place: (place.machine_name, place.machine.state),
        ),
        excluded=_listed(left_out, _left_out),
        late=_late(rollout),
    )


def _listed(found: QuerySet[Any], tell: Callable[[Any], tuple[str, str]]) -> Listed:
    """List the first rows; what does not fit is counted."""
    rows = list(found[: MOST + 1])
    count = len(rows) if len(rows) <= MOST else found.count()
    return Listed(count, tuple(tell(row) for row in rows[:MOST]))


def _left_out(place: Assignment) -> tuple[str, str]:
    order = place.exclusion
    return place.machine_name, f"{order.actor}: {order.reason}" if order else ""


def _left(place: Assignment) -> tuple[str, str]:
    return place.machine_name, f"retired {place.machine.entered_at:%Y-%m-%d %H:%M}"


def _moved(rollout: Rollout) -> Listed:
    since: datetime = rollout.submitted_at or rollout.created_at
    moves = ChangedMachine.objects.filter(
        change__kind=Change.Kind.PLACE,
        change__at__gte=since,
        machine__in=rollout.assignments.values("machine"),
    )
    rows = moves.select_related("change", "machine").order_by("machine__name", "pk")
    return _listed(rows, lambda row: (row.machine.name, str(row.change)))


def _late(rollout: Rollout) -> Listed:
    """Return who would be selected now and has no place; a selector may have lost its meaning."""
    if not rollout.plan_digest or rollout.finished_at is not None:
        return Listed(0, ())
    try:
        matching = fleet_selectors.machines_matching(rollout.selector)
    except SelectorError as error:
        return Listed(0, (("selector", str(error)),))
    since = rollout.submitted_at or rollout.created_at
    late = matching.filter(registered_at__gt=since, platform__in=rollout.bundle.platforms.all())
    late = late.exclude(pk__in=rollout.assignments.values("machine")).exclude(state=State.RETIRED)
    return _listed(
        late.order_by("name"),
        lambda machine: (machine.name, f"registered {machine.registered_at:%Y-%m-%d %H:%M}"),
    )
