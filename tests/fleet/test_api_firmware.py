"""What the API answers about versions: who ran what, what waits, what was rolled out."""

from datetime import timedelta

import pytest

from fleet.models import DesiredBundle
from tests.factories import (
    NOW,
    make_bundle,
    make_firmware_record,
    make_image,
    make_machine,
    make_machines,
)
from tests.fleet.test_api import client_of, fields_of

pytestmark = pytest.mark.django_db

API = "/api/v1/firmware"
SPAN = {"start": "2026-03-01T00:00:00Z", "end": "2026-03-05T00:00:00Z"}


def ask(path: str, **query):
    return client_of("viewer").get(f"{API}/{path}", query)


def test_an_advisory_finds_the_machines_page_by_page():
    for machine in make_machines(3, names=["gpu-1", "gpu-2", "gpu-3"]):
        for slot in ("0", "1"):
            make_firmware_record(machine, kind="nic", slot=slot)
    client = client_of("viewer")

    first = client.get(f"{API}/runs", {"kind": "nic", "version": "1.0", "page_size": 2, **SPAN})
    second = client.get(first.json()["next"])

    assert [row["machine"] for row in first.json()["results"]] == ["gpu-1"] * 2 + ["gpu-2"] * 2
    assert [row["machine"] for row in second.json()["results"]] == ["gpu-3"] * 2
    assert second.json()["next"] is None


def test_a_number_is_found_in_both_its_spellings():
    make_image("nic", "22301116", scheme="number")
    make_firmware_record(make_machine("a"), kind="nic", version="0x15449bc")
    make_firmware_record(make_machine("b"), kind="nic", version="22301115")

    rows = ask("runs", kind="nic", version="22301116", **SPAN).json()["results"]

    assert [(row["machine"], row["version"]) for row in rows] == [("a", "0x15449bc")]


def test_a_history_shows_a_number_in_both_its_spellings():
    make_image("nic", "22301116", scheme="number")
    make_firmware_record(make_machine("a"), kind="nic", version="0x15449bc")

    answer = client_of("viewer").get("/api/v1/machines/a/history", {"as_of": SPAN["end"]})

    assert [row["spelt"] for row in answer.json()["intervals"]] == ["0x15449bc (22301116)"]


def test_what_was_staged_only_did_not_run():
    make_firmware_record(make_machine("a"), kind="nic", stage="staged")

    assert ask("runs", kind="nic", version="1.0", **SPAN).json()["results"] == []
    staged = ask("runs", kind="nic", version="1.0", stage="staged", **SPAN)
    assert [row["machine"] for row in staged.json()["results"]] == ["a"]


def test_staged_versions_wait_until_they_run():
    machine = make_machine("a", versions={"bmc": "1.0"})
    make_firmware_record(machine, version="2.0", stage="staged", since=NOW)

    waiting = ask("staged").json()["results"]
    assert [(row["machine"], row["staged"], row["active"]) for row in waiting] == [
        ("a", "2.0", "1.0")
    ]

    make_firmware_record(machine, version="2.0", since=NOW + timedelta(hours=1))
    make_firmware_record(machine, version="3.0", since=NOW + timedelta(hours=2))
    assert ask("staged").json()["results"] == []


def test_a_machines_staged_versions_are_told_apart_from_the_active_ones():
    machine = make_machine("a", versions={"bmc": "1.0"})
    make_firmware_record(machine, version="2.0", stage="staged")
    client = client_of("viewer")
    address = f"/api/v1/machines/a/versions?as_of={SPAN['end']}"

    assert client.get(address).json()["versions"] == {"bmc": "1.0"}
    assert client.get(f"{address}&stage=staged").json()["versions"] == {"bmc": "2.0"}
    assert list(fields_of(client.get(f"{address}&stage=sttaged"))) == ["stage"]


def test_changes_that_went_over_a_pool_are_told_as_rollouts():
    for machine in make_machines(9, versions={"bmc": "1.0"}, pool="train"):
        make_firmware_record(machine, version="2.0")

    (row,) = ask("rollouts", kind="bmc").json()

    assert (row["pool"], row["old"], row["new"], row["machines"]) == ("train", "1.0", "2.0", 9)
    assert [wave["machines"] for wave in row["waves"]] == [9]
    assert ask("rollouts", kind="bmc", pool="other").json() == []
    assert ask("rollouts", kind="bmc", least=10).json() == []


def test_a_version_that_was_taken_back_is_told():
    machine = make_machine("a", versions={"bmc": "1.0"})
    make_firmware_record(machine, version="2.0")
    make_firmware_record(machine, version="1.0", since=NOW + timedelta(hours=1))

    (row,) = ask("reversals", kind="bmc").json()

    assert (row["machine"], row["kept"], row["tried"]) == ("a", "1.0", "2.0")


@pytest.mark.parametrize("path", ["rollouts", "reversals", "staged", "runs", "desired"])
def test_questions_refuse_unknown_names_and_need_the_right_to_view(path: str):
    assert ask(path, rakc="r1").status_code == 400
    assert client_of().get(f"{API}/{path}").status_code == 403


def test_an_approver_says_which_bundle_a_pool_is_meant_to_run():
    make_machine("a")
    bundle = make_bundle(images=[make_image("bmc", "2.0")])
    body = {"platform": "dgx-h100", "pool": "train", "bundle": bundle.pk, "reason": "plan"}

    refused = client_of("operator").post(f"{API}/desired", body, format="json")
    answer = client_of("approver").post(f"{API}/desired", body, format="json")

    assert refused.status_code == 403
    assert answer.status_code == 201
    assert DesiredBundle.objects.get().bundle == bundle


def test_a_draft_is_wanted_by_nobody():
    make_machine("a")
    bundle = make_bundle(is_approved=False)
    body = {"platform": "dgx-h100", "bundle": bundle.pk, "reason": "plan"}

    answer = client_of("approver").post(f"{API}/desired", body, format="json")

    assert list(fields_of(answer)) == ["bundle"]
