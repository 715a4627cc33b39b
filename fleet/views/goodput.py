"""The goodput page: how much work got done, what interruptions cost, how long repairs keep."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext as say
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from fleet import charts, clock, goodput, losses
from fleet.goodput import Figure
from fleet.models import JobKind, Platform
from fleet.views import needs, page
from fleet.views.capacity import NAMES as STATES
from fleet.views.capacity import span
from fleet.views.lists import FilterForm

#: Bins in a drawing; more are drawn by week.
MOST_DAYS_DRAWN = 62
KINDS: Mapping[str, str | Promise] = {
    "all": _("All"),
    "pre_training": _("Pre-training"),
    "reinforcement_learning": _("Reinforcement learning"),
    "fine_tuning": _("Fine-tuning"),
    "inference": _("Inference"),
    "other": _("Other"),
    "": _("not told"),
}
CAUSES: Mapping[str, str | Promise] = {
    "hardware": _("hardware"),
    "firmware": _("firmware"),
    "setting": _("setting"),
    "network": _("network"),
    "facility": _("facility"),
    "software": _("software"),
    "operator": _("operator"),
    "no_fault_found": _("no fault found"),
    "unknown": _("not diagnosed"),
    losses.UNEXPLAINED: _("no incident explains it"),
}
PATHS: Mapping[str, str | Promise] = {
    "job_restarted_from_checkpoint": _("job restarted from checkpoint"),
    "job_lost": _("job lost"),
    "replica_restarted": _("replica restarted"),
    "degraded": _("degraded"),
    "continued": _("continued"),
    "no_job": _("no job"),
}
PARTS: Mapping[str, str | Promise] = {
    **STATES,
    "out": _("From out of service to released"),
    "detect": _("being detected"),
    "drain": _("draining"),
}


class GoodputForm(FilterForm):
    """Which days, jobs and machines; and a job of which size."""

    since = forms.DateField(
        label=_("From"),
        required=False,
        validators=[clock.validate_year],
        widget=forms.DateInput(attrs={"type": "date"}),
    )
    until = forms.DateField(
        label=_("To"),
        required=False,
        validators=[clock.validate_year],
        widget=forms.DateInput(attrs={"type": "date"}),
    )
    per = forms.ChoiceField(
        label=_("Per"),
        required=False,
        choices=[("", _("by length")), ("day", _("day")), ("week", _("week"))],
    )
    job_kind = forms.ChoiceField(
        label=_("Job"),
        required=False,
        choices=[("", _("all")), *((kind.value, KINDS[kind.value]) for kind in JobKind)],
    )
    platform = forms.ModelChoiceField(
        label=_("Platform"),
        queryset=Platform.objects.all(),
        to_field_name="name",
        required=False,
        empty_label=_("all"),
    )
    pool = forms.CharField(label=_("Pool"), max_length=100, required=False)
    machines = forms.IntegerField(
        label=_("Machines of the job"), required=False, min_value=1, max_value=10_000_000
    )
    checkpoint_minutes = forms.FloatField(
        label=_("Minutes between checkpoints"), required=False, min_value=0.01, max_value=100_000
    )
    write_minutes = forms.FloatField(
        label=_("Minutes to write one"), required=False, min_value=0.0, max_value=10_000
    )
    restart_minutes = forms.FloatField(
        label=_("Minutes to restart"), required=False, min_value=0.0, max_value=100_000
    )

    OF_JOB = ("machines", "checkpoint_minutes", "write_minutes", "restart_minutes")

    def clean(self) -> dict[str, Any]:
        said = super().clean()
        until = said.get("until") or clock.now().date()
        since = said.get("since") or until - timedelta(days=losses.DAYS - 1)
        if not 0 <= (until - since).days < losses.MOST_DAYS:
            raise forms.ValidationError(
                _("%(since)s to %(until)s is not 1 to %(most)s days"),
                params={"since": since, "until": until, "most": losses.MOST_DAYS},
            )
        is_long = (until - since).days >= MOST_DAYS_DRAWN
        per = said.get("per") or ("week" if is_long else "day")
        return {**said, "since": since, "until": until, "per": per}

    def asked(self) -> losses.Asked:
        said = self.cleaned_data
        return losses.Asked(
            since=said["since"],
            until=said["until"],
            job_kind=said["job_kind"] or None,
            platform=said["platform"],
            pool=said["pool"] or None,
            per=said["per"],
        )

    def job_fields(self) -> list[Any]:
        return [self[name] for name in self.OF_JOB]

    def filters(self) -> list[Any]:
        return [field for field in self if field.name not in self.OF_JOB]


@needs("fleet.view_machine", "fleet.view_jobimpact")
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Goodput by kind of job, losses by cause and path over time, ETTR, MTTF, parts of MTTR."""
    form = GoodputForm(request.GET)
    now = clock.now()
    context: dict[str, Any] = {"title": _("Goodput"), "form": form, "define": _definitions()}
    if form.is_valid():
        seen = losses.report(form.asked(), now=now)
        context |= {
            "seen": seen,
            "total": _kind(seen.total),
            "kinds": [_kind(one) for one in seen.kinds],
            "causes": [_cut(one, CAUSES) for one in seen.causes],
            "paths": [_cut(one, PATHS) for one in seen.paths],
            "jobs": [_job(one) for one in seen.jobs],
            "rate": _number(seen.rate, scale=1000.0, unit="", digits=2),
            "expected": _expected(seen, form),
            "drawings": _drawings(seen),
            "line": _line(seen),
            **_way_back(form.asked()),
        }
    return page(request, "fleet/goodput/index.html", context, status=400 if form.errors else 200)


