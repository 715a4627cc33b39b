"""`manage.py did_it_work`: did a fix reduce the faults that it was made for?"""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from fleet import clock
from fleet.errors import SelectorError
from fleet.management.explained import ExplainedCommand
from rollouts import fixes
from rollouts.analysis.errors import AnalysisError
from rollouts.analysis.fixes.answer import FixVerdict
from rollouts.errors import CaseRefused, FixRefused, PolicyRefused
from rollouts.fixes.live import Question, ask
from rollouts.fixes.report import as_document, as_text
from rollouts.policies import load_policy

EXIT_STATUS = {
    FixVerdict.REDUCED: 0,
    FixVerdict.NOT_ENOUGH: 3,
    FixVerdict.NOT_REDUCED: 4,
    FixVerdict.MOVED: 4,
}
BAD_INPUT = 2

EPILOG = """\
Of a recorded folder: machines.csv (machine, arm or group, enrolled_at, left_at, perhaps fixed_at)
and faults.csv, with service_intervals.csv and recoveries.csv where there are; --fixed and --unfixed
name the groups, or a policy file does (its columns, arms, window and strata are taken).

Of the machines here: one of --change, --bundle and --part says what was done, and when to each.

Machines that were fixed are compared with those not fixed yet, at the same time, with the machine
as the unit; before and after alone are never enough. The answer is one of: reduced, not reduced,
moved elsewhere, not enough exposure.

exit status: 0 reduced, 3 not enough exposure, 4 not reduced or moved elsewhere, 2 bad input

examples:
  manage.py did_it_work ../recordings/gpu_batch --fixed new --unfixed old --signature DBE
  manage.py did_it_work --change 12 --signature 'xid.*' --json
  manage.py did_it_work --bundle 7 --family gsp --platform hgx-h100
"""


class Command(ExplainedCommand):
    """Asks once and prints the answer with what it rests on."""

    help = (
        "Say whether a fix reduced the faults that it was made for: fixed machines against those "
        "not yet fixed, at the same time."
    )
    epilog = EPILOG

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help="recorded case")
        parser.add_argument("--change", type=int, help="number of a reported change")
        parser.add_argument("--bundle", type=int, help="number of a firmware bundle")
        parser.add_argument("--part", default="", metavar="KIND:MODEL", help="part swapped in")
        parser.add_argument(
            "--signature",
            action="append",
            default=[],
            dest="signatures",
            metavar="PATTERN",
            help="faults that it was made for, as xid.*; may be given several times",
        )
        parser.add_argument("--family", default="", help="all signatures of this family")
        parser.add_argument("--platform", default="", help="only machines of this platform")
        parser.add_argument("--selector", default="", help="only machines that match")
        parser.add_argument("--since", type=_time, help="begin of the window, with zone")
        parser.add_argument("--until", type=_time, help="end of the window, with zone")
        parser.add_argument("--fixed", action="append", default=[], metavar="GROUP")
        parser.add_argument("--unfixed", action="append", default=[], metavar="GROUP")
        parser.add_argument("--policy", type=Path, metavar="FILE", help="policy of the folder")
        parser.add_argument("--json", action="store_true", dest="is_json")

    def handle(self, *, is_json: bool, **options: Any) -> None:
        try:
            found = fixes.answered(_asked(options))
        except (CaseRefused, PolicyRefused, AnalysisError, FixRefused, SelectorError) as error:
            self.stderr.write(f"did_it_work: bad input\n{error}")
            sys.exit(BAD_INPUT)
        if is_json:
            document = as_document(found)
            self.stdout.write(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False))
        else:
            self.stdout.write(as_text(found, is_terminal=self.stdout.isatty()))
        sys.exit(EXIT_STATUS[found.answer.verdict])


def _asked(options: dict[str, Any]) -> fixes.Asked:
    folder = options["folder"]
    if folder is None:
        return ask(_question(options), now=clock.now())
    _refuse(options, ("change", "bundle", "part", "family", "platform", "selector"), "a folder")
    _refuse(options, ("since", "until"), "a folder, whose policy names the window")
    if bool(options["fixed"]) != bool(options["unfixed"]):
        raise CaseRefused("one group is named; accepted: --fixed and --unfixed, or neither")
    arms = fixes.Arms(tuple(options["fixed"]), tuple(options["unfixed"]))
    return fixes.read_history(
        folder,
        signatures=options["signatures"] or ["*"],
        document=load_policy(options["policy"]) if options["policy"] else None,
        arms=arms if arms.fixed else None,
    )


def _question(options: dict[str, Any]) -> Question:
    _refuse(options, ("fixed", "unfixed", "policy"), "the machines here; a folder has groups")
    return Question(
        signatures=tuple(options["signatures"]),
        **{name: options[name] for name in ("family", "platform", "selector", "since", "until")},
        **{name: options[name] for name in ("change", "bundle", "part")},
    )


def _refuse(options: dict[str, Any], names: tuple[str, ...], of: str) -> None:
    given = [f"--{name}" for name in names if options[name]]
    if given:
        raise CaseRefused(f"{', '.join(given)} says nothing of {of}")


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(f"{text!r} is no time; write 2026-01-31T08:00:00Z") from error
    if moment.tzinfo is None:
        raise CommandError(f"{text!r} has no zone; write 2026-01-31T08:00:00Z")
    return moment
