"""Pages about incidents: which there are, and one from its telemetry to what became of it."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST, require_safe

from fleet import clock, services, stories
from fleet.models import Incident
from fleet.views import by_whom, fleet_page, needs, page, person
from fleet.views.impact_forms import SOURCE, ImpactForm
from fleet.views.incident_forms import (
    CaseForm,
    CauseForm,
    DiagnosisForm,
    IncidentListForm,
    LinkForm,
    NoteForm,
)
from fleet.views.lists import first_page

WORK = "fleet.work_repair"
TELL_IMPACT = "fleet.add_jobimpact"


@fleet_page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Incidents, newest first; those that are open unless others are asked for."""
    form = IncidentListForm(request.GET if request.GET else {"status": "open"})
    chosen = _chosen(form) if form.is_valid() else Incident.objects.none()
    listed, more = first_page(chosen, request.GET, status="open")
    context = {"title": _("Incidents"), "form": form, "listed": listed, "more": more}
    return page(request, "fleet/incidents/index.html", context, status=400 if form.errors else 200)


def _chosen(form: IncidentListForm) -> QuerySet[Incident]:
    asked = form.cleaned_data
    chosen = Incident.objects.filter(merged_into=None).select_related("machine", "signature")
    if asked["status"]:
        chosen = chosen.filter(closed_at__isnull=asked["status"] == "open")
    for name in ("family", "cause", "severity"):
        if asked[name]:
            chosen = chosen.filter(**{name: asked[name]})
    if asked["platform"]:
        chosen = chosen.filter(machine__platform=asked["platform"])
    if asked["machine"]:
        chosen = chosen.filter(machine__name=asked["machine"])
    last = Incident.objects.filter(pk=asked["before"]).first() if asked["before"] else None
    if last is not None:
        older = Q(opened_at__lt=last.opened_at) | Q(opened_at=last.opened_at, pk__lt=last.pk)
        chosen = chosen.filter(older)
    return chosen.order_by("-opened_at", "-pk")


@fleet_page
@require_safe
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One incident, from telemetry to job to diagnosis to change to repair to what then."""
    return _detail(request, _found(pk))


def _detail(
    request: HttpRequest, incident: Incident, *, given: dict[str, forms.Form] | None = None
) -> HttpResponse:
    refused = given or {}
    survivor = incident.merged_into
    story = stories.story(survivor or incident, as_of=clock.now())
    is_open = incident.closed_at is None
    offered = {
        "diagnose": DiagnosisForm(prefix="diagnose", initial=_known(incident)) if is_open else None,
        "cause": CauseForm(prefix="cause", initial={"cause": incident.cause}),
        "link": LinkForm(prefix="link", incident=incident),
        "case": CaseForm(prefix="case", initial={"supplier_case": incident.supplier_case}),
        "note": NoteForm(prefix="note"),
        "impact": ImpactForm(prefix="impact", incident=story.incident),
    }
    context = {
        "title": _("Incident {number} of {machine}").format(
            number=incident.pk, machine=incident.machine
        ),
        "asked": incident,
        "incident": story.incident,
        "story": story,
        "forms": {**offered, **refused},
        "may_work": request.user.has_perm(WORK) and survivor is None,
        "may_tell_impact": request.user.has_perm(TELL_IMPACT) and survivor is None,
        "may_order": is_open and all(repair.closed_at for repair in story.repairs),
    }
    return page(request, "fleet/incidents/detail.html", context, status=400 if refused else 200)


def _known(incident: Incident) -> dict[str, Any]:
    names = ("diagnosis", "cause", "component", "repair_kind", "confidence")
    return {name: getattr(incident, name) for name in names}


# --- what is said of one -------------------------------------------------------------------------


@needs(WORK)
@require_POST
def diagnose(request: HttpRequest, pk: int) -> HttpResponse:
    """Say what is wrong; order the repair at once if asked to."""
    return _say(request, pk, "diagnose", DiagnosisForm(request.POST, prefix="diagnose"), _diagnose)


def _diagnose(incident: Incident, *, is_acted_on: bool, **said: Any) -> None:
    act = services.diagnose_and_act if is_acted_on else services.diagnose_incident
    act(incident, **said)


@needs(WORK)
@require_POST
def name_cause(request: HttpRequest, pk: int) -> HttpResponse:
    """Say what the cause turned out to be."""
    form = CauseForm(request.POST, prefix="cause")
    return _say(request, pk, "cause", form, services.name_cause)


@needs(WORK)
@require_POST
def link(request: HttpRequest, pk: int) -> HttpResponse:
    """Link the change that answers the incident."""
    form = LinkForm(request.POST, prefix="link", incident=_found(pk))
    return _say(request, pk, "link", form, services.link_change)


@needs(WORK)
@require_POST
def open_case(request: HttpRequest, pk: int) -> HttpResponse:
    """Name the supplier's case."""
    return _say(request, pk, "case", CaseForm(request.POST, prefix="case"), services.open_case)


@needs(WORK)
@require_POST
def note(request: HttpRequest, pk: int) -> HttpResponse:
    """Leave a word."""
    return _say(request, pk, "note", NoteForm(request.POST, prefix="note"), services.note_incident)


@needs(TELL_IMPACT)
@require_POST
def tell_impact(request: HttpRequest, pk: int) -> HttpResponse:
    """Say what the incident did to a job; what cannot be is shown at its field."""
    incident = _found(pk)
    form = ImpactForm(request.POST, prefix="impact", incident=incident)
    now = clock.now()
    if form.is_valid():
        form.add_reasons(services.wrong_with_impact(form.impact(), source=SOURCE, now=now))
    if form.errors:
        return _detail(request, incident, given={"impact": form})
    services.record_impact(form.impact(), source=SOURCE, now=now, user=person(request))
    return redirect("fleet:incident", incident.pk)


def _say(
    request: HttpRequest, pk: int, name: str, form: forms.Form, act: Callable[..., object]
) -> HttpResponse:
    incident = _found(pk)
    if not form.is_valid():
        return _detail(request, incident, given={name: form})
    act(incident, **form.cleaned_data, **by_whom(request))
    return redirect("fleet:incident", incident.pk)


def _found(pk: int) -> Incident:
    related = ("machine__platform", "signature", "parent", "merged_into", "change", "bundle")
    return get_object_or_404(Incident.objects.select_related(*related), pk=pk)
