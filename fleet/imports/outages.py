"""Read a recording of faults and repairs: who was out, from when to when, and why. Pure.

A folder holds `machines.csv` (`machine`, `in_service_from`, and if wanted `in_service_to`,
`platform` or `model`, `pool`, `cluster` or `group`, `site`, `rack`), `faults.csv` (`machine, time,
signature, severity`) and `recoveries.csv` (`machine, time, recovered_at`, and if wanted `path` and
`recovery_seconds`). Times are RFC 3339 with zone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path

from fleet.imports.rows import (
    LIMITS,
    MACHINES_FILE,
    NO_TIME,
    PastMachine,
    Row,
    csv_rows,
    kept,
    named_twice,
    past_machine,
    read_time,
    refuse,
    slip,
)

FAULTS_FILE = "faults.csv"
RECOVERIES_FILE = "recoveries.csv"
SEVERITIES = ("info", "minor", "major", "critical")
#: A down time of its own that differs by more from end minus start is told.
SLACK = timedelta(minutes=1)
_SERVICE = ("in_service_from", "in_service_to")


@dataclass(frozen=True)
class RecordedMachine:
    """One machine, and when it was there; `until` None: it still is."""

    machine: PastMachine
    since: datetime
    until: datetime | None


@dataclass(frozen=True)
class RecordedFault:
    """One fault as the file names it; `place` tells where it stands."""

    place: str
    machine: str
    time: datetime
    signature: str
    severity: str


@dataclass(frozen=True)
class Outage:
    """One machine out of service from `start` to `end`; `told_seconds` is the file's own length."""

    place: str
    machine: str
    start: datetime
    end: datetime
    cause: str = ""
    told_seconds: float | None = None


@dataclass(frozen=True)
class Recording:
    """What one folder says; `notes` are slips that leave the rest usable."""

    name: str
    machines: tuple[RecordedMachine, ...]
    faults: tuple[RecordedFault, ...]
    outages: tuple[Outage, ...]
    notes: tuple[str, ...]


def read_outages(path: Path, *, platform: str = "") -> Recording:
    """Read a folder of machines, faults and recoveries.

    Rows that name a machine which `machines.csv` does not describe are left out and told, as are
    lengths that disagree with start and end.

    Parameters
    ----------
    platform : str
        Of machines whose row names none.

    Raises
    ------
    ImportRefused
        If a row cannot be read; it names file, line, column and value of each slip.
    """
    reasons: list[str] = []
    machines = tuple(
        kept(
            _with_places(csv_rows(path / MACHINES_FILE, needed=("machine", _SERVICE[0])), platform),
            _machine,
            reasons,
        )
    )
    reasons += named_twice([one.machine for one in machines])
    faults_needed = ("machine", "time", "signature", "severity")
    faults = tuple(kept(csv_rows(path / FAULTS_FILE, needed=faults_needed), _fault, reasons))
    needed = ("machine", "time", "recovered_at")
    outages = tuple(kept(csv_rows(path / RECOVERIES_FILE, needed=needed), _outage, reasons))
    refuse(reasons)
    known = {one.machine.name: one for one in machines}
    notes = [*_strangers((*faults, *outages), known), *_lengths(outages)]
    return Recording(
        name=path.resolve().name,
        machines=machines,
        faults=tuple(fault for fault in faults if fault.machine in known),
        outages=tuple(outage for outage in outages if outage.machine in known),
        notes=tuple(notes),
    )


def joined(
    outages: Iterable[Outage], machines: Mapping[str, RecordedMachine]
) -> tuple[dict[str, list[Outage]], list[str]]:
    """Return the times that each machine was out, none of which overlap, and what was joined.

    A machine is out once, however many of its outages run at the same time. What lies outside
    the time that the machine was there is cut off.
    """
    found: dict[str, list[Outage]] = {}
    notes: list[str] = []
    ordered = sorted(outages, key=lambda one: (one.machine, one.start, one.end))
    for name, own in groupby(ordered, key=lambda one: one.machine):
        found[name] = []
        for outage in own:
            inside = _inside(outage, machines[name], notes)
            last = found[name][-1] if found[name] else None
            if inside is None:
                continue
            if last is not None and inside.start < last.end:
                notes.append(
                    f"{inside.place}: {name} was out already, since {last.start.isoformat()} "
                    f"({last.place}); the two count as one time out"
                )
                found[name][-1] = replace(last, end=max(last.end, inside.end))
            else:
                found[name].append(inside)
    return found, notes


