"""Put faults into incidents, and close incidents that are over."""

import time as wall_time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from fleet.bulk import batches, insert_new
from fleet.faults import COUNTED_KINDS, COUNTED_SEVERITIES, HAPPENED_AT
from fleet.lifecycle import State
from fleet.models import (
    Fault,
    FaultSignature,
    Incident,
    IncidentCursor,
    IncidentEvent,
    IncidentFault,
    StateChange,
)
from fleet.telemetry import episodes
from fleet.telemetry.episodes import Episode, Joined, Seen, Span

ACTOR = "incidents"
#: Faults, or incidents to be closed, of one transaction: others who write wait for so long.
BATCH = 1000
#: Keys below the cursor that are looked at again: a fault may be committed after one that is newer.
OVERLAP = 20_000
#: All faults are looked through for one that was passed over, this often.
WHOLE_CHECK = timedelta(hours=24)
LONGEST_RUN_SECONDS = 20.0
#: An incident of a machine that nobody took out of service ends this long after its last fault.
QUIET = timedelta(hours=24)
DEFAULT_GAP = timedelta(minutes=15)

#: Into which a machine's move ends an incident, and what is said then.
_ENDS: Mapping[State, str] = {
    State.IN_SERVICE: "the machine is back in service",
    State.RETIRED: "the machine is retired",
}
_SEVERITIES = tuple(FaultSignature.Severity)  # from the mildest to the worst
_KINDS = (
    FaultSignature.Kind.NOT_COUNTED,
    FaultSignature.Kind.SOFT,
    FaultSignature.Kind.UNKNOWN,
    FaultSignature.Kind.HARD,
)
_FROM_FAULTS = (
    "signature",
    "component",
    "severity",
    "kind",
    "opened_at",
    "last_fault_at",
    "fault_count",
    "closed_at",
    "merged_into",
    "parent",
)
#: What people said of an incident that became part of another one goes with it.
_SAID = (
    "diagnosis",
    "confidence",
    "repair_kind",
    "cause",
    "change",
    "bundle",
    "supplier_case",
)


@dataclass(frozen=True)
class Rules:
    """The catalogue, as far as incidents need it: gaps by family, sympathies by signature."""

    signatures: Mapping[int, FaultSignature]
    gaps: Mapping[str, timedelta]
    sympathies: Mapping[str, Sequence[str]]

    def family(self, signature: int) -> str:
        """Return the family of a signature; one that has none stands for itself."""
        return family_of(self.signatures[signature])


class Move(NamedTuple):
    """One move of a machine along its lifecycle."""

    at: datetime
    old: str
    new: str


def family_of(signature: FaultSignature) -> str:
    """Return the family of a signature; one that has none stands for itself."""
    return signature.family or signature.name[:60]


def record_incidents(*, now: datetime, longest_seconds: float = LONGEST_RUN_SECONDS) -> int:
    """Put every fault that is in no incident into one; return how many there were.

    Safe to repeat, to race and to leave off in the middle: what to do is read from the faults, one
    worker at a time holds the cursor, and a fault belongs to one incident. In whatever order faults
    arrive, the incidents that are not merged into another are the same. Then incidents that are
    over are closed.
    """
    end = wall_time.monotonic() + longest_seconds
    placed = 0
    while count := _record_batch(now=now):
        placed += count
        if count < BATCH or wall_time.monotonic() > end:
            break
    _close_what_is_over(now=now, longest_seconds=longest_seconds)
    return placed


@transaction.atomic
def _record_batch(*, now: datetime) -> int:
    cursor = _hold_cursor()
    _look_for_passed_over(cursor, now=now)
    rows = list(_waiting(cursor))
    if not rows:
        return 0
    rules = read_rules()
    faults = {
        pk: Seen(pk, (machine, rules.family(signature)), at, rules.signatures[signature].name, part)
        for pk, machine, at, signature, part, _ in rows
    }
    told = {
        pk: (rules.signatures[signature], severity) for pk, _, _, signature, _, severity in rows
    }
    batch = _Batch(rules=rules, told=told, now=now)
    known = _known(faults.values(), rules=rules)
    spans = [_span(incident) for incident in known.values()]
    for one in episodes.join(spans, faults.values(), gaps=rules.gaps):
        batch.take(one, known=known)
    batch.write()
    _attach(batch, rules=rules, now=now)
    cursor.done_to = max(cursor.done_to, max(faults))
    cursor.save(update_fields=["done_to"])
    return len(faults)


def _hold_cursor() -> IncidentCursor:
    IncidentCursor.objects.get_or_create(pk=1)
    return IncidentCursor.objects.select_for_update().get(pk=1)


