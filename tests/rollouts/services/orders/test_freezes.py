"""Site-wide freezes: who may set and lift them, by API and admin, and what each refuses."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from fleet import clock
from rollouts import services
from rollouts.errors import OrderRefused
from rollouts.models import Freeze
from tests.factories import NOW, make_user

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def member(group: str) -> User:
    user = make_user(is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    return user


def api(group: str) -> APIClient:
    client = APIClient()
    client.force_authenticate(member(group))
    return client


def body(**changes: object) -> dict[str, object]:
    now = clock.now()
    return {
        "start": now.isoformat(),
        "end": (now + HOUR).isoformat(),
        "reason": "peak season",
        **changes,
    }


def test_a_freeze_without_length_future_or_reason_is_refused_with_every_reason():
    with pytest.raises(OrderRefused) as refused:
        services.set_freeze(
            start=NOW - HOUR, end=NOW - 2 * HOUR, reason=" ", author=make_user(), now=NOW
        )

    assert refused.value.reasons == [
        "it ends 2026-03-02 10:00 UTC, not after it begins, 2026-03-02 11:00 UTC",
        "it holds nobody: it ended 2026-03-02 10:00 UTC, and it is 2026-03-02 12:00 UTC",
        "it needs a reason, which everybody who waits is shown",
    ]


def test_lifting_twice_keeps_who_lifted_it_first():
    freeze = services.set_freeze(
        start=NOW, end=NOW + HOUR, reason="peak", author=make_user(), now=NOW
    )
    ann, bob = make_user(), make_user()

    services.lift_freeze(freeze, actor=ann, now=NOW)
    services.lift_freeze(freeze, actor=bob, now=NOW + HOUR)

    assert (freeze.lifted_by, freeze.lifted_at) == (ann, NOW)


def test_whoever_may_halt_may_freeze_but_not_lift():
    viewer = api("viewer")

    made = viewer.post("/api/v1/freezes", body(sites=["ams"]), format="json")
    lifted = viewer.post(f"/api/v1/freezes/{made.data['id']}/lift", {}, format="json")

    assert (made.status_code, lifted.status_code) == (201, 403)
    assert Freeze.objects.get().sites == ["ams"]


def test_an_operator_lifts_and_lists_them():
    operator = api("operator")
    made = operator.post("/api/v1/freezes", body(), format="json")

    lifted = operator.post(f"/api/v1/freezes/{made.data['id']}/lift", {}, format="json")
    standing = operator.get("/api/v1/freezes?is_lifted=false")

    assert lifted.data["lifted_by"] == Freeze.objects.get().author.username
    assert standing.data["results"] == []


@pytest.mark.parametrize(
    ("changes", "status", "named"),
    [
        ({"reason": ""}, 400, "reason"),
        ({"site": ["ams"]}, 400, "sites"),
        ({"lifted_at": None}, 400, "lifted_at"),
        ({"end": "2020-01-01T00:00:00Z"}, 409, "it holds nobody"),
    ],
)
def test_a_freeze_that_makes_no_sense_is_refused(changes, status, named):
    answer = api("operator").post("/api/v1/freezes", body(**changes), format="json")

    assert answer.status_code == status
    assert named in answer.content.decode()
    assert not Freeze.objects.exists()


def form(**changes: str) -> dict[str, str]:
    soon = clock.now() + HOUR
    return {
        "reason": "peak",
        "start_0": "2020-01-01",
        "start_1": "00:00",
        "end_0": f"{soon:%Y-%m-%d}",
        "end_1": f"{soon:%H:%M}",
        "sites": "[]",
        "pools": "[]",
        **changes,
    }


def test_the_admin_sets_and_lifts_a_freeze_as_the_service_does():
    client, operator = Client(), member("operator")
    client.force_login(operator)

    client.post(reverse("admin:rollouts_freeze_add"), form(pools='["train"]'))
    freeze = Freeze.objects.get()
    client.post(
        reverse("admin:rollouts_freeze_changelist"),
        {"action": "lift", "_selected_action": [freeze.pk]},
    )

    freeze.refresh_from_db()
    assert (freeze.author, freeze.pools, freeze.lifted_by) == (operator, ["train"], operator)


def test_the_admin_shows_what_the_service_would_refuse():
    client = Client()
    client.force_login(member("operator"))

    past = client.post(
        reverse("admin:rollouts_freeze_add"), form(end_0="2020-01-02", sites='{"a": 1}')
    )

    assert "it holds nobody" in past.content.decode()
    assert "a list of names" in past.content.decode()
    assert not Freeze.objects.exists()
