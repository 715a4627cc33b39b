"""What one guardrail of one wave can be expected to decide: the chances of `power`, inverted.

Read by people before a rollout starts: which harm the wave would halt on, which it can rule out,
when it is likely to widen, and what is missing where it cannot be decided. Planning figures,
never a verdict.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom, hypergeom

from rollouts.analysis import power
from rollouts.analysis.errors import InvalidLevel, InvalidSample
from rollouts.analysis.halting import in_sequence
from rollouts.analysis.proportions import install_log_e

HALT_POWERS = (0.5, 0.8, 0.9)
RULES_OUT_POWER = 0.8
LONGEST_DAYS = 365.0
LARGEST_RATIO = 100.0
_STEPS = 40
_FINEST_STEP = 1e-4
_BISECTIONS = 13


@dataclass(frozen=True)
class Schedule:
    """Size, length and levels of one wave.

    Parameters
    ----------
    canaries, controls : int
    days : float
        The planned window.
    halt_level : float
        Error that the guardrail may have spent by the end of the window.
    checkpoints : sequence of (fraction, bound)
        Elapsed share of the window and z bound of each checkpoint, in order.
    least_days : float
        Exposure before which nothing widens.
    least_p : float
        The smallest p that the halting test can reach: one of all assignments that it compares. A
        level below it never halts.
    """

    canaries: int
    controls: int
    days: float
    halt_level: float
    checkpoints: Sequence[tuple[float, float]]
    least_days: float = 0.0
    least_p: float = 0.0

    def __post_init__(self) -> None:
        if min(self.canaries, self.controls) < 1 or not self.days > 0 or not self.checkpoints:
            raise InvalidSample(
                f"a schedule needs both arms, a window and a checkpoint: got {self.canaries} and "
                f"{self.controls} units, {self.days} days, {len(self.checkpoints)} checkpoints"
            )
        if not 0 <= self.halt_level < 1:
            raise InvalidLevel(f"a halt level lies in [0, 1): got {self.halt_level}")

    @property
    def last_bound(self) -> float:
        return self.checkpoints[-1][1]


class Chances(Protocol):
    """A metric's chances; effects and margins are in its own unit and rise with harm."""

    @property
    def unchanged(self) -> float:
        """The effect of a bundle that changes nothing."""
        ...

    @property
    def tolerated(self) -> float:
        """The effect under the halt null."""
        ...

    @property
    def largest(self) -> float:
        """The largest effect that is looked for."""
        ...

    def halts(
        self, effect: float, *, canaries: int, controls: int, days: float, level: float
    ) -> float:
        """Chance to halt by then."""
        ...

    def rules_out(
        self, margin: float, *, canaries: int, controls: int, days: float, bound: float
    ) -> float:
        """Chance to show "less than the margin" where nothing has changed."""
        ...


@dataclass(frozen=True)
class FaultChances:
    """Rate ratios of a fault family, by its history in the period before."""

    history: power.FaultHistory
    tolerated: float = 1.0
    unchanged: float = 1.0
    largest: float = LARGEST_RATIO

    def halts(
        self, effect: float, *, canaries: int, controls: int, days: float, level: float
    ) -> float:
        return power.fault_halt_power(
            self.history,
            n_canary=canaries,
            n_control=controls,
            days=days,
            rate_ratio=effect / self.tolerated,
            alpha=level,
        )

    def rules_out(
        self, margin: float, *, canaries: int, controls: int, days: float, bound: float
    ) -> float:
        return power.fault_ni_power(
            self.history,
            n_canary=canaries,
            n_control=controls,
            days=days,
            margin=margin,
            bound=bound,
        )


@dataclass(frozen=True)
class DropChances:
    """Relative drops of throughput; `sigma` of the adjusted unit means does not shrink in time."""

    sigma: float
    tolerated: float = 0.0
    unchanged: float = 0.0
    largest: float = 0.9

    def halts(
        self, effect: float, *, canaries: int, controls: int, days: float, level: float
    ) -> float:
        return _halt_power(effect - self.tolerated, self._error(canaries, controls), level=level)

    def rules_out(
        self, margin: float, *, canaries: int, controls: int, days: float, bound: float
    ) -> float:
        return power.throughput_ni_power(
            self.sigma, n_canary=canaries, n_control=controls, delta=margin, bound=bound
        )

    def _error(self, canaries: int, controls: int) -> float:
        return self.sigma * math.sqrt(1 / canaries + 1 / controls)


