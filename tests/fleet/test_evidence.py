"""What a file may be called and hold, and how it is kept."""

import gzip
import hashlib
import os
import time
from datetime import timedelta

import pytest
from django.conf import settings

from fleet import services
from fleet.adapters.evidence_files import EvidenceFiles
from fleet.errors import EvidenceMissing, EvidenceRefused, EvidenceTooLarge
from fleet.models import Evidence, Gate
from fleet.repair import evidence as rules
from fleet.services.evidence import sweep_evidence
from tests.factories import NOW
from tests.fleet.repairs_world import closed, ordered, under_way

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


@pytest.fixture
def store(tmp_path, monkeypatch) -> EvidenceFiles:
    monkeypatch.setattr(settings, "DATA_DIR", tmp_path)
    return EvidenceFiles()


def files_in(store: EvidenceFiles) -> list[str]:
    if not store.folder.exists():
        return []
    return sorted(path.name for path in store.folder.rglob("*") if path.is_file())


def keep(name: str = "dcgm.log", content: bytes = b"r4 passed\n", **fields) -> Evidence:
    return services.keep_evidence(
        [content], name=name, actor="kim", now=NOW, **{"repair": ordered()} | fields
    )


# --- names and types ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd.txt",
        "/abs.txt",
        "..\\up.txt",
        "C:\\a.txt",
        "a\nb.txt",
        "a\0.txt",
        "report\u202efdp.txt",
        "zero\u200bwidth.txt",
        "line\u2028sep.txt",
        "half\ud800.txt",
        ".hidden.txt",
        "-rf.txt",
        "~root.txt",
        "trailing.txt.",
        "trailing.txt ",
        'quo"te.txt',
        "a;b|c.txt",
        "con.txt",
        "LPT1.log",
        "nul .log",
        "   ",
        "",
        "x" * 117 + ".txt",
    ],
)
def test_a_hostile_name_is_refused(name: str):
    with pytest.raises(EvidenceRefused):
        rules.checked_name(name)


def test_a_name_is_kept_in_one_unicode_form():
    assert rules.checked_name("me\u0301moire 3.pdf") == "m\u00e9moire 3.pdf"


@pytest.mark.parametrize(
    ("name", "head", "media_type"),
    [
        ("a.txt", b"all good", "text/plain"),
        ("a.log", b"\x1b[1mdone", "text/plain"),
        ("a.csv", b"a,b\n1,2\n", "text/csv"),
        ("a.json", b' {"a": 1}', "application/json"),
        ("a.pdf", b"%PDF-1.7\n", "application/pdf"),
        ("a.PNG", PNG, "image/png"),
        ("a.jpeg", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("a.tar.gz", b"\x1f\x8b\x08", "application/gzip"),
        ("a.zst", b"\x28\xb5\x2f\xfd", "application/zstd"),
    ],
)
def test_a_type_is_told_by_name_and_content(name: str, head: bytes, media_type: str):
    assert rules.kind_of(name, head).media_type == media_type


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("a.pdf", b"MZ\x90"),
        ("a.png", b"<svg onload=alert(1)>"),
        ("a.txt", b"\xef\xbb\xbf \n<!DOCTYPE html>"),
        ("a.log", b"<ScRiPt>alert(1)</script>"),
        ("a.csv", b"#!/bin/sh\nrm"),
        ("a.json", b"<html>"),
        ("a.gz", b"PK\x03\x04"),
        ("a.html", b"<html>"),
        ("a.svg", b"<svg>"),
        ("a.exe", b"MZ"),
        ("a.zip", b"PK\x03\x04"),
        ("noextension", b"text"),
        ("a.txt", b""),
    ],
)
def test_a_content_that_is_not_what_its_name_says_is_refused(name: str, head: bytes):
    with pytest.raises(EvidenceRefused):
        rules.kind_of(name, head)


# --- keeping --------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_file_is_kept_by_its_digest_and_read_again(store: EvidenceFiles):
    content = b"r4 passed\n" * 1000
    digest = hashlib.sha256(content).hexdigest()

    kept = keep(content=content, sha256=digest.upper())

    assert (kept.sha256, kept.size_bytes, kept.media_type) == (digest, 10_000, "text/plain")
    assert files_in(store) == [digest]
    with services.open_evidence(kept) as file:
        assert file.read() == content


