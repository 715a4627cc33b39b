"""One rollout: where it stands and why, and what to do with each machine after a halt.

The moving parts of its page are asked for again every few seconds and answer 204 while nothing
has changed, so that neither focus nor a screen reader is disturbed.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views.decorators.http import require_safe

from fleet.views import View, page
from rollouts import aftermath, charts, offers, policies, roles, selectors
from rollouts.analysis.policy import Guardrail
from rollouts.contamination import contaminations_of
from rollouts.explain import explain
from rollouts.lifecycle import Status
from rollouts.models import Evaluation, Order, Rollout
from rollouts.roster import roster_changes
from rollouts.services.plans.risk import residual_risk
from rollouts.views import get_rollout, operators_page
from rollouts.views.order_forms import ClearForm, OrderForm, TriageForm
from rollouts.views.orders import LABELS
from rollouts.wave_gates import unreviewed

TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="[^"]*"')
MOST_MACHINES = 20
MOST_IN_TIMELINE = 100


@require_safe
@operators_page
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One rollout: where it stands and why, its waves and their verdicts, and its orders."""
    rollout = get_rollout(pk)
    parts = {name: part_html(request, rollout, name) for name in PARTS}
    plan = json.dumps(rollout.plan, indent=2, sort_keys=True, ensure_ascii=False)
    context = {
        "title": rollout.name,
        "rollout": rollout,
        "parts": parts,
        "plan": plan,
        "forecast": selectors.forecast_of(rollout),
        "risk": residual_risk(rollout) if rollout.status == Status.AWAITING_APPROVAL else None,
        "unreviewed": unreviewed(rollout),
    }
    return page(request, "rollouts/detail.html", context)


@require_safe
@operators_page
def now_what(request: HttpRequest, pk: int) -> HttpResponse:
    """Halted, now what: every machine by physical state, with the safe next action."""
    rollout = get_rollout(pk)
    context = {
        "title": rollout.name,
        "rollout": rollout,
        "found": aftermath.aftermath(rollout),
        "conditions": explain(rollout),
        "most": aftermath.MOST_NAMED,
    }
    return page(request, "rollouts/aftermath.html", context)


def for_polling(view: View) -> View:
    """Answer a poll after the session's end with a reload, not with a login page inside a page."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return HttpResponse(status=401, headers={"HX-Refresh": "true"})
        return view(request, *args, **kwargs)

    return answer


@require_safe
@for_polling
@operators_page
def part(request: HttpRequest, pk: int, name: str) -> HttpResponse:
    """One moving part of a rollout's page; 204 while it is what the page shows already."""
    if name not in PARTS:
        raise Http404(f"no part is called {name!r}")
    rendered = part_html(request, get_rollout(pk), name)
    if request.GET.get("seen") == rendered.digest:
        return HttpResponse(status=204)
    return render(request, "rollouts/_part.html", {"part": rendered})


@dataclass(frozen=True)
class Part:
    """One rendered part, where to ask for it again, and the digest of what it shows."""

    name: str
    rollout_id: int
    html: str
    digest: str


def part_html(request: HttpRequest, rollout: Rollout, name: str) -> Part:
    context = {"rollout": rollout, **PARTS[name](request, rollout)}
    html = render_to_string(f"rollouts/_{name}.html", context, request)
    digest = hashlib.sha256(without_token(html).encode()).hexdigest()[:16]
    return Part(name=name, rollout_id=rollout.pk, html=html, digest=digest)


def without_token(html: str) -> str:
    """The HTML without what differs at each rendering: the masked token of its forms."""
    return TOKEN.sub("", html)


def head(request: HttpRequest, rollout: Rollout) -> dict[str, Any]:
    """Status, the latest reason in one sentence, and what the rollout waits for."""
    return {
        "decision": selectors.headline(rollout),
        "conditions": explain(rollout),
        "children": rollout.children.all(),
    }


