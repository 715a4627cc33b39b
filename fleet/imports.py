"""Read a recorded version history from CSV or JSON: checked rows, nothing half-read. Pure.

A folder holds `version_history.csv` and, where machines are not registered yet, `machines.csv`;
or one `history.json` with the lists `versions` and `machines`. A single file is read alike.

`version_history`: `machine, component, version, valid_from, valid_to` and, if wanted, `stage`
(`active`, where left out). `component` is a kind, or `kind:slot`; an empty `valid_to` means that
the version still holds. `machines`: `machine`, `platform` (or `model`), and if wanted `vendor`,
`site`, `pool` (or `cluster`), `rack`; what else stands there becomes labels. Times are RFC 3339
with zone.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from fleet.errors import ImportRefused

VERSIONS_FILE = "version_history.csv"
MACHINES_FILE = "machines.csv"
JSON_FILE = "history.json"
STAGES = ("staged", "active", "committed")
VERSION_COLUMNS = ("machine", "component", "version", "valid_from", "valid_to")
#: Columns of `machines` by the names that others give them.
ALIASES: Mapping[str, str] = {"model": "platform", "cluster": "pool"}
MACHINE_COLUMNS = ("machine", "platform", "vendor", "site", "pool", "rack")
LIMITS: Mapping[str, int] = {"machine": 200, "kind": 40, "slot": 40, "version": 100}
DEFAULT_LIMIT = 100
MOST_REASONS = 20
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?(?P<zone>[Zz]|[+-]\d\d:\d\d)?")
_NO_TIME = datetime.min.replace(tzinfo=UTC)  # of a row that is refused
_TIME_ACCEPTED = "an RFC 3339 time with zone, such as 2026-01-31T08:00:00Z"


@dataclass(frozen=True)
class PastMachine:
    """One machine as the file names it; `place` tells where it stands."""

    place: str
    name: str
    platform: str
    vendor: str
    site: str
    pool: str
    rack: str
    labels: Mapping[str, str]


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


@dataclass(frozen=True)
class _Row:
    place: str
    cells: Mapping[str, str]


def read_history(path: Path) -> PastHistory:
    """Read a folder, a CSV file of versions or a JSON file.

    Raises
    ------
    ImportRefused
        If anything is wrong; it names file, line, column and value of each slip.
    """
    machine_rows, version_rows = _all_rows(path)
    reasons: list[str] = []
    machines = tuple(_kept(machine_rows, _machine, reasons))
    intervals = tuple(_kept(version_rows, _interval, reasons))
    reasons += _twice(machines)
    reasons += _overlaps(intervals)
    if not intervals and not reasons:
        reasons.append(f"{path}: there is no row of versions; at least one is needed")
    refuse(reasons)
    return PastHistory(machines, intervals)


def refuse(reasons: Sequence[str]) -> None:
    """Raise with the first reasons and the number of the others; do nothing without any."""
    if reasons:
        more = len(reasons) - MOST_REASONS
        raise ImportRefused([*reasons[:MOST_REASONS], *([f"and {more} more"] if more > 0 else [])])


# --- files to rows ---------------------------------------------------------------------------


def _all_rows(path: Path) -> tuple[list[_Row], list[_Row]]:
    if path.is_dir():
        if (path / JSON_FILE).is_file():
            return _json_rows(path / JSON_FILE)
        machines = path / MACHINES_FILE
        rows = _csv_rows(machines, needed=("machine",)) if machines.is_file() else []
        return rows, _csv_rows(path / VERSIONS_FILE, needed=VERSION_COLUMNS)
    if path.suffix == ".json":
        return _json_rows(path)
    return [], _csv_rows(path, needed=VERSION_COLUMNS)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ImportRefused([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise ImportRefused([f"{path.name}, line {line}: {found}; accepted: UTF-8 text"]) from error


def _csv_rows(path: Path, *, needed: Sequence[str]) -> list[_Row]:
    reader = csv.reader(_text(path).splitlines(keepends=True), strict=True)
    try:
        return list(_table(reader, name=path.name, needed=needed))
    except csv.Error as error:
        place = f"{path.name}, line {reader.line_num}"
        raise ImportRefused([f"{place}: not a CSV row: {error}"]) from error


def _table(reader: Any, *, name: str, needed: Sequence[str]) -> Iterator[_Row]:
    header: list[str] = next(reader, [])
    wrong = [column for column in needed if header.count(column) != 1]
    wrong += [column for column, times in Counter(header).items() if times > 1]
    if wrong:
        raise ImportRefused(
            [
                f"{name}, line 1, column {column}: stands there {header.count(column)} times, "
                f"once is needed; the file has: {', '.join(header) or 'nothing'}"
                for column in dict.fromkeys(wrong)
            ]
        )
    begins = reader.line_num + 1
    for cells in reader:
        place, begins = f"{name}, line {begins}", reader.line_num + 1
        if cells and len(cells) != len(header):
            found = f"{len(cells)} cells; accepted: {len(header)}, as the header has"
            raise ImportRefused([f"{place}: {found}"])
        if cells:
            yield _Row(place, dict(zip(header, cells, strict=True)))


def _json_rows(path: Path) -> tuple[list[_Row], list[_Row]]:
    try:
        document = json.loads(_text(path))
    except json.JSONDecodeError as error:
        place = f"{path.name}, line {error.lineno}, column {error.colno}"
        raise ImportRefused([f"{place}: not JSON: {error.msg}"]) from error
    if not isinstance(document, dict) or set(document) - {"machines", "versions"}:
        raise ImportRefused(
            [f'{path.name}: an object with "versions" and, if wanted, "machines" is needed']
        )
    machines, versions = (
        _listed(document.get(part, []), name=f"{path.name}, {part}")
        for part in ("machines", "versions")
    )
    return machines, versions


def _listed(items: Any, *, name: str) -> list[_Row]:
    if not isinstance(items, list):
        raise ImportRefused([f"{name}: a list is needed"])
    rows = []
    for number, item in enumerate(items):
        place = f"{name}[{number}]"
        if not isinstance(item, dict):
            raise ImportRefused([f"{place}: {item!r}; accepted: an object"])
        cells = {key: "" if value is None else value for key, value in item.items()}
        refuse(
            [
                f"{place}.{key}: {value!r}; accepted: a text"
                for key, value in cells.items()
                if not isinstance(value, str)
            ]
        )
        rows.append(_Row(place, cells))
    return rows


# --- rows to facts ---------------------------------------------------------------------------


def _kept(rows: Sequence[_Row], build: Any, reasons: list[str]) -> Iterator[Any]:
    for row in rows:
        wrong: list[str] = []
        fact = build(row, wrong)
        reasons += wrong
        if not wrong:
            yield fact


def _slip(row: _Row, column: str, accepted: str) -> str:
    return f"{row.place}, column {column}: {row.cells.get(column, '')!r}; accepted: {accepted}"


def _machine(row: _Row, wrong: list[str]) -> PastMachine:
    own = set(row.cells)
    cells = {
        ALIASES[name] if name in ALIASES and ALIASES[name] not in own else name: value
        for name, value in row.cells.items()
    }
    for name in ("machine", "platform"):
        if not cells.get(name, "").strip():
            wrong.append(_slip(row, name, "any text but the empty one"))
    for name in MACHINE_COLUMNS:
        limit = LIMITS.get(name, DEFAULT_LIMIT)
        if len(cells.get(name, "")) > limit:
            wrong.append(_slip(row, name, f"a text of at most {limit}"))
    return PastMachine(
        place=row.place,
        name=cells.get("machine", ""),
        labels={k: v for k, v in cells.items() if k not in MACHINE_COLUMNS and v},
        **{name: cells.get(name, "") for name in MACHINE_COLUMNS if name != "machine"},
    )


def _interval(row: _Row, wrong: list[str]) -> PastInterval:
    kind, _, slot = row.cells.get("component", "").partition(":")
    for column, text, limit in (
        ("machine", row.cells.get("machine", ""), LIMITS["machine"]),
        ("component", kind, LIMITS["kind"]),
        ("version", row.cells.get("version", ""), LIMITS["version"]),
    ):
        if not text.strip() or len(text) > limit:
            wrong.append(_slip(row, column, f"a text of 1 to {limit} characters"))
    if len(slot) > LIMITS["slot"]:
        wrong.append(_slip(row, "component", f"a slot of at most {LIMITS['slot']} characters"))
    stage = row.cells.get("stage", "") or "active"
    if stage not in STAGES:
        wrong.append(_slip(row, "stage", ", ".join(STAGES)))
    since = _time(row, "valid_from", wrong)
    until = _time(row, "valid_to", wrong) if row.cells.get("valid_to") else None
    if until is not None and since is not None and until <= since:
        wrong.append(_slip(row, "valid_to", f"a time after valid_from, {row.cells['valid_from']}"))
    return PastInterval(
        place=row.place,
        machine=row.cells.get("machine", ""),
        kind=kind,
        slot=slot,
        stage=stage,
        version=row.cells.get("version", ""),
        since=since or _NO_TIME,
        until=until,
    )


def _time(row: _Row, column: str, wrong: list[str]) -> datetime | None:
    text = row.cells.get(column, "")
    match = _TIME.fullmatch(text)
    if match and match["zone"]:
        try:
            return datetime.fromisoformat(text.upper())
        except ValueError:
            pass  # well formed, but there is no such day or hour
    wrong.append(_slip(row, column, _TIME_ACCEPTED))
    return None


def _twice(machines: Sequence[PastMachine]) -> list[str]:
    times = Counter(machine.name for machine in machines)
    return [
        f"{machine.place}, column machine: {machine.name!r} stands there {times[machine.name]} "
        "times; accepted: every machine once"
        for machine in machines
        if times[machine.name] > 1
    ]


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
