"""The operators' pages: what moves, one rollout, and the orders that steer it.

Pages parse, call and answer; every number comes from `rollouts.selectors`. The moving parts of a
page are asked for again every few seconds and answer 204 while nothing has changed, so that
neither focus nor a screen reader is disturbed.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from fleet import clock
from fleet import services as fleet_services
from fleet.hints import hint
from fleet.models import Machine
from rollouts import aftermath, charts, offers, policies, roles, selectors, services, tasks
from rollouts.analysis.policy import Guardrail
from rollouts.changes import changed_since
from rollouts.contamination import contaminations_of
from rollouts.errors import OrderRefused, UnknownSignature
from rollouts.explain import explain
from rollouts.forms import (
    ChangesForm,
    ClearForm,
    DraftForm,
    OrderForm,
    PolicyForm,
    ReasonForm,
    TriageForm,
    filled_draft,
)
from rollouts.lifecycle import Status
from rollouts.models import Attempt, Evaluation, Order, Rollout
from rollouts.roster import roster_changes
from rollouts.services.plans.risk import residual_risk
from rollouts.suspects import line_up
from rollouts.wave_gates import unreviewed

View = Callable[..., HttpResponse]

TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="[^"]*"')
PAGE_SIZE = 50
MOST_ON_HOME = 20
MOST_ENDED = 5
MOST_IN_TIMELINE = 100

COMMANDS: Mapping[Order.Kind, Callable[..., Order | None]] = {
    Order.Kind.SUBMIT: services.submit,
    Order.Kind.APPROVE: services.approve,
    Order.Kind.DENY: services.deny,
    Order.Kind.START: services.start,
    Order.Kind.PAUSE: services.pause,
    Order.Kind.RESUME: services.resume,
    Order.Kind.HALT: services.halt,
    Order.Kind.ADVANCE: services.advance,
    Order.Kind.OVERRIDE: services.override,
    Order.Kind.EXTEND: services.extend,
    Order.Kind.SKIP_WAVE: services.skip_wave,
    Order.Kind.ROLL_BACK: services.roll_back,
    Order.Kind.CANCEL: services.cancel,
    Order.Kind.ACKNOWLEDGE: services.acknowledge,
    Order.Kind.RETRY: services.retry,
    Order.Kind.EXCLUDE: services.exclude,
    Order.Kind.RELEASE: services.release,
    Order.Kind.SUPERSEDE: services.supersede,
}

LABELS: Mapping[Order.Kind, Any] = {
    Order.Kind.SUBMIT: _("Submit"),
    Order.Kind.APPROVE: _("Approve"),
    Order.Kind.DENY: _("Deny"),
    Order.Kind.START: _("Start"),
    Order.Kind.PAUSE: _("Pause"),
    Order.Kind.RESUME: _("Resume"),
    Order.Kind.HALT: _("Halt"),
    Order.Kind.ADVANCE: _("Advance the wave"),
    Order.Kind.OVERRIDE: _("Override the halt"),
    Order.Kind.EXTEND: _("Extend the window"),
    Order.Kind.SKIP_WAVE: _("Skip the wave"),
    Order.Kind.ROLL_BACK: _("Roll back"),
    Order.Kind.CANCEL: _("Cancel the rollout"),
    Order.Kind.ACKNOWLEDGE: _("Acknowledge signatures"),
    Order.Kind.RETRY: _("Retry failed machines"),
    Order.Kind.EXCLUDE: _("Exclude machines"),
    Order.Kind.RELEASE: _("Release machines to work"),
    Order.Kind.SUPERSEDE: _("Supersede by a newer rollout"),
}

MOVING = (Status.RUNNING, Status.ROLLING_BACK, Status.PAUSED)


def operators_page(view: View) -> View:
    """Let in who is logged in and may see rollouts."""
    return login_required(permission_required("rollouts.view_rollout", raise_exception=True)(view))


def page(request: HttpRequest, template: str, context: Mapping[str, Any]) -> HttpResponse:
    """Render a page in the admin's frame."""
    return render(request, template, {**admin.site.each_context(request), **context})


# --- home and list ------------------------------------------------------------------------------


