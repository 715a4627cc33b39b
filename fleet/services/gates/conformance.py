"""The checks that the product makes itself: of what the machine answers when it is read back."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, Subquery
from django.utils import timezone

from fleet import intended, selectors
from fleet.adapters import Reading
from fleet.faults import happened_at, open_faults
from fleet.firmware.drift import DISPUTED, Standing, Wanted, drift
from fleet.gate_state import check_states, computed_names
from fleet.lifecycle import State
from fleet.models import (
    Change,
    CheckResult,
    Component,
    FirmwareRecord,
    Gate,
    GateCheck,
    Machine,
)
from fleet.repair import gating
from fleet.repair.gating import UNFINISHED, Computed, Status
from fleet.services.firmware import record_readings
from fleet.services.gates.course import settle
from fleet.services.gates.records import RULE, lock, newer_fault, stray_why

#: Read-backs of settings are records of this kind of "part": setting.power_limit, …
SETTING = "setting."
#: Between two visits to a machine that did not answer, or does not conform yet.
AGAIN = timedelta(minutes=5)
_MOST_NAMED = 8


@dataclass(frozen=True)
class Found:
    """What a computed check came to; no value where it cannot be decided."""

    value: float | None
    note: str = ""


# --- when to read ------------------------------------------------------------


def due_for_reading(*, now: datetime, most: int = 200) -> list[Gate]:
    """Return the gates whose machines have to be read back now, the longest unasked first.

    At their beginning until they conform, and once more when an observation is over.
    """
    newest = CheckResult.objects.filter(gate_check=OuterRef("pk")).order_by("-pk")
    lacking = (
        GateCheck.objects.filter(gate=OuterRef("pk"), rule__has_key="computed")
        .annotate(shown=Subquery(newest.values("is_passed")[:1]))
        .filter(Q(shown=False) | Q(shown=None))
    )
    opened = Q(status=Status.OPEN)
    observed = Q(status=Status.OBSERVING, observe_until__lte=now)
    unread = Q(read_at=None) | Q(status=Status.OBSERVING, read_at__lt=F("observe_until"))
    due = Gate.objects.filter(
        Q(asked_at=None) | Q(asked_at__lte=now - AGAIN),
        opened | observed,
        unread | Exists(lacking),
    )
    rows = due.select_related("machine", "plan")
    return list(rows.order_by(F("asked_at").asc(nulls_first=True), "pk")[:most])


def mark_asked(gate: Gate, *, now: datetime) -> None:
    """Keep that the machine was asked; one that does not answer is asked again later."""
    Gate.objects.filter(pk=gate.pk).update(asked_at=now)


@transaction.atomic
def read_back(gate: Gate, readings: Sequence[Reading], *, now: datetime) -> Gate:
    """Take over what the machine answered, and judge the computed checks by it.

    Nothing read says nothing: the checks stay as they are. Safe to repeat: a result is appended
    only where it differs from the one before.
    """
    gate = lock(gate)
    mark_asked(gate, now=now)
    gate.asked_at = now
    if not readings or gate.status not in UNFINISHED or gate.status == Status.AWAITING_REVIEW:
        return gate
    record_readings(gate.machine, readings, now=now, evidence={"gate": gate.pk})
    Gate.objects.filter(pk=gate.pk).update(read_at=now)
    gate.read_at = now
    boots = {reading.boot_id for reading in readings if reading.boot_id}
    record_computed(gate, compute(gate, readings, boots=boots, now=now), now=now)
    if newer_fault(gate) is None and not stray_why(gate):
        settle(gate, now=now)
    return gate


def record_computed(gate: Gate, found: Mapping[Computed, Found], *, now: datetime) -> None:
    """Append what the computed checks came to, where it is not what they came to before."""
    newest = {one.check.pk: one.result for one in check_states(gate)}
    fresh = []
    for name, check in computed_names(gate.checks.all()).items():
        if name in found and (result := computed_result(check, found[name], now=now)):
            last = newest.get(check.pk)
            if last is None or (last.value, last.note) != (result.value, result.note):
                fresh.append(result)
    CheckResult.objects.bulk_create(fresh)


def computed_result(check: GateCheck, found: Found, *, now: datetime) -> CheckResult:
    """Make the row of what a computed check came to; not stored yet."""
    judged = gating.judge(found.value, rule=check.rule, unit=check.unit)
    note = found.note if judged.is_passed or found.note else judged.note
    return CheckResult(
        gate_check=check,
        is_passed=judged.is_passed,
        value=found.value,
        unit=check.unit,
        threshold=judged.threshold,
        note=note[:1000],
        actor=RULE,
        at=now,
        recorded_at=timezone.now(),
    )


# --- what was found ----------------------------------------------------------


def compute(
    gate: Gate, readings: Sequence[Reading], *, boots: Collection[str], now: datetime
) -> dict[Computed, Found]:
    """Judge versions, parts, settings, faults and boots by records, read back at this moment."""
    versions = selectors.versions_now([gate.machine_id])[gate.machine_id]
    since = left_service_at(gate)
    return {
        Computed.VERSIONS: _versions(gate, versions, since=since, now=now),
        Computed.PARTS: _parts(gate, readings),
        Computed.SETTINGS: _settings(gate.machine, versions, since=since),
        Computed.FAULTS: _faults(gate),
        Computed.BOOTS: _boots(gate.machine, boots, since=since),
    }


def left_service_at(gate: Gate) -> datetime | None:
    """Return when the machine last left service before the gate; None if it has never been in."""
    left = gate.machine.state_changes.filter(
        old_state=State.IN_SERVICE, at__lte=gate.opened_at
    ).order_by("-at", "-pk")
    return left.values_list("at", flat=True).first()


def _versions(
    gate: Gate, versions: Mapping[str, str], *, since: datetime | None, now: datetime
) -> Found:
    """Count the parts that do not run what is intended; where nothing is, what ran before."""
    if gate.bundle is None:
        return _as_before(gate, versions, since=since)
    images = gate.bundle.places.select_related("image").order_by("position")
    wanted = [Wanted(one.image.kind, one.image.version, one.image.scheme) for one in images]
    reasons = [reason for one in wanted for reason in _astray(versions, one)]
    kinds = {one.kind for one in wanted}
    reasons += _uncommitted(gate.machine, versions, kinds)
    right = [
        f"{part} {version}" for part, version in versions.items() if part.split("/")[0] in kinds
    ]
    if not reasons:
        return Found(0.0, f"{gate.bundle}: {', '.join(right)}")
    stands = intended.standing(gate.machine, gate.bundle, now=now)
    if stands.standing is Standing.INCOMPATIBLE:
        reasons = [f"incompatible: {stands.reason}", *reasons]
    return Found(float(len(reasons)), "; ".join(reasons[:_MOST_NAMED]))


def _astray(versions: Mapping[str, str], wanted: Wanted) -> Iterator[str]:
    """Yield for each part of the kind what is not as wanted."""
    own = {
        part: version
        for part, version in versions.items()
        if part == wanted.kind or part.startswith(f"{wanted.kind}/")
    }
    for one in [{part: version} for part, version in own.items()] or [{}]:
        found = drift(one, wanted=[wanted])
        if found.standing is not Standing.COMPLIANT:
            yield found.reason


def _uncommitted(
    machine: Machine, versions: Mapping[str, str], kinds: Collection[str]
) -> list[str]:
    """Name the parts that run a version which the next boot may take back."""
    stage = FirmwareRecord.Stage.COMMITTED
    committed = selectors.versions_now([machine.pk], stage=stage, kinds=kinds)[machine.pk]
    return [
        f"{part} runs {versions[part]}, committed is {held}"
        for part, held in sorted(committed.items())
        if part in versions and held != versions[part]
    ]


def _as_before(gate: Gate, versions: Mapping[str, str], *, since: datetime | None) -> Found:
    """Compare with what the machine ran when it last worked."""
    if since is None:
        return Found(None, f"{gate.bundle_why}, and it never was in service: nothing to compare")
    before = selectors.versions_as_of(gate.machine, at=since)
    parts = [part for part in before if not part.startswith(SETTING)]
    if not parts:
        return Found(None, f"{gate.bundle_why}, and it is not known what it ran before")
    wrong = [
        f"{part} runs {versions.get(part) or 'nothing known'}, {before[part]} ran before"
        for part in sorted(parts)
        if versions.get(part, "") != before[part] or before[part].startswith(DISPUTED)
    ]
    same = f"as on {since:%Y-%m-%d %H:%M} UTC: {gate.bundle_why}"
    return Found(float(len(wrong)), "; ".join(wrong[:_MOST_NAMED]) or same)


def _parts(gate: Gate, readings: Sequence[Reading]) -> Found:
    """Count recorded parts that did not answer, and serials that cannot be right."""
    machine = gate.machine
    told = {(one.kind, one.slot) for one in readings if one.version}
    kinds = {kind for kind, _ in told}
    components = list(machine.components.all())
    wrong = [
        f"{one.kind} {one.slot}".strip() + " did not answer"
        for one in components
        if (one.kind, one.slot) not in told and not (one.slot == "" and one.kind in kinds)
    ]
    wrong += _wrong_serials(gate, components)
    return Found(float(len(wrong)), "; ".join(wrong[:_MOST_NAMED]) or f"{len(told)} parts answered")


def _wrong_serials(gate: Gate, components: Sequence[Component]) -> list[str]:
    serials = {one.serial for one in components if one.serial}
    elsewhere = Component.objects.filter(serial__in=serials).exclude(machine=gate.machine)
    wrong = [
        f"serial {one.serial} is also recorded in {one.machine}"
        for one in elsewhere.select_related("machine")
    ]
    held = {(one.kind, one.slot): one.serial for one in components}
    swaps = gate.repair.swaps.order_by("pk") if gate.repair else []
    put_in = {(one.kind, one.slot): one.new_serial for one in swaps}
    wrong += [
        f"{kind} {slot}".strip() + f" is recorded as {held.get((kind, slot)) or 'empty'}, the "
        f"repair put in {serial}"
        for (kind, slot), serial in put_in.items()
        if serial and held.get((kind, slot)) != serial
    ]
    return wrong


def reads_settings(machine: Machine) -> bool:
    """Tell whether settings of this machine have ever been read back."""
    return machine.firmware.filter(kind__startswith=SETTING).exists()


def _settings(machine: Machine, versions: Mapping[str, str], *, since: datetime | None) -> Found:
    """Count settings that differ from when the machine last worked, but for recorded changes."""
    if since is None:
        return Found(0.0, "it never was in service: nothing to compare")
    before = selectors.versions_as_of(machine, at=since)
    wanted = {
        (change.what, change.new)
        for change in Change.objects.filter(
            touched__machine=machine, kind=Change.Kind.SETTING, at__gte=since
        )
    }
    settings = {part: held for part, held in before.items() if part.startswith(SETTING)}
    wrong = [
        f"{part.removeprefix(SETTING)} is {versions.get(part) or 'not known'}, it was {held}"
        for part, held in sorted(settings.items())
        if versions.get(part, "") != held
        and (part.removeprefix(SETTING), versions.get(part, "")) not in wanted
    ]
    same = f"{len(settings)} settings as on {since:%Y-%m-%d %H:%M} UTC"
    return Found(float(len(wrong)), "; ".join(wrong[:_MOST_NAMED]) or same)


def _faults(gate: Gate) -> Found:
    newer = open_faults(gate.machine, since=gate.opened_at)
    first = newer.first()
    said = f"{first.signature} at {happened_at(first):%Y-%m-%d %H:%M} UTC" if first else ""
    opened = f"none since {gate.opened_at:%Y-%m-%d %H:%M} UTC"
    return Found(float(newer.count()), said or opened)


def _boots(machine: Machine, boots: Collection[str], *, since: datetime | None) -> Found:
    """Count boot ids that were not seen while the machine worked."""
    if not boots:
        return Found(None, "no boot id was read")
    known = _boot_before(machine, since)
    if not known:
        return Found(None, "it is not known which boot it worked under before")
    return Found(
        float(len(set(boots) - {known})), f"boot {known} before, now {', '.join(sorted(boots))}"
    )


def _boot_before(machine: Machine, since: datetime | None) -> str:
    if since is None:
        return ""
    seen = machine.observations.filter(end__lte=since).exclude(boot_id="").order_by("-end")
    if boot := seen.values_list("boot_id", flat=True).first():
        return boot
    records = machine.firmware.filter(since__lte=since, stage=FirmwareRecord.Stage.ACTIVE)
    evidence = records.order_by("-since", "-pk").values_list("evidence", flat=True)[:20]
    return next((one["boot_id"] for one in evidence if one.get("boot_id")), "")
