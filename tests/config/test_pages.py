"""What every page carries, and the two answers for load balancers."""

import pytest
from django.contrib.auth.models import User
from django.db.utils import OperationalError
from django.test import Client, RequestFactory

from config.middleware import DomainProblems
from rollouts.errors import OrderRefused, PlanChanged


def test_a_process_that_answers_is_alive_without_its_database(client: Client):
    # No database fixture: a query would fail the test.
    answer = client.get("/livez")

    assert answer.status_code == 200
    assert answer.json() == {"status": "alive"}


@pytest.mark.django_db
def test_a_process_with_a_database_is_ready(client: Client):
    answer = client.get("/readyz")

    assert answer.status_code == 200
    assert answer.json()["status"] == "ready"


def test_a_process_whose_database_is_down_is_not_ready(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    def fail() -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("config.health.connection.cursor", fail)

    answer = client.get("/readyz")

    assert answer.status_code == 503
    assert answer.json()["database"] == "OperationalError"


def test_every_page_says_where_its_scripts_may_come_from(client: Client):
    policy = client.get("/livez").headers["Content-Security-Policy"]

    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert "'self'" in scripts
    assert "'unsafe-inline'" not in scripts
    assert "frame-ancestors 'none'" in policy


@pytest.mark.django_db
def test_the_front_door_leads_to_the_login(client: Client):
    answer = client.get("/", follow=True)

    assert answer.status_code == 200
    assert answer.request["PATH_INFO"] == "/admin/login/"


@pytest.mark.django_db
def test_a_login_that_no_page_asked_for_leads_to_the_home_page(client: Client):
    User.objects.create_user("ana", password="secret", is_staff=True)

    answer = client.post("/admin/login/", {"username": "ana", "password": "secret"})

    assert answer.status_code == 302
    assert answer.headers["Location"] == "/"


def said_on_the_page(error: Exception) -> str:
    pages = DomainProblems(lambda _: None)
    return pages.process_exception(RequestFactory().post("/"), error).content.decode()


def test_a_page_says_what_happened_beside_its_reasons():
    text = said_on_the_page(PlanChanged("fleet changed: 1 added, 0 left", ["added: n9"]))

    assert "fleet changed: 1 added, 0 left" in text
    assert "added: n9" in text


def test_reasons_that_say_it_all_are_not_told_twice():
    text = said_on_the_page(OrderRefused(["wave 1 is over", "wave 2 is not open"]))

    assert text.count("wave 1 is over") == 1
