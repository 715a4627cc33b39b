"""Orders by the pages: who may give which, and what is said when one is refused."""

import pytest
from django.test import Client
from django.urls import reverse

from rollouts import roles
from rollouts.models import Order, Rollout
from tests.factories import make_user
from tests.rollouts import rows
from tests.rollouts.pages import client_of, detail, give, lost, offered

pytestmark = pytest.mark.django_db


def test_an_order_without_its_permission_is_refused():
    rollout = rows.running()
    client, before = client_of(), Order.objects.count()

    for kind in roles.NEEDED:
        assert give(client, rollout, kind, reason="because").status_code == 403, kind
    assert Order.objects.count() == before


def test_an_order_from_another_site_is_refused():
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user(is_superuser=True))

    assert give(client, rows.running(), "halt").status_code == 403


# --- halt ----------------------------------------------------------------------------------------


def test_a_viewer_halts_with_one_click_and_no_words():
    rollout = rows.running()

    response = give(client_of("viewer"), rollout, "halt")

    assert response.status_code == 302
    rollout.refresh_from_db()
    assert rollout.status == "halted"


def test_the_halt_button_is_a_form_of_its_own_without_confirmation():
    page = detail(client_of("viewer"), rows.running())

    assert offered(page) == {"halt"}
    assert "confirm" not in page.lower().split("what happened")[0].split("orders-title")[1]


def test_an_order_is_not_given_by_reading_an_address():
    rollout = rows.running()

    response = client_of("viewer").get(reverse("rollouts:order", args=(rollout.pk, "halt")))

    assert response.status_code == 405
    rollout.refresh_from_db()
    assert rollout.status == "running"


# --- other orders --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "group", "orders"),
    [
        ("draft", "operator", {"submit", "cancel"}),
        ("awaiting_approval", "approver", {"approve", "deny"}),
        ("awaiting_approval", "viewer", set()),
        ("approved", "operator", {"start", "cancel", "exclude"}),
        ("paused", "operator", {"resume", "halt", "roll_back", "cancel", "exclude"}),
        ("halted", "approver", {"override"}),
        ("halted", "viewer", set()),
        ("completed", "operator", {"roll_back"}),
    ],
)
def test_orders_are_offered_by_state_and_permission(status: str, group: str, orders: set[str]):
    rollout = rows.submitted()
    Rollout.objects.filter(pk=rollout.pk).update(status=status)

    assert offered(detail(client_of(group), rollout)) == orders


def test_a_held_wave_offers_to_advance_to_those_who_may_override():
    rollout = rows.running()
    rollout.waves.filter(number=1).update(status="held")

    assert "advance" in offered(detail(client_of("approver"), rollout))
    assert "advance" not in offered(detail(client_of("operator"), rollout))


def test_approval_is_not_offered_to_the_author():
    author = make_user(is_staff=True)
    rollout = rows.submitted(author=author)

    assert "approve" not in offered(detail(client_of("approver", user=author), rollout))


def test_an_author_who_approves_all_the_same_is_told_why_not():
    author = make_user(is_staff=True)
    rollout = rows.submitted(author=author)

    response = give(client_of("approver", user=author), rollout, "approve")

    assert response.status_code == 403
    assert "somebody else has to approve it" in response.content.decode()


def test_an_order_that_the_state_forbids_is_told_in_words():
    response = give(client_of("operator"), rows.draft(), "start")

    assert response.status_code == 409
    assert "a rollout that is draft cannot start" in response.content.decode()


def test_a_denial_without_a_reason_goes_back_to_the_page_with_the_fault():
    rollout = rows.submitted()
    client = client_of("approver")

    response = client.post(reverse("rollouts:order", args=(rollout.pk, "deny")), {}, follow=True)

    assert "reason: This field is required." in response.content.decode()
    rollout.refresh_from_db()
    assert rollout.status == "awaiting_approval"


def test_an_order_that_does_not_exist_is_not_found():
    assert give(client_of("operator"), rows.draft(), "explode").status_code == 404


# --- triage --------------------------------------------------------------------------------------


def test_a_machine_that_did_not_return_is_triaged_on_the_page():
    attempt = lost(rows.running())
    client = client_of("operator")
    address = reverse("rollouts:triage", args=(attempt.rollout_id, attempt.pk))

    page = detail(client, attempt.rollout)
    client.post(address, {"outcome": "coincident_hardware"})

    attempt.refresh_from_db()
    assert f'action="{address}"' in page
    assert attempt.triage == "coincident_hardware"


def test_triage_on_the_page_needs_the_right_to_operate():
    attempt = lost(rows.running())
    address = reverse("rollouts:triage", args=(attempt.rollout_id, attempt.pk))
    client = client_of("viewer")

    assert client.post(address, {"outcome": "recovered"}).status_code == 403
    assert address not in detail(client, attempt.rollout)