@require_safe
@operators_page
def home(request: HttpRequest) -> HttpResponse:
    """What moves, what waits for me, what is stuck."""
    overdue = Machine.objects.filter(deadline_at__lt=clock.now())
    overdue = overdue.select_related("platform", "owner_team", "held_by")
    notices = fleet_services.alarms()
    moving = Rollout.objects.filter(status__in=MOVING)
    halted = Rollout.objects.filter(status=Status.HALTED)
    ended = Rollout.objects.filter(finished_at__isnull=False)
    context = {
        "title": _("Home"),
        "moving": moving.select_related("bundle")[:MOST_ON_HOME],
        "moving_count": moving.count(),
        "waiting": list(offers.waiting_for(request.user)),
        "halted": halted.select_related("bundle")[:MOST_ON_HOME],
        "halted_count": halted.count(),
        "overdue": overdue.order_by("deadline_at")[:MOST_ON_HOME],
        "overdue_count": overdue.count(),
        "notices": notices[:MOST_ON_HOME],
        "notice_count": notices.count(),
        "ended": ended.select_related("bundle").order_by("-finished_at")[:MOST_ENDED],
        "reminders": selectors.standing_reminders(limit=MOST_ON_HOME),
        "now": clock.now(),
        "most": MOST_ON_HOME,
    }
    return page(request, "rollouts/home.html", context)


@require_safe
@operators_page
def index(request: HttpRequest) -> HttpResponse:
    """All rollouts, newest first; a status that does not exist is refused."""
    rows = Rollout.objects.select_related("bundle", "author")
    status = request.GET.get("status", "")
    if status:
        if status not in Status.__members__.values():
            raise Http404(f"no status is called {status!r}; there are {', '.join(Status)}")
        rows = rows.filter(status=status)
    listing = Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "title": _("Rollouts"),
        "listing": listing,
        "statuses": list(Status),
        "status": status,
    }
    return page(request, "rollouts/index.html", context)


# --- a new draft ----------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
@permission_required("rollouts.add_rollout", raise_exception=True)
def new(request: HttpRequest) -> HttpResponse:
    """Write a draft, then show its planner; `fill` puts the chosen policy's plan into the form."""
    chosen = PolicyForm(request.POST)
    if request.method != "POST":
        form = DraftForm(initial=filled_draft(None))
    elif "fill" in request.POST and chosen.is_valid():
        policy = chosen.cleaned_data["policy"]
        form = DraftForm(initial=filled_draft(policy, given=request.POST.dict()))
    elif (form := DraftForm(request.POST)).is_valid():
        rollout = services.create_draft(
            **form.fields_of_draft(),
            author=get_object_or_404(User, pk=request.user.pk),
            now=clock.now(),
        )
        return redirect("rollouts:plan", pk=rollout.pk)
    return page(request, "rollouts/new.html", {"title": _("New rollout"), "form": form})


# --- what changed ---------------------------------------------------------------------------------


@require_safe
@operators_page
def what_changed(request: HttpRequest) -> HttpResponse:
    """Everything that changed since then, and which of it explains a spike of faults best."""
    now = clock.now()
    form = ChangesForm(request.GET or None)
    asked = form.cleaned_data if form.is_bound and form.is_valid() else {}
    since = asked.get("since") or now - timedelta(days=1)
    lineup = None
    if asked.get("signature"):
        try:
            lineup = line_up(asked["signature"], since=since, now=now)
        except UnknownSignature as error:
            form.add_error("signature", str(error))
    context = {
        "title": _("What changed"),
        "form": form,
        "since": since,
        "changed": changed_since(since, until=now),
        "lineup": lineup,
        "suspects": lineup.suspects[:MOST_ON_HOME] if lineup else (),
        "more_suspects": max(len(lineup.suspects) - MOST_ON_HOME, 0) if lineup else 0,
    }
    return page(request, "rollouts/changes.html", context)


# --- one rollout --------------------------------------------------------------------------------


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


@require_safe
@operators_page
def plan(request: HttpRequest, pk: int) -> HttpResponse:
    """What a draft would do, as its last preview saw it; of a submitted plan, what it promised."""
    rollout = get_rollout(pk)
    seen = selectors.preview_of(rollout)
    summary = seen.summary if seen else {}
    is_draft = rollout.status == Status.DRAFT
    context = {
        "title": rollout.name,
        "rollout": rollout,
        "seen": seen,
        "plan": summary,
        "waves": [charts.with_times(wave) for wave in summary.get("waves", ())],
        "calendar": [
            {**wave, "lines": [charts.with_times(line) for line in wave["lines"]]}
            for wave in summary.get("calendar", {}).get("waves", ())
        ],
        "capacity": [charts.spark(charts.with_times(row)) for row in summary.get("capacity", ())],
        "forecast": selectors.shown_forecast(summary),
        "may_preview": is_draft and request.user.has_perm(roles.OPERATE),
        "may_submit": is_draft and roles.may_order(request.user, Order.Kind.SUBMIT, rollout),
    }
    return page(request, "rollouts/plan.html", context)


