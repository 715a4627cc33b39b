"""Where an operator begins: who gets in, what waits, and the list of all rollouts."""

import pytest
from django.test import Client
from django.urls import reverse

from fleet.models import Machine
from rollouts.models import Rollout
from tests.factories import NOW, make_machine, make_user
from tests.rollouts import rows
from tests.rollouts.pages import client_of, lost

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("route", ["rollouts:home", "rollouts:index"])
def test_a_page_asks_for_a_login(route: str):
    response = Client().get(reverse(route))

    assert response.status_code == 302
    assert "/admin/login/" in response["Location"]


@pytest.mark.parametrize("route", ["rollouts:home", "rollouts:index"])
def test_an_account_without_a_group_sees_no_page(route: str):
    assert client_of().get(reverse(route)).status_code == 403


def test_home_says_what_waits_for_me_what_moves_and_what_is_stuck():
    rows.submitted(name="waits")
    moving = rows.draft(name="moves", machines=0)
    Rollout.objects.filter(pk=moving.pk).update(status="running", plan_digest="0" * 64)
    stuck = make_machine("late-machine", state="diagnosing")
    Machine.objects.filter(pk=stuck.pk).update(deadline_at=NOW)

    page = client_of("approver").get("/").content.decode()

    waiting, rest = page.split('id="moving-title"')
    moves, is_stuck = rest.split('id="stuck-title"')
    assert "waits</a>" in waiting
    assert "moves</a>" in moves
    assert "late-machine" in is_stuck


def test_home_asks_operators_to_confirm_an_advised_widen_and_to_triage():
    rollout = rows.running(mode="advise")
    rows.look(rollout.waves.first(), kind="widen", code="not_worse", reason="not worse")
    lost(rollout)

    waiting = client_of("operator").get("/").content.decode().split('id="moving-title"')[0]

    assert "the engine advises to widen" in waiting
    assert "a machine did not return" in waiting


def test_home_leaves_the_own_plan_to_other_approvers():
    author = make_user(is_staff=True)
    rows.submitted(name="mine", author=author)

    page = client_of("approver", user=author).get("/").content.decode()

    assert "mine</a>" not in page


def test_the_list_is_narrowed_by_a_status_and_refuses_one_that_does_not_exist():
    rows.draft(name="first draft")
    client = client_of("viewer")

    assert 'href="?status=draft"' in client.get("/rollouts/").content.decode()
    assert "first draft" in client.get("/rollouts/?status=draft").content.decode()
    assert "first draft" not in client.get("/rollouts/?status=halted").content.decode()
    assert client.get("/rollouts/?status=bogus").status_code == 404
