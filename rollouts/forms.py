"""What a person says on the pages: with an order, or to write a draft."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from django import forms
from django.utils.translation import gettext_lazy as _

from fleet import clock
from fleet.errors import SelectorError
from fleet.models import BundleStatus, FirmwareBundle
from fleet.selectors import machines_matching
from rollouts import policies, roles, selectors
from rollouts.errors import PolicyRefused
from rollouts.models import Attempt, Order, Policy, Rollout

#: Orders that go past a verdict: a reason and a second person.
PAST_VERDICT = frozenset({Order.Kind.OVERRIDE, Order.Kind.SKIP_WAVE})
#: Orders that carry no words.
PLAIN = frozenset({Order.Kind.SUBMIT, Order.Kind.START})
#: Orders that are bound to the plan that was seen.
BOUND = frozenset({Order.Kind.SUBMIT, Order.Kind.APPROVE})
#: Orders about machines that are named.
ABOUT_MACHINES = frozenset({Order.Kind.RETRY, Order.Kind.EXCLUDE, Order.Kind.RELEASE})


class OrderForm(forms.Form):
    """The words that go with an order; which are needed depends on the order."""

    reason = forms.CharField(label=_("Reason"), max_length=2000, required=False)
    second_person = forms.ModelChoiceField(
        label=_("Second person"),
        queryset=roles.second_people(),
        to_field_name="username",
        required=False,
    )
    signatures = forms.CharField(
        label=_("Signatures, separated by commas"), max_length=2000, required=False
    )
    clock = forms.BooleanField(label=_("The clock that was set"), required=False)
    machines = forms.CharField(label=_("Machines, separated by commas"), max_length=20000)
    digest = forms.CharField(max_length=64, required=False, widget=forms.HiddenInput)
    by = forms.ModelChoiceField(label=_("The newer rollout"), queryset=Rollout.objects.none())

    def __init__(
        self, data: Mapping[str, Any], *, kind: Order.Kind, rollout: Rollout | None = None
    ) -> None:
        super().__init__(data)
        if kind in PLAIN:
            del self.fields["reason"]
        if kind is Order.Kind.DENY or kind in PAST_VERDICT | ABOUT_MACHINES:
            self.fields["reason"].required = True
        if kind in PAST_VERDICT:
            self.fields["second_person"].required = True
        elif kind is not Order.Kind.ADVANCE:
            del self.fields["second_person"]
        if kind is not Order.Kind.ACKNOWLEDGE:
            del self.fields["signatures"]
            del self.fields["clock"]
        if kind not in ABOUT_MACHINES:
            del self.fields["machines"]
        if kind not in BOUND:
            del self.fields["digest"]
        if kind is not Order.Kind.SUPERSEDE:
            del self.fields["by"]
        elif rollout is not None:
            choice = cast(forms.ModelChoiceField, self.fields["by"])
            choice.queryset = selectors.successors(rollout)

    def clean_signatures(self) -> list[str]:
        return _names(self.cleaned_data["signatures"])

    def clean_machines(self) -> list[str]:
        return _names(self.cleaned_data["machines"])

    def given(self) -> dict[str, Any]:
        """What was said, without what was left empty."""
        return {name: value for name, value in self.cleaned_data.items() if value}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


class ReasonForm(forms.Form):
    """An order that may say why."""

    reason = forms.CharField(label=_("Reason"), max_length=2000, required=False)


class ChangesForm(forms.Form):
    """Since when, and which faults have to be explained."""

    since = forms.DateTimeField(
        label=_("Since (UTC)"),
        required=False,
        validators=[clock.validate_year],
        input_formats=("%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    signature = forms.CharField(
        label=_("Faults to explain, such as xid.*"), max_length=100, required=False
    )


class ClearForm(forms.Form):
    """Why a machine may be offered the bundle again."""

    reason = forms.CharField(label=_("Reason"), max_length=300)


class TriageForm(forms.Form):
    """Why a machine did not come back."""

    outcome = forms.ChoiceField(label=_("It was"), choices=Attempt.Triage.choices)


# --- a draft --------------------------------------------------------------------------------------

#: Fields of a plan that the form asks for by themselves.
ASKED_APART = ("selector", "mode")


class PolicyForm(forms.Form):
    """Which saved policy a draft starts from, if any."""

    policy = forms.ModelChoiceField(
        label=_("Saved policy"), queryset=Policy.objects.all(), required=False
    )


class DraftForm(PolicyForm):
    """Asks what writing a draft would refuse, so that the page says it beside the fields.

    The plan is the whole document, defaults and all. `filled_from` is the policy that its text
    came from, so that a policy chosen afterwards is never taken for what the text says.
    """

    name = forms.CharField(label=_("Name"), max_length=200)
    bundle = forms.ModelChoiceField(
        label=_("Bundle"),
        queryset=FirmwareBundle.objects.filter(status=BundleStatus.APPROVED),
    )
    selector = forms.CharField(
        label=_("Selector"),
        max_length=1000,
        help_text=_("for example platform=dgx-h100,rack in (r1,r2)"),
    )
    mode = forms.ChoiceField(
        label=_("Mode"),
        required=False,
        choices=[
            ("", _("automatic; a site's first rollout only advises")),
            *Rollout.Mode.choices,
        ],
    )
    plan = forms.CharField(
        label=_("Plan (JSON)"), widget=forms.Textarea(attrs={"rows": 24, "spellcheck": "false"})
    )
    filled_from = forms.CharField(required=False, widget=forms.HiddenInput)
    field_order = ("name", "bundle", "selector", "mode", "policy", "plan")

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if Rollout.objects.filter(name=name).exists():
            raise forms.ValidationError(_("another rollout is called so; names are given once"))
        return name

    def clean_selector(self) -> str:
        selector: str = self.cleaned_data["selector"]
        try:
            machines_matching(selector)
        except SelectorError as error:
            raise forms.ValidationError(str(error)) from error
        return selector

    def clean_plan(self) -> dict[str, Any]:
        try:
            document = policies.parsed(self.cleaned_data["plan"], suffix=".json", source="plan")
        except PolicyRefused as error:
            raise forms.ValidationError(error.reasons) from error
        apart = [name for name in ASKED_APART if name in document]
        if apart:
            said = _("{names}: asked for in fields of their own; leave them out here")
            raise forms.ValidationError(said.format(names=", ".join(apart)))
        return document

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or {}
        policy = given.get("policy")
        if "policy" in given and str(policy.pk if policy else "") != given.get("filled_from"):
            said = _("the plan below was not filled in from this policy; fill it in first")
            self.add_error("policy", said)
        if {"plan", "selector"} <= set(given):
            self._check_plan(given, policy)
        return given

    def _check_plan(self, given: Mapping[str, Any], policy: Policy | None) -> None:
        base = policy.document if policy else {}
        mode = {"mode": given["mode"]} if given.get("mode") else {}
        wanted = {**base, **given["plan"], "selector": given["selector"], **mode}
        try:
            policies.plan_from(wanted)
        except PolicyRefused as error:
            own = [reason for reason in error.reasons if reason.startswith("selector")]
            rest = [reason for reason in error.reasons if reason not in own]
            for field, reasons in (("selector", own), ("plan", rest)):
                if reasons:
                    self.add_error(field, reasons)

    def fields_of_draft(self) -> dict[str, Any]:
        """What `services.create_draft` takes."""
        given = self.cleaned_data
        return {
            **{name: given[name] for name in ("name", "bundle", "selector", "policy")},
            "document": given["plan"],
            "mode": given["mode"] or None,
        }


def filled_draft(
    policy: Policy | None, *, given: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """What a form shows that starts from a policy, or from the schema's defaults alone.

    What was said already in the other fields stays.
    """
    said = policy.document if policy else {}
    plan = policies.with_defaults(said, kind=policies.Kind.PLAN)
    apart = {name: said[name] for name in ASKED_APART if name in said}
    own = {name: value for name, value in given.items() if value}
    text = {name: value for name, value in plan.items() if name not in ASKED_APART}
    return {
        **apart,
        **own,
        "policy": policy.pk if policy else None,
        "plan": json.dumps(text, indent=2, ensure_ascii=False),
        "filled_from": policy.pk if policy else "",
    }
