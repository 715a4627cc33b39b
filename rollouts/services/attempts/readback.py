"""What read-back says: which images took, which did not, who disagrees, who is silent."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fleet.adapters import Reading
from fleet.firmware.versions import is_same
from fleet.models import FirmwareRecord

Targets = Sequence[Mapping[str, Any]]


def wrong_positions(
    targets: Targets, readings: Sequence[Reading], *, schemes: Mapping[str, str]
) -> dict[int, str]:
    """Return the targets that some witness contradicts or none confirms, each with what was read.

    All witnesses must agree; BMC and host may spell one version in two ways that the image's
    scheme knows to be the same.

    Examples
    --------
    >>> told = [Reading("bmc", "", v, who, "b1") for v, who in (("2", "bmc"), ("1", "host"))]
    >>> wrong_positions([{"kind": "bmc", "version": "2"}], told, schemes={"bmc": "dotted"})
    {0: 'bmc disputed: bmc 2, host 1 instead of 2'}
    """
    wrong = {}
    for position, target in enumerate(targets):
        kind, wanted, slot = target["kind"], target["version"], target.get("slot", "")
        told = [one for one in active(readings) if one.kind == kind and slot in ("", one.slot)]
        if not told or not all(is_same(one.version, wanted, scheme=schemes[kind]) for one in told):
            part = f"{kind} {slot}" if slot else kind
            wrong[position] = f"{part} {_shown(told)} instead of {wanted}"
    return wrong


def _shown(told: Sequence[Reading]) -> str:
    by_witness: dict[str, set[str]] = {}
    for one in told:
        by_witness.setdefault(one.witness, set()).add(one.version)
    claims = {witness: " and ".join(sorted(seen)) for witness, seen in sorted(by_witness.items())}
    if not claims:
        return "nothing readable"
    if len(set(claims.values())) == 1:
        return next(iter(claims.values()))
    return f"disputed: {', '.join(f'{witness} {claim}' for witness, claim in claims.items())}"


def active(readings: Sequence[Reading]) -> list[Reading]:
    """Return the readings of what runs."""
    return [one for one in readings if one.stage == FirmwareRecord.Stage.ACTIVE]


def boot_id(readings: Sequence[Reading]) -> str:
    """Return the boot that the readings were taken in; empty if nobody says."""
    return next((reading.boot_id for reading in readings if reading.boot_id), "")


def answering(readings: Sequence[Reading]) -> list[str]:
    """Return which part is told of by which witness, as texts that can be stored and compared.

    Examples
    --------
    >>> answering([Reading("nic", "a1", "1", "host", "b1"), Reading("bmc", "", "7", "bmc", "b1")])
    ['bmc by bmc', 'nic/a1 by host']
    """
    return sorted(
        {
            f"{one.kind}/{one.slot} by {one.witness}"
            if one.slot
            else f"{one.kind} by {one.witness}"
            for one in active(readings)
        }
    )


def gone_silent(readings: Sequence[Reading], *, before: Collection[str]) -> list[str]:
    """Return what answered before the update and does not any more: a part, or a witness."""
    return sorted(set(before) - set(answering(readings)))


def versions_by_part(readings: Sequence[Reading]) -> dict[str, str]:
    """Return the active version per kind, or per `kind/slot` where a kind's parts differ.

    What witnesses dispute is left out: nobody knows what to go back to.

    Examples
    --------
    >>> nic = [Reading("nic", slot, version, "bmc", "b1") for slot, version in ("a1", "b2")]
    >>> versions_by_part([*nic, Reading("bmc", "", "7", "bmc", "b1")])
    {'nic/a': '1', 'nic/b': '2', 'bmc': '7'}
    """
    seen: dict[str, dict[str, set[str]]] = {}
    for reading in active(readings):
        slots = seen.setdefault(reading.kind, {})
        slots.setdefault(reading.slot, set()).add(reading.version)
    versions = {}
    for kind, slots in seen.items():
        if len({version for told in slots.values() for version in told}) == 1:
            versions[kind] = next(iter(next(iter(slots.values()))))
            continue
        for slot, told in slots.items():
            if len(told) == 1:
                versions[f"{kind}/{slot}" if slot else kind] = next(iter(told))
    return versions


def before_targets(targets: Targets, previous: Mapping[str, str]) -> list[dict[str, Any]] | None:
    """Return the targets that bring every part back to its version before; None if one is unknown.

    Examples
    --------
    >>> before_targets([{"kind": "nic", "version": "2"}], {"nic/a": "1", "nic/b": "0"})
    [{'kind': 'nic', 'version': '1', 'slot': 'a'}, {'kind': 'nic', 'version': '0', 'slot': 'b'}]
    """
    back = []
    for target in targets:
        parts = {
            part.partition("/")[2]: version
            for part, version in previous.items()
            if part.partition("/")[0] == target["kind"]
            and target.get("slot", "") in ("", part.partition("/")[2])
        }
        if not parts:
            return None
        back += [{**target, "version": version, "slot": slot} for slot, version in parts.items()]
    return back
