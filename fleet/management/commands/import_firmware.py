"""`manage.py import_firmware`: take a recorded version history into the product's own."""

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from fleet import clock, services
from fleet.errors import ImportRefused, RegistrationRefused
from fleet.imports import read_history
from fleet.management.explained import ExplainedCommand

EPILOG = """\
A folder holds version_history.csv (machine, component, version, valid_from, valid_to and, if
wanted, stage) and, where machines are not registered yet, machines.csv (machine, platform or
model, and if wanted vendor, site, pool or cluster, rack; other columns become labels); or one
history.json: {"machines": [...], "versions": [...]} with the same names. A component is a kind or
kind:slot; an empty valid_to means that the version still holds; times are RFC 3339 with zone.

Everything is taken in or nothing. A second run of the same files changes nothing. What an earlier
import recorded is never rewritten: files that say otherwise are refused.

exit status: 0 taken in, 1 refused (each reason names file, line, column and value)
"""


class Command(ExplainedCommand):
    """Reads files, appends records, prints how many were new."""

    help = "Import a recorded firmware version history from CSV or JSON."
    epilog = EPILOG

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=Path, metavar="FOLDER|FILE")
        parser.add_argument(
            "--vouched-by",
            default="",
            metavar="NAME",
            help="who says that machines registered by this import are in service; without it "
            "they wait for validation",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            history = read_history(options["path"])
            result = services.import_history(
                history, now=clock.now(), vouched_by=options["vouched_by"]
            )
        except (ImportRefused, RegistrationRefused) as error:
            raise CommandError("\n".join(error.reasons)) from error
        self.stdout.write(
            f"machines: {result.machines} registered, {result.known_machines} known already\n"
            f"records: {result.records} appended, {result.known_records} there already"
        )
