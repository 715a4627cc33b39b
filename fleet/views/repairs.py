"""Pages for technicians: what is to be repaired, what is being done, how it ended."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.utils.translation import gettext_lazy as _
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from fleet import services, tasks
from fleet.downloads import attachment
from fleet.errors import EvidenceTooLarge
from fleet.hints import hint
from fleet.models import Component, Evidence, Machine, Repair
from fleet.repair.steps import Status, Step, steps_from
from fleet.views import View, by_whom, fleet_page, needs, page
from fleet.views.lists import first_page
from fleet.views.repair_forms import (
    CancelForm,
    CloseForm,
    EvidenceForm,
    NewRepairForm,
    NoteForm,
    RepairListForm,
    SupplierForm,
    SwapFormSet,
    swaps_of,
)

MOST_PARTS = 16
WORK = "fleet.work_repair"
REST_BYTES = 2**20  # what a form holds beside its files


def with_files(view: View) -> View:
    """Refuse a form that is too large before any of it is read: the CSRF check reads it first."""
    protected: Callable[..., HttpResponse] = csrf_protect(view)

    @csrf_exempt
    def bounded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        most = settings.EVIDENCE_MOST_BYTES
        if int(request.META.get("CONTENT_LENGTH") or 0) > most + REST_BYTES:
            raise EvidenceTooLarge(f"what was sent is larger than {most // 2**20} MiB")
        return protected(request, *args, **kwargs)

    return bounded


@fleet_page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Repairs, newest first; those that are open unless others are asked for."""
    form = RepairListForm(request.GET if request.GET else {"status": "open"})
    chosen = _chosen(request, form) if form.is_valid() else Repair.objects.none()
    listed, more = first_page(chosen, request.GET, status="open")
    context = {
        "title": _("Repairs"),
        "form": form,
        "listed": listed,
        "more": more,
        "may_work": request.user.has_perm(WORK),
    }
    return page(request, "fleet/repairs/index.html", context, status=400 if form.errors else 200)


def _chosen(request: HttpRequest, form: RepairListForm) -> QuerySet[Repair]:
    chosen = Repair.objects.select_related("machine", "technician").order_by("-pk")
    if statuses := form.statuses():
        chosen = chosen.filter(status__in=statuses)
    if kind := form.cleaned_data["kind"]:
        chosen = chosen.filter(kind=kind)
    if machine := form.cleaned_data["machine"]:
        chosen = chosen.filter(machine__name=machine)
    if form.cleaned_data["mine"]:
        chosen = chosen.filter(technician=request.user.pk)
    if before := form.cleaned_data["before"]:
        chosen = chosen.filter(pk__lt=before)
    return chosen


@needs(WORK)
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """Order a repair."""
    asked = {name: request.GET.get(name, "") for name in ("machine", "component", "incident")}
    form = NewRepairForm(request.POST) if request.method == "POST" else NewRepairForm(initial=asked)
    if request.method == "POST" and form.is_valid():
        said = dict(form.cleaned_data)
        machine: Machine = said.pop("machine")
        repair = services.order_repair(machine, **said, **by_whom(request))
        return _show(repair)
    context = {"title": _("Order a repair"), "form": form}
    return page(request, "fleet/repairs/new.html", context, status=400 if form.errors else 200)


