"""Where the marks of a ratio's small drawing lie; the template only places them."""

import math
from dataclasses import dataclass

from rollouts.analysis.fixes.ratios import HALVING, Comparison

WIDTH = 240.0
#: Ratios from a thirty-second to thirty-two are drawn, on a logarithmic scale.
REACH = 32.0
EDGE = 8.0


@dataclass(frozen=True)
class RatioBar:
    """An interval on a scale that shows no change and a halving, from 0 to `WIDTH`."""

    none: float
    halving: float
    low: float
    high: float
    estimate: float | None
    is_low_cut: bool
    is_high_cut: bool

    @property
    def length(self) -> float:
        """Never so short that it cannot be seen."""
        return max(self.high - self.low, 2.0)


def ratio_bar(one: Comparison) -> RatioBar | None:
    """Place one comparison; None where it has no interval.

    Examples
    --------
    >>> from rollouts.analysis.fixes.ratios import Group
    >>> group = Group(1, 1, 1.0, 1.0)
    >>> bar = ratio_bar(Comparison(group, group, 1.0, 0.5, None, ""))
    >>> bar.estimate == bar.none, bar.low == bar.halving, bar.is_high_cut
    (True, True, True)
    """
    if one.low is None and one.high is None:
        return None
    low, high = one.low or 0.0, math.inf if one.high is None else one.high
    return RatioBar(
        none=_place(1.0),
        halving=_place(HALVING),
        low=_place(low),
        high=_place(high),
        estimate=None if one.estimate is None else _place(one.estimate),
        is_low_cut=low < 1 / REACH,
        is_high_cut=high > REACH,
    )


def _place(ratio: float) -> float:
    inside = min(max(ratio, 1 / REACH), REACH)
    share = (math.log(inside) / math.log(REACH) + 1) / 2
    return round(EDGE + share * (WIDTH - 2 * EDGE), 1)
