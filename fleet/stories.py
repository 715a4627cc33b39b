"""Reads: one incident from its telemetry to what became of the machine, for page and API alike."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Min, Q, QuerySet

from fleet import adapters
from fleet.adapters import Arm
from fleet.capacity import stays_of
from fleet.faults import COUNTED_KINDS, COUNTED_SEVERITIES, HAPPENED_AT
from fleet.intended import intended_bundle
from fleet.lifecycle import State
from fleet.models import (
    Change,
    CheckResult,
    Fault,
    FirmwareBundle,
    FirmwareRecord,
    Gate,
    GateEvent,
    Incident,
    IncidentEvent,
    JobImpact,
    Observation,
    Recovery,
    Repair,
    RepairEvent,
    StateChange,
)
from fleet.selectors import versions_as_of
from fleet.telemetry import episodes
from fleet.telemetry.episodes import Seen

#: Faults that a story lists; the others are counted.
MOST_FAULTS = 200
#: Rows of the time line, of each source.
MOST_ROWS = 200
#: Changes of the machine that are offered to be linked: this long before the incident, and after.
BEFORE, AFTER = timedelta(days=30), timedelta(days=90)
#: A job's interruption is taken to be the incident's if it began so long before or after a fault.
ATTRIBUTED = timedelta(minutes=10)
#: Observations are kept for so long; what a machine's boot was before that is not known.
KEPT = timedelta(days=90)


@dataclass(frozen=True)
class Part:
    """What one component ran when the incident began; `staged` is what waited to become active."""

    name: str
    active: str
    staged: str
    committed: str


@dataclass(frozen=True)
class Firmware:
    """What the machine ran when the incident began, what it was meant to, and since when.

    `arms` are its places in the rollouts that were open then. The boot is the first sign of the
    boot id; the machine may have booted a little earlier.
    """

    at: datetime
    parts: list[Part]
    bundle: FirmwareBundle | None
    bundle_why: str
    changed: FirmwareRecord | None
    changed_hours: float | None
    boot_id: str
    booted_hours: float | None
    arms: Sequence[Arm]


@dataclass(frozen=True)
class Later:
    """What the machine did after the incident, as far as it was in service.

    `same` counts later incidents of the same family, `others` those of another one that count: a
    different pattern. `since` is the return to service, or the incident's end where nobody took
    the machine out; None while it is out.
    """

    since: datetime | None
    until: datetime
    exposure_hours: float
    same: int
    first_same_at: datetime | None
    others: int
    other_families: list[str]


@dataclass(frozen=True)
class Row:
    """One thing that happened to the machine; `source` says which record tells it."""

    at: datetime
    source: str
    what: str
    who: str = ""
    reference: int | None = None


@dataclass(frozen=True)
class Story:
    """All that is known of one incident."""

    incident: Incident
    as_of: datetime
    faults: list[Fault]
    more_faults: int
    signatures: list[tuple[str, int]]
    events: int
    bursts: int
    accompanied: list[Incident]
    merged: list[Incident]
    jobs: list[str]
    recoveries: list[Recovery]
    impacts: list[JobImpact]
    firmware: Firmware
    said: list[IncidentEvent]
    changes: list[Change]
    repairs: list[Repair]
    gates: list[Gate]
    results: list[CheckResult]
    later: Later
    timeline: list[Row]


def story(incident: Incident, *, as_of: datetime) -> Story:
    """Follow one incident: telemetry, job, firmware, diagnosis, change, repair, gate, what then."""
    own = _with_merged(incident)
    happened = _faults(own)
    listed = list(happened.order_by("at", "pk")[:MOST_FAULTS])
    counts = happened.order_by().values_list("signature__name").annotate(count=Count("pk"))
    signatures = sorted(counts, key=lambda row: (-row[1], row[0]))
    total = sum(count for _, count in signatures)
    seen = [_seen(fault, incident) for fault in listed]
    repairs = list(_repairs(own))
    gates = list(_gates(own, repairs))
    later = _later(incident, repairs=repairs, as_of=as_of)
    return Story(
        incident=incident,
        as_of=as_of,
        faults=listed,
        more_faults=total - len(listed),
        signatures=signatures,
        events=len(episodes.events(seen)),
        bursts=len(episodes.bursts(seen)),
        accompanied=list(incident.sympathetic.select_related("signature").order_by("opened_at")),
        merged=list(incident.merged.order_by("opened_at")),
        jobs=list(Counter(fault.job for fault in listed if fault.job)),
        recoveries=list(_recoveries(incident)),
        impacts=list(_impacts(own)),
        firmware=_firmware(incident, listed),
        said=list(_said(own)),
        changes=list(_changes(incident)),
        repairs=repairs,
        gates=gates,
        results=list(_results(gates)),
        later=later,
        timeline=_timeline(incident, own, repairs=repairs, gates=gates, until=as_of),
    )


def _with_merged(incident: Incident) -> list[int]:
    return [incident.pk, *incident.merged.values_list("pk", flat=True)]


def _faults(own: Sequence[int]) -> QuerySet[Any]:
    faults = Fault.objects.filter(membership__incident__in=own).annotate(at=HAPPENED_AT)
    return faults.select_related("signature")


def _seen(fault: Any, incident: Incident) -> Seen:
    series = (incident.machine_id, incident.family)
    return Seen(fault.pk, series, fault.at, fault.signature.name, fault.component)


# --- work ----------------------------------------------------------------------------------------


def _recoveries(incident: Incident) -> QuerySet[Recovery]:
    """Return the interruptions of the machine's jobs that began near the incident."""
    near = Recovery.objects.filter(
        machine=incident.machine_id,
        time__gte=incident.opened_at - ATTRIBUTED,
        time__lte=incident.last_fault_at + ATTRIBUTED,
    )
    closed = near.filter(recovered_at__isnull=False).values("source_key")
    still_open = Q(recovered_at__isnull=True) & ~Q(source_key__in=closed)
    return near.filter(Q(recovered_at__isnull=False) | still_open).order_by("time", "pk")[
        :MOST_ROWS
    ]


