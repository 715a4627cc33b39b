"""What a file may be called and hold to be kept as evidence: names and types. Pure.

A file is never opened, unpacked or shown: its type is told by its first bytes and has to be what
its name says, so that nothing is kept under a name that hides what it is.
"""

import codecs
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleet.errors import EvidenceRefused

MOST_NAME_CHARACTERS = 120
HEAD_BYTES = 4096

#: Names that mean a device on some systems, whatever follows the dot.
RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{name}{n}" for name in ("com", "lpt") for n in range(10))}
)
#: Characters that a path, a shell, a header or a file system of some kind reads as more than text.
_MEANT_OTHERWISE = frozenset('/\\:*?"<>|')
#: Beginnings by which something that calls itself text would be run or drawn elsewhere.
_ACTIVE = (b"<!doctype", b"<html", b"<script", b"<svg", b"<?xml", b"<?php", b"mz", b"#!")


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is served, and what its first bytes have to look like."""

    media_type: str
    looks_right: Callable[[bytes], bool]
    is_text: bool = False


def _begins(*magic: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(magic)


def _is_plain(head: bytes) -> bool:
    return not head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_ACTIVE)


def _is_json(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


_TEXT = Kind("text/plain", _is_plain, is_text=True)
_GZIP = Kind("application/gzip", _begins(b"\x1f\x8b"))
_ZSTD = Kind("application/zstd", _begins(b"\x28\xb5\x2f\xfd"))
_JPEG = Kind("image/jpeg", _begins(b"\xff\xd8\xff"))
KINDS: Mapping[str, Kind] = {
    "txt": _TEXT,
    "log": _TEXT,
    "csv": Kind("text/csv", _is_plain, is_text=True),
    "json": Kind("application/json", _is_json, is_text=True),
    "pdf": Kind("application/pdf", _begins(b"%PDF-")),
    "png": Kind("image/png", _begins(b"\x89PNG\r\n\x1a\n")),
    "jpg": _JPEG,
    "jpeg": _JPEG,
    "gz": _GZIP,
    "tgz": _GZIP,
    "zst": _ZSTD,
}


def checked_name(name: str) -> str:
    """Return the name as it is kept, in one Unicode form.

    Raises
    ------
    EvidenceRefused
        If it is a path, holds characters that are not plain text, or means something elsewhere.

    Examples
    --------
    >>> checked_name("dcgm r4.log")
    'dcgm r4.log'
    """
    name = unicodedata.normalize("NFC", name)
    if not name.strip():
        raise EvidenceRefused("a file needs a name")
    if len(name) > MOST_NAME_CHARACTERS:
        raise EvidenceRefused(
            f"the name has {len(name)} characters, at most {MOST_NAME_CHARACTERS} are accepted"
        )
    hidden = [one for one in name if unicodedata.category(one)[0] == "C" or one in "\u2028\u2029"]
    if hidden:  # control characters, and those that turn the direction of what follows
        raise EvidenceRefused(f"the name {name!r} holds {hidden[0]!r}, which cannot be seen")
    if meant := sorted(_MEANT_OTHERWISE & set(name)):
        raise EvidenceRefused(f"the name {name!r} holds {' '.join(meant)}; give a plain file name")
    if name.startswith((".", "-", " ", "~")) or name.endswith((".", " ")):
        raise EvidenceRefused(f"the name {name!r} begins or ends with a dot, dash, tilde or blank")
    if name.partition(".")[0].strip().lower() in RESERVED:
        raise EvidenceRefused(f"the name {name!r} means a device on some systems")
    return name


def kind_of(name: str, head: bytes) -> Kind:
    """Return what kind of file this is, by its name and by its first bytes.

    Raises
    ------
    EvidenceRefused
        If files of that name are not kept, or the content is not what the name says.

    Examples
    --------
    >>> kind_of("report.pdf", b"%PDF-1.7").media_type
    'application/pdf'
    """
    extension = name.rpartition(".")[2].lower() if "." in name else ""
    kind = KINDS.get(extension)
    if kind is None:
        raise EvidenceRefused(
            f"files named .{extension or '(nothing)'} are not kept; accepted: "
            f"{', '.join(sorted(KINDS))}"
        )
    if not head:
        raise EvidenceRefused(f"{name} is empty, which proves nothing")
    if not kind.looks_right(head):
        raise EvidenceRefused(f"{name} does not begin as {kind.media_type} does")
    return kind


class TextCheck:
    """Watches a text go by, chunk by chunk: UTF-8 all through, without NUL."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def feed(self, chunk: bytes, *, is_last: bool = False) -> None:
        """Look at the next bytes.

        Raises
        ------
        EvidenceRefused
            If they are not text.
        """
        try:
            text = self._decoder.decode(chunk, final=is_last)
        except UnicodeDecodeError as error:
            raise EvidenceRefused(
                f"{self.name} is no text: it holds bytes that are not UTF-8"
            ) from error
        if "\0" in text:
            raise EvidenceRefused(f"{self.name} is no text: it holds NUL")
