"""Which orders a rollout's state allows, and which of them somebody may give.

What is offered is a courtesy to people; the services refuse by themselves what must not be.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from django.conf import settings
from django.utils.translation import gettext_lazy as _

from rollouts import contamination, roles, selectors
from rollouts.analysis.verdicts import Reason
from rollouts.lifecycle import (
    FAILURES,
    TRANSITIONS,
    AttemptStatus,
    Status,
    Trigger,
    WaveStatus,
)
from rollouts.models import Attempt, Order, Rollout, Wave

MOST_OF_A_KIND = 20
#: Orders that are moves of the rollout itself; the others concern its open wave.
MOVES = {trigger: Order.Kind(trigger) for trigger in Trigger if trigger in Order.Kind.values}


def possible_orders(rollout: Rollout) -> Iterator[Order.Kind]:
    """The orders that the rollout's and its wave's state allow."""
    status = Status(rollout.status)
    for trigger, kind in MOVES.items():
        if (status, trigger) in TRANSITIONS:
            yield kind
    if status is Status.RUNNING:
        yield from wave_orders(selectors.current_wave(rollout))
    yield from _member_orders(rollout)
    if (status, Trigger.CANCEL) in TRANSITIONS and selectors.successors(rollout).exists():
        yield Order.Kind.SUPERSEDE


def _member_orders(rollout: Rollout) -> Iterator[Order.Kind]:
    """The orders about single machines of the rollout."""
    is_under_way = rollout.status in (Status.RUNNING, Status.PAUSED)
    if is_under_way and rollout.attempts.filter(status__in=FAILURES).exists():
        yield Order.Kind.RETRY
    if rollout.status in (Status.APPROVED, Status.RUNNING, Status.PAUSED):
        yield Order.Kind.EXCLUDE
    if selectors.held_machines(rollout).exists():
        yield Order.Kind.RELEASE


def wave_orders(wave: Wave | None) -> Iterator[Order.Kind]:
    """The orders that the open wave of a running rollout allows."""
    if wave is None:
        return
    is_observed = wave.status in (WaveStatus.OBSERVING, WaveStatus.HELD)
    latest = wave.decisions.order_by("-pk").first()
    if wave.status == WaveStatus.HELD or (is_observed and selectors.advised_widen(wave)):
        yield Order.Kind.ADVANCE
    if wave.status in (WaveStatus.OBSERVING, WaveStatus.SETTLING) and not wave.is_extended:
        yield Order.Kind.EXTEND
    if is_observed or wave.status == WaveStatus.PENDING:
        yield Order.Kind.SKIP_WAVE
    is_reviewed = latest is not None and latest.reason_code == Reason.REVIEW
    if is_reviewed or selectors.clock_holds(wave.rollout):
        yield Order.Kind.ACKNOWLEDGE


def may_give(user: Any, kind: Order.Kind, rollout: Rollout) -> bool:
    """Whether to offer an order; the service has the last word."""
    is_own = kind is Order.Kind.APPROVE and rollout.author_id == user.pk
    return roles.may_order(user, kind, rollout) and (settings.ALLOW_SELF_APPROVAL or not is_own)


def waiting_for(user: Any) -> Iterator[tuple[Rollout, Any]]:
    """Rollouts that wait for an order that this person may give, with the order's name."""
    if user.has_perm(roles.APPROVE):
        asked = Rollout.objects.filter(status=Status.AWAITING_APPROVAL)
        if not settings.ALLOW_SELF_APPROVAL:
            asked = asked.exclude(author=user)
        yield from ((rollout, _("approve or deny")) for rollout in asked[:MOST_OF_A_KIND])
    if user.has_perm(roles.OPERATE):
        for status, what in ((Status.APPROVED, _("start")), (Status.DRAFT, _("submit"))):
            own = Rollout.objects.filter(status=status)[:MOST_OF_A_KIND]
            yield from ((rollout, what) for rollout in own)
        yield from ((wave.rollout, _("advance: the engine advises to widen")) for wave in advised())
        yield from ((rollout, _("triage: a machine did not return")) for rollout in untriaged())
    if user.has_perm(roles.OVERRIDE):
        held = Wave.objects.filter(status=WaveStatus.HELD, rollout__status=Status.RUNNING)
        for wave in held.select_related("rollout")[:MOST_OF_A_KIND]:
            yield wave.rollout, _("advance or halt: a wave is held")


def advised() -> Iterator[Wave]:
    """Waves that the engine would widen if a person confirmed it."""
    waves = Wave.objects.filter(status=WaveStatus.OBSERVING, rollout__status=Status.RUNNING)
    asking = waves.select_related("rollout")[: 5 * MOST_OF_A_KIND]
    found = (
        wave
        for wave in asking
        if not contamination.widens_by_itself(wave) and selectors.advised_widen(wave)
    )
    return islice(found, MOST_OF_A_KIND)


def untriaged() -> Iterable[Rollout]:
    """Rollouts with a machine that did not return and of which nobody has said why."""
    lost = Attempt.objects.filter(status=AttemptStatus.NEVER_RETURNED, triage="")
    return Rollout.objects.filter(pk__in=lost.values("rollout"))[:MOST_OF_A_KIND]
