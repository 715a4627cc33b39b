"""Bring a recorded version history into the product's own, under the source `import`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any

from django.db import transaction
from django.utils import timezone

from fleet.bulk import batches, insert_new
from fleet.imports import PastHistory, PastInterval, PastMachine, by_part, refuse
from fleet.models import FirmwareRecord, Machine
from fleet.services.inventory import register_machines, register_platform

LOOK_UP = 5000
Part = tuple[str, str, str, str]


@dataclass(frozen=True)
class ImportResult:
    """How much of a history was new, and how much was there already."""

    machines: int
    known_machines: int
    records: int
    known_records: int


@transaction.atomic
def import_history(history: PastHistory, *, now: datetime, vouched_by: str = "") -> ImportResult:
    """Append a recorded history; all of it or nothing. Safe to repeat.

    Machines that the history describes and that are not registered yet are registered: they wait
    for validation, unless `vouched_by` names who says that they are in service. Where an interval
    ends and no other begins, a record of an empty version says that nothing is known from then on.

    Raises
    ------
    ImportRefused
        If a machine is unknown, a time lies in the future, or an earlier import says otherwise.
    """
    known = machine_ids([machine.name for machine in history.machines])
    new = [machine for machine in history.machines if machine.name not in known]
    register_past(new, now=now, vouched_by=vouched_by)
    ids = machine_ids([interval.machine for interval in history.intervals])
    refuse([*_unknown(history.intervals, ids), *_future(history.intervals, now=now)])

    records = {part: list(_records(own)) for part, own in by_part(history.intervals)}
    existing = _existing(sorted(set(ids.values())))
    refuse(list(_contradictions(records, existing, ids)))
    total = sum(len(own) for own in records.values())
    added = _insert(records, ids)
    return ImportResult(len(new), len(history.machines) - len(new), added, total - added)


def machine_ids(names: Sequence[str]) -> dict[str, int]:
    """Return the keys of the machines of these names that are registered."""
    return {
        name: pk
        for some in batches(sorted(set(names)), size=LOOK_UP)
        for name, pk in Machine.objects.filter(name__in=some).values_list("name", "pk")
    }


def register_past(
    machines: Sequence[PastMachine],
    *,
    now: datetime,
    vouched_by: str,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Register the machines that a recording describes, and their platforms."""
    vendors = {machine.platform: machine.vendor for machine in machines}
    for platform, vendor in sorted(vendors.items()):
        register_platform(platform, vendor=vendor)
    rows: list[dict[str, Any]] = [
        {
            "name": machine.name,
            "platform": machine.platform,
            "site": machine.site,
            "pool": machine.pool,
            "rack": machine.rack,
            "labels": {**machine.labels, **(labels or {})},
        }
        for machine in machines
    ]
    register_machines(rows, now=now, vouched_by=vouched_by)


def _unknown(intervals: Sequence[PastInterval], ids: Mapping[str, int]) -> list[str]:
    first: dict[str, PastInterval] = {}
    for interval in intervals:
        if interval.machine not in ids:
            first.setdefault(interval.machine, interval)
    return [
        f"{interval.place}, column machine: {name!r} is not registered and no row of machines "
        "describes it"
        for name, interval in first.items()
    ]


def _future(intervals: Sequence[PastInterval], *, now: datetime) -> Iterator[str]:
    for interval in intervals:
        for column, at in (("valid_from", interval.since), ("valid_to", interval.until)):
            if at is not None and at > now:
                yield (
                    f"{interval.place}, column {column}: {at.isoformat()} lies in the future; "
                    f"accepted: times up to {now.isoformat()}"
                )


def _records(own: Sequence[PastInterval]) -> Iterator[tuple[datetime, str, str]]:
    """Yield when, which version and from which place of the file; empty where a gap begins."""
    begins = [interval.since for interval in own[1:]]
    for interval, later in zip_longest(own, begins):
        yield interval.since, interval.version, interval.place
        if interval.until is not None and (later is None or later > interval.until):
            yield interval.until, "", interval.place


def _existing(machine_ids: Sequence[int]) -> dict[tuple[int, str, str, str], dict[datetime, str]]:
    """Return what earlier imports said, per part."""
    found: dict[tuple[int, str, str, str], dict[datetime, str]] = {}
    for some in batches(machine_ids, size=LOOK_UP):
        rows = FirmwareRecord.objects.filter(
            machine_id__in=some, source=FirmwareRecord.Source.IMPORT
        ).values_list("machine_id", "kind", "slot", "stage", "since", "version")
        for pk, kind, slot, stage, since, version in rows.iterator(chunk_size=LOOK_UP):
            found.setdefault((pk, kind, slot, stage), {})[since] = version
    return found


def _contradictions(
    records: Mapping[Part, Sequence[tuple[datetime, str, str]]],
    existing: Mapping[tuple[int, str, str, str], Mapping[datetime, str]],
    ids: Mapping[str, int],
) -> Iterator[str]:
    """Tell where an earlier import says otherwise within the time that this one covers."""
    for (machine, kind, slot, stage), own in records.items():
        said = {since: version for since, version, _ in own}
        first, last = own[0][0], own[-1][0]
        for since, version in existing.get((ids[machine], kind, slot, stage), {}).items():
            if first <= since <= last and said.get(since) != version:
                yield (
                    f"{own[0][2]}, column component: {machine} {kind}{slot and ':'}{slot} is "
                    f"{said.get(since) or 'unchanged'} at {since.isoformat()}, but an earlier "
                    f"import recorded {version or 'nothing known'!r}; records are never rewritten"
                )


def _insert(
    records: Mapping[Part, Sequence[tuple[datetime, str, str]]], ids: Mapping[str, int]
) -> int:
    columns = (
        "machine_id",
        "kind",
        "slot",
        "stage",
        "since",
        "version",
        "source",
        "is_disputed",
        "evidence",
        "recorded_at",
    )
    source, recorded_at = FirmwareRecord.Source.IMPORT.value, timezone.now()
    rows = [
        (
            ids[machine],
            kind,
            slot,
            stage,
            since,
            version,
            source,
            False,
            {"row": place},
            recorded_at,
        )
        for (machine, kind, slot, stage), own in records.items()
        for since, version, place in own
    ]
    return insert_new(FirmwareRecord, columns, rows)
