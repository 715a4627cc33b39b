"""What is wrong with the order or the end of a repair, in words; nothing is written here."""

from collections.abc import Sequence

from fleet.identity import Swap, part_name
from fleet.models import Component, Incident, Machine, Repair, RepairKind

#: Kinds of work that can be ordered; the others are what a gate is for, not what hands do.
ORDERABLE = tuple(
    kind for kind in RepairKind if kind not in (RepairKind.NEW_MACHINE, RepairKind.NO_FAULT_FOUND)
)
#: Kinds that are not done unless a part has been changed.
SWAPS = frozenset({RepairKind.GPU_SWAP, RepairKind.NETWORK_SWAP, RepairKind.HOST_PART_SWAP})
MOST_SWAPS = 64
_LONGEST = {"kind": 40, "slot": 40, "old_serial": 100, "new_serial": 100, "new_model": 100}


def wrong_order(machine: Machine, kind: str, incident: Incident | None) -> list[str]:
    reasons = []
    if kind not in ORDERABLE:
        reasons.append(f"kind {kind!r} cannot be ordered; accepted: {', '.join(ORDERABLE)}")
    if incident is not None and incident.machine_id != machine.pk:
        reasons.append(f"incident {incident.pk} is of {incident.machine}, not of {machine.name}")
    return reasons


def wrong_end(repair: Repair, swaps: Sequence[Swap], *, outcome: str) -> list[str]:
    if outcome not in Repair.Outcome.values:
        return [f"outcome {outcome!r} is unknown; accepted: {', '.join(Repair.Outcome.values)}"]
    if outcome == Repair.Outcome.NO_FAULT_FOUND and swaps:
        return ["no fault was found, yet parts were swapped: say which of the two it was"]
    if outcome == Repair.Outcome.REPAIRED and repair.kind in SWAPS and not swaps:
        said = "ends with the serials of each swapped part, old and new; none was given"
        return [f"a repair of kind {repair.kind} {said}"]
    if len(swaps) > MOST_SWAPS:
        return [f"{len(swaps)} parts were swapped at once; accepted: at most {MOST_SWAPS}"]
    return []


def wrong_swaps(machine: Machine, swaps: Sequence[Swap]) -> list[str]:
    """Say what a technician has to look at again before a swap can be written down."""
    reasons: list[str] = []
    for swap in swaps:
        reasons += _unreadable(swap)
        if not (swap.old_serial and swap.new_serial):
            missing = "new" if swap.old_serial else "old"
            reasons.append(f"{swap.part}: the {missing} serial is missing; both are needed")
        elif swap.old_serial == swap.new_serial:
            reasons.append(f"{swap.part}: old and new serial are the same, {swap.new_serial}")
    for what, seen in (
        ("part", [swap.part for swap in swaps]),
        ("new serial", [swap.new_serial for swap in swaps if swap.new_serial]),
        ("old serial", [swap.old_serial for swap in swaps if swap.old_serial]),
    ):
        twice = sorted({one for one in seen if seen.count(one) > 1})
        reasons += [f"{what} {one} is named twice" for one in twice]
    return reasons or _elsewhere(machine, swaps)


def _unreadable(swap: Swap) -> list[str]:
    reasons = []
    for name, most in _LONGEST.items():
        value = getattr(swap, name)
        if len(value) > most:
            reasons.append(f"{name} has {len(value)} characters, at most {most} are accepted")
        elif not value.isprintable() or value != value.strip():
            reasons.append(f"{name} {value!r} holds blanks at its ends or what cannot be seen")
    return reasons if swap.kind else [*reasons, "a swapped part needs its kind, such as gpu"]


def _elsewhere(machine: Machine, swaps: Sequence[Swap]) -> list[str]:
    """Name the parts that are said to come in and sit somewhere else by the record."""
    leaving = {swap.part for swap in swaps}
    coming = [swap.new_serial for swap in swaps]
    sitting = Component.objects.filter(serial__in=coming).select_related("machine")
    return [
        f"serial {part.serial} sits in {part.machine.name} as {part_name(part.kind, part.slot)} now"
        for part in sitting
        if part.machine_id != machine.pk or part_name(part.kind, part.slot) not in leaving
    ]


def swapped(swap: Swap) -> str:
    return f"{swap.part} {swap.old_serial} → {swap.new_serial}"
