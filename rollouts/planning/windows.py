"""When attempts may start: maintenance windows in local time, less the freezes. Pure.

A window opens at a local time on the days of an RFC 5545 rule and stays open for so much elapsed
time, whatever the clocks do meanwhile. A local time that summer time skips opens at the first
instant after the gap; one that occurs twice opens at the first of the two. An attempt starts only
where it can be over before the window closes or a freeze begins.
"""

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dateutil.rrule import rrulestr

#: So far ahead the next opening is looked for.
HORIZON = timedelta(days=400)
_STEP = timedelta(days=32)
_EVERY_DAY = "FREQ=DAILY"
_FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
_PARTS = (
    "FREQ",
    "INTERVAL",
    "UNTIL",
    "BYDAY",
    "BYMONTH",
    "BYMONTHDAY",
    "BYYEARDAY",
    "BYWEEKNO",
    "BYSETPOS",
    "WKST",
)

Span = tuple[datetime, datetime]


@dataclass(frozen=True)
class Place:
    """Where a machine stands, as windows and freezes name it."""

    site: str = ""
    pool: str = ""

    def __str__(self) -> str:
        named = [f"{what} {name}" for what, name in (("pool", self.pool), ("site", self.site))]
        words = [text for text, name in zip(named, (self.pool, self.site), strict=True) if name]
        return " at ".join(words) or "machines without pool and site"


@dataclass(frozen=True)
class Window:
    """One maintenance window of a plan; without sites or pools it is for every machine."""

    rule: str
    start: time
    duration: timedelta
    zone: str = "UTC"
    first_on: date | None = None
    sites: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Window":
        """Read one window of a plan document that `window_reasons` has nothing against."""
        first_on = document.get("first_on")
        return cls(
            rule=document.get("rrule", _EVERY_DAY),
            start=time.fromisoformat(document["start"]),
            duration=timedelta(minutes=document["duration_minutes"]),
            zone=document.get("time_zone", "UTC"),
            first_on=date.fromisoformat(first_on) if first_on else None,
            sites=frozenset(document.get("sites", ())),
            pools=frozenset(document.get("pools", ())),
        )

    def covers(self, place: Place) -> bool:
        """Tell whether the window is for machines of this place."""
        return _is_named(place, sites=self.sites, pools=self.pools)


@dataclass(frozen=True)
class Freeze:
    """A time in which nobody starts; without sites or pools it is for every machine."""

    start: datetime
    end: datetime
    reason: str
    sites: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Freeze":
        """Read one freeze of a plan document."""
        return cls(
            start=datetime.fromisoformat(document["start"]),
            end=datetime.fromisoformat(document["end"]),
            reason=document["reason"],
            sites=frozenset(document.get("sites", ())),
            pools=frozenset(document.get("pools", ())),
        )

    def covers(self, place: Place) -> bool:
        """Tell whether the freeze is for machines of this place."""
        return _is_named(place, sites=self.sites, pools=self.pools)


def _is_named(place: Place, *, sites: frozenset[str], pools: frozenset[str]) -> bool:
    return (not sites or place.site in sites) and (not pools or place.pool in pools)


@dataclass(frozen=True)
class Gate:
    """Whether an attempt may start at a place; if not, why, and from when on as far as known."""

    is_open: bool
    reason: str = ""
    opens_at: datetime | None = None


