"""What each wave can decide, from the fleet's own period before: the planner's word, stored once.

The word is frozen with the plan: fault rates before, which `auto` guardrails are decidable, and
the excess faults that a smoke wave would let the next wave risk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from django.db.models import Min, QuerySet

from fleet.models import Fault, Machine, Observation, Recovery
from rollouts import planning, policies
from rollouts.aggregation import FIELD_BASELINE
from rollouts.analysis import power
from rollouts.analysis.policy import Guardrail, Metric
from rollouts.analysis.policy import Policy as JudgePolicy
from rollouts.analysis.samples import IntArray
from rollouts.analysis.spending import (
    CHECKPOINTS,
    HaltClaim,
    ni_bounds,
    ni_level,
    share_alpha,
)
from rollouts.models import Assignment, Rollout

#: The period before that the planner looks at.
PERIOD = timedelta(days=14)


@dataclass(frozen=True)
class Past:
    """The period before: its length, and what the eligible machines did in it."""

    days: float
    machines: int
    episodes: Mapping[str, IntArray]
    interruptions_per_day: float

    def history(self, guardrail: Guardrail) -> power.FaultCounts | None:
        counts = self.episodes.get(guardrail.name)
        if counts is None or not self.days or not counts.size:
            return None
        return power.FaultCounts(counts, days=self.days)


def forecast(
    rollout: Rollout, assignments: planning.Assignments, *, now: datetime
) -> list[dict[str, Any]]:
    """Return, per wave in order, what the judge is told of it and what people read before."""
    policy = policies.policy_from(rollout.plan, kind=policies.Kind.PLAN)
    past = _past(rollout, policy, now=now)
    alphas = wave_alphas(policy, waves=len(assignments.sizes))
    words = [
        _word(policy, assignments, number, spec, past=past)
        for number, spec in enumerate(rollout.plan["waves"], start=1)
    ]
    for number, word in enumerate(words, start=1):
        is_last = number == len(words)
        word["expected_excess_faults"] = (
            0.0 if is_last else _excess(policy, assignments, number + 1, rollout.plan, past, alphas)
        )
    return words


def wave_alphas(policy: JudgePolicy, *, waves: int) -> dict[str, Any]:
    """Return each guardrail's halt level in one wave, by the error budget."""
    claims = {g.name: HaltClaim(g.metric.value, halts=g.halt) for g in policy.guardrails}
    weights = {metric.value: share for metric, share in policy.weights.items()}
    return share_alpha(policy.alpha, claims, waves=waves, has_surveillance=True, weights=weights)


def last_bound(policy: JudgePolicy) -> float:
    """Return the z bound of the last checkpoint of a window."""
    levels = [
        ni_level(policy.beta, elapsed, has_extension=policy.extension > 0)
        for elapsed in CHECKPOINTS
    ]
    return float(ni_bounds(levels, information=CHECKPOINTS)[-1])


def _word(
    policy: JudgePolicy,
    assignments: planning.Assignments,
    number: int,
    spec: Mapping[str, Any],
    *,
    past: Past,
) -> dict[str, Any]:
    canaries, controls = _sizes(assignments, number)
    days = spec["window_hours"] / 24
    treated = sum(assignments.sizes[:number])
    bound = last_bound(policy)
    chances = {
        guardrail.name: _chance(
            guardrail,
            policy,
            past,
            canaries=canaries,
            controls=controls,
            days=days,
            treated=treated,
            bound=bound,
        )
        for guardrail in policy.guardrails
    }
    return {
        "merged_strata": [str(merge) for merge in assignments.merges],
        "canaries": canaries,
        "controls": controls,
        "power_to_widen": {name: chance for name, chance in chances.items() if chance is not None},
        # Where the policy itself says whether a guardrail is required, nobody asks the planner.
        "decidable": {
            guardrail.name: power.is_decidable(chance)
            for guardrail in policy.guardrails
            if guardrail.required is None and (chance := chances[guardrail.name]) is not None
        },
        "frozen_fault_rate": {
            guardrail.name: history.rate_per_day
            for guardrail in policy.guardrails
            if (history := past.history(guardrail)) is not None
        },
        "needed_machine_days": _needed(policy, past, canaries, controls, bound=bound),
    }


def _sizes(assignments: planning.Assignments, number: int) -> tuple[int, int]:
    counts = assignments.counts(number).values()
    return sum(c for c, _ in counts), sum(k for _, k in counts)