def _look_for_passed_over(cursor: IncidentCursor, *, now: datetime) -> None:
    """Now and then go back to the oldest fault that is in no incident, should there be one."""
    if cursor.checked_at is not None and timedelta(0) <= now - cursor.checked_at < WHOLE_CHECK:
        return
    before = Fault.objects.filter(pk__lte=cursor.done_to - OVERLAP, membership=None)
    passed_over = before.order_by("pk").values_list("pk", flat=True).first()
    if passed_over is not None:
        cursor.done_to = passed_over - 1
    cursor.checked_at = now
    cursor.save(update_fields=["done_to", "checked_at"])


def _waiting(cursor: IncidentCursor) -> Iterable[tuple[int, int, datetime, int, str, str]]:
    waiting = Fault.objects.filter(pk__gt=cursor.done_to - OVERLAP, membership=None)
    columns = ("pk", "machine_id", "at", "signature_id", "component", "severity")
    return waiting.annotate(at=HAPPENED_AT).order_by("pk").values_list(*columns)[:BATCH]


def read_rules() -> Rules:
    """Read the catalogue. The gap of a family is the widest that one of its signatures has."""
    signatures = {row.pk: row for row in FaultSignature.objects.all()}
    gaps: dict[str, timedelta] = {}
    for row in signatures.values():
        gap = timedelta(minutes=row.gap_minutes)
        gaps[family_of(row)] = max(gaps.get(family_of(row), gap), gap)
    sympathies = {row.name: row.sympathetic_to for row in signatures.values() if row.sympathetic_to}
    return Rules(signatures, gaps, sympathies)


def _known(faults: Collection[Seen], *, rules: Rules) -> dict[int, Incident]:
    """Return the incidents that a fault might belong to, by key."""
    widest = max(rules.gaps[one.series[1]] for one in faults)
    # Held until the end of the batch: what people say of a merged incident is carried over.
    incidents = (
        Incident.objects.select_for_update(of=("self",))
        .filter(
            merged_into=None,
            machine_id__in={one.series[0] for one in faults},
            family__in={one.series[1] for one in faults},
            last_fault_at__gte=min(one.at for one in faults) - widest,
            opened_at__lte=max(one.at for one in faults) + widest,
        )
        .select_related("signature")
    )
    return {incident.pk: incident for incident in incidents}


def _span(incident: Incident) -> Span:
    series = (incident.machine_id, incident.family)
    return Span(incident.pk, series, incident.opened_at, incident.last_fault_at)


# --- one batch -----------------------------------------------------------------------------------


@dataclass
class _Batch:
    """What one batch of faults does to incidents; written at its end, in a few statements."""

    rules: Rules
    told: Mapping[int, tuple[FaultSignature, str]]
    now: datetime
    opened: list[tuple[Incident, tuple[Seen, ...]]] = field(default_factory=list)
    grown: list[tuple[Incident, tuple[Seen, ...]]] = field(default_factory=list)
    merged: list[Incident] = field(default_factory=list)
    events: list[IncidentEvent] = field(default_factory=list)

    def take(self, one: Joined, *, known: Mapping[int, Incident]) -> None:
        """Take an incident with its new faults: opened, grown, or made one out of several."""
        old = [known[span.key] for span in one.spans]
        if not old:
            self.opened.append((self._open(one), one.faults))
            return
        survivor, *others = sorted(old, key=lambda each: (each.opened_at, each.pk))
        for other in others:
            self._merge(other, into=survivor)
        self._grow(survivor, one)
        self.grown.append((survivor, one.faults))

    def _open(self, one: Joined) -> Incident:
        machine, family = one.series
        first = min(one.faults, key=_first_of_all)
        return Incident(
            machine_id=machine,
            family=family,
            signature=self.told[first.key][0],
            component=first.component,
            severity=max((self.told[each.key][1] for each in one.faults), key=_SEVERITIES.index),
            kind=max((self.told[each.key][0].kind for each in one.faults), key=_KINDS.index),
            opened_at=one.first,
            last_fault_at=one.last,
            fault_count=len(one.faults),
            detector=episodes.VERSION,
        )

    def _grow(self, incident: Incident, one: Joined) -> None:
        """Make the row say what all its faults say; a closed one that goes on is open again."""
        new = self._open(one)
        if _is_earlier(new, than=incident):
            incident.signature, incident.component = new.signature, new.component
        incident.severity = max(incident.severity, new.severity, key=_SEVERITIES.index)
        incident.kind = max(incident.kind, new.kind, key=_KINDS.index)
        incident.fault_count += new.fault_count
        goes_on = one.last > incident.last_fault_at
        incident.opened_at, incident.last_fault_at = one.first, one.last
        if incident.closed_at is not None and goes_on:
            incident.closed_at = None
            said = f"its last fault is now of {one.last.isoformat(timespec='seconds')}"
            self._say(incident, IncidentEvent.Kind.REOPENED, said)

    def _merge(self, other: Incident, *, into: Incident) -> None:
        """Make an incident part of an earlier one, with what people said of it."""
        other.merged_into = into
        other.parent = None
        into.fault_count += other.fault_count
        into.severity = max(into.severity, other.severity, key=_SEVERITIES.index)
        into.kind = max(into.kind, other.kind, key=_KINDS.index)
        if into.closed_at is not None and other.closed_at is None:
            into.closed_at = None
        other.closed_at = other.closed_at or max(self.now, other.opened_at)
        for name in _SAID:
            if getattr(into, name) in (None, "", Incident.Cause.UNKNOWN):
                setattr(into, name, getattr(other, name))
        self.merged.append(other)
        self._say(other, IncidentEvent.Kind.MERGED, f"a late fault made it part of {into.pk}")
        self._say(into, IncidentEvent.Kind.MERGED, f"a late fault joined {other.pk} to it")

    def _say(self, incident: Incident, kind: str, said: str) -> None:
        self.events.append(make_event(incident, kind, said=said, now=self.now))

    def write(self) -> None:
        """Write rows, memberships and events."""
        Incident.objects.bulk_create([incident for incident, _ in self.opened])
        for incident, _ in self.opened:
            self._say(incident, IncidentEvent.Kind.OPENED, f"{incident.signature.name}, by faults")
        _overwrite([*(incident for incident, _ in self.grown), *self.merged], also=_SAID)
        # What was merged into the merged is part of the survivor now.
        for other in self.merged:
            Incident.objects.filter(merged_into=other.pk).update(merged_into=other.merged_into)
        pairs = [
            (incident.pk, fault.key)
            for incident, faults in (*self.opened, *self.grown)
            for fault in faults
        ]
        insert_new(IncidentFault, ["incident_id", "fault_id"], pairs)
        IncidentEvent.objects.bulk_create(self.events)

    def touched(self) -> list[Incident]:
        """Return the incidents as they stand now, without those that are part of another one."""
        return [incident for incident, _ in (*self.opened, *self.grown)]


