"""Put a machine to work without its gate, for some hours, on one person's word.

It is seen everywhere while it lasts and until somebody else has looked at it. When its time is
over the machine is drained and goes back to the queue out of which it was taken.
"""

from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction

from fleet.errors import BreakGlassRefused, SelfApproval, StaleMachine
from fleet.lifecycle import BREAKABLE, State, Trigger, way_back
from fleet.models import BreakGlass, Machine, TakeOut
from fleet.services.departures import carry_on
from fleet.services.lifecycle import move_machine
from fleet.services.notices import clear_notice, raise_notice

LONGEST = timedelta(hours=72)
NOTICE = "break_glass"
_ACTOR = "break glass"
_IN_USE = (State.IN_SERVICE, State.DRAINING, State.UPDATING, State.VERIFYING)


@transaction.atomic
def break_glass(
    machine: Machine, *, user: User, reason: str, until: datetime, now: datetime
) -> BreakGlass:
    """Put a machine to work without its gate until a time, at most 72 hours away.

    Raises
    ------
    BreakGlassRefused
        If no reason is given, the time is not within 72 hours, somebody has hands on the machine,
        or a cordon stands, which keeps it from work all the same.
    """
    read = machine.state
    locked = Machine.objects.select_for_update().get(pk=machine.pk)
    if locked.state != read:
        raise StaleMachine(f"{machine} is no longer {read}: it is {locked.state}")
    _check(locked, reason=reason, until=until, now=now)
    glass = BreakGlass.objects.create(
        machine=machine,
        person=user,
        reason=reason.strip()[:300],
        old_state=read,
        began_at=now,
        until=until,
    )
    move_machine(
        machine,
        Trigger.BREAK_GLASS,
        actor=user.get_username(),
        user=user,
        now=now,
        reason=glass.reason,
        gate=f"none: break glass {glass.pk} by {user}: {glass.reason}"[:200],
    )
    raise_notice(machine, NOTICE, _said(glass), now=now)
    return glass


def _check(machine: Machine, *, reason: str, until: datetime, now: datetime) -> None:
    if not reason.strip():
        raise BreakGlassRefused("a reason is needed: another person will review it")
    if not now < until <= now + LONGEST:
        raise BreakGlassRefused(
            f"until {until:%Y-%m-%d %H:%M} was asked; accepted: a time after now, at most "
            f"{now + LONGEST:%Y-%m-%d %H:%M} UTC, which is 72 hours away"
        )
    if machine.state not in BREAKABLE:
        possible = ", ".join(sorted(BREAKABLE))
        raise BreakGlassRefused(f"{machine} is {machine.state}; possible out of: {possible}")
    cordon = machine.cordons.filter(lifted_at=None).order_by("since").first()
    if cordon is not None:
        raise BreakGlassRefused(
            f"{machine} is cordoned by {cordon.owner} ({cordon.reason}) and would take no work"
        )


def end_break_glasses(*, now: datetime) -> int:
    """Send back the machines whose time is over, and close those that are out already.

    Safe to repeat: each ends once, and its machine's way back is an order that stands.
    """
    ended = 0
    for glass in BreakGlass.objects.filter(ended_at=None).order_by("until"):
        ended += _end(glass.pk, now=now)
    return ended


@transaction.atomic
def _end(pk: int, *, now: datetime) -> bool:
    glass = BreakGlass.objects.select_related("machine").get(pk=pk)
    machine = Machine.objects.select_for_update().get(pk=glass.machine_id)
    is_in_use = machine.state in _IN_USE
    if is_in_use and glass.until > now:
        return False
    why = "its time is over" if is_in_use else f"the machine is {machine.state}"
    own = BreakGlass.objects.filter(pk=pk, ended_at=None)
    if not own.update(ended_at=now, ended_why=why):
        return False
    glass.refresh_from_db()
    if is_in_use:
        _send_back(machine, glass, now=now)
    raise_notice(machine, NOTICE, _said(glass), now=now)
    return True


def _send_back(machine: Machine, glass: BreakGlass, *, now: datetime) -> None:
    """Order the machine back to its queue, unless somebody has ordered it out already."""
    order, _ = TakeOut.objects.get_or_create(
        machine=machine,
        ended_at=None,
        defaults={
            "reason": f"break glass {glass.pk} is over",
            "onward": way_back(State(glass.old_state)).value,
            "ordered_at": now,
            "actor": _ACTOR,
        },
    )
    carry_on(order, is_idle=False, now=now)


@transaction.atomic
def review_break_glass(glass: BreakGlass, *, user: User, word: str, now: datetime) -> BreakGlass:
    """Say that another person has looked at it, once it is over. Safe to repeat by the same one.

    Raises
    ------
    SelfApproval
        If the reviewer broke the glass.
    BreakGlassRefused
        If it is not over, was reviewed by somebody else, or no word is given.
    """
    if glass.person_id == user.pk:
        raise SelfApproval(f"{user} put {glass.machine} to work; somebody else reviews it")
    if not word.strip():
        raise BreakGlassRefused("a word is needed: what was looked at")
    done = BreakGlass.objects.filter(pk=glass.pk, ended_at__isnull=False, reviewer=None)
    done.update(reviewer=user, reviewed_at=now, review=word.strip()[:500])
    glass.refresh_from_db()
    if glass.ended_at is None:
        raise BreakGlassRefused(f"it lasts until {glass.until:%Y-%m-%d %H:%M} and is reviewed then")
    if glass.reviewer_id != user.pk:
        raise BreakGlassRefused(f"{glass.reviewer} has reviewed it already")
    others = BreakGlass.objects.filter(machine=glass.machine, reviewer=None)
    if not others.exists():
        clear_notice(glass.machine, NOTICE, now=now)
    return glass


def _said(glass: BreakGlass) -> str:
    if glass.ended_at is not None:
        return (
            f"worked without its gate by order of {glass.person} ({glass.reason}); "
            "it is over and waits for a review by somebody else"
        )
    return (
        f"works without its gate until {glass.until:%Y-%m-%d %H:%M} UTC, by order of "
        f"{glass.person}: {glass.reason}"
    )
