"""Which cells the benchmark runs, in its short and its full form, and what is asked of each."""

from dataclasses import dataclass
from enum import StrEnum

from benchmarks.cells import Cell


class Role(StrEnum):
    """What a cell is for."""

    NULL = "null"
    """The firmware does no more than is tolerated: a halt is false."""
    MARGIN = "margin"
    """A metric at its margin: a widening is false, the test exact."""
    ASYMPTOTIC_MARGIN = "asymptotic margin"
    """The same, for tests that are asymptotic."""
    POWER = "power"
    """Beside the prototype's figure: one guardrail, one wave, no extension."""
    LEAST = "least power"
    """A stated least share of halts."""
    SHOWN = "shown"
    """Reported, not judged."""


@dataclass(frozen=True)
class Entry:
    """A cell, its role, and the figure it is held against, if any.

    `in_short` is its number of replications in the short form; 0 leaves it out.
    """

    cell: Cell
    role: Role
    reference: float | None = None
    in_short: int = 0
    in_full: int = 400

    @property
    def counts_halts(self) -> bool:
        return self.role in (Role.NULL, Role.POWER, Role.SHOWN)

    @property
    def judged_as_widening(self) -> bool:
        return self.role in (Role.MARGIN, Role.ASYMPTOTIC_MARGIN)


PROTOTYPE_SIZE = 400
"""Replications behind a figure of the prototype (standard error 1.1 points at 5 %)."""
ASYMPTOTIC_LEVEL = 0.065


def _null(cell: Cell, *, short: int = 0) -> Entry:
    return Entry(cell, Role.NULL, in_short=short, in_full=1000)


def _power(cell: Cell, percent: float, *, short: int = 0) -> Entry:
    return Entry(cell, Role.POWER, percent / 100, in_short=short)


SHORT = 40
"""Replications of a cell in the short form."""

NULLS = (
    _null(Cell(), short=SHORT),
    _null(Cell(lemons=False), short=SHORT),
    _null(Cell(shocks=0.2)),
    _null(Cell(bursts=2.0)),
    _null(Cell(shocks=0.2, bursts=2.0), short=SHORT),
    _null(Cell(infant="burn_in")),
    _null(Cell(dropouts="both"), short=SHORT),
    _null(Cell(exposure="uneven"), short=SHORT),
    _null(Cell(fractions="unequal"), short=SHORT),
    _null(Cell(removal=True), short=SHORT),
    _null(Cell(size="8+32", shocks=0.2, bursts=2.0)),
    _null(Cell(size="64+1024", rate=0.02)),
    _null(Cell(rate=0.02)),
    _null(Cell(size="256+1024", rate=0.05)),
    _null(Cell(exposure="uneven", dropouts="both", fractions="unequal", shocks=0.2, bursts=2.0)),
    _null(Cell(history=True)),
    _null(Cell(policy="throughput", drop=0.01), short=SHORT),
    _null(Cell(policy="throughput", drop=0.01, unit="job")),
    _null(Cell(policy="throughput", drop=0.01, dropouts="both")),
    _null(Cell(policy="throughput", drop=0.01, size="256+1024")),
    _null(Cell(policy="recovery_time")),
    _null(Cell(policy="severe_path")),
    _null(Cell(policy="install", size="500+500", infant="burn_in"), short=SHORT),
)

