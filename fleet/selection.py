"""Read a selector such as `platform=dgx-h100,rack in (r1,r2),env!=lab`. Pure.

The form is that of Kubernetes label selectors: requirements joined by commas, all of which must
hold: `key=value`, `key==value`, `key!=value`, `key in (a,b)`, `key notin (a,b)`, `key` (is set),
`!key` (is not set).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from fleet.errors import SelectorError

FORM = "write requirements such as platform=dgx-h100,rack in (r1,r2),env!=lab"

_KEY = r"[A-Za-z][A-Za-z0-9._/-]*"
_VALUE = r"[^\s,()=!]+"
_REQUIREMENT = re.compile(
    rf"\s*(?:"
    rf"(?P<absent>!)\s*(?P<absent_key>{_KEY})"
    rf"|(?P<set_key>{_KEY})\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>{_VALUE})"
    rf"|(?P<present_key>{_KEY})"
    rf")\s*(?:,|$)"
)


class Check(StrEnum):
    """What a requirement asks of the value of its key."""

    IN = "in"
    NOT_IN = "notin"
    PRESENT = "present"
    ABSENT = "absent"


@dataclass(frozen=True)
class Requirement:
    """One part of a selector; all parts must hold."""

    key: str
    check: Check
    values: tuple[str, ...] = ()


def parse(text: str) -> list[Requirement]:
    """Return the requirements of a selector.

    Raises
    ------
    SelectorError
        If it is empty or malformed; the message says from where on.

    Examples
    --------
    >>> parse("rack in (r1, r2), !env")
    [Requirement(key='rack', check=<Check.IN: 'in'>, values=('r1', 'r2')), \
Requirement(key='env', check=<Check.ABSENT: 'absent'>, values=())]
    """
    if not text.strip():
        raise SelectorError(f"the selector is empty and selects nothing; {FORM}")
    return list(_requirements(text))


def _requirements(text: str) -> Iterator[Requirement]:
    at = 0
    while at < len(text):
        match = _REQUIREMENT.match(text, at)
        if match is None:
            raise SelectorError(f"cannot read the selector from {text[at:]!r} on; {FORM}")
        yield _requirement(match)
        at = match.end()
    if text.rstrip().endswith(","):
        raise SelectorError(f"the selector {text!r} ends with a comma; {FORM}")


def _requirement(match: re.Match[str]) -> Requirement:
    if match["absent"]:
        return Requirement(match["absent_key"], Check.ABSENT)
    if match["present_key"]:
        return Requirement(match["present_key"], Check.PRESENT)
    if match["set"]:
        return Requirement(match["set_key"], Check(match["set"]), _values(match["values"]))
    check = Check.NOT_IN if match["operator"] == "!=" else Check.IN
    return Requirement(match["key"], check, (match["value"],))


def _values(text: str) -> tuple[str, ...]:
    values = tuple(value.strip() for value in text.split(","))
    wrong = [value for value in values if not re.fullmatch(_VALUE, value)]
    if wrong:
        raise SelectorError(f"({text}) lists {wrong[0]!r}, which is no value; {FORM}")
    return values
