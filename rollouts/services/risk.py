"""What is left unproven when a plan is approved: the words that an approver signs.

Everything is taken from what the submission stored, so whoever reads it later reads the same.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from django.db.models import Count

from rollouts.models import Action, Assignment, Rollout, Wave

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
        "words": [word for name, row in guardrails.items() for word in _words(name, row)],
    }


def _words(name: str, row: Mapping[str, Any]) -> Iterator[str]:
    """Say of one guardrail what the wave halts on, and what it rules out and what it does not."""
    yield f"{name}: halts on {row['halts_on_words']} (at 50, 80, 90 % power)"
    if row["rules_out_words"] == "–":
        yield f"{name}: rules nothing out, it only halts"
    elif row["rules_out"] is None:
        yield f"{name}: can rule out nothing; the margin is {row['margin_words']}"
    elif row["margin"] is None or row["rules_out"] <= row["margin"]:
        yield f"{name}: can rule out {row['margin_words']}"
    else:
        yield f"{name}: can rule out {row['rules_out_words']}, not {row['margin_words']}"


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
    return [
        {"reason": row["irreversible"], "count": row["count"]} for row in rows[:MOST_REASONS]
    ]
