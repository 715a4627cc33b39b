"""The virtual technicians: they power-cycle what does not return, repair, and release by a gate."""

import logging
from datetime import datetime

from django.db.models import F

from fleet import services as fleet_services
from fleet.errors import FleetError
from fleet.lifecycle import State
from fleet.models import Incident, Machine
from rollouts import services as rollout_services
from rollouts.lifecycle import AttemptStatus
from rollouts.models import Attempt
from simulation import bench
from simulation.models import VirtualMachine, VirtualOrder
from simulation.orders import Outcome

logger = logging.getLogger(__name__)

ACTOR = "virtual technician"
#: A pool of which more than this share is out loses no further machine to the people on call.
MOST_OUT = 0.1
#: What they take a machine out for: its accelerator cannot be reached any more.
TAKES_OUT = "xid.79"


def triage_silent(*, now: datetime) -> int:
    """Look after machines whose attempt never returned; return how many were triaged.

    Safe to repeat: an order that came up is not brought up again, a triaged attempt is not
    triaged again.
    """
    done = 0
    for attempt in _untriaged():
        order = bench.last_order(attempt.machine_id)
        if order is None or (order.by_hand_at and order.by_hand_at > now):
            continue
        outcome = _look_after(order, now=now)
        rollout_services.triage(attempt, outcome=outcome, actor=ACTOR, now=now)
        done += 1
    return done


def work_on_queue(*, now: datetime) -> int:
    """Move each machine that is out of service one step on, where its time has come."""
    done = 0
    for machine, due in _queue():
        if due > now:
            continue
        try:
            bench.work_on(machine, now=now)
        except FleetError as error:  # somebody was faster, or a person has to act
            logger.info("%s is left as it is: %s", machine, error)
        else:
            done += 1
        VirtualMachine.objects.filter(machine=machine).update(looked_at=now)
    return done


def take_out_struck(*, now: datetime) -> int:
    """Take machines out whose accelerators fell off the bus; return how many.

    Safe to repeat: an incident takes its machine out once. A pool of which many are out keeps the
    others.
    """
    struck = Incident.objects.filter(
        signature__name=TAKES_OUT,
        closed_at=None,
        take_outs=None,
        last_fault_at__gte=F("machine__entered_at"),
        machine__state=State.IN_SERVICE,
        machine__in=VirtualMachine.objects.values("machine"),
    )
    return sum(_take_out(one, now=now) for one in struck.select_related("machine").order_by("pk"))


def _take_out(incident: Incident, *, now: datetime) -> bool:
    machine = incident.machine
    pool = Machine.objects.filter(site=machine.site, pool=machine.pool)
    if pool.filter(may_take_work=False).count() >= MOST_OUT * pool.count():
        return False
    reason = f"incident {incident.pk}: an accelerator fell off the bus"
    try:
        fleet_services.take_out(
            machine, actor=bench.TECHNICIAN, reason=reason, at_once=True, incident=incident, now=now
        )
    except FleetError:  # it is out already
        return False
    return True


def next_due_at() -> datetime | None:
    """Return when there is something to do next, or None."""
    untriaged = _untriaged()
    orders = [bench.last_order(attempt.machine_id) for attempt in untriaged]
    instants = [order.by_hand_at or order.taken_at for order in orders if order]
    instants += [due for _, due in _queue()]
    return min(instants, default=None)


def _untriaged() -> list[Attempt]:
    return list(
        Attempt.objects.filter(status=AttemptStatus.NEVER_RETURNED, triage="")
        .select_related("machine")
        .order_by("pk")
    )


def _queue() -> list[tuple[Machine, datetime]]:
    """Return the virtual machines that are out, and when somebody gets to each.

    One that nobody has triaged stays where it is, and so does one that a person has in hand.
    """
    silent = {attempt.machine_id for attempt in _untriaged()}
    looked = dict(VirtualMachine.objects.values_list("machine", "looked_at"))
    out = Machine.objects.filter(
        state__in=list(bench.MINUTES), pk__in=VirtualMachine.objects.values("machine")
    )
    return [
        (machine, bench.due_at(machine, looked_at=looked[machine.pk]))
        for machine in out.select_related("held_by").order_by("name")
        if machine.pk not in silent and not bench.is_left_to_people(machine)
    ]


def _look_after(order: VirtualOrder, *, now: datetime) -> Attempt.Triage:
    """Power-cycle the machine, and say what it was."""
    if order.outcome == Outcome.BRICKED:
        return Attempt.Triage.BRICKED
    if order.outcome == Outcome.NEVER_RETURNED and not order.is_repaired_by_hand:
        return Attempt.Triage.COINCIDENT_HARDWARE
    bench.bring_up(order, now=now)
    return Attempt.Triage.RECOVERED
