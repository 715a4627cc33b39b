"""Read a Redfish log (a collection of LogEntry) and make faults of it. Pure.

What a maker says is kept as it is said. Three things differ between makers and are read with care:

- HPE marks an entry that is over as `OK` with `Repaired`: it was a fault all the same;
- HPE counts repeats inside one entry (`Oem.Hpe.Count`), of which only the first and the last
  time are known: one fault, with the count;
- Supermicro gives no severity: the words decide, and where no table knows them the fault is kept
  as unknown and `info`, so that nothing is dropped and nothing is taken out of service by it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleet.adapters import Report
from fleet.adapters.log_templates import Meaning, meaning, named, template
from fleet.errors import AdapterFailed


def _meaning(pattern: str, signature: str, component: str = "") -> Meaning:
    return Meaning(signature, re.compile(pattern, re.IGNORECASE), component)


#: The first that is found holds; an empty signature tells of no fault.
KNOWN: Sequence[Meaning] = (
    _meaning(r"connectivity status changed to ok", ""),
    _meaning(r"at least one of the links is up", ""),
    _meaning(r"firmware flashed|maintenance note|successfully bound", ""),
    _meaning(
        r"connectivity status changed to link failure.*?slot (?P<slot>\d+), port (?P<port>\d+)",
        "nic.port_down",
        "nic {slot}/{port}",
    ),
    _meaning(r"all links are down.*?slot (?P<slot>\d+)", "nic.all_links_down", "nic {slot}"),
    _meaning(r"shutdown due to overheat aborted", "host.shutdown_called_off"),
    _meaning(r"shutdown initiated due to overheat", "host.overheated"),
    _meaning(
        r"overheating(?: \(temperature sensor (?P<sensor>\d+))?",
        "thermal.over_limit",
        "sensor {sensor}",
    ),
    _meaning(r"fan.*(fail|not (present|operational)|below)", "fan.failed"),
    _meaning(
        r"dimm (?P<slot>\w+) could not be authenticated", "host.dimm_not_genuine", "dimm {slot}"
    ),
    _meaning(
        r"uncorrectable.*(memory|ecc|dimm)|(memory|ecc|dimm).*uncorrectable",
        "host.dimm_uncorrectable",
    ),
    _meaning(
        r"(?<!un)correctable.*(memory|ecc|dimm)|(memory|ecc|dimm).*(?<!un)correctable",
        "host.dimm_correctable",
    ),
    _meaning(r"uncorrectable machine check|\bcaterr\b|\bierr\b", "host.mce_uncorrectable"),
    _meaning(
        r"input power loss.*server critical|server critical fault.*input power loss",
        "host.input_power_lost",
    ),
    _meaning(r"input power loss|power supply.*(ac lost|input lost|lost input)", "psu.input_lost"),
    _meaning(r"(power suppl\w+ not redundant|redundancy lost)", "psu.redundancy_lost"),
    _meaning(r"pci.*fatal|fatal.*pci", "pcie.aer_fatal"),
    _meaning(r"critical interrupt", "bmc.critical_interrupt"),
    _meaning(r"unbound trusted platform module", "host.tpm_unbound"),
    _meaning(r"valid data found in write-back cache", "disk.cache_restored"),
    _meaning(r"drive.*(predict|smart)", "disk.smart_failing"),
    _meaning(r"drive.*(fail|error)", "disk.nvme_error"),
    _meaning(r"\bleak", "chassis.leak"),
)


@dataclass(frozen=True)
class LogEntry:
    """One entry as its maker said it. `severity` is empty where none is given."""

    id: str
    at: datetime
    updated: datetime
    severity: str
    is_repaired: bool
    message: str
    message_id: str
    count: int

    @property
    def template(self) -> str:
        """The message without its numbers."""
        return template(self.message)

    @property
    def is_of_fault(self) -> bool:
        """True if the entry tells of a fault, over or not."""
        found = meaning(self.message, known=KNOWN)
        if found is not None:
            return bool(found.signature)
        return self.severity != "OK" or self.is_repaired


def entries(collection: Mapping[str, Any] | Sequence[Any]) -> list[LogEntry]:
    """Read every entry of a log, in the order in which it stands.

    Parameters
    ----------
    collection : mapping or list
        A LogEntryCollection with its members put in place, or the members alone.

    Raises
    ------
    AdapterFailed
        If there are no members, one of them is a mere link, or one has no time or no message.
    """
    members = collection.get("Members") if isinstance(collection, Mapping) else collection
    if not isinstance(members, list):
        raise AdapterFailed("the log has no list of Members; a LogEntryCollection is needed")
    return [_entry(number, member) for number, member in enumerate(members, 1)]


def faults(log: Sequence[LogEntry], *, machine: str) -> Iterator[Report]:
    """Turn the entries that tell of a fault into reports of this machine.

    A log that is read again gives the same source keys, so its entries count once.
    """
    for entry in log:
        if entry.is_of_fault:
            yield Report("fault", dict(_fault(entry, machine=machine)))


def _entry(number: int, member: Any) -> LogEntry:
    if not isinstance(member, Mapping) or not isinstance(member.get("Message"), str):
        raise AdapterFailed(
            f"entry {number} has no Message; read the log with its members expanded"
        )
    hpe = member.get("Oem", {}).get("Hpe", {}) if isinstance(member.get("Oem"), Mapping) else {}
    at = _time(member.get("EventTimestamp") or member.get("Created"), number=number)
    updated = hpe.get("Updated") or member.get("Modified")
    return LogEntry(
        id=str(member.get("Id", number)),
        at=at,
        updated=_time(updated, number=number) if updated else at,
        severity=str(member.get("Severity") or ""),
        is_repaired=bool(hpe.get("Repaired") or member.get("Resolved")),
        message=member["Message"].replace("\x00", ""),
        message_id=str(member.get("MessageId") or ""),
        count=hpe["Count"] if isinstance(hpe.get("Count"), int) else 1,
    )


def _within(member: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = member.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _time(text: object, *, number: int) -> datetime:
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise AdapterFailed(f"entry {number} was made at {text!r}; RFC 3339 with zone is needed")
    return time


def _fault(entry: LogEntry, *, machine: str) -> Iterator[tuple[str, object]]:
    found = meaning(entry.message, known=KNOWN)
    yield "machine", machine
    yield "time", entry.at
    yield "signature", found.signature if found else named("redfish", entry.message)
    if found is None:
        yield "severity", _SEVERITIES.get(entry.severity, "minor" if entry.is_repaired else "info")
    else:
        yield "component", found.part(entry.message)
    yield "source_key", f"{machine}/{entry.id}/{entry.at.isoformat()}"
    said = {"message": entry.message[:500], "count": entry.count, "severity": entry.severity}
    yield "attributes", said | {"updated": entry.updated.isoformat(), "repaired": entry.is_repaired}


_SEVERITIES = {"Critical": "critical", "Warning": "major"}
