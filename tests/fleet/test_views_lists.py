"""Lists refuse a filter that they do not know, and go on from the last row of a page."""

import pytest
from django.contrib.auth.models import Group
from django.http import QueryDict
from django.test import Client

from fleet.models import Machine
from fleet.views.lists import first_page
from tests.factories import make_machine, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    user = make_user(is_staff=True)
    user.groups.set(Group.objects.filter(name="viewer"))
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize("path", ["incidents", "repairs", "gates", "cordons", "notices", "goodput"])
def test_a_list_refuses_a_misspelt_filter_in_place_of_showing_everything(client, path):
    response = client.get(f"/{path}/?machin=m1")

    assert response.status_code == 400
    assert "machin: unknown; known: " in response.content.decode()


def test_a_page_names_the_row_that_the_next_one_goes_on_from(monkeypatch):
    monkeypatch.setattr("fleet.views.lists.PAGE_SIZE", 2)
    first, second, _third = (make_machine(name) for name in ("m1", "m2", "m3"))

    rows, onward = first_page(Machine.objects.order_by("pk"), QueryDict("pool=a"), status="open")

    assert rows == [first, second]
    assert QueryDict(onward.removeprefix("?")).dict() == {
        "pool": "a",
        "status": "open",
        "before": str(second.pk),
    }


def test_a_last_page_that_is_just_full_leads_nowhere(monkeypatch):
    monkeypatch.setattr("fleet.views.lists.PAGE_SIZE", 1)
    machine = make_machine("m1")

    assert first_page(Machine.objects.all(), QueryDict(), status="open") == ([machine], "")
