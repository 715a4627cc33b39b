"""A machine's page: where it stands, whose it is, what comes next, and what may be ordered."""

from collections.abc import Callable, Sequence
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST, require_safe

from fleet import clock, services, tasks
from fleet.hints import hint
from fleet.lifecycle import AT_THE_GATE, BREAKABLE, STATES, State, Trigger
from fleet.models import BreakGlass, Cordon, Machine, Notice
from fleet.repair.gating import UNFINISHED
from fleet.services.departures import MOST_OUT_BY_RULE
from fleet.services.owners import NOBODYS
from fleet.views import View, by_whom, fleet_page, needs, page, person
from fleet.views.machine_forms import (
    BreakGlassForm,
    CordonForm,
    CordonListForm,
    DiagnoseAgainForm,
    HandOverForm,
    NoticeListForm,
    RetireForm,
    ReviewForm,
    TakeOutForm,
)

WORK = "fleet.work_repair"
CORDON = "fleet.add_cordon"
GLASS = "fleet.break_glass"
REVIEW = "fleet.review_gate"
RETIRE = "fleet.delete_machine"
#: Whoever does one of these has hands to take a machine in.
HANDS = (WORK, "fleet.run_gate", REVIEW)
MOST_CHANGES = 50
MOST_LISTED = 100
_LEAVES_WORK = (State.IN_SERVICE, State.DRAINING, State.UPDATING, State.VERIFYING, *AT_THE_GATE)


def order_page(*permissions: str) -> Callable[[View], View]:
    """Let in, to give an order, who has one of the permissions."""

    def decorate(view: View) -> View:
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not any(request.user.has_perm(one) for one in permissions):
                raise PermissionDenied(f"this needs the permission {' or '.join(permissions)}")
            return view(request, *args, **kwargs)

        return login_required(require_POST(checked))

    return decorate


@fleet_page
@require_safe
def detail(request: HttpRequest, name: str) -> HttpResponse:
    """One machine: state, owner, who has it, what comes next, and how it came here."""
    return _detail(request, _found(name))


def _found(name: str) -> Machine:
    rows = Machine.objects.select_related("platform", "owner_team", "held_by", "scheduler_word")
    return get_object_or_404(rows, name=name)


def _detail(
    request: HttpRequest, machine: Machine, *, given: dict[str, Form] | None = None
) -> HttpResponse:
    now = clock.now()
    glasses = machine.break_glasses.filter(Q(ended_at=None) | Q(reviewer=None))
    rule = STATES[State(machine.state)]
    context = {
        "title": machine.name,
        "machine": machine,
        "now": now,
        "is_overdue": machine.deadline_at is not None and machine.deadline_at < now,
        "is_watched": machine.watch_until is not None and machine.watch_until > now,
        "notices": machine.notices.filter(cleared_at=None),
        "cordons": machine.cordons.filter(lifted_at=None).order_by("since"),
        "glasses": glasses.select_related("person"),
        "take_out": machine.take_outs.filter(ended_at=None).first(),
        "incidents": machine.incidents.filter(closed_at=None)[:MOST_CHANGES],
        "repair": machine.repairs.filter(status__in=services.OPEN_REPAIR).first(),
        "gate": machine.gates.filter(status__in=UNFINISHED).first(),
        "changes": machine.state_changes.order_by("-pk")[:MOST_CHANGES],
        "hand_overs": machine.hand_overs.select_related(
            "old_team", "new_team", "old_person", "new_person"
        ).order_by("-pk")[:MOST_CHANGES],
        "offers": _offers(request, machine, given or {}),
        "may_take": _may_take(request, machine),
        "may_order_repair": request.user.has_perm(WORK) and Trigger.ORDER_REPAIR in rule.success,
        "may_lift": request.user.has_perm(CORDON),
        "may_review": request.user.has_perm(REVIEW),
        "me": request.user.get_username(),
        "review": (given or {}).get("review"),
    }
    status = 400 if any(form.errors for form in (given or {}).values()) else 200
    return page(request, "fleet/machines/detail.html", context, status=status)


