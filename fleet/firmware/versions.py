"""Compare firmware versions under a stated scheme; "not comparable" is an answer. Pure."""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any


class Scheme(StrEnum):
    """How the versions of one kind of component are spelt.

    `dotted` and `vendor_letters` take equal versions of unequal length as different: 7.2.3 comes
    before 7.2.3.1. `hexadecimal` reads digits without prefix as hexadecimal, `number` reads them
    as decimal and `0x…` as hexadecimal. `plain` knows equal, and nothing else.
    """

    DOTTED = "dotted"
    HEXADECIMAL = "hexadecimal"
    NUMBER = "number"
    VENDOR_LETTERS = "vendor_letters"
    PLAIN = "plain"


class Order(StrEnum):
    """How one version stands to another."""

    OLDER = "older"
    EQUAL = "equal"
    NEWER = "newer"
    NOT_COMPARABLE = "not_comparable"


def _dotted(version: str) -> Any:
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        return None
    return tuple(int(part) for part in version.split("."))


def _hexadecimal(version: str) -> Any:
    match = re.fullmatch(r"(?:0[xX])?([0-9a-fA-F]+)", version)
    return int(match.group(1), 16) if match else None


def _number(version: str) -> Any:
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", version):
        return int(version, 16)
    return int(version) if re.fullmatch(r"\d+", version) else None


def _vendor_letters(version: str) -> Any:
    """Split `U46b` or `P3.10a` into letters and numbers; letters compare without case."""
    if not re.fullmatch(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*", version):
        return None
    return tuple(
        int(part) if part.isdigit() else part.lower()
        for part in re.findall(r"\d+|[A-Za-z]+", version)
    )


_READERS: Mapping[Scheme, Callable[[str], Any]] = {
    Scheme.DOTTED: _dotted,
    Scheme.HEXADECIMAL: _hexadecimal,
    Scheme.NUMBER: _number,
    Scheme.VENDOR_LETTERS: _vendor_letters,
}


def compare(one: str, other: str, *, scheme: str) -> Order:
    """Tell how `one` stands to `other` under the scheme.

    Raises
    ------
    ValueError
        If the scheme is unknown.

    Examples
    --------
    >>> compare("1.10.0", "1.9.9", scheme="dotted").value
    'newer'
    >>> compare("0x15449bc", "22301116", scheme="number").value
    'equal'
    >>> compare("A07", "A7", scheme="plain").value
    'not_comparable'
    """
    known = Scheme(scheme)
    if known is Scheme.PLAIN or not one or not other:
        return Order.EQUAL if one == other and one else Order.NOT_COMPARABLE
    left, right = _READERS[known](one), _READERS[known](other)
    if left is None or right is None:
        return Order.NOT_COMPARABLE
    return _order(left, right)


def _order(left: Any, right: Any) -> Order:
    if left == right:
        return Order.EQUAL
    try:
        return Order.NEWER if left > right else Order.OLDER
    except TypeError:  # a letter stands where the other has a number
        return Order.NOT_COMPARABLE


def is_same(one: str, other: str, *, scheme: str) -> bool:
    """Tell whether both spell the same version; two unknown ones are not the same.

    What the scheme cannot read is the same where it is spelt alike.

    Examples
    --------
    >>> is_same("0x15449bc", "22301116", scheme="number"), is_same("A07", "A07", scheme="dotted")
    (True, True)
    """
    return bool(one) and (one == other or compare(one, other, scheme=scheme) is Order.EQUAL)


def spellings(version: str, *, scheme: str) -> str:
    """Return the version as shown to people: a number in both its spellings.

    Examples
    --------
    >>> spellings("0x15449bc", scheme="number")
    '0x15449bc (22301116)'
    >>> spellings("1.9.9", scheme="dotted")
    '1.9.9'
    """
    known = Scheme(scheme)
    value = _READERS[known](version) if known in {Scheme.NUMBER, Scheme.HEXADECIMAL} else None
    if value is None:
        return version
    other = (
        str(value)
        if version.lower().startswith("0x") or known is Scheme.HEXADECIMAL
        else hex(value)
    )
    return f"{version} ({other})"
