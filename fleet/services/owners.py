"""Whose a machine is: take it in hand, hand it over, and follow the rules of who owns what."""

from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from fleet import ownership
from fleet.errors import HandOverRefused, MachineHeld, StaleMachine
from fleet.lifecycle import State, Trigger
from fleet.models import HandOver, Machine, Team
from fleet.services.lifecycle import lock_machine, move_machine

#: Nobody works on a machine in these: there is nothing to take in hand.
NOBODYS = (State.IN_SERVICE, State.RETIRED)


@transaction.atomic
def take(machine: Machine, *, user: User, now: datetime, word: str = "") -> Machine:
    """Take a machine in hand; of two people at once one is told who was faster.

    Whoever takes a machine that waits for a diagnosis begins it. Safe to repeat.

    Raises
    ------
    MachineHeld
        If somebody else has it in hand, or it is a team's to which the person does not belong.
    """
    _lock(machine)
    if machine.held_by_id == user.pk:
        return machine
    if machine.state in NOBODYS:
        raise HandOverRefused(f"{machine} is {machine.state}: there is nothing to take in hand")
    if machine.held_by_id is not None:
        raise MachineHeld(
            f"{machine.held_by} has {machine} in hand since {machine.held_since:%Y-%m-%d %H:%M}; "
            "they or their team can hand it over"
        )
    _check_team(machine, user)
    _hand(machine, team=machine.owner_team, person=user, by=user, word=word, now=now)
    if machine.state == State.AWAITING_DIAGNOSIS:
        name = user.get_username()
        move_machine(machine, Trigger.DIAGNOSE, actor=name, user=user, now=now, reason="taken")
    return machine


@transaction.atomic
def hand_over(
    machine: Machine,
    *,
    user: User,
    now: datetime,
    team: Team | None = None,
    person: User | None = None,
    word: str = "",
) -> Machine:
    """Hand a machine to a team, a person or both, with a word; to neither lays it down.

    It has one owner before and after: the team that is named, else the one whose it is.

    Raises
    ------
    MachineHeld
        If it is in somebody else's hand, who is not of the person's own team.
    HandOverRefused
        If the person who is to have it does not belong to the team whose it then is.
    """
    _lock(machine)
    if machine.state in NOBODYS:
        raise HandOverRefused(f"{machine} is {machine.state}: there is nothing to hand over")
    if machine.held_by_id != user.pk:
        _check_team(machine, user)
        if machine.held_by_id is not None and machine.owner_team is None:
            raise MachineHeld(f"{machine.held_by} has {machine} in hand, and no team owns it")
    new_team = team or machine.owner_team
    if person is not None and not belongs(person, new_team):
        raise HandOverRefused(f"{person} is not a member of {new_team}, whose {machine} then is")
    _hand(machine, team=new_team, person=person, by=user, word=word, now=now)
    return machine


def mine(user: User) -> QuerySet[Machine]:
    """Return the machines that a person has in hand, or that wait for one of their teams."""
    own = Q(held_by=user) | Q(held_by=None, owner_team__members=user)
    return Machine.objects.filter(own).distinct()


def belongs(person: User, team: Team | None) -> bool:
    """Tell whether a person may act for a team; nobody has to belong to one without members."""
    if team is None or not team.members.exists():
        return True
    return team.members.filter(pk=person.pk).exists()


def _check_team(machine: Machine, user: User) -> None:
    if not belongs(user, machine.owner_team):
        raise MachineHeld(
            f"{machine} is {machine.owner_team}'s while it is {machine.state}; "
            f"{user} is not a member, and one of them can hand it over"
        )


def _hand(
    machine: Machine,
    *,
    team: Team | None,
    person: User | None,
    by: User,
    word: str,
    now: datetime,
) -> None:
    """Write who has the machine now, and the record of it; the caller holds its row."""
    HandOver.objects.create(
        machine=machine,
        state=machine.state,
        old_team=machine.owner_team,
        new_team=team,
        old_person=machine.held_by,
        new_person=person,
        word=word[:500],
        at=now,
        actor=by.get_username(),
        user=by,
        recorded_at=timezone.now(),
    )
    machine.is_handed_over = machine.is_handed_over or team != machine.owner_team
    machine.owner_team, machine.held_by = team, person
    machine.held_since = now if person else None
    machine.save(update_fields=["owner_team", "held_by", "held_since", "is_handed_over"])


def _lock(machine: Machine) -> None:
    """Take the machine's row and read who has it; where it moved on meanwhile, stop."""
    read = machine.state
    names = ("owner_role", "owner_team_id", "held_by_id", "held_since", "is_handed_over")
    lock_machine(machine, *names)
    if machine.state != read:
        raise StaleMachine(f"{machine} is no longer {read}: it is {machine.state}")


def refresh_owners(*, of_all: bool = False) -> int:
    """Give machines to the teams that the rules name now; return how many changed hands.

    Without `of_all` those in service are left to their next move. A machine that was handed to
    another team stays there until its owner role changes, and one in hand until it is laid down.
    """
    find = ownership.team_finder()
    owned = Machine.objects.exclude(state__in=[State.RETIRED] if of_all else NOBODYS)
    free = owned.filter(is_handed_over=False, held_by=None)
    changed = 0
    for role, site, pool in owned.order_by().values_list("owner_role", "site", "pool").distinct():
        wanted = find(role, site, pool)
        here = free.filter(owner_role=role, site=site, pool=pool)
        wrong = here.exclude(owner_team=wanted) if wanted else here.exclude(owner_team=None)
        changed += wrong.update(owner_team_id=wanted)
    return changed
