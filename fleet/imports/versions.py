"""Read a recorded version history from CSV or JSON: checked rows, nothing half-read. Pure.

A folder holds `version_history.csv` and, where machines are not registered yet, `machines.csv`;
or one `history.json` with the lists `versions` and `machines`. A single file is read alike.

`version_history`: `machine, component, version, valid_from, valid_to` and, if wanted, `stage`
(`active`, where left out). `component` is a kind, or `kind:slot`; an empty `valid_to` means that
the version still holds. `machines`: `machine`, `platform` (or `model`), and if wanted `vendor`,
`site`, `pool` (or `cluster`), `rack`; what else stands there becomes labels. Times are RFC 3339
with zone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from pathlib import Path

from fleet.imports.rows import (
    LIMITS,
    MACHINES_FILE,
    NO_TIME,
    PastMachine,
    Row,
    csv_rows,
    json_rows,
    kept,
    named_twice,
    past_machine,
    read_time,
    refuse,
    slip,
)

VERSIONS_FILE = "version_history.csv"
JSON_FILE = "history.json"
STAGES = ("staged", "active", "committed")
VERSION_COLUMNS = ("machine", "component", "version", "valid_from", "valid_to")


@dataclass(frozen=True)
class PastInterval:
    """One version of one component from `since` to `until` (None: still)."""

    place: str
    machine: str
    kind: str
    slot: str
    stage: str
    version: str
    since: datetime
    until: datetime | None


@dataclass(frozen=True)
class PastHistory:
    """What one folder or file says."""

    machines: tuple[PastMachine, ...]
    intervals: tuple[PastInterval, ...]


def read_history(path: Path) -> PastHistory:
    """Read a folder, a CSV file of versions or a JSON file.

    Raises
    ------
    ImportRefused
        If anything is wrong; it names file, line, column and value of each slip.
    """
    machine_rows, version_rows = _all_rows(path)
    reasons: list[str] = []
    machines = tuple(kept(machine_rows, past_machine, reasons))
    intervals = tuple(kept(version_rows, _interval, reasons))
    reasons += named_twice(machines)
    reasons += _overlaps(intervals)
    if not intervals and not reasons:
        reasons.append(f"{path}: there is no row of versions; at least one is needed")
    refuse(reasons)
    return PastHistory(machines, intervals)


def _all_rows(path: Path) -> tuple[list[Row], list[Row]]:
    if path.is_dir():
        if (path / JSON_FILE).is_file():
            return json_rows(path / JSON_FILE)
        machines = path / MACHINES_FILE
        rows = csv_rows(machines, needed=("machine",)) if machines.is_file() else []
        return rows, csv_rows(path / VERSIONS_FILE, needed=VERSION_COLUMNS)
    if path.suffix == ".json":
        return json_rows(path)
    return [], csv_rows(path, needed=VERSION_COLUMNS)


def _interval(row: Row, wrong: list[str]) -> PastInterval:
    kind, _, slot = row.cells.get("component", "").partition(":")
    for column, text, limit in (
        ("machine", row.cells.get("machine", ""), LIMITS["machine"]),
        ("component", kind, LIMITS["kind"]),
        ("version", row.cells.get("version", ""), LIMITS["version"]),
    ):
        if not text.strip() or len(text) > limit:
            wrong.append(slip(row, column, f"a text of 1 to {limit} characters"))
    if len(slot) > LIMITS["slot"]:
        wrong.append(slip(row, "component", f"a slot of at most {LIMITS['slot']} characters"))
    stage = row.cells.get("stage", "") or "active"
    if stage not in STAGES:
        wrong.append(slip(row, "stage", ", ".join(STAGES)))
    since = read_time(row, "valid_from", wrong)
    until = read_time(row, "valid_to", wrong) if row.cells.get("valid_to") else None
    if until is not None and since is not None and until <= since:
        wrong.append(slip(row, "valid_to", f"a time after valid_from, {row.cells['valid_from']}"))
    return PastInterval(
        place=row.place,
        machine=row.cells.get("machine", ""),
        kind=kind,
        slot=slot,
        stage=stage,
        version=row.cells.get("version", ""),
        since=since or NO_TIME,
        until=until,
    )


def _overlaps(intervals: Sequence[PastInterval]) -> list[str]:
    return [
        f"{later.place}, column valid_from: {later.since.isoformat()} lies before the end of the "
        f"interval of {earlier.place} ({earlier.until.isoformat() if earlier.until else 'open'}); "
        "accepted: intervals of one component that follow each other"
        for _, own in by_part(intervals)
        for earlier, later in pairwise(own)
        if earlier.until is None or later.since < earlier.until
    ]


def by_part(
    intervals: Sequence[PastInterval],
) -> Iterator[tuple[tuple[str, str, str, str], list[PastInterval]]]:
    """Group the intervals by machine, kind, slot and stage, each group in order of time."""

    def part(interval: PastInterval) -> tuple[str, str, str, str]:
        return interval.machine, interval.kind, interval.slot, interval.stage

    ordered = sorted(intervals, key=lambda interval: (part(interval), interval.since))
    for key, own in groupby(ordered, key=part):
        yield key, list(own)