def gate(
    place: Place,
    *,
    at: datetime,
    windows: Sequence[Window] = (),
    freezes: Iterable[Freeze] = (),
    need: timedelta = timedelta(0),
    ahead: timedelta = timedelta(0),
) -> Gate:
    """Tell whether an attempt that takes up to `need` may start now, and else from when on.

    Parameters
    ----------
    place : Place
    at : datetime
        With its zone.
    windows : sequence of Window
        Of the plan; with none it is always open, and a place that none of them covers never is.
    freezes : iterable of Freeze
        Of the plan and of the site.
    need : timedelta
        What has to be left of the window.
    ahead : timedelta
        So long before a window opens the draining may begin.

    Examples
    --------
    >>> nightly = Window("FREQ=DAILY", time(22), timedelta(hours=6), zone="Europe/Amsterdam")
    >>> noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    >>> gate(Place(), at=noon, windows=[nightly]).opens_at
    datetime.datetime(2026, 3, 2, 21, 0, tzinfo=datetime.timezone.utc)
    """
    own = [window for window in windows if window.covers(place)]
    if windows and not own:
        return Gate(False, f"blocked: no maintenance window of the plan is for {place}")
    frozen = _merged((f.start, f.end) for f in freezes if f.covers(place) and f.end > at)
    opens_at = _opens_at(at, own, frozen, need=need, ahead=ahead)
    if opens_at == at:
        return Gate(True)
    why = next(
        (f"frozen until {_utc(f.end)}: {f.reason}" for f in freezes_at(place, freezes, at=at)),
        _outside(at, own, need=need) if own else "a freeze begins before an attempt could be over",
    )
    if opens_at is None:
        return Gate(False, f"blocked: {why}; it opens at no time in {HORIZON.days} days")
    return Gate(False, f"{why}; it may start {_utc(opens_at)}", opens_at)


def longest_attempt(plan: Mapping[str, Any]) -> timedelta:
    """Return how long an attempt of a plan takes at most once its machine is drained.

    The install and, each to its own deadline, the return from the reboot and the reading back.
    """
    minutes = plan["install_timeout_minutes"] + 2 * plan["return_timeout_minutes"]
    return timedelta(minutes=minutes)


def freezes_at(place: Place, freezes: Iterable[Freeze], *, at: datetime) -> Iterator[Freeze]:
    """Yield the freezes that hold at a place now."""
    return (f for f in freezes if f.covers(place) and f.start <= at < f.end)


def _outside(at: datetime, windows: Sequence[Window], *, need: timedelta) -> str:
    for start, end in _spans(windows, since=at, until=at + _STEP):
        if start <= at < end:
            return f"its window closes {_utc(end)}, and an attempt may take {_minutes(need)} min"
    return "outside its maintenance windows"


def _opens_at(
    at: datetime,
    windows: Sequence[Window],
    frozen: Sequence[Span],
    *,
    need: timedelta,
    ahead: timedelta,
) -> datetime | None:
    """Return the first instant from `at` on at which an attempt may start."""
    for start, end in _open_spans(at, windows, frozen):
        first = _past(frozen, max(at, start - ahead))
        if max(first, start) + need <= end:
            return first
    return None


def _past(frozen: Sequence[Span], at: datetime) -> datetime:
    for start, end in frozen:
        if start <= at < end:
            at = end
    return at


def _open_spans(at: datetime, windows: Sequence[Window], frozen: Sequence[Span]) -> Iterator[Span]:
    """Yield what is open from `at` on, in order: the windows less the freezes."""
    far = at + HORIZON
    if not windows:
        yield from _without([(at, datetime.max.replace(tzinfo=UTC))], frozen)
        return
    since = at
    while since < far:
        yield from _without(_spans(windows, since=since, until=since + _STEP), frozen)
        since += _STEP


def _spans(windows: Sequence[Window], *, since: datetime, until: datetime) -> list[Span]:
    """Return when some window is open from `since` on, of what opens before `until`."""
    found = [
        (max(start, since), start + window.duration)
        for window in windows
        for start in _openings(window, (since - window.duration).date(), until.date())
        if since < start + window.duration and start < until
    ]
    return _merged(found)