@dataclass(frozen=True)
class RecoveryChances:
    """Ratios of recovery times; interruptions are taken as independent."""

    interruptions_per_day: float
    tolerated: float = 1.0
    unchanged: float = 1.0
    largest: float = LARGEST_RATIO
    sigma: float = power.RECOVERY_SIGMA

    def halts(
        self, effect: float, *, canaries: int, controls: int, days: float, level: float
    ) -> float:
        each = self.interruptions_per_day * days
        if each <= 0:
            return 0.0
        error = self.sigma * math.sqrt(1 / (each * canaries) + 1 / (each * controls))
        at_the_end = _halt_power(math.log(effect / self.tolerated), error, level=level)
        return _at_any_look(at_the_end, level=level)

    def rules_out(
        self, margin: float, *, canaries: int, controls: int, days: float, bound: float
    ) -> float:
        each = self.interruptions_per_day * days
        return power.recovery_ni_power(
            each * canaries, each * controls, bound=bound, sigma=self.sigma, margin_ratio=margin
        )


@dataclass(frozen=True)
class ShareChances:
    """Differences of a share: per interruption (severe path) or per machine (telemetry).

    `occasions_per_day` is None where each machine counts once, however long the window. `earlier`
    holds canaries and controls of each wave before, where the proof is over all waves so far.
    """

    share: float
    occasions_per_day: float | None = None
    tolerated: float = 0.0
    unchanged: float = 0.0
    earlier: tuple[tuple[int, int], ...] = ()

    @property
    def largest(self) -> float:
        return 0.999 - self.share

    def _occasions(self, days: float) -> float:
        return 1.0 if self.occasions_per_day is None else self.occasions_per_day * days

    def halts(
        self, effect: float, *, canaries: int, controls: int, days: float, level: float
    ) -> float:
        each = self._occasions(days)
        if each <= 0:
            return 0.0
        at_the_end = power.share_halt_power(
            self.share,
            n_canary=max(round(each * canaries), 1),
            n_control=max(round(each * controls), 1),
            rise=effect - self.tolerated,
            level=level,
        )
        if self.occasions_per_day is None:  # who is silent was so at the looks before
            return at_the_end
        return _at_any_look(at_the_end, level=level)

    def rules_out(
        self, margin: float, *, canaries: int, controls: int, days: float, bound: float
    ) -> float:
        each = self._occasions(days)
        waves = [*self.earlier, (canaries, controls)]
        # Waves pool by their precision, which for a share is that of n_c n_k / (n_c + n_k) units;
        # put together they are one wave of this one's proportions.
        units = sum(c * k / (c + k) for c, k in waves if c and k)
        scale = units * (1 / canaries + 1 / controls)
        return power.severe_ni_power(
            each * canaries * scale,
            each * controls * scale,
            bound=bound,
            share=self.share,
            margin=min(margin, self.largest),
        )


@dataclass(frozen=True)
class InstallChances:
    """Failure probabilities of installs above the tolerated one; the control plays no part.

    `earlier` counts the attempts of the waves before, which the proof of installs includes.
    """

    baseline: float
    limit_base: float
    beta: float
    earlier: int = 0
    tolerated: float = 0.0
    unchanged: float = 0.0

    @property
    def largest(self) -> float:
        return 0.999 - self.limit_base

    def halts(
        self, effect: float, *, canaries: int, controls: int, days: float, level: float
    ) -> float:
        if level <= 0:
            return 0.0
        needed = _failures_that_halt(canaries, p0=self.limit_base, level=level)
        return float(binom.sf(needed - 1, canaries, self.limit_base + effect))

    def rules_out(
        self, margin: float, *, canaries: int, controls: int, days: float, bound: float
    ) -> float:
        return power.install_ni_power(
            self.earlier + canaries,
            failure_share=self.baseline,
            limit=self.limit_base + margin,
            beta=self.beta,
        )


@lru_cache
def _failures_that_halt(canaries: int, *, p0: float, level: float) -> int:
    """Return the fewest failed installs that halt; the evidence grows with every failure."""
    needed = -math.log(level)
    return bisect_left(
        range(canaries + 1), True, key=lambda x: install_log_e(x, canaries, p0=p0) >= needed
    )


