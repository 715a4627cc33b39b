"""Halting from the command line."""

from io import StringIO

import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command

from rollouts.models import Order
from tests.factories import make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import started

pytestmark = pytest.mark.django_db


def test_the_command_halts_and_the_order_names_the_person(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    driver.settle()
    ann = make_user("ann")
    ann.user_permissions.add(Permission.objects.get(codename="halt_rollout"))

    call_command("halt", rollout.name, user="ann", reason="smoke", stdout=StringIO())

    rollout.refresh_from_db()
    assert rollout.status == "halted"
    assert Order.objects.get(kind="halt").actor == ann


def test_a_person_without_the_right_is_refused(fake_fleet: FakeFleet) -> None:
    rollout = started(fake_fleet)
    make_user("eve")

    with pytest.raises(CommandError, match="eve"):
        call_command("halt", rollout.name, user="eve", stdout=StringIO())

    rollout.refresh_from_db()
    assert rollout.status == "running"


def test_an_unknown_name_lists_what_can_be_halted(fake_fleet: FakeFleet) -> None:
    started(fake_fleet)

    with pytest.raises(CommandError, match="can be halted: update"):
        call_command("halt", "updaet", user="ann", stdout=StringIO())
