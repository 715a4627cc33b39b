"""Register platforms and machines."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Model
from django.utils import timezone

from fleet import identity, lifecycle, ownership, parts
from fleet.bulk import batches, insert_new
from fleet.errors import RegistrationRefused
from fleet.lifecycle import State, Trigger
from fleet.models import Component, FirmwareRecord, Machine, Platform, StateChange
from fleet.services.identity import hold_claims, register_claims
from fleet.services.lifecycle import state_fields

TEXT_COLUMNS = (
    "serial",
    *Machine.PLACES,
    "job",
    "workload",
    "scheduler_node",
    "bmc_address",
    "credential",
)


def _limits(model: type[Model], names: Collection[str]) -> dict[str, int]:
    """Return how long the texts of some columns may be."""
    fields = [field for field in model._meta.concrete_fields if field.name in names]
    return {field.name: field.max_length or 0 for field in fields}


TEXT_LIMITS = _limits(Machine, TEXT_COLUMNS)
COLUMNS = frozenset({"name", "platform", "labels", "components", *TEXT_COLUMNS})
#: What a row says of a component, with how long it may be.
COMPONENT_COLUMNS: Mapping[str, int] = {
    **_limits(Component, ("kind", "slot", "model", "serial")),
    **_limits(FirmwareRecord, ("version",)),
}
LOOK_UP = 500


@dataclass(frozen=True)
class _Part:
    """One component of a row, with the version that an import says it runs."""

    kind: str
    slot: str
    model: str
    serial: str
    version: str


def register_platform(name: str, *, vendor: str = "", accelerators: int = 8) -> Platform:
    """Return the platform of that name, made with these facts if there is none yet."""
    platform, _ = Platform.objects.get_or_create(
        name=name, defaults={"vendor": vendor, "accelerators": accelerators}
    )
    return platform


@transaction.atomic
def register_machines(
    rows: Iterable[Mapping[str, Any]], *, now: datetime, vouched_by: str = ""
) -> list[Machine]:
    """Register machines with their components and versions; all of them or none.

    A new machine waits for validation. With `vouched_by` it goes into service at once, and its
    record says who vouched.

    Parameters
    ----------
    rows : iterable of mappings
        `name` and `platform` (a registered platform's name), any of `TEXT_COLUMNS`, `labels`
        (text to text), `components` (mappings of `kind`, `slot`, `model`, `serial`, `version`).

    Raises
    ------
    RegistrationRefused
        If any row is wrong; it lists every reason.
    """
    taken = list(rows)
    hold_claims()
    platforms = {platform.name: platform for platform in Platform.objects.all()}
    reasons = [*_wrong_rows(taken, platforms), *_clashes(taken), *_claimed(taken)]
    reasons += _placed(taken)
    if reasons:
        raise RegistrationRefused(reasons)
    find = ownership.team_finder()
    new = [_machine(row, platforms, now=now, is_vouched=bool(vouched_by)) for row in taken]
    for machine in new:
        machine.owner_team_id = find(machine.owner_role, machine.site, machine.pool)
    machines = Machine.objects.bulk_create(new, batch_size=500)
    _record_arrival(machines, now=now, vouched_by=vouched_by)
    _add_parts(machines, [_parts(row) for row in taken], now=now)
    register_claims(machines, actor=vouched_by or "import", now=now)
    return machines


def _wrong_rows(rows: Sequence[Mapping[str, Any]], platforms: Mapping[str, Platform]) -> list[str]:
    return [
        f"row {number}: {reason}"
        for number, row in enumerate(rows, start=1)
        for reason in _wrong(row, platforms)
    ]


def _wrong(row: Mapping[str, Any], platforms: Mapping[str, Platform]) -> list[str]:
    """List what is wrong with one row by itself."""
    reasons = [f"unknown column {name!r}" for name in sorted(set(row) - COLUMNS)]
    if not isinstance(row.get("name"), str) or not row["name"].strip():
        reasons.append(f"name is {row.get('name')!r}, a text is needed")
    if row.get("platform") not in platforms:
        known = ", ".join(sorted(platforms)) or "none"
        reasons.append(f"platform {row.get('platform')!r} is not registered; known: {known}")
    for name in TEXT_COLUMNS:
        limit = TEXT_LIMITS[name]
        if not isinstance(row.get(name, ""), str) or len(row.get(name, "")) > limit:
            reasons.append(f"{name} is {row[name]!r}, a text of at most {limit} is needed")
    labels = row.get("labels", {})
    if not isinstance(labels, Mapping) or not all(
        isinstance(text, str) for pair in labels.items() for text in pair
    ):
        reasons.append(f"labels are {labels!r}, a mapping of text to text is needed")
    return reasons + _wrong_parts(row.get("components", ()))


def _wrong_parts(components: Sequence[Mapping[str, Any]]) -> list[str]:
    reasons = []
    seen = set()
    for part in components:
        if not isinstance(part, Mapping):
            reasons.append(f"component {part!r} is no mapping of {', '.join(COMPONENT_COLUMNS)}")
            continue
        extra = sorted(set(part) - COMPONENT_COLUMNS.keys())
        reasons += [f"unknown component column {name!r}" for name in extra]
        reasons += [
            f"component {name} is {part[name]!r}, a text of at most {limit} is needed"
            for name, limit in COMPONENT_COLUMNS.items()
            if not isinstance(part.get(name, ""), str) or len(part.get(name, "")) > limit
        ]
        if not part.get("kind"):
            reasons.append(f"component {dict(part)!r} has no kind")
        place = (repr(part.get("kind")), repr(part.get("slot", "")))
        if place in seen:
            reasons.append(f"component {place[0]} stands twice in slot {place[1]}")
        seen.add(place)
    return reasons


def _clashes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [str(row.get("name")) for row in rows]
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    known = [
        name
        for some in batches(names, size=LOOK_UP)
        for name in Machine.objects.filter(name__in=some).values_list("name", flat=True)
    ]
    return [f"machine {name!r} is named twice" for name in twice] + [
        f"machine {name!r} is registered already" for name in sorted(known)
    ]


def _claimed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List serials and BMC addresses that two machines would claim at once."""
    told = [
        (kind, identity.normal(identity.Claim(kind, text)).value)
        for row in rows
        for kind in ("serial", "bmc_address")
        if isinstance(text := row.get(kind), str) and text.strip()
        if len(text) <= TEXT_LIMITS[kind]
    ]
    twice = sorted(key for key, times in Counter(told).items() if times > 1)
    return [f"{kind} {value!r} is named twice" for kind, value in twice] + [
        f"{kind} {value!r} is claimed by {holder} already"
        for (kind, value), holder in sorted(parts.taken(told).items())
    ]


def _placed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List parts that would sit in two places at once."""
    told = [
        (part.get("kind"), serial)
        for row in rows
        for part in row.get("components", ())
        if isinstance(part, Mapping) and isinstance(serial := part.get("serial"), str) and serial
    ]
    twice = sorted(f"{kind} {serial}" for (kind, serial), n in Counter(told).items() if n > 1)
    held = Component.objects.exclude(machine__state=State.RETIRED).select_related("machine")
    wanted = set(told)
    sitting = [
        one
        for some in batches(sorted({serial for _, serial in told}), size=LOOK_UP)
        for one in held.filter(serial__in=some).order_by("kind", "serial")
        if (one.kind, one.serial) in wanted
    ]
    return [f"{part} is named twice; a part sits in one place" for part in twice] + [
        f"{one.kind} {one.serial} sits in {identity.part_name(one.kind, one.slot)} of "
        f"{one.machine.name}; take it out there first"
        for one in sitting
    ]


def _machine(
    row: Mapping[str, Any], platforms: Mapping[str, Platform], *, now: datetime, is_vouched: bool
) -> Machine:
    state = State.IN_SERVICE if is_vouched else State.AWAITING_VALIDATION
    fields = state_fields(state, now=now)
    fields["may_take_work"] = lifecycle.may_take_work(state, standing_cordons=0)
    return Machine(
        name=row["name"],
        platform=platforms[row["platform"]],
        labels=dict(row.get("labels", {})),
        registered_at=now,
        **{name: row.get(name, "") for name in TEXT_COLUMNS},
        **fields,
    )


def _record_arrival(machines: Sequence[Machine], *, now: datetime, vouched_by: str) -> None:
    trigger = Trigger.VOUCH if vouched_by else Trigger.QUEUE_VALIDATION
    state = lifecycle.next_state(State.REGISTERED, trigger)
    gate = f"imported: vouched for by {vouched_by}" if vouched_by else ""
    columns = (
        "machine_id",
        "old_state",
        "new_state",
        "trigger",
        "at",
        "recorded_at",
        "actor",
        "reason",
        "gate",
    )
    fixed = (State.REGISTERED.value, state.value, trigger.value, now, timezone.now())
    told = (vouched_by or "import", "registered", gate)
    insert_new(StateChange, columns, [(machine.pk, *fixed, *told) for machine in machines])


def _parts(row: Mapping[str, Any]) -> list[_Part]:
    names = ("kind", "slot", "model", "serial", "version")
    return [
        _Part(**{name: str(part.get(name, "")) for name in names})
        for part in row.get("components", ())
    ]


def _add_parts(
    machines: Sequence[Machine], parts: Sequence[Sequence[_Part]], *, now: datetime
) -> None:
    pairs = [
        (machine.pk, part) for machine, own in zip(machines, parts, strict=True) for part in own
    ]
    insert_new(
        Component,
        ("machine_id", "kind", "slot", "model", "serial"),
        [(pk, part.kind, part.slot, part.model, part.serial) for pk, part in pairs],
    )
    columns = (
        "machine_id",
        "kind",
        "slot",
        "version",
        "stage",
        "since",
        "source",
        "is_disputed",
        "evidence",
        "recorded_at",
    )
    fixed: tuple[Any, ...] = (
        FirmwareRecord.Stage.ACTIVE.value,
        now,
        FirmwareRecord.Source.IMPORT.value,
        False,
        {},
        timezone.now(),
    )
    versions = [
        (pk, part.kind, part.slot, part.version, *fixed) for pk, part in pairs if part.version
    ]
    insert_new(FirmwareRecord, columns, versions)
