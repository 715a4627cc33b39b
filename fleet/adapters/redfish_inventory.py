"""Read a Redfish firmware inventory: members to parts with kind, slot, version and copy. Pure.

Members are not components: makers list backup copies, images kept for going back, templates and
identifiers beside the firmware that runs. Each member becomes one `Part` that keeps what the BMC
said; `readings` keeps what runs, and what waits to be activated.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from fleet.adapters import Reading
from fleet.errors import AdapterFailed

LONGEST = 40  # of a kind and of a slot, as the version history holds them


class Copy(StrEnum):
    """What a member is, as to its component."""

    RUNNING = "running"
    STAGED = "staged"
    PREVIOUS = "previous"
    AVAILABLE = "available"
    BACKUP = "backup"
    NO_FIRMWARE = "no_firmware"


@dataclass(frozen=True)
class Part:
    """One member: what the BMC said, then what is made of it.

    `version` is verbatim; `is_readable` is false where that is no version (`N/A`, `undefined`).
    `is_updateable` is None where the BMC does not say. `staged` is a version that waits in
    another slot of the same part.
    """

    id: str
    name: str
    version: str
    is_updateable: bool | None
    software_id: str
    state: str
    kind: str
    slot: str
    copy: Copy
    is_readable: bool
    staged: str = ""


_NO_VERSION = re.compile(r"|n/?a|undefined|unknown|none|null|-|no valid .*", re.IGNORECASE)
_DELL_ID = re.compile(r"(?P<copy>Current|Installed|Previous|Available)-[^_]*__(?P<fqdd>.+)")
_DELL_COPIES = {
    "Installed": Copy.RUNNING,
    "Previous": Copy.PREVIOUS,
    "Current": Copy.AVAILABLE,
    "Available": Copy.AVAILABLE,
}
_HPE_COPIES = {"SystemRomBackup": Copy.BACKUP}
_PENDING = ("Staged", "PendingActivation")  # of NVIDIA's inactive slot
_BACKUP = re.compile(r"backup|recovery|golden|redundant", re.IGNORECASE)
_IDENTITY = re.compile(r"DPU_(BOARD|NODE|SYS_IMAGE)")
#: The first that matches names the kind; narrower ones come first.
_KINDS: Sequence[tuple[str, str]] = (
    ("identity", _IDENTITY.pattern),
    ("erot", r"erot\b|erot_|_erot"),
    ("inforom", r"inforom"),
    ("bootloader", r"bootloader"),
    ("diagnostics", r"diagnostics\."),
    ("driver_pack", r"driverpack|lxpm\w*driver|lxpm-\w+drivers"),
    ("service_module", r"servicemodule"),
    ("lifecycle_controller", r"^usc\.|lxpm|intelligent provisioning"),
    ("platform_data", r"platformdefinitiontable"),
    ("power_controller", r"powermanagementcontroller"),
    ("backplane", r"backplane|^hsbp"),
    ("nvswitch", r"nv ?switch"),
    ("baseboard", r"gpu baseboard|accuc|^nvidia hgx "),
    ("pcie_switch", r"pcieswitch"),
    ("fpga", r"fpga"),
    ("cpld", r"cpld|programmablelogicdevice"),
    ("psu", r"psu|powersuppl|power supply"),
    ("tpm", r"\btpm|trustedplatformmodule"),
    ("disk", r"^disk|\bssd\b|\bhdd\b|nvme|/drives/"),
    ("raid", r"smart array|^raid\."),
    ("gpu", r"gpu_|_gpu|accvbios|\bvbios\b|\ba100\b|\bh100\b"),
    ("dpu_os", r"dpu_(os|bsp|ofed)"),
    ("dpu_atf", r"dpu_atf"),
    ("video", r"video controller"),
    ("nic", r"^nic|_nic|hpcnet|infiniband|ethernet|network controller|\bcx\d|adapter"),
    ("cpu", r"_cpu_"),
    ("bios", r"\bbios\b|bios\.|uefi|system rom|systemrom"),
    ("bmc", r"\bbmc|_bmc|idrac|\bilo\b|systembmc|remote access controller|\brecovery\b"),
    ("me", r"^me\b"),
    ("sdr", r"^sdr\b"),
    ("chassis", r"\bchassis\b"),
)


def parts(collection: Mapping[str, Any]) -> list[Part]:
    """Read every member of a `FirmwareInventory` or `SoftwareInventory` collection.

    Parameters
    ----------
    collection : mapping
        The collection with its members put in place, as `$expand` returns it.

    Raises
    ------
    AdapterFailed
        If there are no members, or one of them is a mere link.
    """
    members = collection.get("Members")
    if not isinstance(members, list):
        raise AdapterFailed(f"inventory has {sorted(collection)}; a list of Members is needed")
    return _with_slots_of_their_own([_part(member) for member in members])


def readings(collection: Mapping[str, Any], *, boot_id: str, witness: str = "bmc") -> list[Reading]:
    """Return what runs and what is staged, of the parts whose version can be read."""
    found = []
    for part in parts(collection):
        if part.copy is Copy.RUNNING and part.is_readable:
            found.append(Reading(part.kind, part.slot, part.version, witness, boot_id))
        if part.staged:
            found.append(Reading(part.kind, part.slot, part.staged, witness, boot_id, "staged"))
    return found


def _part(member: Any) -> Part:
    if not isinstance(member, Mapping) or ("Version" not in member and "Name" not in member):
        raise AdapterFailed(f"inventory member {member!r} is a link; an expanded one is needed")
    own_id = _text(member, "Id") or str(member.get("@odata.id", "")).rstrip("/").rpartition("/")[2]
    version = _text(member, "Version")
    kind = _kind(member, own_id)
    return Part(
        id=own_id,
        name=_text(member, "Name"),
        version=version,
        is_updateable=member.get("Updateable"),
        software_id=_text(member, "SoftwareId"),
        state=_text(_inside(member, "Status"), "State"),
        kind=kind,
        slot=_slot(member, own_id),
        copy=_copy(member, own_id),
        is_readable=not _NO_VERSION.fullmatch(version.strip()),
        staged=_staged(member),
    )


def _text(member: Mapping[str, Any], name: str) -> str:
    value = member.get(name)
    return "" if value is None else str(value)


def _inside(member: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for name in path:
        inner = member.get(name)
        member = inner if isinstance(inner, Mapping) else {}
    return member


def _kind(member: Mapping[str, Any], own_id: str) -> str:
    """Return the kind by what the maker calls the part, then by its links."""
    dell = _DELL_ID.fullmatch(own_id)
    context = _text(_inside(member, "Oem", "Hpe"), "DeviceContext")
    links = [str(link.get("@odata.id")) for link in member.get("RelatedItem") or ()]
    described = [own_id, _text(member, "Name"), _text(member, "Description"), context, *links]
    told = [dell["fqdd"]] if dell else described
    for text in told:
        for kind, pattern in _KINDS:
            if re.search(pattern, text, re.IGNORECASE):
                return kind
    return "other"


def _slot(member: Mapping[str, Any], own_id: str) -> str:
    """Return the place that the maker names; a part that is alone gets none."""
    if dell := _DELL_ID.fullmatch(own_id):
        return dell["fqdd"]
    return _text(_inside(member, "Oem", "Hpe"), "DeviceContext") or own_id


def _copy(member: Mapping[str, Any], own_id: str) -> Copy:
    if dell := _DELL_ID.fullmatch(own_id):
        return _DELL_COPIES[dell["copy"]]
    if _IDENTITY.fullmatch(own_id):
        return Copy.NO_FIRMWARE
    state = _text(_inside(member, "Status"), "State")
    described = _HPE_COPIES.get(_text(member, "Description"))
    if described or state == "StandbySpare" or _BACKUP.search(own_id):
        return Copy.BACKUP
    return Copy.RUNNING


def _staged(member: Mapping[str, Any]) -> str:
    inactive = _inside(member, "Oem", "Nvidia", "InactiveFirmwareSlot")
    return _text(inactive, "Version") if inactive.get("FirmwareState") in _PENDING else ""


def _with_slots_of_their_own(found: Sequence[Part]) -> list[Part]:
    """Drop the slot of a part that runs alone in its kind; tell apart those that share one."""
    running = Counter(part.kind for part in found if part.copy is Copy.RUNNING)
    places = Counter((part.kind, part.slot, part.copy) for part in found)
    return [replace(part, slot=_own_slot(part, running=running, places=places)) for part in found]


def _own_slot(
    part: Part, *, running: Mapping[str, int], places: Mapping[tuple[str, str, Copy], int]
) -> str:
    if running[part.kind] <= 1:
        return ""
    is_shared = places[part.kind, part.slot, part.copy] > 1
    # The history takes no longer slot, and one that is cut might be another's.
    return part.id[:LONGEST] if is_shared or len(part.slot) > LONGEST else part.slot
