"""What is left unproven when a plan is approved: the words that an approver signs.

Everything is taken from what the submission stored, so whoever reads it later reads the same.
"""

from collections.abc import Mapping
from typing import Any

from django.db.models import Count

from rollouts.models import Action, Assignment, Rollout, Wave
from rollouts.services.plans.terms import terms_of

#: Reasons why machines cannot go back that are shown.
MOST_REASONS = 20


def residual_risk(rollout: Rollout) -> dict[str, Any]:
    """Return what the plan's waves can and cannot rule out, and what happens if it goes wrong."""
    plan = rollout.plan
    waves = list(rollout.waves.order_by("number"))
    judged = [wave for wave in waves if wave.kind == Wave.Kind.CANARY]
    return {
        "plan_digest": rollout.plan_digest,
        "bundle": str(rollout.bundle),
        "bundle_digest": rollout.bundle.digest,
        "waves": [_wave(wave, plan) for wave in judged],
        "smoke_waves": [wave.number for wave in judged if _is_smoke(wave, plan)],
        "unjudged": sum(wave.size for wave in waves if wave.kind == Wave.Kind.RELEASE),
        "terms": terms_of(plan),
        "mode": plan["mode"],
        "on_halt": dict(sorted(plan["on_halt"].items())),
        "roll_back": _roll_back(plan),
        "irreversible": _irreversible(rollout),
        "surveillance_days": plan["surveillance_days"],
        "known_issues": list(rollout.bundle.known_issues),
    }


def _is_smoke(wave: Wave, plan: Mapping[str, Any]) -> bool:
    return bool(wave.allows_smoke and plan["smoke_widen"] and wave.size)


def _wave(wave: Wave, plan: Mapping[str, Any]) -> dict[str, Any]:
    guardrails = wave.forecast.get("guardrails", {})
    return {
        "number": wave.number,
        "size": wave.size,
        "window_hours": wave.window_hours,
        "is_smoke": _is_smoke(wave, plan),
        "summary": wave.forecast.get("summary", ""),
        "excess_faults": wave.forecast.get("expected_excess_faults"),
        "words": [_words(name, row) for name, row in guardrails.items()],
    }


def _words(name: str, row: Mapping[str, Any]) -> str:
    """Say of one guardrail what the wave rules out and what not, and what it halts on."""
    return f"{name}: {_rules_out(row)}; {_halts_on(row)}"


def _rules_out(row: Mapping[str, Any]) -> str:
    if row["rules_out_words"] == "–":
        return "rules nothing out"
    if row["rules_out"] is None:
        return f"can rule out nothing, the margin is {row['margin_words']}"
    if row["margin"] is None or row["rules_out"] <= row["margin"]:
        return f"can rule out {row['margin_words']}"
    return f"can rule out {row['rules_out_words']}, not {row['margin_words']}"


def _halts_on(row: Mapping[str, Any]) -> str:
    said = row["halts_on_words"]
    if not any(effect is not None for effect in row["halts_on"]):
        return f"halts on: {said}"
    return f"halts on {said} with a chance of 50 / 80 / 90 %"


def _roll_back(plan: Mapping[str, Any]) -> str:
    back = sorted(
        name for name, verb in plan["on_halt"].items() if verb == Action.Kind.ROLL_BACK.value
    )
    how = (
        "a roll back takes each machine to the versions recorded before, under the same caps and "
        "judged by installs only"
    )
    if not back:
        return f"{how}; by this plan nothing goes back by itself, and nothing when it is ordered"
    return f"{how}; it takes machines whose attempt ended as {', '.join(back)}"


def _irreversible(rollout: Rollout) -> list[dict[str, Any]]:
    stuck = Assignment.objects.filter(rollout=rollout).exclude(irreversible="")
    rows = stuck.order_by().values("irreversible").annotate(count=Count("pk")).order_by("-count")
    return [{"reason": row["irreversible"], "count": row["count"]} for row in rows[:MOST_REASONS]]