def _may_take(request: HttpRequest, machine: Machine) -> bool:
    has_hands = any(request.user.has_perm(one) for one in HANDS)
    return has_hands and machine.state not in NOBODYS and machine.held_by_id is None


def _offers(
    request: HttpRequest, machine: Machine, given: dict[str, Form]
) -> Sequence[tuple[str, Any, Form]]:
    """Return what may be ordered here: the order's name, its words on the button, its form."""
    may, state = request.user.has_perm, machine.state
    has_hands = any(may(one) for one in HANDS)
    possible: list[tuple[str, Any, Form, bool]] = [
        (
            "hand-over",
            _("Hand over"),
            HandOverForm(machine=machine),
            has_hands and state not in NOBODYS,
        ),
        (
            "diagnose-again",
            _("Diagnose again"),
            DiagnoseAgainForm(),
            may(WORK) and state == State.VALIDATION_FAILED,
        ),
        ("take-out", _("Take out"), TakeOutForm(), may(WORK) and state in _LEAVES_WORK),
        ("cordon", _("Cordon"), CordonForm(), may(CORDON) and state != State.RETIRED),
        (
            "retire",
            _("Retire"),
            RetireForm(),
            may(RETIRE) and Trigger.RETIRE in STATES[State(state)].failure,
        ),
        (
            "break-glass",
            _("Break the glass"),
            BreakGlassForm(),
            may(GLASS) and state in BREAKABLE,
        ),
    ]
    return [
        (name, label, given.get(name, form)) for name, label, form, is_open in possible if is_open
    ]


# --- orders ---------------------------------------------------------------------------------------


@order_page(*HANDS)
def take(request: HttpRequest, name: str) -> HttpResponse:
    """Take the machine in hand."""
    services.take(_found(name), user=person(request), now=clock.now())
    return redirect("fleet:machine", name=name)


@order_page(*HANDS)
def hand_over(request: HttpRequest, name: str) -> HttpResponse:
    """Hand the machine to somebody else, or lay it down."""
    machine = _found(name)
    form = HandOverForm(request.POST, machine=machine)
    if not form.is_valid():
        return _detail(request, machine, given={"hand-over": form})
    services.hand_over(machine, user=person(request), now=clock.now(), **form.cleaned_data)
    return redirect("fleet:machine", name=name)


@order_page(WORK)
def diagnose_again(request: HttpRequest, name: str) -> HttpResponse:
    """Send the machine, whose checks failed, back to whoever diagnoses."""
    machine, form = _found(name), DiagnoseAgainForm(request.POST)
    if not form.is_valid():
        return _detail(request, machine, given={"diagnose-again": form})
    services.diagnose_again(machine, **by_whom(request), **form.cleaned_data)
    return redirect("fleet:machine", name=name)


@order_page(WORK)
def take_out(request: HttpRequest, name: str) -> HttpResponse:
    """Order the machine out of work."""
    machine, form = _found(name), TakeOutForm(request.POST)
    if not form.is_valid():
        return _detail(request, machine, given={"take-out": form})
    services.take_out(machine, **by_whom(request), **form.cleaned_data)
    hint(tasks.tell_scheduler)
    return redirect("fleet:machine", name=name)


@order_page(RETIRE)
def retire(request: HttpRequest, name: str) -> HttpResponse:
    """Take the machine out of the fleet for good."""
    machine, form = _found(name), RetireForm(request.POST)
    if not form.is_valid():
        return _detail(request, machine, given={"retire": form})
    services.retire_machine(machine, **by_whom(request), **form.cleaned_data)
    return redirect("fleet:machine", name=name)


@order_page(CORDON)
def cordon(request: HttpRequest, name: str) -> HttpResponse:
    """Set a cordon of one's own."""
    machine, form = _found(name), CordonForm(request.POST)
    if not form.is_valid():
        return _detail(request, machine, given={"cordon": form})
    services.cordon(
        machine, owner=person(request).get_username(), now=clock.now(), **form.cleaned_data
    )
    hint(tasks.tell_scheduler)
    return redirect("fleet:machine", name=name)