def _first_of_all(fault: Seen) -> tuple[datetime, str, str]:
    return fault.at, fault.signature, fault.component


def _is_earlier(new: Incident, *, than: Incident) -> bool:
    """Tell whether the first new fault comes before what was the first; ties go by name."""
    return (new.opened_at, new.signature.name, new.component) < (
        than.opened_at,
        than.signature.name,
        than.component,
    )


def _overwrite(incidents: Sequence[Incident], *, also: Sequence[str] = ()) -> None:
    """Update whole rows in few statements; the cursor is held, so nobody else writes these."""
    if incidents:
        Incident.objects.bulk_create(
            incidents,
            update_conflicts=True,
            unique_fields=["id"],
            update_fields=[*_FROM_FAULTS, *also],
        )


def make_event(
    incident: Incident,
    kind: str,
    *,
    said: str,
    now: datetime,
    actor: str = ACTOR,
) -> IncidentEvent:
    """Return an event of an incident, not yet written."""
    return IncidentEvent(
        incident=incident,
        kind=kind,
        said=said[:1000],
        at=now,
        actor=actor,
        recorded_at=timezone.now(),
    )


# --- what only accompanies something else --------------------------------------------------------


def _attach(batch: _Batch, *, rules: Rules, now: datetime) -> None:
    """Find anew what the incidents near those of this batch only accompany."""
    near = _near(batch.touched())
    signatures = _signatures_of(near)
    if not any(name in rules.sympathies for names in signatures.values() for name in names):
        return
    shapes = [
        Episode(
            incident.pk,
            incident.machine_id,
            incident.opened_at,
            incident.last_fault_at,
            frozenset(signatures[incident.pk]),
        )
        for incident in near.values()
    ]
    changed = []
    for key, parent in episodes.parents(shapes, sympathies=rules.sympathies).items():
        incident = near[key]
        if incident.parent_id != parent:
            incident.parent_id = parent
            changed.append(incident)
    _overwrite(changed)
    IncidentEvent.objects.bulk_create(
        make_event(incident, IncidentEvent.Kind.ATTACHED, said=_attached(incident), now=now)
        for incident in changed
    )


def _attached(incident: Incident) -> str:
    if incident.parent_id is None:
        return "it stands for itself"
    return f"it only accompanies {incident.parent_id}"


def _near(touched: Sequence[Incident]) -> dict[int, Incident]:
    if not touched:
        return {}
    incidents = Incident.objects.filter(
        merged_into=None,
        machine_id__in={incident.machine_id for incident in touched},
        last_fault_at__gte=min(one.opened_at for one in touched) - episodes.SYMPATHY,
        opened_at__lte=max(one.last_fault_at for one in touched) + episodes.SYMPATHY,
    )
    return {incident.pk: incident for incident in incidents}


