"""Where the marks of a guardrail's small drawing lie. Pure; the template only places them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rollouts.analysis.policy import Guardrail, Metric

WIDTH = 240.0
_EDGE = 8.0  # room for the arrow heads of a cut interval
#: Judged for harm only, or against the fleet's own baseline: no fixed number to draw.
_WITHOUT_LIMITS = (Metric.NOVEL_SIGNATURES, Metric.INSTALL, Metric.LOST_WORK)
_BEYOND = 1.8  # how far past its margin a drawing reaches


def with_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a stored document with the times read that its `…_at` fields tell.

    Examples
    --------
    >>> with_times({"starts_at": "2026-03-02T12:00:00+00:00", "wave": 1})["starts_at"].hour
    12
    """
    return {
        key: datetime.fromisoformat(value) if key.endswith("_at") and value else value
        for key, value in row.items()
    }


def spark(row: Mapping[str, Any], *, height: int = 20) -> dict[str, Any]:
    """Return a pool's loss with the heights of its drawing, the highest of them `height`.

    Examples
    --------
    >>> spark({"series": [0, 2, 4], "share": 0.125})["heights"]
    [0.0, 10.0, 20.0]
    """
    most = max([*row["series"], 1])
    heights = [round(height * value / most, 1) for value in row["series"]]
    return {**row, "heights": heights, "percent": round(100 * (row["share"] or 0.0), 1)}


@dataclass(frozen=True)
class Bar:
    """An interval with its estimate on a scale that shows no effect, tolerance and margin.

    Positions are in user units from 0 to `WIDTH`; None where there is nothing to draw. A cut end
    lies outside the drawing.
    """

    null: float
    tolerance: float | None
    margin: float | None
    low: float | None
    high: float | None
    estimate: float | None
    is_low_cut: bool
    is_high_cut: bool
    worse_is_higher: bool

    @property
    def length(self) -> float:
        """Drawn length of the interval; never so short that it cannot be seen."""
        if self.low is None or self.high is None:
            return 0.0
        return max(self.high - self.low, 2.0)


def interval_bar(evaluation: Mapping[str, Any], guardrail: Guardrail) -> Bar:
    """Place the marks of one evaluated guardrail.

    Ratios are drawn on a logarithmic scale, differences on a linear one, both symmetric around
    no effect and reaching past the margin, so that drawings of one guardrail can be compared.

    Examples
    --------
    >>> guardrail = Guardrail("faults", Metric.FAULTS, True, True, margin=2.0, tolerance=1.0)
    >>> seen = {"unit": "ratio", "estimate": 1.0, "repeated": {"low": 0.5, "high": 50.0}}
    >>> bar = interval_bar(seen, guardrail)
    >>> bar.estimate, bar.is_low_cut, bar.is_high_cut
    (120.0, False, True)
    """
    is_ratio = evaluation["unit"] == "ratio"
    drop = guardrail.metric is Metric.THROUGHPUT
    limits = [
        _limit(value, guardrail.metric, is_ratio=is_ratio)
        for value in (guardrail.tolerance, guardrail.margin)
    ]
    repeated = evaluation["repeated"]
    marks = [
        _scaled(value, is_ratio=is_ratio)
        for value in (*limits, repeated["low"], repeated["high"], evaluation["estimate"])
    ]
    tolerance, margin, low, high, estimate = marks
    reach = _reach(margin, low, high, estimate)
    return Bar(
        null=_place(0.0, reach),
        tolerance=_placed(tolerance, reach),
        margin=_placed(margin, reach),
        low=_EDGE if low is None and high is not None else _placed(low, reach),
        high=WIDTH - _EDGE if high is None and low is not None else _placed(high, reach),
        estimate=_placed(estimate, reach),
        is_low_cut=(low is None and high is not None) or (low is not None and low < -reach),
        is_high_cut=(high is None and low is not None) or (high is not None and high > reach),
        worse_is_higher=not drop,
    )


def _limit(value: float, metric: Metric, *, is_ratio: bool) -> float | None:
    """A margin or tolerance on the scale of the estimate; None where the metric has none."""
    if metric in _WITHOUT_LIMITS:
        return None
    if metric is Metric.THROUGHPUT:
        return 1 - value if is_ratio else -value
    return value


def _scaled(value: float | None, *, is_ratio: bool) -> float | None:
    if value is None:
        return None
    if not is_ratio:
        return value
    return math.log(value) if value > 0 else -math.inf


def _reach(margin: float | None, *others: float | None) -> float:
    if margin:
        return abs(margin) * _BEYOND
    sizes = [abs(value) for value in others if value is not None and math.isfinite(value)]
    return max(sizes, default=0.0) * 1.1 or 1.0


def _placed(value: float | None, reach: float) -> float | None:
    return None if value is None else _place(value, reach)


def _place(value: float, reach: float) -> float:
    share = (min(max(value, -reach), reach) + reach) / (2 * reach)
    return round(_EDGE + share * (WIDTH - 2 * _EDGE), 1)
