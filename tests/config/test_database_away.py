"""A database that does not answer is told as such: ask again, nothing was done."""

from typing import Any

import pytest
from django.db import InterfaceError, OperationalError
from django.db.backends.utils import CursorWrapper
from django.test import Client
from rest_framework.test import APIClient

from tests.factories import make_user
from tests.fleet.test_api import client_of

pytestmark = pytest.mark.django_db


@pytest.fixture(params=[OperationalError, InterfaceError])
def gone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it, and from then on every statement fails as if the server were away."""

    def fail(*args: Any, **words: Any) -> None:
        raise request.param("server closed the connection unexpectedly")

    return lambda: monkeypatch.setattr(CursorWrapper, "execute", fail)


def test_the_api_answers_503_with_the_time_to_wait(gone: Any):
    client: APIClient = client_of("viewer")
    gone()

    response = client.get("/api/v1/machines")

    assert (response.status_code, response["Retry-After"]) == (503, "5")
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == "database_away"
    assert "server closed" not in response.content.decode()


def test_a_page_answers_503_without_asking_who_is_there(gone: Any):
    client = Client(raise_request_exception=False)
    client.force_login(make_user(is_superuser=True))
    gone()

    response = client.get("/rollouts/")

    assert (response.status_code, response["Retry-After"]) == (503, "5")
    assert "The database does not answer" in response.content.decode()