@fleet_page
@require_safe
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One repair: its steps, its parts, what proves it, and what can be done next."""
    return _detail(request, _found(pk))


def _detail(
    request: HttpRequest, repair: Repair, *, forms_given: dict[str, forms.Form] | None = None
) -> HttpResponse:
    given = forms_given or {}
    possible = steps_from(Status(repair.status))
    offered = {
        "start": given.get("start") or NoteForm(prefix="start"),
        "send_away": given.get("send_away")
        or SupplierForm(prefix="away", initial={"supplier_case": repair.supplier_case}),
        "cancel": given.get("cancel") or CancelForm(prefix="cancel"),
    }
    context = {
        "title": _("Repair {number} of {machine}").format(number=repair.pk, machine=repair.machine),
        "repair": repair,
        "events": repair.events.select_related("user"),
        "swaps": repair.swaps.all(),
        "evidence": repair.evidence.all(),
        "gates": repair.gates.all(),
        "links": repair.ticket_links.all(),
        "steps": [(step.value, offered[step]) for step in possible if step in offered],
        "may_close": Step.CLOSE in possible,
        "may_add": repair.status != Status.CANCELLED,
        "evidence_form": given.get("evidence") or EvidenceForm(prefix="evidence"),
        "may_work": request.user.has_perm(WORK),
        "most_mib": settings.EVIDENCE_MOST_BYTES // 2**20,
    }
    is_refused = any(form.errors for form in given.values())
    return page(request, "fleet/repairs/detail.html", context, status=400 if is_refused else 200)


@needs(WORK)
@require_POST
def start(request: HttpRequest, pk: int) -> HttpResponse:
    """Begin the work."""
    return _step(request, pk, "start", NoteForm(request.POST, prefix="start"))


@needs(WORK)
@require_POST
def send_away(request: HttpRequest, pk: int) -> HttpResponse:
    """Let the supplier have it."""
    return _step(request, pk, "send_away", SupplierForm(request.POST, prefix="away"))


@needs(WORK)
@require_POST
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """Give it up."""
    return _step(request, pk, "cancel", CancelForm(request.POST, prefix="cancel"))


_DO: dict[str, Callable[..., Repair]] = {
    "start": services.start_repair,
    "send_away": services.send_to_supplier,
    "cancel": services.cancel_repair,
}


def _step(request: HttpRequest, pk: int, name: str, form: forms.Form) -> HttpResponse:
    repair = _found(pk)
    if not form.is_valid():
        return _detail(request, repair, forms_given={name: form})
    return _show(_DO[name](repair, **form.cleaned_data, **by_whom(request)))


@with_files
@needs(WORK)
@require_http_methods(["GET", "HEAD", "POST"])
def close(request: HttpRequest, pk: int) -> HttpResponse:
    """End the work: parts, proofs, and what was found."""
    repair = _found(pk)
    is_sent = request.method == "POST"
    form = CloseForm(request.POST if is_sent else None)
    rows = SwapFormSet(request.POST if is_sent else None, initial=_rows(request, repair))
    if is_sent and form.is_valid() and rows.is_valid():
        swaps = swaps_of(rows)
        files = [_stored(file) for file in request.FILES.getlist("files")]
        services.close_repair(
            repair,
            **form.cleaned_data,
            swaps=swaps,
            evidence=files,
            **by_whom(request),
        )
        return _show(repair)
    context = {
        "title": _("End repair {number} of {machine}").format(
            number=repair.pk, machine=repair.machine
        ),
        "repair": repair,
        "form": form,
        "rows": rows,
        "known": _known(repair),
        "most_mib": settings.EVIDENCE_MOST_BYTES // 2**20,
        "more": min(len(rows.forms) + 4, MOST_PARTS),
    }
    is_refused = is_sent and not (form.is_valid() and rows.is_valid())
    return page(request, "fleet/repairs/close.html", context, status=400 if is_refused else 200)


def _rows(request: HttpRequest, repair: Repair) -> list[dict[str, str]]:
    """Rows for the parts, that which was ordered first; serials are never filled in.

    A serial that the page fills in is one that nobody reads off the part.
    """
    asked = request.GET.get("parts", "")
    count = min(int(asked), MOST_PARTS) if asked.isascii() and asked.isdigit() else 1
    kind, slot = _part(repair)
    return [{"kind": kind, "slot": slot}, *({"kind": kind} for _row in range(max(count, 1) - 1))]


def _known(repair: Repair) -> Component | None:
    """The part that is to be swapped, as the inventory knows it."""
    kind, slot = _part(repair)
    return repair.machine.components.exclude(serial="").filter(kind=kind, slot=slot).first()


def _part(repair: Repair) -> tuple[str, str]:
    kind, _blank, slot = repair.component.replace("/", " ").partition(" ")
    return kind[:40], slot[:40]


@with_files
@needs(WORK)
@require_POST
def add_evidence(request: HttpRequest, pk: int) -> HttpResponse:
    """Keep a file that proves something of the repair."""
    repair = _found(pk)
    form = EvidenceForm(request.POST, request.FILES, prefix="evidence")
    if not form.is_valid():
        return _detail(request, repair, forms_given={"evidence": form})
    file = form.cleaned_data["file"]
    services.keep_evidence(
        file.chunks(),
        name=file.name,
        sha256=form.cleaned_data["sha256"],
        repair=repair,
        **by_whom(request),
    )
    return redirect("fleet:repair", repair.pk)


@needs("fleet.view_evidence")
@require_safe
def evidence(request: HttpRequest, pk: int) -> HttpResponseBase:
    """A file that proves something, to be saved."""
    return attachment(get_object_or_404(Evidence, pk=pk))


def _stored(file: UploadedFile) -> services.StoredFile:
    return services.store_file(file.chunks(), name=file.name or "")


def _found(pk: int) -> Repair:
    return get_object_or_404(
        Repair.objects.select_related("machine", "technician", "incident"), pk=pk
    )


def _show(repair: Repair) -> HttpResponse:
    if settings.TICKET_SYSTEMS:
        hint(tasks.tell_tickets)
    return redirect("fleet:repair", repair.pk)
