"""Swap parts of a machine: what moves is shown first, then done in one step and written down."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from fleet import adapters, identity, parts
from fleet.adapters import Arm
from fleet.errors import ClaimRefused, SwapRefused
from fleet.identity import Claim, Swap
from fleet.lifecycle import State
from fleet.models import Change, Component, FirmwareRecord, Machine, MachineClaim, PartSwap, Repair
from fleet.services import identity as claims
from fleet.services.changes import record_change

#: A machine that works, or is being updated or checked, is not opened.
CLOSED = frozenset(
    {
        State.IN_SERVICE,
        State.DRAINING,
        State.UPDATING,
        State.VERIFYING,
        State.AWAITING_VALIDATION,
        State.VALIDATING,
        State.OBSERVING,
        State.AWAITING_RELEASE,
        State.RETIRED,
    }
)
_LIMITS = {"kind": 40, "slot": 40, "new_serial": 100, "new_model": 100, "old_serial": 100}


@dataclass(frozen=True)
class PartMove:
    """One slot: which part leaves, which comes, and whose faults go along.

    `leaving_faults` follow the part that leaves and stay with the slot; `coming_faults` are what
    the new part had where it was before.
    """

    kind: str
    slot: str
    old_serial: str
    old_model: str
    new_serial: str
    new_model: str
    leaving_faults: int
    coming_faults: int
    came_from: str
    unknown_versions: tuple[str, ...]

    @property
    def part(self) -> str:
        return identity.part_name(self.kind, self.slot)


@dataclass(frozen=True)
class ClaimMove:
    """One claim that becomes another; an empty new value ends it."""

    kind: str
    slot: str
    old: str
    new: str


@dataclass(frozen=True)
class SwapPreview:
    """What a swap would move; with reasons it would be refused."""

    machine: str
    moves: tuple[PartMove, ...]
    claims: tuple[ClaimMove, ...]
    staying: tuple[Claim, ...]
    slot_faults: int
    arms: tuple[Arm, ...]
    notes: tuple[str, ...]
    reasons: tuple[str, ...]


def preview_swap(machine: Machine, swaps: Sequence[Swap], *, now: datetime) -> SwapPreview:
    """Return what these swaps would move, and why they would be refused; nothing is changed.

    Raises
    ------
    SwapRefused
        If there are more of them than one machine has parts.
    """
    if len(swaps) > identity.MOST_SWAPS:
        said = f"{len(swaps)} parts at once; accepted: at most {identity.MOST_SWAPS}"
        raise SwapRefused([said])
    reasons = [*_malformed(swaps)]
    inventory = {(one.kind, one.slot): one for one in machine.components.all()}
    standing = parts.standing_claims(machine, at=now)
    changed: Mapping[tuple[str, str], tuple[str, str]] = {}
    try:
        changed = identity.moves(swaps, standing)
    except ClaimRefused as error:
        reasons += error.reasons
    moves = tuple(_move(machine, swap, inventory, now=now) for swap in swaps)
    if machine.state in CLOSED:
        reasons.append(f"{machine.name} is {machine.state}; take it out for repair first")
    reasons += _slots(machine, swaps, inventory)
    reasons += _taken(machine, changed)
    reader = adapters.open_arms()
    return SwapPreview(
        machine=machine.name,
        moves=moves,
        claims=tuple(ClaimMove(*key, *told) for key, told in sorted(changed.items())),
        staying=tuple(
            Claim(kind, value, slot)
            for (kind, slot), value in sorted(standing.items())
            if value and (kind, slot) not in changed
        ),
        slot_faults=machine.faults.count(),
        arms=tuple(reader.of(machine.pk)) if reader else (),
        notes=tuple(_notes(moves, inventory)),
        reasons=tuple(reasons),
    )


@transaction.atomic
def swap_parts(
    machine: Machine,
    swaps: Sequence[Swap],
    *,
    repair: Repair | None,
    actor: str,
    now: datetime,
) -> list[PartSwap]:
    """Swap parts as `preview_swap` showed it; all of them or none.

    Per part: the inventory, the record of the swap, the claims that go with it, the end of the
    versions that were known of the old part, and a change that open comparisons see.

    Raises
    ------
    SwapRefused
        With everything that is wrong at once: the machine is at work, the part that sits there
        is another, the new one sits elsewhere, a claim is another machine's.
    """
    locked = Machine.objects.select_for_update().get(pk=machine.pk)
    machine.state = locked.state
    claims.hold_claims()
    seen = preview_swap(machine, swaps, now=now)
    if seen.reasons:
        raise SwapRefused(list(seen.reasons))
    made = [_swap(machine, move, repair=repair, actor=actor, now=now) for move in seen.moves]
    for swap, row in zip(swaps, made, strict=True):
        own = _own(swap, seen.claims)
        claims.write(
            machine,
            [Claim(kind, new, slot) for (kind, slot), new in own.items()],
            source=MachineClaim.Source.SWAP,
            actor=actor,
            now=now,
            swap=row,
        )
    return made


def _own(swap: Swap, moved: Iterable[ClaimMove]) -> dict[tuple[str, str], str]:
    """Return the claims that change because of this one of several swaps."""
    told = {(one.kind, one.slot) for one in swap.claims}
    return {
        (one.kind, one.slot): one.new
        for one in moved
        if (one.kind, one.slot) in told or identity.goes_with(swap, one.kind, one.slot)
    }


def _swap(
    machine: Machine, move: PartMove, *, repair: Repair | None, actor: str, now: datetime
) -> PartSwap:
    row = PartSwap.objects.create(
        machine=machine,
        repair=repair,
        kind=move.kind,
        slot=move.slot,
        old_serial=move.old_serial,
        new_serial=move.new_serial,
        old_model=move.old_model,
        new_model=move.new_model,
        at=now,
        actor=actor,
        recorded_at=timezone.now(),
    )
    Component.objects.update_or_create(
        machine=machine,
        kind=move.kind,
        slot=move.slot,
        defaults={"serial": move.new_serial, "model": move.new_model},
    )
    _forget_versions(machine, move, row, now=now)
    record_change(
        source="swap",
        key=f"{machine.name}/{move.part}/{row.pk}"[:200],
        kind=Change.Kind.PART,
        what=move.kind,
        machines=[machine.name],
        old=move.old_serial,
        new=move.new_serial,
        note=f"{move.part} of {machine.name}, by {actor}"[:500],
        at=now,
        now=now,
    )
    return row


def _forget_versions(machine: Machine, move: PartMove, row: PartSwap, *, now: datetime) -> None:
    """Say that from now on nobody knows what the slot runs: what was known was the old part's."""
    for kind, slot, stage in _known_versions(machine, move.kind, move.slot):
        FirmwareRecord.objects.get_or_create(
            machine=machine,
            kind=kind,
            slot=slot,
            stage=stage,
            since=now,
            source=FirmwareRecord.Source.REPAIR,
            defaults={"version": "", "evidence": {"swap": row.pk}, "recorded_at": timezone.now()},
        )


