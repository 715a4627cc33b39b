"""Tell the scheduler which machines may take work, again and again until it has taken it.

What it was last told stands in `SchedulerWord`; what differs from the machine's row is due. A
rollout tells of the machines in its own hands by itself, under its own reason. Once such a machine
is out for diagnosis it is spoken of under that reason still: one machine, one reason.
"""

import logging
import secrets
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import Exists, F, OuterRef, Q

from fleet import adapters, clock, leases
from fleet.adapters import Occupancy
from fleet.errors import AdapterFailed
from fleet.lifecycle import State, Trigger
from fleet.models import Cordon, Machine, SchedulerWord, StateChange
from fleet.services.departures import carry_on, standing_orders
from fleet.services.drains import AT_SCHEDULER

logger = logging.getLogger(__name__)

#: The reason under which the product keeps work away, where no rollout has begun to.
OURS = "coalmine"
_ROLLOUT = "rollout:"
LONGEST_RUN_SECONDS = 20.0
#: A scheduler that was restarted without its state is told again after so long.
_TELL_AGAIN = timedelta(hours=1)
_MOST_PER_RUN = 1000
#: After so many silences one after the other it is the scheduler that is away, not a machine.
_MOST_SILENCES = 3
_DRAINED = ~Q(drained_as="")
_IN_A_ROLLOUT = (State.DRAINING, State.UPDATING, State.VERIFYING)


def tell_scheduler(*, now: datetime) -> int:
    """Tell the scheduler of each machine of which it was told something else; return how many.

    Safe to repeat and to race: one worker at a time speaks of a machine, and reads what is so
    right before. Never called inside a transaction.
    """
    end = time.monotonic() + LONGEST_RUN_SECONDS
    told = silences = 0
    for pk in _due(now=now):
        if time.monotonic() > end or silences >= _MOST_SILENCES:
            break
        try:
            told += _tell(pk, now=now)
            silences = 0
        except (OSError, AdapterFailed) as error:
            silences += 1
            logger.warning("the scheduler did not answer: %s", type(error).__name__)
    return told


def keep_drained(machine: Machine, *, reason: str, now: datetime) -> bool:
    """Take over a rollout's drain of a machine that may not take work yet; it is lifted later.

    False if the machine is kept away under another reason already: the rollout lifts its own.
    """
    SchedulerWord.objects.get_or_create(machine=machine)
    own = SchedulerWord.objects.filter(machine=machine, drained_as__in=("", reason))
    return bool(own.update(drained_as=reason, told_at=now))


def _due(*, now: datetime) -> Sequence[int]:
    """Return the machines to speak of, those about which nothing was said for longest first.

    Each of the three questions is about few machines of a large fleet, and has an index.
    """
    is_drained = Exists(SchedulerWord.objects.filter(_DRAINED, machine=OuterRef("pk")))
    is_stale = Q(scheduler_word__told_at__lt=now - _TELL_AGAIN) & ~Q(state=State.RETIRED)
    away = Machine.objects.filter(_is_ours(), may_take_work=False)
    untold = away.filter(~is_drained | is_stale)
    back = SchedulerWord.objects.filter(_DRAINED, machine__may_take_work=True)
    leaving = standing_orders().filter(machine__state=State.DRAINING)
    due = {
        pk: told_at
        for rows, told, machine in (
            (back, "told_at", "machine_id"),
            (leaving, "machine__scheduler_word__told_at", "machine_id"),
            (untold, "scheduler_word__told_at", "pk"),
        )
        for pk, told_at in rows.order_by(F(told).asc(nulls_first=True), machine).values_list(
            machine, told
        )[:_MOST_PER_RUN]
    }
    return sorted(due, key=lambda pk: (due[pk] is not None, due[pk], pk))


def _is_ours() -> Q:
    """Match machines out of work that neither a rollout nor somebody else's drain speaks for."""
    theirs = Q(owner__startswith=_ROLLOUT) | Q(owner__startswith=AT_SCHEDULER)
    cordons = Cordon.objects.filter(machine=OuterRef("pk"), lifted_at=None).exclude(theirs)
    is_cordoned = Q(state=State.IN_SERVICE) & Exists(cordons)
    return is_cordoned | ~Q(state__in=(State.IN_SERVICE, *_IN_A_ROLLOUT))


def _tell(pk: int, *, now: datetime) -> bool:
    """Say of one machine what is so; false if another worker is at it, or nothing is to be said."""
    SchedulerWord.objects.get_or_create(machine_id=pk)
    token, wall = secrets.token_hex(16), clock.steady_time()
    own = SchedulerWord.objects.filter(machine_id=pk)
    if not own.filter(leases.free(wall=wall)).update(
        lease_token=token, leased_until=wall + leases.LEASE
    ):
        return False
    try:
        return _say(own.select_related("machine").get(lease_token=token), now=now)
    except (OSError, AdapterFailed):
        own.filter(lease_token=token).update(told_at=now)  # the others come first next time
        raise
    finally:
        own.filter(lease_token=token).update(lease_token="", leased_until=None)


def _say(word: SchedulerWord, *, now: datetime) -> bool:
    machine = word.machine
    if machine.may_take_work:
        return _free(word, now=now)
    order = standing_orders().filter(machine=machine).first()
    is_drained_out = order is not None and machine.state == State.DRAINING
    if not is_drained_out and not Machine.objects.filter(_is_ours(), pk=machine.pk).exists():
        return False
    reason = word.drained_as or _reason(machine)
    seen = adapters.scheduler().drain(machine.name, reason=reason, now=now)
    is_theirs = bool(seen.drained_by)
    own = SchedulerWord.objects.filter(pk=word.pk, lease_token=word.lease_token)
    kept = own.update(
        drained_as="" if is_theirs else reason, told_at=now, answer=seen.drained_by[:300]
    )
    if kept and order is not None and is_drained_out:
        carry_on(order, is_idle=_is_idle(machine, seen), now=now)
    return bool(kept)


def _free(word: SchedulerWord, *, now: datetime) -> bool:
    if not word.drained_as:
        return False
    adapters.scheduler().release(word.machine.name, reason=word.drained_as, now=now)
    own = SchedulerWord.objects.filter(pk=word.pk, lease_token=word.lease_token)
    return bool(own.update(drained_as="", told_at=now, answer=""))


def _reason(machine: Machine) -> str:
    """Return under which reason the machine is kept away: a rollout's that has begun to, or ours.

    So no machine is drained under two reasons, and the first one is lifted when it comes back. A
    rollout that gave the machine back has nothing to do with why it is out by now.
    """
    speaks = Q(trigger=Trigger.DRAIN) | Q(new_state=State.IN_SERVICE)
    changes = StateChange.objects.filter(speaks, machine=machine).order_by("-pk")
    trigger, actor = changes.values_list("trigger", "actor").first() or ("", "")
    return actor if trigger == Trigger.DRAIN and actor.startswith(_ROLLOUT) else OURS


def _is_idle(machine: Machine, seen: Occupancy) -> bool:
    """Tell whether no work is left; of a machine that others drained only its job tells."""
    return seen.is_idle or (bool(seen.drained_by) and not machine.job)
