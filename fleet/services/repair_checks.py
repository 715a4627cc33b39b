"""What is wrong with the order or the end of a repair, in words; nothing is written here."""

from collections.abc import Sequence
from datetime import datetime

from fleet.identity import MOST_SWAPS, Swap
from fleet.models import Incident, Machine, Repair, RepairKind
from fleet.services.swaps import preview_swap

#: Kinds of work that can be ordered; the others are what a gate is for, not what hands do.
ORDERABLE = tuple(
    kind for kind in RepairKind if kind not in (RepairKind.NEW_MACHINE, RepairKind.NO_FAULT_FOUND)
)
#: Kinds that are not done unless a part has been changed.
SWAPS = frozenset({RepairKind.GPU_SWAP, RepairKind.NETWORK_SWAP, RepairKind.HOST_PART_SWAP})
_READ = ("kind", "slot", "old_serial", "new_serial", "new_model")


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


def wrong_swaps(machine: Machine, swaps: Sequence[Swap], *, now: datetime) -> list[str]:
    """Say what a technician has to look at again before a swap can be written down."""
    if len(swaps) > MOST_SWAPS:
        return []  # how it ends is refused already, and looking at each would take long
    reasons: list[str] = []
    for swap in swaps:
        reasons += _unreadable(swap)
        if not (swap.old_serial and swap.new_serial):
            missing = "new" if swap.old_serial else "old"
            reasons.append(f"{swap.part}: the {missing} serial is missing; both are needed")
        elif swap.old_serial == swap.new_serial:
            reasons.append(f"{swap.part}: old and new serial are the same, {swap.new_serial}")
    leaving = [swap.old_serial for swap in swaps if swap.old_serial]
    twice = sorted({one for one in leaving if leaving.count(one) > 1})
    reasons += [f"old serial {one} is named twice" for one in twice]
    known = preview_swap(machine, swaps, now=now).reasons if swaps else ()
    return list(dict.fromkeys([*reasons, *known]))


def _unreadable(swap: Swap) -> list[str]:
    values = {name: getattr(swap, name) for name in _READ}
    return [
        f"{name} {value!r} holds blanks at its ends or what cannot be seen"
        for name, value in values.items()
        if not value.isprintable() or value != value.strip()
    ]


def swapped(swap: Swap) -> str:
    return f"{swap.part} {swap.old_serial} → {swap.new_serial}"
