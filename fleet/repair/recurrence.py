"""How often a machine came back broken, and which way back follows from that. Pure.

The rules are those that operators use: a second repair of the same part of a machine within 28 days
asks for the next longer gate and a person, a third one (or five of any kind within 7 days) for a
review by those who own reliability.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

SAME_PART = timedelta(days=28)
ANY_KIND = timedelta(days=7)
MOST_OF_A_PART = 3
MOST_OF_ANY_KIND = 5
BURST = timedelta(minutes=3)  # a burst of one code on one part is one event
_REBOOTS = ("gpu_reset", "node_reboot")


@dataclass(frozen=True)
class Remediation:
    """One repair that was closed: what kind of work, on which part, and when."""

    kind: str
    part: str
    at: datetime


@dataclass(frozen=True)
class Symptom:
    """One fault: its code, the component that it names, and when."""

    code: str
    component: str
    at: datetime
    is_fatal: bool = False


@dataclass(frozen=True)
class Path:
    """Which way back: how much longer than the usual gate, who reviews, and why in words."""

    level: int = 0
    is_lemon: bool = False
    needs_person: bool = False
    needs_reliability: bool = False
    why: tuple[str, ...] = ()


def choose(
    present: Remediation,
    *,
    earlier: Sequence[Remediation],
    symptoms: Sequence[Symptom] = (),
    reviewed_at: datetime | None = None,
) -> Path:
    """Choose the way back of a machine whose repair has just been closed.

    Parameters
    ----------
    present : Remediation
        The repair that was closed now.
    earlier : sequence of Remediation
        The machine's repairs before it.
    symptoms : sequence of Symptom
        Its faults that led to the present repair.
    reviewed_at : datetime, optional
        When those who own reliability last decided about the machine. A recurrence that they have
        seen does not send it to them again, but keeps the longest gate and their release.

    Examples
    --------
    >>> from datetime import UTC
    >>> first, second = (datetime(2026, 3, day, tzinfo=UTC) for day in (1, 9))
    >>> again = choose(
    ...     Remediation("gpu_swap", "gpu", second), earlier=[Remediation("gpu_reset", "gpu", first)]
    ... )
    >>> again.level, again.is_lemon
    (1, False)
    >>> print(*again.why)
    2nd repair of gpu within 28 days (gpu_reset on 2026-03-01 00:00 UTC): the next longer gate
    """
    same = [
        one
        for one in sorted(earlier, key=lambda one: one.at)
        if one.part == present.part and present.at - SAME_PART < one.at <= present.at
    ]
    recent = [one for one in earlier if present.at - ANY_KIND < one.at <= present.at]
    words = _too_often(present, same=same, recent=recent)
    if words and (reviewed_at is None or any(one.at > reviewed_at for one in (*same, *recent))):
        return Path(is_lemon=True, needs_reliability=True, needs_person=True, why=(words,))
    if words and reviewed_at is not None:
        seen = f"reviewed {_when(reviewed_at)}: the longest gate, released by reliability"
        return Path(level=2, needs_person=True, needs_reliability=True, why=(words, seen))
    why = tuple(_escalations(present, same=same, symptoms=symptoms))
    if not why:
        return Path(why=(f"first repair of {present.part} within {SAME_PART.days} days",))
    return Path(level=1, needs_person=True, why=why)


def _too_often(
    present: Remediation, *, same: Sequence[Remediation], recent: Sequence[Remediation]
) -> str:
    if len(same) + 1 >= MOST_OF_A_PART:
        return (
            f"{_nth(len(same) + 1)} repair of {present.part} within {SAME_PART.days} days"
            f" ({_listed(same)})"
        )
    if len(recent) + 1 >= MOST_OF_ANY_KIND:
        return (
            f"{_nth(len(recent) + 1)} repair of any kind within {ANY_KIND.days} days"
            f" ({_listed(recent)})"
        )
    return ""


def _escalations(
    present: Remediation, *, same: Sequence[Remediation], symptoms: Sequence[Symptom]
) -> Iterator[str]:
    if same:
        yield (
            f"{_nth(len(same) + 1)} repair of {present.part} within {SAME_PART.days} days"
            f" ({_listed(same)}): the next longer gate"
        )
    yield from _of_codes(symptoms)
    yield from _reboots_in_vain(present, same=same, symptoms=symptoms)


# --- codes -------------------------------------------------------------------


@dataclass(frozen=True)
class _CodeRule:
    """So many events of a code on one component within so many hours, and what they ask for."""

    codes: tuple[str, ...]
    count: int
    hours: float
    asks: str
    only_fatal: bool = False


_CODE_RULES = (
    _CodeRule(("xid.13", "xid.31"), 2, 24.0, "the extended diagnostic"),
    _CodeRule(("xid.74",), 2, 24.0, "the supplier's word on the link"),
    _CodeRule(("nic.tx_timeout", "nic.rate_degraded", "nic.firmware_health"), 3, 1.0, "a new part"),
    _CodeRule(("nic.link_flap",), 3, 12.0, "another look at cable and transceiver"),
    _CodeRule(("*",), 5, 24.0, "the supplier", only_fatal=True),
)


def _of_codes(symptoms: Sequence[Symptom]) -> Iterator[str]:
    """Say which code came too often on one component; on different ones it is no part's."""
    for rule in _CODE_RULES:
        for (code, component), times in sorted(_series(symptoms, rule).items()):
            span = densest(times, count=rule.count)
            if span is None or span[1] - span[0] > timedelta(hours=rule.hours):
                continue
            where = f" on {component}" if component else ""
            yield (
                f"{code} at least {rule.count} times within {rule.hours:g} h{where}"
                f" ({_when(span[0])} to {_when(span[1])}): {rule.asks}"
            )