@pytest.mark.django_db
def test_the_same_content_lies_there_once(store: EvidenceFiles):
    repair = ordered()

    keep("a.log", repair=repair)
    keep("b.log", repair=repair)

    assert len(files_in(store)) == 1
    assert Evidence.objects.count() == 2


@pytest.mark.django_db
@pytest.mark.parametrize(
    "fields",
    [
        {"sha256": "0" * 64},
        {"sha256": "not a digest"},
        {"name": "a.png"},
        {"content": b"text first\0binary later"},
        {"content": b"text first" * 1000 + b"\xff\xfe"},
        {"content": b"ends in half a letter \xc3"},
        {"content": b"x" * 1025},
    ],
)
def test_of_a_file_that_is_refused_nothing_is_kept(store: EvidenceFiles, monkeypatch, fields):
    monkeypatch.setattr(settings, "EVIDENCE_MOST_BYTES", 1024 if "content" in fields else 2**20)
    if len(fields.get("content", b"")) > 2000:
        monkeypatch.setattr(settings, "EVIDENCE_MOST_BYTES", 2**20)

    with pytest.raises(EvidenceRefused):
        keep(**fields)

    assert files_in(store) == []
    assert not Evidence.objects.exists()


@pytest.mark.django_db
def test_what_is_too_large_is_stopped_while_it_comes(store: EvidenceFiles, monkeypatch):
    monkeypatch.setattr(settings, "EVIDENCE_MOST_BYTES", 10_000)
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield b"x" * 1000

    with pytest.raises(EvidenceTooLarge):
        services.store_file(endless(), name="a.log")

    assert len(taken) == 11
    assert files_in(store) == []


@pytest.mark.django_db
def test_a_packed_file_is_never_opened(store: EvidenceFiles):
    bomb = gzip.compress(b"\0" * 5_000_000)

    kept = keep("logs.tar.gz", bomb)

    assert kept.size_bytes == len(bomb) < 10_000


@pytest.mark.django_db
def test_a_repair_that_was_given_up_takes_no_evidence(store: EvidenceFiles):
    repair = services.cancel_repair(ordered(), reason="x", actor="kim", now=NOW)

    with pytest.raises(EvidenceRefused, match="was given up"):
        keep(repair=repair)

    assert files_in(store) == []


@pytest.mark.django_db
def test_after_the_gate_nothing_is_added(store: EvidenceFiles):
    repair = closed(under_way())
    keep(repair=repair)  # until then it is
    Gate.objects.filter(repair=repair).update(status="passed")

    with pytest.raises(EvidenceRefused, match="was passed on what was shown until then"):
        keep(repair=repair)


@pytest.mark.django_db
def test_a_file_that_is_gone_is_told(store: EvidenceFiles):
    kept = keep()
    (store.folder / kept.sha256[:2] / kept.sha256).unlink()

    with pytest.raises(EvidenceMissing, match="restore it"):
        services.open_evidence(kept)


def test_a_crash_leaves_a_draft_and_no_half_file(store: EvidenceFiles, monkeypatch):
    # A killed process runs no clean-up: neither the move nor the removal happens.
    monkeypatch.setattr(EvidenceFiles, "_put_in_place", lambda *_: os._exit(9))
    child = os.fork()
    if child == 0:
        store.keep([b"half"])
    os.waitpid(child, 0)

    assert [name.startswith(".incoming-") for name in files_in(store)] == [True]


@pytest.mark.django_db
def test_the_sweep_removes_what_is_nobodys_and_old(store: EvidenceFiles):
    kept = keep()
    forgotten, _ = store.keep([b"no record"])
    (store.folder / ".incoming-dead").write_bytes(b"half")
    young, _ = store.keep([b"its record comes in a moment"])
    old = time.time() - timedelta(days=2).total_seconds()
    for name in (kept.sha256, forgotten):
        os.utime(store.folder / name[:2] / name, (old, old))
    os.utime(store.folder / ".incoming-dead", (old, old))

    assert sweep_evidence() == 2
    assert sweep_evidence() == 0
    assert files_in(store) == sorted([kept.sha256, young])


def test_a_digest_from_outside_is_no_path(store: EvidenceFiles):
    with pytest.raises(FileNotFoundError):
        store.open("../../etc/passwd")
