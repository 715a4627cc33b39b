"""Read recorded interruptions of jobs, such as a diary of a training run. Pure.

One CSV file with `job`, `time` and `path`, and if wanted `cause`, `recovery_seconds`,
`repeated_seconds` (or `repeated_work_seconds`, `repeated_work`). An empty cell is not known, and is
kept so; it is never 0. Times are RFC 3339 with zone, or a day alone where no hour was kept.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from math import isfinite
from pathlib import Path

from fleet.imports.rows import NO_TIME, Row, csv_rows, kept, read_time, refuse, slip

#: What other recordings call a path or a cause.
PATHS: Mapping[str, str] = {"restart_from_checkpoint": "job_restarted_from_checkpoint"}
CAUSES: Mapping[str, str] = {"site": "facility", "planned": "operator"}
_REPEATED = ("repeated_seconds", "repeated_work_seconds", "repeated_work")
_DAY_LENGTH = len("2022-03-22")


@dataclass(frozen=True)
class RecordedImpact:
    """One interruption of one job; None: not recorded. `is_day_only`: no hour was kept."""

    place: str
    job: str
    at: datetime
    is_day_only: bool
    outcome: str
    cause: str
    recovery_seconds: float | None
    repeated_seconds: float | None

    @property
    def key(self) -> str:
        """What tells it from the others of the same recording."""
        day = self.at.date().isoformat() if self.is_day_only else self.at.isoformat()
        return f"{self.job} {day} {self.outcome}"


def read_impacts(
    path: Path,
    *,
    outcomes: Collection[str],
    causes: Collection[str],
    paths: Mapping[str, str] = PATHS,
    named: Mapping[str, str] = CAUSES,
) -> tuple[RecordedImpact, ...]:
    """Read a file of interruptions.

    Parameters
    ----------
    outcomes, causes : collections of str
        What is known; anything else has to be mapped.
    paths, named : mappings
        What the file's own names of paths and causes mean, beyond `PATHS` and `CAUSES`.

    Raises
    ------
    ImportRefused
        With every reason; nothing is half-read.
    """
    rows = csv_rows(path, needed=("job", "time", "path"))
    reading = _Reading(
        {**{name: name for name in outcomes}, **PATHS, **paths},
        {**{name: name for name in causes}, "": "", **CAUSES, **named},
    )
    reasons: list[str] = []
    found = tuple(kept(rows, reading.read, reasons))
    seen: dict[str, str] = {}
    for one in found:
        if one.key in seen:
            reasons.append(f"{one.place}: {one.key!r} stands in {seen[one.key]} too")
        seen.setdefault(one.key, one.place)
    refuse(reasons)
    return found


@dataclass(frozen=True)
class _Reading:
    paths: Mapping[str, str]
    causes: Mapping[str, str]

    def read(self, row: Row, wrong: list[str]) -> RecordedImpact:
        job = row.cells["job"].strip()
        if not job or len(job) > 100:
            wrong.append(slip(row, "job", "a name of 1 to 100 characters"))
        told, cause = row.cells["path"].strip(), row.cells.get("cause", "").strip()
        if told not in self.paths:
            wrong.append(slip(row, "path", f"{', '.join(self.paths)}, or one that is mapped"))
        if cause not in self.causes:
            known = ", ".join(filter(None, self.causes))
            wrong.append(slip(row, "cause", f"{known}, or one that is mapped"))
        text = row.cells["time"].strip()
        is_day_only = len(text) == _DAY_LENGTH
        at = _day(row, text, wrong) if is_day_only else read_time(row, "time", wrong)
        repeated = next((name for name in _REPEATED if name in row.cells), "")
        return RecordedImpact(
            place=row.place,
            job=job,
            at=at or NO_TIME,
            is_day_only=is_day_only,
            outcome=self.paths.get(told, ""),
            cause=self.causes.get(cause, ""),
            recovery_seconds=_seconds(row, "recovery_seconds", wrong),
            repeated_seconds=_seconds(row, repeated, wrong),
        )


def _day(row: Row, text: str, wrong: list[str]) -> datetime | None:
    try:
        return datetime.combine(date.fromisoformat(text), time.min, tzinfo=UTC)
    except ValueError:
        wrong.append(slip(row, "time", "a day such as 2026-01-31, or a time with zone"))
        return None


def _seconds(row: Row, column: str, wrong: list[str]) -> float | None:
    """Return a number of seconds; None for an empty cell, which says nothing."""
    text = row.cells.get(column, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        wrong.append(slip(row, column, "seconds, 0 or more, or nothing where they are not known"))
        return None
    return value
