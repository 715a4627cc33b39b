"""The page on which the firmware gates of a rollout's waves are reviewed."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods

from fleet import clock
from fleet.views import page, person
from rollouts import roles, services
from rollouts.models import Rollout, Wave
from rollouts.views import get_rollout, operators_page
from rollouts.wave_gates import owners_of, wave_gates


class WaveReviewForm(forms.Form):
    """Why what the machines of a wave have shown is enough."""

    wave = forms.IntegerField(min_value=1, widget=forms.HiddenInput)
    reason = forms.CharField(label=_("Reason"), max_length=500)


@operators_page
@require_http_methods(["GET", "HEAD", "POST"])
def gates(request: HttpRequest, pk: int) -> HttpResponse:
    """The gates per wave, and the one review that accepts those of a wave."""
    rollout = get_rollout(pk)
    user = person(request)
    form = WaveReviewForm(request.POST) if request.method == "POST" else None
    if form is not None and form.is_valid():
        return _review(request, rollout, form)
    may_review = user.has_perm(roles.OPERATE) or user.has_perm(roles.APPROVE)
    context = {
        "title": _("Firmware gates of {rollout}").format(rollout=rollout),
        "rollout": rollout,
        "found": wave_gates(rollout),
        "form": form or WaveReviewForm(),
        "may_review": may_review and user.pk in owners_of(rollout),
    }
    status = 400 if form is not None else 200
    return page(request, "rollouts/gates.html", context, status=status)


def _review(request: HttpRequest, rollout: Rollout, form: WaveReviewForm) -> HttpResponse:
    wave = get_object_or_404(Wave, rollout=rollout, number=form.cleaned_data["wave"])
    user = person(request)
    done = services.review_gates(
        wave, user=user, reason=form.cleaned_data["reason"], now=clock.now()
    )
    said = ngettext("%(count)d gate was accepted.", "%(count)d gates were accepted.", done.accepted)
    messages.success(request, said % {"count": done.accepted})
    return redirect("rollouts:gates", rollout.pk)
