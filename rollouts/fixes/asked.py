"""What is asked about a fix: the pattern, the change, the machines, and in words what was taken."""

from dataclasses import dataclass
from datetime import datetime

from rollouts.analysis.fixes.answer import Answer, did_it_work
from rollouts.analysis.fixes.history import FixHistory


@dataclass(frozen=True)
class Told:
    """The question as it was understood, for whoever reads the answer.

    `detectors` are the versions that told of faults in the window; `notes` say what was left out
    or taken for granted.
    """

    fix: str
    signatures: tuple[str, ...]
    since: datetime
    until: datetime
    platform: str = ""
    selector: str = ""
    is_recorded: bool = False
    detectors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Asked:
    """A question with everything that its answer is computed from."""

    history: FixHistory
    told: Told


@dataclass(frozen=True, eq=False)
class Answered:
    """A question and its answer."""

    told: Told
    answer: Answer


def answered(asked: Asked) -> Answered:
    """Answer a question from what was read for it."""
    return Answered(asked.told, did_it_work(asked.history))
