"""Which fields leave the house, and in which shape; everything else stays. Pure.

Names of machines and jobs become numbers of this package. A value of an allowed field that has not
the shape such values have, or that names something of the house, is withheld and counted: a version
that somebody typed a password into is no version.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

#: Fields of a row of the time line, by the record that it comes from. Nothing else leaves.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "fault": ("signature", "component", "severity", "count"),
    "interruption": ("job", "outcome", "recovery_seconds", "repeated_seconds"),
    "impact": (
        "job",
        "job_kind",
        "outcome",
        "recovery_seconds",
        "repeated_seconds",
        "accelerators",
        "accelerator_hours_lost",
    ),
    "firmware": ("component", "stage", "version"),
    "change": ("change_kind", "component", "old", "new"),
    "state": ("old", "new"),
    "incident": ("step", "cause"),
    "repair": ("repair_kind", "step", "outcome"),
    "part": ("component", "old", "new", "old_model", "new_model"),
    "check": ("check", "outcome", "value", "unit", "low", "high"),
    "gate": ("step",),
    "later": ("signature", "component", "severity", "count"),
    "text": ("field", "text"),
}
#: Columns of the time line in their order: when, whose, from which record, then the fields.
COLUMNS = (
    "time",
    "machine",
    "incident",
    "source",
    *dict.fromkeys(name for names in FIELDS.values() for name in names),
)
#: What stands where a value was withheld.
WITHHELD = "[withheld]"

#: Kinds of components that are called so everywhere.
COMPONENTS = frozenset(
    [
        "accelerator",
        "backplane",
        "baseboard",
        "bios",
        "bmc",
        "cable",
        "chassis",
        "cpld",
        "cpu",
        "dimm",
        "disk",
        "dpu",
        "drive",
        "erot",
        "fan",
        "fpga",
        "gpu",
        "hbm",
        "hba",
        "hgx",
        "inforom",
        "link",
        "memory",
        "nic",
        "nvlink",
        "nvme",
        "nvswitch",
        "pcie",
        "port",
        "power",
        "psu",
        "rail",
        "retimer",
        "rom",
        "sensor",
        "ssd",
        "switch",
        "tray",
        "uefi",
        "vbios",
        "vrm",
        "driver",
        "kernel",
        "firmware",
    ]
)
_COMPONENT = re.compile(r"(?P<kind>[A-Za-z]+)(?P<slot>[ :_/-]?(?:slot|bay|port)? ?[0-9]{1,3})?")
#: At most five letters, then a digit: 96.00.74.00.01, v2.14, P20, 28.39.3004-rc1.
_VERSION = re.compile(r"[A-Za-z]{0,5}[-. ]?[0-9][0-9A-Za-z]{0,11}([-._+][0-9A-Za-z]{1,11}){0,7}")
_SERIAL = re.compile(r"(?=[A-Za-z-]*[0-9])[0-9A-Za-z]{1,24}(-[0-9A-Za-z]{1,12}){0,4}")
_MODEL = re.compile(r"(?=.*[0-9])[0-9A-Za-z]{1,16}([ ._/-][0-9A-Za-z]{1,16}){0,5}")
_ADDRESS = re.compile(
    r"(?<![0-9.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9.])"
    r"|(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{0,4}:){3,7}[0-9A-Fa-f]{0,4}(?![0-9A-Fa-f:])"
)
_PRIVATE = re.compile(
    r"(10|127|192\.168|169\.254|172\.(1[6-9]|2[0-9]|3[01])|100\.(6[4-9]|[7-9]\d|1[01]\d|12[0-7]))"
    r"\.[0-9.]+"
)
#: A label of letters alone after a dot: the name of a host or a person, and no version.
_DOTTED_NAME = re.compile(r"\.[A-Za-z]{2,}(\.|$)")
#: In a text: addresses, mail, links, host names with dots, and what stands behind a secret's name.
_IN_TEXT = (
    re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+"),
    re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)*"),
    re.compile(
        r"(?i)\b(pass(word|wd|phrase)?|secret|token|api[_-]?key|credentials?|bearer|login|user)"
        r"\b\s*(is|[:=])?\s*\S+"
    ),
    _ADDRESS,
    re.compile(r"\b[A-Za-z0-9-]+(\.[A-Za-z][A-Za-z0-9-]*)+\b"),
    re.compile(r"(/[\w.-]+){2,}"),
)
_LEAST_NAME = 3


@dataclass
class Names:
    """Numbers for what has a name of the house, the same all through one package.

    `secret` are names that must not leave whatever field they stand in.
    """

    secret: frozenset[str] = frozenset()
    _numbers: dict[tuple[str, str], str] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def number(self, letter: str, name: str) -> str:
        """M1 for the first machine, J1 for the first job; empty for nothing."""
        if not name:
            return ""
        key = (letter, name)
        if key not in self._numbers:
            self._counts[letter] += 1
            self._numbers[key] = f"{letter}{self._counts[letter]}"
        return self._numbers[key]

    def count(self, letter: str) -> int:
        return self._counts[letter]

    def is_named(self, text: str) -> bool:
        """Whether a name of the house stands in this text."""
        low = text.casefold()
        return any(name in low for name in self.secret)


def secrets(names: Iterable[str]) -> frozenset[str]:
    """Names worth looking for: folded, and not so short that they stand in any word."""
    return frozenset(
        folded for name in names if len(folded := str(name).strip().casefold()) >= _LEAST_NAME
    )


@dataclass
class Filter:
    """Lets values of allowed fields through if they have their shape; counts what it withholds.

    Parameters
    ----------
    names : Names
    signatures : collection of str
        Names of the shipped catalogue; others are numbered.
    checks : collection of str
        Names of the shipped checks; others are numbered.
    """

    names: Names
    signatures: Collection[str] = ()
    checks: Collection[str] = ()
    withheld: Counter[str] = field(default_factory=Counter)

    def signature(self, name: str) -> str:
        return self._known(name, self.signatures, "U", "signatures of your own")

    def check(self, name: str) -> str:
        return self._known(name, self.checks, "C", "checks of your own")

    def component(self, text: str) -> str:
        """Kind and slot; only kinds that are called so everywhere, only slots that are numbers."""
        if not text:
            return ""
        match = _COMPONENT.fullmatch(text)
        if match is None or match["kind"].casefold() not in COMPONENTS:
            return self._withhold("components")
        return text

    def version(self, text: str) -> str:
        return self._shaped(text, _VERSION, "versions")

    def serial(self, text: str) -> str:
        return self._shaped(text, _SERIAL, "serial numbers")

    def model(self, text: str) -> str:
        return self._shaped(text, _MODEL, "models")

    def unit(self, text: str, *, known: Collection[str]) -> str:
        return text if not text or text in known else self._withhold("units")

    def word(self, text: str, *, known: Collection[str]) -> str:
        """One of the product's own words."""
        return text if not text or text in known else self._withhold("words")

    def text(self, text: str) -> str:
        """A free text that somebody let through, without what names the house or is a secret.

        Examples
        --------
        >>> Filter(Names(secrets(["node7"]))).text("seen on NODE7 (10.0.0.7), password: hunter2")
        'seen on [withheld] ([withheld]), [withheld]'
        """
        for pattern in _IN_TEXT:
            text = pattern.sub(WITHHELD, text)
        for name in sorted(self.names.secret, key=lambda name: (-len(name), name)):
            text = re.sub(re.escape(name), WITHHELD, text, flags=re.IGNORECASE)
        return text

    def _known(self, name: str, known: Collection[str], letter: str, what: str) -> str:
        if not name or name in known:
            return name
        self.withheld[what] += 1
        return self.names.number(letter, name)

    def _shaped(self, text: str, shape: re.Pattern[str], what: str) -> str:
        if not text:
            return ""
        is_private = _PRIVATE.fullmatch(text) is not None and text.count(".") == 3
        is_name = _DOTTED_NAME.search(text) is not None or self.names.is_named(text)
        if shape.fullmatch(text) is None or is_private or is_name:
            return self._withhold(what)
        return text

    def _withhold(self, what: str) -> str:
        self.withheld[what] += 1
        return WITHHELD


@dataclass(frozen=True)
class Row:
    """One row of the time line; `values` are of the fields that its source may give."""

    at: datetime
    machine: str
    incident: str
    source: str
    values: Mapping[str, str | int | float | None]

    def __post_init__(self) -> None:
        strange = set(self.values) - set(FIELDS[self.source])
        if strange:
            raise ValueError(f"{self.source} gives {sorted(strange)}; {FIELDS[self.source]} leave")

    @property
    def told(self) -> list[tuple[str, str | int | float]]:
        """Names and values of its fields that say something."""
        given = self.values.items()
        return [(name, value) for name, value in given if value is not None and value != ""]

    def cells(self) -> dict[str, str | int | float]:
        """By column, without those that say nothing; the time in UTC."""
        return {
            "time": utc(self.at),
            "machine": self.machine,
            "incident": self.incident,
            "source": self.source,
            **dict(self.told),
        }


def utc(at: datetime) -> str:
    """A time in UTC, to the second.

    Examples
    --------
    >>> utc(datetime.fromisoformat("2026-03-02T13:00:00+01:00"))
    '2026-03-02T12:00:00Z'
    """
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
