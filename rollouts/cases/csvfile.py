"""A CSV file as a stream of checked rows: UTF-8, one header row, RFC 3339 times, finite numbers.

Nothing here knows what a column means. A row is held only while it is looked at, so a file may
be much larger than memory; of rows seen, a digest of 16 bytes is kept to find repetitions.
"""

import csv
import difflib
import functools
import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rollouts.analysis.samples import LARGEST
from rollouts.cases.slips import Slip, SlipKind, Slips, shortened
from rollouts.errors import CaseRefused

if TYPE_CHECKING:
    import _csv

MAX_LINE = 1 << 20  # characters; a longer line is no table of measurements
RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
    r"(?P<zone>[Zz]|[+-][0-9]{2}:[0-9]{2})?"
)
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
FIRST_YEAR, LAST_YEAR = 1900, 2199
"""No machine was watched before or after; 9999 means that something has no end."""
TIME_ACCEPTED = (
    "an RFC 3339 time with zone, such as 2026-01-31T08:00:00Z, of the years "
    f"{FIRST_YEAR} to {LAST_YEAR}"
)


class BadCell(ValueError):
    """One cell cannot be read; the table turns it into a slip with file and line."""

    def __init__(self, column: str, value: str, kind: SlipKind, accepted: str) -> None:
        super().__init__(f"{column}: {value!r}")
        self.column = column
        self.value = value
        self.kind = kind
        self.accepted = accepted


def time_in(cell: str, *, column: str) -> float:
    """Seconds since 1970 of an RFC 3339 time.

    Examples
    --------
    >>> time_in("1970-01-01T01:00:30+01:00", column="start")
    30.0
    """
    seconds = _seconds(cell)
    if isinstance(seconds, SlipKind):
        raise BadCell(column, cell, seconds, TIME_ACCEPTED)
    return seconds


@functools.lru_cache(maxsize=1 << 16)  # telemetry repeats its instants over the machines
def _seconds(cell: str) -> float | SlipKind:
    match = RFC_3339.fullmatch(cell)
    if match is None:
        return SlipKind.BAD_TIME if cell else SlipKind.MISSING_VALUE
    if match["zone"] is None:
        return SlipKind.TIME_WITHOUT_ZONE
    try:
        moment = datetime.fromisoformat(cell.upper())
    except ValueError:
        return SlipKind.BAD_TIME
    return moment.timestamp() if FIRST_YEAR <= moment.year <= LAST_YEAR else SlipKind.BAD_TIME


def number_in(cell: str, *, column: str, at_least: float = -math.inf) -> float:
    """A decimal number, not below `at_least` and not beyond `LARGEST`.

    Examples
    --------
    >>> number_in("1.5e3", column="throughput", at_least=0)
    1500.0
    """
    least = "" if at_least == -math.inf else f", at least {at_least:g}"
    accepted = f"a finite number{least}"
    if NUMBER.fullmatch(cell) is None:
        kind = SlipKind.NOT_A_NUMBER if cell else SlipKind.MISSING_VALUE
        raise BadCell(column, cell, kind, accepted)
    value = float(cell)
    if math.isinf(value):
        raise BadCell(column, cell, SlipKind.NOT_A_NUMBER, accepted)
    if abs(value) > LARGEST:
        raise BadCell(column, cell, SlipKind.TOO_LARGE, f"{accepted}, up to {LARGEST:g}")
    if value < at_least:
        raise BadCell(column, cell, SlipKind.NEGATIVE_VALUE, accepted)
    return value


def text_in(cell: str, *, column: str) -> str:
    """Any text but the empty one."""
    if not cell:
        raise BadCell(column, cell, SlipKind.MISSING_VALUE, "any text but the empty one")
    return cell


