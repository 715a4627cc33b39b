"""What people write on a machine's page."""

from datetime import datetime, timedelta
from typing import Any, cast

from django import forms
from django.contrib.auth.models import User
from django.utils.translation import gettext_lazy as _

from fleet.models import Machine, Team
from fleet.views.lists import FilterForm


class TakeOutForm(forms.Form):
    """Why a machine leaves work, and whether its job is waited for."""

    reason = forms.CharField(label=_("Reason"), max_length=300)
    at_once = forms.BooleanField(
        label=_("At once, without waiting for its job: it does not answer"), required=False
    )


class RetireForm(forms.Form):
    """Why a machine leaves the fleet for good."""

    reason = forms.CharField(label=_("Reason; it takes no work ever again"), max_length=300)


class DiagnoseAgainForm(forms.Form):
    """Why a machine whose checks failed goes back to its diagnosis."""

    reason = forms.CharField(label=_("Reason"), max_length=300)


class CordonForm(forms.Form):
    """Why a machine may take no work."""

    reason = forms.CharField(label=_("Reason"), max_length=300)


class HandOverForm(forms.Form):
    """Who has the machine from now on; neither of the two lays it down."""

    team = forms.ModelChoiceField(
        Team.objects.all(), to_field_name="name", label=_("Team"), required=False
    )
    person = forms.ModelChoiceField(
        User.objects.none(), to_field_name="username", label=_("Person"), required=False
    )
    word = forms.CharField(label=_("What they have to know"), max_length=500, required=False)

    def __init__(self, *args: Any, machine: Machine, **words: Any) -> None:
        super().__init__(*args, **words)
        people = User.objects.filter(is_active=True)
        team = machine.owner_team
        if team is not None and team.members.exists() and not self.is_bound:
            people = people.filter(teams=team)
        cast(forms.ModelChoiceField, self.fields["person"]).queryset = people.order_by("username")


class BreakGlassForm(forms.Form):
    """Why a machine works without its gate, and for how long."""

    reason = forms.CharField(label=_("Reason; another person reviews it"), max_length=300)
    hours = forms.FloatField(label=_("Hours"), min_value=0.1, max_value=72, initial=8)

    def until(self, now: datetime) -> datetime:
        return now + timedelta(hours=self.cleaned_data["hours"])


class ReviewForm(forms.Form):
    """What was looked at after a machine worked without its gate."""

    word = forms.CharField(label=_("What was looked at"), max_length=500)


class CordonListForm(FilterForm):
    """Which cordons are asked for."""

    owner = forms.CharField(label=_("Owner"), max_length=100, required=False)
    reason = forms.CharField(label=_("Reason contains"), max_length=300, required=False)
    machine = forms.CharField(label=_("Machine"), max_length=200, required=False)


class NoticeListForm(FilterForm):
    """Which notices are asked for."""

    kind = forms.CharField(label=_("Kind"), max_length=40, required=False)
    machine = forms.CharField(label=_("Machine"), max_length=200, required=False)
    mine = forms.BooleanField(label=_("Only my teams' and mine"), required=False)
