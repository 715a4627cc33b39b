"""From files to checked rows: what every reader of recordings shares. Pure."""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleet.errors import ImportRefused

MACHINES_FILE = "machines.csv"
#: Columns of `machines` by the names that others give them.
ALIASES: Mapping[str, str] = {"model": "platform", "cluster": "pool"}
MACHINE_COLUMNS = ("machine", "platform", "vendor", "site", "pool", "rack")
LIMITS: Mapping[str, int] = {"machine": 200, "kind": 40, "slot": 40, "version": 100}
DEFAULT_LIMIT = 100
MOST_REASONS = 20
NO_TIME = datetime.min.replace(tzinfo=UTC)  # of a row that is refused
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?(?P<zone>[Zz]|[+-]\d\d:\d\d)?")
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
class Row:
    place: str
    cells: Mapping[str, str]


def refuse(reasons: Sequence[str]) -> None:
    """Raise with the first reasons and the number of the others; do nothing without any."""
    if reasons:
        more = len(reasons) - MOST_REASONS
        raise ImportRefused([*reasons[:MOST_REASONS], *([f"and {more} more"] if more > 0 else [])])


# --- files to rows ---------------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ImportRefused([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise ImportRefused([f"{path.name}, line {line}: {found}; accepted: UTF-8 text"]) from error


def csv_rows(path: Path, *, needed: Sequence[str]) -> list[Row]:
    reader = csv.reader(_text(path).splitlines(keepends=True), strict=True)
    try:
        return list(_table(reader, name=path.name, needed=needed))
    except csv.Error as error:
        place = f"{path.name}, line {reader.line_num}"
        raise ImportRefused([f"{place}: not a CSV row: {error}"]) from error


def _table(reader: Any, *, name: str, needed: Sequence[str]) -> Iterator[Row]:
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
            yield Row(place, dict(zip(header, cells, strict=True)))


def json_rows(path: Path) -> tuple[list[Row], list[Row]]:
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


def _listed(items: Any, *, name: str) -> list[Row]:
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
        rows.append(Row(place, cells))
    return rows


# --- rows to facts ---------------------------------------------------------------------------


def kept(rows: Sequence[Row], build: Any, reasons: list[str]) -> Iterator[Any]:
    for row in rows:
        wrong: list[str] = []
        fact = build(row, wrong)
        reasons += wrong
        if not wrong:
            yield fact


def slip(row: Row, column: str, accepted: str) -> str:
    return f"{row.place}, column {column}: {row.cells.get(column, '')!r}; accepted: {accepted}"


def past_machine(row: Row, wrong: list[str]) -> PastMachine:
    own = set(row.cells)
    cells = {
        ALIASES[name] if name in ALIASES and ALIASES[name] not in own else name: value
        for name, value in row.cells.items()
    }
    for name in ("machine", "platform"):
        if not cells.get(name, "").strip():
            wrong.append(slip(row, name, "any text but the empty one"))
    for name in MACHINE_COLUMNS:
        limit = LIMITS.get(name, DEFAULT_LIMIT)
        if len(cells.get(name, "")) > limit:
            wrong.append(slip(row, name, f"a text of at most {limit}"))
    return PastMachine(
        place=row.place,
        name=cells.get("machine", ""),
        labels={k: v for k, v in cells.items() if k not in MACHINE_COLUMNS and v},
        **{name: cells.get(name, "") for name in MACHINE_COLUMNS if name != "machine"},
    )


def read_time(row: Row, column: str, wrong: list[str]) -> datetime | None:
    text = row.cells.get(column, "")
    match = _TIME.fullmatch(text)
    if match and match["zone"]:
        try:
            return datetime.fromisoformat(text.upper())
        except ValueError:
            pass  # well formed, but there is no such day or hour
    wrong.append(slip(row, column, _TIME_ACCEPTED))
    return None


def named_twice(machines: Sequence[PastMachine]) -> list[str]:
    times = Counter(machine.name for machine in machines)
    return [
        f"{machine.place}, column machine: {machine.name!r} stands there {times[machine.name]} "
        "times; accepted: every machine once"
        for machine in machines
        if times[machine.name] > 1
    ]
