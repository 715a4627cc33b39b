"""What changed elsewhere: reported once each, with the machines that it touched."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from fleet import selectors
from fleet.bulk import insert_new
from fleet.errors import BatchConflict, ChangeRefused
from fleet.models import Change, ChangedMachine, Machine

#: Fields of a machine that say where it is; what they were matters to old evidence.
PLACE = (*Machine.PLACES, "labels")
#: Names of unknown machines that a refusal lists.
_MOST_NAMED = 20


@transaction.atomic
def record_change(
    *,
    source: str,
    key: str,
    kind: str,
    what: str,
    at: datetime,
    now: datetime,
    selector: str = "",
    machines: Sequence[str] = (),
    old: str = "",
    new: str = "",
    note: str = "",
    reported_by: User | None = None,
) -> Change:
    """Record a change that was made elsewhere; a repeated report is the same change.

    Either a selector or a list of names says whom it touched; the machines are kept as they are
    now, since a selector may match others later.

    Raises
    ------
    ChangeRefused
        With everything that is wrong at once: nobody named, unknown names, a time to come.
    BatchConflict
        If the source has used the key for another change.
    SelectorError
        If the selector is malformed or names what does not exist.
    """
    told = {"kind": kind, "what": what, "selector": selector, "old": old, "new": new, "at": at}
    known = Change.objects.filter(source=source, key=key).first()
    if known is not None:
        return _same(known, told)
    touched = _touched(selector, machines, at=at, now=now)
    try:
        with transaction.atomic():
            change = Change.objects.create(
                source=source,
                key=key,
                note=note,
                machine_count=len(touched),
                reported_by=reported_by,
                recorded_at=timezone.now(),
                **told,
            )
    except IntegrityError:  # another request told it at the same time
        return _same(Change.objects.get(source=source, key=key), told)
    insert_new(
        ChangedMachine, ("change_id", "machine_id"), [(change.pk, machine) for machine in touched]
    )
    return change


def _same(known: Change, told: dict[str, Any]) -> Change:
    differing = [name for name, value in told.items() if getattr(known, name) != value]
    if differing:
        raise BatchConflict(
            f"{known.source} has told change {known.key!r} before, with other "
            f"{', '.join(differing)}; a new change needs a key of its own"
        )
    return known


def _touched(selector: str, names: Iterable[str], *, at: datetime, now: datetime) -> list[int]:
    wanted = set(names)
    reasons = [f"{at.isoformat()} is still to come; report what was done"] if at > now else []
    if bool(selector) == bool(wanted):
        reasons.append("say by a selector or by machines whom it touched, and not by both")
        raise ChangeRefused(reasons)
    found = (
        selectors.machines_matching(selector)
        if selector
        else Machine.objects.filter(name__in=wanted)
    )
    rows = dict(found.order_by("pk").values_list("name", "pk"))
    unknown = sorted(wanted - set(rows))
    if unknown:
        more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        reasons.append(f"unknown machines: {', '.join(unknown[:_MOST_NAMED])}{more}")
    if not rows and not unknown:
        reasons.append(f"selector {selector!r} selects no machine")
    if reasons:
        raise ChangeRefused(reasons)
    return list(rows.values())


@transaction.atomic
def relocate(
    machine: Machine, *, places: dict[str, Any], actor: str, now: datetime
) -> list[Change]:
    """Write down where a machine is now, each move as a change of its own; return the moves.

    Evidence and assignments keep what was true when they were made.
    """
    row = Machine.objects.select_for_update().get(pk=machine.pk)
    moved = {
        name: (getattr(row, name), value)
        for name, value in places.items()
        if name in PLACE and getattr(row, name) != value
    }
    if not moved:
        return []
    Machine.objects.filter(pk=machine.pk).update(**{name: to for name, (_, to) in moved.items()})
    made = []
    for name, (old, new) in moved.items():
        change = Change.objects.create(
            source="inventory",
            key=f"{machine.name}/{name}/{timezone.now().timestamp():.6f}",
            kind=Change.Kind.PLACE,
            what=name,
            machine_count=1,
            old=str(old)[:200],
            new=str(new)[:200],
            note=f"by {actor}",
            at=now,
            recorded_at=timezone.now(),
        )
        ChangedMachine.objects.create(change=change, machine=machine)
        made.append(change)
    machine.refresh_from_db()
    return made
