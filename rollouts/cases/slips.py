"""What is wrong with single rows of a recording, and what is done about it."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from rollouts.errors import CaseRefused


class SlipKind(StrEnum):
    """Stable names of what can be wrong with a row."""

    WRONG_NUMBER_OF_FIELDS = "wrong_number_of_fields"
    MISSING_VALUE = "missing_value"
    BAD_TIME = "bad_time"
    TIME_WITHOUT_ZONE = "time_without_zone"
    NOT_A_NUMBER = "not_a_number"
    TOO_LARGE = "too_large"
    NEGATIVE_EXPOSURE = "negative_exposure"
    NEGATIVE_VALUE = "negative_value"
    END_BEFORE_START = "end_before_start"
    OVERLAP = "overlap"
    DUPLICATE = "duplicate"
    UNKNOWN_MACHINE = "unknown_machine"
    MACHINE_LEFT_OUT = "machine_left_out"
    UNKNOWN_OUTCOME = "unknown_outcome"


@dataclass(frozen=True)
class Slip:
    """One bad row: where it stands, what it holds, what would have been accepted."""

    file: str
    line: int
    column: str
    value: str
    kind: SlipKind
    accepted: str

    def __str__(self) -> str:
        return (
            f"{self.file}, line {self.line}, column {self.column}: {shortened(self.value)!r} "
            f"({self.kind.replace('_', ' ')}); accepted: {self.accepted}"
        )


@dataclass(frozen=True)
class LeftOut:
    """How many rows of one file were left out for one kind of slip, with the first of them."""

    file: str
    kind: SlipKind
    count: int
    first: Slip


class Slips:
    """Refuses the case at the first bad row, or counts bad rows by file and kind."""

    def __init__(self, *, is_reported: bool) -> None:
        self.is_reported = is_reported
        self._counts: Counter[tuple[str, SlipKind]] = Counter()
        self._first: dict[tuple[str, SlipKind], Slip] = {}

    def add(self, slip: Slip) -> None:
        if not self.is_reported:
            raise CaseRefused(str(slip))
        key = (slip.file, slip.kind)
        self._counts[key] += 1
        first = self._first.setdefault(key, slip)
        if slip.line < first.line:
            self._first[key] = slip

    def left_out(self) -> tuple[LeftOut, ...]:
        return tuple(
            LeftOut(file, kind, self._counts[file, kind], self._first[file, kind])
            for file, kind in self._counts
        )


def shortened(text: str, *, limit: int = 60) -> str:
    """The text, or its beginning when it is long."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
