"""A machine has one owner at a time: rules, people who take it in hand, and hand-overs."""

from datetime import timedelta

import pytest

from fleet import lifecycle, services
from fleet.errors import HandOverRefused, MachineHeld
from fleet.lifecycle import Role, State, Trigger
from fleet.models import HandOver, Machine, RoleTeam, Team
from tests.factories import NOW, make_machine, make_user

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def make_team(name: str, *members) -> Team:
    team = Team.objects.create(name=name)
    team.members.set(members)
    return team


def rule(role: Role, team: Team, **place: str) -> RoleTeam:
    return RoleTeam.objects.create(role=role.value, team=team, **place)


def waiting(**fields) -> Machine:
    """A machine that waits for a diagnosis, moved there by the product's own steps."""
    machine = make_machine(**fields)
    services.move_machine(machine, Trigger.TAKE_OUT, actor="test", now=NOW)
    return machine


def test_the_narrowest_rule_names_the_team_that_owns_a_machine():
    everywhere, here, train = make_team("every"), make_team("dfw"), make_team("train")
    rule(Role.TRIAGE, everywhere)
    rule(Role.TRIAGE, here, site="dfw")
    rule(Role.TRIAGE, train, site="dfw", pool="train")

    assert waiting().owner_team == everywhere
    assert waiting(site="dfw").owner_team == here
    assert waiting(site="dfw", pool="train").owner_team == train


def test_each_move_to_another_role_changes_the_owner_and_lays_the_machine_down():
    ann = make_user()
    triage, hands = make_team("triage", ann), make_team("hands")
    rule(Role.TRIAGE, triage)
    rule(Role.DATA_CENTRE, hands)
    machine = waiting()
    services.take(machine, user=ann, now=NOW)

    services.move_machine(machine, Trigger.ORDER_REPAIR, actor="ann", now=NOW)

    stored = Machine.objects.get(pk=machine.pk)
    assert (stored.owner_team, stored.held_by, stored.held_since) == (hands, None, None)


def test_whoever_takes_a_machine_that_waits_for_a_diagnosis_begins_it_and_keeps_it():
    ann = make_user()
    machine = waiting()

    services.take(machine, user=ann, now=NOW + HOUR)

    stored = Machine.objects.get(pk=machine.pk)
    assert (stored.state, stored.held_by, stored.held_since) == (
        State.DIAGNOSING,
        ann,
        NOW + HOUR,
    )
    assert machine.state_changes.latest("pk").user == ann


def test_a_machine_in_hand_is_refused_to_others_by_name():
    ann, bob = make_user("ann"), make_user("bob")
    machine = waiting()
    services.take(machine, user=ann, now=NOW)

    with pytest.raises(MachineHeld, match="ann has"):
        services.take(machine, user=bob, now=NOW)

    assert Machine.objects.get(pk=machine.pk).held_by == ann


def test_a_machine_is_taken_by_a_member_of_the_team_whose_it_is():
    ann, bob = make_user("ann"), make_user("bob")
    rule(Role.TRIAGE, make_team("triage", ann))
    machine = waiting()

    with pytest.raises(MachineHeld, match="triage's while it is awaiting_diagnosis"):
        services.take(machine, user=bob, now=NOW)

    assert Machine.objects.get(pk=machine.pk).held_by is None


def test_taking_twice_is_once():
    ann = make_user()
    machine = waiting()

    services.take(machine, user=ann, now=NOW)
    services.take(machine, user=ann, now=NOW + HOUR)

    assert Machine.objects.get(pk=machine.pk).held_since == NOW
    assert HandOver.objects.count() == 1


def test_a_hand_over_to_another_team_changes_the_one_owner_and_keeps_the_word():
    ann, bob = make_user("ann"), make_user("bob")
    rule(Role.TRIAGE, make_team("triage", ann))
    network = make_team("network", bob)
    machine = waiting()
    services.take(machine, user=ann, now=NOW)

    services.hand_over(machine, user=ann, team=network, word="looks like the leaf", now=NOW + HOUR)

    stored = Machine.objects.get(pk=machine.pk)
    assert (stored.owner_team, stored.held_by) == (network, None)
    last = HandOver.objects.latest("pk")
    assert (last.old_person, last.new_team, last.word) == (ann, network, "looks like the leaf")


def test_a_colleague_hands_over_what_somebody_left_in_hand():
    ann, bob, cem = make_user("ann"), make_user("bob"), make_user("cem")
    rule(Role.TRIAGE, make_team("triage", ann, bob, cem))
    machine = waiting()
    services.take(machine, user=ann, now=NOW)

    services.hand_over(machine, user=bob, person=cem, now=NOW)

    assert Machine.objects.get(pk=machine.pk).held_by == cem


def test_a_stranger_hands_nothing_over_and_nobody_outside_the_team_is_given_it():
    ann, bob = make_user("ann"), make_user("bob")
    rule(Role.TRIAGE, make_team("triage", ann))
    machine = waiting()

    with pytest.raises(MachineHeld):
        services.hand_over(machine, user=bob, person=bob, now=NOW)
    with pytest.raises(HandOverRefused, match="not a member of triage"):
        services.hand_over(machine, user=ann, person=bob, now=NOW)

    assert not HandOver.objects.exists()


@pytest.mark.parametrize("state", [State.IN_SERVICE, State.RETIRED])
def test_where_nobody_works_there_is_nothing_to_take(state):
    machine = make_machine(state=state)

    with pytest.raises(HandOverRefused):
        services.take(machine, user=make_user(), now=NOW)


def test_a_new_rule_gives_machines_to_its_team_but_not_those_that_were_handed_on():
    ann = make_user()
    old, new, network = make_team("old", ann), make_team("new"), make_team("network")
    own = rule(Role.TRIAGE, old)
    plain, handed = waiting(), waiting()
    services.hand_over(handed, user=ann, team=network, now=NOW)
    own.team = new
    own.save()

    services.refresh_owners()

    assert Machine.objects.get(pk=plain.pk).owner_team == new
    assert Machine.objects.get(pk=handed.pk).owner_team == network
    services.take(handed, user=ann, now=NOW)  # network has no members: anybody may
    assert handed.state == State.DIAGNOSING
    assert services.refresh_owners() == 0


def test_a_vouched_import_has_its_owner_from_the_start():
    capacity = make_team("capacity")
    rule(Role.CAPACITY, capacity)

    machine = make_machine()

    assert machine.owner_role == lifecycle.STATES[State.IN_SERVICE].owner
    assert Machine.objects.get(pk=machine.pk).owner_team == capacity
