"""What each wave can decide, from the fleet's own period before: the planner's word, stored once.

The word is frozen with the plan. The judge reads of it the fault rates before, which `auto`
guardrails are decidable, and the excess faults that a smoke wave would let the next wave risk;
people read the rest before they approve.
"""

import math
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import numpy as np

from rollouts import planning, policies
from rollouts.aggregation import install_baseline_of
from rollouts.analysis import outlook as outlooks
from rollouts.analysis import power, proportions
from rollouts.analysis.guardrails.interruptions import LEAST_PATHS, LEAST_RECOVERIES
from rollouts.analysis.labels import ENUMERATION_LIMIT
from rollouts.analysis.outlook import Chances, Outlook, Schedule
from rollouts.analysis.policy import Guardrail, Metric
from rollouts.analysis.policy import Policy as JudgePolicy
from rollouts.analysis.recommendation import HALT_ONLY
from rollouts.analysis.spending import (
    CHECKPOINTS,
    HaltClaim,
    halt_level,
    ni_bounds,
    ni_level,
    share_alpha,
)
from rollouts.models import Assignment, Rollout
from rollouts.services.evidence import draw_check
from rollouts.services.evidence.drawn import Drawn, stored
from rollouts.services.evidence.past import Past, read_past

#: Share of machines that count as silent in a fleet whose telemetry works.
SILENT_SHARE = 0.02
#: In these an effect is a ratio; in the others a share.
_RATIOS = (Metric.FAULTS, Metric.RECOVERY_TIME, Metric.LOST_WORK)


def forecast(
    rollout: Rollout, assignments: planning.Assignments, *, now: datetime
) -> list[dict[str, Any]]:
    """Return the forecast of a rollout whose draw is stored."""
    return forecast_plan(
        rollout.plan,
        assignments,
        drawn=stored(Assignment.objects.filter(rollout=rollout)),
        bundle_id=rollout.bundle_id,
        created_at=rollout.created_at,
        now=now,
    )


def forecast_plan(
    plan: Mapping[str, Any],
    assignments: planning.Assignments,
    *,
    drawn: Drawn,
    bundle_id: int,
    created_at: datetime,
    now: datetime,
) -> list[dict[str, Any]]:
    """Return, per wave in order, what the judge is told of it and what people read before.

    Nothing has to be stored: `drawn` may be `drawn_from(assignments, keys of the machines)`.
    Installs before `created_at` say how often installs fail.
    """
    policy = policies.policy_from(dict(plan), kind=policies.Kind.PLAN)
    past = read_past(drawn, policy, now=now)
    baseline = install_baseline_of(bundle_id, before=created_at)
    alphas = wave_alphas(policy, waves=len(assignments.sizes))
    words = [
        _word(
            policy,
            assignments,
            number,
            spec,
            past=past,
            baseline=baseline,
            alphas=alphas,
            batch_size=plan.get("batch_size"),
        )
        for number, spec in enumerate(plan["waves"], start=1)
    ]
    for number, (word, spec) in enumerate(zip(words, plan["waves"], strict=True), start=1):
        is_last = number == len(words)
        word["expected_excess_faults"] = (
            0.0 if is_last else _excess(policy, assignments, number + 1, plan, past, alphas)
        )
        word["summary"] = _summary(policy, word, allows_smoke=spec.get("allows_smoke", False))
    return words


def wave_alphas(policy: JudgePolicy, *, waves: int) -> dict[str, Any]:
    """Return each guardrail's halt level in one wave, by the error budget."""
    claims = {g.name: HaltClaim(g.metric.value, halts=g.halt) for g in policy.guardrails}
    weights = {metric.value: share for metric, share in policy.weights.items()}
    return share_alpha(policy.alpha, claims, waves=waves, has_surveillance=True, weights=weights)


def checkpoints(policy: JudgePolicy) -> list[tuple[float, float]]:
    """Return elapsed share and z bound of each checkpoint of a window."""
    return _checkpoints(policy.beta, has_extension=policy.extension > 0)


@lru_cache
def _checkpoints(beta: float, *, has_extension: bool) -> list[tuple[float, float]]:
    levels = [ni_level(beta, elapsed, has_extension=has_extension) for elapsed in CHECKPOINTS]
    bounds = ni_bounds(levels, information=CHECKPOINTS)
    return [(float(f), bound) for f, bound in zip(CHECKPOINTS, bounds, strict=True)]