@order_page(CORDON)
def lift(request: HttpRequest, name: str, pk: int) -> HttpResponse:
    """Lift a cordon of one's own."""
    own = get_object_or_404(Cordon.objects.select_related("machine"), pk=pk, machine__name=name)
    services.lift_cordon(own, owner=person(request).get_username(), now=clock.now())
    hint(tasks.tell_scheduler)
    return redirect("fleet:machine", name=name)


@order_page(GLASS)
def break_glass(request: HttpRequest, name: str) -> HttpResponse:
    """Put the machine to work without its gate."""
    machine, form = _found(name), BreakGlassForm(request.POST)
    if not form.is_valid():
        return _detail(request, machine, given={"break-glass": form})
    now = clock.now()
    services.break_glass(
        machine,
        user=person(request),
        reason=form.cleaned_data["reason"],
        until=form.until(now),
        now=now,
    )
    hint(tasks.tell_scheduler)
    return redirect("fleet:machine", name=name)


@order_page(REVIEW)
def review_glass(request: HttpRequest, name: str, pk: int) -> HttpResponse:
    """Say that one has looked at a machine that worked without its gate."""
    glass = get_object_or_404(
        BreakGlass.objects.select_related("machine"), pk=pk, machine__name=name
    )
    form = ReviewForm(request.POST)
    if not form.is_valid():
        return _detail(request, _found(name), given={"review": form})
    services.review_break_glass(glass, user=person(request), now=clock.now(), **form.cleaned_data)
    return redirect("fleet:machine", name=name)


# --- lists ----------------------------------------------------------------------------------------


@needs("fleet.view_cordon")
@require_safe
def cordons(request: HttpRequest) -> HttpResponse:
    """The cordons that stand, by owner and reason."""
    form = CordonListForm(request.GET)
    found: QuerySet[Cordon] = Cordon.objects.none()
    if form.is_valid():
        found = _cordons(form.cleaned_data)
    context = {
        "title": _("Cordons"),
        "form": form,
        "listed": found[:MOST_LISTED],
        "total": found.count(),
        "most": MOST_LISTED,
        "may_lift": request.user.has_perm(CORDON),
        "me": request.user.get_username(),
    }
    status = 400 if form.errors else 200
    return page(request, "fleet/machines/cordons.html", context, status=status)


def _cordons(asked: dict[str, str]) -> QuerySet[Cordon]:
    found = Cordon.objects.filter(lifted_at=None).select_related("machine")
    if asked["owner"]:
        found = found.filter(owner=asked["owner"])
    if asked["reason"]:
        found = found.filter(reason__icontains=asked["reason"])
    if asked["machine"]:
        found = found.filter(machine__name=asked["machine"])
    return found.order_by("owner", "reason", "machine__name")


@needs("fleet.view_notice")
@require_safe
def notices(request: HttpRequest) -> HttpResponse:
    """What somebody has to know now, newest first."""
    form = NoticeListForm(request.GET)
    found: QuerySet[Notice] = Notice.objects.none()
    if form.is_valid():
        found = _notices(form.cleaned_data, request)
    context = {
        "title": _("Notices"),
        "is_taken_out_by_rule": settings.TAKE_OUT,
        "most_out": MOST_OUT_BY_RULE * 100,
        "form": form,
        "listed": found[:MOST_LISTED],
        "total": found.count(),
        "most": MOST_LISTED,
    }
    status = 400 if form.errors else 200
    return page(request, "fleet/machines/notices.html", context, status=status)


def _notices(asked: dict[str, Any], request: HttpRequest) -> QuerySet[Notice]:
    found = Notice.objects.filter(cleared_at=None).select_related("machine__owner_team")
    if asked["kind"]:
        found = found.filter(kind=asked["kind"])
    if asked["machine"]:
        found = found.filter(machine__name=asked["machine"])
    if asked["mine"]:
        found = found.filter(machine__in=services.mine(person(request)).values("pk"))
    return found.order_by("-raised_at", "-pk")
