"""The page of what changed since some time, and of what explains a spike of faults best."""

from datetime import timedelta

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from fleet import clock
from fleet.views import page
from rollouts.changes import changed_since
from rollouts.errors import UnknownSignature
from rollouts.suspects import line_up
from rollouts.views import operators_page

MOST_SUSPECTS = 20


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


@require_safe
@operators_page
def what_changed(request: HttpRequest) -> HttpResponse:
    """Everything that changed since then, and which of it explains a spike of faults best."""
    now = clock.now()
    form = ChangesForm(request.GET or None)
    asked = form.cleaned_data if form.is_bound and form.is_valid() else {}
    since = asked.get("since") or now - timedelta(days=1)
    lineup = None
    if asked.get("signature"):
        try:
            lineup = line_up(asked["signature"], since=since, now=now)
        except UnknownSignature as error:
            form.add_error("signature", str(error))
    context = {
        "title": _("What changed"),
        "form": form,
        "since": since,
        "changed": changed_since(since, until=now),
        "lineup": lineup,
        "suspects": lineup.suspects[:MOST_SUSPECTS] if lineup else (),
        "more_suspects": max(len(lineup.suspects) - MOST_SUSPECTS, 0) if lineup else 0,
    }
    return page(request, "rollouts/changes.html", context)