ENGINE_NULLS = (
    _null(Cell(policy="engine", infant="burn_in"), short=SHORT // 2),
    _null(Cell(policy="engine", size="100+400", infant="burn_in")),
    _null(Cell(policy="engine", drop=0.01)),
    _null(Cell(policy="engine", rate=0.05, shocks=0.02, bursts=1.0), short=SHORT // 2),
    _null(Cell(policy="engine", size="8+32")),
    _null(Cell(policy="engine", dropouts="both", exposure="uneven", fractions="unequal")),
    _null(Cell(policy="engine", extension=True)),
    _null(Cell(policy="engine", size="400", waves=(1, 3, 8)), short=SHORT // 3),
    _null(Cell(policy="engine", size="400", waves=(1, 3, 8), shocks=0.2, bursts=2.0, drop=0.01)),
    Entry(Cell(policy="engine", dropouts="canary"), Role.SHOWN, in_short=SHORT // 4),
)

MARGINS = (
    Entry(Cell(ratio=2.0, halts=False), Role.ASYMPTOTIC_MARGIN, in_short=SHORT, in_full=1000),
    Entry(Cell(ratio=2.0, halts=False, rate=0.05), Role.ASYMPTOTIC_MARGIN, in_full=1000),
    Entry(Cell(ratio=2.0, halts=False, size="256+1024"), Role.ASYMPTOTIC_MARGIN, in_full=1000),
    Entry(
        Cell(ratio=2.0, halts=False, exposure="uneven", fractions="unequal"),
        Role.ASYMPTOTIC_MARGIN,
        in_short=SHORT,
        in_full=1000,
    ),
    Entry(
        Cell(ratio=2.0, halts=False, shocks=0.2, bursts=2.0),
        Role.ASYMPTOTIC_MARGIN,
        in_full=1000,
    ),
    # With removal the totals estimate faults per in-service day: bad machines are away more, so
    # machines that fail 2.15 times as often show a ratio of 2.0 (2.01 over 1,500 waves).
    Entry(Cell(ratio=2.15, halts=False, removal=True), Role.ASYMPTOTIC_MARGIN, in_full=1000),
    Entry(Cell(ratio=2.0, halts=False, removal=True), Role.SHOWN, in_full=1000),
    Entry(Cell(ratio=2.0, halts=False, dropouts="both"), Role.ASYMPTOTIC_MARGIN, in_full=1000),
    Entry(
        Cell(policy="throughput", drop=0.02, halts=False),
        Role.MARGIN,
        in_short=SHORT,
        in_full=1000,
    ),
    Entry(
        Cell(policy="throughput", drop=0.02, halts=False, dropouts="both"),
        Role.MARGIN,
        in_full=1000,
    ),
    Entry(Cell(policy="recovery_time", recovery=1.5, halts=False), Role.MARGIN, in_full=1000),
    Entry(
        Cell(policy="severe_path", severe=0.15, halts=False),
        Role.ASYMPTOTIC_MARGIN,
        in_full=1000,
    ),
    Entry(Cell(policy="engine", ratio=2.0), Role.ASYMPTOTIC_MARGIN, in_full=1000),
    Entry(Cell(policy="engine", drop=0.02), Role.MARGIN, in_full=1000),
)

_FAULT_POWER: tuple[tuple[str, float, dict[float, float]], ...] = (
    ("64+256", 0.005, {2: 10, 3: 22, 5: 51}),
    ("64+256", 0.02, {1.5: 14, 2: 29, 3: 55, 5: 93}),
    ("64+256", 0.05, {1.5: 19, 2: 47, 3: 86, 5: 100}),
    ("64+256", 0.2, {1.5: 45, 2: 88, 3: 100, 5: 100}),
    ("8+32", 0.05, {2: 8, 3: 20, 5: 45}),
    ("8+32", 0.2, {1.5: 14, 2: 23, 3: 49, 5: 82}),
    ("256+1024", 0.005, {2: 29, 3: 72, 5: 99}),
    ("256+1024", 0.05, {1.5: 46, 2: 91, 3: 100, 5: 100}),
    ("256+1024", 0.2, {1.5: 92, 2: 100}),
)
_SHORT_POWER = {("64+256", 0.2, 2), ("64+256", 0.2, 3), ("64+256", 0.05, 3), ("256+1024", 0.05, 2)}

POWERS = (
    *(
        _power(
            Cell(size=size, rate=rate, ratio=float(ratio), history=True),
            percent,
            short=SHORT if (size, rate, ratio) in _SHORT_POWER else 0,
        )
        for size, rate, row in _FAULT_POWER
        for ratio, percent in row.items()
    ),
    Entry(Cell(policy="throughput", drop=0.02), Role.LEAST, 0.98, in_short=SHORT),
    Entry(Cell(policy="recovery_time", recovery=1.5), Role.LEAST, 0.72),
)

SHOWN = (
    Entry(Cell(ratio=2.0), Role.SHOWN, in_short=SHORT),
    Entry(Cell(ratio=2.0, rate=0.05), Role.SHOWN),
    Entry(Cell(ratio=3.0, rate=0.02), Role.SHOWN),
    Entry(Cell(ratio=1.5), Role.SHOWN),
    Entry(Cell(ratio=1.5, rate=0.05, size="256+1024"), Role.SHOWN),
    Entry(Cell(ratio=3.0, onset_hours=24.0), Role.SHOWN),
    Entry(Cell(ratio=10.0, rate=0.05), Role.SHOWN),
    Entry(Cell(ratio=2.0, spill_over=0.5), Role.SHOWN),
    Entry(Cell(infant="no_burn_in"), Role.SHOWN),
    Entry(Cell(ratio=2.0, size="64+1024"), Role.SHOWN),
    Entry(Cell(dropouts="canary"), Role.SHOWN, in_short=SHORT // 2),
    Entry(Cell(policy="throughput", drop=0.05, unit="job"), Role.SHOWN),
    Entry(Cell(policy="install", install=0.05, size="100+400"), Role.SHOWN, in_short=SHORT),
    Entry(Cell(policy="install", install=0.2, size="8+32"), Role.SHOWN),
    Entry(Cell(policy="engine", ratio=2.0, drop=0.0, infant="burn_in"), Role.SHOWN),
    Entry(Cell(policy="engine", ratio=3.0), Role.SHOWN),
    Entry(Cell(policy="engine", recovery=1.5), Role.SHOWN),
    Entry(Cell(policy="engine", severe=0.15), Role.SHOWN),
    Entry(Cell(policy="engine", novel=0.02), Role.SHOWN),
    Entry(Cell(policy="engine", install=0.2), Role.SHOWN),
    Entry(Cell(policy="engine", silence=0.1), Role.SHOWN),
    Entry(Cell(policy="engine", ratio=1.5, drop=0.01), Role.SHOWN),
    Entry(Cell(policy="engine", size="400", waves=(1, 3, 8), ratio=3.0), Role.SHOWN),
)

ENTRIES: tuple[Entry, ...] = NULLS + ENGINE_NULLS + MARGINS + POWERS + SHOWN


def entries(*, is_full: bool) -> list[tuple[Entry, int]]:
    """Cells with their replications, in order."""
    chosen = [(e, e.in_full if is_full else e.in_short) for e in ENTRIES]
    return [(e, n) for e, n in chosen if n]
