"""Pages about versions: drift, one machine's history, and whom an advisory concerns."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import islice
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods, require_safe

from fleet import clock, compliance
from fleet import selectors as fleet_selectors
from fleet import services as fleet
from fleet.firmware.drift import Standing
from fleet.models import Machine
from fleet.views import View, needs, page, person
from rollouts import selectors
from rollouts.views.firmware_forms import AsOfForm, DriftForm, DriftListForm, RunForm, WantedForm

PAGE_SIZE = 100
USUAL_SPAN = timedelta(days=30)
SEE_HISTORY = "fleet.view_firmwarerecord"
#: Who may say what machines are meant to run; the API asks for the same.
SET_WANTED = "fleet.add_desiredbundle"


def firmware_page(view: View) -> View:
    """Let in who is logged in and may see the version history."""
    return needs(SEE_HISTORY)(require_safe(view))


def _page(request: HttpRequest, name: str, context: Mapping[str, Any]) -> HttpResponse:
    is_refused = "form" in context and context["form"].is_bound and context["form"].errors
    status = 400 if is_refused else 200
    return page(request, f"rollouts/firmware/{name}.html", context, status=status)


@firmware_page
def drift(request: HttpRequest) -> HttpResponse:
    """How machines stand to what they are meant to run, per platform and pool."""
    form = DriftForm(request.GET)
    groups = compliance.summary(_rows(form)) if form.is_valid() else []
    rows = [
        {"group": group, "counts": [(one, group.counts[one]) for one in Standing]}
        for group in groups
    ]
    context = {
        "title": _("Firmware"),
        "form": form,
        "standings": list(Standing),
        "rows": rows,
        "totals": [(one, sum(group.counts[one] for group in groups)) for one in Standing],
        "machines": sum(group.machines for group in groups),
    }
    return _page(request, "drift", context)


@firmware_page
def machines(request: HttpRequest) -> HttpResponse:
    """The machines behind a count, in order of name."""
    form = DriftListForm(request.GET)
    listed: list[compliance.Compliance] = []
    if form.is_valid():
        standing = form.cleaned_data["standing"]
        found = _rows(form, after=form.cleaned_data["after"])
        listed = _first(row for row in found if standing in ("", row.standing))
    shown = listed[:PAGE_SIZE]
    context = {
        "title": _("Firmware, machine by machine"),
        "form": form,
        "listed": shown,
        "more": _more(request, shown[-1].machine) if len(listed) > PAGE_SIZE else "",
    }
    return _page(request, "machines", context)


@firmware_page
def runs(request: HttpRequest) -> HttpResponse:
    """Which machines ran a version at some time."""
    is_asked = "kind" in request.GET
    now = clock.now()
    usual = {"start": now - USUAL_SPAN, "end": now, "stage": "active"}
    form = RunForm(request.GET) if is_asked else RunForm(initial=usual)
    found: list[fleet_selectors.Run] = []
    more = ""
    if is_asked and form.is_valid():
        found = fleet_selectors.who_ran(**form.cleaned_data, limit=PAGE_SIZE + 1)
        names = list(dict.fromkeys(run.machine.name for run in found))
        if len(names) > PAGE_SIZE:
            more = _more(request, names[PAGE_SIZE - 1])
            found = [run for run in found if run.machine.name != names[-1]]
    context = {
        "title": _("Who ran a version"),
        "form": form,
        "found": found,
        "is_asked": is_asked and form.is_valid(),
        "more": more,
    }
    return _page(request, "runs", context)


@needs(SEE_HISTORY)
@require_http_methods(["GET", "HEAD", "POST"])
def wanted(request: HttpRequest) -> HttpResponse:
    """What machines are meant to run; what another bundle would mean; and the word that sets it.

    It moves no firmware: it says what drift is measured against.
    """
    may_set = request.user.has_perm(SET_WANTED)
    if request.method == "POST" and not may_set:
        raise PermissionDenied
    form = WantedForm(request.POST or None)
    is_good = form.is_bound and form.is_valid()
    if is_good and "set" in request.POST:
        fleet.set_desired_bundle(**form.cleaned_data, actor=person(request), now=clock.now())
        return redirect("rollouts:firmware-wanted")
    context = {
        "title": _("Wanted bundles"),
        "form": form,
        "may_set": may_set,
        "standings": list(Standing),
        "outlook": _outlook(form.cleaned_data) if is_good else None,
        "held": compliance.standing_words(),
    }
    return _page(request, "wanted", context)


def _outlook(asked: Mapping[str, Any]) -> dict[str, Any]:
    """How the machines that a word would hold for stand now, and how they would."""
    concerned = compliance.would_concern(asked["platform"], pool=asked["pool"])
    bundle = asked["bundle"]
    if bundle is None and asked["pool"]:
        usual = compliance.standing_words().filter(platform=asked["platform"], pool="").first()
        bundle = usual.bundle if usual else None
    treated = selectors.treated_bundles()
    present = compliance.compliance(concerned, treated=treated)
    later = compliance.compliance(concerned, bundle=bundle) if bundle else ()
    total = concerned.exclude(state=Machine.State.RETIRED).count()
    counts = [Counter(row.standing for row in rows) for rows in (present, later)]
    return {
        "machines": total,
        "bundle": bundle,
        "rows": [
            {"standing": one, "now": counts[0][one], "then": counts[1][one]} for one in Standing
        ],
        "nothing": {"now": total - counts[0].total(), "then": total - counts[1].total()},
    }


@firmware_page
def machine(request: HttpRequest, name: str) -> HttpResponse:
    """One machine: what it runs, what is staged, and how it came to it."""
    own = get_object_or_404(Machine.objects.select_related("platform"), name=name)
    form = AsOfForm(request.GET)
    now = clock.now()
    at = (form.cleaned_data["as_of"] if form.is_valid() else None) or now
    standing = compliance.compliance(
        Machine.objects.filter(pk=own.pk), treated=selectors.treated_bundles(), at=at
    )
    context = {
        "title": own.name,
        "machine": own,
        "form": form,
        "at": at,
        "standing": next(standing, None),
        "intervals": fleet_selectors.history(own, as_of=at),
    }
    return _page(request, "machine", context)


def _rows(form: DriftForm, *, after: str = "") -> Iterable[compliance.Compliance]:
    bundle = form.cleaned_data["bundle"]
    treated = {} if bundle else selectors.treated_bundles()
    return compliance.compliance(form.machines(), bundle=bundle, treated=treated, after=after)


def _first(rows: Iterable[Any]) -> list[Any]:
    """One more than a page holds, which tells that there is more."""
    return list(islice(rows, PAGE_SIZE + 1))


def _more(request: HttpRequest, last: str) -> str:
    query = request.GET.copy()
    query["after"] = last
    return f"?{query.urlencode()}"
