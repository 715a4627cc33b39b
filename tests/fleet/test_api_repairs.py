"""Repairs and their evidence over REST."""

import hashlib
from io import BytesIO

import pytest
from django.conf import settings

from fleet import services
from fleet.lifecycle import State
from fleet.models import Evidence, Machine, Repair
from tests.fleet.repairs_world import closed, make_broken, ordered, under_way
from tests.fleet.test_api import client_of, fields_of

pytestmark = pytest.mark.django_db

API = "/api/v1/repairs"
SWAP = {"kind": "gpu", "slot": "3", "old_serial": "G-OLD", "new_serial": "G-NEW"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "DATA_DIR", tmp_path)
    return tmp_path


def upload(
    client, repair: Repair, *, called: str = "r4.log", content: bytes = b"passed\n", **fields
):
    file = BytesIO(content)
    file.name = called
    return client.post(f"{API}/{repair.pk}/evidence", {"file": file, **fields}, format="multipart")


def test_a_technician_does_a_whole_repair():
    machine = make_broken("gpu-1")
    client = client_of("technician")

    made = client.post(API, {"machine": "gpu-1", "kind": "gpu_swap", "component": "gpu 3"})
    assert made.status_code == 201, made.content
    address = f"{API}/{made.json()['id']}"
    assert made.json()["possible"] == ["start", "send_away", "cancel"]
    assert client.post(f"{address}/start", {}).json()["status"] == "under_way"
    away = client.post(f"{address}/send-away", {"supplier_case": "RMA-7"}).json()
    assert (away["status"], away["supplier_case"]) == ("at_supplier", "RMA-7")
    assert client.post(f"{address}/start", {"note": "back"}).json()["status"] == "under_way"
    assert upload(client, Repair.objects.get()).status_code == 201
    ended = client.post(f"{address}/close", {"swaps": [SWAP], "note": "done"})

    assert ended.status_code == 200, ended.content
    answer = client.get(address).json()
    assert (answer["status"], answer["possible"]) == ("closed", [])
    assert answer["technician"] == client.user.username
    assert [event["kind"] for event in answer["events"]] == [
        "ordered",
        "started",
        "sent_away",
        "returned",
        "closed",
    ]
    assert answer["swaps"][0]["new_serial"] == "G-NEW"
    assert [file["name"] for file in answer["evidence"]] == ["r4.log"]
    assert len(answer["gates"]) == 1
    assert Machine.objects.get(pk=machine.pk).state == State.AWAITING_VALIDATION


@pytest.mark.parametrize("step", ["start", "send-away", "close", "cancel", "evidence", ""])
def test_a_viewer_reads_and_does_nothing(step: str):
    repair = ordered()
    client = client_of("viewer")

    assert client.get(f"{API}/{repair.pk}").status_code == 200
    address = f"{API}/{repair.pk}/{step}" if step else API
    assert client.post(address, {}).status_code == 403


def test_who_may_see_nothing_sees_no_repair():
    assert client_of().get(API).status_code == 403


