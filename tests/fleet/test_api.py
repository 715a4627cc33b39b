"""The fleet over REST: what it answers, what it refuses, and who may ask."""

import base64
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from rest_framework.test import APIClient

from fleet.models import Fault, FirmwareBundle, Machine
from tests.factories import (
    NOW,
    make_bundle,
    make_firmware_record,
    make_image,
    make_machine,
    make_machines,
    make_platform,
    make_user,
)

pytestmark = pytest.mark.django_db


def client_of(*groups: str, **fields: Any) -> APIClient:
    """A client of somebody in these groups, logged in by session."""
    user = make_user(**fields)
    user.groups.set(Group.objects.filter(name__in=groups))
    client = APIClient()
    client.force_authenticate(user)
    client.user = user
    return client


def fields_of(response: Any) -> dict[str, str]:
    return {item["field"]: item["code"] for item in response.json()["errors"]}


# --- who -----------------------------------------------------------------------------------------


def test_nobody_reads_without_credentials():
    response = APIClient().get("/api/v1/machines")

    assert response.status_code == 401
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == "not_authenticated"


def test_an_account_without_a_group_reads_nothing():
    assert client_of().get("/api/v1/machines").status_code == 403


def test_name_and_password_buy_a_token_that_reads():
    user = make_user("ana")
    user.groups.set(Group.objects.filter(name="viewer"))
    client = APIClient()

    basic = base64.b64encode(b"ana:x").decode()
    made = client.post("/api/v1/tokens", {"hours": 1}, HTTP_AUTHORIZATION=f"Basic {basic}")
    read = client.get("/api/v1/machines", HTTP_AUTHORIZATION=f"Token {made.json()['token']}")

    assert made.status_code == 201
    assert read.status_code == 200


def test_a_wrong_password_buys_nothing():
    make_user("ana")
    basic = base64.b64encode(b"ana:wrong").decode()

    response = APIClient().post("/api/v1/tokens", {}, HTTP_AUTHORIZATION=f"Basic {basic}")

    assert response.status_code == 401


def test_a_password_opens_no_other_endpoint_than_tokens():
    user = make_user("ana")
    user.groups.set(Group.objects.filter(name="viewer"))
    basic = base64.b64encode(b"ana:x").decode()

    response = APIClient().get("/api/v1/machines", HTTP_AUTHORIZATION=f"Basic {basic}")

    assert response.status_code == 401


def test_a_revoked_token_opens_nothing():
    client = client_of("viewer")
    token = client.post("/api/v1/tokens", {}).json()

    gone = client.delete(f"/api/v1/tokens/{token['token_key']}")
    after = APIClient().get("/api/v1/machines", HTTP_AUTHORIZATION=f"Token {token['token']}")

    assert gone.status_code == 204
    assert after.status_code == 401


def test_nobody_sees_or_revokes_the_tokens_of_others():
    key = client_of("viewer").post("/api/v1/tokens", {}).json()["token_key"]
    other = client_of("operator")

    assert other.get("/api/v1/tokens").json()["results"] == []
    assert other.delete(f"/api/v1/tokens/{key}").status_code == 404


def test_a_listed_token_does_not_show_its_secret():
    client = client_of("viewer")
    secret = client.post("/api/v1/tokens", {}).json()["token"]

    assert secret not in client.get("/api/v1/tokens").content.decode()


# --- machines ------------------------------------------------------------------------------------


def test_a_machine_is_found_by_its_name():
    make_machine("gpu-17", rack="r1")

    machine = client_of("viewer").get("/api/v1/machines/gpu-17").json()

    assert (machine["name"], machine["platform"], machine["rack"]) == ("gpu-17", "dgx-h100", "r1")


def test_how_to_reach_a_bmc_is_not_shown():
    make_machine("gpu-17", bmc_address="10.0.0.17", credential="vault:bmc/gpu-17")

    text = client_of("viewer").get("/api/v1/machines/gpu-17").content.decode()

    assert "10.0.0.17" not in text
    assert "vault" not in text


def test_a_misspelt_filter_is_refused_with_a_suggestion():
    make_machine(rack="r12")

    response = client_of("viewer").get("/api/v1/machines?rakc=r12")

    assert response.status_code == 400
    assert fields_of(response) == {"rakc": "unknown_filter"}
    assert "did you mean 'rack'?" in response.json()["detail"]


@pytest.mark.parametrize("query", ["state=bogus", "platform=bogus", "may_take_work=perhaps"])
def test_a_filter_value_that_cannot_be_is_refused(query: str):
    make_machine()

    response = client_of("viewer").get(f"/api/v1/machines?{query}")

    assert response.status_code == 400


