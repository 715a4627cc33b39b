"""Clearing a machine for a bundle that it failed: by page and API, by whom, with a reason."""

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from rollouts.models import Attempt, Clearance
from tests.factories import NOW, make_user
from tests.rollouts import rows

pytestmark = pytest.mark.django_db


def failed() -> Attempt:
    rollout = rows.running()
    wave = rollout.waves.first()
    return rollout.attempts.create(
        wave=wave,
        block=wave.blocks.create(number=9),
        machine=rollout.assignments.first().machine,
        number=9,
        epoch=0,
        targets=[],
        status="failed",
        detail="flash write error",
        created_at=NOW,
        finished_at=NOW,
    )


def person(group: str):
    user = make_user()
    user.groups.set(Group.objects.filter(name=group))
    return user


def api(group: str) -> APIClient:
    client = APIClient()
    client.force_authenticate(person(group))
    return client


def page(group: str) -> Client:
    client = Client()
    client.force_login(person(group))
    return client


def test_an_operator_clears_a_machine_by_api_with_a_reason():
    attempt = failed()
    address = f"/api/v1/rollouts/{attempt.rollout_id}/attempts/{attempt.pk}/clear"
    client = api("operator")

    without = client.post(address, {})
    given = client.post(address, {"reason": "cable replaced"})
    again = client.post(address, {"reason": "cable replaced"})

    assert (without.status_code, given.status_code, again.status_code) == (400, 200, 409)
    assert Clearance.objects.get().reason == "cable replaced"


@pytest.mark.parametrize("group", ["viewer", "reporter"])
def test_clearing_needs_the_right_to_operate(group: str):
    attempt = failed()
    address = f"/api/v1/rollouts/{attempt.rollout_id}/attempts/{attempt.pk}/clear"
    on_page = reverse("rollouts:clear", args=(attempt.rollout_id, attempt.pk))

    assert api(group).post(address, {"reason": "x"}).status_code == 403
    assert page(group).post(on_page, {"reason": "x"}).status_code == 403
    assert not Clearance.objects.exists()


def test_the_page_lists_who_declined_until_they_are_cleared():
    attempt = failed()
    client = page("operator")
    address = reverse("rollouts:clear", args=(attempt.rollout_id, attempt.pk))
    detail = reverse("rollouts:detail", args=(attempt.rollout_id,))

    before = client.get(detail).content.decode()
    client.post(address, {"reason": " "})
    assert not Clearance.objects.exists()
    client.post(address, {"reason": "cable replaced"})
    after = client.get(detail).content.decode()

    assert f'action="{address}"' in before
    assert "flash write error" in before
    assert f'action="{address}"' not in after
    assert Clearance.objects.get().attempt == attempt