def _word(
    policy: JudgePolicy,
    assignments: planning.Assignments,
    number: int,
    spec: Mapping[str, Any],
    *,
    past: Past,
    baseline: float,
    alphas: Mapping[str, Any],
    batch_size: int | None,
) -> dict[str, Any]:
    canaries, controls = _sizes(assignments, number)
    compared = _compared(policy, assignments, number, batch_size=batch_size) if canaries else 1
    earlier = tuple(_sizes(assignments, before) for before in range(1, number))
    found: dict[str, Outlook | None] = {}
    for guardrail in policy.guardrails:
        chances = _chances(guardrail, past, policy, baseline=baseline, earlier=earlier)
        found[guardrail.name] = (
            _outlook(
                guardrail,
                chances,
                policy,
                past,
                spec,
                (canaries, controls),
                alphas,
                least_p=1 / compared,
            )
            if chances is not None and canaries and controls
            else None
        )
    chance = {name: one.chance for name, one in found.items() if one and one.chance is not None}
    return {
        "merged_strata": [str(merge) for merge in assignments.merges],
        "canaries": canaries,
        "controls": controls,
        "days_before": round(past.days, 2),
        "read_from": past.source.words,
        "a_a_check": draw_check.planned(past.days),
        "power_to_widen": chance,
        # Where the policy itself says whether a guardrail is required, nobody asks the planner.
        "decidable": {
            g.name: power.is_decidable(chance.get(g.name, 0.0))
            and past.interruptions_per_day * spec["window_hours"] / 24 * canaries
            >= _LEAST_INTERRUPTIONS.get(g.metric, 0)
            for g in policy.guardrails
            if g.required is None
            and (g.name in chance or g.metric in _UNKNOWN_IS_UNDECIDABLE or not controls)
        },
        "frozen_fault_rate": {
            guardrail.name: rate
            for guardrail in policy.guardrails
            if (rate := past.fault_rate(guardrail)) is not None
        },
        "needed_machine_days": _needed(
            policy, past, canaries, controls, bound=checkpoints(policy)[-1][1]
        ),
        "guardrails": {
            g.name: _shown(g, found[g.name], past, policy, sizes=(canaries, controls))
            for g in policy.guardrails
        },
    }


#: Interruptions of canaries that have to be expected before such a guardrail is asked for.
_LEAST_INTERRUPTIONS = {Metric.RECOVERY_TIME: LEAST_RECOVERIES, Metric.SEVERE_PATH: LEAST_PATHS}
#: Without a period before nothing can be known of these, so they are not asked for.
_UNKNOWN_IS_UNDECIDABLE = frozenset({Metric.FAULTS, Metric.RECOVERY_TIME, Metric.SEVERE_PATH})


def _sizes(assignments: planning.Assignments, number: int) -> tuple[int, int]:
    counts = assignments.counts(number).values()
    return sum(c for c, _ in counts), sum(k for _, k in counts)


def _compared(
    policy: JudgePolicy,
    assignments: planning.Assignments,
    number: int,
    *,
    batch_size: int | None,
) -> int:
    """Return how many assignments a halting test compares: all where they are few, else a draw."""
    cells = planning.cells_of(assignments, wave=number, batch_size=batch_size)
    every = planning.log_assignments(cells)
    is_all = every <= math.log(ENUMERATION_LIMIT + 0.5)
    return round(math.exp(every)) if is_all else policy.resamples + 1


# --- one guardrail ---------------------------------------------------------------------------


def _chances(
    guardrail: Guardrail,
    past: Past,
    policy: JudgePolicy,
    *,
    baseline: float,
    earlier: tuple[tuple[int, int], ...],
) -> Chances | None:
    """Return the chances of a guardrail, or None where the planner has no word.

    `earlier` holds canaries and controls of the waves before: what is shown of installs and of
    telemetry is shown over all waves so far.
    """
    match guardrail.metric:
        case Metric.FAULTS:
            history = past.history(guardrail)
            if history is None or not history.rate_per_day:
                return None
            return outlooks.FaultChances(history, tolerated=guardrail.tolerance)
        case Metric.THROUGHPUT:
            sigma = past.sigma.get(guardrail.name)
            if sigma is None:
                return None
            return outlooks.DropChances(sigma, tolerated=guardrail.tolerance)
        case Metric.RECOVERY_TIME:
            return outlooks.RecoveryChances(
                past.interruptions_per_day,
                tolerated=guardrail.tolerance,
                sigma=past.recovery_sigma,
            )
        case Metric.SEVERE_PATH:
            return outlooks.ShareChances(
                past.severe_share, past.interruptions_per_day, tolerated=guardrail.tolerance
            )
        case Metric.TELEMETRY:
            return outlooks.ShareChances(
                SILENT_SHARE, tolerated=guardrail.tolerance, earlier=earlier
            )
        case Metric.INSTALL:
            tolerated = max(guardrail.tolerance, proportions.TOLERATED_TIMES_BASELINE * baseline)
            attempts = sum(canaries for canaries, _ in earlier)
            return outlooks.InstallChances(baseline, tolerated, policy.beta, earlier=attempts)
        case Metric.NOVEL_SIGNATURES:
            return outlooks.NovelChances()
        case Metric.LOST_WORK:
            return None if past.lost is None else outlooks.LostWorkChances(past.lost)
    return None


