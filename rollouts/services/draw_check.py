"""Before a wave starts: do its arms differ already in the period before? Then the draw is broken.

Nothing that a bundle does can have acted yet, so the test that halts finds a difference only by
chance, or because something other than the draw has chosen the canaries.
"""

from datetime import datetime
from typing import Any

import numpy as np

from fleet.lifecycle import State
from rollouts import policies, selectors
from rollouts.analysis.balance import BROKEN_P, LEAST_DAYS, Balance, balance_before
from rollouts.analysis.labels import Design
from rollouts.analysis.policy import Policy
from rollouts.analysis.samples import FloatArray
from rollouts.analysis.verdicts import DecisionKind, Reason
from rollouts.models import Assignment, Decision, Wave
from rollouts.services import cycles
from rollouts.services.drawn import stored
from rollouts.services.past import (
    Before,
    coverage_before,
    episode_days,
    read_before,
    slowness_before,
    throughput_before,
)


def planned(days: float) -> str:
    """Tell, for the forecast, whether the draw will be checked.

    Examples
    --------
    >>> planned(3.25)
    'the draw is not checked: 3.2 days of reports before, 7 are needed'
    """
    if days < LEAST_DAYS:
        return (
            f"the draw is not checked: {days:.1f} days of reports before, {LEAST_DAYS:g} are needed"
        )
    return f"the draw is checked on the period before ({days:.1f} days) when the wave starts"


def refusal(wave: Wave, *, now: datetime) -> Decision | None:
    """Return the decision that keeps a wave from starting, made at its first try; else None.

    Safe to repeat: a wave that was refused stays refused until a person skips it or cancels.
    """
    if wave.kind != Wave.Kind.CANARY:
        return None
    standing = selectors.refused_start(wave)
    if standing is not None:
        return standing
    days, found = _balance(wave, now=now)
    if found is None:
        _note(wave, planned(days))
        return None
    _note(wave, f"the arms' {days:.1f} days before were compared: p = {found.p:.2g}", p=found.p)
    if not found.is_broken:
        return None
    return cycles.decide(
        wave.rollout,
        DecisionKind.HOLD,
        Reason.BLOCKED,
        f"broken randomisation: in the {days:.1f} days before, the planned canaries of wave "
        f"{wave.number} differ from their control in {found.worst} (p = {found.p:.1g}, below "
        f"{BROKEN_P:g}); the wave is not started",
        as_of=now,
        wave=wave,
    )


def _note(wave: Wave, words: str, **figures: Any) -> None:
    wave.forecast = {
        **wave.forecast,
        "a_a_check": words,
        **{f"a_a_{k}": figures[k] for k in figures},
    }
    Wave.objects.filter(pk=wave.pk).update(forecast=wave.forecast)


def _balance(wave: Wave, *, now: datetime) -> tuple[float, Balance | None]:
    """Return the days before and, if there are enough of them, what the arms did in them."""
    policy = policies.policy_from(wave.rollout.plan, kind=policies.Kind.PLAN)
    untreated = Assignment.objects.filter(rollout=wave.rollout, wave=None)
    drawn = stored(untreated.exclude(machine__state=State.RETIRED))
    before = read_before(drawn, now=now, whole=True)
    is_canary = drawn.planned_wave == wave.number
    if before is None or before.days < LEAST_DAYS or not 0 < is_canary.sum() < drawn.units:
        return before.days if before else 0.0, None
    return before.days, balance_before(
        _figures(before, policy),
        design=Design(stratum=drawn.stratum, is_canary=is_canary),
        seed=policy.seed,
        resamples=policy.resamples,
    )


def _figures(before: Before, policy: Policy) -> dict[str, FloatArray]:
    """Return one figure per unit for each metric of which there is data; large is bad."""
    figures = {name: days.astype(float) for name, days in episode_days(before, policy).items()}
    figures |= {name: -mean for name, mean in throughput_before(before, policy).items()}
    figures["telemetry"] = -coverage_before(before)
    slowness = slowness_before(before)
    if slowness is not None:
        figures["recovery_time"] = slowness
    # What is the same for all says nothing, and is no metric to divide the level over.
    return {
        name: values for name, values in figures.items() if np.nanmax(values) > np.nanmin(values)
    }
