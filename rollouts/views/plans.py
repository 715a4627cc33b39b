"""A plan before it is approved: its draft is written, drawn over the fleet, and looked through."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from fleet import clock
from fleet.views import needs, page, person
from rollouts import charts, roles, selectors, services
from rollouts.errors import OrderRefused
from rollouts.lifecycle import Status
from rollouts.models import Order
from rollouts.views import get_rollout, operators_page
from rollouts.views.draft_forms import DraftForm, PolicyForm, filled_draft


@require_http_methods(["GET", "HEAD", "POST"])
@needs("rollouts.add_rollout")
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
            author=person(request),
            now=clock.now(),
        )
        return redirect("rollouts:plan", pk=rollout.pk)
    return page(request, "rollouts/new.html", {"title": _("New rollout"), "form": form})


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
@needs(roles.OPERATE)
def preview(request: HttpRequest, pk: int) -> HttpResponse:
    """Draw a draft over the fleet as it stands, and show it."""
    rollout = get_rollout(pk)
    if rollout.status != Status.DRAFT:
        raise OrderRefused([f"only a draft is previewed anew, {rollout} is {rollout.status}"])
    services.preview(rollout, now=clock.now())
    return redirect("rollouts:plan", pk=pk)
