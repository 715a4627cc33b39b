"""Take machines out of work: by a person's order, or by the rule of a fault's signature.

An order stands until the machine is out. What a rollout has under way on it is let come to its
end first, unless it only drains: the attempt then gives the machine up.
"""

import time as wall_time
from collections.abc import Mapping
from datetime import datetime

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, F, Q, QuerySet

from fleet.errors import StaleMachine, TakeOutRefused
from fleet.lifecycle import AT_THE_GATE, STATES, State, Trigger
from fleet.models import FaultSignature, Incident, IncidentFault, Machine, TakeOut
from fleet.services.lifecycle import lock_machine, move_machine
from fleet.services.notices import clear_about, raise_about

#: A rollout's hands are on the machine; what it does there comes to its own end.
_UNDER_WAY = (State.UPDATING, State.VERIFYING)
#: No more than this share of a pool is out of service by a rule; people may take out more.
MOST_OUT_BY_RULE = 0.20
BREAKER = "take_out_breaker"
RULE = "rule"
#: Of a pool in one transaction: others who write wait for so long.
_MOST_PER_RUN = 200
LONGEST_RUN_SECONDS = 20.0
#: What a move goes by beside the state; a machine may have been relocated since it was read.
_READ_ANEW = ("owner_role", "may_take_work", "site", "pool")

_TakesOut = FaultSignature.TakesOut
_STRICTNESS = [_TakesOut.NEVER, _TakesOut.AFTER_JOB, _TakesOut.AT_ONCE]


@transaction.atomic
def take_out(
    machine: Machine,
    *,
    actor: str,
    reason: str,
    at_once: bool,
    now: datetime,
    user: User | None = None,
    incident: Incident | None = None,
    is_by_rule: bool = False,
) -> TakeOut:
    """Order a machine out of work: after its job, or at once where nothing answers any more.

    Safe to repeat: an order that stands is returned; one that was to wait may become at once.

    Raises
    ------
    TakeOutRefused
        If the machine is out of work already.
    """
    lock_machine(machine, *_READ_ANEW)
    standing = TakeOut.objects.filter(machine=machine, ended_at=None).first()
    if standing is None:
        _check_is_in(machine)
        standing = TakeOut.objects.create(
            machine=machine,
            incident=incident,
            reason=reason[:300],
            is_at_once=at_once,
            is_by_rule=is_by_rule,
            ordered_at=now,
            actor=actor,
            user=user,
        )
    elif at_once and not standing.is_at_once:
        TakeOut.objects.filter(pk=standing.pk).update(is_at_once=True)
        standing.is_at_once = True
    _carry_on(standing, machine, is_idle=False, now=now)
    return standing


def _check_is_in(machine: Machine) -> None:
    state = State(machine.state)
    if state in (State.IN_SERVICE, State.DRAINING, *_UNDER_WAY, *AT_THE_GATE):
        return
    step = STATES[state].next_step
    raise TakeOutRefused(f"{machine} is out of work already: it is {state}, next: {step}")


@transaction.atomic
def carry_on(order: TakeOut, *, is_idle: bool, now: datetime) -> bool:
    """Take a standing order one step on, as the machine stands now; tell whether it has ended."""
    lock_machine(order.machine, *_READ_ANEW)
    order.refresh_from_db(fields=["ended_at", "is_at_once", "onward"])
    if order.ended_at is None:
        _carry_on(order, order.machine, is_idle=is_idle, now=now)
    return order.ended_at is not None


def _carry_on(order: TakeOut, machine: Machine, *, is_idle: bool, now: datetime) -> None:
    state = State(machine.state)
    if state is State.IN_SERVICE and not order.is_at_once:
        _move(order, machine, Trigger.DRAIN, now=now)
    elif state in (State.IN_SERVICE, *AT_THE_GATE):
        _move(order, machine, Trigger.TAKE_OUT, now=now)
    elif state is State.DRAINING and (is_idle or order.is_at_once):
        _move(order, machine, Trigger(order.onward), now=now)
    if machine.state not in (State.IN_SERVICE, State.DRAINING, *_UNDER_WAY):
        TakeOut.objects.filter(pk=order.pk).update(
            ended_at=now, ended_how=f"the machine is {machine.state}"
        )
        order.refresh_from_db(fields=["ended_at", "ended_how"])


def _move(order: TakeOut, machine: Machine, trigger: Trigger, *, now: datetime) -> None:
    move_machine(machine, trigger, actor=order.actor, user=order.user, reason=order.reason, now=now)


def resume_take_outs(*, now: datetime) -> int:
    """Carry on with orders whose machine is back in service, or out by another way.

    Safe to repeat. Those that drain wait for the scheduler's word, which `tell_scheduler` asks for.
    """
    waiting = standing_orders().exclude(machine__state__in=(State.DRAINING, *_UNDER_WAY))
    return sum(_resumed(order, now=now) for order in waiting)


def _resumed(order: TakeOut, *, now: datetime) -> bool:
    try:
        carry_on(order, is_idle=False, now=now)
    except StaleMachine:  # it moved on just now; the next round sees where it stands
        return False
    return True


def standing_orders() -> QuerySet[TakeOut]:
    """Return the orders whose machines are not out yet, the oldest first."""
    return TakeOut.objects.filter(ended_at=None).select_related("machine").order_by("pk")


