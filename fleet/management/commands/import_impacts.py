"""`manage.py import_impacts`: take recorded interruptions of jobs in as impacts."""

from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from fleet import clock, services
from fleet.errors import ImportRefused
from fleet.imports import RecordedImpact, read_impacts
from fleet.management.explained import ExplainedCommand
from fleet.models import Incident, JobImpact, JobKind

EPILOG = """\
A file holds job, time, path and, if wanted, cause, recovery_seconds and repeated_seconds (or
repeated_work_seconds). An empty cell is not known and stays so; where a loss cannot be reckoned
without it, none is. Times are RFC 3339 with zone, or a day where no hour was kept.

No machine is named, so these impacts count for the whole fleet and for no platform or pool. A
second run of the same file changes nothing.

exit status: 0 taken in, 1 refused (each reason names file, line, column and value)
"""


class Command(ExplainedCommand):
    """Reads one file, records impacts, prints what of them is not known."""

    help = "Import recorded interruptions of jobs from CSV."
    epilog = EPILOG

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=Path, metavar="FILE")
        parser.add_argument("--source", required=True, metavar="NAME", help="who recorded them")
        parser.add_argument("--job-kind", default="", choices=["", *JobKind.values])
        parser.add_argument("--accelerators", type=int, default=None, help="of each job")
        for name, what in (("--path-means", "path"), ("--cause-means", "cause")):
            parser.add_argument(
                name,
                type=_pair,
                action="append",
                default=[],
                metavar="NAME=OURS",
                help=f"what a {what} of the file means; may be given several times",
            )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            recorded = read_impacts(
                options["path"],
                outcomes=JobImpact.Outcome.values,
                causes=Incident.Cause.values,
                paths=dict(options["path_means"]),
                named=dict(options["cause_means"]),
            )
        except ImportRefused as error:
            raise CommandError("\n".join(error.reasons)) from error
        known = {name: options[name] for name in ("job_kind", "accelerators")}
        result = services.record_impacts(
            [_impact(one, **known) for one in recorded],
            source=options["source"],
            now=clock.now(),
        )
        if result.refused:
            reasons = (
                f"{recorded[one.index].place}: {'; '.join(one.reasons)}" for one in result.refused
            )
            raise CommandError("\n".join(reasons))
        self.stdout.write(f"impacts: {result.accepted} recorded, {result.duplicates} there already")
        seconds = [one.repeated_seconds for one in recorded if one.repeated_seconds is not None]
        self.stdout.write(
            f"repeated work: {sum(seconds) / 3600:.1f} h, told of {len(seconds)} of {len(recorded)}"
        )


def _pair(text: str) -> tuple[str, str]:
    name, sign, ours = text.partition("=")
    if not sign or not name or not ours:
        raise ArgumentTypeError(f"{text!r}; a name, =, and what it means is needed")
    return name, ours


def _impact(one: RecordedImpact, *, job_kind: str, accelerators: int | None) -> services.Impact:
    return services.Impact(
        outcome=one.outcome,
        fault_at=one.at,
        source_key=one.key,
        job=one.job,
        job_kind=job_kind,
        cause=one.cause,
        accelerators=accelerators,
        recovery_seconds=one.recovery_seconds,
        repeated_seconds=one.repeated_seconds,
    )