def _merged(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _without(spans: Iterable[Span], frozen: Sequence[Span]) -> Iterator[Span]:
    for start, end in spans:
        for ice, thaw in frozen:
            if ice < end and thaw > start:
                if ice > start:
                    yield start, ice
                start = thaw
        if start < end:
            yield start, end


@functools.lru_cache(maxsize=1024)
def _openings(window: Window, first: date, last: date) -> tuple[datetime, ...]:
    """Return the instants at which a window opens on the local days around [first, last]."""
    zone = ZoneInfo(window.zone)
    begin = datetime.combine(first - timedelta(days=1), time())
    end = datetime.combine(last + timedelta(days=1), time())
    # Without an interval no day depends on where the counting starts, which so may be near.
    anchor = window.first_on or date(begin.year - 1, 1, 1)
    days = rrulestr(window.rule, dtstart=datetime.combine(anchor, time())).between(
        begin, end, inc=True
    )
    return tuple(_instant(datetime.combine(day.date(), window.start), zone) for day in days)


def _instant(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the instant of a local time: the first of two, or the first one after a gap."""
    first = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == local:
        return first
    before, after = local.replace(tzinfo=zone, fold=1).astimezone(UTC), first
    offset = before.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) // 2
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after.replace(microsecond=0)


def window_reasons(document: Mapping[str, Any], *, place: str) -> list[str]:
    """List what is wrong with a window of a plan beyond its schema; empty if nothing is.

    Examples
    --------
    >>> window_reasons({"rrule": "FREQ=HOURLY", "start": "22:00"}, place="windows[0]")
    ["windows[0].rrule: FREQ of 'HOURLY'; accepted: DAILY, WEEKLY, MONTHLY, YEARLY"]
    """
    reasons = [f"{place}.rrule: {why}" for why in _rule_reasons(document)]
    zone = document.get("time_zone", "UTC")
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        reasons.append(
            f"{place}.time_zone: {zone!r} is no known IANA time zone, such as Europe/Amsterdam"
        )
    return reasons


def _rule_reasons(document: Mapping[str, Any]) -> list[str]:
    text = document.get("rrule", _EVERY_DAY)
    pairs = [part.partition("=")[::2] for part in text.split(";")]
    parts = {name.upper(): value for name, value in pairs}
    unknown = sorted(set(parts) - set(_PARTS))
    if unknown:
        return [f"{', '.join(unknown)} is not accepted; accepted: {', '.join(_PARTS)}"]
    if parts.get("FREQ", "").upper() not in _FREQUENCIES:
        return [f"FREQ of {parts.get('FREQ')!r}; accepted: {', '.join(_FREQUENCIES)}"]
    if parts.get("INTERVAL", "1") != "1" and not document.get("first_on"):
        return ["an INTERVAL counts from a day; name it as first_on"]
    names_days = parts.keys() & {"BYDAY", "BYMONTHDAY", "BYYEARDAY"}
    if parts["FREQ"].upper() != "DAILY" and not names_days and not document.get("first_on"):
        return [f"{text!r} does not say on which day; add BYDAY or BYMONTHDAY, or first_on"]
    if "UNTIL" in parts and not re.fullmatch(r"\d{8}(T\d{6})?", parts["UNTIL"]):
        return [f"UNTIL of {parts['UNTIL']!r}; accepted: a local day such as 20271231"]
    return _unreadable(text, has_end="UNTIL" in parts)


def freeze_reasons(document: Mapping[str, Any], *, place: str) -> list[str]:
    """List what is wrong with a freeze of a plan beyond its schema; empty if nothing is.

    Examples
    --------
    >>> freeze = {"start": "2026-12-20T00:00Z", "end": "2026-12-27T00:00", "reason": "peak"}
    >>> freeze_reasons(freeze, place="freezes[0]")
    ["freezes[0].end: '2026-12-27T00:00' is no time with its zone, such as 2026-12-20T00:00Z"]
    """
    times: dict[str, datetime] = {}
    reasons = []
    for name in ("start", "end"):
        with contextlib.suppress(ValueError):
            times[name] = datetime.fromisoformat(document[name])
        if name not in times or times[name].tzinfo is None:
            reasons.append(
                f"{place}.{name}: {document[name]!r} is no time with its zone, "
                "such as 2026-12-20T00:00Z"
            )
    if not reasons and times["end"] <= times["start"]:
        reasons.append(f"{place}.end: {document['end']} is not after {document['start']}")
    return reasons


def _unreadable(text: str, *, has_end: bool) -> list[str]:
    # Searched for eight years, leap days among them: a rule like 31 February never ends by itself.
    bounded = text if has_end else f"{text};UNTIL=20090101"
    try:
        days = rrulestr(bounded, dtstart=datetime.combine(date(2000, 1, 1), time()))
        first = next(iter(days), None)
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        return [f"{text!r} cannot be read: {error}"]
    return [] if first or has_end else [f"{text!r} names no day in eight years"]


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _minutes(length: timedelta) -> str:
    return f"{length / timedelta(minutes=1):g}"
