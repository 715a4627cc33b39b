"""What people order on the pages of rollouts, and say of their machines."""

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from fleet import clock
from fleet.hints import hint
from fleet.views import needs, person
from rollouts import roles, services, tasks
from rollouts.models import Attempt, Order
from rollouts.views import get_rollout
from rollouts.views.order_forms import ClearForm, OrderForm, ReasonForm, TriageForm

COMMANDS: Mapping[Order.Kind, Callable[..., Order | None]] = {
    Order.Kind.SUBMIT: services.submit,
    Order.Kind.APPROVE: services.approve,
    Order.Kind.DENY: services.deny,
    Order.Kind.START: services.start,
    Order.Kind.PAUSE: services.pause,
    Order.Kind.RESUME: services.resume,
    Order.Kind.HALT: services.halt,
    Order.Kind.ADVANCE: services.advance,
    Order.Kind.OVERRIDE: services.override,
    Order.Kind.EXTEND: services.extend,
    Order.Kind.SKIP_WAVE: services.skip_wave,
    Order.Kind.ROLL_BACK: services.roll_back,
    Order.Kind.CANCEL: services.cancel,
    Order.Kind.ACKNOWLEDGE: services.acknowledge,
    Order.Kind.RETRY: services.retry,
    Order.Kind.EXCLUDE: services.exclude,
    Order.Kind.RELEASE: services.release,
    Order.Kind.SUPERSEDE: services.supersede,
}

LABELS: Mapping[Order.Kind, Any] = {
    Order.Kind.SUBMIT: _("Submit"),
    Order.Kind.APPROVE: _("Approve"),
    Order.Kind.DENY: _("Deny"),
    Order.Kind.START: _("Start"),
    Order.Kind.PAUSE: _("Pause"),
    Order.Kind.RESUME: _("Resume"),
    Order.Kind.HALT: _("Halt"),
    Order.Kind.ADVANCE: _("Advance the wave"),
    Order.Kind.OVERRIDE: _("Override the halt"),
    Order.Kind.EXTEND: _("Extend the window"),
    Order.Kind.SKIP_WAVE: _("Skip the wave"),
    Order.Kind.ROLL_BACK: _("Roll back"),
    Order.Kind.CANCEL: _("Cancel the rollout"),
    Order.Kind.ACKNOWLEDGE: _("Acknowledge signatures"),
    Order.Kind.RETRY: _("Retry failed machines"),
    Order.Kind.EXCLUDE: _("Exclude machines"),
    Order.Kind.RELEASE: _("Release machines to work"),
    Order.Kind.SUPERSEDE: _("Supersede by a newer rollout"),
}


@require_POST
@login_required
def give_order(request: HttpRequest, pk: int, kind: str) -> HttpResponse:
    """Give an order. A halt is one click: no confirmation, and its reason may be left out."""
    command = COMMANDS.get(kind)  # type: ignore[call-overload]
    if command is None:
        raise Http404(f"no order is called {kind!r}")
    order_kind, rollout = Order.Kind(kind), get_rollout(pk)
    if not roles.may_order(request.user, order_kind, rollout):
        needed = roles.permission_for(order_kind, rollout)
        raise PermissionDenied(f"{kind} needs the permission {needed}")
    form = OrderForm(request.POST, kind=order_kind, rollout=rollout)
    if not form.is_valid():
        for field, errors in form.errors.items():
            messages.error(request, f"{field}: {' '.join(map(str, errors))}")
        return redirect("rollouts:detail", pk=pk)
    command(rollout, actor=request.user, now=clock.now(), **form.given())
    hint(tasks.evaluate, rollout.pk)
    messages.success(request, _("Ordered: {order}").format(order=LABELS[order_kind]))
    return redirect("rollouts:detail", pk=pk)


@require_POST
@needs(roles.HALT)
def halt_all(request: HttpRequest) -> HttpResponse:
    """Halt everything that is under way: one click, no confirmation."""
    form = ReasonForm(request.POST)
    form.is_valid()
    given = services.halt_all(
        actor=person(request),
        now=clock.now(),
        reason=form.cleaned_data.get("reason", ""),
    )
    for order in given:
        hint(tasks.evaluate, order.rollout_id)
    messages.success(
        request,
        ngettext("{count} rollout is halted", "{count} rollouts are halted", len(given)).format(
            count=len(given)
        ),
    )
    return redirect("rollouts:home")


@require_POST
@needs(roles.OPERATE)
def clear(request: HttpRequest, pk: int, attempt_pk: int) -> HttpResponse:
    """Let a machine be offered the bundle again that it failed or left."""
    attempt = get_object_or_404(
        Attempt.objects.select_related("rollout__bundle", "machine"), pk=attempt_pk, rollout=pk
    )
    form = ClearForm(request.POST)
    if form.is_valid():
        services.clear(
            attempt.machine,
            bundle=attempt.rollout.bundle,
            actor=person(request),
            now=clock.now(),
            **form.cleaned_data,
        )
        messages.success(request, _("{machine} is cleared").format(machine=attempt.machine))
    else:
        messages.error(request, " ".join(map(str, form.errors["reason"])))
    return redirect("rollouts:detail", pk=pk)


@require_POST
@needs(roles.OPERATE)
def triage(request: HttpRequest, pk: int, attempt_pk: int) -> HttpResponse:
    """Say why a machine did not come back; new starts wait for that."""
    attempt = get_object_or_404(
        Attempt.objects.select_related("rollout"), pk=attempt_pk, rollout=pk
    )
    form = TriageForm(request.POST)
    if form.is_valid():
        services.triage(attempt, **form.cleaned_data, actor=str(request.user), now=clock.now())
        hint(tasks.evaluate, pk)
        messages.success(request, _("{machine} is triaged").format(machine=attempt.machine))
    else:
        messages.error(request, " ".join(map(str, form.errors["outcome"])))
    return redirect("rollouts:detail", pk=pk)
