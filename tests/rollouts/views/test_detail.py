"""One rollout's page: what it shows, and its parts that are asked for again."""

import re

import pytest
from django.test import Client
from django.urls import reverse

from rollouts.models import Rollout, Wave
from tests.factories import NOW
from tests.rollouts import rows
from tests.rollouts.pages import client_of, detail

pytestmark = pytest.mark.django_db


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


def test_a_poll_after_the_sessions_end_asks_for_a_reload_not_for_a_login_inside_the_page():
    rollout = rows.draft()

    response = Client().get(reverse("rollouts:part", args=(rollout.pk, "head")))

    assert response.status_code == 401
    assert response["HX-Refresh"] == "true"


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
