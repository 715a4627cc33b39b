"""What else happened to fixed machines: other signatures, ways back to work, lost work."""

from dataclasses import dataclass

import numpy as np

from rollouts.analysis.episodes import Events
from rollouts.analysis.fixes.grid import Grid
from rollouts.analysis.fixes.history import FixHistory
from rollouts.analysis.fixes.ratios import Comparison, clustered_ratio
from rollouts.analysis.samples import BoolArray

LEAST_MACHINES = 2
"""A signature that rose on fewer fixed machines is not named as a new pattern."""


@dataclass(frozen=True)
class SignatureShift:
    """Another signature: how often it came on fixed and unfixed machines."""

    name: str
    comparison: Comparison
    is_new: bool
    is_proven: bool


@dataclass(frozen=True)
class PathMix:
    """Interruptions by the way in which work came back, and what they cost."""

    counts: dict[str, int]
    lost_hours: float
    days: float

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def share(self, path: str) -> float | None:
        return self.counts.get(path, 0) / self.total if self.total else None

    @property
    def lost_hours_per_day(self) -> float | None:
        """Lost hours per machine-day in service; None without any."""
        return self.lost_hours / self.days if self.days > 0 else None


def rises_of(
    others: Comparison,
    shifts: tuple[SignatureShift, ...],
    severe: Comparison,
    lost_work: Comparison,
) -> tuple[str, ...]:
    found = ["all other signatures together"] if others.is_above else []
    found += [shift.name for shift in shifts if shift.is_proven]
    found += ["interruptions that cost a job its progress"] if severe.is_above else []
    return tuple(found + (["lost work"] if lost_work.is_above else []))


def shifts_of(grid: Grid, *, level: float) -> tuple[SignatureShift, ...]:
    """The other signatures that fixed machines had, those that may be new patterns first.

    A rise is proven at the level divided by how many were looked at, and on two machines.
    """
    history = grid.history
    inside = (history.others.time_seconds >= 0) & (
        history.others.time_seconds < history.window_seconds
    )
    after = inside & (history.others.time_seconds >= history.fixed_seconds[history.others.machine])
    names = np.unique(history.signature[after]).tolist()
    found = []
    for code in names:
        mine = history.signature == code
        events = Events(history.others.machine[mine], history.others.time_seconds[mine])
        rows = grid.concurrent(grid.amounts(events))
        strict = clustered_ratio(rows, level=1 - (1 - level) / len(names))
        is_proven = strict.is_above and strict.fixed.hit >= LEAST_MACHINES
        is_new = not bool((mine & ~after).any())
        found.append(
            SignatureShift(history.signatures[code], strict, is_new=is_new, is_proven=is_proven)
        )
    return tuple(sorted(found, key=_unlikely_first))


def _unlikely_first(shift: SignatureShift) -> tuple[float, float, str]:
    comparison = shift.comparison
    return (-(comparison.low or 0.0), -comparison.fixed.amount, shift.name)


def severe_interruptions(history: FixHistory) -> Events:
    codes = [index for index, path in enumerate(history.paths) if path in history.severe_paths]
    chosen = np.isin(history.path, codes)
    return Events(history.interruptions.machine[chosen], history.interruptions.time_seconds[chosen])


def mix_of(grid: Grid, *, side: int, who: BoolArray) -> PathMix:
    """Of machine-time on one side; unfixed time of the never and the not yet fixed alike."""
    history, events = grid.history, grid.history.interruptions
    is_fixed = events.time_seconds >= history.fixed_seconds[events.machine]
    inside = (events.time_seconds >= 0) & (events.time_seconds < history.window_seconds)
    chosen = inside & who[events.machine] & (is_fixed == (side == 1))
    numbers = np.bincount(history.path[chosen], minlength=len(history.paths))
    return PathMix(
        counts=dict(zip(history.paths, numbers.tolist(), strict=True)),
        lost_hours=float(np.nansum(history.lost_hours[chosen])),
        days=float(grid.days[side][who].sum()),
    )
