"""From outcomes to figures with standard errors, and the rules by which they pass."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Share:
    """A share of replications; `se` is binomial."""

    hits: int
    size: int

    @property
    def value(self) -> float:
        return self.hits / self.size if self.size else math.nan

    @property
    def se(self) -> float:
        return math.sqrt(self.value * (1 - self.value) / self.size) if self.size else math.nan

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} ± {100 * self.se:.1f}"


@dataclass(frozen=True)
class Tally:
    """One judge in one cell. Halts are those in the window, whether or not it was widened first.

    `widened` counts waves widened with no halt before; `inconclusive` those with neither.
    `excess` is the expected number of faults that bad firmware added before the halt (or the
    end), mean and standard error.
    """

    halted: Share
    widened: Share
    inconclusive: Share
    median_halt: float | None
    median_halt_se: float | None
    p90_halt: float | None
    median_widen: float | None
    excess: float
    excess_se: float
    blind_widens: int


def quantile_se(values: Floats, share: float) -> tuple[float | None, float | None]:
    """A quantile and, from the order statistics one standard error around it, its error.

    Examples
    --------
    >>> quantile_se(np.arange(1.0, 102.0), 0.5)
    (51.0, 5.0)
    """
    if not values.size:
        return None, None
    ordered = np.sort(values)
    reach = math.sqrt(values.size * share * (1 - share))
    centre = share * (values.size - 1)
    low = ordered[max(0, math.floor(centre - reach + 0.5))]
    high = ordered[min(values.size - 1, math.ceil(centre + reach - 0.5))]
    return float(np.quantile(ordered, share)), float(high - low) / 2


def tally(
    halts: Sequence[int | None],
    widens: Sequence[int | None],
    excess: Sequence[float],
    *,
    blind: int,
) -> Tally:
    """Summarise one judge's outcomes over the replications of a cell."""
    size = len(halts)
    pairs = list(zip(halts, widens, strict=True))
    halt_hours = np.array([h for h in halts if h is not None], dtype=np.float64)
    widen_hours = np.array([w for w in widens if w is not None], dtype=np.float64)
    median, median_se = quantile_se(halt_hours, 0.5)
    suffered = np.asarray(excess, dtype=np.float64)
    return Tally(
        halted=Share(halt_hours.size, size),
        widened=Share(widen_hours.size, size),
        inconclusive=Share(sum(h is None and w is None for h, w in pairs), size),
        median_halt=median,
        median_halt_se=median_se,
        p90_halt=quantile_se(halt_hours, 0.9)[0],
        median_widen=quantile_se(widen_hours, 0.5)[0],
        excess=float(suffered.mean()),
        excess_se=float(suffered.std(ddof=1) / math.sqrt(size)) if size > 1 else math.nan,
        blind_widens=blind,
    )


# --- acceptance ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """One criterion, whether it holds, and the figures that say so."""

    name: str
    is_met: bool
    detail: str


def error_checks(
    title: str, cells: Mapping[str, Share], *, level: float = 0.05, family: int | None = None
) -> list[Check]:
    """No cell beyond chance among all of them, and all of them pooled within two errors.

    Of m cells one fails if P(X >= x | level) < .01 / m. The pooled share may exceed the level
    by at most two of its standard errors at that level.

    Examples
    --------
    >>> [c.is_met for c in error_checks("halts", {"a": Share(60, 1000), "b": Share(90, 1000)})]
    [True, False, False]
    """
    m = family or len(cells)
    checks = []
    for name, share in cells.items():
        p = float(binom.sf(share.hits - 1, share.size, level))
        note = (
            "; beyond two errors, to be rerun"
            if share.value > level + 2 * _se(level, share.size)
            else ""
        )
        checks.append(
            Check(
                f"{title}: {name}",
                p >= 0.01 / m,
                f"{share} % of {share.size}, nominal {100 * level:g} %, p = {p:.3g}{note}",
            )
        )
    pooled = Share(sum(s.hits for s in cells.values()), sum(s.size for s in cells.values()))
    if pooled.size:
        most = level + 2 * _se(level, pooled.size)
        checks.append(
            Check(
                f"{title}: all {len(cells)} cells pooled",
                pooled.value <= most,
                f"{pooled} % of {pooled.size}, at most {100 * most:.2f} %",
            )
        )
    return checks


def _se(level: float, size: int) -> float:
    return math.sqrt(level * (1 - level) / size)


def _cautious_se(value: float, size: int) -> float:
    """Standard error that is not 0 at 0 or 100 %: one more of either kind is added."""
    moved = (value * size + 1) / (size + 2)
    return _se(moved, size)


def power_check(name: str, got: Share, *, reference: float, reference_size: int) -> Check:
    """At least the reference's power, less two standard errors of the difference."""
    error = math.hypot(_cautious_se(got.value, got.size), _cautious_se(reference, reference_size))
    least = reference - 2 * error
    return Check(
        name,
        got.value >= least,
        f"{got} % of {got.size}; the prototype {100 * reference:.0f} %, least {100 * least:.1f} %",
    )


def paired_check(name: str, *, only_ours: int, only_theirs: int) -> Check:
    """On the same waves not fewer halts than another rule has, less two standard errors.

    What both halt, or neither, says nothing of the difference (McNemar).

    Examples
    --------
    >>> paired_check("power", only_ours=3, only_theirs=12).is_met
    False
    """
    error = math.sqrt(only_ours + only_theirs)
    return Check(
        name,
        only_ours - only_theirs >= -2 * error,
        f"{only_ours} waves that only the product halted, {only_theirs} that only the prototype's "
        f"rule did; least difference {-2 * error:.1f}",
    )


def least_check(name: str, got: Share, *, least: float) -> Check:
    """At least a stated share, less two standard errors at that share."""
    allowed = least - 2 * _se(least, got.size)
    return Check(
        name,
        got.value >= allowed,
        f"{got} % of {got.size}; asked {100 * least:g} %, least {100 * allowed:.1f} %",
    )
