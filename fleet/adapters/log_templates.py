"""What the words of a log line mean: its template, and the signature that it stands for. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_SIGNATURE = 100

_HEX = re.compile(r"\b0x[0-9a-fA-F]+")
_DIGITS = re.compile(r"\d+")
_BETWEEN = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Meaning:
    """The signature of a message, empty if it tells of no fault; the pattern names its part."""

    signature: str
    pattern: re.Pattern[str]
    component: str = ""

    def part(self, message: str) -> str:
        """Return the component that the message speaks of, empty if it does not say."""
        found = self.pattern.search(message)
        if found is None or None in found.groupdict().values():
            return ""
        return self.component.format(**found.groupdict())


def template(message: str) -> str:
    """Return a message without its numbers, so that lines of one kind are the same.

    Examples
    --------
    >>> template("machine check interrupt (bit=0x06): L3 major internal error")
    'machine check interrupt (bit=<hex>): L<n> major internal error'
    """
    return _DIGITS.sub("<n>", _HEX.sub("<hex>", message)).strip()


def named(prefix: str, message: str) -> str:
    """Return a signature for a message that no table knows, by its template.

    Examples
    --------
    >>> named("bgl", "rts panic! - stopping execution")
    'bgl.rts-panic-stopping-execution'
    """
    words = template(message).replace("<n>", "").replace("<hex>", "").lower()
    slug = _BETWEEN.sub("-", words).strip("-") or "unnamed"
    return f"{prefix}.{slug}"[:LONGEST_SIGNATURE].rstrip("-")


def meaning(message: str, *, known: Sequence[Meaning]) -> Meaning | None:
    """Return the first of the known meanings whose pattern is found, or None."""
    return next((one for one in known if one.pattern.search(message)), None)
