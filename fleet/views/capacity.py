"""The return-to-service board, and the capacity page: where machines are, and what keeps them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext as say
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from fleet import board, capacity, clock, queues, services
from fleet.models import Machine, Platform
from fleet.views import fleet_page, page, person

CARDS = 8
PAGE_SIZE = 100
HISTORY_DAYS = capacity.TREND_DAYS
#: Height of a small drawing, in user units.
HEIGHT = 24.0
NAMES: dict[str, str | Promise] = {
    "awaiting_diagnosis": _("awaiting diagnosis"),
    "diagnosing": _("being diagnosed"),
    "awaiting_repair": _("awaiting repair"),
    "repairing": _("being repaired"),
    "at_supplier": _("at the supplier"),
    "awaiting_validation": _("awaiting validation"),
    "validating": _("being validated"),
    "observing": _("being observed"),
    "awaiting_release": _("awaiting release"),
    "validation_failed": _("validation failed"),
    "lemon_review": _("lemon review"),
}
COLUMNS: dict[str, str | Promise] = {
    "awaiting_diagnosis": _("Diagnosis"),
    "awaiting_repair": _("Repair"),
    "awaiting_validation": _("Validation"),
    "awaiting_release": _("Release"),
    "stopped": _("Needs a decision"),
}


class BoardForm(forms.Form):
    """Whose machines, and where."""

    platform = forms.ModelChoiceField(
        label=_("Platform"),
        queryset=Platform.objects.all(),
        to_field_name="name",
        required=False,
        empty_label=_("all"),
    )
    pool = forms.CharField(label=_("Pool"), max_length=100, required=False)
    mine = forms.BooleanField(label=_("Mine"), required=False)

    def places(self) -> Q:
        """Return the condition on platform and pool, which machines and kept days share."""
        found = Q()
        if platform := self.cleaned_data["platform"]:
            found &= Q(platform=platform)
        if pool := self.cleaned_data["pool"]:
            found &= Q(pool=pool)
        return found


class CapacityForm(BoardForm):
    """Where, and over how many days."""

    mine = None  # type: ignore[assignment]  # capacity is nobody's own
    days = forms.IntegerField(
        label=_("Days"), min_value=1, max_value=capacity.TREND_DAYS, required=False
    )


# --- the board ------------------------------------------------------------------------------------


@fleet_page
@require_safe
def returning(request: HttpRequest) -> HttpResponse:
    """Every machine on its way back, by queue; the first cards of each."""
    form = BoardForm(request.GET)
    now = clock.now()
    columns: Sequence[board.Column] = ()
    if form.is_valid():
        columns = board.columns(_chosen(request, form), now=now, size=CARDS)
    context = {
        "title": _("Return to service"),
        "form": form,
        "columns": [
            {
                "name": COLUMNS[column.name],
                "total": column.total,
                "piles": [_pile(pile, request) for pile in column.piles],
            }
            for column in columns
        ],
        "total": sum(column.total for column in columns),
        "overdue": sum(pile.overdue for column in columns for pile in column.piles),
        "notices": services.alarms()[:CARDS],
    }
    return page(request, "fleet/return/board.html", context, status=400 if form.errors else 200)


def _pile(pile: board.Pile, request: HttpRequest) -> dict[str, Any]:
    query = request.GET.urlencode()
    return {
        "state": pile.state,
        "name": NAMES[pile.state],
        "is_queue": pile.is_queue,
        "total": pile.total,
        "overdue": pile.overdue,
        "left_off": pile.left_off,
        "cards": [_card(card) for card in pile.cards],
        "query": f"?{query}" if query else "",
    }


def _card(card: board.Card) -> dict[str, Any]:
    return {
        "card": card,
        "age": span(card.age_hours),
        "goal": span(card.goal_hours),
        "share": _share(card.age_hours, card.goal_hours),
    }


def _share(age: float, goal: float | None) -> float | None:
    """Return how much of its time a machine has used, as far as a bar shows it."""
    return None if not goal else round(100 * min(max(age / goal, 0.0), 1.0), 1)


def _chosen(request: HttpRequest, form: BoardForm) -> QuerySet[Machine]:
    machines = Machine.objects.filter(form.places())
    if form.cleaned_data["mine"]:
        own = services.mine(person(request))
        machines = machines.filter(pk__in=own.order_by().values("pk"))
    return machines


@fleet_page
@require_safe
def state(request: HttpRequest, name: str) -> HttpResponse:
    """All machines of one state of the way back, page by page."""
    if name not in NAMES:
        raise Http404(f"{name} is no state of the way back; accepted: {', '.join(NAMES)}")
    form = BoardForm(request.GET)
    listed = Machine.objects.none()
    if form.is_valid():
        listed = board.listed(_chosen(request, form), name)
    paged = Paginator(listed, PAGE_SIZE).get_page(request.GET.get("page"))
    query = request.GET.copy()
    query.pop("page", None)
    context = {
        "title": NAMES[name],
        "form": form,
        "listing": paged,
        "cards": [_card(card) for card in board.cards(list(paged), now=clock.now())],
        "query": query.urlencode(),
        "state": name,
    }
    return page(request, "fleet/return/state.html", context, status=400 if form.errors else 200)


# --- capacity -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spark:
    """A small drawing of a number over days."""

    path: str
    days: int
    least: int
    most: int
    last: int


@fleet_page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Where machines are, how long the way back takes, and which queue keeps the most out."""
    form = CapacityForm(request.GET)
    now = clock.now()
    context: dict[str, Any] = {"title": _("Capacity"), "form": form, "now": now}
    if form.is_valid():
        places, days = form.places(), form.cleaned_data["days"] or capacity.WINDOW_DAYS
        today = now.date()
        since = today - timedelta(days=HISTORY_DAYS - 1)
        kept = capacity.kept_days(since=since, until=today, places=places)
        seen = capacity.queue_figures(now=now, days=days, places=places, kept=kept)
        context |= {
            "sentence": _sentence(seen),
            "days": days,
            "queues": [_row(one, seen) for one in seen.queues],
            "expected": round(seen.expected_out, 1),
            "trends": _trends(now, kept),
            "standings": _standings(now, places, kept),
            "history": _history(now, places, days) if form.cleaned_data["pool"] else [],
        }
    return page(request, "fleet/capacity/index.html", context, status=400 if form.errors else 200)