def _inside(outage: Outage, machine: RecordedMachine, notes: list[str]) -> Outage | None:
    start = max(outage.start, machine.since)
    end = outage.end if machine.until is None else min(outage.end, machine.until)
    if (start, end) == (outage.start, outage.end):
        return outage
    span = f"{machine.since.isoformat()} to {machine.until.isoformat() if machine.until else 'now'}"
    notes.append(f"{outage.place}: reaches beyond the time in service of {outage.machine}, {span}")
    return replace(outage, start=start, end=end) if start <= end else None


def _with_places(rows: Sequence[Row], platform: str) -> list[Row]:
    """Name the pool after the group, and the platform as asked, where a row says neither."""
    return [
        Row(
            row.place,
            ({"pool": row.cells["group"]} if "group" in row.cells else {})
            | ({"platform": platform} if platform and not row.cells.get("model") else {})
            | {key: value for key, value in row.cells.items() if key != "group" and value},
        )
        for row in rows
    ]


def _machine(row: Row, wrong: list[str]) -> RecordedMachine:
    since = read_time(row, _SERVICE[0], wrong)
    until = read_time(row, _SERVICE[1], wrong) if row.cells.get(_SERVICE[1]) else None
    if since is not None and until is not None and until <= since:
        wrong.append(slip(row, _SERVICE[1], f"a time after {row.cells[_SERVICE[0]]}"))
    cells = {key: value for key, value in row.cells.items() if key not in _SERVICE}
    return RecordedMachine(past_machine(Row(row.place, cells), wrong), since or NO_TIME, until)


def _fault(row: Row, wrong: list[str]) -> RecordedFault:
    cells = row.cells
    for column, limit in (("machine", LIMITS["machine"]), ("signature", 100)):
        if not cells[column].strip() or len(cells[column]) > limit:
            wrong.append(slip(row, column, f"a text of 1 to {limit} characters"))
    if cells["severity"] not in SEVERITIES:
        wrong.append(slip(row, "severity", ", ".join(SEVERITIES)))
    time = read_time(row, "time", wrong) or NO_TIME
    return RecordedFault(row.place, cells["machine"], time, cells["signature"], cells["severity"])


def _outage(row: Row, wrong: list[str]) -> Outage:
    start, end = read_time(row, "time", wrong), read_time(row, "recovered_at", wrong)
    if start is not None and end is not None and end < start:
        wrong.append(slip(row, "recovered_at", f"a time from {row.cells['time']} on"))
    told = row.cells.get("recovery_seconds", "")
    seconds = _number(told)
    if told and seconds is None:
        wrong.append(slip(row, "recovery_seconds", "a number from 0 on, or nothing"))
    cause = row.cells.get("path", "")
    return Outage(row.place, row.cells["machine"], start or NO_TIME, end or NO_TIME, cause, seconds)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _strangers(
    rows: Sequence[RecordedFault | Outage], known: Mapping[str, RecordedMachine]
) -> Iterator[str]:
    for row in rows:
        if row.machine not in known:
            yield f"{row.place}: left out, {MACHINES_FILE} does not describe {row.machine!r}"


def _lengths(outages: Sequence[Outage]) -> Iterator[str]:
    for outage in outages:
        length = outage.end - outage.start
        if outage.told_seconds is None:
            continue
        told = timedelta(seconds=outage.told_seconds)
        if abs(told - length) > SLACK:
            yield (
                f"{outage.place}: {outage.machine} is told to have been out for {told}, but from "
                f"start to end it is {length}; start and end are taken"
            )
