"""The cells of the benchmark: one fleet, one nuisance, one true effect, one set of guardrails."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np


class Size(NamedTuple):
    """A wave's shape: jobs, and the canaries and controls of each."""

    jobs: int
    canaries: int
    controls: int


SIZES: Mapping[str, Size] = {
    "8+32": Size(2, 4, 16),
    "64+256": Size(16, 4, 16),
    "256+1024": Size(64, 4, 16),
    "64+1024": Size(16, 4, 64),
    "100+400": Size(25, 4, 16),
    "500+500": Size(25, 20, 20),
    "400": Size(20, 12, 8),
}


@dataclass(frozen=True)
class Cell:
    """One cell; its name holds all that differs from the defaults and seeds its waves.

    Parameters
    ----------
    policy : str
        Which guardrails are on: `faults`, `throughput`, `recovery_time`, `severe_path`,
        `install` or `telemetry` (one guardrail, the whole level .05), or `engine` (all, with
        their shares).
    size : str
        Canaries + controls, a key of `SIZES`.
    rate : float
        Faults per machine-day, fleet mean.
    lemons : bool
        Machines differ (gamma of shape 2, 1.5 % of them 10 to 50 times worse); False: Poisson.
    shocks : float
        Shared shocks per job-day; each hits a machine with probability .3.
    bursts : float
        Mean number of extra alarms in the hour after each fault.
    infant : str
        `none`, `burn_in` (five times the rate for the canaries' first 2 h, left out by the
        burn-in) or `no_burn_in` (the same, counted).
    dropouts : str
        `none`, `both` (20 % of all machines fall silent) or `canary` (20 % of the canaries).
    exposure : str
        `full` or `uneven`: half of the jobs start 12 h late, 30 % of machines are away a while.
    fractions : str
        `equal`, or `unequal`: 2 of 20 canaries in one half of the jobs, 6 of 20 in the other.
    removal : bool
        A fault takes its machine out of service for 24 h.
    spill_over : float
        Share of the canaries' excess that controls suffer too.
    unit : str
        `machine`, or `job`: a quarter of the jobs is on the new bundle.
    extension : bool
        The plan has one extension of half a window, and it is used.
    ratio, onset_hours, drop, recovery, severe, novel, install, silence, lossy
        True effects: fault rate ratio (from an onset), relative throughput drop, factor on
        recovery times, share moved to checkpoint restarts, novel faults per canary-day,
        failure share of installs, share of canaries' reports that are lost, share of canaries
        that lose a fifth of theirs.
    history : bool
        The judge is given the faults of the 14 days before as a covariate.
    halts : bool
        False: the guardrail only reports, so that non-inferiority is measured alone.
    waves : tuple of int
        Canaries of each job in every wave of a whole rollout; empty: one wave.
    """

    policy: str = "faults"
    size: str = "64+256"
    rate: float = 0.2
    lemons: bool = True
    shocks: float = 0.0
    bursts: float = 0.0
    infant: str = "none"
    dropouts: str = "none"
    exposure: str = "full"
    fractions: str = "equal"
    removal: bool = False
    spill_over: float = 0.0
    unit: str = "machine"
    extension: bool = False
    ratio: float = 1.0
    onset_hours: float = 0.0
    drop: float = 0.0
    recovery: float = 1.0
    severe: float = 0.0
    novel: float = 0.0
    install: float = 0.013
    silence: float = 0.0
    lossy: float = 0.0
    history: bool = False
    halts: bool = True
    waves: tuple[int, ...] = ()
    days: float = 3.0

    @property
    def name(self) -> str:
        """Guardrails and size, then every field that is not at its default.

        Examples
        --------
        >>> Cell(rate=0.05, ratio=2.0).name
        'faults 64+256 rate=0.05 ratio=2.0'
        """
        parts = [self.policy, self.size]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "rate" or (
                field.name not in ("policy", "size") and value != field.default
            ):
                parts.append(f"{field.name}={value}")
        return " ".join(parts)

    def with_(self, **changes: Any) -> "Cell":
        return replace(self, **changes)

    @property
    def shape(self) -> Size:
        return SIZES[self.size]

    @property
    def window_hours(self) -> int:
        return round(24 * self.days)

    @property
    def hours(self) -> int:
        """Hours that are simulated: the window and the extension, if there is one."""
        return self.window_hours * 3 // 2 if self.extension else self.window_hours

    @property
    def burn_in_hours(self) -> float:
        return 0.0 if self.infant == "no_burn_in" else 2.0


def seed_words(text: str) -> list[int]:
    """Four 32-bit words from a text: the same on every machine and in every run."""
    digest = hashlib.sha256(text.encode()).digest()
    return [int.from_bytes(digest[i : i + 4], "big") for i in range(0, 16, 4)]


def generator(cell: Cell, replication: int, *, purpose: str = "wave") -> np.random.Generator:
    """The stream of one replication of one cell."""
    words = [*seed_words(f"{purpose}: {cell.name}"), replication]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
