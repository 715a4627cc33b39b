"""`manage.py stragglers`: which machine of a synchronous job is slow, and since when."""

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from django.core.management.base import CommandError, CommandParser

from fleet import clock
from fleet.management.explained import ExplainedCommand
from rollouts import selectors
from rollouts.analysis.errors import AnalysisError
from rollouts.analysis.stragglers import Shift, shifts
from rollouts.cases.steps import StepTimes, read_steps, step_times
from rollouts.errors import CaseRefused

BAD_INPUT = 2
HOURS_IN_A_YEAR = 8766

EPILOG = """\
The file has one row per worker and step. Each worker is compared with the median worker of the
same step; what slows all of them does not show. The answer is about a machine: it says nothing of
firmware, and nothing halts on it. Nothing is stored. With --job the reports of the last hours that
name the job are taken instead: each interval is a step, and time is one over throughput.

examples:
  manage.py stragglers recording/observations.csv --step iteration --time batch_time_norm
  manage.py stragglers --job pretraining-7 --hours 72
"""


class Command(ExplainedCommand):
    """Reads a file, prints the largest change of pace of each worker."""

    help = "Find the slow machine of a synchronous job, from a CSV file or from what it reported."
    epilog = EPILOG
    requires_system_checks = ()
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument("file", type=Path, metavar="FILE", nargs="?")
        source.add_argument("--job", metavar="NAME", help="a job that observations name")
        parser.add_argument("--hours", type=float, default=24.0, help="of the job, until now")
        parser.add_argument("--worker", default="worker", metavar="COLUMN")
        parser.add_argument("--step", default="step", metavar="COLUMN", help="a number")
        parser.add_argument("--time", default="seconds", metavar="COLUMN", help="per step")
        parser.add_argument("--seed", type=int, default=1, help="of the intervals' bootstrap")
        parser.add_argument("--json", action="store_true", dest="is_json")

    def handle(
        self, *, file: Path | None, job: str | None, seed: int, is_json: bool, **options: Any
    ) -> None:
        if seed < 0:
            raise CommandError(f"--seed: got {seed}; accepted: a number of at least 0")
        try:
            if file is None:
                given = _reported(job or "", hours=options["hours"])
            else:
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


def _reported(job: str, *, hours: float) -> StepTimes:
    if not 0 < hours < HOURS_IN_A_YEAR:
        raise CommandError(f"--hours: got {hours:g}; accepted: above 0, below {HOURS_IN_A_YEAR}")
    now = clock.now()
    times = selectors.paces_of_job(job, since=now - timedelta(hours=hours), until=now)
    if not times:
        raise CommandError(f"no report of the last {hours:g} h names the job {job!r}")
    return step_times(
        times, name=lambda at: f"{datetime.fromtimestamp(at, tz=UTC):%Y-%m-%dT%H:%MZ}"
    )


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
