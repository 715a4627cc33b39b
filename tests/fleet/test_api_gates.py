"""Gates over REST: automation claims and reports, people review, plans get versions."""

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.files.uploadedfile import SimpleUploadedFile
from rest_framework.test import APIClient

from fleet import clock, services
from fleet.models import CheckResult, GatePlan
from tests.factories import NOW, make_gate, make_machine, make_user, read_gate, run_checks

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def the_clock_stands_still():
    clock.set_mode("stepped", at=NOW)


def client_of(*groups: str) -> APIClient:
    user = make_user()
    user.groups.set(Group.objects.filter(name__in=groups))
    client = APIClient()
    client.force_authenticate(user)
    client.user = user
    return client


def read_back_gate(**fields: Any):
    return read_gate(make_gate(make_machine(versions={"bmc": "4.1"}), **fields))


def check_of(gate, name="settings"):
    return gate.checks.get(name=name)


def claim(client, check, **body):
    return client.post(f"/api/v1/gate-checks/{check.pk}/claim", body, format="json")


def report(client, check, **body):
    told = {"value": 0, "unit": check.unit, "reference": "log", "key": "run-1"} | body
    return client.post(f"/api/v1/gate-checks/{check.pk}/report", told, format="json")


def test_automation_finds_claims_and_reports_a_check():
    client, gate = client_of("technician"), read_back_gate()

    waiting = client.get("/api/v1/gate-checks", {"is_waiting": "true", "gate": gate.pk}).json()
    token = claim(client, check_of(gate), actor="runner 7").json()["claim_token"]
    answer = report(client, check_of(gate), token=token)

    names = {one["name"] for one in waiting["results"]}
    assert names == {"settings", "dcgm_r2", "nccl_loopback"}
    assert answer.status_code == 201
    assert answer.json()["is_passed"] is True


def test_a_file_that_proves_a_result_is_kept_with_it():
    client, gate = client_of("technician"), read_back_gate()
    check = check_of(gate)
    token = claim(client, check).json()["claim_token"]
    file = SimpleUploadedFile("run.log", b"all fine\n")

    answer = client.post(
        f"/api/v1/gate-checks/{check.pk}/report",
        {"token": token, "key": "k", "value": "0", "unit": "settings", "files": [file]},
        format="multipart",
    )

    assert answer.status_code == 201
    assert CheckResult.objects.get(pk=answer.json()["id"]).evidence.get().name == "run.log"


def test_only_the_claims_own_answer_shows_its_token():
    client, gate = client_of("technician"), read_back_gate()
    claim(client, check_of(gate))

    shown = client.get(f"/api/v1/gate-checks/{check_of(gate).pk}").json()

    assert "claim_token" not in shown


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"token": "0" * 32}, 409, "check_claimed"),
        ({"unit": "GB/s"}, 400, "check_refused"),
        ({"value": "NaN"}, 400, "invalid"),
        ({"value": "high"}, 400, "invalid"),
        ({"note": "a\u202eb"}, 400, "check_refused"),
        ({"colour": "red"}, 400, "invalid"),
    ],
)
def test_a_result_that_cannot_be_taken_is_refused(body, status, code):
    client, gate = client_of("technician"), read_back_gate()
    token = claim(client, check_of(gate)).json()["claim_token"]

    answer = report(client, check_of(gate), **{"token": token, **body})

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not check_of(gate).results.exists()


def test_a_check_out_of_order_is_refused_with_what_comes_first():
    client, gate = client_of("technician"), read_back_gate()

    answer = claim(client, check_of(gate, "dcgm_r2"))

    assert (answer.status_code, answer.json()["code"]) == (400, "check_refused")
    assert "first needs settings" in answer.json()["detail"]


def test_a_result_for_a_closed_gate_is_refused_with_the_allowed_moves():
    client, gate = client_of("technician"), read_back_gate()
    token = claim(client, check_of(gate)).json()["claim_token"]
    report(client, check_of(gate), token=token, value=3)

    answer = claim(client, check_of(gate, "dcgm_r2"))

    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_gate_move")
    assert "possible: none" in answer.json()["detail"]


def test_a_review_needs_its_own_right_and_says_who_it_was():
    gate = run_checks(read_back_gate(kind="host_part_swap"))
    run_checks(gate, now=gate.observe_until)
    read_gate(gate, now=gate.observe_until)
    services.end_observations(now=gate.observe_until)
    clock.step_to(gate.observe_until)
    path, body = f"/api/v1/gates/{gate.pk}/review", {"is_accepted": True, "reason": "fine"}

    refused = client_of("technician").post(path, body, format="json")
    reviewer = client_of("reviewer")
    answer = reviewer.post(path, body, format="json")

    assert refused.status_code == 403
    assert (answer.json()["status"], answer.json()["reviewer"]) == (
        "passed",
        reviewer.user.get_username(),
    )


def test_a_gate_tells_what_is_missing_and_what_is_possible():
    gate = make_gate(make_machine(versions={"bmc": "4.1"}))

    shown = client_of("viewer").get(f"/api/v1/gates/{gate.pk}").json()

    assert shown["possible"] == ["observe", "to_review", "fail", "void"]
    assert any("read-back" in word for word in shown["missing"])


def test_gates_are_listed_by_filters_and_unknown_ones_are_refused():
    client, gate = client_of("viewer"), read_back_gate()

    found = client.get("/api/v1/gates", {"is_unfinished": "true", "kind": "gpu_reset"}).json()
    refused = client.get("/api/v1/gates", {"sttus": "open"})

    assert [one["id"] for one in found["results"]] == [gate.pk]
    assert refused.status_code == 400


def test_a_plan_gets_a_version_by_who_may_and_conformance_stays_in_it():
    shipped = GatePlan.objects.get(kind="thermal", level=0)
    body = {
        "kind": "thermal",
        "title": "Ours",
        "checks": shipped.checks,
        "workload": "ours",
        "observation_hours": 12,
        "review": "human",
    }

    refused = client_of("operator").post("/api/v1/gate-plans", body, format="json")
    made = client_of("approver").post("/api/v1/gate-plans", body, format="json")
    lacking = client_of("approver").post(
        "/api/v1/gate-plans", {**body, "checks": shipped.checks[1:]}, format="json"
    )

    assert refused.status_code == 403
    assert (made.status_code, made.json()["version"]) == (201, 2)
    assert lacking.json()["errors"][0]["reason"] == "checks: versions is part of every gate"


def test_retry_opens_a_gate_of_its_own():
    client, gate = client_of("technician"), read_back_gate()
    token = claim(client, check_of(gate)).json()["claim_token"]
    report(client, check_of(gate), token=token, value=3)

    answer = client.post(f"/api/v1/gates/{gate.pk}/retry", {}, format="json")

    assert (answer.status_code, answer.json()["retry_of"]) == (201, gate.pk)


def test_the_checks_of_a_gate_are_read_at_once(django_assert_max_num_queries):
    client, gate = client_of("technician"), read_back_gate()

    with django_assert_max_num_queries(12):
        answer = client.get(f"/api/v1/gates/{gate.pk}")

    assert len(answer.json()["checks"]) > 5