def _impacts(own: Sequence[int]) -> QuerySet[JobImpact]:
    """Return the impacts on jobs as they stand: what was corrected is left out."""
    return JobImpact.objects.filter(incident__in=own, corrected_by=None).order_by("fault_at", "pk")


# --- firmware ------------------------------------------------------------------------------------


def _firmware(incident: Incident, faults: Sequence[Any]) -> Firmware:
    machine, at = incident.machine, incident.opened_at
    stages = FirmwareRecord.Stage
    active, staged, committed = (
        versions_as_of(machine, at=at, stage=stage)
        for stage in (stages.ACTIVE, stages.STAGED, stages.COMMITTED)
    )
    names = sorted({*active, *staged, *committed})
    reader = adapters.open_arms()
    arms = list(reader.at(machine.pk, at)) if reader else []
    bundle, why = intended_bundle(machine, now=at, arms=arms)
    changed = (
        machine.firmware.filter(stage=stages.ACTIVE, since__lte=at)
        .order_by("-since", "-pk")
        .first()
    )
    boot_id, booted_at = _boot(incident, faults)
    return Firmware(
        at=at,
        parts=[
            Part(
                name,
                active.get(name, ""),
                staged.get(name, "") if staged.get(name) != active.get(name) else "",
                committed.get(name, ""),
            )
            for name in names
        ],
        bundle=bundle,
        bundle_why=why,
        changed=changed,
        changed_hours=_hours(changed.since, at) if changed else None,
        boot_id=boot_id,
        booted_hours=_hours(booted_at, at) if booted_at else None,
        arms=arms,
    )


def _boot(incident: Incident, faults: Sequence[Any]) -> tuple[str, datetime | None]:
    """Return the boot id at the incident's beginning and when it was first seen, if it was told."""
    at = incident.opened_at
    seen = Observation.objects.filter(machine=incident.machine_id, start__gte=at - KEPT)
    told = next((fault.boot_id for fault in faults if fault.boot_id), "")
    if not told:
        before = seen.filter(start__lte=at).exclude(boot_id="").order_by("-end")
        told = before.values_list("boot_id", flat=True).first() or ""
    if not told:
        return "", None
    first = seen.filter(boot_id=told).aggregate(at=Min("start"))["at"]
    return told, first if first is not None and first <= at else None