def orders(request: HttpRequest, rollout: Rollout) -> dict[str, Any]:
    """The orders that this person may give now."""
    possible = list(offers.possible_orders(rollout))
    offered = [kind for kind in possible if offers.may_give(request.user, kind, rollout)]
    digest = selectors.digest_to_order(rollout)
    return {
        "may_halt": Order.Kind.HALT in offered,
        "offers": [
            {
                "kind": kind,
                "label": LABELS[kind],
                "form": OrderForm({"digest": digest}, kind=kind, rollout=rollout),
            }
            for kind in offered
            if kind is not Order.Kind.HALT
        ],
    }


def evidence(request: HttpRequest, rollout: Rollout) -> dict[str, Any]:
    """The wave ladder with verdicts, the attempts, and what happened in order."""
    waves = waves_with_verdicts(rollout)
    return {
        "waves": waves,
        "pooled": selectors.pooled_evidence(
            [(row["wave"], row["evaluation"]) for row in waves if row["evaluation"]]
        ),
        "surveillance": selectors.surveillance_of(rollout),
        "attempts": selectors.attempt_counts(rollout),
        "exposed": selectors.machines_exposed(rollout),
        "untriaged": selectors.untriaged(rollout)[:MOST_MACHINES],
        "roster": roster_changes(rollout),
        "triage_form": TriageForm() if request.user.has_perm(roles.OPERATE) else None,
        "declined": selectors.declined_in(rollout)[:MOST_MACHINES],
        "clear_form": ClearForm() if request.user.has_perm(roles.OPERATE) else None,
        "timeline": selectors.timeline(rollout, limit=MOST_IN_TIMELINE),
        "most_in_timeline": MOST_IN_TIMELINE,
        "orders": rollout.orders.select_related("actor", "second_person").order_by("-pk")[
            :MOST_IN_TIMELINE
        ],
    }


def waves_with_verdicts(rollout: Rollout) -> list[dict[str, Any]]:
    """The waves in order, each with its guardrails; only the last one judged is unfolded."""
    waves = list(selectors.waves_of(rollout))
    sizes, guardrails = selectors.arm_sizes(rollout), guardrails_of(rollout)
    decided = selectors.deciding_evaluations(rollout.waves.all())
    changed = contaminations_of(waves)
    rows: list[dict[str, Any]] = [
        {
            "wave": wave,
            "contaminations": changed[wave.pk],
            "arms": sizes.get(wave.number, {}),
            **verdicts(decided.get(wave.pk), guardrails),
        }
        for wave in waves
    ]
    judged = [row for row in rows if row["evaluation"]]
    for row in judged[-1:]:
        row["is_open"] = True
    return rows


PARTS: Mapping[str, Callable[[HttpRequest, Rollout], dict[str, Any]]] = {
    "head": head,
    "orders": orders,
    "evidence": evidence,
}


def guardrails_of(rollout: Rollout) -> dict[str, Guardrail]:
    """The plan's guardrails by name."""
    plan = policies.with_defaults(rollout.plan, kind=policies.Kind.PLAN)
    return {
        policies.guardrail_name(item): policies.guardrail_from(item, scope=plan["scope"])
        for item in plan["guardrails"]
    }


def verdicts(evaluation: Evaluation | None, guardrails: Mapping[str, Guardrail]) -> dict[str, Any]:
    """One row per guardrail of an evaluation, with its drawing."""
    if evaluation is None:
        return {"evaluation": None, "rows": [], "purity": None, "conditions": []}
    rows = [
        {"seen": seen, "bar": bar_of(seen, guardrails), "limit": guardrails.get(seen["name"])}
        for seen in evaluation.guardrails
    ]
    purity = evaluation.inputs.get("purity")
    return {
        "evaluation": evaluation,
        "rows": rows,
        "purity": None if purity is None else f"{100 * purity:.0f}",
        "conditions": evaluation.inputs.get("workload_conditions", []),
    }


def bar_of(seen: Mapping[str, Any], guardrails: Mapping[str, Guardrail]) -> charts.Bar | None:
    guardrail = guardrails.get(seen["name"])
    if guardrail is None or (seen["estimate"] is None and seen["repeated"]["high"] is None):
        return None
    return charts.interval_bar(seen, guardrail)