def _series(symptoms: Sequence[Symptom], rule: _CodeRule) -> dict[tuple[str, str], list[datetime]]:
    """Return the times of each code and component of a rule, bursts counted once."""
    found: dict[tuple[str, str], list[datetime]] = defaultdict(list)
    for one in sorted(symptoms, key=lambda one: one.at):
        if rule.only_fatal and not one.is_fatal:
            continue
        if not any(fnmatchcase(one.code, pattern) for pattern in rule.codes):
            continue
        times = found[one.code, one.component]
        if not times or one.at - times[-1] > BURST:
            times.append(one.at)
    return found


def densest(times: Sequence[datetime], *, count: int) -> tuple[datetime, datetime] | None:
    """Return begin and end of the shortest span that holds `count` of the times, in order.

    Examples
    --------
    >>> from datetime import UTC
    >>> hours = [datetime(2026, 3, 1, hour, tzinfo=UTC) for hour in (0, 9, 10)]
    >>> [one.hour for one in densest(hours, count=2)]
    [9, 10]
    """
    spans = list(zip(times, times[count - 1 :], strict=False))
    return min(spans, key=lambda span: span[1] - span[0], default=None)


def _reboots_in_vain(
    present: Remediation, *, same: Sequence[Remediation], symptoms: Sequence[Symptom]
) -> Iterator[str]:
    """Say that one code asks for a reboot again, after one has been given; XID 94 asks often."""
    reboots = [one for one in same if one.kind in _REBOOTS]
    if present.kind not in _REBOOTS or not reboots:
        return
    codes = {one.code for one in symptoms if one.code.startswith("xid.") and one.code != "xid.94"}
    for code in sorted(codes):
        after = [one.at for one in symptoms if one.code == code and one.at > reboots[-1].at]
        before = [one.at for one in symptoms if one.code == code and one.at <= reboots[-1].at]
        if after and before:
            yield f"{code} came again after {_listed(reboots)}: look at the hardware"


# --- words -------------------------------------------------------------------


def _listed(past: Sequence[Remediation]) -> str:
    return ", ".join(f"{one.kind} on {_when(one.at)}" for one in past)


def _when(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _nth(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if 10 <= number % 100 <= 20 else endings.get(number % 10, 'th')}"