def _hours(since: datetime, until: datetime) -> float:
    return (until - since) / timedelta(hours=1)


# --- what was said and done ----------------------------------------------------------------------


def _said(own: Sequence[int]) -> QuerySet[IncidentEvent]:
    events = IncidentEvent.objects.filter(incident__in=own).select_related("user")
    return events.order_by("at", "pk")[:MOST_ROWS]


def _changes(incident: Incident) -> QuerySet[Change]:
    """Return the reported changes of the machine around the incident, which may be linked to it."""
    return Change.objects.filter(
        touched__machine=incident.machine_id,
        at__gte=incident.opened_at - BEFORE,
        at__lte=incident.last_fault_at + AFTER,
    ).order_by("-at", "-pk")[:MOST_ROWS]


def _repairs(own: Sequence[int]) -> QuerySet[Repair]:
    repairs = Repair.objects.filter(incident__in=own).select_related("technician")
    return repairs.prefetch_related("swaps", "evidence").order_by("ordered_at", "pk")


def _gates(own: Sequence[int], repairs: Sequence[Repair]) -> QuerySet[Gate]:
    gates = Gate.objects.filter(Q(incident__in=own) | Q(repair__in=[each.pk for each in repairs]))
    return gates.select_related("plan", "reviewer").order_by("opened_at", "pk")


def _results(gates: Sequence[Gate]) -> QuerySet[CheckResult]:
    results = CheckResult.objects.filter(gate_check__gate__in=[gate.pk for gate in gates])
    ordered = results.select_related("gate_check").prefetch_related("evidence")
    return ordered.order_by("at", "pk")[:MOST_ROWS]


# --- what then -----------------------------------------------------------------------------------


def _later(incident: Incident, *, repairs: Sequence[Repair], as_of: datetime) -> Later:
    since = _back_since(incident)
    if since is None or since > as_of:
        return Later(None, as_of, 0.0, 0, None, 0, [])
    after = Incident.objects.filter(
        machine=incident.machine_id, merged_into=None, opened_at__gt=since, opened_at__lte=as_of
    ).exclude(pk=incident.pk)
    same = after.filter(family=incident.family).aggregate(count=Count("pk"), first=Min("opened_at"))
    others = after.exclude(family=incident.family).filter(parent=None)
    others = others.filter(kind__in=COUNTED_KINDS, severity__in=COUNTED_SEVERITIES)
    families = others.order_by("family").values_list("family", flat=True)
    return Later(
        since=since,
        until=as_of,
        exposure_hours=_in_service_hours(incident, since=since, until=as_of),
        same=same["count"],
        first_same_at=same["first"],
        others=len(families),
        other_families=sorted(set(families)),
    )


def _back_since(incident: Incident) -> datetime | None:
    """Return when the machine was in service again after the incident, None if it is not."""
    moves = StateChange.objects.filter(machine=incident.machine_id, at__gte=incident.opened_at)
    out = moves.exclude(new_state=State.IN_SERVICE).aggregate(first=Min("at"))["first"]
    if out is None:
        is_working = incident.machine.state == State.IN_SERVICE
        return incident.last_fault_at if is_working else None
    back = moves.filter(new_state=State.IN_SERVICE, at__gte=out)
    return back.aggregate(first=Min("at"))["first"]


def _in_service_hours(incident: Incident, *, since: datetime, until: datetime) -> float:
    machine = incident.machine
    told = [
        (stay.since, stay.until)
        for stay in stays_of(machine, until=until)
        if stay.state == State.IN_SERVICE
    ]
    if not told and machine.state == State.IN_SERVICE:  # it was registered so and never moved
        told = [(machine.entered_at, None)]
    spans = [(max(begin, since), min(end or until, until)) for begin, end in told]
    return sum(_hours(begin, end) for begin, end in spans if end > begin)


# --- the time line -------------------------------------------------------------------------------


