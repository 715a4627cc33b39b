"""Bodies and addresses that nobody means: refused with a reason, never an error of the server."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from rest_framework.test import APIClient
from rest_framework.validators import UniqueTogetherValidator, UniqueValidator

from config.api import foreseen
from rollouts.models import Rollout
from tests.factories import NOW, make_user
from tests.rollouts import rows

pytestmark = pytest.mark.django_db

DIGITS = "9" * 5000
FREEZE = {"start": "2026-12-20T00:00:00Z", "end": "2026-12-27T00:00:00Z", "reason": "peak"}


@pytest.fixture
def client() -> APIClient:
    client = APIClient()
    client.force_authenticate(make_user(is_superuser=True))
    return client


def refused(response: Any) -> str:
    assert response.status_code == 400, response.content
    return str(response.json()["detail"])


@pytest.mark.parametrize("levels", [65, 5000])
def test_a_body_that_is_nested_beyond_all_reason_is_refused(client: APIClient, levels: int):
    body = "[" * levels + "]" * levels

    response = client.post("/api/v1/changes", body, content_type="application/json")

    assert "nested in each other beyond 64 levels" in refused(response)


def test_a_refusal_can_repeat_half_of_a_surrogate_pair(client: APIClient):
    body = '{"kind": "bmc", "version": "1", "activation": "\\ud800"}'

    response = client.post("/api/v1/images", body, content_type="application/json")

    assert '"\ud800" is not known; accepted: ' in refused(response)


def test_a_word_that_is_not_known_is_answered_with_those_that_are(client: APIClient):
    body = {"kind": "bmc", "version": "1", "activation": "rebot"}

    response = client.post("/api/v1/images", body, format="json")

    assert "\"rebot\" is not known; did you mean 'reboot'? accepted: ac_cycle, by_hand" in refused(
        response
    )


@pytest.mark.parametrize("path", ["machines", f"rollouts/1/previews/{'0' * 64}/machines"])
def test_a_page_size_of_thousands_of_digits_is_refused(client: APIClient, path: str):
    rows.draft()

    response = client.get(f"/api/v1/{path}", {"page_size": DIGITS})

    assert "is not a whole number from 1 to 1000" in refused(response)


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("changes", {"until": "0001-01-01T00:00:00Z"}),
        ("suspects", {"signature": "xid.*", "since": "0001-01-01T00:00:00Z"}),
        ("changes", {"since": "9999-12-31T23:00:00Z"}),
    ],
)
def test_a_time_at_the_end_of_the_calendar_is_refused(
    client: APIClient, path: str, query: dict[str, str]
):
    assert "is not in the years from 1970 to 2199" in refused(client.get(f"/api/v1/{path}", query))


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("goodput", {"until": "0001-01-01"}),
        ("goodput", {"since": "9999-12-01", "until": "9999-12-31"}),
        ("capacity/history", {"until": "0001-01-01"}),
        ("incidents", {"opened_after": "9999-12-31T23:59:59-23:00"}),
        ("impacts", {"fault_before": "0001-01-01T00:00:00+23:00"}),
    ],
)
def test_a_day_at_the_end_of_the_calendar_is_refused(
    client: APIClient, path: str, query: dict[str, str]
):
    reason = refused(client.get(f"/api/v1/{path}", query))

    assert "is not in those from 1970 to 2199" in reason


def test_a_list_is_not_narrowed_by_a_time_without_zone(client: APIClient):
    response = client.get("/api/v1/incidents", {"opened_after": "2026-03-02T10:00:00"})

    assert "has no zone" in refused(response)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("2026-12-27T00:00:00", "has no zone"),
        ("9999-12-31T23:59:59Z", "is not in the years from 1970 to 2199"),
    ],
)
def test_a_freeze_ends_at_a_time_that_there_is(client: APIClient, end: str, reason: str):
    response = client.post("/api/v1/freezes", {**FREEZE, "end": end})

    assert reason in refused(response)


@pytest.mark.parametrize("path", ["", "/history", "/versions", "/explanation"])
def test_a_machine_with_a_nul_in_its_name_does_not_exist_and_breaks_nothing(
    client: APIClient, path: str
):
    response = client.get(f"/api/v1/machines/a%00b{path}")

    assert response.status_code in (400, 404), response.content  # by what the database takes


def test_a_platform_with_a_nul_in_its_name_is_refused(client: APIClient):
    body = {"name": "b", "version": "1", "platforms": ["a\x00b"], "images": []}

    refused(client.post("/api/v1/bundles", body))


def test_a_page_about_a_machine_with_a_nul_in_its_name_breaks_nothing():
    pages = Client(raise_request_exception=False)
    pages.force_login(make_user(is_superuser=True, is_staff=True))

    assert pages.get("/firmware/machines/a%00b/").status_code in (400, 404)


# --- two people at the same moment ---------------------------------------------------------------


@pytest.fixture
def nobody_has_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it looks to whoever asks right before somebody else writes."""
    monkeypatch.setattr(UniqueValidator, "__call__", lambda *args: None)


def test_of_two_drafts_of_one_name_at_the_same_moment_the_second_is_a_conflict(
    client: APIClient, nobody_has_the_name: None
):
    first = rows.draft()
    body = {"name": first.name, "bundle": first.bundle_id, "selector": first.selector}

    response = client.post("/api/v1/rollouts", body)

    assert (response.status_code, response.json()["code"]) == (409, "taken")
    assert "nothing was done, ask again" in response.json()["detail"]
    assert Rollout.objects.count() == 1


def test_of_two_images_of_one_version_at_the_same_moment_the_second_is_refused(
    client: APIClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(UniqueTogetherValidator, "__call__", lambda *args: None)
    bodies = [{"kind": "bmc", "version": "1"}] * 2

    first, second = (client.post("/api/v1/images", body) for body in bodies)

    assert first.status_code == 201
    assert "already exists" in refused(second)


def test_a_constraint_that_is_broken_by_a_bug_stays_an_error():
    with pytest.raises(IntegrityError) as caught, transaction.atomic():
        Rollout.objects.create(name="no author", plan={}, created_at=NOW)

    assert foreseen(caught.value) is caught.value
