"""What people say on the pages of gates: a check's result, a review, a new version of a plan."""

import json
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from fleet.models import GateCheck, GatePlan, RepairKind
from fleet.repair.gating import UNFINISHED, Status
from fleet.views.lists import FilterForm


class GateListForm(FilterForm):
    """Which gates are shown."""

    status = forms.ChoiceField(
        label=_("Status"),
        required=False,
        choices=[
            ("unfinished", _("unfinished")),
            ("", _("all")),
            *((one.value, one.value) for one in Status),
        ],
    )
    kind = forms.ChoiceField(
        label=_("Kind"), required=False, choices=[("", _("all")), *RepairKind.choices]
    )
    machine = forms.CharField(label=_("Machine"), max_length=200, required=False)
    whose = forms.ChoiceField(
        label=_("Of"),
        required=False,
        choices=[("", _("all")), ("machines", _("repairs")), ("rollouts", _("rollouts"))],
    )
    made_for = forms.CharField(
        max_length=40, required=False, widget=forms.HiddenInput, help_text="rollout:7/wave:1"
    )
    before = forms.IntegerField(required=False, min_value=1, widget=forms.HiddenInput)

    def statuses(self) -> list[str]:
        status = self.cleaned_data["status"]
        if status == "unfinished":
            return [one.value for one in UNFINISHED]
        return [status] if status else []


class ResultForm(forms.Form):
    """What a check came to, by hand."""

    value = forms.FloatField(label=_("Value"), required=False)
    unit = forms.CharField(label=_("Unit"), max_length=20, required=False)
    has_failed = forms.BooleanField(
        label=_("The run itself failed"), required=False, help_text=_("the check fails then")
    )
    note = forms.CharField(label=_("Note"), max_length=800, required=False)
    reference = forms.CharField(label=_("Evidence kept elsewhere"), max_length=500, required=False)
    file = forms.FileField(label=_("Evidence"), required=False, allow_empty_file=True)

    def __init__(self, *args: Any, check: GateCheck, **kwargs: Any) -> None:
        super().__init__(*args, **{"prefix": f"check-{check.pk}", **kwargs})
        self.check = check
        self.fields["unit"].initial = check.unit
        self.fields["unit"].widget = forms.HiddenInput() if not check.unit else forms.TextInput()

    def clean(self) -> dict[str, Any]:
        """Ask for what is missing before the check is said to have failed for the lack of it."""
        given: dict[str, Any] = super().clean() or {}
        if self.errors or given.get("has_failed"):
            return given
        if given.get("value") is None:
            self.add_error("value", _("a value is needed, or a word that the run failed"))
        if self.check.needs_evidence and not (given.get("file") or given.get("reference")):
            self.add_error("file", _("this check needs evidence: a file, or where it is kept"))
        return given


class ReviewForm(forms.Form):
    """Whether what was shown is enough, and why."""

    verdict = forms.ChoiceField(
        label=_("Verdict"),
        choices=[
            ("accept", _("accept: release the machine")),
            ("reject", _("reject: diagnose it again")),
        ],
        widget=forms.RadioSelect,
    )
    reason = forms.CharField(label=_("Reason"), max_length=500)


class PlanForm(forms.Form):
    """A new version of a plan; the checks as a JSON list, as the API takes them."""

    kind = forms.ChoiceField(label=_("Kind"), choices=RepairKind.choices)
    level = forms.IntegerField(
        label=_("Level"),
        min_value=0,
        max_value=9,
        help_text=_("0 is the usual gate; higher ones are for recurrences"),
    )
    title = forms.CharField(label=_("Title"), max_length=200)
    workload = forms.CharField(label=_("Representative work"), max_length=300)
    observation_hours = forms.FloatField(label=_("Hours of observation"), min_value=0)
    review = forms.ChoiceField(label=_("Reviewed by"), choices=GatePlan.Review.choices)
    checks = forms.CharField(
        label=_("Checks"), widget=forms.Textarea(attrs={"rows": 24, "spellcheck": "false"})
    )

    def clean_checks(self) -> Any:
        try:
            return json.loads(self.cleaned_data["checks"])
        except ValueError as error:
            raise forms.ValidationError(
                _("This is no JSON: {error}").format(error=error)
            ) from error
