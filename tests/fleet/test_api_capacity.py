"""Capacity, queues, claims, swaps and parts over the API: as pages say it, and refused alike."""

from datetime import timedelta
from typing import Any

import pytest

from fleet import services
from fleet.clock import set_mode
from fleet.lifecycle import Trigger
from fleet.models import Machine, MachineClaim, PartSwap
from tests.factories import NOW, make_bundle, make_image, make_machine, make_machines, make_user
from tests.fleet.test_api import client_of, fields_of
from tests.fleet.test_capacity import OUT, move

pytestmark = pytest.mark.django_db

API = "/api/v1"
DAY = timedelta(days=1)
GPU = {"kind": "gpu", "slot": "3", "serial": "G-old"}
NEW_GPU = {"swaps": [{"kind": "gpu", "slot": "3", "new_serial": "G-new"}]}


@pytest.fixture(autouse=True)
def at_noon():
    set_mode("stepped", at=NOW)


def ask(path: str, *, status: int = 200, **query: Any) -> Any:
    response = client_of("viewer").get(f"{API}/{path}", query)
    assert response.status_code == status, response.json()
    return response.json()


def tell(path: str, body: Any, *groups: str, status: int) -> Any:
    response = client_of(*groups).post(f"{API}/{path}", body, format="json")
    assert response.status_code == status, response.json()
    return response.json()


# --- capacity -----------------------------------------------------------------------------------


def test_the_table_is_served_now_and_as_of_a_time():
    machine, *_ = make_machines(3, pool="a", now=NOW - 5 * DAY)
    make_machine(pool="b", now=NOW - 5 * DAY)
    move(machine, *OUT, at=NOW - DAY)

    now, then = ask("capacity"), ask("capacity", as_of=(NOW - 2 * DAY).isoformat(), pool="a")

    assert [
        (row["pool"], row["installed"], row["in_service"], row["out"]) for row in now["results"]
    ] == [
        ("a", 3, 2, 1),
        ("b", 1, 1, 0),
    ]
    [row] = then["results"]
    assert (row["states"], row["qualified"], row["canary"]) == ({"in_service": 3}, None, None)


