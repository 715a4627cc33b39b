"""`manage.py import_recoveries`: take a recording of faults and repairs into the history."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q

from fleet import capacity, clock, queues, services
from fleet.errors import ImportRefused, RegistrationRefused
from fleet.imports import Recording, read_outages
from fleet.management.explained import ExplainedCommand

EPILOG = """\
A folder holds machines.csv (machine, in_service_from and, if wanted, in_service_to, platform or
model, pool, cluster or group, site, rack; other columns become labels), faults.csv (machine, time,
signature, severity) and recoveries.csv (machine, time, recovered_at and, if wanted, path and
recovery_seconds). Times are RFC 3339 with zone.

A machine is out from its fault to its recovery, and stands as repairing in between: what nobody
wrote down is not made up. Outages of one machine that overlap count as one. Machines that the
recording saw leave retire then. A second run of the same files changes nothing.

exit status: 0 taken in, 1 refused (each reason names file, line, column and value)
"""
SHOWN = 10  # slips that are printed


class Command(ExplainedCommand):
    """Reads files, appends records, prints what was odd and how long repairs took."""

    help = "Import recorded faults and repairs from CSV as history."
    epilog = EPILOG

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=Path, metavar="FOLDER")
        parser.add_argument(
            "--vouched-by",
            required=True,
            metavar="NAME",
            help="who says that these machines were in service when the recording says so",
        )
        parser.add_argument(
            "--platform", default="", metavar="NAME", help="of machines whose row names none"
        )

        for name, what in (("--start", "first"), ("--end", "last")):
            parser.add_argument(
                name,
                type=_time,
                default=None,
                metavar="TIME",
                help=f"{what} time of the repairs that the printed figures are of; without: all",
            )

    def handle(self, *args: Any, **options: Any) -> None:
        now = clock.now()
        try:
            recording = read_outages(options["path"], platform=options["platform"])
            result = services.import_outages(recording, now=now, vouched_by=options["vouched_by"])
        except (ImportRefused, RegistrationRefused) as error:
            raise CommandError("\n".join(error.reasons)) from error
        span = {name: options[name] for name in ("start", "end")}
        for line in (*_counts(result), *_notes(result.notes), *_repairs(recording, **span)):
            self.stdout.write(line)


def _counts(result: services.RecordingResult) -> Iterator[str]:
    yield f"machines: {result.machines} registered, {result.known_machines} known already"
    yield f"faults: {result.faults} appended, {result.known_faults} there already"
    yield f"repairs: {result.outages} appended, {result.known_outages} there already"
    yield f"{result.joined} overlap another of the same machine and are one time out with it"


def _notes(notes: tuple[str, ...]) -> Iterator[str]:
    yield from notes[:SHOWN]
    if len(notes) > SHOWN:
        yield f"and {len(notes) - SHOWN} more"


def _time(text: str) -> datetime:
    """Read a time with zone; argparse tells the rest."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError
    return time


def _repairs(
    recording: Recording, *, start: datetime | None, end: datetime | None
) -> Iterator[str]:
    """Tell how long the repairs of each pool took, from the rows that were kept."""
    first = min((one.start for one in recording.outages), default=recording.machines[0].since)
    start = start or first
    end = end or max((one.end for one in recording.outages), default=start)
    label = Q(labels__recording=f"recording:{recording.name}")
    for pool in sorted({one.machine.pool for one in recording.machines}):
        hours = list(capacity.repair_hours(start=start, end=end, machines=label & Q(pool=pool)))
        told = queues.figures("repairing", ended=hours, horizon_hours=24.0)
        if told.median_hours is not None and told.mean_hours is not None:
            yield (
                f"{pool or 'no pool'}: {told.ended} repairs, median {told.median_hours:.2f} h, "
                f"mean {sum(hours) / len(hours):.2f} h, mean to 24 h {told.mean_hours:.2f} h"
            )
