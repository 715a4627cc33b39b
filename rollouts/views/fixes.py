"""The page that asks whether a fix worked."""

from typing import Any, cast

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from fleet import clock
from fleet.errors import SelectorError
from fleet.models import Change, FaultSignature, FirmwareBundle, PartSwap, Platform
from fleet.views import needs, page
from rollouts import fixes
from rollouts.analysis.fixes.answer import Answer, FixVerdict
from rollouts.analysis.fixes.ratios import Comparison
from rollouts.errors import FixRefused, UnknownSignature
from rollouts.fixes.drawing import RatioBar, ratio_bar
from rollouts.fixes.live import Question, ask
from rollouts.fixes.report import MOST_SHIFTS, caveats, interval

#: Choices that a list offers; the newest first. Others are reached by their number in the address.
MOST_OFFERED = 200
TONES = {
    FixVerdict.REDUCED: "completed",
    FixVerdict.NOT_REDUCED: "harmful",
    FixVerdict.MOVED: "harmful",
    FixVerdict.NOT_ENOUGH: "inconclusive",
}


class FixForm(forms.Form):
    """A pattern of faults, and what was done about it."""

    signature = forms.CharField(
        label=_("Signatures"),
        required=False,
        max_length=500,
        help_text=_("patterns such as xid.*, with commas between them"),
    )
    family = forms.ChoiceField(label=_("or family"), required=False)
    change = forms.IntegerField(
        label=_("Change"),
        required=False,
        min_value=1,
        help_text=_("its number: of a setting, driver or place that was reported as changed"),
    )
    bundle = forms.IntegerField(
        label=_("or bundle"),
        required=False,
        min_value=1,
        help_text=_("its number: machines are fixed from when they were read back with it"),
    )
    part = forms.CharField(
        label=_("or part"),
        required=False,
        max_length=150,
        help_text=_("kind:model of the new part, such as gpu:H100-rev2"),
    )
    platform = forms.ChoiceField(label=_("Platform"), required=False)
    selector = forms.CharField(
        label=_("Machines"),
        required=False,
        max_length=1000,
        help_text=_("a selector such as pool=train,rack in (r1,r2); all of them without one"),
    )
    since = forms.DateTimeField(
        label=_("Since (UTC)"), required=False, help_text=_("such as 2026-01-05 00:00")
    )
    until = forms.DateTimeField(
        label=_("Until (UTC)"), required=False, help_text=_("now, if left empty")
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        families = FaultSignature.objects.exclude(family="").values_list("family", flat=True)
        self._offer("family", [(name, name) for name in sorted(set(families))])
        platforms = Platform.objects.values_list("name", flat=True)
        self._offer("platform", [(name, name) for name in platforms])
        changes = Change.objects.order_by("-at", "-pk")[:MOST_OFFERED]
        self._suggest(
            "change", [(one.pk, f"{one.kind} {one}, {one.at:%Y-%m-%d}") for one in changes]
        )
        bundles = FirmwareBundle.objects.order_by("-pk")[:MOST_OFFERED]
        self._suggest("bundle", [(one.pk, str(one)) for one in bundles])
        swapped = PartSwap.objects.exclude(new_model="").order_by("kind", "new_model")
        parts = swapped.values_list("kind", "new_model").distinct()[:MOST_OFFERED]
        self._suggest("part", [(f"{kind}:{model}", "") for kind, model in parts])

    def _offer(self, name: str, choices: list[tuple[str, str]]) -> None:
        cast(forms.ChoiceField, self.fields[name]).choices = [("", "–"), *choices]

    def _suggest(self, name: str, choices: list[tuple[Any, str]]) -> None:
        self.fields[name].widget.attrs["list"] = f"{name}-list"
        self.fields[name].suggestions = choices  # type: ignore[attr-defined]

    def question(self) -> Question:
        """What was asked, once it is valid."""
        asked = dict(self.cleaned_data)
        patterns = (part.strip() for part in asked.pop("signature").split(","))
        return Question(signatures=tuple(part for part in patterns if part), **asked)


@needs("fleet.view_incident")
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Ask whether a fix worked; every answer has an address of its own."""
    is_asked = any(request.GET.get(name) for name in ("signature", "family"))
    form = FixForm(request.GET) if is_asked else FixForm(initial=request.GET.dict())
    found = None
    if form.is_bound and form.is_valid():
        try:
            found = fixes.answered(ask(form.question(), now=clock.now()))
        except (FixRefused, UnknownSignature, SelectorError) as error:
            form.add_error(None, str(error))
    context = {
        "title": _("Did the fix work?"),
        "form": form,
        "found": found,
        **(_shown(found) if found else {}),
    }
    status = 400 if form.is_bound and form.errors else 200
    return page(request, "rollouts/fixes.html", context, status=status)


def _shown(found: fixes.Answered) -> dict[str, Any]:
    answer = found.answer
    return {
        "tone": TONES[answer.verdict],
        "rows": [_row(name, one) for name, one in _compared(answer)],
        "shifts": [
            {**_row(shift.name, shift.comparison), "shift": shift}
            for shift in answer.shifts[:MOST_SHIFTS]
        ],
        "more_shifts": max(len(answer.shifts) - MOST_SHIFTS, 0),
        "mixes": [
            (_("Fixed, before"), answer.mix_before),
            (_("Fixed, after"), answer.mix_after),
            (_("Unfixed"), answer.mix_unfixed),
        ],
        "has_mix": answer.mix_before.total + answer.mix_after.total + answer.mix_unfixed.total > 0,
        "caveats": caveats(found),
    }


def _compared(answer: Answer) -> list[tuple[Any, Comparison]]:
    return [
        (_("Fixed against unfixed, at the same time"), answer.concurrent),
        (_("The same, among machines with as many episodes before"), answer.alike),
        (_("After against before, fixed machines only (no proof)"), answer.falling.fixed),
        (_("All other signatures, fixed against unfixed"), answer.others),
        (_("Interruptions that cost a job its progress"), answer.severe),
        (_("Lost hours"), answer.lost_work),
    ]


def _row(name: Any, one: Comparison) -> dict[str, Any]:
    bar: RatioBar | None = ratio_bar(one)
    return {"name": name, "one": one, "bar": bar, "interval": interval(one)}
