"""Keep files that prove something: what is let in, where it goes, and who brought it.

The file is written before its record, outside any transaction; a record tells of whole files only.
A file of which no record tells is removed by `sweep_evidence`.
"""

import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import BinaryIO

from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from fleet import adapters
from fleet.errors import EvidenceMissing, EvidenceRefused, EvidenceTooLarge
from fleet.models import CheckResult, Evidence, Gate, Repair
from fleet.repair.evidence import HEAD_BYTES, TextCheck, checked_name, kind_of

MOST_FILES = 200  # of one repair or one result
#: Age at which a file without a record is nobody's; longer than any upload and its record take.
FORGOTTEN = timedelta(days=1)
_DIGEST_CHARACTERS = 64


@dataclass(frozen=True)
class StoredFile:
    """A file that is in the store, and of which no record tells yet."""

    name: str
    media_type: str
    size_bytes: int
    sha256: str


def store_file(chunks: Iterable[bytes], *, name: str, sha256: str = "") -> StoredFile:
    """Write a file into the store, never inside a transaction.

    Raises
    ------
    EvidenceRefused
        If name, type or size are not taken, or the content has another digest than was said. Of
        such a file nothing is kept.
    """
    name = checked_name(name)
    wanted = sha256.strip().lower()
    if wanted and (len(wanted) != _DIGEST_CHARACTERS or set(wanted) - set("0123456789abcdef")):
        raise EvidenceRefused(f"{sha256[:80]!r} is no SHA-256: 64 hex digits are")
    watched = _Watched(name, chunks)
    digest, size = adapters.evidence_store().keep(watched.chunks(wanted))
    return StoredFile(name, watched.media_type, size, digest)


def attach_evidence(
    file: StoredFile,
    *,
    actor: str,
    now: datetime,
    user: User | None = None,
    repair: Repair | None = None,
    result: CheckResult | None = None,
) -> Evidence:
    """Record that a stored file belongs to a repair or to a check's result.

    Raises
    ------
    EvidenceRefused
        If the repair was given up, or its gate has been passed on what was shown until then.
    """
    if repair is not None:
        _check_open(repair)
    if Evidence.objects.filter(repair=repair, result=result).count() >= MOST_FILES:
        raise EvidenceRefused(f"{MOST_FILES} files are kept here already; accepted: no more")
    return Evidence.objects.create(
        repair=repair,
        result=result,
        name=file.name,
        media_type=file.media_type,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        actor=actor,
        user=user,
        at=now,
        recorded_at=timezone.now(),
    )


def keep_evidence(
    chunks: Iterable[bytes],
    *,
    name: str,
    actor: str,
    now: datetime,
    sha256: str = "",
    user: User | None = None,
    repair: Repair | None = None,
    result: CheckResult | None = None,
) -> Evidence:
    """Store a file and record what it proves."""
    if repair is not None:
        _check_open(repair)  # before anything is written
    file = store_file(chunks, name=name, sha256=sha256)
    return attach_evidence(file, actor=actor, user=user, now=now, repair=repair, result=result)


def open_evidence(evidence: Evidence) -> BinaryIO:
    """Open the file of a record for reading.

    Raises
    ------
    EvidenceMissing
        If it is not in the store.
    """
    try:
        return adapters.evidence_store().open(evidence.sha256)
    except FileNotFoundError:
        raise EvidenceMissing(
            f"{evidence.name} (SHA-256 {evidence.sha256}) is not in the store; restore it there"
        ) from None


def sweep_evidence() -> int:
    """Remove files that were begun and never finished, or of which no record tells."""
    return adapters.evidence_store().sweep(older_than=FORGOTTEN, needed=_needed)


def _needed(digests: Collection[str]) -> Collection[str]:
    known = Evidence.objects.filter(sha256__in=digests)
    return set(known.values_list("sha256", flat=True))


def _check_open(repair: Repair) -> None:
    if repair.status == Repair.Status.CANCELLED:
        raise EvidenceRefused(f"repair {repair.pk} was given up; nothing is added to it")
    if repair.gates.filter(status=Gate.Status.PASSED).exists():
        raise EvidenceRefused(
            f"the gate of repair {repair.pk} was passed on what was shown until then; "
            "nothing is added after that"
        )


class _Watched:
    """Lets a file go by, and stops it as soon as it cannot be taken."""

    def __init__(self, name: str, chunks: Iterable[bytes]) -> None:
        self.name = name
        self.media_type = ""
        self._chunks = iter(chunks)
        self._size = 0

    def chunks(self, sha256: str) -> Iterator[bytes]:
        """Yield what comes, checked; at the end what was said of its digest has to be true."""
        head = self._head()
        kind = kind_of(self.name, head)
        self.media_type = kind.media_type
        text = TextCheck(self.name) if kind.is_text else None
        digest = hashlib.sha256()
        for chunk in itertools.chain((head,), self._rest()):
            digest.update(chunk)
            if text is not None:
                text.feed(chunk)
            yield chunk
        if text is not None:
            text.feed(b"", is_last=True)
        if sha256 and digest.hexdigest() != sha256:
            raise EvidenceRefused(
                f"{self.name} arrived with SHA-256 {digest.hexdigest()}, {sha256} was said; "
                "send it again"
            )

    def _head(self) -> bytes:
        head = b""
        for chunk in self._rest():
            head += chunk
            if len(head) >= HEAD_BYTES:
                break
        return head

    def _rest(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._size += len(chunk)
            if self._size > settings.EVIDENCE_MOST_BYTES:
                raise EvidenceTooLarge(
                    f"{self.name} has more than {settings.EVIDENCE_MOST_BYTES // 2**20} MiB, "
                    "which is the largest that is kept"
                )
            yield chunk
