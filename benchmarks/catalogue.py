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
    def judged_as_widening(self) -> bool:
        return self.role in (Role.MARGIN, Role.ASYMPTOTIC_MARGIN)


PROTOTYPE_SIZES = {"8+32": 400, "64+256": 400, "256+1024": 100}
"""Waves behind the prototype's figures of power, as its report states them for its engine."""
ASYMPTOTIC_LEVEL = 0.065


def _null(cell: Cell, *, short: int = 0) -> Entry:
    return Entry(cell, Role.NULL, in_short=short, in_full=1000)


def _power(cell: Cell, percent: float, *, short: int = 0) -> Entry:
    return Entry(cell, Role.POWER, percent / 100, in_short=short)


SHORT = 200
"""Replications of a cell of one guardrail in the short form."""
SHORT_ENGINE = 50


def _all_at_once(cell: Cell) -> Cell:
    """Every nuisance that has no effect of its own."""
    return cell.with_(
        shocks=0.2, bursts=2.0, dropouts="both", exposure="uneven", fractions="unequal"
    )


def _one_guardrail_nulls() -> tuple[Entry, ...]:
    """Faults are judged with and without a period before; what is short, without."""
    return (
        _null(Cell(), short=SHORT),
        _null(Cell(lemons=False), short=SHORT),
        _null(Cell(shocks=0.2)),
        _null(Cell(bursts=2.0)),
        _null(Cell(shocks=0.2, bursts=2.0)),
        _null(Cell(infant="burn_in")),
        _null(Cell(dropouts="both"), short=100),
        _null(Cell(exposure="uneven"), short=SHORT),
        _null(Cell(fractions="unequal"), short=SHORT),
        _null(Cell(removal=True), short=SHORT),
        _null(Cell(extension=True)),
        _null(Cell(size="8+32", shocks=0.2, bursts=2.0)),
        _null(Cell(size="64+1024", rate=0.02)),
        _null(Cell(rate=0.02)),
        _null(Cell(rate=0.005)),
        _null(Cell(size="256+1024", rate=0.05)),
        _null(_all_at_once(Cell())),
        _null(Cell(history=True), short=SHORT),
        _null(Cell(history=True, lemons=False)),
        _null(Cell(history=True, shocks=0.2, bursts=2.0), short=SHORT),
        _null(Cell(history=True, exposure="uneven", fractions="unequal")),
        _null(Cell(history=True, removal=True)),
        _null(Cell(history=True, size="8+32")),
        _null(Cell(history=True, size="64+1024", rate=0.05)),
        _null(_all_at_once(Cell(history=True))),
        _null(Cell(policy="throughput", drop=0.01), short=100),
        _null(Cell(policy="throughput", drop=0.01, unit="job")),
        _null(Cell(policy="throughput", drop=0.01, dropouts="both")),
        _null(Cell(policy="throughput", drop=0.01, exposure="uneven", fractions="unequal")),
        _null(Cell(policy="throughput", drop=0.01, size="256+1024")),
        _null(Cell(policy="throughput", drop=0.01, size="8+32")),
        _null(Cell(policy="recovery_time")),
        _null(Cell(policy="recovery_time", shocks=0.2, exposure="uneven")),
        _null(Cell(policy="severe_path")),
        _null(Cell(policy="telemetry", dropouts="both")),
        _null(Cell(policy="install", size="500+500", infant="burn_in"), short=SHORT),
    )


NULLS = _one_guardrail_nulls()

ENGINE_NULLS = (
    _null(Cell(policy="engine", infant="burn_in"), short=SHORT_ENGINE),
    _null(Cell(policy="engine", size="100+400", infant="burn_in")),
    _null(Cell(policy="engine", drop=0.01, history=True), short=SHORT_ENGINE),
    _null(Cell(policy="engine", rate=0.05, shocks=0.02, bursts=1.0)),
    _null(Cell(policy="engine", size="8+32")),
    _null(Cell(policy="engine", size="64+1024", rate=0.05)),
    _null(_all_at_once(Cell(policy="engine", history=True))),
    _null(Cell(policy="engine", extension=True)),
    _null(Cell(policy="engine", size="400", waves=(1, 3, 8), history=True), short=SHORT_ENGINE),
    _null(
        Cell(policy="engine", size="400", waves=(1, 3, 8), shocks=0.2, bursts=2.0, drop=0.01),
    ),
)


def _false_widen(cell: Cell, *, exact: bool = False, short: int = 0) -> Entry:
    role = Role.MARGIN if exact else Role.ASYMPTOTIC_MARGIN
    return Entry(cell, role, in_short=short, in_full=1000)


