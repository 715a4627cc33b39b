"""Where an operator begins: what moves and what waits for them, and the list of all rollouts."""

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from fleet import clock
from fleet import services as fleet
from fleet.models import Machine
from fleet.views import page
from rollouts import offers, selectors
from rollouts.lifecycle import Status
from rollouts.models import Rollout
from rollouts.views import operators_page

MOST_ON_HOME = 20
MOST_ENDED = 5
PAGE_SIZE = 50
MOVING = (Status.RUNNING, Status.ROLLING_BACK, Status.PAUSED)


@require_safe
@operators_page
def home(request: HttpRequest) -> HttpResponse:
    """What moves, what waits for me, what is stuck."""
    overdue = Machine.objects.filter(deadline_at__lt=clock.now())
    overdue = overdue.select_related("platform", "owner_team", "held_by")
    notices = fleet.alarms()
    moving = Rollout.objects.filter(status__in=MOVING)
    halted = Rollout.objects.filter(status=Status.HALTED)
    ended = Rollout.objects.filter(finished_at__isnull=False)
    context = {
        "title": _("Home"),
        "moving": moving.select_related("bundle")[:MOST_ON_HOME],
        "moving_count": moving.count(),
        "waiting": list(offers.waiting_for(request.user)),
        "halted": halted.select_related("bundle")[:MOST_ON_HOME],
        "halted_count": halted.count(),
        "overdue": overdue.order_by("deadline_at")[:MOST_ON_HOME],
        "overdue_count": overdue.count(),
        "notices": notices[:MOST_ON_HOME],
        "notice_count": notices.count(),
        "ended": ended.select_related("bundle").order_by("-finished_at")[:MOST_ENDED],
        "reminders": selectors.standing_reminders(limit=MOST_ON_HOME),
        "now": clock.now(),
        "most": MOST_ON_HOME,
    }
    return page(request, "rollouts/home.html", context)


@require_safe
@operators_page
def index(request: HttpRequest) -> HttpResponse:
    """All rollouts, newest first; a status that does not exist is refused."""
    rows = Rollout.objects.select_related("bundle", "author")
    status = request.GET.get("status", "")
    if status:
        if status not in Status.__members__.values():
            raise Http404(f"no status is called {status!r}; there are {', '.join(Status)}")
        rows = rows.filter(status=status)
    listing = Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "title": _("Rollouts"),
        "listing": listing,
        "statuses": list(Status),
        "status": status,
    }
    return page(request, "rollouts/index.html", context)
