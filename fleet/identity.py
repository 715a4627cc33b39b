"""What a machine claims to be, and what of it goes with a part that is swapped. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.errors import ClaimRefused

KINDS = ("serial", "uuid", "mac", "bmc_address")
#: A part that carries what a whole host is known by.
BOARDS = frozenset({"board", "baseboard", "motherboard", "mainboard"})
#: Kinds of firmware that sit on the board itself and leave with it.
ON_BOARD = frozenset({"bmc", "bios", "cpld", *BOARDS})
_MAC = re.compile(r"[0-9a-f]{12}|[0-9a-f]{16}")  # Ethernet, or an InfiniBand port's GUID
_UUID = re.compile(r"[0-9a-f]{32}")
_LONGEST = 200
#: What one act may name: more than any machine has parts or ports.
MOST_SWAPS, MOST_CLAIMS = 64, 256


@dataclass(frozen=True)
class Claim:
    """One value that a machine claims; `slot` is the part that carries a MAC, as `nic/0`."""

    kind: str
    value: str
    slot: str = ""


@dataclass(frozen=True)
class Swap:
    """One part that comes into a slot; without a new serial the slot stays empty.

    `old_serial` says which part was taken out, where the technician read it; `claims` are what
    comes with the new part.
    """

    kind: str
    slot: str = ""
    new_serial: str = ""
    new_model: str = ""
    old_serial: str = ""
    claims: tuple[Claim, ...] = ()

    @property
    def part(self) -> str:
        return part_name(self.kind, self.slot)


def part_name(kind: str, slot: str) -> str:
    """Name a part as the version history does.

    Examples
    --------
    >>> part_name("gpu", "3"), part_name("bmc", "")
    ('gpu/3', 'bmc')
    """
    return f"{kind}/{slot}" if slot else kind


def normal(claim: Claim) -> Claim:
    """Return the claim in the one spelling that two machines can be compared by.

    Raises
    ------
    ClaimRefused
        If the kind is unknown, or the value is none of its kind.

    Examples
    --------
    >>> normal(Claim("mac", "B8-CE-F6-00-11-22", "nic/0")).value
    'b8:ce:f6:00:11:22'
    >>> normal(Claim("uuid", "{4C4C4544-0042-3510-8051-B4C04F4E3132}")).value
    '4c4c4544-0042-3510-8051-b4c04f4e3132'
    """
    text = claim.value.strip()
    if claim.kind not in KINDS:
        raise ClaimRefused([f"{claim.kind!r} cannot be claimed; accepted: {', '.join(KINDS)}"])
    if len(text) > _LONGEST or "\x00" in text:
        raise ClaimRefused([f"{claim.kind} is {len(text)} long; accepted: up to {_LONGEST}"])
    if not text or claim.kind == "serial":
        return Claim(claim.kind, text, claim.slot)
    bare = re.sub(r"[^0-9a-z]", "", text.lower())
    if claim.kind == "mac":
        if not _MAC.fullmatch(bare):
            raise ClaimRefused([f"{claim.value!r} is no MAC; accepted: 12 or 16 hex digits"])
        text = ":".join(bare[at : at + 2] for at in range(0, len(bare), 2))
    elif claim.kind == "uuid":
        if not _UUID.fullmatch(bare):
            raise ClaimRefused([f"{claim.value!r} is no UUID; accepted: 32 hex digits"])
        text = "-".join((bare[:8], bare[8:12], bare[12:16], bare[16:20], bare[20:]))
    else:
        text = text.lower()
    return Claim(claim.kind, text, claim.slot)


def goes_with(swap: Swap, kind: str, slot: str) -> bool:
    """Tell whether a claim leaves with the part that leaves.

    A MAC goes with the part that carries it. With a board go the host's UUID and the MACs that no
    other part carries; the serial and the BMC's address are the slot's and stay, unless the swap
    says what they are now.

    Examples
    --------
    >>> goes_with(Swap("nic", "0"), "mac", "nic/0"), goes_with(Swap("nic", "0"), "uuid", "")
    (True, False)
    >>> goes_with(Swap("board"), "uuid", ""), goes_with(Swap("board"), "serial", "")
    (True, False)
    """
    if slot and slot == swap.part:
        return True
    is_board = swap.kind in BOARDS
    return is_board and (kind == "uuid" or (kind == "mac" and slot in ("", "bmc")))


def moves(
    swaps: Sequence[Swap], standing: Mapping[tuple[str, str], str]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Return what the claims become, old and new by kind and slot; those that stay are left out.

    Raises
    ------
    ClaimRefused
        If two swaps say different things of one claim.
    """
    found: dict[tuple[str, str], tuple[str, str]] = {}
    told: dict[tuple[str, str], str] = {}
    for swap in swaps:
        for key, value in standing.items():
            if value and goes_with(swap, *key):
                found[key] = (value, "")
        for claim in map(normal, swap.claims):
            key = (claim.kind, claim.slot)
            if told.setdefault(key, claim.value) != claim.value:
                raise ClaimRefused(
                    [f"{claim.kind} {claim.slot} is said to be {told[key]} and {claim.value}"]
                )
            found[key] = (standing.get(key, ""), claim.value)
    return {key: (old, new) for key, (old, new) in found.items() if old != new}
