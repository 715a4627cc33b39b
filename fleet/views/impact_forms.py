"""What a person says of an incident's impact on a job."""

import secrets
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from fleet import clock, goodput, services
from fleet.models import Incident, Job, JobImpact, JobKind
from fleet.services import Impact
from fleet.views.goodput import KINDS, PATHS

SOURCE = "incident page"
_TIME = "%Y-%m-%dT%H:%M:%S"


def _time(label: Any, *, required: bool = False, help_text: Any = "") -> forms.DateTimeField:
    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": 1}, format=_TIME)
    return forms.DateTimeField(
        label=label,
        required=required,
        help_text=help_text,
        widget=widget,
        validators=[clock.validate_year],
    )


class ImpactForm(forms.Form):
    """What happened to the job; an empty field is not known, and never taken as nothing.

    The key is made with the form, so that sending it twice records one impact.
    """

    key = forms.CharField(max_length=64, widget=forms.HiddenInput)
    outcome = forms.ChoiceField(label=_("Outcome"), choices=list(PATHS.items()))
    job = forms.CharField(label=_("Job"), max_length=100, required=False)
    job_kind = forms.ChoiceField(
        label=_("Kind"),
        required=False,
        choices=[("", KINDS[""]), *((kind.value, KINDS[kind.value]) for kind in JobKind)],
    )
    accelerators = forms.IntegerField(
        label=_("Accelerators of the whole job"), required=False, min_value=1
    )
    fault_at = _time(_("Fault (UTC)"), required=True)
    detected_at = _time(_("Detected (UTC)"))
    resumed_at = _time(
        _("Resumed (UTC)"), help_text=_("first productive step; empty: not yet, or not known")
    )
    repeated_seconds = forms.FloatField(
        label=_("Seconds of work repeated"),
        required=False,
        min_value=0,
        help_text=_("of a lost job: the work that is lost"),
    )
    stall_seconds = forms.FloatField(
        label=_("Seconds all replicas stood still"), required=False, min_value=0
    )
    replicas_affected = forms.IntegerField(
        label=_("Replicas affected"), required=False, min_value=0
    )
    replicas_total = forms.IntegerField(label=_("Replicas in all"), required=False, min_value=1)
    slowdown = forms.FloatField(
        label=_("Share of throughput lost"),
        required=False,
        min_value=0,
        max_value=1,
        help_text=_("from 0 to 1, of a degraded job"),
    )
    caused_by = forms.ModelChoiceField(
        label=_("Pre-empted by"),
        required=False,
        queryset=JobImpact.objects.none(),
        empty_label=_("none"),
        help_text=_("whose job took this one's place"),
    )
    corrects = forms.ModelChoiceField(
        label=_("Takes the place of"),
        required=False,
        queryset=JobImpact.objects.none(),
        empty_label=_("none"),
    )

    def __init__(self, *args: Any, incident: Incident, **kwargs: Any) -> None:
        self.incident = incident
        super().__init__(*args, **kwargs)
        told = JobImpact.objects.filter(incident=incident, corrected_by=None)
        for name in ("caused_by", "corrects"):
            self.fields[name].queryset = told  # type: ignore[attr-defined]
        if not self.is_bound:
            self.initial = {**_known(incident), **self.initial}

    def impact(self) -> Impact:
        """Return what was said, as it is recorded."""
        said = dict(self.cleaned_data)
        return Impact(incident=self.incident, source_key=said.pop("key"), **said)

    def add_reasons(self, reasons: list[str]) -> None:
        """Show each reason of a refusal at the field that it names."""
        for reason in reasons:
            name, _sign, text = reason.partition(": ")
            self.add_error(name if name in self.fields else None, text or reason)


def _known(incident: Incident) -> dict[str, Any]:
    """Return what is known already: when it began, and what ran on the machine."""
    job = incident.machine.job
    kind = Job.objects.filter(name=job).values_list("kind", flat=True).first()
    return {
        "key": secrets.token_hex(16),
        "fault_at": incident.opened_at,
        "job": job,
        "job_kind": goodput.job_kind(kind or incident.machine.workload) if job else "",
        "accelerators": services.accelerators_of([job]).get(job),
    }
