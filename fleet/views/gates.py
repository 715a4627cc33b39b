"""The pages of gates: what is missing, checks by hand, and the review that releases a machine."""

import json
from collections.abc import Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from fleet import clock, gate_state, services
from fleet.errors import GatePlanRefused
from fleet.gate_state import CheckState
from fleet.models import Gate, GateCheck, GatePlan
from fleet.repair.gating import Status
from fleet.views import by_whom, fleet_page, needs, page, person
from fleet.views.gate_forms import GateListForm, PlanForm, ResultForm, ReviewForm
from fleet.views.lists import first_page
from fleet.views.repairs import with_files

RUN = "fleet.run_gate"
REVIEW = "fleet.review_gate"
PLAN = "fleet.add_gateplan"


@fleet_page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Gates, newest first; unless others are asked for, those that keep a machine out of work.

    The gates of a rollout, one for each of its machines, are reviewed on the rollout's own page.
    """
    form = GateListForm(request.GET or {"status": "unfinished", "whose": "machines"})
    chosen = _chosen(form) if form.is_valid() else Gate.objects.none()
    listed, more = first_page(
        chosen, request.GET or QueryDict("whose=machines"), status="unfinished"
    )
    context = {"title": _("Gates"), "form": form, "listed": listed, "more": more}
    return page(request, "fleet/gates/index.html", context, status=400 if form.errors else 200)


def _chosen(form: GateListForm) -> QuerySet[Gate]:
    chosen = Gate.objects.select_related("machine", "plan", "reviewer").order_by("-pk")
    given = form.cleaned_data
    if statuses := form.statuses():
        chosen = chosen.filter(status__in=statuses)
    for name, field in (("kind", "plan__kind"), ("machine", "machine__name")):
        if given[name]:
            chosen = chosen.filter(**{field: given[name]})
    if given["whose"]:
        chosen = (
            chosen.filter(made_for="")
            if given["whose"] == "machines"
            else chosen.exclude(made_for="")
        )
    if given["made_for"]:
        chosen = chosen.filter(made_for=given["made_for"])
    if given["before"]:
        chosen = chosen.filter(pk__lt=given["before"])
    return chosen


@fleet_page
@require_safe
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One gate: its plan and why this one, each check, and what is missing."""
    return _detail(request, _found(pk))


def _detail(request: HttpRequest, gate: Gate, *, refused: ResultForm | None = None) -> HttpResponse:
    user, shown = person(request), _shown(gate)
    may_run = user.has_perm(RUN)
    context = {
        **shown,
        "title": _("Gate {number} of {machine}").format(number=gate.pk, machine=gate.machine),
        "rows": _rows(gate, shown["states"], may_run=may_run, refused=refused),
        "may_run": may_run,
        "may_retry": may_run and not gate_state.why_not_retry(gate),
        "may_review": user.has_perm(REVIEW)
        and gate.status == Status.AWAITING_REVIEW
        and not gate.made_for,
        "most_mib": settings.EVIDENCE_MOST_BYTES // 2**20,
    }
    return page(request, "fleet/gates/detail.html", context, status=400 if refused else 200)


def _shown(gate: Gate) -> dict[str, Any]:
    """What the gate's page and its review both show."""
    states = gate_state.check_states(gate)
    return {
        "gate": gate,
        "states": states,
        "missing": gate_state.missing(gate, states, now=clock.now()),
        "events": gate.events.order_by("pk"),
        "wants_partner": any(one.check.needs_partner and not one.is_passed for one in states)
        and gate.partner_id is None
        and gate.status == Status.OPEN,
    }


def _rows(
    gate: Gate, states: Sequence[CheckState], *, may_run: bool, refused: ResultForm | None
) -> list[dict[str, Any]]:
    """Each check, with its form where it is its turn and nobody else is at it."""
    stage = gate_state.present_stage(states)
    wall = clock.steady_time()
    rows = []
    for one in states:
        needed = Status.OBSERVING if one.stage == "observation" else Status.OPEN
        is_turn = one.stage is stage and not one.is_passed and not one.is_computed
        is_claimed = services.is_claimed(one.check, wall=wall)
        form: forms.Form | None = None
        if may_run and is_turn and gate.status == needed and not is_claimed:
            is_this = refused is not None and refused.check.pk == one.check.pk
            form = refused if is_this else ResultForm(check=one.check)
        if one.check.needs_partner and gate.partner_id is None:
            form = None
        rows.append({"state": one, "form": form, "is_claimed": is_claimed})
    return rows


