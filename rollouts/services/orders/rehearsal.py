"""What orders would do: given, looked at, and taken back before anybody else sees them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Count, Max, Q

from rollouts.models import AttemptEvent, Order, Transition


@dataclass(frozen=True)
class Rehearsed:
    """An order that was taken back, with the moves that cited it and the attempts it moved.

    `attempts` counts the attempts of its rollout, and of a roll back that it began, by the
    status that they went to.
    """

    order: Order
    moves: tuple[Transition, ...]
    attempts: Mapping[str, int]


def rehearse(command: Callable[[], Order | Iterable[Order] | None]) -> list[Rehearsed]:
    """Give orders and take them back; what would be refused is refused with the same words.

    Nothing stays written and nobody is told: hints are sent on commit, and there is none. Rows
    are held as long as the order itself would hold them.
    """
    with transaction.atomic():
        before = AttemptEvent.objects.aggregate(last=Max("pk"))["last"] or 0
        given = command()
        orders = [given] if isinstance(given, Order) else list(given or ())
        told = [_told(order, before=before) for order in orders]
        transaction.set_rollback(True)
    return told


def _told(order: Order, *, before: int) -> Rehearsed:
    moves = order.transitions.select_related("rollout", "wave").order_by("pk")
    own = Q(attempt__rollout=order.rollout_id) | Q(attempt__rollout__parent=order.rollout_id)
    events = AttemptEvent.objects.filter(own, pk__gt=before).order_by("new_status")
    counts = events.values_list("new_status").annotate(n=Count("pk"))
    return Rehearsed(order=order, moves=tuple(moves), attempts=dict(counts))
