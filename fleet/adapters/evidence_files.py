"""Keeps evidence as files below the data directory, each named by the digest of its content."""

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

from django.conf import settings

_DRAFT = ".incoming-"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class EvidenceFiles:
    """A folder of files that are written once. On several hosts it has to be a shared one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or settings.DATA_DIR / "evidence"

    def keep(self, chunks: Iterable[bytes]) -> tuple[str, int]:
        """Write what comes, and return its digest and its size.

        The file appears under its name only when it is whole and on the disk. Whatever `chunks`
        raises leaves nothing behind; a process that dies leaves a draft, which `sweep` removes.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{_DRAFT}{secrets.token_hex(16)}"
        try:
            sha256, size = _write(draft, chunks)
            self._put_in_place(draft, sha256)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()
        return sha256, size

    def open(self, sha256: str) -> BinaryIO:
        """Open a kept file for reading; `FileNotFoundError` if there is none."""
        return open(self._path(sha256), "rb")

    def sweep(
        self, *, older_than: timedelta, needed: Callable[[Collection[str]], Collection[str]]
    ) -> int:
        """Remove drafts nobody writes any more, and files of which no record tells."""
        removed = 0
        for folder in [self.folder, *self._shelves()]:
            old = [path for path in _files(folder) if _is_older(path, older_than)]
            digests = {path.name for path in old if _DIGEST.fullmatch(path.name)}
            kept = set(needed(digests)) if digests else set()
            for path in old:
                if path.name.startswith(_DRAFT) or path.name in digests - kept:
                    path.unlink(missing_ok=True)
                    removed += 1
        return removed

    def _put_in_place(self, draft: Path, sha256: str) -> None:
        target = self._path(sha256)
        target.parent.mkdir(exist_ok=True)
        # Also over the same content from before: its age then starts anew for the sweep.
        os.replace(draft, target)
        _sync_folder(target.parent)

    def _path(self, sha256: str) -> Path:
        if not _DIGEST.fullmatch(sha256):
            raise FileNotFoundError(f"{sha256!r} is no digest")
        return self.folder / sha256[:2] / sha256

    def _shelves(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return [path for path in self.folder.iterdir() if path.is_dir() and len(path.name) == 2]


def _write(draft: Path, chunks: Iterable[bytes]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
    with os.fdopen(descriptor, "wb") as file:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), size


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []


def _is_older(path: Path, age: timedelta) -> bool:
    try:
        return path.stat().st_mtime < time.time() - age.total_seconds()
    except FileNotFoundError:  # another sweep was faster
        return False
