"""Raise what somebody has to know, once, and clear it when it is over."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db import transaction

from fleet.bulk import batches
from fleet.models import Machine, Notice

_LONGEST = 500
_BATCH = 500


@transaction.atomic
def raise_notice(machine: Machine, kind: str, said: str, *, now: datetime) -> Notice:
    """Raise a notice about a machine, or bring the words of the one that stands up to date."""
    notice, is_new = Notice.objects.get_or_create(
        machine=machine,
        kind=kind,
        cleared_at=None,
        defaults={"said": said[:_LONGEST], "raised_at": now},
    )
    return notice if is_new else _reworded(notice, said)


@transaction.atomic
def raise_about(subject: str, kind: str, said: str, *, now: datetime) -> Notice:
    """Raise a notice about what is more than one machine, such as a pool."""
    notice, is_new = Notice.objects.get_or_create(
        machine=None,
        subject=subject,
        kind=kind,
        cleared_at=None,
        defaults={"said": said[:_LONGEST], "raised_at": now},
    )
    return notice if is_new else _reworded(notice, said)


def _reworded(notice: Notice, said: str) -> Notice:
    if notice.said != said[:_LONGEST]:
        notice.said = said[:_LONGEST]
        notice.save(update_fields=["said"])
    return notice


def clear_notice(machine: Machine, kind: str, *, now: datetime) -> bool:
    """Clear the machine's notice of that kind, if one stands."""
    standing = Notice.objects.filter(machine=machine, kind=kind, cleared_at=None)
    return bool(standing.update(cleared_at=now))


def clear_about(kind: str, *, but: Iterable[str], now: datetime) -> int:
    """Clear the notices of that kind about every subject but these."""
    standing = Notice.objects.filter(machine=None, kind=kind, cleared_at=None)
    return standing.exclude(subject__in=list(but)).update(cleared_at=now)


@transaction.atomic
def keep_notices(kind: str, said_of: Mapping[int, str], *, now: datetime) -> int:
    """Make these, by machine id, the notices of a kind that stand; return how many are new.

    Safe to repeat and to race: those that stand already keep their time.
    """
    standing = dict(
        Notice.objects.filter(kind=kind, cleared_at=None, machine__isnull=False).values_list(
            "machine_id", "pk"
        )
    )
    over = [pk for machine, pk in standing.items() if machine not in said_of]
    for some in batches(over, size=_BATCH):
        Notice.objects.filter(pk__in=some).update(cleared_at=now)
    new = {machine: said for machine, said in said_of.items() if machine not in standing}
    return raise_many(kind, new, now=now)


def raise_many(kind: str, said_of: Mapping[int, str], *, now: datetime) -> int:
    """Raise a notice of a kind about each machine id that has none; return how many there were."""
    rows = [
        Notice(machine_id=machine, kind=kind, said=said[:_LONGEST], raised_at=now)
        for machine, said in said_of.items()
    ]
    Notice.objects.bulk_create(rows, batch_size=_BATCH, ignore_conflicts=True)
    return len(rows)
