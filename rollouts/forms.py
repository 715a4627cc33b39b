"""What a person says with an order on a rollout's page."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from rollouts import roles
from rollouts.models import Attempt, Order

#: Orders that go past a verdict: a reason and a second person.
PAST_VERDICT = frozenset({Order.Kind.OVERRIDE, Order.Kind.SKIP_WAVE})
#: Orders that carry no words.
PLAIN = frozenset({Order.Kind.SUBMIT, Order.Kind.START})


class OrderForm(forms.Form):
    """The words that go with an order; which are needed depends on the order."""

    reason = forms.CharField(label=_("Reason"), max_length=2000, required=False)
    second_person = forms.ModelChoiceField(
        label=_("Second person"),
        queryset=roles.second_people(),
        to_field_name="username",
        required=False,
    )
    signatures = forms.CharField(label=_("Signatures, separated by commas"), max_length=2000)

    def __init__(self, data: Mapping[str, Any], *, kind: Order.Kind) -> None:
        super().__init__(data)
        if kind in PLAIN:
            del self.fields["reason"]
        if kind is Order.Kind.DENY or kind in PAST_VERDICT:
            self.fields["reason"].required = True
        if kind in PAST_VERDICT:
            self.fields["second_person"].required = True
        elif kind is not Order.Kind.ADVANCE:
            del self.fields["second_person"]
        if kind is not Order.Kind.ACKNOWLEDGE:
            del self.fields["signatures"]

    def clean_signatures(self) -> list[str]:
        return [name.strip() for name in self.cleaned_data["signatures"].split(",") if name.strip()]

    def given(self) -> dict[str, Any]:
        """What was said, without what was left empty."""
        return {name: value for name, value in self.cleaned_data.items() if value}


class TriageForm(forms.Form):
    """Why a machine did not come back."""

    outcome = forms.ChoiceField(label=_("It was"), choices=Attempt.Triage.choices)
