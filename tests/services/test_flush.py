"""The flush between transactional tests: it gets past the triggers and loses nothing shipped."""

import pytest
from django.apps import apps
from django.contrib.auth.models import Group


def rows_shipped() -> int:
    return sum(
        model._base_manager.count()
        for name in ("fleet", "rollouts", "simulation")
        for model in apps.get_app_config(name).get_models()
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("turn", [1, 2])
def test_each_transactional_test_finds_the_shipped_rows_and_nothing_else(turn: int):
    assert rows_shipped() > 0
    assert not Group.objects.filter(name="left behind").exists()

    Group.objects.create(name="left behind")
