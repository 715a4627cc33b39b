"""Orders that stop more than one rollout, or one in favour of another."""

from collections.abc import Collection, Iterable
from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction

from fleet import services as fleet
from fleet.models import FirmwareBundle
from rollouts import selectors
from rollouts.errors import IllegalTransition, OrderRefused, StaleRollout
from rollouts.lifecycle import TRANSITIONS, Status, Trigger
from rollouts.models import Order, Rollout
from rollouts.services.attempts.starts import raise_fence
from rollouts.services.orders import steering
from rollouts.services.records import record_order

#: What a halt of everything stops; a rollout that is going back is stopped too.
STOPPED = tuple(status for status, trigger in TRANSITIONS if trigger is Trigger.HALT)
#: Nothing has been installed yet: there is nothing to halt, but nothing may begin either.
_NOT_BEGUN = (Status.AWAITING_APPROVAL, Status.APPROVED)


def halt_all(
    *, actor: User, now: datetime, reason: str = "", only: Collection[int] | None = None
) -> list[Order]:
    """Halt every rollout that is running, paused or going back; each by an order of its own.

    `only` narrows it to these rollouts, by identifier; an empty one narrows it to none. Each is
    halted in its own transaction, so that one that cannot be does not keep the others going. A
    roll back is halted with the rollout that it takes back.
    """
    stoppable = Rollout.objects.filter(status__in=STOPPED)
    if only is not None:
        stoppable = stoppable.filter(pk__in=only)
    given = []
    for rollout in stoppable.order_by("parent_id", "pk"):
        order = _halt_now(rollout, actor=actor, now=now, reason=reason or "everything is halted")
        if order is not None:
            given.append(order)
    return given


def _halt_now(rollout: Rollout, *, actor: User, now: datetime, reason: str) -> Order | None:
    """Halt it wherever it stands by now; None where there is nothing left to halt."""
    while rollout.status in STOPPED:
        try:
            return steering.halt(rollout, actor=actor, now=now, reason=reason)
        except (StaleRollout, IllegalTransition):
            rollout.refresh_from_db()  # somebody moved it meanwhile; the row says whereto
    return None


@transaction.atomic
def withdraw_bundle(
    bundle: FirmwareBundle, *, actor: User, now: datetime, reason: str = ""
) -> list[Order]:
    """Withdraw a bundle and stop what would still install it, in one transaction.

    What is under way is halted, what has not begun is cancelled. Rolling back from the bundle is
    left alone: it takes the bundle away.

    Raises
    ------
    BundleNotReady
        If the bundle is not approved.
    """
    fleet.withdraw_bundle(bundle, actor=actor, now=now)
    said = reason or f"bundle {bundle} was withdrawn"
    own = Rollout.objects.filter(bundle=bundle, kind=Rollout.Kind.UPDATE).order_by("pk")
    # Held, so that one that starts at this moment is seen as what it has become.
    rows = list(own.select_for_update(no_key=True))
    given: list[Order | None] = [
        steering.halt(rollout, actor=actor, now=now, reason=said)
        for rollout in rows
        if rollout.status in (Status.RUNNING, Status.PAUSED)
    ]
    given += [
        steering.cancel(rollout, actor=actor, now=now, reason=said)
        for rollout in rows
        if rollout.status in _NOT_BEGUN
    ]
    return [order for order in given if order is not None]


@transaction.atomic
def supersede(
    rollout: Rollout, *, by: Rollout, actor: User, now: datetime, reason: str = ""
) -> Order:
    """End a rollout because a newer one of the same component takes its place.

    It starts nothing more and gives its machines free for the newer one; nothing is undone, and
    what is in flight goes to its end.

    Raises
    ------
    OrderRefused
        If the other rollout is not newer, is over, or touches none of the same components.
    """
    reasons = list(_reasons_against(rollout, by))
    if reasons:
        raise OrderRefused(reasons)
    order = record_order(
        rollout,
        Order.Kind.SUPERSEDE,
        actor=actor,
        now=now,
        reason=reason,
        parameters={"by": by.name, "by_id": by.pk},
    )
    detail = f"superseded by {by.name}"
    raise_fence(
        rollout,
        Trigger.CANCEL,
        cause=order,
        now=now,
        detail=detail,
        note=detail[:300],
        finished_at=now,
        due_at=None,
    )
    return order


def _reasons_against(rollout: Rollout, by: Rollout) -> Iterable[str]:
    if by.pk == rollout.pk:
        yield f"{rollout} cannot supersede itself"
        return
    if by.created_at < rollout.created_at:
        yield f"{by} is older than {rollout}; only a newer rollout can supersede it"
    if by.status not in (Status.DRAFT, Status.AWAITING_APPROVAL, Status.APPROVED, Status.RUNNING):
        yield f"{by} is {by.status}; only a rollout that is still to do its work can supersede one"
    old, new = selectors.kinds_of(rollout), selectors.kinds_of(by)
    if not old & new:
        yield (
            f"{rollout} updates {', '.join(sorted(old))}, {by} updates {', '.join(sorted(new))}: "
            "they have no component in common"
        )
