"""The catalogue holds the families it promises, each row with valid words."""

import csv
from fnmatch import fnmatchcase

import pytest
from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import connection

from fleet.models import FaultSignature
from fleet.shipped import signatures
from tests.recordings import recording

ROWS = {row["name"]: row for row in signatures.catalogue()}


def test_names_are_unique_and_words_are_known():
    rows = signatures.catalogue()

    assert len(ROWS) == len(rows)
    for row in rows:
        assert row["severity"] in FaultSignature.Severity.values
        assert row["kind"] in {"hard", "soft", "not_counted"}
        assert all(row[column] for column in ("family", "title", "action"))


@pytest.mark.parametrize(
    ("name", "family", "kind"),
    [
        ("xid.79", "gpu.off_bus", "hard"),
        ("xid.48", "gpu.memory_uncorrectable", "hard"),
        ("xid.94", "gpu.memory_contained", "soft"),
        ("xid.119", "gpu.gsp", "hard"),
        ("xid.13", "application", "not_counted"),
        ("xid.45", "sympathetic", "not_counted"),
        ("nic.link_flap", "nic", "soft"),
        ("host.unresponsive", "host", "hard"),
        ("boot.no_return", "boot", "hard"),
        ("fabric.switch", "shared", "not_counted"),
    ],
)
def test_a_signature_has_its_family_and_says_how_it_counts(name, family, kind):
    assert (ROWS[name]["family"], ROWS[name]["kind"]) == (family, kind)


def test_what_is_not_counted_has_no_firmware_behind_it():
    uncounted = [row for row in ROWS.values() if row["kind"] == "not_counted"]

    assert uncounted
    assert not any(row["components"] for row in uncounted)


@pytest.mark.django_db
def test_the_catalogue_is_loaded_and_a_second_load_keeps_a_sites_own_words():
    FaultSignature.objects.filter(name="xid.94").update(kind="hard")
    FaultSignature.objects.filter(name="xid.79").delete()

    signatures.load(apps, connection.schema_editor())

    assert set(ROWS) <= set(FaultSignature.objects.values_list("name", flat=True))
    assert FaultSignature.objects.get(name="xid.94").kind == "hard"


# --- the published XID catalogue ------------------------------------------------------------------

#: What is to be done at once, in the catalogue's words and in the product's.
ACTIONS = {
    "CONTACT_SUPPORT": {"supplier"},
    "RESTART_APP": {
        "restart the job",
        "restart the job; GPU is suspect if it repeats within 24 h",
    },
    "RESET_GPU": {
        "reset GPU",
        "reset GPU, then supplier",
        "reset all GPUs of the link",
        "reset all GPUs of the link, then supplier",
    },
    "RESTART_BM": {"power cycle, then supplier"},
    "RESTART_VM": {"restart the virtual machine"},
    "CHECK_MECHANICALS": {"check cabling and seating"},
    "UPDATE_SWFW": {"update driver and virtual GPU software"},
    "CHECK_UVM": {"check unified memory"},
    "WORKFLOW_NVLINK_ERR": {"reset all GPUs of the link, then supplier"},
    "WORKFLOW_NVLINK5_ERR": {"reset all GPUs of the link, then supplier"},
    "WORKFLOW_XID_48": {"reset, then field diagnostic"},
    "WORKFLOW_XID_45": {"look at the error before it"},
    "XID_154": {"look at the error before it"},
}
#: Codes that the catalogue lets be; operators restart what the first was the end of.
IGNORED = {"xid.43": "restart the job; GPU is suspect if it repeats within 24 h"}


def published_codes() -> list[dict[str, str]]:
    with recording("xid_catalogue/xid_catalogue.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_every_published_xid_is_there_with_the_action_that_is_asked_for():
    rows = published_codes()

    assert len(rows) == 172
    for row in rows:
        own = ROWS[f"xid.{row['xid']}"]
        if row["immediate_resolution"] == "IGNORE":
            assert own["kind"] != "hard", own
            assert own["action"] in {"none", "reset when drained", IGNORED.get(own["name"])}, own
        elif row["immediate_resolution"]:
            assert own["action"] in ACTIONS[row["immediate_resolution"]], own


def test_what_support_has_to_be_asked_about_counts_as_hard():
    asked = [row for row in published_codes() if row["immediate_resolution"] == "CONTACT_SUPPORT"]

    assert {ROWS[f"xid.{row['xid']}"]["kind"] for row in asked} == {"hard"}


@pytest.mark.parametrize(
    "family",
    [
        "gpu.off_bus",
        "gpu.memory_uncorrectable",
        "gpu.memory_contained",
        "gpu.gsp",
        "gpu.hang",
        "nvlink",
        "application",
        "sympathetic",
        "gpu.c2c",
        "thermal",
        "power.smoothing",
        "nic",
        "pcie",
        "host",
        "memory",
        "disk",
        "bmc",
        "boot",
        "slow",
        "sdc",
        "shared",
        "planned",
    ],
)
def test_each_family_of_the_field_is_there_with_one_gap(family):
    gaps = {row["gap_minutes"] for row in ROWS.values() if row["family"] == family}

    assert len(gaps) == 1
    assert gaps.pop() > 0


def test_what_accompanies_others_names_signatures_that_exist():
    for row in ROWS.values():
        for pattern in row["sympathetic_to"]:
            assert any(fnmatchcase(name, pattern) for name in ROWS if name != row["name"]), row


@pytest.mark.django_db
def test_the_shipped_rows_hold_the_catalogues_gaps_and_sympathies():
    rows = FaultSignature.objects.filter(name__in=ROWS)

    assert len(rows) == len(ROWS)
    for row in rows:
        assert row.gap_minutes == ROWS[row.name]["gap_minutes"]
        assert row.sympathetic_to == ROWS[row.name]["sympathetic_to"]
        assert row.title == ROWS[row.name]["title"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"gap_minutes": -1.0},
        {"gap_minutes": 0.0},
        {"gap_minutes": float("nan")},
        {"sympathetic_to": "xid.48"},
        {"sympathetic_to": [48]},
        {"sympathetic_to": [""]},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(wrong):
    row = FaultSignature(name="site.own", **wrong)

    with pytest.raises(ValidationError):
        row.clean_fields()
