"""`manage.py backtest`: judge a recorded case."""

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from fleet.management.explained import ExplainedCommand
from rollouts import backtest, backtest_report
from rollouts.analysis.errors import AnalysisError
from rollouts.analysis.verdicts import DecisionKind
from rollouts.cases import read_case
from rollouts.errors import CaseRefused, PolicyRefused
from rollouts.policies import load_policy

EXIT_STATUS = {DecisionKind.WIDEN: 0, DecisionKind.HOLD: 3, DecisionKind.HALT: 4}
BAD_INPUT = 2

EPILOG = """\
A case is a folder with machines.csv (machine, arm, enrolled_at, left_at) and, as far as they
were recorded, service_intervals.csv, faults.csv, observations.csv, recoveries.csv, attempts.csv.
CSV, UTF-8, a header row, times as 2026-01-31T08:00:00Z. Columns of other names, arms of other
names, the window and what is judged stand in a small policy file (JSON, TOML or YAML);
docs/cases/README.md shows how to write one. Without a policy the default policy applies.

The replay asks at every look what a rollout would have decided by then. Nothing is stored, and
no database is needed. What it says is advice: the engine did not draw the assignment.

exit status: 0 widen, 3 hold, 4 halt, 2 bad input (the reason stands on standard error)

examples:
  manage.py backtest ../recordings/gpu_batch --policy docs/cases/titan_gpu_a.json
  manage.py backtest ../recordings/gpu_batch --policy my_policy.toml --json > verdict.json
"""


class Command(ExplainedCommand):
    """Reads a folder, replays it, prints the verdict of every look."""

    help = (
        "Judge a recorded case: replay a folder of CSV files through the judge of live rollouts "
        "and print what it would have decided at every look."
    )
    epilog = EPILOG
    requires_system_checks = ()
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder with the case")
        parser.add_argument(
            "--policy",
            type=Path,
            metavar="FILE",
            help="policy file, .json, .toml or .yaml; default: the default policy",
        )
        parser.add_argument(
            "--json",
            action="store_true",
            dest="is_json",
            help="print one JSON object and nothing else on standard output",
        )
        parser.add_argument(
            "--at-decision",
            action="store_true",
            dest="is_at_decision",
            help="show estimates, intervals and counts of the deciding look, not of the window",
        )

    def handle(
        self,
        *,
        folder: Path,
        policy: Path | None,
        is_json: bool,
        is_at_decision: bool,
        **options: Any,
    ) -> None:
        try:
            document = load_policy(policy) if policy else None
            result = backtest.replay(read_case(folder, document))
        except (CaseRefused, PolicyRefused, AnalysisError) as error:
            self.stderr.write(f"backtest: bad input\n{error}")
            sys.exit(BAD_INPUT)
        report = backtest.as_document(result, is_at_decision=is_at_decision)
        if is_json:
            self.stdout.write(json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False))
        else:
            self.stdout.write(
                backtest_report.as_text(
                    result, is_at_decision=is_at_decision, is_terminal=self.stdout.isatty()
                )
            )
        sys.exit(EXIT_STATUS[result.decision])
