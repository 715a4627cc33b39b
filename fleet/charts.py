"""Where the marks of drawings over time lie. Pure; templates only place them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: A drawing in user units; columns share the width.
WIDTH, HEIGHT = 720.0, 160.0
_GAP = 0.2  # of a column's step


@dataclass(frozen=True)
class Segment:
    """One part of a column."""

    name: str
    value: float
    y: float
    height: float


@dataclass(frozen=True)
class Column:
    """One day or week: its parts from the bottom up, and how many more nobody can measure."""

    label: str
    x: float
    width: float
    middle: float
    total: float
    unknown: int
    segments: Sequence[Segment]


@dataclass(frozen=True)
class Stack:
    """Columns on one scale from nothing to the highest."""

    columns: Sequence[Column]
    names: Sequence[str]
    most: float

    @property
    def unknown(self) -> int:
        return sum(column.unknown for column in self.columns)


@dataclass(frozen=True)
class Line:
    """Shares over time as paths, broken where there is none; targets on the same scale."""

    paths: Sequence[str]
    dots: Sequence[tuple[float, float]]
    targets: Sequence[tuple[str, float]]
    least: float


def stacked(
    columns: Sequence[tuple[str, Mapping[str, float], int]], *, names: Sequence[str]
) -> Stack:
    """Place stacked columns.

    Parameters
    ----------
    columns : sequence of (label, values by name, unknown)
        In order of time; `unknown` is what has no height because nobody knows it.
    names : sequence of str
        From the bottom up; a name without any value is left out.

    Examples
    --------
    >>> drawn = stacked([("a", {"x": 1.0, "y": 3.0}, 0), ("b", {}, 2)], names=("x", "y", "z"))
    >>> drawn.names, drawn.most, drawn.unknown
    (('x', 'y'), 4.0, 2)
    >>> [(part.y, part.height) for part in drawn.columns[0].segments]
    [(120.0, 40.0), (0.0, 120.0)]
    """
    totals = [sum(values.values()) for _, values, _ in columns]
    most = max(totals, default=0.0)
    shown = tuple(name for name in names if any(values.get(name) for _, values, _ in columns))
    return Stack(
        columns=[
            _column(at, column, total=total, most=most, step=WIDTH / len(columns), names=shown)
            for at, (column, total) in enumerate(zip(columns, totals, strict=True))
        ],
        names=shown,
        most=most,
    )


def _column(
    at: int,
    column: tuple[str, Mapping[str, float], int],
    *,
    total: float,
    most: float,
    step: float,
    names: Sequence[str],
) -> Column:
    label, values, unknown = column
    segments, top = [], HEIGHT
    for name in names:
        value = values.get(name, 0.0)
        if value > 0:
            height = HEIGHT * value / most
            top -= height
            segments.append(Segment(name, value, round(top, 2), round(height, 2)))
    return Column(
        label=label,
        x=round(at * step + step * _GAP / 2, 2),
        width=round(step * (1 - _GAP), 2),
        middle=round(at * step + step / 2, 2),
        total=total,
        unknown=unknown,
        segments=segments,
    )


def shares(
    values: Sequence[float | None], *, targets: Sequence[tuple[str, float]], least: float
) -> Line:
    """Place shares between `least` (or the lowest of them, if that is lower) and 1.

    Examples
    --------
    >>> drawn = shares([1.0, None, 0.75, 0.5], targets=[("goal", 0.75)], least=0.5)
    >>> drawn.paths, drawn.targets
    (['M450.0 80.0L630.0 160.0'], [('goal', 80.0)])
    """
    low = min([least, *(value for value in values if value is not None)])
    low = min(low, 0.999)
    step = WIDTH / max(len(values), 1)

    def height(value: float) -> float:
        return round(HEIGHT * (1 - value) / (1 - low), 1)

    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((round(at * step + step / 2, 1), height(value)))
    return Line(
        paths=["M" + "L".join(f"{x} {y}" for x, y in run) for run in runs if len(run) > 1],
        dots=[dot for run in runs for dot in run],
        targets=[(name, height(value)) for name, value in targets if value >= low],
        least=low,
    )
