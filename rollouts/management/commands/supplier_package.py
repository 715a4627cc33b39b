"""`manage.py supplier_package`: what a supplier may see of a case, as a file."""

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from fleet import clock
from fleet.management.explained import ExplainedCommand
from rollouts import services
from rollouts.errors import PackageRefused
from rollouts.models import SupplierPackage
from rollouts.supplier import gather

BAD_INPUT = 2

EPILOG = """\
Only named fields leave: signatures of the catalogue, components, versions, serial numbers of
parts, results of checks, times in UTC. Machines and jobs become M1, J1. A free text stays here
unless it is let through by its key; --list shows the keys and the texts as they would leave.

Each package is written down with its digest, who made it, and what was left out.

examples:
  manage.py supplier_package RMA-1017 --list
  manage.py supplier_package RMA-1017 --format html --out case.html --text repair-12
"""


class Command(ExplainedCommand):
    """Writes the file and says its digest."""

    help = "Make the package of a supplier's case: HTML, JSON or CSV, with internal names left out."
    epilog = EPILOG

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("case", metavar="CASE")
        parser.add_argument("--format", choices=SupplierPackage.Format.values, default="json")
        parser.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
        parser.add_argument("--text", action="append", default=[], dest="texts", metavar="KEY")
        parser.add_argument("--list", action="store_true", dest="is_listed")
        parser.add_argument("--actor", default="command line", help="who is written down")

    def handle(self, *, case: str, texts: list[str], **options: Any) -> None:
        now = clock.now()
        try:
            if options["is_listed"]:
                for text in gather(case, now=now).texts:
                    self.stdout.write(f"{text.key}\t{text.field}\t{text.text}")
                return
            record, content = services.make_package(
                case, form=options["format"], texts=texts, actor=options["actor"], now=now
            )
        except PackageRefused as error:
            self.stderr.write(f"supplier_package: bad input\n{error}")
            sys.exit(BAD_INPUT)
        if options["out"] is None:
            self.stdout.write(content.decode(), ending="")
        else:
            options["out"].write_bytes(content)
        left_out = ", ".join(f"{name} {count}" for name, count in record.left_out.items())
        self.stderr.write(f"sha256 {record.sha256}; left out: {left_out or 'nothing'}")
