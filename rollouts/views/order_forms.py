"""The words that go with an order, and what is said of a machine that failed."""

from collections.abc import Mapping
from typing import Any, cast

from django import forms
from django.utils.translation import gettext_lazy as _

from rollouts import roles, selectors
from rollouts.models import Attempt, Order, Rollout

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


class ClearForm(forms.Form):
    """Why a machine may be offered the bundle again."""

    reason = forms.CharField(label=_("Reason"), max_length=300)


class TriageForm(forms.Form):
    """Why a machine did not come back."""

    outcome = forms.ChoiceField(label=_("It was"), choices=Attempt.Triage.choices)
