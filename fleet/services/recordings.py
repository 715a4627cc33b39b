"""Bring a recording of faults and repairs into the product's own history, and say that it is one.

Nothing is estimated: a recording knows when a machine went out and when it came back, so the time
between is one stay in `repairing`. Queues that nobody wrote down are not made up.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from fleet import lifecycle
from fleet.adapters import Report
from fleet.bulk import batches, insert_filled
from fleet.imports import Outage, RecordedMachine, Recording, joined, refuse
from fleet.lifecycle import State, Trigger
from fleet.models import Machine, Repair, StateChange
from fleet.services import capacity, telemetry
from fleet.services.imports import machine_ids, register_past
from fleet.services.lifecycle import state_fields

#: The label that says which recording a machine comes from.
LABEL = "recording"
#: A move that a recording tells of; nobody ordered it here, so no trigger of the table fits.
RECORDED = "recorded"
BATCH = 500
Change = tuple[str, str, str, datetime, str, str]  # old, new, trigger, at, reason, gate


@dataclass(frozen=True)
class RecordingResult:
    """How much of a recording was new, and what was odd about it."""

    machines: int
    known_machines: int
    faults: int
    known_faults: int
    outages: int
    known_outages: int
    joined: int
    notes: tuple[str, ...]


@transaction.atomic
def import_outages(recording: Recording, *, now: datetime, vouched_by: str) -> RecordingResult:
    """Append what a recording tells; all of it or nothing. Safe to repeat.

    Its machines are registered at the time that they went into service, vouched for by somebody,
    and retired where the recording says that they left. Every outage is a closed repair of a kind
    that nobody wrote down, and a stay in `repairing`; outages of one machine that overlap are one
    stay.

    Raises
    ------
    ImportRefused
        If a time lies in the future, a machine is known from elsewhere, or an earlier import of
        the machine says otherwise.
    """
    source = f"{LABEL}:{recording.name}"[:100]
    machines = {one.machine.name: one for one in recording.machines}
    known = _known(sorted(machines))
    refuse([*_elsewhere(machines, known, source=source), *_to_come(recording, now=now)])
    new = [one for name, one in machines.items() if name not in known]
    _register(new, source=source, vouched_by=vouched_by)
    ids = machine_ids(sorted(machines))

    times, notes = joined(recording.outages, machines)
    changes = {
        name: _changes(one, times.get(name, ()), vouched_by) for name, one in machines.items()
    }
    refuse(list(_contradictions(known, changes, ids)))
    faults = _record_faults(recording, source=source, now=now)
    fresh = {one.machine.name for one in new}
    _insert_changes({name: changes[name] for name in fresh}, ids, source=source)
    outages = [outage for outage in recording.outages if outage.machine in fresh]
    _insert_repairs(outages, ids, source=source)
    _leave(new, ids)
    if new:
        capacity.forget_days(since=min(one.since for one in new))
    return RecordingResult(
        machines=len(new),
        known_machines=len(known),
        faults=faults.accepted,
        known_faults=faults.duplicates,
        outages=len(outages),
        known_outages=len(recording.outages) - len(outages),
        joined=len(recording.outages) - sum(map(len, times.values())),
        notes=(*recording.notes, *notes),
    )


def _known(names: Sequence[str]) -> dict[str, str]:
    """Return the machines that are registered, and which recording each is of."""
    return {
        name: str(labels.get(LABEL, ""))
        for some in batches(names, size=BATCH)
        for name, labels in Machine.objects.filter(name__in=some).values_list("name", "labels")
    }


def _elsewhere(
    machines: Mapping[str, RecordedMachine], known: Mapping[str, str], *, source: str
) -> Iterator[str]:
    for name, label in known.items():
        if label != source:
            yield (
                f"{machines[name].machine.place}, column machine: {name!r} is registered already "
                f"and not of this recording; accepted: machines that only {source} knows"
            )


def _to_come(recording: Recording, *, now: datetime) -> Iterator[str]:
    for machine in recording.machines:
        for at in (machine.since, machine.until):
            if at is not None and at > now:
                yield f"{machine.machine.place}: {at.isoformat()} lies in the future"
    for outage in recording.outages:
        if outage.end > now:
            yield f"{outage.place}: {outage.end.isoformat()} lies in the future"
    for fault in recording.faults:
        if fault.time > now:
            yield f"{fault.place}: {fault.time.isoformat()} lies in the future"


def _register(new: Sequence[RecordedMachine], *, source: str, vouched_by: str) -> None:
    for since in sorted({one.since for one in new}):
        own = [one.machine for one in new if one.since == since]
        register_past(own, labels={LABEL: source}, now=since, vouched_by=vouched_by)


def _changes(machine: RecordedMachine, out: Sequence[Outage], vouched_by: str) -> list[Change]:
    """Return the moves of a machine after it went into service, in order of time."""
    gate = f"imported: vouched for by {vouched_by}"[:200]
    moves: list[Change] = []
    for outage in out:
        reason = f"as recorded: {outage.cause or 'out'} ({outage.place})"[:300]
        moves += [
            (State.IN_SERVICE, State.REPAIRING, RECORDED, outage.start, reason, ""),
            (State.REPAIRING, State.IN_SERVICE, RECORDED, outage.end, reason, gate),
        ]
    if machine.until is not None:
        reason = "as recorded: no longer in service"
        moves.append((State.IN_SERVICE, State.RETIRED, Trigger.RETIRE, machine.until, reason, ""))
    return moves


def _contradictions(
    known: Iterable[str], changes: Mapping[str, Sequence[Change]], ids: Mapping[str, int]
) -> Iterator[str]:
    """Tell where an earlier import of the same machine says otherwise."""
    names = {ids[name]: name for name in known}
    held: dict[int, list[tuple[str, datetime]]] = {pk: [] for pk in names}
    for some in batches(sorted(names), size=BATCH):
        rows = StateChange.objects.filter(machine_id__in=some).exclude(trigger=Trigger.VOUCH)
        for pk, state, at in rows.order_by("machine", "at", "pk").values_list(
            "machine_id", "new_state", "at"
        ):
            held[pk].append((state, at))
    for pk, name in names.items():
        told = [(str(new), at) for _, new, _, at, _, _ in changes[name]]
        if told != held[pk]:
            yield (
                f"{name}: an earlier import recorded {len(held[pk])} moves, this one tells "
                f"{len(told)} or other times; records are never rewritten"
            )


def _record_faults(recording: Recording, *, source: str, now: datetime) -> telemetry.BatchResult:
    reports = [
        Report(
            "fault",
            {
                "machine": fault.machine,
                "time": fault.time,
                "signature": fault.signature,
                "severity": fault.severity,
                "source_key": fault.place,
            },
        )
        for fault in recording.faults
    ]
    result = telemetry.store(reports, source=source, now=now)
    refuse(
        [
            f"{recording.faults[one.index].place}, column {one.field}: {one.value}; {one.reason}"
            for one in result.refused
        ]
    )
    return result


def _insert_changes(
    changes: Mapping[str, Sequence[Change]], ids: Mapping[str, int], *, source: str
) -> None:
    columns = (
        "machine_id",
        "old_state",
        "new_state",
        "trigger",
        "at",
        "reason",
        "gate",
        "recorded_at",
        "actor",
    )
    recorded_at = timezone.now()
    rows = (
        (ids[name], str(old), str(new), str(trigger), at, reason, gate, recorded_at, source)
        for name, own in changes.items()
        for old, new, trigger, at, reason, gate in own
    )
    insert_filled(StateChange, columns, rows)


def _insert_repairs(outages: Sequence[Outage], ids: Mapping[str, int], *, source: str) -> None:
    columns = ("machine_id", "status", "ordered_at", "started_at", "closed_at", "note")
    rows = (
        (
            ids[outage.machine],
            Repair.Status.CLOSED.value,
            outage.start,
            outage.start,
            outage.end,
            f"as recorded by {source}: {outage.cause or 'no cause'} ({outage.place})"[:1000],
        )
        for outage in outages
    )
    insert_filled(Repair, columns, rows)


def _leave(new: Sequence[RecordedMachine], ids: Mapping[str, int]) -> None:
    """Let the machines that the recording saw leave be retired, since it did."""
    for until in sorted({one.until for one in new if one.until is not None}):
        own = [ids[one.machine.name] for one in new if one.until == until]
        for some in batches(own, size=BATCH):
            Machine.objects.filter(pk__in=some).update(
                **state_fields(lifecycle.State.RETIRED, now=until)
            )