def _timeline(
    incident: Incident,
    own: Sequence[int],
    *,
    repairs: Sequence[Repair],
    gates: Sequence[Gate],
    until: datetime,
) -> list[Row]:
    """Return everything that concerns the incident in one order, whoever recorded it."""
    since = incident.opened_at - timedelta(hours=24)
    end = _end_of_story(incident, repairs, until=until)
    rows = [
        *_fault_rows(own),
        *_recovery_rows(_recoveries(incident)),
        *_firmware_rows(incident, since=since, until=end),
        *_change_rows(incident, since=since, until=end),
        *_move_rows(incident, since=since, until=end),
        *_event_rows(own, repairs=repairs, gates=gates),
    ]
    return sorted((row for row in rows if row.at <= until), key=lambda row: (row.at, row.source))


def _end_of_story(incident: Incident, repairs: Sequence[Repair], *, until: datetime) -> datetime:
    """Return until when what the machine did belongs to the incident: a week after all is over."""
    if incident.closed_at is None or any(repair.closed_at is None for repair in repairs):
        return until
    ends = [repair.closed_at for repair in repairs if repair.closed_at is not None]
    return min(until, max(incident.closed_at, *ends, incident.last_fault_at) + timedelta(days=7))


def _fault_rows(own: Sequence[int]) -> Iterator[Row]:
    """Yield one row per signature and part: from its first to its last time."""
    groups = (
        _faults(own)
        .order_by()
        .values_list("signature__name", "component")
        .annotate(first=Min("at"), last=Max("at"), count=Count("pk"))
    )
    for name, component, first, last, count in groups:
        where = f" on {component}" if component else ""
        yield Row(first, "fault", f"{name}{where}" + (f", {count} times" if count > 1 else ""))
        if last > first:
            yield Row(last, "fault", f"{name}{where}, for the last time")


def _recovery_rows(recoveries: Iterable[Recovery]) -> Iterator[Row]:
    for one in recoveries:
        job = one.job or "the job"
        yield Row(one.time, "job", f"{job} was interrupted", reference=one.pk)
        if one.recovered_at is not None:
            yield Row(one.recovered_at, "job", f"{job} went on: {one.path or 'path not told'}")


def _firmware_rows(incident: Incident, *, since: datetime, until: datetime) -> Iterator[Row]:
    records = incident.machine.firmware.filter(since__gte=since, since__lte=until)
    for one in records.order_by("since", "pk")[:MOST_ROWS]:
        slot = f" {one.slot}" if one.slot else ""
        said = f"{one.kind}{slot} {one.stage}: {one.version or 'nothing known'}"
        yield Row(one.since, "firmware", said, who=one.source, reference=one.pk)


def _change_rows(incident: Incident, *, since: datetime, until: datetime) -> Iterator[Row]:
    changes = Change.objects.filter(touched__machine=incident.machine_id)
    for one in changes.filter(at__gte=since, at__lte=until).order_by("at", "pk")[:MOST_ROWS]:
        yield Row(one.at, "change", f"{one.kind} {one}", who=one.source, reference=one.pk)


def _move_rows(incident: Incident, *, since: datetime, until: datetime) -> Iterator[Row]:
    moves = incident.machine.state_changes.filter(at__gte=since, at__lte=until)
    for one in moves.order_by("at", "pk")[:MOST_ROWS]:
        why = f": {one.reason}" if one.reason else ""
        said = f"{one.old_state} → {one.new_state}{why}"
        yield Row(one.at, "machine", said, who=one.actor, reference=one.pk)


def _event_rows(
    own: Sequence[int], *, repairs: Sequence[Repair], gates: Sequence[Gate]
) -> Iterator[Row]:
    for said in _said(own):
        yield Row(said.at, "incident", _words(said.kind, said.said), said.actor, said.incident_id)
    done = RepairEvent.objects.filter(repair__in=[each.pk for each in repairs])
    for step in done.order_by("at", "pk")[:MOST_ROWS]:
        yield Row(step.at, "repair", _words(step.kind, step.said), step.actor, step.repair_id)
    checked = GateEvent.objects.filter(gate__in=[each.pk for each in gates])
    for event in checked.order_by("at", "pk")[:MOST_ROWS]:
        yield Row(event.at, "gate", _words(event.kind, event.said), event.actor, event.gate_id)


def _words(kind: str, said: str) -> str:
    name = kind.replace("_", " ")
    return f"{name}: {said}" if said else name