def _known_versions(machine: Machine, kind: str, slot: str) -> list[tuple[str, str, str]]:
    """Return the parts and stages whose version is known and goes with this part."""
    rows = FirmwareRecord.objects.filter(machine=machine)
    if kind in identity.BOARDS:
        rows = rows.filter(kind__in=identity.ON_BOARD)
    else:
        rows = rows.filter(kind=kind, slot=slot)
    newest: dict[tuple[str, str, str], str] = {}
    told = rows.order_by("since", "pk").values_list("kind", "slot", "stage", "version")
    for own_kind, own_slot, stage, version in told:
        newest[own_kind, own_slot, stage] = version
    return sorted(key for key, version in newest.items() if version)


# --- what is shown, and what is wrong ---------------------------------------------------------


def _move(
    machine: Machine,
    swap: Swap,
    inventory: Mapping[tuple[str, str], Component],
    *,
    now: datetime,
) -> PartMove:
    held = inventory.get((swap.kind, swap.slot))
    old = (held.serial if held else "") or swap.old_serial
    been = [stay for stay in parts.been(swap.new_serial, as_of=now) if stay.kind == swap.kind]
    entered = next((stay.since for stay in parts.been(old, as_of=now) if stay.until is None), None)
    leaving = parts.faults_in(machine, swap.kind, swap.slot, since=entered, until=None)
    last = been[-1] if been else None
    where = f"{last.machine} {identity.part_name(last.kind, last.slot)}" if last else ""
    versions = _known_versions(machine, swap.kind, swap.slot)
    unknown = sorted({identity.part_name(kind, slot) for kind, slot, _ in versions})
    return PartMove(
        kind=swap.kind,
        slot=swap.slot,
        old_serial=old,
        old_model=held.model if held else "",
        new_serial=swap.new_serial,
        new_model=swap.new_model,
        leaving_faults=leaving.count(),
        coming_faults=sum(stay.faults for stay in been),
        came_from=where,
        unknown_versions=tuple(unknown),
    )


