"""The page on which a supplier's case is looked through, and its package made."""

from typing import Any, cast

from django import forms
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.text import slugify
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST, require_safe

from fleet import clock
from fleet.models import Incident, Repair
from fleet.views import needs, page, person
from rollouts import services
from rollouts.errors import PackageRefused
from rollouts.models import SupplierPackage
from rollouts.supplier import Package, gather
from rollouts.supplier.forms import MEDIA_TYPES

ADD = "rollouts.add_supplierpackage"
#: Cases and packages that the page lists, the newest first.
MOST_LISTED = 50


class PackageForm(forms.Form):
    """Which form, and which free texts are let through."""

    case = forms.CharField(max_length=100)
    form = forms.ChoiceField(
        label=_("Form"), choices=[(one, one.upper()) for one in SupplierPackage.Format.values]
    )
    texts = forms.MultipleChoiceField(required=False)

    def __init__(self, *args: Any, package: Package, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        known = [(text.key, text.key) for text in package.texts]
        cast(forms.MultipleChoiceField, self.fields["texts"]).choices = known


def _page(request: HttpRequest, *, status: int = 200, **context: Any) -> HttpResponse:
    whole = {"title": _("Supplier's case"), **context}
    return page(request, "rollouts/supplier.html", whole, status=status)


@needs(ADD)
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """One case as it would leave, or the cases that there are."""
    case = request.GET.get("case", "")
    if not case:
        return _page(request, cases=_cases())
    try:
        package = gather(case, now=clock.now())
    except PackageRefused as error:
        return _page(request, status=404, cases=_cases(), refused=str(error))
    return _page(request, package=package, form=PackageForm(package=package), made=_made(case))


@needs(ADD)
@require_POST
def package(request: HttpRequest) -> HttpResponse:
    """Make the package and hand it out as a file; the record is kept."""
    case = request.POST.get("case", "")
    now = clock.now()
    try:
        seen = gather(case, now=now)
    except PackageRefused as error:
        return _page(request, status=400, cases=_cases(), refused=str(error))
    form = PackageForm(request.POST, package=seen)
    if not form.is_valid():
        chosen = request.POST.getlist("texts")
        return _page(request, status=400, package=seen, form=form, made=_made(case), chosen=chosen)
    user = person(request)
    record, content = services.make_package(
        case,
        form=form.cleaned_data["form"],
        texts=form.cleaned_data["texts"],
        actor=user.get_username(),
        user=user,
        now=now,
    )
    return attachment(record, content)


def attachment(record: SupplierPackage, content: bytes) -> HttpResponse:
    """The file, to be saved and never opened in place."""
    answer = HttpResponse(content, content_type=MEDIA_TYPES[SupplierPackage.Format(record.format)])
    name = f"case-{slugify(record.case) or 'package'}-{record.pk}.{record.format}"
    answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers["Cache-Control"] = "private, no-store"
    answer.headers["Digest"] = f"sha-256={record.sha256}"
    return answer


def _made(case: str) -> QuerySet[SupplierPackage]:
    return SupplierPackage.objects.filter(case=case)[:MOST_LISTED]


def _cases() -> list[str]:
    """Return the cases of the newest incidents and repairs."""
    found: dict[str, None] = {}
    for rows in (
        Incident.objects.exclude(supplier_case="").order_by("-opened_at"),
        Repair.objects.exclude(supplier_case="").exclude(incident=None).order_by("-ordered_at"),
    ):
        for case in rows.values_list("supplier_case", flat=True)[:MOST_LISTED]:
            found.setdefault(case)
    return list(found)
