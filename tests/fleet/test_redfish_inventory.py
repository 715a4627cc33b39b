"""Redfish firmware inventories are read as their makers mean them."""

import csv
import json
from collections import Counter

import pytest

from fleet.adapters.redfish_inventory import Copy, parts, readings
from fleet.errors import AdapterFailed
from tests.recordings import recording

MAKERS = (
    "cray-ex235a-mi250x-blade",
    "cray-ex425-cpu-blade",
    "dell-poweredge-r750",
    "gigabyte-r272",
    "hpe-apollo-xl675d-a100",
    "hpe-proliant-dl325-ilo5",
    "intel-s2600wft",
    "lenovo-thinksystem-sr670",
    "nvidia-bluefield-dpu",
    "supermicro-nvidia-gb300-tray",
)


def member(own_id: str, version: str = "1.0", **fields) -> dict:
    return {"Id": own_id, "Name": own_id, "Version": version, **fields}


def inventory(*members: dict) -> dict:
    return {"Members": list(members)}


def told(*members: dict) -> list[tuple[str, str, str]]:
    return [(r.kind, r.slot, r.version) for r in readings(inventory(*members), boot_id="b")]


def test_of_dells_three_copies_only_the_installed_one_runs():
    found = told(
        member("Current-159-1.8.2__BIOS.Setup.1-1", "1.8.2"),
        member("Installed-159-1.8.2__BIOS.Setup.1-1", "1.8.2"),
        member("Previous-159-1.2.4__BIOS.Setup.1-1", "1.2.4"),
    )

    assert found == [("bios", "", "1.8.2")]


def test_a_standby_copy_is_not_what_runs():
    spare = {"Status": {"State": "StandbySpare"}}

    found = told(member("BMC-Primary", "20E"), member("BMC-Backup", "20D", **spare))

    assert found == [("bmc", "", "20E")]


def test_several_parts_of_a_kind_keep_their_places():
    found = told(member("HGX_FW_GPU_0"), member("HGX_FW_GPU_1"), member("HGX_FW_BMC_0", "2"))

    assert found == [
        ("gpu", "HGX_FW_GPU_0", "1.0"),
        ("gpu", "HGX_FW_GPU_1", "1.0"),
        ("bmc", "", "2"),
    ]


@pytest.mark.parametrize("version", ["", "N/A", "undefined", "no valid golden_image_arm!!!!"])
def test_what_is_no_version_is_not_read_as_one(version):
    assert told(member("NIC_1", version)) == []


def test_a_version_that_waits_in_the_other_slot_is_staged():
    waiting = {"FirmwareState": "Staged", "Version": "34"}
    card = member("HGX_FW_CPU_0", "33", Oem={"Nvidia": {"InactiveFirmwareSlot": waiting}})

    found = readings(inventory(card), boot_id="b")

    assert [(r.version, r.stage) for r in found] == [("33", "active"), ("34", "staged")]


def test_an_inactive_slot_that_waits_for_nothing_is_not_staged():
    kept = {"FirmwareState": "Inactive", "Version": "32"}
    card = member("HGX_FW_CPU_0", "33", Oem={"Nvidia": {"InactiveFirmwareSlot": kept}})

    assert [r.stage for r in readings(inventory(card), boot_id="b")] == ["active"]


@pytest.mark.parametrize(
    "document", [{}, {"Members": {}}, inventory({"@odata.id": "/redfish/v1/x"})]
)
def test_an_inventory_that_is_none_is_refused(document):
    with pytest.raises(AdapterFailed, match="is needed"):
        parts(document)


# --- ten real ones ---------------------------------------------------------------------------


def document(maker: str) -> dict:
    return json.loads(recording(f"redfish_firmware_inventory/{maker}.json").read_text())


@pytest.mark.parametrize("maker", MAKERS)
def test_a_real_inventory_gives_the_table_that_was_recorded_with_it(maker):
    found = parts(document(maker))

    table = recording("redfish_firmware_inventory/answers_components.csv")
    with table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["file"] == maker]
    assert rows
    assert [
        {
            "file": maker,
            "id": part.id,
            "name": part.name,
            "version": part.version,
            "updateable": "" if part.is_updateable is None else str(part.is_updateable),
            "software_id": part.software_id,
            "state": part.state,
        }
        for part in found
    ] == rows


@pytest.mark.parametrize("maker", MAKERS)
def test_in_a_real_inventory_every_running_part_has_a_kind_and_a_place_of_its_own(maker):
    found = readings(document(maker), boot_id="b")

    places = Counter((r.kind, r.slot, r.stage) for r in found)
    assert max(places.values()) == 1
    assert "other" not in {r.kind for r in found}
    assert all(len(r.slot) <= 40 for r in found)


def test_the_real_dell_runs_what_is_installed():
    found = {(r.kind, r.slot): r.version for r in readings(document(MAKERS[2]), boot_id="b")}

    assert found["bios", ""] == "1.8.2"
    assert found["bmc", ""] == "6.00.30.00"
    assert found["psu", "PSU.Slot.2"] == "00.2A.2B"
    assert sum(kind == "nic" for kind, _ in found) == 7


def test_the_real_apollo_runs_eight_gpus_and_one_active_rom():
    own = document("hpe-apollo-xl675d-a100")

    found = readings(own, boot_id="b")

    assert sum(r.kind == "gpu" for r in found) == 8
    assert [r.version for r in found if r.kind == "bios"] == ["A47 v2.58 (05/19/2022)"]
    assert [p.id for p in parts(own) if p.copy is Copy.BACKUP] == ["10"]
