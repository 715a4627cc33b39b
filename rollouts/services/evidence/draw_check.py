"""Before a wave starts: do its arms differ already in the period before? Then the draw is broken.

Nothing that a bundle does can have acted yet, so the test that halts finds a difference only by
chance, or because something other than the draw has chosen the canaries.
"""

from datetime import datetime
from typing import Any

import numpy as np
from django.db import transaction

from fleet.lifecycle import State
from rollouts import policies, selectors
from rollouts.analysis.balance import (
    BROKEN_P,
    LEAST_DAYS,
    Balance,
    balance_of,
    can_break,
    integer_scores,
    least_resamples,
)
from rollouts.analysis.judge import ENGINE_VERSION
from rollouts.analysis.labels import Design
from rollouts.analysis.policy import Policy
from rollouts.analysis.samples import BoolArray, FloatArray
from rollouts.analysis.verdicts import DecisionKind, Reason, Verdict
from rollouts.models import Assignment, Decision, Evaluation, Wave
from rollouts.services.evidence import cycles
from rollouts.services.evidence.drawn import Drawn, stored
from rollouts.services.evidence.past import (
    MOST_DIRECT,
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
    policy = policies.policy_from(wave.rollout.plan, kind=policies.Kind.PLAN)
    untreated = Assignment.objects.filter(rollout=wave.rollout, wave=None)
    drawn = stored(untreated.exclude(machine__state=State.RETIRED))
    before = read_before(drawn, now=now, whole=True)
    is_canary = drawn.planned_wave == wave.number
    if before is None or before.days < LEAST_DAYS or not 0 < is_canary.sum() < drawn.units:
        _note(wave, _unchecked(before, drawn))
        return None
    return _check(wave, before, policy, is_canary=is_canary, now=now)


def _unchecked(before: Before | None, drawn: Drawn) -> str:
    if before is None and drawn.machines > MOST_DIRECT:
        return (
            f"the draw is not checked: no summary of the telemetry of {drawn.machines} machines yet"
        )
    return planned(before.days if before else 0.0)


@transaction.atomic
def _check(
    wave: Wave, before: Before, policy: Policy, *, is_canary: BoolArray, now: datetime
) -> Decision | None:
    """Compare the arms, store what was seen, and refuse the wave if they differ too much."""
    design = Design(stratum=before.drawn.stratum, is_canary=is_canary)
    scores = integer_scores(_figures(before, policy), stratum=design.stratum)
    resamples = max(policy.resamples, least_resamples(len(scores)))
    found = balance_of(scores, design=design, seed=policy.seed, resamples=resamples)
    words = f"the arms' {before.days:.1f} days before were compared: p = {found.p:.2g}"
    if scores and not can_break(len(scores), design=design):
        words += f"; with {design.assignments} assignments no p can show that a draw is broken"
    evaluation = cycles.record_check(
        wave,
        Evaluation.Kind.DRAW_CHECK,
        as_of=now,
        guardrails=[_shown(name, found) for name in scores],
        scores={
            **{f"{name}/before": score for name, score in scores.items()},
            "design/stratum": design.stratum,
            "design/is_canary": design.is_canary.astype(np.int64),
        },
        inputs={
            "seed": policy.seed,
            "resamples": resamples,
            "days": before.days,
            "read_from": before.source.words,
        },
        engine_version=ENGINE_VERSION,
    )
    _note(wave, words, p=found.p)
    if not found.is_broken:
        return None
    return cycles.decide(
        wave.rollout,
        DecisionKind.HOLD,
        Reason.BLOCKED,
        f"broken randomisation: in the {before.days:.1f} days before, the planned canaries of "
        f"wave {wave.number} differ from their control in {found.worst} (p = {found.p:.1g}, below "
        f"{BROKEN_P:g}); the wave is not started",
        as_of=now,
        wave=wave,
        evaluation=evaluation,
    )


def _shown(name: str, found: Balance) -> dict[str, Any]:
    """Return one metric as an evaluation stores it; crossed: by itself it breaks the draw."""
    is_broken = found.breaks(name)
    return {
        "name": name,
        "metric": name,
        "verdict": (Verdict.HARMFUL if is_broken else Verdict.INCONCLUSIVE).value,
        "reason": f"two-sided p = {found.p_values[name]:.2g} of one of {len(found.p_values)}",
        "crossed": is_broken,
        "shown": False,
        "required": False,
        "details": {"p_value": found.p_values[name]},
    }


def _note(wave: Wave, words: str, **figures: Any) -> None:
    wave.forecast = {
        **wave.forecast,
        "a_a_check": words,
        **{f"a_a_{k}": figures[k] for k in figures},
    }
    Wave.objects.filter(pk=wave.pk).update(forecast=wave.forecast)


def _figures(before: Before, policy: Policy) -> dict[str, FloatArray]:
    """Return one figure per unit for each metric of which there is data; large is bad."""
    figures = {name: days.astype(float) for name, days in episode_days(before, policy).items()}
    figures |= {name: -mean for name, mean in throughput_before(before, policy).items()}
    figures["telemetry"] = -coverage_before(before)
    slowness = slowness_before(before)
    if slowness is not None:
        figures["recovery_time"] = slowness
    # What is the same for all says nothing, and is no metric to divide the level over.
    return {name: values for name, values in figures.items() if _differs(values)}


def _differs(values: FloatArray) -> bool:
    return np.unique(values[np.isfinite(values)]).size > 1
