"""What is asked of incidents on the pages, and what is said of one."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from fleet.models import Change, FaultSignature, FirmwareBundle, Incident, Platform
from fleet.services import ORDERABLE
from fleet.views.lists import FilterForm

#: How many of a machine's newest changes are offered as an answer.
MOST_CHANGES = 100
SAID: dict[str, Any] = {
    "label": _("In words"),
    "max_length": 800,
    "widget": forms.Textarea(attrs={"rows": 3}),
}


class IncidentListForm(FilterForm):
    """Which incidents are shown."""

    status = forms.ChoiceField(
        label=_("Status"),
        required=False,
        choices=[("open", _("open")), ("closed", _("closed")), ("", _("all"))],
    )
    family = forms.CharField(label=_("Family"), max_length=60, required=False)
    platform = forms.ModelChoiceField(
        label=_("Platform"),
        required=False,
        queryset=Platform.objects.all(),
        to_field_name="name",
        empty_label=_("all"),
    )
    machine = forms.CharField(label=_("Machine"), max_length=200, required=False)
    cause = forms.ChoiceField(
        label=_("Cause"), required=False, choices=[("", _("all")), *Incident.Cause.choices]
    )
    severity = forms.ChoiceField(
        label=_("Severity"),
        required=False,
        choices=[("", _("all")), *FaultSignature.Severity.choices],
    )
    before = forms.IntegerField(required=False, min_value=1, widget=forms.HiddenInput)

    def clean_family(self) -> str:
        family: str = self.cleaned_data["family"].strip()
        is_known = (
            not family
            or FaultSignature.objects.filter(family=family).exists()
            or Incident.objects.filter(family=family).exists()
        )
        if not is_known:
            raise forms.ValidationError(_("no family of faults has that name"))
        return family


class DiagnosisForm(forms.Form):
    """What is wrong, and what is to be done."""

    diagnosis = forms.CharField(**SAID)
    cause = forms.ChoiceField(label=_("Cause"), choices=Incident.Cause.choices)
    component = forms.CharField(
        label=_("Component"), max_length=80, required=False, help_text=_("kind and slot, as gpu 3")
    )
    repair_kind = forms.ChoiceField(
        label=_("Repair"),
        required=False,
        choices=[("", _("none")), *((kind.value, kind.label) for kind in ORDERABLE)],
    )
    confidence = forms.ChoiceField(
        label=_("Confidence"),
        required=False,
        choices=[("", _("not said")), *Incident.Confidence.choices],
    )
    is_acted_on = forms.BooleanField(
        label=_("Act on it now"),
        required=False,
        help_text=_("order the repair; or, where no fault was found, send the machine to its gate"),
    )

    def clean(self) -> dict[str, Any] | None:
        said = super().clean()
        if not said or not said.get("is_acted_on") or "cause" not in said:
            return said
        is_found = said["cause"] != Incident.Cause.NO_FAULT_FOUND
        if is_found and not said.get("repair_kind"):
            self.add_error("repair_kind", _("name the repair that is to be ordered"))
        if not is_found and said.get("repair_kind"):
            self.add_error("repair_kind", _("none where no fault was found"))
        return said


class CauseForm(forms.Form):
    """What the cause turned out to be."""

    cause = forms.ChoiceField(label=_("Cause"), choices=Incident.Cause.choices)
    said = forms.CharField(**{**SAID, "label": _("How is that known?")})


class LinkForm(forms.Form):
    """Which change answers the incident: one that was reported of its machine, or a bundle."""

    said = forms.CharField(**{**SAID, "required": False})

    field_order = ("change", "bundle", "said")

    def __init__(self, *args: Any, incident: Incident, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        machine = incident.machine
        told = Change.objects.filter(touched__machine=machine).order_by("-at", "-pk")
        newest = list(told.values_list("pk", flat=True)[:MOST_CHANGES])
        self.fields["change"] = forms.ModelChoiceField(
            label=_("Change"),
            queryset=Change.objects.filter(pk__in=newest),
            required=False,
            empty_label=_("none"),
        )
        self.fields["bundle"] = forms.ModelChoiceField(
            label=_("Bundle"),
            queryset=FirmwareBundle.objects.filter(platforms=machine.platform_id),
            required=False,
            empty_label=_("none"),
        )
        self.order_fields(self.field_order)

    def clean(self) -> dict[str, Any] | None:
        said = super().clean()
        if said and not self.errors and bool(said.get("change")) == bool(said.get("bundle")):
            raise forms.ValidationError(_("Choose a change or a bundle, one of the two."))
        return said


class CaseForm(forms.Form):
    """The supplier's case."""

    supplier_case = forms.CharField(label=_("Supplier's case"), max_length=100)
    said = forms.CharField(**{**SAID, "required": False})


class NoteForm(forms.Form):
    """A word."""

    said = forms.CharField(**SAID)
