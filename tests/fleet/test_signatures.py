"""The catalogue holds the families it promises, each row with valid words."""

import pytest
from django.apps import apps
from django.db import connection

from fleet import signatures
from fleet.models import FaultSignature

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