@require_POST
@login_required
@permission_required(roles.OPERATE, raise_exception=True)
def preview(request: HttpRequest, pk: int) -> HttpResponse:
    """Draw a draft over the fleet as it stands, and show it."""
    rollout = get_rollout(pk)
    if rollout.status != Status.DRAFT:
        raise OrderRefused([f"only a draft is previewed anew, {rollout} is {rollout.status}"])
    services.preview(rollout, now=clock.now())
    return redirect("rollouts:plan", pk=pk)


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


def get_rollout(pk: int) -> Rollout:
    rows = Rollout.objects.select_related("bundle", "author", "approver", "parent")
    return get_object_or_404(rows, pk=pk)


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
        "untriaged": selectors.untriaged(rollout)[:MOST_ON_HOME],
        "roster": roster_changes(rollout),
        "triage_form": TriageForm() if request.user.has_perm(roles.OPERATE) else None,
        "declined": selectors.declined_in(rollout)[:MOST_ON_HOME],
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


# --- orders -------------------------------------------------------------------------------------


@require_POST
@login_required
def give_order(request: HttpRequest, pk: int, kind: str) -> HttpResponse:
    """Give an order. A halt is one click: no confirmation, and its reason may be left out."""
    command = COMMANDS.get(kind)  # type: ignore[call-overload]
    if command is None:
        raise Http404(f"no order is called {kind!r}")
    order_kind, rollout = Order.Kind(kind), get_rollout(pk)
    if not roles.may_order(request.user, order_kind, rollout):
        needed = roles.permission_for(order_kind, rollout)
        raise PermissionDenied(f"{kind} needs the permission {needed}")
    form = OrderForm(request.POST, kind=order_kind, rollout=rollout)
    if not form.is_valid():
        for field, errors in form.errors.items():
            messages.error(request, f"{field}: {' '.join(map(str, errors))}")
        return redirect("rollouts:detail", pk=pk)
    command(rollout, actor=request.user, now=clock.now(), **form.given())
    hint(tasks.evaluate, rollout.pk)
    messages.success(request, _("Ordered: {order}").format(order=LABELS[order_kind]))
    return redirect("rollouts:detail", pk=pk)


@require_POST
@login_required
@permission_required(roles.HALT, raise_exception=True)
def halt_all(request: HttpRequest) -> HttpResponse:
    """Halt everything that is under way: one click, no confirmation."""
    form = ReasonForm(request.POST)
    form.is_valid()
    given = services.halt_all(
        actor=get_object_or_404(User, pk=request.user.pk),
        now=clock.now(),
        reason=form.cleaned_data.get("reason", ""),
    )
    for order in given:
        hint(tasks.evaluate, order.rollout_id)
    messages.success(
        request,
        ngettext("{count} rollout is halted", "{count} rollouts are halted", len(given)).format(
            count=len(given)
        ),
    )
    return redirect("rollouts:home")


@require_POST
@login_required
@permission_required(roles.OPERATE, raise_exception=True)
def clear(request: HttpRequest, pk: int, attempt_pk: int) -> HttpResponse:
    """Let a machine be offered the bundle again that it failed or left."""
    attempt = get_object_or_404(
        Attempt.objects.select_related("rollout__bundle", "machine"), pk=attempt_pk, rollout=pk
    )
    form = ClearForm(request.POST)
    if form.is_valid():
        services.clear(
            attempt.machine,
            bundle=attempt.rollout.bundle,
            actor=get_object_or_404(User, pk=request.user.pk),
            now=clock.now(),
            **form.cleaned_data,
        )
        messages.success(request, _("{machine} is cleared").format(machine=attempt.machine))
    else:
        messages.error(request, " ".join(map(str, form.errors["reason"])))
    return redirect("rollouts:detail", pk=pk)


@require_POST
@login_required
@permission_required(roles.OPERATE, raise_exception=True)
def triage(request: HttpRequest, pk: int, attempt_pk: int) -> HttpResponse:
    """Say why a machine did not come back; new starts wait for that."""
    attempt = get_object_or_404(
        Attempt.objects.select_related("rollout"), pk=attempt_pk, rollout=pk
    )
    form = TriageForm(request.POST)
    if form.is_valid():
        services.triage(attempt, **form.cleaned_data, actor=str(request.user), now=clock.now())
        hint(tasks.evaluate, pk)
        messages.success(request, _("{machine} is triaged").format(machine=attempt.machine))
    else:
        messages.error(request, " ".join(map(str, form.errors["outcome"])))
    return redirect("rollouts:detail", pk=pk)
