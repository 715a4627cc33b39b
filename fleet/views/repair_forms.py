"""What a technician says on the pages: of an order, of a step, of the parts that were swapped."""

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from fleet.identity import Swap
from fleet.models import Incident, Machine, Repair, RepairKind
from fleet.repair.steps import Status
from fleet.services import OPEN_REPAIR, ORDERABLE
from fleet.views.lists import FilterForm

NOTE: Mapping[str, Any] = {"label": _("Note"), "max_length": 1000, "required": False}


class RepairListForm(FilterForm):
    """Which repairs are shown."""

    status = forms.ChoiceField(
        label=_("Status"),
        required=False,
        choices=[("open", _("open")), ("", _("all")), *((one.value, one.value) for one in Status)],
    )
    kind = forms.ChoiceField(
        label=_("Kind"), required=False, choices=[("", _("all")), *RepairKind.choices]
    )
    machine = forms.CharField(label=_("Machine"), max_length=200, required=False)
    mine = forms.BooleanField(label=_("Mine"), required=False)
    before = forms.IntegerField(required=False, min_value=1, widget=forms.HiddenInput)

    def statuses(self) -> Sequence[str]:
        status = self.cleaned_data["status"]
        if status == "open":
            return [one.value for one in OPEN_REPAIR]
        return [status] if status else []


class NewRepairForm(forms.Form):
    """What is to be done on which machine."""

    machine = forms.ModelChoiceField(
        label=_("Machine"),
        queryset=Machine.objects.all(),
        to_field_name="name",
        widget=forms.TextInput,
        error_messages={"invalid_choice": _("There is no such machine.")},
    )
    kind = forms.ChoiceField(
        label=_("Kind"), choices=[(kind.value, kind.label) for kind in ORDERABLE]
    )
    component = forms.CharField(
        label=_("Component"), max_length=80, required=False, help_text=_("kind and slot, as gpu 3")
    )
    incident = forms.ModelChoiceField(
        label=_("Incident"),
        queryset=Incident.objects.all(),
        required=False,
        widget=forms.NumberInput,
        help_text=_("its number; empty where there is none"),
    )
    note = forms.CharField(**NOTE)


class NoteForm(forms.Form):
    """A word that goes with a step."""

    note = forms.CharField(**NOTE)


class SupplierForm(NoteForm):
    """Under which case the supplier has it."""

    supplier_case = forms.CharField(label=_("Supplier's case"), max_length=100, required=False)
    field_order = ("supplier_case", "note")


class CancelForm(forms.Form):
    """Why the repair is given up."""

    reason = forms.CharField(label=_("Reason"), max_length=1000)


class EvidenceForm(forms.Form):
    """A file, and what its digest has to be where it is known."""

    file = forms.FileField(label=_("File"), allow_empty_file=True)
    sha256 = forms.CharField(
        label=_("SHA-256"), max_length=64, required=False, help_text=_("checked where it is given")
    )


class SwapForm(forms.Form):
    """One part: both serials as they are read off the parts. An empty row says nothing."""

    kind = forms.CharField(label=_("Part"), max_length=40, required=False)
    slot = forms.CharField(label=_("Slot"), max_length=40, required=False)
    old_serial = forms.CharField(label=_("Old serial"), max_length=100, required=False)
    new_serial = forms.CharField(label=_("New serial"), max_length=100, required=False)
    new_model = forms.CharField(label=_("New model"), max_length=100, required=False)

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or {}
        if self.is_empty(given) or self.errors:
            return given
        for name in ("kind", "old_serial", "new_serial"):
            if not given.get(name):
                self.add_error(name, _("needed for a part that was swapped"))
        if given.get("old_serial") and given["old_serial"] == given.get("new_serial"):
            self.add_error("new_serial", _("the same as the old one"))
        return given

    @staticmethod
    def is_empty(given: dict[str, Any]) -> bool:
        """True where nothing was read off: a kind and a slot alone are filled in by the page."""
        return not any(given.get(name) for name in ("old_serial", "new_serial", "new_model"))


SwapFormSet = forms.formset_factory(SwapForm, extra=0, max_num=64, absolute_max=64)


class CloseForm(forms.Form):
    """How the repair ended."""

    outcome = forms.ChoiceField(label=_("It was"), choices=Repair.Outcome.choices)
    note = forms.CharField(**NOTE)


def swaps_of(rows: forms.BaseFormSet) -> tuple[Swap, ...]:
    """The parts of a valid set of rows, without those that were left empty."""
    given = [row.cleaned_data for row in rows.forms if row.cleaned_data]
    return tuple(Swap(**row) for row in given if not SwapForm.is_empty(row))
