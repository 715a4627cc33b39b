"""What `demo` and `up` refuse, and what they prepare."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from fleet import clock
from fleet.models import Clock, Machine
from rollouts.models import Rollout
from simulation import demo
from simulation.errors import NotADemo
from simulation.management.commands.up import Command as Up
from simulation.models import VirtualFleet
from simulation.scenario import HISTORY, ORIGIN
from tests.factories import make_machine

pytestmark = pytest.mark.django_db


def test_the_demo_leaves_a_database_with_real_machines_alone():
    make_machine(name="real-1")

    with pytest.raises(NotADemo, match="real-1"):
        demo.check_database()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--machines", "499"], "at least 500"),
        (["--seed", "-1"], "accepted are 0 to"),
    ],
)
def test_the_demo_refuses_what_it_cannot_run(arguments, words):
    with pytest.raises(CommandError, match=words) as refused:
        call_command("demo", *arguments, stdout=StringIO())

    assert refused.value.returncode == 2


def test_the_demo_refuses_a_server_that_nobody_offered(settings):
    settings.IS_EMBEDDED = False

    with pytest.raises(CommandError, match="--any-database"):
        call_command("demo", stdout=StringIO())


def test_up_serves_real_machines_by_the_walls_clock():
    make_machine(name="real-1")

    lines = Up(stdout=StringIO()).prepare(rate=360.0, seed=1)

    assert "real" in lines[0]
    assert not VirtualFleet.objects.exists()
    assert not Clock.objects.exists()


def test_up_makes_the_fleet_in_an_empty_database_and_lets_its_time_run(monkeypatch):
    monkeypatch.setattr(demo, "USUAL_MACHINES", 500)

    lines = Up(stdout=StringIO()).prepare(rate=100.0, seed=1)

    assert Machine.objects.count() == 500
    assert Clock.objects.get().mode == Clock.Mode.SCALED
    assert Clock.objects.get().rate == 100.0
    assert clock.now() == ORIGIN + HISTORY
    assert set(Rollout.objects.values_list("status", flat=True)) == {"running"}
    assert any(demo.password_of("approver") in line for line in lines)


def test_up_goes_on_where_the_clock_stood():
    demo.set_up(demo.fleet_parameters(40, harm="faults"), seed=1)
    clock.step_to(ORIGIN + HISTORY)

    Up(stdout=StringIO()).prepare(rate=50.0, seed=1)

    assert VirtualFleet.objects.count() == 1
    assert clock.now() == ORIGIN + HISTORY
    assert Clock.objects.get().rate == 50.0


def test_everybody_whom_the_demo_needs_is_a_person_of_their_own_who_can_log_in(client):
    everyone = demo.people()

    assert sorted(everyone) == ["approver", "author", "reviewer", "technician"]
    assert len({person.pk for person in everyone.values()}) == 4
    for name in everyone:
        assert client.login(username=name, password=demo.password_of(name))


def test_the_author_may_not_approve_and_both_may_halt():
    everyone = demo.people()

    assert not everyone["author"].has_perm("rollouts.approve_rollout")
    assert everyone["approver"].has_perm("rollouts.approve_rollout")
    assert all(person.has_perm("rollouts.halt_rollout") for person in everyone.values())


def test_setting_up_again_makes_nothing_twice():
    parameters = demo.fleet_parameters(40, harm="faults")
    first = demo.set_up(parameters, seed=1)

    again = demo.set_up(parameters, seed=2)

    assert again.pk == first.pk
    assert again.seed == 1
    assert Machine.objects.count() == 40