@lru_cache
def _showing_that_halt(canaries: int, controls: int, *, level: float) -> int:
    """Return the fewest canaries whose new signature halts; each makes chance less likely."""
    everybody = canaries + controls
    return 2 + bisect_left(
        range(2, canaries + 1),
        True,
        key=lambda x: bool(hypergeom.sf(x - 1, everybody, canaries, x) <= level),
    )


@dataclass(frozen=True)
class NovelChances:
    """Share of canaries that show a signature never seen before; no control shows one."""

    tolerated: float = 0.0
    unchanged: float = 0.0
    largest: float = 0.999

    def halts(
        self, effect: float, *, canaries: int, controls: int, days: float, level: float
    ) -> float:
        needed = _showing_that_halt(canaries, controls, level=level)
        return float(binom.sf(needed - 1, canaries, effect))

    def rules_out(
        self, margin: float, *, canaries: int, controls: int, days: float, bound: float
    ) -> float:
        return 0.0


@dataclass(frozen=True)
class LostWorkChances:
    """Ratios of the interruptions, seen by the work that they cost; it only halts."""

    history: power.LostWork
    tolerated: float = 1.0
    unchanged: float = 1.0
    largest: float = LARGEST_RATIO

    def halts(
        self, effect: float, *, canaries: int, controls: int, days: float, level: float
    ) -> float:
        at_the_end = power.lost_work_halt_power(
            self.history,
            n_canary=canaries,
            n_control=controls,
            days=days,
            ratio=effect,
            alpha=level,
        )
        return _at_any_look(at_the_end, level=level)

    def rules_out(
        self, margin: float, *, canaries: int, controls: int, days: float, bound: float
    ) -> float:
        return 0.0


def _halt_power(shift: float, error: float, *, level: float) -> float:
    if level <= 0:
        return 0.0
    if error == 0:
        return float(shift > 0)
    return float(ndtr(shift / error + ndtri(level)))


def _at_any_look(at_the_end: float, *, level: float) -> float:
    """What is left of a chance at the end where looks on the way spend of its level.

    For evidence that gathers with the interruptions. What differs between machines from the first
    day on, as throughput and silence do, is seen alike at every look, which costs nothing.
    """
    return in_sequence(at_the_end, level=level) if level > 0 else 0.0


@dataclass(frozen=True)
class Outlook:
    """What a guardrail of a wave can decide; None: it cannot, at no size or in no time.

    Parameters
    ----------
    halts_on : tuple
        Effects that are found by the window's end with the chances of `HALT_POWERS`.
    rules_out : float or None
        Smallest margin that is shown with a chance of 80 % where nothing has changed.
    chance : float or None
        Of showing the plan's own margin by the last checkpoint; None without a margin.
    hours_to_widen : float or None
        Until the first checkpoint at which showing it has an even chance.
    more_canaries, more_hours
        What an even chance lacks at the last checkpoint, one or the other; None if not lacking,
        or if a year, or half of the population, would not do.
    """

    halts_on: tuple[float | None, ...]
    rules_out: float | None = None
    chance: float | None = None
    hours_to_widen: float | None = None
    more_canaries: int | None = None
    more_hours: float | None = None


def outlook(chances: Chances, schedule: Schedule, *, margin: float | None, halts: bool) -> Outlook:
    """What a guardrail with these chances can decide in a wave of this schedule.

    Parameters
    ----------
    chances : Chances
    schedule : Schedule
    margin : float or None
        The plan's own; None for a guardrail that only halts. Infinite: not decidable at all.
    halts : bool
        False for a guardrail that only reports.

    Notes
    -----
    The halt by the end of the window with what may be spent by then; "not worse" at each checkpoint
    by itself, which the sequential test shows a little more often. Searches find the first passage
    on a grid.

    Examples
    --------
    >>> schedule = Schedule(64, 256, days=3.0, halt_level=0.05, checkpoints=[(1.0, 1.827)])
    >>> found = outlook(FaultChances(power.FaultRate(0.2, dispersion=0.5)), schedule,
    ...                 margin=2.0, halts=True)
    >>> [round(ratio, 1) for ratio in found.halts_on], round(found.rules_out, 1)
    ([1.4, 1.7, 1.8], 1.8)
    >>> found.hours_to_widen
    72.0
    """
    levels = HALT_POWERS if halts else ()
    halts_on = _halts_on(chances, schedule, powers=levels)
    if margin is None:
        return Outlook(halts_on)
    chance = _shown(chances, schedule, margin, at=len(schedule.checkpoints) - 1)
    is_open = not power.is_decidable(chance)
    return Outlook(
        halts_on=halts_on,
        rules_out=smallest(
            lambda m: _shown(chances, schedule, m, at=len(schedule.checkpoints) - 1),
            target=RULES_OUT_POWER,
            low=chances.unchanged,
            high=chances.largest,
        ),
        chance=chance,
        hours_to_widen=_hours_to_widen(chances, schedule, margin),
        more_canaries=_more_canaries(chances, schedule, margin) if is_open else None,
        more_hours=_more_hours(chances, schedule, margin) if is_open else None,
    )