@pytest.mark.parametrize("query", ["rack=", "selector=", "selector=%20", "state="])
def test_an_empty_filter_does_not_mean_everything(query: str):
    make_machine(rack="r12")

    response = client_of("viewer").get(f"/api/v1/machines?{query}")

    assert response.status_code == 400
    assert list(fields_of(response).values()) == ["empty_filter"]


def test_a_filter_by_readiness_selects():
    make_machine("a")
    make_machine("b", state="awaiting_diagnosis")

    rows = client_of("viewer").get("/api/v1/machines?may_take_work=false").json()["results"]

    assert [row["name"] for row in rows] == ["b"]


@pytest.mark.parametrize("selector", ["rakc=r1", "rack==", "rack in ()"])
def test_a_selector_that_is_wrong_selects_nothing_and_says_so(selector: str):
    make_machine(rack="r1")

    response = client_of("viewer").get("/api/v1/machines", {"selector": selector})

    assert response.status_code == 400
    assert response.json()["code"] == "selector_refused"


def test_a_selector_selects():
    make_machine("a", rack="r1")
    make_machine("b", rack="r2")

    rows = client_of("viewer").get("/api/v1/machines", {"selector": "rack in (r1)"}).json()

    assert [row["name"] for row in rows["results"]] == ["a"]


@pytest.mark.parametrize("size", ["0", "-1", "1001", "many", ""])
def test_a_page_size_out_of_range_is_refused_rather_than_cut(size: str):
    response = client_of("viewer").get(f"/api/v1/machines?page_size={size}")

    assert response.status_code == 400
    assert list(fields_of(response)) == ["page_size"]


def test_pages_by_cursor_neither_repeat_nor_leave_out_a_machine():
    make_machines(5)
    client = client_of("viewer")

    names, address = [], "/api/v1/machines?page_size=2"
    while address:
        answer = client.get(address).json()
        names += [row["name"] for row in answer["results"]]
        address = answer["next"]

    assert sorted(names) == sorted(Machine.objects.values_list("name", flat=True))


@pytest.mark.parametrize("number", [1, 40])
def test_a_list_of_machines_takes_the_same_statements_however_long(
    number: int, django_assert_num_queries
):
    make_machines(number)
    client = client_of("viewer")

    with django_assert_num_queries(3):  # two for the permissions, one for the page
        client.get("/api/v1/machines")


@pytest.mark.parametrize("method", ["post", "put", "patch"])
def test_a_machine_cannot_be_written_to(method: str):
    make_machine("gpu-17", state="awaiting_diagnosis")

    client = client_of("viewer", "operator", "approver", is_superuser=True)
    response = getattr(client, method)("/api/v1/machines/gpu-17", {"state": "in_service"})

    assert response.status_code == 405
    assert Machine.objects.get().state == "awaiting_diagnosis"


# --- versions ------------------------------------------------------------------------------------


def test_versions_are_those_of_the_asked_time():
    machine = make_machine("gpu-17")
    make_firmware_record(machine, kind="nic", version="1.0", since=NOW)
    make_firmware_record(machine, kind="nic", version="2.0", since=NOW + timedelta(days=1))
    client = client_of("viewer")

    before = client.get("/api/v1/machines/gpu-17/versions?as_of=2026-03-02T13:00:00Z").json()
    after = client.get("/api/v1/machines/gpu-17/versions?as_of=2026-03-04T14:00:00+01:00").json()

    assert before["versions"]["nic"] == "1.0"
    assert after["versions"]["nic"] == "2.0"


def test_history_holds_what_was_known_by_then():
    machine = make_machine("gpu-17")
    for number in range(3):
        make_firmware_record(
            machine, kind="nic", version=f"{number}.0", since=NOW + timedelta(days=number)
        )

    answer = client_of("viewer").get(
        "/api/v1/machines/gpu-17/history", {"as_of": "2026-03-03T13:00:00Z"}
    )

    assert [(row["version"], row["until"]) for row in answer.json()["intervals"]] == [
        ("0.0", "2026-03-03T12:00:00Z"),
        ("1.0", None),
    ]


def test_an_advisory_finds_the_machines_that_ran_a_version():
    for name, version in (("gpu-1", "1.0"), ("gpu-2", "2.0"), ("gpu-3", "1.0")):
        make_firmware_record(make_machine(name), kind="nic", version=version, since=NOW)

    rows = client_of("viewer").get(RUNS)

    assert [row["machine"] for row in rows.json()["results"]] == ["gpu-1", "gpu-3"]


