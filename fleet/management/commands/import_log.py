"""`manage.py import_log`: take the faults of a log file into the product's own."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.core.management.base import CommandError, CommandParser

from fleet import clock, services, tasks
from fleet.adapters import Report, bgl_log, kernel_log, redfish_log
from fleet.bulk import batches
from fleet.errors import AdapterFailed
from fleet.hints import hint
from fleet.management.explained import ExplainedCommand
from fleet.models import Machine

EPILOG = """\
Formats:
  redfish   a LogEntryCollection with its members expanded, as JSON; needs --machine
  kernel    lines of a kernel log (dmesg -T, a journal, or with --booted-at seconds since boot);
            Xid and SXid lines are read; needs --machine
  bgl       the raw log of a Blue Gene/L; its places are the machines' names, and --level says
            how far apart lines may lie to be one fault: location, midplane or system

Times without a zone are taken to be in --zone, which is UTC by default. A file that is read again
changes nothing. Faults of machines that are not registered are refused and counted.

  python3 manage.py import_log --format redfish --machine node-7 iml.json
  dmesg -T | python3 manage.py import_log --format kernel --machine node-7 --zone Europe/Oslo -

exit status: 0 read, 1 refused as a whole (nothing of the file was taken) or in part
"""
CHUNK = 5000
FORMATS = ("redfish", "kernel", "bgl")


class Command(ExplainedCommand):
    """Reads a file, records faults, prints what became of them."""

    help = "Import faults from a log: Redfish, kernel or Blue Gene/L."
    epilog = EPILOG

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", metavar="FILE", help="- reads the standard input")
        parser.add_argument("--format", required=True, choices=FORMATS)
        parser.add_argument("--machine", default="", metavar="NAME")
        parser.add_argument("--level", default="location", choices=[*bgl_log.Level])
        parser.add_argument("--zone", default="UTC", type=_zone, metavar="NAME")
        parser.add_argument("--booted-at", type=_time, metavar="TIME")
        parser.add_argument(
            "--dry-run", action="store_true", help="print what there is, record nothing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["format"] != "bgl":
            self._need_machine(options["machine"])
        try:
            with _opened(options["file"]) as stream:
                reports = _reports(stream, options)
                if options["dry_run"]:
                    self._show(reports)
                else:
                    self._take(reports, source=f"log:{options['format']}")
        except (AdapterFailed, UnicodeDecodeError, OSError) as error:
            raise CommandError(f"{options['file']}: {error}") from error

    def _need_machine(self, name: str) -> None:
        if not Machine.objects.filter(name=name).exists():
            raise CommandError(f"--machine {name!r}: no machine has that name")

    def _show(self, reports: Iterable[Report]) -> None:
        counts = Counter(str(report.fields["signature"]) for report in reports)
        for signature, count in counts.most_common():
            self.stdout.write(f"{count:>8}  {signature}")
        self.stdout.write(f"{counts.total():>8}  faults")

    def _take(self, reports: Iterable[Report], *, source: str) -> None:
        accepted = duplicates = 0
        refused: Counter[str] = Counter()
        for chunk in batches(reports, size=CHUNK):
            result = services.record(chunk, source=source, key=_key(chunk), now=clock.now())
            accepted += result.accepted
            duplicates += result.duplicates
            refused.update(f"{one.field}: {one.reason}" for one in result.refused)
        hint(tasks.follow_up)
        self.stdout.write(f"faults: {accepted} recorded, {duplicates} there already")
        if refused:
            reasons = "; ".join(f"{count} because of {why}" for why, count in refused.items())
            raise CommandError(f"{refused.total()} refused: {reasons}")


def _reports(stream: TextIO, options: dict[str, Any]) -> Iterator[Report]:
    machine, zone = options["machine"], options["zone"]
    if options["format"] == "redfish":
        return redfish_log.faults(redfish_log.entries(_document(stream)), machine=machine)
    if options["format"] == "kernel":
        clocks = kernel_log.Clocks(zone, booted_at=options["booted_at"])
        return kernel_log.faults(stream, machine=machine, clocks=clocks)
    return bgl_log.faults(bgl_log.read(stream, zone=zone), level=bgl_log.Level(options["level"]))


def _document(stream: TextIO) -> Any:
    try:
        return json.load(stream)
    except ValueError as error:
        raise AdapterFailed(f"is no JSON: {error}") from error


@contextmanager
def _opened(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stdin
        return
    with Path(name).open(encoding="utf-8") as stream:
        yield stream


def _key(chunk: list[Report]) -> str:
    """Name a chunk by what is in it, so that the same file read again is the same delivery."""
    text = json.dumps([report.fields for report in chunk], sort_keys=True, default=str)
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise CommandError(
            f"--zone {name!r} is no known zone; such as UTC or Europe/Oslo"
        ) from error


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise CommandError(f"--booted-at {text!r}: RFC 3339 with zone is needed")
    return time