def test_days_are_served_with_null_where_nobody_measured():
    make_machine(pool="a", now=NOW - 5 * DAY)
    services.keep_days(now=NOW)

    rows = ask("capacity/history", pool="a")["results"]

    assert [row["qualified"] for row in rows] == [None] * 5 + [1]
    assert rows[-1]["day"] == NOW.date().isoformat()


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("capacity", {"as_of": "2027-01-01T00:00:00Z"}, "as_of"),
        ("capacity", {"as_of": "yesterday"}, "as_of"),
        ("capacity", {"rack": "r1"}, "rack"),
        ("capacity", {"platform": "none"}, "platform"),
        ("capacity/history", {"since": "2025-01-01"}, "since"),
        ("queues", {"days": "0"}, "days"),
        ("queues/trend", {"days": "1000"}, "days"),
        ("claims", {"kind": "colour", "value": "red"}, "kind"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(path: str, query: dict[str, str], field: str):
    response = client_of("viewer").get(f"{API}/{path}", query)

    assert response.status_code == 400
    assert field in fields_of(response)


def test_queues_name_the_bottleneck_and_how_it_was_reckoned():
    first, second = make_machines(2, now=NOW - 10 * DAY)
    move(first, *OUT, at=NOW - 5 * DAY)
    move(first, Trigger.START_REPAIR, at=NOW - 4 * DAY)
    move(second, *OUT, at=NOW - DAY)
    services.keep_days(now=NOW)

    answer = ask("queues")

    row = next(one for one in answer["results"] if one["state"] == "awaiting_repair")
    assert answer["bottleneck"] == "awaiting_repair"
    assert (row["figures"]["median_hours"], row["figures"]["open"], row["goal_hours"]) == (
        24.0,
        1,
        24.0,
    )
    assert row["expected_out"] == pytest.approx(
        row["entered_per_day"] * row["figures"]["mean_hours"] / 24
    )
    [trend] = [one for one in ask("queues/trend")["results"] if one["state"] == "awaiting_repair"]
    assert trend["points"][-1]["waiting"] == 1


def test_the_stays_of_a_machine_are_served():
    machine = make_machine("m1", now=NOW - 2 * DAY)
    move(machine, Trigger.DRAIN, at=NOW - DAY)

    rows = ask("machines/m1/stays")["results"]

    assert [(row["state"], row["hours"]) for row in rows] == [
        ("in_service", 24.0),
        ("draining", 24.0),
    ]
    assert rows[-1]["until"] is None


# --- identity -----------------------------------------------------------------------------------


def test_a_claim_is_made_read_and_found_again_in_any_spelling():
    make_machine("m1")
    claim = {"kind": "mac", "slot": "nic/0", "value": "B8-CE-F6-00-11-22"}

    tell("machines/m1/claims", {"claims": [claim]}, "technician", status=201)

    [held] = ask("machines/m1/claims")["results"]
    assert (held["value"], held["until"], held["others"]) == ("b8:ce:f6:00:11:22", None, [])
    found = ask("claims", kind="mac", value="b8cef6001122")
    assert found["machines"] == ["m1"]
    assert ask("claims/conflicts") == {"results": [], "is_cut": False}


def test_another_machines_claim_is_refused_with_whose_it_is():
    make_machine("m1", serial="S1")
    make_machine("m2")
    body = {"claims": [{"kind": "serial", "value": "S1"}]}

    answer = tell("machines/m2/claims", body, "technician", status=400)

    assert answer["code"] == "claim_refused"
    assert "claimed by m1" in answer["detail"]


@pytest.mark.parametrize("body", [[], ["x"], "x", {"claims": []}, {"claims": [{"kind": 1}]}, {}])
def test_a_body_of_another_shape_is_refused(body: Any):
    make_machine("m1")

    for path in ("claims", "swaps", "swaps/preview"):
        tell(f"machines/m1/{path}", body, "technician", status=400)


def test_what_a_bmc_says_is_written_down_by_a_reporter_and_shown_as_a_conflict():
    make_machine("m1", serial="S1")
    make_machine("m2")
    body = {"claims": [{"kind": "serial", "value": "S1"}], "witness": "bmc"}

    tell("machines/m2/claims", body, "viewer", status=403)
    tell("machines/m2/claims", body | {"witness": "person"}, "reporter", status=403)
    tell("machines/m2/claims", body, "reporter", status=201)

    [conflict] = ask("claims/conflicts")["results"]
    assert (conflict["value"], conflict["machines"]) == ("S1", ["m1", "m2"])


def test_a_swap_is_previewed_done_and_followed():
    make_machine("m1", state="repairing", components=[GPU])

    seen = tell("machines/m1/swaps/preview", NEW_GPU, "technician", status=200)
    assert PartSwap.objects.count() == 0
    made = tell("machines/m1/swaps", NEW_GPU, "technician", status=201)

    assert seen["reasons"] == []
    assert (seen["moves"][0]["old_serial"], made["results"][0]["old_serial"]) == ("G-old", "G-old")
    [stay] = ask("parts/G-new")["results"]
    assert (stay["machine"], stay["slot"], stay["until"]) == ("m1", "3", None)
    assert ask("machines/m1/swaps")["results"][0]["new_serial"] == "G-new"
    assert ask("parts/never%2Fseen")["results"] == []


def test_a_swap_on_a_machine_that_works_is_refused_with_every_reason():
    make_machine("m1", components=[GPU])
    body = {"swaps": [{"kind": "gpu", "slot": "3", "new_serial": "G-new", "old_serial": "G-else"}]}

    answer = tell("machines/m1/swaps", body, "technician", status=409)

    assert answer["code"] == "swap_refused"
    assert len(answer["errors"]) == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("machines/m1/claims", {"claims": [{"kind": "serial", "value": "S1"}]}),
        ("machines/m1/swaps", NEW_GPU),
        ("machines/m1/swaps/preview", NEW_GPU),
    ],
)
def test_identity_is_changed_by_those_who_repair(path: str, body: Any):
    make_machine("m1", state="repairing", components=[GPU])

    tell(path, body, "viewer", status=403)

    assert not MachineClaim.objects.exists()
    assert not PartSwap.objects.exists()


@pytest.mark.parametrize(
    "path", ["capacity", "queues", "machines/m1/claims", "parts/x", "machines/m1/intended"]
)
def test_reading_needs_the_sight_of_machines(path: str):
    make_machine("m1")

    assert client_of().get(f"{API}/{path}").status_code == 403


def test_what_a_machine_is_meant_to_run_comes_with_its_reason():
    machine = make_machine("m1", versions={"bmc": "3.0"}, pool="a")
    bundle = make_bundle(images=[make_image("bmc", "2.0", is_downgrade_allowed=False)])
    services.set_desired_bundle(
        machine.platform, bundle=bundle, actor=make_user(), reason="plan", now=NOW
    )

    answer = ask("machines/m1/intended")

    assert (answer["bundle"], answer["standing"]) == (bundle.pk, "incompatible")
    assert "downgrades are not allowed" in answer["reason"]
    Machine.objects.filter(pk=machine.pk).update(platform=make_machine(platform="other").platform)
    assert ask("machines/m1/intended")["bundle"] is None
