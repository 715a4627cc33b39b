"""The operators' pages: who gets in, what they show, and the orders they give."""

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse

from fleet.models import Machine
from rollouts import roles
from rollouts.models import Order, Rollout, Wave
from tests.factories import NOW, make_machine, make_user
from tests.rollouts import rows

pytestmark = pytest.mark.django_db


def client_of(*groups: str, user: Any = None) -> Client:
    user = user or make_user(is_staff=True)
    user.groups.set(Group.objects.filter(name__in=groups))
    client = Client()
    client.force_login(user)
    return client


def detail(client: Client, rollout: Rollout) -> str:
    response = client.get(reverse("rollouts:detail", args=(rollout.pk,)))
    assert response.status_code == 200
    return response.content.decode()


def give(client: Client, rollout: Rollout, kind: str, **words: str) -> Any:
    return client.post(reverse("rollouts:order", args=(rollout.pk, kind)), words)


def offered(page: str) -> set[str]:
    return set(re.findall(r'action="/rollouts/\d+/orders/(\w+)"', page))


# --- who -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["rollouts:home", "rollouts:index"])
def test_a_page_asks_for_a_login(route: str):
    response = Client().get(reverse(route))

    assert response.status_code == 302
    assert "/admin/login/" in response["Location"]


@pytest.mark.parametrize("route", ["rollouts:home", "rollouts:index"])
def test_an_account_without_a_group_sees_no_page(route: str):
    assert client_of().get(reverse(route)).status_code == 403


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


def test_a_poll_after_the_sessions_end_asks_for_a_reload_not_for_a_login_inside_the_page():
    rollout = rows.draft()

    response = Client().get(reverse("rollouts:part", args=(rollout.pk, "head")))

    assert response.status_code == 401
    assert response["HX-Refresh"] == "true"


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


# --- what a page shows ---------------------------------------------------------------------------


def test_a_rollout_page_shows_reason_verdicts_and_drawings():
    rollout = rows.running()
    rows.look(rollout.waves.first(), kind="halt", code="harmful", reason="harmful: faults:xid.*")

    page = detail(client_of("viewer"), rollout)

    assert "harmful: faults:xid.*" in page
    assert 'role="status"' in page
    assert page.count('<svg class="cm-bar"') == 3  # install has nothing to draw
    assert {"harmful", "not_worse", "inconclusive", "no_data"} <= set(
        re.findall(r'data-tone="(\w+)"', page)
    )


def test_an_approver_sees_the_plan_and_the_digest_that_the_approval_signs():
    rollout = rows.submitted()

    page = detail(client_of("approver"), rollout)

    assert f"Frozen under {rollout.plan_digest}" in page
    assert "&quot;hold_back&quot;: 0.1" in page


def test_only_the_last_judged_wave_is_unfolded():
    rollout = rows.running()
    for wave in rollout.waves.all():
        rows.look(wave)

    page = detail(client_of("viewer"), rollout)

    assert re.findall(r'id="wave-(\d)"( open)?', page) == [("1", ""), ("2", " open")]


def test_text_from_outside_is_shown_as_text():
    rollout = rows.running(name="<script>alert(1)</script>")
    rows.look(rollout.waves.first(), reason="<img src=x onerror=alert(1)>")

    page = detail(client_of("viewer"), rollout)

    assert "<script>alert(1)" not in page
    assert "<img src=x" not in page


def test_no_page_carries_a_script_of_its_own():
    page = detail(client_of("operator"), rows.running())

    assert not re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", page)
    assert not re.findall(r"\son(click|load|error)=", page)


def test_a_page_is_allowed_scripts_of_this_host_only():
    response = client_of("viewer").get("/")

    assert "script-src 'self' 'unsafe-eval'" in response["Content-Security-Policy"]
    assert (
        "script-src 'self' 'unsafe-eval' 'unsafe-inline'" not in response["Content-Security-Policy"]
    )


@pytest.mark.parametrize("name", ["head", "orders", "evidence"])
def test_a_part_that_did_not_change_is_not_sent_again(name: str):
    rollout = rows.running()
    client = client_of("operator")
    address = re.search(rf'hx-get="([^"]*/parts/{name}\?[^"]*)"', detail(client, rollout)).group(1)

    before = client.get(address)
    rows.look(rollout.waves.first())
    Rollout.objects.filter(pk=rollout.pk).update(status="paused")
    after = client.get(address)

    assert before.status_code == 204
    assert after.status_code == 200
    assert f'id="part-{name}"' in after.content.decode()


def test_a_part_that_does_not_exist_is_not_found():
    rollout = rows.draft()

    address = reverse("rollouts:part", args=(rollout.pk, "bogus"))

    assert client_of("viewer").get(address).status_code == 404


@pytest.mark.parametrize("looks", [1, 10])
def test_a_rollout_page_takes_the_same_statements_however_many_looks(
    looks: int, django_assert_max_num_queries
):
    rollout = rows.running()
    rollout.waves.update(started_at=NOW)
    for number in range(1, looks + 1):
        rows.look(rollout.waves.first(), number)
    client = client_of("viewer")

    with django_assert_max_num_queries(48):
        detail(client, rollout)


def test_a_rollout_page_takes_the_same_statements_however_many_waves(
    django_assert_max_num_queries,
):
    rollout = rows.running()
    for number in range(3, 9):
        wave = Wave.objects.create(
            rollout=rollout, number=number, size=4, window_hours=48, status="observing"
        )
        rows.look(wave)
    rollout.waves.update(started_at=NOW)
    client = client_of("viewer")

    with django_assert_max_num_queries(48):
        detail(client, rollout)


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


def lost(rollout: Rollout) -> Any:
    wave = rollout.waves.first()
    return rollout.attempts.create(
        wave=wave,
        block=wave.blocks.create(number=9),
        machine=rollout.assignments.first().machine,
        number=9,
        epoch=0,
        targets=[],
        status="never_returned",
        created_at=NOW,
    )


# --- before the start ----------------------------------------------------------------------------


def test_an_approver_reads_what_each_wave_can_decide():
    page = detail(client_of("viewer"), rows.submitted())

    assert "What each wave can decide" in page
    assert "unknown: no report of the period before" in page
    assert "not expected to widen by itself: faults:xid.*, throughput may not be shown" in page


def test_a_draft_has_no_forecast_yet():
    assert "What each wave can decide" not in detail(client_of("viewer"), rows.draft())


def test_a_look_shows_the_purity_of_its_jobs_and_all_waves_stand_together():
    rollout = rows.running()
    first = rollout.waves.get(number=1)
    first.forecast |= {"canaries": 4, "controls": 16}
    first.save()
    second = Wave.objects.create(
        rollout=rollout,
        number=9,
        size=4,
        window_hours=48,
        status="observing",
        forecast={"canaries": 4, "controls": 12},
    )
    for wave in (first, second):
        seen = rows.seen("throughput", "throughput", details={"harm_z": 1.25})
        rows.look(wave, guardrails=[seen], purity=0.875)

    page = " ".join(detail(client_of("viewer"), rollout).split())

    assert "purity 88 %: exposure in jobs whose machines are all in one arm" in page
    assert "All waves together" in page
    assert "wave 1: 1.25, wave 9: 1.25" in page
