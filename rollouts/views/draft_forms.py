"""What a person says to write a draft."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from fleet.errors import SelectorError
from fleet.models import BundleStatus, FirmwareBundle
from fleet.selectors import machines_matching
from rollouts import policies
from rollouts.errors import PolicyRefused
from rollouts.models import Policy, Rollout

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