def _malformed(swaps: Sequence[Swap]) -> Iterator[str]:
    if not swaps:
        yield "no part is named; at least one is needed"
    for swap in swaps:
        for name, limit in _LIMITS.items():
            if len(getattr(swap, name)) > limit:
                yield f"{name} is {len(getattr(swap, name))} long; accepted: up to {limit}"
        if not swap.kind.strip():
            yield "a part has no kind; accepted: such as gpu, nic or board"
    named = [swap.part for swap in swaps]
    for part in sorted({part for part in named if named.count(part) > 1}):
        yield f"{part} is swapped twice; once is accepted"


def _slots(
    machine: Machine, swaps: Sequence[Swap], inventory: Mapping[tuple[str, str], Component]
) -> Iterator[str]:
    emptied = {(machine.pk, swap.kind, swap.slot) for swap in swaps}
    coming = [(swap.kind, swap.new_serial) for swap in swaps if swap.new_serial]
    for swap in swaps:
        held = inventory.get((swap.kind, swap.slot))
        known = held.serial if held else ""
        if known and swap.old_serial and swap.old_serial != known:
            what = f"{swap.part} of {machine.name}"
            yield f"{what} is {known} by the inventory, not {swap.old_serial}"
        if known and known == swap.new_serial:
            yield f"{known} sits in {swap.part} of {machine.name} already"
        if swap.new_serial and coming.count((swap.kind, swap.new_serial)) > 1:
            yield f"{swap.new_serial} cannot come into two slots"
        for other in parts.where_now(swap.new_serial):
            place = (other.machine_id, other.kind, other.slot)
            if other.kind == swap.kind and place not in emptied:
                yield (
                    f"{swap.new_serial} sits in {identity.part_name(other.kind, other.slot)} of "
                    f"{other.machine.name}; take it out there first"
                )


def _taken(machine: Machine, changed: Mapping[tuple[str, str], tuple[str, str]]) -> Iterator[str]:
    for (kind, _), (_, new) in changed.items():
        for holder in parts.claimants(kind, new):
            if holder.pk != machine.pk:
                yield f"{kind} {new} is claimed by {holder}; end that claim first"


def _notes(
    moves: Iterable[PartMove], inventory: Mapping[tuple[str, str], Component]
) -> Iterator[str]:
    for move in moves:
        if (move.kind, move.slot) not in inventory:
            yield f"the inventory has no {move.part} of this machine yet; it gets one"
        elif not move.old_serial:
            yield f"the serial of the {move.part} that leaves is not known"
        if not move.new_serial:
            yield f"{move.part} stays empty"
