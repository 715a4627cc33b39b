"""Machines on their way out and back, over REST: who may order what, and what is refused."""

from datetime import timedelta

import pytest

from fleet import clock, services
from fleet.lifecycle import State, Trigger
from fleet.models import BreakGlass, Cordon, Machine, TakeOut, Team
from tests.factories import NOW, make_machine, make_user
from tests.fleet.test_api import client_of, fields_of

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def now():
    clock.set_mode("stepped", at=NOW)


def address(machine: Machine, order: str) -> str:
    return f"/api/v1/machines/{machine.name}/{order}"


def waiting(**fields) -> Machine:
    machine = make_machine(**fields)
    services.move_machine(machine, Trigger.TAKE_OUT, actor="test", now=NOW)
    return machine


ORDERS = {
    "take-out": {"reason": "smells"},
    "diagnose-again": {"reason": "failed twice"},
    "take": {},
    "hand-over": {},
    "cordon": {"reason": "noise"},
    "lift": {"reason": "noise"},
    "break-glass": {"reason": "launch", "until": "2026-03-02T18:00:00Z"},
}


@pytest.mark.parametrize("order", ORDERS)
def test_no_order_is_given_by_somebody_who_may_only_look(order):
    machine = waiting()

    response = client_of("viewer").post(address(machine, order), ORDERS[order])

    assert response.status_code == 403
    assert Machine.objects.get(pk=machine.pk).state == State.AWAITING_DIAGNOSIS


@pytest.mark.parametrize("order", ORDERS)
def test_an_unknown_field_is_refused_by_name(order):
    machine = waiting()

    body = {**ORDERS[order], "state": "in_service"}
    response = client_of("operator").post(address(machine, order), body)

    assert response.status_code == 400
    assert fields_of(response) == {"state": "unknown_field"}


def test_a_technician_takes_a_machine_out_and_the_order_is_answered():
    machine = make_machine()

    response = client_of("technician").post(
        address(machine, "take-out"), {"reason": "smells", "at_once": True}
    )

    assert response.status_code == 201
    answer = response.json()
    assert (answer["state"], answer["is_at_once"]) == ("awaiting_diagnosis", True)
    assert TakeOut.objects.get().user is not None


def test_what_is_out_already_is_refused_with_a_stable_code():
    response = client_of("technician").post(address(waiting(), "take-out"), {"reason": "again"})

    assert response.status_code == 409
    assert response.json()["code"] == "take_out_refused"


def test_a_machine_is_taken_handed_over_and_refused_to_a_third():
    machine = waiting()
    ann, bob = client_of("technician"), client_of("technician")

    assert ann.post(address(machine, "take"), {}).status_code == 201
    refused = bob.post(address(machine, "take"), {})
    handed = ann.post(
        address(machine, "hand-over"), {"person": bob.user.username, "word": "look at slot 3"}
    )

    assert (refused.status_code, refused.json()["code"]) == (409, "machine_held")
    assert handed.json()["new_person"] == bob.user.username
    assert bob.get("/api/v1/machines?mine=true").json()["results"][0]["name"] == machine.name
    assert ann.get("/api/v1/machines?mine=true").json()["results"] == []
    course = bob.get(address(machine, "course")).json()
    assert [one["word"] for one in course["hand_overs"]] == ["", "look at slot 3"]
    assert course["changes"][-1]["new_state"] == "diagnosing"


def test_my_teams_machines_are_mine_until_somebody_else_has_them_in_hand():
    client = client_of("technician")
    team = Team.objects.create(name="triage")
    team.members.add(client.user, make_user("cem"))
    machine = waiting()
    Machine.objects.filter(pk=machine.pk).update(owner_team=team)

    mine = client.get("/api/v1/machines?mine=true").json()["results"]
    assert [(one["name"], one["owner_team"]) for one in mine] == [(machine.name, "triage")]

    services.take(machine, user=team.members.get(username="cem"), now=NOW)
    assert client.get("/api/v1/machines?mine=true").json()["results"] == []
    assert client.get("/api/v1/machines?held_by=cem").json()["results"][0]["name"] == machine.name