def _outlook(
    guardrail: Guardrail,
    chances: Chances,
    policy: JudgePolicy,
    past: Past,
    spec: Mapping[str, Any],
    sizes: tuple[int, int],
    alphas: Mapping[str, Any],
    *,
    least_p: float,
) -> Outlook:
    level = alphas[guardrail.name]
    is_drawn = guardrail.metric is not Metric.INSTALL
    if is_drawn:  # installs may spend all of theirs at any time
        level = halt_level(level, 1, has_extension=policy.extension > 0)
    return outlooks.outlook(
        chances,
        Schedule(
            canaries=sizes[0],
            controls=sizes[1],
            days=spec["window_hours"] / 24,
            halt_level=float(level),
            checkpoints=checkpoints(policy),
            least_days=policy.min_exposure_hours / 24,
            least_p=least_p if is_drawn else 0.0,
        ),
        margin=_margin(guardrail, past, policy),
        halts=guardrail.halt,
    )


def _margin(guardrail: Guardrail, past: Past, policy: JudgePolicy) -> float | None:
    """Return what "not worse" means in the wave; None for guardrails that only halt."""
    if guardrail.metric in HALT_ONLY:
        return None
    rate = past.fault_rate(guardrail)
    if guardrail.metric is not Metric.FAULTS or rate is None:
        return guardrail.margin
    return power.effective_margin(
        guardrail.margin, rate_before_per_day=rate, delta_abs=policy.delta_abs
    )


# --- in words --------------------------------------------------------------------------------


def _shown(
    guardrail: Guardrail,
    found: Outlook | None,
    past: Past,
    policy: JudgePolicy,
    *,
    sizes: tuple[int, int],
) -> dict[str, Any]:
    """Return one guardrail's outlook as plain JSON, figures first and then in words."""
    margin = _margin(guardrail, past, policy)
    figures = found or Outlook(halts_on=())
    return {
        "metric": guardrail.metric.value,
        "required": "auto" if guardrail.required is None else guardrail.required,
        "margin": margin if margin is not None and math.isfinite(margin) else None,
        "halts_on": list(figures.halts_on),
        "rules_out": figures.rules_out,
        "chance": figures.chance,
        "hours_to_widen": figures.hours_to_widen,
        "more_canaries": figures.more_canaries,
        "more_hours": figures.more_hours,
        "halts_on_words": _halts_on_words(guardrail, found),
        "rules_out_words": "–"
        if guardrail.metric in HALT_ONLY
        else _effect(guardrail, figures.rules_out),
        "margin_words": "–" if guardrail.metric in HALT_ONLY else _effect(guardrail, margin),
        "expectation": _expectation(guardrail, found, past, policy, sizes=sizes),
    }


def _effect(guardrail: Guardrail, *values: float | None) -> str:
    """Return effects in the metric's own unit, named once; `–` stands for one that is not met."""
    if not any(value is not None and math.isfinite(value) for value in values):
        return "nothing"
    is_ratio = guardrail.metric in _RATIOS
    before, after = _UNITS.get(guardrail.metric, ("+", " points"))
    figures = [
        "–"
        if value is None or not math.isfinite(value)
        else f"{value if is_ratio else 100 * value:.1f}"
        for value in values
    ]
    return f"{before}{' / '.join(figures)}{after}"


_UNITS = {
    Metric.FAULTS: ("× ", ""),
    Metric.RECOVERY_TIME: ("× ", ""),
    Metric.LOST_WORK: ("× ", ""),
    Metric.THROUGHPUT: ("−", " %"),
    Metric.NOVEL_SIGNATURES: ("", " % of canaries"),
}


def _halts_on_words(guardrail: Guardrail, found: Outlook | None) -> str:
    if not guardrail.halt:
        return "only reports"
    return "unknown" if found is None else _effect(guardrail, *found.halts_on)


def _expectation(
    guardrail: Guardrail,
    found: Outlook | None,
    past: Past,
    policy: JudgePolicy,
    *,
    sizes: tuple[int, int],
) -> str:
    is_unknown = f"unknown: {_unknown(guardrail, past, policy)}" if found is None else ""
    if guardrail.metric in HALT_ONLY:
        return f"halts only, proves nothing{f'; {is_unknown}' if is_unknown else ''}"
    if found is None:
        return is_unknown
    if found.hours_to_widen is not None:
        return f"shown after about {found.hours_to_widen:.0f} h ({found.chance or 0:.0%})"
    lacks = [
        f"{math.ceil(number)} more {one if math.ceil(number) == 1 else many}"
        for number, one, many in (
            (found.more_canaries, "canary", "canaries"),
            (found.more_hours, "hour", "hours"),
        )
        if number is not None
    ]
    chance = f"cannot be decided ({found.chance or 0:.0%})"
    if lacks:
        return f"{chance}: needs {' or '.join(lacks)}"
    return f"{chance} in this population{_first_episodes(guardrail, past, policy, sizes=sizes)}"