def _chance(
    guardrail: Guardrail,
    policy: JudgePolicy,
    past: Past,
    *,
    canaries: int,
    controls: int,
    days: float,
    treated: int,
    bound: float,
) -> float | None:
    """Return the planned power to show "not worse", or None where the planner has no word."""
    if not canaries or not controls:
        return 0.0
    interruptions = past.interruptions_per_day * days
    if guardrail.metric is Metric.FAULTS:
        history = past.history(guardrail)
        if history is None:
            return 0.0
        margin = power.effective_margin(
            guardrail.margin, rate_before_per_day=history.rate_per_day, delta_abs=policy.delta_abs
        )
        return power.fault_ni_power(
            history, n_canary=canaries, n_control=controls, days=days, margin=margin, bound=bound
        )
    if guardrail.metric is Metric.RECOVERY_TIME:
        return power.recovery_ni_power(
            interruptions * canaries,
            interruptions * controls,
            bound=bound,
            margin_ratio=guardrail.margin,
        )
    if guardrail.metric is Metric.SEVERE_PATH:
        return power.severe_ni_power(
            interruptions * canaries,
            interruptions * controls,
            bound=bound,
            margin=guardrail.margin,
        )
    if guardrail.metric is Metric.INSTALL:
        limit = max(0.01, 1.5 * FIELD_BASELINE) + guardrail.margin
        return power.install_ni_power(
            treated, failure_share=FIELD_BASELINE, limit=limit, beta=policy.beta
        )
    if guardrail.metric is Metric.TELEMETRY:
        return power.severe_ni_power(
            canaries, controls, bound=bound, share=0.02, margin=guardrail.margin
        )
    return None


def _needed(
    policy: JudgePolicy, past: Past, canaries: int, controls: int, *, bound: float
) -> dict[str, float | None]:
    """Return, per fault guardrail, the canary machine-days that an even chance needs."""
    needed: dict[str, float | None] = {}
    for guardrail in policy.guardrails:
        history = past.history(guardrail)
        if history is None or not canaries or not controls or not history.rate_per_day:
            continue
        margin = power.effective_margin(
            guardrail.margin, rate_before_per_day=history.rate_per_day, delta_abs=policy.delta_abs
        )
        days = power.needed_exposure(
            history, n_canary=canaries, n_control=controls, margin=margin, bound=bound
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


# --- the period before -----------------------------------------------------------------------


def _past(rollout: Rollout, policy: JudgePolicy, *, now: datetime) -> Past:
    machines = _population(rollout)
    since = _since(machines, now)
    days = (now - since).total_seconds() / 86_400 if since else 0.0
    ids = np.array(sorted(machines.values_list("pk", flat=True)), dtype=np.int64)
    if since is None or not days or not ids.size:
        return Past(days=0.0, machines=int(ids.size), episodes={}, interruptions_per_day=0.0)
    interruptions = (
        Recovery.objects.filter(machine__in=machines, time__gt=since, time__lte=now)
        .values("source", "source_key")
        .distinct()
        .count()
    )
    return Past(
        days=days,
        machines=int(ids.size),
        episodes=_episodes(machines, ids, policy, since=since, now=now),
        interruptions_per_day=interruptions / days / ids.size,
    )


def _population(rollout: Rollout) -> QuerySet[Machine]:
    chosen = Assignment.objects.filter(rollout=rollout).values("machine")
    return Machine.objects.filter(pk__in=chosen)


def _since(machines: QuerySet[Machine], now: datetime) -> datetime | None:
    """Return the start of the period before: its default length, or since reports began."""
    first = Observation.objects.filter(machine__in=machines, end__gt=now - PERIOD).aggregate(
        at=Min("start")
    )["at"]
    return None if first is None else max(first, now - PERIOD)


def _episodes(
    machines: QuerySet[Machine],
    ids: IntArray,
    policy: JudgePolicy,
    *,
    since: datetime,
    now: datetime,
) -> dict[str, IntArray]:
    """Count each machine's episodes per fault guardrail, by the gap rule."""
    rows = list(
        Fault.objects.filter(machine__in=machines, time__gt=since, time__lte=now)
        .order_by("machine_id", "time")
        .values_list("machine_id", "time", "signature__name")
    )
    gap = timedelta(minutes=policy.gap_minutes)
    counts = {}
    for guardrail in policy.guardrails:
        if guardrail.metric is not Metric.FAULTS:
            continue
        wanted = _matching({name for _, _, name in rows}, guardrail.signatures)
        count = np.zeros(ids.size, dtype=np.int64)
        machine, last = None, None
        for row_machine, time, name in rows:
            if name not in wanted:
                continue
            if row_machine != machine or last is None or time - last >= gap:
                count[np.searchsorted(ids, row_machine)] += 1
            machine, last = row_machine, time
        counts[guardrail.name] = count
    return counts


def _matching(names: set[str], patterns: tuple[str, ...]) -> set[str]:
    return {name for name in names if any(fnmatchcase(name, glob) for glob in patterns)}
