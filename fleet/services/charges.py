"""Which repairs did not help: a counted fault in the watch period counts against them."""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef, Subquery

from fleet.faults import counted_faults
from fleet.lifecycle import Trigger
from fleet.models import Repair, StateChange
from fleet.services.lifecycle import WATCH
from fleet.services.repairs import record_step

#: How long after a watch period a fault in it may still be told. By the clock.
LATEST_REPORT = 4 * WATCH
#: A machine that takes longer to return after a repair is not charged to it: too much lies between.
LONGEST_WAY_BACK = timedelta(days=180)


def charge_repairs(*, now: datetime) -> int:
    """Mark repairs as ineffective whose machine had a counted fault in its watch period.

    The fault's own time counts: one that happened before the machine's return, however late it is
    told, is not the repair's. Safe to repeat and to race: a repair is marked once.
    """
    _note_returns(now=now)
    watched = Repair.objects.filter(
        ineffective_since=None, released_at__isnull=False, released_at__lte=now
    )
    faults = counted_faults().filter(
        machine=OuterRef("machine"), at__gt=OuterRef("released_at"), at__lte=OuterRef("watch_until")
    )
    first = faults.order_by("at", "pk").values("pk")[:1]
    suspects = watched.filter(watch_until__gte=now - LATEST_REPORT).annotate(fault=Subquery(first))
    found = suspects.filter(fault__isnull=False)
    return sum(_charge(repair, fault_id=repair.fault, now=now) for repair in found)


def _note_returns(*, now: datetime) -> None:
    """Write down when the machine of a closed repair returned, and until when it is watched.

    A return is charged to the last repair before it; one that another followed has none.
    """
    same = Repair.objects.filter(machine=OuterRef("machine"), status=Repair.Status.CLOSED)
    returns = StateChange.objects.filter(
        machine=OuterRef("machine"), trigger=Trigger.RELEASE, at__gte=OuterRef("closed_at")
    )
    unreturned = Repair.objects.filter(status=Repair.Status.CLOSED, released_at=None)
    waiting = unreturned.filter(closed_at__gte=now - LONGEST_WAY_BACK).annotate(
        back_at=Subquery(returns.order_by("at", "pk").values("at")[:1])
    )
    between = same.filter(closed_at__gt=OuterRef("closed_at"), closed_at__lte=OuterRef("back_at"))
    for repair in waiting.filter(~Exists(between), back_at__isnull=False):
        _note_return(repair, back_at=repair.back_at)


@transaction.atomic
def _note_return(repair: Repair, *, back_at: datetime) -> None:
    own = Repair.objects.filter(pk=repair.pk, released_at=None)
    if own.update(released_at=back_at, watch_until=back_at + WATCH):
        # From now on a fault is this one's, not an earlier one's that was still watched.
        earlier = Repair.objects.filter(machine=repair.machine_id, watch_until__gt=repair.closed_at)
        earlier.exclude(pk=repair.pk).filter(released_at__lt=back_at).update(
            watch_until=repair.closed_at
        )


@transaction.atomic
def _charge(repair: Repair, *, fault_id: int, now: datetime) -> int:
    at, signature = counted_faults().filter(pk=fault_id).values_list("at", "signature__name").get()
    charged = Repair.objects.filter(pk=repair.pk, ineffective_since=None).update(
        ineffective_since=at
    )
    if charged:
        said = (
            f"{signature} at {at:%Y-%m-%d %H:%M} UTC, "
            f"in the watch period until {repair.watch_until:%Y-%m-%d %H:%M} UTC"
        )
        record_step(repair, "ineffective", said=said, actor="watch", now=now)
    return charged
