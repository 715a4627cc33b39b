"""`manage.py stragglers`: which machine of a synchronous job is slow, and since when."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from django.core.management.base import BaseCommand, CommandError, CommandParser

from rollouts.analysis.errors import AnalysisError
from rollouts.analysis.stragglers import Shift, shifts
from rollouts.cases.steps import StepTimes, read_steps
from rollouts.errors import CaseRefused

BAD_INPUT = 2

EPILOG = """\
The file has one row per worker and step. Each worker is compared with the median worker of the
same step; what slows all of them does not show. The answer is about a machine: it says nothing of
firmware, and nothing halts on it. Nothing is stored, and no database is needed.

example:
  manage.py stragglers recording/observations.csv --step iteration --time batch_time_norm
"""


class Command(BaseCommand):
    """Reads a file, prints the largest change of pace of each worker."""

    help = "Find the slow machine of a synchronous job in a CSV file of its workers' step times."
    requires_system_checks = ()
    requires_migrations_checks = False

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name,
            subcommand,
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **kwargs,
        )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument("--worker", default="worker", metavar="COLUMN")
        parser.add_argument("--step", default="step", metavar="COLUMN", help="a number")
        parser.add_argument("--time", default="seconds", metavar="COLUMN", help="per step")
        parser.add_argument("--seed", type=int, default=1, help="of the intervals' bootstrap")
        parser.add_argument("--json", action="store_true", dest="is_json")

    def handle(self, *, file: Path, seed: int, is_json: bool, **options: Any) -> None:
        if seed < 0:
            raise CommandError(f"--seed: got {seed}; accepted: a number of at least 0")
        try:
            given = read_steps(
                file, worker=options["worker"], step=options["step"], time=options["time"]
            )
            found = shifts(given.seconds, workers=given.workers, rng=np.random.default_rng(seed))
        except (CaseRefused, AnalysisError) as error:
            self.stderr.write(f"stragglers: bad input\n{error}")
            sys.exit(BAD_INPUT)
        if is_json:
            document = {"workers": [_as_json(shift, given) for shift in found]}
            self.stdout.write(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False))
        else:
            self.stdout.write("\n".join(_lines(found, given)))


def _as_json(shift: Shift, given: StepTimes) -> dict[str, Any]:
    """With the file's own names of the steps beside their indices."""
    spell = shift.spell
    return {
        **asdict(shift),
        "step_name": given.steps[shift.step],
        "spell": spell
        and {
            **asdict(spell),
            "first_name": given.steps[spell.first],
            "last_name": given.steps[spell.last],
        },
    }


def _lines(found: tuple[Shift, ...], given: StepTimes) -> list[str]:
    lines = [
        (
            f"{len(given.workers)} workers, {len(given.steps)} steps; "
            "pace is time over that of the median worker, above 1 is slower"
        ),
        (
            f"{'worker':20} {'change':>8} {'95 % interval':>16} {'from step':>10} {'between':>15}"
            f" {'before':>7} {'after':>7}  worst spell"
        ),
    ]
    for shift in found:
        spell = shift.spell
        interval = f"{shift.interval.low:.3f}-{shift.interval.high:.3f}"
        between = f"{given.steps[shift.earliest]}-{given.steps[shift.latest]}"
        worst = (
            f"{spell.ratio:.2f} at steps {given.steps[spell.first]}-{given.steps[spell.last]}"
            if spell
            else "none"
        )
        lines.append(
            f"{shift.worker:20} {shift.ratio:>8.3f} {interval:>16} {given.steps[shift.step]:>10}"
            f" {between:>15} {shift.before:>7.3f} {shift.after:>7.3f}  {worst}"
        )
    return lines