def test_lists_are_narrowed_and_refuse_what_they_do_not_know():
    repair = ordered(make_broken("gpu-1"))
    closed(under_way(make_broken("gpu-2", platform="b")))
    client = client_of("viewer")

    assert [row["machine"] for row in client.get(API, {"is_open": "true"}).json()["results"]] == [
        "gpu-1"
    ]
    found = client.get(API, {"machine": "gpu-2", "status": "closed"}).json()["results"]
    assert [row["machine"] for row in found] == ["gpu-2"]
    assert client.get(API, {"is_ineffective": "true"}).json()["results"] == []
    assert "unknown_filter" in fields_of(client.get(API, {"maschine": repair.machine})).values()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"kind": "gpu_swap"}, "machine"),
        ({"machine": "nowhere", "kind": "gpu_swap"}, "machine"),
        ({"machine": "gpu-1", "kind": "new_machine"}, "kind"),
        ({"machine": "gpu-1", "kind": "gpu_swap", "status": "closed"}, "status"),
        ({"machine": "gpu-1", "kind": "gpu_swap", "component": "x" * 81}, "component"),
        ({"machine": "gpu-1", "kind": "gpu_swap", "incident": 99999}, "incident"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(body, field: str):
    make_broken("gpu-1")

    answer = client_of("technician").post(API, body)

    assert answer.status_code == 400
    assert field in fields_of(answer)


def test_a_step_out_of_order_names_the_allowed_ones():
    repair = ordered()

    answer = client_of("technician").post(f"{API}/{repair.pk}/close", {"swaps": [SWAP]})

    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_repair_step")
    assert "possible: start, send_away, cancel" in answer.json()["detail"]


def test_a_swap_without_both_serials_is_refused():
    repair = under_way()
    client = client_of("technician")

    answer = client.post(f"{API}/{repair.pk}/close", {"swaps": [{**SWAP, "new_serial": ""}]})
    none = client.post(f"{API}/{repair.pk}/close", {"swaps": []})

    assert "swaps.0.new_serial" in fields_of(answer)
    assert (none.status_code, none.json()["code"]) == (400, "repair_refused")


# --- evidence -------------------------------------------------------------------------------------


def test_a_file_comes_back_as_an_attachment_that_nothing_opens():
    repair = ordered()
    client = client_of("technician")
    content = b"temperature,power\n60,700\n"
    made = upload(client, repair, called="burn.csv", content=content).json()

    answer = client_of("viewer").get(f"/api/v1/evidence/{made['id']}/content")

    assert b"".join(answer.streaming_content) == content
    assert answer["Content-Disposition"] == 'attachment; filename="burn.csv"'
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert made["sha256"] == hashlib.sha256(content).hexdigest()


def test_a_file_is_for_those_who_may_see_evidence():
    made = upload(client_of("technician"), ordered()).json()

    assert client_of().get(f"/api/v1/evidence/{made['id']}/content").status_code == 403


@pytest.mark.parametrize(
    "fields",
    [
        {"sha256": "0" * 64},
        {"name": "../../etc/cron.d/x.txt"},
        {"name": "r4.exe"},
        {"called": "r4.exe"},
        {"name": "r4.pdf"},
        {"name": "report\u202efdp.txt"},
        {"content": b"<html><script>alert(1)</script>"},
        {"content": b""},
    ],
)
def test_a_file_that_cannot_be_kept_is_refused(fields, folder):
    answer = upload(client_of("technician"), ordered(), **fields)

    assert (answer.status_code, answer.json()["code"]) == (400, "evidence_refused"), answer.content
    assert not Evidence.objects.exists()
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_a_file_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(settings, "EVIDENCE_MOST_BYTES", 1000)

    answer = upload(client_of("technician"), ordered(), content=b"x" * 1001)

    assert (answer.status_code, answer.json()["code"]) == (413, "evidence_too_large")


def test_a_form_that_is_far_too_large_is_not_even_read(monkeypatch):
    monkeypatch.setattr(settings, "EVIDENCE_MOST_BYTES", 1000)

    answer = upload(client_of("technician"), ordered(), content=b"x" * (2**20 + 2000))

    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


def test_an_upload_without_a_file_or_with_more_than_one_word_too_many_is_refused():
    repair = ordered()
    client = client_of("technician")

    nothing = client.post(f"{API}/{repair.pk}/evidence", {}, format="multipart")
    unknown = upload(client, repair, inline="true")

    assert fields_of(nothing) == {"file": "required"}
    assert fields_of(unknown) == {"inline": "unknown_field"}


def test_evidence_is_found_by_its_digest():
    made = upload(client_of("technician"), ordered()).json()
    client = client_of("viewer")

    found = client.get("/api/v1/evidence", {"sha256": made["sha256"]}).json()["results"]

    assert [row["id"] for row in found] == [made["id"]]
    assert client.delete(f"/api/v1/evidence/{made['id']}").status_code in (403, 405)


def test_a_repair_given_up_says_why():
    repair = services.order_repair(
        make_broken(), kind="thermal", actor="kim", now=Machine.objects.get().entered_at
    )
    client = client_of("technician")

    assert fields_of(client.post(f"{API}/{repair.pk}/cancel", {})) == {"reason": "required"}
    answer = client.post(f"{API}/{repair.pk}/cancel", {"reason": "wrong machine"})

    assert answer.json()["status"] == "cancelled"
