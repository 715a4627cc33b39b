"""After an install the firmware gate runs by itself, and a wave's gates are reviewed once."""

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from fleet import services as fleet
from fleet.models import Gate, StateChange
from rollouts.models import Rollout
from rollouts.wave_gates import made_for, wave_gates
from tests.factories import NOW, make_user
from tests.rollouts import rows
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import started

pytestmark = pytest.mark.django_db


def with_gates(rollout: Rollout, *, count: int = 3, is_smoke: bool = False) -> list[Gate]:
    machines = [row.machine for row in rollout.assignments.select_related("machine")[:count]]
    return [
        fleet.open_firmware_gate(
            machine,
            made_for=made_for(rollout=rollout.pk, wave=1),
            bundle=rollout.bundle,
            why="read back",
            found={name: fleet.Found(0.0, "read back") for name in ("versions", "parts", "faults")},
            is_smoke=is_smoke,
            actor=rollout.actor,
            now=NOW,
        )
        for machine in machines
    ]


def api_of(user, *groups: str) -> APIClient:
    user.groups.set(Group.objects.filter(name__in=groups))
    client = APIClient()
    client.force_authenticate(user)
    return client


def review(client: APIClient, rollout: Rollout):
    path = f"/api/v1/rollouts/{rollout.pk}/waves/1/review-gates"
    return client.post(path, {"reason": "versions agree"}, format="json")


def test_the_author_reviews_a_waves_gates_with_one_call():
    rollout = rows.running()
    with_gates(rollout)

    answer = review(api_of(rollout.author, "operator"), rollout)
    again = review(api_of(rollout.author, "operator"), rollout)

    assert answer.json() == {"accepted": 3, "void": 0}
    assert (again.status_code, again.json()["code"]) == (409, "illegal_gate_move")
    assert wave_gates(rollout)[0].counts == {"passed": 3}


def test_another_operator_does_not_review_them():
    rollout = rows.running()
    with_gates(rollout)

    answer = review(api_of(make_user(), "operator"), rollout)

    assert (answer.status_code, answer.json()["code"]) == (403, "same_hands")


def test_a_viewer_sees_how_they_stand_and_reviews_none():
    rollout = rows.running()
    with_gates(rollout)
    viewer = api_of(make_user(), "viewer")

    shown = viewer.get(f"/api/v1/rollouts/{rollout.pk}/gates").json()

    assert shown[0]["counts"] == {"awaiting_review": 3}
    assert review(viewer, rollout).status_code == 403


def page_of(rollout: Rollout) -> tuple[Client, str]:
    client = Client()
    rollout.author.groups.set(Group.objects.filter(name="operator"))
    client.force_login(rollout.author)
    return client, reverse("rollouts:gates", args=[rollout.pk])


def test_an_owner_accepts_a_waves_gates_with_one_click():
    rollout = rows.running()
    with_gates(rollout)
    client, path = page_of(rollout)

    offered = client.get(path).content.decode()
    told = client.get(reverse("rollouts:detail", args=[rollout.pk])).content.decode()
    answer = client.post(path, {"wave": 1, "reason": "versions agree"})

    assert "Accept 3 gates" in offered
    assert "3 wait for their review" in told
    assert answer.status_code == 302
    assert set(Gate.objects.values_list("status", flat=True)) == {"passed"}


def test_a_smoke_waves_gates_wait_for_their_drill_and_the_page_says_whose():
    rollout = rows.running()
    gates = with_gates(rollout, is_smoke=True)
    client, path = page_of(rollout)

    shown = client.get(path).content.decode()

    assert "Accept" not in shown
    assert all(gate.machine.name in shown for gate in gates)
    assert review(api_of(rollout.author, "operator"), rollout).status_code == 409


# --- made by an attempt ---------------------------------------------------------------------------


def test_a_machine_that_a_rollout_gives_back_returns_by_the_gate_of_what_was_read(
    fake_fleet: FakeFleet, driver: Driver
):
    rollout = started(fake_fleet, machines=20)

    driver.run(rollout, hours=6)

    attempt = rollout.attempts.filter(status="succeeded").first()
    gate = Gate.objects.get(machine=attempt.machine)
    shown = {check.name: check.results.get() for check in gate.checks.all()}
    back = StateChange.objects.filter(machine=attempt.machine, trigger="return").get()
    assert (gate.made_for, gate.status) == (f"rollout:{rollout.pk}/wave:1", "awaiting_review")
    assert {"versions", "parts", "faults", "boots"} == set(shown)
    assert all(result.is_passed for result in shown.values())
    assert shown["versions"].note == "the intended versions, 3 times by bmc: bmc 2.0"
    assert (back.gate_record, gate.bundle) == (gate, rollout.bundle)


def test_an_attempt_that_fails_opens_no_gate(fake_fleet: FakeFleet, driver: Driver):
    rollout = started(fake_fleet, machines=20)
    fake_fleet.behaviour = {f"r{number:04}": "reject" for number in range(20)}

    driver.run(rollout, hours=6)

    assert rollout.attempts.filter(status="rejected").exists()
    assert not Gate.objects.exists()
