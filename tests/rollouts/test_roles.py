"""The groups that a new installation starts with."""

import pytest
from django.apps.registry import Apps
from django.contrib.auth.models import Group

from rollouts import roles
from tests.factories import make_user

pytestmark = pytest.mark.django_db


def test_the_groups_exist_after_the_migrations():
    assert set(Group.objects.values_list("name", flat=True)) == set(roles.GROUPS)


@pytest.mark.parametrize("name", sorted(roles.GROUPS))
def test_every_group_may_halt_and_see_everything(name: str):
    user = make_user()
    user.groups.add(Group.objects.get(name=name))

    assert user.has_perms([roles.HALT, "rollouts.view_rollout", "fleet.view_machine"])


def test_no_group_both_operates_and_approves():
    assert not any(
        {roles.OPERATE, roles.APPROVE} <= set(permissions) for permissions in roles.GROUPS.values()
    )


def test_a_group_that_was_changed_is_left_alone():
    group = Group.objects.get(name="viewer")
    group.permissions.clear()

    roles.create_groups(sender=None)

    assert not group.permissions.exists()


def test_a_group_that_is_gone_is_made_again():
    Group.objects.get(name="operator").delete()

    roles.create_groups(sender=None)

    names = Group.objects.get(name="operator").permissions.values_list("codename", flat=True)
    assert "operate_rollout" in names


def test_a_partial_migration_makes_no_groups():
    Group.objects.all().delete()

    roles.create_groups(sender=None, apps=Apps())

    assert not Group.objects.exists()


def test_somebody_who_left_may_not_even_halt():
    user = make_user(is_active=False)
    user.groups.add(Group.objects.get(name="operator"))

    assert not user.has_perm(roles.HALT)