def _first_episodes(
    guardrail: Guardrail, past: Past, policy: JudgePolicy, *, sizes: tuple[int, int]
) -> str:
    """Tell how many episodes it would take, where no number of machines or hours is enough."""
    margin = _margin(guardrail, past, policy)
    if guardrail.metric is not Metric.FAULTS or margin is None or not math.isfinite(margin):
        return ""
    needed = power.schoenfeld_events(
        margin, canary_fraction=sizes[0] / sum(sizes), alpha=policy.beta, beta=0.2
    )
    return f": about {math.ceil(needed)} machines with a fault are needed, of both arms"


def _unknown(guardrail: Guardrail, past: Past, policy: JudgePolicy) -> str:
    if not past.days:
        return "no report of the period before"
    before = f"in {past.days:.1f} days before"
    if guardrail.metric is Metric.LOST_WORK:
        return f"no interruption {before}"
    if guardrail.metric is not Metric.FAULTS:
        return f"too few reports {before}"
    if not policy.delta_abs:
        return f"no such fault {before}"
    days = power.zero_event_exposure(policy.delta_abs, alpha=policy.beta)
    return (
        f"no such fault {before}; {math.ceil(days)} machine-days of canaries without one would "
        f"rule out {policy.delta_abs:g} a day"
    )


def _summary(policy: JudgePolicy, word: Mapping[str, Any], *, allows_smoke: bool) -> str:
    """Tell in one sentence when the wave is expected to widen, if nothing has changed."""
    if not word["canaries"]:
        return "nobody is left for this wave: it is skipped"
    shown = word["guardrails"]
    required = [
        g.name
        for g in policy.guardrails
        if g.required or (g.required is None and word["decidable"].get(g.name, True))
    ]
    hours = {name: shown[name]["hours_to_widen"] for name in required}
    stuck = [name for name, needed in hours.items() if needed is None]
    if stuck:
        return f"not expected to widen by itself: {', '.join(stuck)} may not be shown"
    open_faults = [
        g.name
        for g in policy.guardrails
        if g.metric is Metric.FAULTS and word["decidable"].get(g.name) is False
    ]
    when = max(hours.values(), default=policy.min_exposure_hours)
    if required and not open_faults:
        return f"expected to widen after about {when:.0f} h if nothing has changed"
    excess = word["expected_excess_faults"]
    if not (allows_smoke and policy.smoke_widen):
        why = "smoke widening is off for this wave"
    elif excess is None:
        why = "the next wave's excess faults are unknown"
    elif excess > policy.max_excess_faults:
        why = f"the next wave could suffer {excess:.0f} excess faults before a halt"
    else:
        return f"a smoke wave: may widen after about {when:.0f} h, proves little"
    return f"not expected to widen by itself: too little can be decided, and {why}"


# --- faults ----------------------------------------------------------------------------------


def _needed(
    policy: JudgePolicy, past: Past, canaries: int, controls: int, *, bound: float
) -> dict[str, float | None]:
    """Return, per fault guardrail, the canary machine-days that an even chance needs."""
    needed: dict[str, float | None] = {}
    for guardrail in policy.guardrails:
        history = past.history(guardrail)
        if history is None or not canaries or not controls or not history.rate_per_day:
            continue
        days = power.needed_exposure(
            history,
            n_canary=canaries,
            n_control=controls,
            margin=_margin(guardrail, past, policy) or guardrail.margin,
            bound=bound,
        )
        needed[guardrail.name] = days if np.isfinite(days) else None
    return needed


def _excess(
    policy: JudgePolicy,
    assignments: planning.Assignments,
    number: int,
    plan: Mapping[str, Any],
    past: Past,
    alphas: Mapping[str, Any],
) -> float | None:
    """Return the worst expected excess faults of wave `number`, or None where unknown."""
    canaries, controls = _sizes(assignments, number)
    worst: float | None = None
    for guardrail in policy.guardrails:
        history = past.history(guardrail)
        if history is None or not history.rate_per_day or not canaries or not controls:
            continue
        cost = power.expected_excess_faults(
            history,
            n_canary=canaries,
            n_control=controls,
            window_days=plan["waves"][number - 1]["window_hours"] / 24,
            alpha=alphas[guardrail.name],
            extension_share=policy.extension,
        ).expected
        worst = cost if worst is None else max(worst, cost)
    return worst