@with_files
@needs(RUN)
@require_POST
def report(request: HttpRequest, pk: int, check: int) -> HttpResponse:
    """Take the result of a check that was run by hand."""
    gate = _found(pk)
    own = get_object_or_404(GateCheck.objects.select_related("gate__machine"), pk=check, gate=gate)
    form = ResultForm(request.POST, request.FILES, check=own)
    if not form.is_valid():
        return _detail(request, gate, refused=form)
    said = dict(form.cleaned_data)
    file = said.pop("file")
    files = [services.store_file(file.chunks(), name=file.name)] if file else []
    services.report_result(own, services.Outcome(**said, files=files), **by_whom(request))
    return redirect("fleet:gate", gate.pk)


@needs(RUN)
@require_POST
def partner(request: HttpRequest, pk: int) -> HttpResponse:
    """Reserve a machine for the checks over several machines."""
    services.reserve_partner(_found(pk), **by_whom(request))
    return redirect("fleet:gate", pk)


@needs(RUN)
@require_POST
def retry(request: HttpRequest, pk: int) -> HttpResponse:
    """Run the checks of a failed gate once more."""
    return redirect("fleet:gate", services.retry_gate(_found(pk), **by_whom(request)).pk)


@needs(REVIEW)
@require_http_methods(["GET", "HEAD", "POST"])
def review(request: HttpRequest, pk: int) -> HttpResponse:
    """Everything that was shown, and the verdict on it."""
    gate, user = _found(pk), person(request)
    form = ReviewForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        services.review_gate(
            gate,
            is_accepted=form.cleaned_data["verdict"] == "accept",
            user=user,
            reason=form.cleaned_data["reason"],
            now=clock.now(),
        )
        return redirect("fleet:gate", gate.pk)
    context = {
        **_shown(gate),
        "title": _("Review gate {number} of {machine}").format(
            number=gate.pk, machine=gate.machine
        ),
        "form": form,
        "why_not": gate_state.why_not_review(gate, user),
        "is_waiting": gate.status == Status.AWAITING_REVIEW,
    }
    return page(request, "fleet/gates/review.html", context, status=400 if form.errors else 200)


# --- plans ----------------------------------------------------------------------------------------


@fleet_page
@require_safe
def plans(request: HttpRequest) -> HttpResponse:
    """The plan that holds of each kind and level."""
    newest: dict[tuple[str, int], GatePlan] = {}
    for plan in GatePlan.objects.order_by("kind", "level", "version"):
        newest[plan.kind, plan.level] = plan
    context = {
        "title": _("Gate plans"),
        "listed": [(plan, gate_state.plan_check_words(plan)) for plan in newest.values()],
        "may_add": request.user.has_perm(PLAN),
    }
    return page(request, "fleet/gates/plans.html", context)


@needs(PLAN)
@require_http_methods(["GET", "HEAD", "POST"])
def new_plan(request: HttpRequest, pk: int) -> HttpResponse:
    """Make the next version of a plan out of one that is there."""
    base = get_object_or_404(GatePlan, pk=pk)
    form = PlanForm(request.POST) if request.method == "POST" else PlanForm(initial=_initial(base))
    if request.method == "POST" and form.is_valid():
        try:
            services.add_gate_plan(**form.cleaned_data, author=person(request))
        except GatePlanRefused as refusal:  # shown beside the text, which would be lost otherwise
            for reason in refusal.reasons:
                form.add_error("checks" if reason.startswith("checks") else None, reason)
        else:
            return redirect("fleet:gate-plans")
    context = {"title": _("A new version of {plan}").format(plan=base), "form": form, "base": base}
    return page(request, "fleet/gates/plan_new.html", context, status=400 if form.errors else 200)


def _initial(plan: GatePlan) -> dict[str, Any]:
    names = ("kind", "level", "title", "workload", "observation_hours", "review")
    checks = json.dumps(plan.checks, indent=1, ensure_ascii=False)
    return {**{name: getattr(plan, name) for name in names}, "checks": checks}


def _found(pk: int) -> Gate:
    related = ("machine__platform", "plan", "repair", "incident", "bundle", "partner", "reviewer")
    return get_object_or_404(Gate.objects.select_related(*related), pk=pk)
