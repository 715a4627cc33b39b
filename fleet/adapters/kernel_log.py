"""Read what the GPU driver says in a kernel log: Xid and SXid lines. Pure.

Three kinds of time stamps are read: `dmesg -T` (local time without a zone), ISO 8601 as journals
print it, and seconds since boot.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from fleet.adapters import Report
from fleet.errors import AdapterFailed

_XID = re.compile(
    r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]+)(?:, [^)]*)?\): (?P<code>\d+), (?P<text>.*)"
)
_SXID = re.compile(
    r"SXid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+), (?P<fatal>Fatal|Non-fatal), (?P<text>.*)"
)
_PROCESS = re.compile(r"pid=(?P<pid>'?<?\w+>?'?), name=(?P<name>[^,]*)")
_CTIME = re.compile(r"^\[(?P<at>\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\]")
_SECONDS = re.compile(r"^\[ *(?P<seconds>\d+\.\d+)\]")
_ISO = re.compile(r"^(?P<at>\d{4}-\d\d-\d\dT\S+)")


@dataclass(frozen=True)
class Clocks:
    """What a line's time needs to be a time: the zone of local ones, and when the kernel began."""

    zone: tzinfo
    booted_at: datetime | None = None


def faults(lines: Iterable[str], *, machine: str, clocks: Clocks) -> Iterator[Report]:
    """Yield a report for each Xid or SXid line, one after the other.

    A log that is read again gives the same source keys; a line that stands twice counts once.

    Raises
    ------
    AdapterFailed
        If such a line carries no time that can be read; the message has its number.
    """
    for number, line in enumerate(lines, 1):
        found = _XID.search(line) or _SXID.search(line)
        if found is not None:
            yield _report(found, line=line, number=number, machine=machine, clocks=clocks)


def _report(
    found: re.Match[str], *, line: str, number: int, machine: str, clocks: Clocks
) -> Report:
    own = found.groupdict()
    kind = "nvswitch" if "fatal" in own else "gpu"
    said: dict[str, object] = {"text": own["text"].strip()[:500], "code": int(own["code"])}
    if process := _PROCESS.search(own["text"]):
        said |= process.groupdict()
    digest = hashlib.sha256(line.strip().encode("utf-8", "replace")).hexdigest()[:32]
    return Report(
        "fault",
        {
            "machine": machine,
            "time": _time(line, number=number, clocks=clocks),
            "signature": _signature(own),
            "component": f"{kind} {own['pci'].removesuffix('.0')}",
            "attributes": said,
            "source_key": f"{machine}/{digest}",
        },
    )


def _signature(own: dict[str, str]) -> str:
    if "fatal" not in own:
        return f"xid.{int(own['code'])}"
    return "nvswitch.sxid" if own["fatal"] == "Fatal" else "nvswitch.sxid_nonfatal"


def _time(line: str, *, number: int, clocks: Clocks) -> datetime:
    try:
        at = _stamp(line, clocks=clocks)
    except (ValueError, OverflowError):
        at = None
    if at is None:
        raise AdapterFailed(
            f"line {number} has no time that can be read: {line[:60]!r}; dmesg -T, ISO 8601 and, "
            "with the time of the boot, seconds since then are read"
        )
    return at if at.tzinfo else at.replace(tzinfo=clocks.zone)


def _stamp(line: str, *, clocks: Clocks) -> datetime | None:
    if found := _CTIME.search(line):
        local = datetime.strptime(found["at"], "%a %b %d %H:%M:%S %Y")  # noqa: DTZ007 - it has none
        return local.replace(tzinfo=clocks.zone)
    if (found := _SECONDS.search(line)) and clocks.booted_at is not None:
        return clocks.booted_at + timedelta(seconds=float(found["seconds"]))
    if found := _ISO.search(line):
        return datetime.fromisoformat(found["at"])
    return None
