"""The decision benchmark as one picture: who halts harmless firmware, who halts bad firmware.

Drawn from the stored JSON: `python -m benchmarks.picture results/decisions.json picture.svg`.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

NAMES: Mapping[str, str] = {
    "coalmine": "Coalmine",
    "kayenta": "Kayenta (NetflixACA)",
    "argo": "Argo: ratio > 2 over 6 h, limit 3",
    "flagger": "Flagger: ratio > 1.5, threshold 5",
    "growthbook_5000": "GrowthBook, N* = 5000",
    "growthbook_n": "GrowthBook, N* = n",
    "statsig": "Statsig mSPRT",
    "peeking": "binomial test at every look",
    "maxsprt": "binomial MaxSPRT",
    "lindon_malek": "Lindon-Malek e-value",
    "fixed": "one test at the end (limit)",
    "ceiling": "knows each machine's rate (limit)",
    "oracle": "SPRT that knows the truth (limit)",
}
LIMITS = frozenset({"fixed", "ceiling", "oracle"})

WIDTH, TOP, ROW = 920, 76, 26
PANELS = ((270, 560), (610, 900))
INK, GREY, GRID, OURS, THEIRS, LIMIT = (
    "#1f2933", "#616e7c", "#d9dee4", "#0b7285", "#52606d", "#9aa5b1",
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A share with its standard error, and a word beside it."""

    value: float
    se: float
    word: str


def panels(document: Mapping[str, Any]) -> tuple[dict[str, Point], dict[str, Point], str]:
    """False halts pooled over the fault nulls, and power in the first power cell at ratio 2."""
    nulls = [c for c in document["cells"] if c["role"] == "null" and _is_faults(c)]
    powers = [c for c in document["cells"] if c["role"] == "power" and _is_faults(c)]
    chosen = next((c for c in powers if "64+256 rate=0.2 ratio=2.0" in c["name"]), None)
    chosen = chosen or (powers[0] if powers else None)
    title = chosen["name"] if chosen else "no power cell was run"
    return _pooled(nulls), _pooled([chosen] if chosen else [], with_hours=True), title


def _is_faults(cell: Mapping[str, Any]) -> bool:
    return cell["name"].startswith("faults ") and bool(cell["judges"])


def _pooled(cells: Sequence[Mapping[str, Any]], *, with_hours: bool = False) -> dict[str, Point]:
    points = {}
    for name in NAMES:
        found = [f for c in cells if (f := _most_waves(c["judges"], name)) is not None]
        size = sum(f["replications"] for f in found)
        if not size:
            continue
        share = sum(f["halted"] for f in found) / size
        word = f"{100 * share:.1f} %"
        if with_hours and found[0]["median_halt_hours"] is not None:
            word += f", {found[0]['median_halt_hours']:.0f} h"
        points[name] = Point(share, math.sqrt(share * (1 - share) / size), word)
    return points


def _most_waves(judges: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """A judge's figures, if it was there; the product's from its form that saw most waves."""
    alone = judges.get("coalmine_swift") if name == "coalmine" else None
    return alone or judges.get(name)


def draw(document: Mapping[str, Any]) -> str:
    """The whole SVG."""
    false_halts, power, cell = panels(document)
    rows = [name for name in NAMES if name in false_halts or name in power]
    height = TOP + ROW * len(rows) + 46
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img">'
    )
    parts = [
        opening,
        "<title>Share of waves halted, by judge: harmless and bad firmware</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, 26, "Share of waves halted within three days, hourly looks", size=16, bold=True),
        _text(PANELS[0][0], 54, "harmless firmware: every halt is false"),
        _text(PANELS[1][0], 54, f"bad firmware: {_in_words(cell)}"),
    ]
    for low, high in PANELS:
        parts += _axis(low, high, bottom=TOP + ROW * len(rows))
    x = _place(0.05, PANELS[0])
    parts.append(_line(x, TOP - 6, x, TOP + ROW * len(rows), "#c92a2a", dash="4 3"))
    parts.append(_text(x + 4, TOP + ROW * len(rows) + 32, "nominal 5 %", colour="#c92a2a", size=11))
    for number, name in enumerate(rows):
        parts += _row(number, name, (false_halts.get(name), power.get(name)))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _in_words(cell: str) -> str:
    return cell.removeprefix("faults ").replace(" history=True", "").replace("=", " ")


def _row(number: int, name: str, points: tuple[Point | None, Point | None]) -> list[str]:
    y = TOP + ROW * number + ROW / 2
    colour = OURS if name == "coalmine" else LIMIT if name in LIMITS else THEIRS
    parts = [_text(16, y + 4, NAMES[name], colour=colour, bold=name == "coalmine")]
    for panel, point in zip(PANELS, points, strict=True):
        if point is None:
            parts.append(_text(panel[0] + 6, y + 4, "–", colour=GREY))
            continue
        low, high = (min(1.0, max(0.0, point.value + k * point.se)) for k in (-2, 2))
        x = _place(point.value, panel)
        parts.append(_line(_place(low, panel), y, _place(high, panel), y, colour, width=2))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>')
        beside = _place(high, panel) + 8
        if beside + 7 * len(point.word) < panel[1] + 12:
            parts.append(_text(beside, y + 4, point.word, size=11, colour=GREY))
        else:
            left = _place(low, panel) - 8
            parts.append(_text(left, y + 4, point.word, size=11, colour=GREY, anchor="end"))
    return parts


def _axis(low: float, high: float, *, bottom: float) -> list[str]:
    parts = []
    for percent in (0, 25, 50, 75, 100):
        x = low + (high - low) * percent / 100
        parts.append(_line(x, TOP - 6, x, bottom, GRID))
        label = f"{percent} %"
        parts.append(_text(x, bottom + 16, label, size=11, colour=GREY, anchor="middle"))
    return parts


def _place(share: float, panel: tuple[int, int]) -> float:
    return panel[0] + (panel[1] - panel[0]) * share


def _line(
    x1: float, y1: float, x2: float, y2: float, colour: str, *, width: float = 1, dash: str = ""
) -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"{dashes}/>'
    )


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 13,
    colour: str = INK,
    bold: bool = False,
    anchor: str = "start",
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}"{weight}>{escape(words)}</text>'
    )


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.write_text(draw(json.loads(source.read_text())))


if __name__ == "__main__":
    main()