def _sentence(seen: capacity.Queues) -> str:
    """Say which queue keeps the most machines out, and by what reckoning."""
    worst = seen.bottleneck
    if worst is None or worst.flow.expected_out is None:
        return say("No stay in a queue has ended in these days: no queue is named.")
    return say(
        "Of the queues, %(queue)s keeps the most machines out: %(rate)s enter it a day and stay "
        "%(time)s on average, which is %(out)s machines out; %(present)s are there now."
    ) % {
        "queue": str(NAMES[worst.state]),
        "rate": f"{worst.flow.per_day:.2f}",
        "time": span(worst.flow.mean_hours),
        "out": f"{worst.flow.expected_out:.1f}",
        "present": worst.flow.present,
    }


def _row(queue: capacity.Queue, seen: capacity.Queues) -> dict[str, Any]:
    told, flow = queue.figures, queue.flow
    return {
        "queue": queue,
        "name": NAMES[queue.state],
        "goal": span(queue.goal_hours),
        "oldest": span(told.oldest_open_hours),
        "is_late": queue.goal_hours is not None
        and told.oldest_open_hours is not None
        and told.oldest_open_hours > queue.goal_hours,
        "median": span(told.median_hours),
        "p90": span(told.p90_hours),
        "mean": span(told.mean_hours),
        "per_day": f"{flow.per_day:.2f}",
        "expected": "–" if flow.expected_out is None else f"{flow.expected_out:.1f}",
        "is_worst": seen.bottleneck is queue,
    }


def _trends(now: datetime, kept: Sequence[capacity.KeptDay]) -> list[dict[str, Any]]:
    return [
        {
            "name": NAMES[state],
            "spark": spark([point.waiting for point in points]),
            "weeks": _weeks(points),
        }
        for state, points in capacity.trends(now=now, kept=kept).items()
    ]


def _weeks(points: Sequence[capacity.Point]) -> list[dict[str, Any]]:
    """Return what ended per seven days, the newest last: how many, and the median of days."""
    found = []
    for end in range(len(points), 0, -7):
        own = points[max(end - 7, 0) : end]
        medians = [point.median_hours for point in own if point.median_hours is not None]
        found.append(
            {
                "until": own[-1].day,
                "ended": sum(point.ended for point in own),
                "median": span(queues.figures("", ended=medians).median_hours),
                "waiting": own[-1].waiting,
            }
        )
    return found[::-1]


def _standings(now: datetime, places: Q, kept: Sequence[capacity.KeptDay]) -> list[dict[str, Any]]:
    names = dict(Platform.objects.values_list("pk", "name"))
    past: dict[tuple[str, str], list[int]] = {}
    for one in kept:
        platform, pool = one.place
        out = sum(one.counts.get(state, 0) for state in queues.OUT)
        past.setdefault((names[platform], pool), []).append(out)
    return [
        {"row": row, "spark": spark(past.get((row.platform, row.pool), []))}
        for row in capacity.standings(now=now, pools=places)
        if row.installed
    ]


def _history(now: datetime, places: Q, days: int) -> list[dict[str, Any]]:
    """Return the days of one pool, the newest first."""
    today = now.date()
    found = capacity.history(since=today - timedelta(days=days - 1), until=today, places=places)
    return [{"day": day, "row": row} for day, row in found][::-1]


def spark(series: Sequence[int]) -> Spark | None:
    """Return a small drawing of a series, one bar a day, between nothing and its most.

    Examples
    --------
    >>> spark([0, 4]).path
    'M0 24v-0.0h.9v0.0zM1 24v-24.0h.9v24.0z'
    """
    if not series:
        return None
    most = max(*series, 1)
    heights = [HEIGHT * value / most for value in series]
    bars = (f"M{at} 24v-{high:.1f}h.9v{high:.1f}z" for at, high in enumerate(heights))
    return Spark("".join(bars), len(series), min(series), max(series), series[-1])


def span(hours: float | None) -> str:
    """Return a length of time in the unit in which people think of it.

    Examples
    --------
    >>> span(0.5), span(7.25), span(60.0), span(None)
    ('30 min', '7.2 h', '2.5 d', '–')
    """
    if hours is None:
        return "–"
    if hours < 1:
        return say("%(n)s min") % {"n": round(60 * hours)}
    if hours < 48:
        return say("%(n)s h") % {"n": f"{hours:.1f}"}
    return say("%(n)s d") % {"n": f"{hours / 24:.1f}"}