def test_cordons_stand_by_owner_and_reason_and_nobody_lifts_anothers():
    machine = make_machine()
    ann, bob = client_of("operator"), client_of("operator")
    ann.post(address(machine, "cordon"), {"reason": "waiting for vendor"})
    bob.post(address(machine, "cordon"), {"reason": "noise"})

    stranger = bob.post(address(machine, "lift"), {"reason": "waiting for vendor"})
    lifted = bob.post(address(machine, "lift"), {"reason": "noise"})

    assert (stranger.status_code, stranger.json()["code"]) == (409, "cordon_stands")
    assert lifted.json()["lifted_by"] == bob.user.username
    assert not Machine.objects.get(pk=machine.pk).may_take_work
    listed = bob.get("/api/v1/cordons?is_standing=true").json()["results"]
    assert [(one["owner"], one["reason"]) for one in listed] == [
        (ann.user.username, "waiting for vendor")
    ]
    by_owner = bob.get(f"/api/v1/cordons?owner={bob.user.username}").json()["results"]
    assert [one["reason"] for one in by_owner] == ["noise"]


def test_a_machine_whose_checks_failed_is_sent_to_be_diagnosed_again():
    machine, client = make_machine(state=State.VALIDATION_FAILED), client_of("technician")

    made = client.post(address(machine, "diagnose-again"), {"reason": "failed twice"})
    again = client.post(address(machine, "diagnose-again"), {"reason": "failed twice"})

    assert (made.status_code, made.json()["new_state"]) == (201, "awaiting_diagnosis")
    assert (again.status_code, again.json()["code"]) == (409, "illegal_machine_move")
    assert (
        "is awaiting_diagnosis; accepted: one that is validation_failed" in again.json()["detail"]
    )


def test_who_misspells_a_cordon_is_told_which_stand():
    machine = make_machine()
    services.cordon(machine, owner="ann", reason="waiting for vendor", now=NOW)

    response = client_of("operator").post(address(machine, "lift"), {"reason": "wating"})

    assert response.status_code == 404
    told = response.json()["detail"]
    assert "says 'wating'; standing: 'waiting for vendor' of ann" in told


def test_a_cordon_that_does_not_stand_is_not_found():
    response = client_of("operator").post(address(make_machine(), "lift"), {"reason": "noise"})

    assert response.status_code == 404
    assert not Cordon.objects.exists()


def test_a_broken_glass_is_reviewed_by_a_reviewer_once_it_is_over():
    machine = waiting()
    until = {"reason": "launch", "until": "2026-03-02T18:00:00Z"}
    made = client_of("operator").post(address(machine, "break-glass"), until)
    assert made.status_code == 201
    review = f"/api/v1/break-glass/{made.json()['id']}/review"
    reviewer = client_of("reviewer")

    early = reviewer.post(review, {"word": "fine"})
    services.end_break_glasses(now=NOW + 7 * HOUR)
    done = reviewer.post(review, {"word": "fine"})

    assert (early.status_code, early.json()["code"]) == (409, "break_glass_refused")
    assert done.json()["reviewer"] == reviewer.user.username
    assert client_of("technician").post(review, {"word": "me too"}).status_code == 403
    open_ones = reviewer.get("/api/v1/break-glass?is_reviewed=false").json()["results"]
    assert open_ones == []


def test_whoever_broke_it_does_not_review_it():
    both = client_of("operator", "reviewer")
    both.post(address(waiting(), "break-glass"), {"reason": "x", "until": "2026-03-02T18:00:00Z"})
    glass = BreakGlass.objects.get()
    services.end_break_glasses(now=NOW + 7 * HOUR)

    response = both.post(f"/api/v1/break-glass/{glass.pk}/review", {"word": "fine"})

    assert (response.status_code, response.json()["code"]) == (403, "self_approval")


def test_notices_that_stand_are_listed_by_kind_and_machine():
    machine = make_machine()
    services.raise_notice(machine, "gate_bypassed", "job-1 runs on it", now=NOW)
    services.raise_notice(make_machine(), "overdue", "late", now=NOW)
    client = client_of("viewer")

    by_kind = client.get("/api/v1/notices?kind=gate_bypassed&is_standing=true").json()["results"]
    by_machine = client.get(f"/api/v1/notices?machine={machine.name}").json()["results"]

    assert [one["said"] for one in by_kind] == ["job-1 runs on it"]
    assert by_kind == by_machine
    assert client.get("/api/v1/notices?knid=x").status_code == 400