RUNS = (
    "/api/v1/firmware/runs?kind=nic&version=1.0"
    "&start=2026-03-01T00:00:00Z&end=2026-03-05T00:00:00+01:00"
)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (RUNS.replace("version=1.0", ""), "version"),
        (RUNS.replace("2026-03-05", "2026-02-01"), "end"),
        (RUNS.replace("03-01T00:00:00Z", "03-01T00:00:00"), "start"),
        (RUNS + "&rakc=r1", "rakc"),
    ],
)
def test_a_search_for_runs_names_what_is_wrong_with_it(query: str, field: str):
    response = client_of("viewer").get(query)

    assert response.status_code == 400
    assert list(fields_of(response)) == [field]


def test_a_search_for_runs_needs_the_right_to_view():
    assert client_of().get(RUNS).status_code == 403


@pytest.mark.parametrize("text", ["2026-03-02T13:00:00", "yesterday", "2026-02-31T00:00:00Z", ""])
@pytest.mark.parametrize("what", ["versions", "history"])
def test_a_time_without_zone_or_sense_is_refused(what: str, text: str):
    make_machine("gpu-17")

    response = client_of("viewer").get(f"/api/v1/machines/gpu-17/{what}", {"as_of": text})

    assert response.status_code == 400
    assert list(fields_of(response)) == ["as_of"]


def test_an_unknown_machine_is_a_problem_document():
    response = client_of("viewer").get("/api/v1/machines/nobody/versions")

    assert response.status_code == 404
    assert response.json()["code"] == "not_found"


# --- bundles -------------------------------------------------------------------------------------


def new_bundle(**changes: Any) -> dict[str, Any]:
    make_platform()
    image = make_image("gpu")
    return {
        "name": "gpu",
        "version": "7",
        "platforms": ["dgx-h100"],
        "images": [image.pk],
        **changes,
    }


def test_an_operator_drafts_and_an_approver_approves_a_bundle():
    drafted = client_of("operator").post("/api/v1/bundles", new_bundle())

    approved = client_of("approver").post(f"/api/v1/bundles/{drafted.json()['id']}/approve", {})

    assert (drafted.status_code, drafted.json()["status"]) == (201, "draft")
    assert (approved.status_code, approved.json()["status"]) == (200, "approved")
    assert [image["kind"] for image in approved.json()["images"]] == ["gpu"]


def test_an_author_may_not_approve_the_own_bundle():
    client = client_of("operator", "approver")
    bundle = client.post("/api/v1/bundles", new_bundle()).json()

    response = client.post(f"/api/v1/bundles/{bundle['id']}/approve", {})

    assert response.status_code == 403
    assert response.json()["code"] == "self_approval"
    assert FirmwareBundle.objects.get().status == "draft"


@pytest.mark.parametrize(("group", "step"), [("operator", "approve"), ("operator", "withdraw")])
def test_an_operator_neither_approves_nor_withdraws(group: str, step: str):
    bundle = make_bundle(is_approved=step == "withdraw")

    assert client_of(group).post(f"/api/v1/bundles/{bundle.pk}/{step}", {}).status_code == 403


def test_a_viewer_drafts_no_bundle():
    assert client_of("viewer").post("/api/v1/bundles", new_bundle()).status_code == 403


def test_a_withdrawn_bundle_cannot_be_approved_again():
    bundle = make_bundle()
    client = client_of("approver")
    client.post(f"/api/v1/bundles/{bundle.pk}/withdraw", {})

    response = client.post(f"/api/v1/bundles/{bundle.pk}/approve", {})

    assert response.status_code == 409


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("status", "approved", "unknown_field"),
        ("approver", "me", "unknown_field"),
        ("images", [], "empty"),
        ("images", [999999], "does_not_exist"),
        ("platforms", ["bogus"], "does_not_exist"),
    ],
)
def test_a_bundle_field_that_is_not_one_is_named(field: str, value: Any, code: str):
    response = client_of("operator").post("/api/v1/bundles", new_bundle(**{field: value}))

    assert response.status_code == 400
    assert code in fields_of(response).values()
    assert not FirmwareBundle.objects.exists()


def test_a_read_only_field_of_an_image_is_refused():
    image = {"kind": "gpu", "version": "9", "id": 5}

    response = client_of("operator").post("/api/v1/images", image)

    assert response.status_code == 400
    assert fields_of(response) == {"id": "read_only"}


def test_the_same_image_twice_is_refused():
    client = client_of("operator")
    first = client.post("/api/v1/images", {"kind": "gpu", "version": "9"})
    second = client.post("/api/v1/images", {"kind": "gpu", "version": "9"})

    assert (first.status_code, second.status_code) == (201, 400)


@pytest.mark.parametrize("number", [1, 6])
def test_a_list_of_bundles_takes_the_same_statements_however_long(
    number: int, django_assert_num_queries
):
    for _ in range(number):
        make_bundle(images=[make_image("gpu"), make_image("nic")])
    client = client_of("viewer")

    with django_assert_num_queries(5):  # permissions, the page, its platforms, its images
        client.get("/api/v1/bundles")