MARGINS = (
    _false_widen(Cell(ratio=2.0, halts=False), short=SHORT),
    _false_widen(Cell(ratio=2.0, halts=False, lemons=False)),
    _false_widen(Cell(ratio=2.0, halts=False, rate=0.05)),
    _false_widen(Cell(ratio=2.0, halts=False, rate=0.05, size="64+1024")),
    _false_widen(Cell(ratio=2.0, halts=False, size="256+1024")),
    _false_widen(Cell(ratio=2.0, halts=False, exposure="uneven", fractions="unequal"), short=SHORT),
    _false_widen(Cell(ratio=2.0, halts=False, shocks=0.2)),
    _false_widen(Cell(ratio=2.0, halts=False, bursts=2.0)),
    _false_widen(Cell(ratio=2.0, halts=False, extension=True)),
    _false_widen(Cell(ratio=2.0, halts=False, dropouts="both")),
    _false_widen(_all_at_once(Cell(ratio=2.0, halts=False))),
    # With removal the totals estimate faults per in-service day: bad machines are away more, so
    # machines that fail 2.15 times as often show a ratio of 2.0 (2.01 over 1,500 waves).
    _false_widen(Cell(ratio=2.15, halts=False, removal=True)),
    Entry(Cell(ratio=2.0, halts=False, removal=True), Role.SHOWN, in_full=1000),
    _false_widen(Cell(policy="throughput", drop=0.02, halts=False), exact=True, short=100),
    _false_widen(Cell(policy="throughput", drop=0.02, halts=False, dropouts="both"), exact=True),
    _false_widen(
        Cell(policy="throughput", drop=0.02, halts=False, exposure="uneven", fractions="unequal"),
        exact=True,
    ),
    _false_widen(Cell(policy="throughput", drop=0.02, halts=False, unit="job"), exact=True),
    _false_widen(Cell(policy="recovery_time", recovery=1.5, halts=False), exact=True),
    _false_widen(Cell(policy="severe_path", severe=0.15, halts=False)),
    _false_widen(Cell(policy="severe_path", severe=0.15, halts=False, size="256+1024")),
    _false_widen(Cell(policy="telemetry", lossy=0.05, halts=False, size="256+1024")),
    _false_widen(Cell(policy="install", install=0.0595, halts=False, size="256+1024"), exact=True),
    _false_widen(Cell(policy="engine", ratio=2.0)),
    _false_widen(Cell(policy="engine", drop=0.02), exact=True),
    _false_widen(Cell(policy="engine", recovery=1.5, rate=0.4), exact=True),
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
_SHORT_POWER = {("64+256", 0.2, 2), ("64+256", 0.2, 3), ("64+256", 0.05, 3)}

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
    # The prototype's figures are without a period before; so are these.
    _power(Cell(ratio=2.0), 88, short=SHORT),
    _power(Cell(ratio=3.0), 100),
    _power(Cell(ratio=2.0, rate=0.05), 47),
    _power(Cell(ratio=3.0, rate=0.05), 86),
    _power(Cell(ratio=2.0, rate=0.05, size="256+1024"), 91),
    Entry(Cell(policy="throughput", drop=0.02), Role.LEAST, 0.98, in_short=100),
    Entry(Cell(policy="recovery_time", recovery=1.5), Role.LEAST, 0.72, in_short=100),
)

SHOWN = tuple(
    Entry(cell, Role.SHOWN, in_short=short)
    for cell, short in (
        (Cell(ratio=1.5), 0),
        (Cell(ratio=3.0, rate=0.02), 0),
        (Cell(ratio=1.5, rate=0.05, size="256+1024"), 0),
        (Cell(ratio=3.0, onset_hours=24.0, history=True), 0),
        (Cell(ratio=10.0, rate=0.05, history=True), 0),
        (Cell(ratio=2.0, spill_over=0.5, history=True), 0),
        (Cell(infant="no_burn_in"), 0),
        (Cell(ratio=2.0, size="64+1024", history=True), 0),
        (Cell(ratio=2.0, fractions="unequal", history=True), 0),
        (Cell(ratio=2.0, extension=True, history=True), 0),
        (Cell(ratio=2.0, removal=True, history=True), 0),
        (Cell(dropouts="canary"), 50),
        (Cell(ratio=2.0, dropouts="canary"), 0),
        (Cell(policy="throughput", drop=0.05, unit="job"), 0),
        (Cell(policy="throughput", drop=0.015), 0),
        (Cell(policy="severe_path", severe=0.3), 0),
        (Cell(policy="telemetry", dropouts="canary"), 0),
        (Cell(policy="install", install=0.05, size="100+400"), SHORT),
        (Cell(policy="install", install=0.2, size="8+32"), 0),
        (Cell(policy="engine", dropouts="canary"), SHORT_ENGINE),
        (Cell(policy="engine", ratio=2.0, history=True), 0),
        (Cell(policy="engine", ratio=3.0, history=True), 0),
        (Cell(policy="engine", ratio=3.0, history=True, extension=True), 0),
        (Cell(policy="engine", ratio=2.0, history=True, size="64+1024"), 0),
        (Cell(policy="engine", recovery=1.5), 0),
        (Cell(policy="engine", severe=0.15), 0),
        (Cell(policy="engine", novel=0.02), 0),
        (Cell(policy="engine", install=0.2), 0),
        (Cell(policy="engine", silence=0.1), 0),
        (Cell(policy="engine", ratio=1.5, drop=0.01, history=True), 0),
        (Cell(policy="engine", size="400", waves=(1, 3, 8), ratio=3.0, history=True), 0),
    )
)

ENTRIES: tuple[Entry, ...] = NULLS + ENGINE_NULLS + MARGINS + POWERS + SHOWN


def entries(*, is_full: bool) -> list[tuple[Entry, int]]:
    """Cells with their replications, in order."""
    chosen = [(e, e.in_full if is_full else e.in_short) for e in ENTRIES]
    return [(e, n) for e, n in chosen if n]