def _halts_on(
    chances: Chances, schedule: Schedule, *, powers: Sequence[float]
) -> tuple[float | None, ...]:
    level = schedule.halt_level if schedule.halt_level >= schedule.least_p else 0.0

    @cache  # each search starts on the same grid
    def power_of(effect: float) -> float:
        return chances.halts(
            effect,
            canaries=schedule.canaries,
            controls=schedule.controls,
            days=schedule.days,
            level=level,
        )

    return tuple(
        smallest(power_of, target=power, low=chances.tolerated, high=chances.largest)
        for power in powers
    )


def _shown(chances: Chances, schedule: Schedule, margin: float, *, at: int) -> float:
    fraction, bound = schedule.checkpoints[at]
    if not margin > chances.unchanged or not math.isfinite(margin):
        return 0.0
    return chances.rules_out(
        margin,
        canaries=schedule.canaries,
        controls=schedule.controls,
        days=fraction * schedule.days,
        bound=bound,
    )


def _hours_to_widen(chances: Chances, schedule: Schedule, margin: float) -> float | None:
    for at, (fraction, _) in enumerate(schedule.checkpoints):
        days = fraction * schedule.days
        is_long_enough = days >= min(schedule.least_days, schedule.days)
        if is_long_enough and power.is_decidable(_shown(chances, schedule, margin, at=at)):
            return 24 * days
    return None


def _more_hours(chances: Chances, schedule: Schedule, margin: float) -> float | None:
    def power_of(days: float) -> float:
        return chances.rules_out(
            margin,
            canaries=schedule.canaries,
            controls=schedule.controls,
            days=days,
            bound=schedule.last_bound,
        )

    if not math.isfinite(margin):
        return None
    days = smallest(power_of, target=power.DECIDABLE_POWER, low=schedule.days, high=LONGEST_DAYS)
    return None if days is None else 24 * (days - schedule.days)


def _more_canaries(chances: Chances, schedule: Schedule, margin: float) -> int | None:
    """More canaries out of the controls: a wave has no other machines to take."""
    population = schedule.canaries + schedule.controls

    def power_of(canaries: float) -> float:
        return chances.rules_out(
            margin,
            canaries=math.ceil(canaries),
            controls=population - math.ceil(canaries),
            days=schedule.days,
            bound=schedule.last_bound,
        )

    most = population // 2
    if not math.isfinite(margin) or most <= schedule.canaries:
        return None
    found = smallest(
        power_of, target=power.DECIDABLE_POWER, low=float(schedule.canaries), high=float(most)
    )
    return None if found is None else math.ceil(found) - schedule.canaries


def smallest(
    chance_of: Callable[[float], float], *, target: float, low: float, high: float
) -> float | None:
    """The first value above `low`, up to `high`, at which a chance reaches the target.

    A chance need not rise all the way: very long exposure, for one, loses what it had shown.

    Examples
    --------
    >>> round(smallest(lambda x: x / 10, target=0.5, low=0.0, high=10.0), 2)
    5.0
    >>> smallest(lambda x: 0.1, target=0.5, low=0.0, high=10.0) is None
    True
    """
    if not low < high:
        raise InvalidSample(f"nothing to search between {low} and {high}")
    before = low
    for step in np.geomspace(_FINEST_STEP, 1.0, _STEPS).tolist():
        value = low + step * (high - low)
        if chance_of(value) >= target:
            return _passage(chance_of, target=target, low=before, high=value)
        before = value
    return None


def _passage(
    chance_of: Callable[[float], float], *, target: float, low: float, high: float
) -> float:
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if chance_of(middle) >= target:
            high = middle
        else:
            low = middle
    return high
