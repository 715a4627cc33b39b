"""How many units each wave takes: exact rounding, never more than there are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class WaveSpec:
    """One step of a plan: a count, a share or a growth factor of units, or the rest of them."""

    count: int | None = None
    share: float | None = None
    growth: float | None = None
    is_rest: bool = False
    window_hours: float = 168.0
    allows_smoke: bool = False

    def __post_init__(self) -> None:
        named = [self.count, self.share, self.growth, self.is_rest or None]
        if sum(value is not None for value in named) != 1:
            raise ValueError(f"a wave is a count, a share, a growth or the rest: got {self}")

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "WaveSpec":
        """Read one wave of a plan document."""
        return cls(
            count=document.get("count"),
            share=document.get("share"),
            growth=document.get("growth"),
            is_rest=bool(document.get("rest", False)),
            window_hours=float(document.get("window_hours", 168.0)),
            allows_smoke=bool(document.get("allows_smoke", False)),
        )


def exact(number: float) -> Fraction:
    """The number as it is written: 0.1 is one tenth, not its binary neighbour.

    Examples
    --------
    >>> exact(0.1) * 30
    Fraction(3, 1)
    """
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def hold_back_size(population: int, *, hold_back: float) -> int:
    """Units that are treated last; any positive share keeps at least one.

    Examples
    --------
    >>> hold_back_size(2000, hold_back=0.1), hold_back_size(5, hold_back=0.1)
    (200, 1)
    """
    return math.ceil(population * exact(hold_back))


def wave_sizes(population: int, specs: Sequence[WaveSpec], *, hold_back: float) -> list[int]:
    """Units of every wave; what the waves leave is treated with the hold-back, last.

    Parameters
    ----------
    population : int
        Eligible units, the hold-back among them.
    specs : sequence of WaveSpec
        In order; shares are of the population without the hold-back, a growth is times the
        size of the wave before.
    hold_back : float
        Share of the population, in [0, 1).

    Notes
    -----
    A wave ends where the exact sum of the quotas so far, rounded up, ends. So every size is
    within one of its quota, shares that add to 1 add to the population, a small share of
    something is at least one unit, and a wave whose quota an earlier rounding already took is
    empty. Never more than there are.

    Examples
    --------
    >>> shares = [WaveSpec(share=share) for share in (0.01, 0.09, 0.90)]
    >>> wave_sizes(3, shares, hold_back=0.0)
    [1, 0, 2]
    >>> steps = [WaveSpec(count=20), WaveSpec(count=100), WaveSpec(growth=4.0)]
    >>> wave_sizes(2000, [*steps, WaveSpec(is_rest=True)], hold_back=0.1)
    [20, 100, 400, 1280]
    """
    available = population - hold_back_size(population, hold_back=hold_back)
    sizes: list[int] = []
    quota = Fraction(0)
    taken = 0
    for spec in specs:
        quota += _quota(spec, available=available, before=sizes[-1] if sizes else 0)
        end = min(max(math.ceil(quota), taken), available)
        sizes.append(end - taken)
        taken = end
    return sizes


def _quota(spec: WaveSpec, *, available: int, before: int) -> Fraction:
    if spec.count is not None:
        return Fraction(spec.count)
    if spec.share is not None:
        return available * exact(spec.share)
    if spec.growth is not None:
        return before * exact(spec.growth)
    return Fraction(available)


def allocate(total: int, *, weights: Sequence[int], least: int = 0) -> list[int]:
    """Divide `total` in proportion to `weights`, exactly: largest remainders, ties to the first.

    Where `total` is at most the sum of the weights, nobody gets more than its weight. Each
    positive weight gets at least `least`, where `total` allows.

    Examples
    --------
    >>> allocate(10, weights=[33, 33, 34])
    [3, 3, 4]
    >>> allocate(5, weights=[90, 9, 1], least=1)
    [3, 1, 1]
    """
    whole = sum(weights)
    if whole == 0 or total == 0:
        return [0] * len(weights)
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(
        range(len(weights)), key=lambda index: (-(total * weights[index] % whole), index)
    )
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return _raise_to(parts, weights=weights, least=least)


def _raise_to(parts: list[int], *, weights: Sequence[int], least: int) -> list[int]:
    poor = [index for index, weight in enumerate(weights) if weight and parts[index] < least]
    for index in poor:
        while parts[index] < least:
            richest = max(range(len(parts)), key=lambda other: (parts[other], -other))
            if parts[richest] <= least:
                return parts
            parts[richest] -= 1
            parts[index] += 1
    return parts