def _definitions() -> dict[str, str]:
    return {name: say(text) for name, text in goodput.DEFINITIONS.items()}


# --- numbers in words -----------------------------------------------------------------------------


def _number(
    figure: Figure, *, scale: float = 1.0, unit: str = "", digits: int = 1
) -> dict[str, Any]:
    """Return a figure as it is printed: a number with its unit, or the reason why there is none."""
    text = "–" if figure.value is None else f"{scale * figure.value:,.{digits}f}{unit}"
    return {"text": text, "reason": figure.reason, "is_known": figure.value is not None}


def _percent(figure: Figure, *, is_at_most: bool = False) -> dict[str, Any]:
    told = _number(figure, scale=100.0, unit=" %")
    return {**told, "is_at_most": is_at_most and told["is_known"]}


def _kind(one: losses.Kind) -> dict[str, Any]:
    return {
        "name": KINDS.get(one.name, one.name),
        "row": one,
        "goodput": _percent(one.goodput, is_at_most=one.is_at_most),
        "target": None if one.target is None else f"{100 * one.target:.0f} %",
        "available": _hours(one.available),
        "lost": _hours(one.loss.hours),
        "repeated": _hours(one.loss.repeated_hours),
        "second": _hours(one.loss.second_order_hours),
    }


def _hours(hours: float) -> str:
    """Return accelerator-hours with as many digits as tell something.

    Examples
    --------
    >>> _hours(12345.6), _hours(12.34), _hours(0.0)
    ('12,346', '12.3', '0')
    """
    return f"{hours:,.1f}" if 0 < abs(hours) < 100 else f"{hours:,.0f}"


def _cut(one: losses.Cut, names: Mapping[str, str | Promise]) -> dict[str, Any]:
    return {
        "name": names.get(one.name, one.name),
        "part": one.name,
        "row": one,
        "lost": _hours(one.loss.hours),
        "share": _percent(one.share),
        "rate": _number(one.per_thousand_days, digits=2),
        "repeated": _hours(one.loss.repeated_seconds / 3600),
    }


def _job(one: losses.JobRow) -> dict[str, Any]:
    return {
        "row": one,
        "kind": KINDS.get(one.job_kind, one.job_kind),
        "lost": _hours(one.loss.hours),
        "ettr": _at_most(one.ettr),
    }


def _at_most(figure: Figure) -> dict[str, Any]:
    """Return a ratio that is a bound; why it is one is said once, beside them all."""
    told = _percent(figure, is_at_most=bool(figure.reason))
    return {**told, "reason": ""} if told["is_known"] else told


def _expected(seen: losses.Report, form: GoodputForm) -> dict[str, Any]:
    said = form.cleaned_data
    found = losses.expected(
        seen,
        machines=said["machines"] or losses.EXPECTED_MACHINES,
        checkpoint_minutes=said["checkpoint_minutes"] or losses.CHECKPOINT_MINUTES,
        write_minutes=said["write_minutes"],
        restart_minutes=said["restart_minutes"],
    )
    return {
        "row": found,
        "ettr": _percent(found.ettr),
        "mttf": {**_number(found.mttf_hours), "text": span(found.mttf_hours.value)},
        "interval": _number(found.checkpoint_interval_minutes, unit=" min"),
        "restart": _number(found.restart_minutes, unit=" min"),
    }


def _way_back(asked: losses.Asked) -> dict[str, Any]:
    back = losses.way_back(asked)
    return {
        "parts": [
            {
                "name": PARTS[one.state],
                "ended": one.ended,
                "median": span(one.median_hours),
                "p90": span(one.p90_hours),
            }
            for one in (back.whole, *back.parts)
        ],
        "availability": _percent(back.availability),
        "qualified": _percent(back.qualified),
    }


# --- drawings -------------------------------------------------------------------------------------


def _drawings(seen: losses.Report) -> list[dict[str, Any]]:
    """Return what was lost over time by cause, and the same by path."""
    cuts: Sequence[tuple[str | Promise, str, Mapping[str, str | Promise]]] = (
        (_("by cause"), "by_cause", CAUSES),
        (_("by recovery path"), "by_path", PATHS),
    )
    found = []
    for what, name, names in cuts:
        columns = [
            (one.since.isoformat(), getattr(one, name), one.loss.unknown) for one in seen.bins
        ]
        stack = charts.stacked(columns, names=list(names))
        legend = [{"part": part, "name": names[part]} for part in stack.names]
        drawing = {"what": what, "stack": stack, "legend": legend, "most": _hours(stack.most)}
        found.append({**drawing, "first": columns[0][0], "last": columns[-1][0]})
    return found


def _line(seen: losses.Report) -> dict[str, Any]:
    kind = seen.asked.job_kind
    targets = [
        (f"{KINDS[name]} {100 * value:.0f} %", value)
        for name, value in goodput.TARGETS.items()
        if kind in (None, name)
    ]
    values = [one.goodput.value for one in seen.bins]
    drawn = charts.shares(values, targets=targets, least=0.7)
    known = [value for value in values if value is not None]
    return {
        "line": drawn,
        "least": f"{100 * drawn.least:.0f} %",
        "low": f"{100 * min(known):.1f} %" if known else "–",
        "last": f"{100 * known[-1]:.1f} %" if known else "–",
        "bins": [
            {
                "since": one.since,
                "until": one.until,
                "goodput": _percent(one.goodput, is_at_most=one.loss.unknown > 0),
                "available": _hours(one.available),
                "lost": _hours(one.loss.hours),
                "unknown": one.loss.unknown,
                "impacts": one.loss.impacts,
            }
            for one in reversed(seen.bins)
        ],
    }
