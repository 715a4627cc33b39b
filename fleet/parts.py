"""Reads: what machines claim to be, and where each part has been."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from fleet.bulk import batches
from fleet.identity import part_name
from fleet.lifecycle import State
from fleet.models import Component, Fault, Machine, MachineClaim, PartSwap

Key = tuple[str, str]
LOOK_UP = 500


@dataclass(frozen=True)
class Held:
    """One value that a machine claimed from `since` to `until` (None: still)."""

    machine: str
    kind: str
    slot: str
    value: str
    since: datetime
    until: datetime | None
    source: str
    actor: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sojourn:
    """One part in one slot from `since` to `until`, with the faults that it had there.

    `since` None: it was there when somebody first wrote its serial down.
    """

    machine: str
    kind: str
    slot: str
    serial: str
    model: str
    since: datetime | None
    until: datetime | None
    faults: int
    signatures: tuple[tuple[str, int], ...]


# --- claims -------------------------------------------------------------------------------------


def standing_claims(machine: Machine, *, at: datetime) -> dict[Key, str]:
    """Return what a machine claims at a time, by kind and slot; ended claims are empty."""
    rows = machine.claims.filter(since__lte=at).order_by("since", "pk")
    return {(kind, slot): value for kind, slot, value in rows.values_list("kind", "slot", "value")}


def claims_of(machine: Machine, *, as_of: datetime) -> list[Held]:
    """Return every claim of a machine up to a time, with its interval and who else holds it."""
    rows = machine.claims.filter(since__lte=as_of).order_by("kind", "slot", "since", "pk")
    found = []
    for _, own in groupby(rows, key=lambda row: (row.kind, row.slot)):
        for row, later in pairwise([*own, None]):
            if row is None or not row.value:
                continue
            others = claimants(row.kind, row.value) if later is None else ()
            found.append(
                Held(
                    machine=machine.name,
                    kind=row.kind,
                    slot=row.slot,
                    value=row.value,
                    since=row.since,
                    until=later.since if later else None,
                    source=row.source,
                    actor=row.actor,
                    others=tuple(one.name for one in others if one.pk != machine.pk),
                )
            )
    return found


def taken(claims: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return which of these kinds and values some machine claims already, and one that does."""
    wanted: dict[str, set[str]] = {}
    for kind, value in claims:
        wanted.setdefault(kind, set()).add(value)
    standing = _standing().exclude(machine__state=State.RETIRED)
    return {
        (kind, value): name
        for kind, values in wanted.items()
        for some in batches(sorted(values - {""}), size=LOOK_UP)
        for value, name in standing.filter(kind=kind, value__in=some)
        .order_by("-machine__name")
        .values_list("value", "machine__name")
    }


def claimants(kind: str, value: str) -> list[Machine]:
    """Return the machines that claim a value now; retired ones claim nothing any more."""
    if not value:
        return []
    rows = _standing().filter(kind=kind, value=value).values("machine")
    machines = Machine.objects.filter(pk__in=rows).exclude(state=State.RETIRED)
    return list(machines.order_by("name"))


def _standing() -> QuerySet[MachineClaim]:
    """Return the newest claim of each machine, kind and slot."""
    later = MachineClaim.objects.filter(
        Q(since__gt=OuterRef("since")) | Q(since=OuterRef("since"), pk__gt=OuterRef("pk")),
        machine=OuterRef("machine"),
        kind=OuterRef("kind"),
        slot=OuterRef("slot"),
    )
    return MachineClaim.objects.filter(~Exists(later))


def conflicts(*, limit: int) -> list[tuple[str, str, list[str]]]:
    """Return values that several machines claim at once: kind, value, the machines' names."""
    standing = _standing().exclude(value="").exclude(machine__state=State.RETIRED)
    held = standing.order_by().values("kind", "value")
    twice = held.annotate(n=Count("machine", distinct=True)).filter(n__gt=1)
    return [
        (row["kind"], row["value"], [one.name for one in claimants(row["kind"], row["value"])])
        for row in twice.order_by("kind", "value")[:limit]
    ]


# --- parts --------------------------------------------------------------------------------------


def where_now(serial: str) -> list[Component]:
    """Return the slots in which a part of this serial sits, by the inventory."""
    if not serial:
        return []
    rows = Component.objects.filter(serial=serial).exclude(machine__state=State.RETIRED)
    return list(rows.select_related("machine").order_by("machine__name", "kind", "slot"))


def been(serial: str, *, as_of: datetime) -> list[Sojourn]:
    """Return where a part has been, oldest first, with the faults that it had in each slot.

    A fault is the part's if it names the part's slot and lies within the time that it was there.
    """
    swaps = PartSwap.objects.filter(Q(old_serial=serial) | Q(new_serial=serial), at__lte=as_of)
    rows = list(swaps.select_related("machine").order_by("at", "pk")) if serial else []
    present = [one for one in where_now(serial) if one.machine.registered_at <= as_of]
    slots = {(one.machine_id, one.kind, one.slot) for one in rows}
    slots |= {(one.machine_id, one.kind, one.slot) for one in present}
    found = [
        stay
        for slot in sorted(slots)
        for stay in _in_slot(
            serial,
            [row for row in rows if (row.machine_id, row.kind, row.slot) == slot],
            [one for one in present if (one.machine_id, one.kind, one.slot) == slot],
        )
    ]
    return sorted(found, key=lambda stay: (stay.since is not None, stay.since or as_of))


def _in_slot(serial: str, swaps: list[PartSwap], present: list[Component]) -> Iterator[Sojourn]:
    since: datetime | None = None
    model = present[0].model if present else ""
    is_in = not swaps or swaps[0].old_serial == serial
    for swap in swaps:
        if swap.old_serial == serial and is_in:
            yield _sojourn(
                swap.machine, swap.kind, swap.slot, serial, swap.old_model, since, swap.at
            )
            is_in = False
        if swap.new_serial == serial:
            since, model, is_in = swap.at, swap.new_model, True
    if is_in and present:
        one = present[0]
        yield _sojourn(one.machine, one.kind, one.slot, serial, one.model or model, since, None)
    elif is_in and swaps:
        last = swaps[-1]
        yield _sojourn(last.machine, last.kind, last.slot, serial, model, since, None)


def _sojourn(
    machine: Machine,
    kind: str,
    slot: str,
    serial: str,
    model: str,
    since: datetime | None,
    until: datetime | None,
) -> Sojourn:
    faults = faults_in(machine, kind, slot, since=since, until=until)
    counts = faults.order_by().values_list("signature__name").annotate(n=Count("pk"))
    told = tuple(counts.order_by("-n", "signature__name"))
    total = sum(count for _, count in told)
    return Sojourn(machine.name, kind, slot, serial, model, since, until, total, told)


def faults_in(
    machine: Machine, kind: str, slot: str, *, since: datetime | None, until: datetime | None
) -> QuerySet[Fault]:
    """Return the faults that name one slot of a machine, in [since, until)."""
    rows = Fault.objects.filter(machine=machine, component__in=spellings(kind, slot))
    if since is not None:
        rows = rows.filter(time__gte=since)
    return rows if until is None else rows.filter(time__lt=until)


def spellings(kind: str, slot: str) -> list[str]:
    """Return how reports name a part.

    Examples
    --------
    >>> spellings("gpu", "3")
    ['gpu/3', 'gpu 3', 'gpu:3', 'gpu3', 'gpu-3']
    """
    if not slot:
        return [kind]
    return [part_name(kind, slot), *(f"{kind}{mark}{slot}" for mark in (" ", ":", "", "-"))]