class CsvFile:
    """One CSV file of a case.

    Parameters
    ----------
    path : Path
    columns : mapping of str to str
        The columns that are needed, by the part they play; the values are the file's own names.
    slips : Slips
        Takes note of bad rows.
    """

    def __init__(self, path: Path, *, columns: Mapping[str, str], slips: Slips) -> None:
        self.path = path
        self.name = path.name
        self.columns = columns
        self.slips = slips
        self.header: tuple[str, ...] = ()

    def rows(self, *extra: str) -> Iterator[tuple[int, list[str]]]:
        """Line number and cells, in the order of `columns`, then of the `extra` columns.

        Rows that repeat an earlier one in every cell, and rows with too few or too many cells,
        are slips.
        """
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as handle:
                yield from self._read(handle, extra)
        except UnicodeDecodeError as error:
            raise self._encoding_error(error) from error
        except OSError as error:
            raise CaseRefused(f"{self.path}: cannot be read: {error.strerror}") from error

    def _read(self, handle: TextIO, extra: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(self._lines(handle), strict=True)
        header = self._next(reader)
        if header is None:
            raise CaseRefused(f"{self.name}, line 1: the file is empty; accepted: a header row")
        self.header = tuple(header)
        wanted = self._positions(extra)
        seen: set[bytes] = set()
        last = reader.line_num
        while (row := self._next(reader)) is not None:
            line, last = last + 1, reader.line_num
            if row and self._is_good(row, line=line, seen=seen):
                yield line, [row[position] for position in wanted]

    def _next(self, reader: "_csv.Reader") -> list[str] | None:
        try:
            return next(reader, None)
        except csv.Error as error:
            raise CaseRefused(
                f"{self.name}, line {reader.line_num}: not a CSV row: {error}; "
                "accepted: comma-separated cells, quotes doubled inside quotes"
            ) from error

    def _lines(self, handle: TextIO) -> Iterator[str]:
        line = 0
        while text := handle.readline(MAX_LINE):
            line += 1
            if len(text) >= MAX_LINE:
                raise CaseRefused(
                    f"{self.name}, line {line}: begins {shortened(text)!r} and does not end; "
                    f"accepted: lines of fewer than {MAX_LINE} characters"
                )
            if "\0" in text:
                column = _column(self.header, text.count(",", 0, text.index("\0")))
                raise CaseRefused(
                    f"{self.name}, line {line}, column {column}: {shortened(text.strip())!r} "
                    "holds a NUL character; accepted: UTF-8 text"
                )
            yield text

    def _positions(self, extra: Sequence[str]) -> list[int]:
        """Where the wanted columns stand; everything that is wrong with the header at once."""
        wanted = [*self.columns.items(), *((None, name) for name in extra)]
        times = Counter(self.header)
        wrong = [self._wrong(part, name, times[name]) for part, name in wanted if times[name] != 1]
        if not wrong:
            return [self.header.index(name) for _, name in wanted]
        wrong.append(f"{self.name}: columns of the file: {', '.join(self.header)}")
        unmapped = [part for part, name in wanted if part == name and not times[name]]
        if unmapped:
            mapping = ", ".join(f'"{part}": "..."' for part in unmapped)
            wrong.append(
                "If columns of the file are meant, say so in the policy: "
                f'"columns": {{"{self.path.stem}": {{{mapping}}}}}'
            )
        raise CaseRefused("\n".join(wrong))

    def _wrong(self, part: str | None, name: str, times: int) -> str:
        place = f"{self.name}, line 1, column {name}: "
        if times > 1:
            return f"{place}stands there {times} times"
        if part is None:
            return f"{place}not there, but the policy names it{_close(name, self.header)}"
        if part != name:
            hint = _close(name, self.header)
            return f"{place}not there, but the policy maps {part!r} to it{hint}"
        return f"{place}not there"

    def _is_good(self, row: Sequence[str], *, line: int, seen: set[bytes]) -> bool:
        if len(row) != len(self.header):
            accepted = f"{len(self.header)} cells, as the header has"
            self.slip(
                line,
                BadCell("(all)", f"{len(row)} cells", SlipKind.WRONG_NUMBER_OF_FIELDS, accepted),
            )
            return False
        digest = hashlib.blake2b("\x1f".join(row).encode(), digest_size=16).digest()
        if digest in seen:
            self.slip(
                line,
                BadCell(
                    "(all)", ",".join(row), SlipKind.DUPLICATE, "every row once; the first is kept"
                ),
            )
            return False
        seen.add(digest)
        return True

    def slip(self, line: int, bad: BadCell) -> None:
        """Take note of a bad row; refuses the case unless slips are reported."""
        column = self.columns.get(bad.column, bad.column)
        self.slips.add(Slip(self.name, line, column, bad.value, bad.kind, bad.accepted))

    def _encoding_error(self, error: UnicodeDecodeError) -> CaseRefused:
        data = self.path.read_bytes()
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as whole:
            error = whole
        line = data.count(b"\n", 0, error.start) + 1
        start = data.rfind(b"\n", 0, error.start) + 1
        header = data.split(b"\n", 1)[0].decode("utf-8-sig", errors="replace").strip().split(",")
        column = _column(header, data.count(b",", start, error.start))
        return CaseRefused(
            f"{self.name}, line {line}, column {column}: byte 0x{data[error.start]:02x} is not "
            "UTF-8; accepted: UTF-8 text"
        )


def _column(header: Sequence[str], position: int) -> str:
    return header[position] if position < len(header) else f"number {position + 1}"


def _close(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