def _signatures_of(incidents: Collection[int]) -> dict[int, set[str]]:
    rows = (
        IncidentFault.objects.filter(incident__in=incidents)
        | IncidentFault.objects.filter(incident__merged_into__in=incidents)
    ).values_list("incident_id", "incident__merged_into_id", "fault__signature__name")
    found: dict[int, set[str]] = defaultdict(set)
    for own, survivor, name in rows.distinct():
        found[survivor or own].add(name)
    return found


# --- the end -------------------------------------------------------------------------------------


def _close_what_is_over(*, now: datetime, longest_seconds: float) -> int:
    """Close incidents that are over, with the time at which they were; return how many."""
    end = wall_time.monotonic() + longest_seconds
    rules = read_rules()
    keys = list(_maybe_over(rules, now=now).values_list("pk", flat=True))
    closed = 0
    for some in batches(keys, size=BATCH):
        closed += _close(some, rules=rules, now=now)
        if wall_time.monotonic() > end:
            break  # what is closed is not looked at again, so the next run gets further
    return closed


def _maybe_over(rules: Rules, *, now: datetime) -> QuerySet[Incident]:
    """Return the open incidents but those that wait for a machine that is out, or a quiet day."""
    soonest = now - min(rules.gaps.values(), default=DEFAULT_GAP)
    came = StateChange.objects.filter(
        machine=OuterRef("machine"), at__gt=OuterRef("last_fault_at"), new_state__in=_ENDS
    )
    is_quiet = Q(machine__state=State.IN_SERVICE, last_fault_at__lte=now - QUIET)
    do_count = Q(kind__in=COUNTED_KINDS, severity__in=COUNTED_SEVERITIES)
    still = Incident.objects.filter(closed_at=None, last_fault_at__lte=soonest)
    over = ~do_count | is_quiet | Q(machine__state=State.RETIRED) | Exists(came)
    return still.filter(over).order_by("pk")


@transaction.atomic
def _close(keys: Sequence[int], *, rules: Rules, now: datetime) -> int:
    _hold_cursor()
    over = []
    still = Incident.objects.filter(pk__in=keys, closed_at=None).select_related("machine")
    moves = _moves_after(still)
    for incident in still:
        gap = rules.gaps.get(incident.family, DEFAULT_GAP)
        at, why = ending(incident, gap=gap, moves=moves[incident.machine_id])
        if at is not None and at <= now:
            incident.closed_at = at
            over.append((incident, why))
    _overwrite([incident for incident, _ in over])
    IncidentEvent.objects.bulk_create(
        make_event(incident, IncidentEvent.Kind.CLOSED, said=why, now=now) for incident, why in over
    )
    return len(over)


def _moves_after(incidents: Iterable[Incident]) -> Mapping[int, Sequence[Move]]:
    """Return what became of the machines since the first of the incidents was quiet."""
    found: dict[int, list[Move]] = defaultdict(list)
    quiet_since = {one.machine_id: one.last_fault_at for one in incidents}
    if quiet_since:
        moves = StateChange.objects.filter(
            machine__in=quiet_since, at__gt=min(one.last_fault_at for one in incidents)
        ).order_by("pk")
        told = moves.values_list("machine_id", "at", "old_state", "new_state")
        for machine, at, old, new in told:
            found[machine].append(Move(at, old, new))
    return found


def ending(
    incident: Incident, *, gap: timedelta, moves: Sequence[Move]
) -> tuple[datetime | None, str]:
    """Return when an incident was over, and why; None while it is not.

    What never took a machine out (soft, not counted, minor or less) is over with its gap. All else
    waits for its machine's first return to service, or its end; where nobody took it out, for a
    quiet day. It does not matter when this is asked: what tells is the machine's `moves`, in
    order.
    """
    last, machine = incident.last_fault_at, incident.machine
    minutes = gap.total_seconds() / 60
    if not counts(incident):
        return last + gap, f"no further fault for {minutes:g} minutes"
    later = [move for move in moves if move.at > last]
    for move in later:
        if move.old == State.IN_SERVICE and move.at >= last + QUIET:
            return _quiet(last)
        if move.new in _ENDS:
            return max(last + gap, move.at), _ENDS[State(move.new)]
    state = State(machine.state)
    if state is State.RETIRED:  # before its last fault was told
        return last + gap, _ENDS[state]
    return (None, f"the machine is {state}") if state is not State.IN_SERVICE else _quiet(last)


def _quiet(last: datetime) -> tuple[datetime, str]:
    hours = QUIET.total_seconds() / 3600
    return last + QUIET, f"no further fault for {hours:g} hours; nobody took the machine out"


def counts(incident: Incident) -> bool:
    """Tell whether an incident speaks against its machine: hard or unknown, major or worse."""
    return incident.kind in COUNTED_KINDS and incident.severity in COUNTED_SEVERITIES