# --- telemetry -----------------------------------------------------------------------------------


def fault(**changes: Any) -> dict[str, Any]:
    return {
        "machine": "gpu-17",
        "time": "2026-03-02T11:00:00Z",
        "signature": "xid.119",
        **changes,
    }


def batch(*records: Any, **changes: Any) -> dict[str, Any]:
    return {"source": "node-agent", "key": "1", "records": list(records), **changes}


def test_a_batch_says_of_each_record_what_became_of_it():
    make_machine("gpu-17")

    response = client_of("reporter").post(
        "/api/v1/telemetry/faults",
        batch(fault(), fault(), fault(machine="nobody"), fault(time="2026-03-02T11:00:00")),
    )

    answer = response.json()
    assert response.status_code == 200
    assert (answer["accepted"], answer["duplicates"]) == (1, 1)
    assert [(item["index"], item["field"]) for item in answer["refused"]] == [
        (2, "machine"),
        (3, "time"),
    ]
    assert Fault.objects.count() == 1


def test_a_repeated_batch_counts_nothing_twice():
    make_machine("gpu-17")
    client = client_of("reporter")

    first = client.post("/api/v1/telemetry/faults", batch(fault()))
    again = client.post("/api/v1/telemetry/faults", batch(fault()))

    assert first.json() == again.json()
    assert Fault.objects.count() == 1


def test_a_batch_key_with_other_content_is_a_conflict():
    make_machine("gpu-17")
    client = client_of("reporter")
    client.post("/api/v1/telemetry/faults", batch(fault()))

    response = client.post("/api/v1/telemetry/faults", batch(fault(signature="xid.79")))

    assert response.status_code == 409
    assert response.json()["code"] == "batch_conflict"


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        (
            "observations",
            {
                "machine": "gpu-17",
                "start": "2026-03-02T10:00:00Z",
                "end": "2026-03-02T11:00:00Z",
                "in_service_seconds": 3600,
                "throughput": 0.98,
            },
        ),
        ("recoveries", {"machine": "gpu-17", "time": "2026-03-02T10:00:00Z", "job": "j1"}),
        ("faults", fault()),
    ],
)
def test_each_kind_of_telemetry_is_taken(kind: str, record: dict[str, Any]):
    make_machine("gpu-17")

    response = client_of("reporter").post(f"/api/v1/telemetry/{kind}", batch(record))

    assert response.json()["accepted"] == 1, response.json()


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"source": "a", "key": "1"},
        batch(),
        batch("not a record"),
        batch(fault(), source=""),
        batch(fault(), colour="red"),
        {"source": "a", "key": "1", "records": {"machine": "gpu-17"}},
    ],
)
def test_a_malformed_envelope_stores_nothing(body: Any):
    make_machine("gpu-17")

    response = client_of("reporter").post("/api/v1/telemetry/faults", body)

    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    assert not Fault.objects.exists()


@pytest.mark.parametrize("text", ["{", '{"source": NaN}', '{"records": [Infinity]}', "\xff"])
def test_a_body_that_is_not_json_is_a_problem_document(text: str):
    response = client_of("reporter").generic(
        "POST", "/api/v1/telemetry/faults", text, content_type="application/json"
    )

    assert response.status_code == 400
    assert response.json()["code"] == "parse_error"


def test_more_records_than_the_limit_are_refused_whole():
    make_machine("gpu-17")

    response = client_of("reporter").post("/api/v1/telemetry/faults", batch(*[fault()] * 10_001))

    assert response.status_code == 400
    assert not Fault.objects.exists()


def test_a_body_beyond_the_limit_is_not_read_to_its_end():
    response = client_of("reporter").generic(
        "POST", "/api/v1/telemetry/faults", b" " * (16 * 2**20 + 1), content_type="application/json"
    )

    assert response.status_code == 413
    assert response.json()["code"] == "body_too_large"


@pytest.mark.parametrize("kind", ["faults", "observations", "recoveries"])
def test_telemetry_needs_the_right_to_report(kind: str):
    response = client_of("viewer").post(f"/api/v1/telemetry/{kind}", batch(fault()))

    assert response.status_code == 403


# --- addresses -----------------------------------------------------------------------------------


def test_an_unknown_address_below_the_api_is_a_problem_document():
    response = client_of("viewer").get("/api/v1/machnies")

    assert response.status_code == 404
    assert response["Content-Type"] == "application/problem+json"


def test_another_media_type_is_refused():
    response = client_of("reporter").generic(
        "POST", "/api/v1/telemetry/faults", "a=1", content_type="application/x-www-form-urlencoded"
    )

    assert response.status_code == 415