def is_ordered_out(machine: Machine) -> bool:
    """Tell whether an order to take the machine out stands: nothing else is begun on it."""
    return TakeOut.objects.filter(machine=machine, ended_at=None).exists()


# --- by rule ------------------------------------------------------------------------------------


def takes_out(signature: FaultSignature) -> _TakesOut:
    """Return whether such a fault takes its machine out: as the site says, else by the catalogue.

    By the catalogue what cannot be worked on with goes at once, other major hard faults after the
    job. What no catalogue explains takes nothing out by itself.
    """
    if signature.takes_out:
        return _TakesOut(signature.takes_out)
    if signature.is_unrecoverable:
        return _TakesOut.AT_ONCE
    if signature.kind != FaultSignature.Kind.HARD:
        return _TakesOut.NEVER
    by_severity = {
        FaultSignature.Severity.CRITICAL: _TakesOut.AT_ONCE,
        FaultSignature.Severity.MAJOR: _TakesOut.AFTER_JOB,
    }
    return by_severity.get(FaultSignature.Severity(signature.severity), _TakesOut.NEVER)


def take_out_by_rule(*, now: datetime, longest_seconds: float = LONGEST_RUN_SECONDS) -> int:
    """Take out the machines whose open incidents ask for it; return how many were ordered out.

    Off unless the site's setting `TAKE_OUT` is on. Safe to repeat: an incident takes its machine
    out once. Faults from before the machine last came into service ask for nothing. Pools that
    one run's time does not reach are left to the next, with what is said of them.
    """
    if not settings.TAKE_OUT:
        return 0
    end = wall_time.monotonic() + longest_seconds
    ordered, waiting, unreached = 0, {}, []
    for (site, pool), incidents in _asking().items():
        subject = f"pool {site}/{pool}"
        if ordered and wall_time.monotonic() > end:
            unreached.append(subject)
            continue
        taken, left = _take_some(site, pool, incidents, now=now)
        ordered += taken
        if left:
            waiting[subject] = left
    for subject, count in waiting.items():
        said = (
            f"{count} machines of {subject} ask to be taken out and are not: "
            f"{MOST_OUT_BY_RULE:.0%} of the pool are out of service; a person may order it"
        )
        raise_about(subject, BREAKER, said, now=now)
    clear_about(BREAKER, but=[*waiting, *unreached], now=now)
    return ordered


def _asking() -> Mapping[tuple[str, str], list[tuple[Incident, _TakesOut]]]:
    """Return the open incidents that take their machine out, with how, by site and pool."""
    newer = Q(last_fault_at__gte=F("machine__entered_at"))
    still = Incident.objects.filter(
        newer, closed_at=None, machine__state=State.IN_SERVICE, take_outs=None
    )
    members = (
        IncidentFault.objects.filter(
            incident__in=still, fault__time__gte=F("incident__machine__entered_at")
        )
        .select_related("fault__signature", "incident__machine", "incident__signature")
        .order_by("incident_id")
    )
    found: dict[int, tuple[Incident, _TakesOut]] = {}
    for member in members.iterator(chunk_size=1000):
        rule = takes_out(member.fault.signature)
        known = found.get(member.incident_id, (None, _TakesOut.NEVER))[1]
        found[member.incident_id] = (member.incident, max(known, rule, key=_STRICTNESS.index))
    asking: dict[tuple[str, str], list[tuple[Incident, _TakesOut]]] = {}
    for incident, rule in found.values():
        if rule is not _TakesOut.NEVER:
            place = (incident.machine.site, incident.machine.pool)
            asking.setdefault(place, []).append((incident, rule))
    return asking


@transaction.atomic
def _take_some(
    site: str, pool: str, incidents: list[tuple[Incident, _TakesOut]], *, now: datetime
) -> tuple[int, int]:
    """Take out as many of a pool's machines as may be; return how many, and how many are left."""
    own = Machine.objects.filter(site=site, pool=pool).exclude(state=State.RETIRED)
    # One row stands for the pool, so that two workers do not both take its last places.
    Machine.objects.select_for_update().filter(pk=own.order_by("pk").values("pk")[:1]).first()
    counts = own.aggregate(all=Count("pk"), out=Count("pk", filter=~Q(state=State.IN_SERVICE)))
    places = int(MOST_OUT_BY_RULE * counts["all"]) - counts["out"]
    taken: set[int] = set()
    left: set[int] = set()
    for incident, rule in incidents[:_MOST_PER_RUN]:
        machine = incident.machine
        if machine.pk in taken:
            continue
        if len(taken) >= places:
            left.add(machine.pk)
        elif _take_for(incident, machine, rule, now=now):
            taken.add(machine.pk)
    return len(taken), len(left)


def _take_for(incident: Incident, machine: Machine, rule: _TakesOut, *, now: datetime) -> bool:
    reason = f"incident {incident.pk}: {incident.signature.name}"
    try:
        with transaction.atomic():
            take_out(
                machine,
                actor=RULE,
                reason=reason,
                at_once=rule is _TakesOut.AT_ONCE,
                incident=incident,
                is_by_rule=True,
                now=now,
            )
    except (StaleMachine, TakeOutRefused):  # somebody else was faster: it is out
        return False
    return True
