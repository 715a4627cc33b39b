"""Read the raw log of a Blue Gene/L, line by line, and join what says the same again. Pure.

A line is `2005-06-05-01.55.06.697467 R11-M0-NB-C:J07-U11 RAS KERNEL FATAL rts panic! - stopping
execution`: time without a zone, place, type, component, severity, message.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum

from fleet.adapters import Report
from fleet.adapters.log_templates import named, template
from fleet.errors import AdapterFailed

AGAIN = timedelta(minutes=5)
"""The same signature at the same place within this of the last time is the same incident."""


class Level(StrEnum):
    """How far apart two lines may lie in space and still be of one incident."""

    LOCATION = "location"
    MIDPLANE = "midplane"
    SYSTEM = "system"


@dataclass(frozen=True)
class Line:
    """One line of the log."""

    at: datetime
    place: str
    component: str
    severity: str
    message: str

    @property
    def template(self) -> str:
        """The message without its numbers: its signature."""
        return template(self.message)

    def place_at(self, level: Level) -> str:
        """Return the place as one level sees it.

        Examples
        --------
        >>> from datetime import UTC
        >>> line = Line(datetime(2005, 6, 5, tzinfo=UTC), "R11-M0-NB-C:J07-U11", "", "", "")
        >>> line.place_at(Level.MIDPLANE), line.place_at(Level.SYSTEM)
        ('R11-M0', 'system')
        """
        match level:
            case Level.LOCATION:
                return self.place
            case Level.MIDPLANE:
                return "-".join(self.place.split("-")[:2])
            case Level.SYSTEM:
                return "system"


def read(lines: Iterable[str], *, zone: tzinfo) -> Iterator[Line]:
    """Yield the lines of a log one after the other; none of them is kept.

    Raises
    ------
    AdapterFailed
        If a line is none of this format; the message has its number and its beginning.
    """
    for number, text in enumerate(lines, 1):
        if text.strip():
            yield _line(text, number=number, zone=zone)


def _line(text: str, *, number: int, zone: tzinfo) -> Line:
    parts = text.rstrip("\n").split(" ", 5)
    try:
        at = datetime.strptime(parts[0], "%Y-%m-%d-%H.%M.%S.%f").replace(tzinfo=zone)
        _, place, _, component, severity, message = parts
    except ValueError:
        raise AdapterFailed(
            f"line {number} is no line of a Blue Gene/L log: {text[:80]!r}; time, place, type, "
            "component, severity and message are needed"
        ) from None
    return Line(at, place, component, severity, message)


def incidents(lines: Iterable[Line], *, level: Level, within: timedelta = AGAIN) -> Iterator[Line]:
    """Yield the first line of each incident: what says the same again, soon enough, joins it.

    Memory holds what was said within `within` of the newest line, however long the log is. Lines
    have to be in order of time; one that is late is measured from the newest of its kind.
    """
    last: dict[tuple[str, str], datetime] = {}
    for line in lines:
        while last and line.at - last[oldest := next(iter(last))] > within:
            del last[oldest]
        key = (line.template, line.place_at(level))
        before = last.pop(key, None)
        last[key] = line.at if before is None else max(before, line.at)
        if before is None or line.at - before > within:
            yield line


def faults(lines: Iterable[Line], *, level: Level) -> Iterator[Report]:
    """Turn the first line of each incident into a report; its place is the machine's name."""
    for line in incidents(lines, level=level):
        yield Report(
            "fault",
            {
                "machine": line.place_at(level),
                "time": line.at,
                "signature": named("bgl", line.message),
                "severity": _SEVERITIES.get(line.severity, "info"),
                "component": line.place if level is not Level.LOCATION else "",
                "attributes": {"message": line.message[:500], "component": line.component},
            },
        )


_SEVERITIES = {
    "FAILURE": "critical",
    "FATAL": "critical",
    "SEVERE": "major",
    "ERROR": "major",
    "WARNING": "minor",
}
