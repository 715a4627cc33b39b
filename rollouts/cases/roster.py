"""`machines.csv`: who took part, in which arm, since when, and with which attributes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rollouts.analysis.samples import BoolArray, FloatArray
from rollouts.cases.csvfile import BadCell, CsvFile, number_in, text_in, time_in
from rollouts.cases.slips import SlipKind
from rollouts.errors import CaseRefused

CANARY, CONTROL = "canary", "control"


@dataclass(frozen=True)
class Roster:
    """The machines of both arms in order of name; `left` is infinite for those still there.

    `index` finds a machine of either arm; `others` are of other groups, `dropped` had a bad row.
    """

    names: list[str]
    is_canary: BoolArray
    enrolled: FloatArray
    left: FloatArray
    attributes: Mapping[str, tuple[str, ...]]
    index: Mapping[str, int]
    others: set[str]
    dropped: set[str]

    def position(self, machine: str) -> int | None:
        """Where the machine stands; None if it belongs to another group."""
        position = self.index.get(machine)
        if position is not None or machine in self.others:
            return position
        if machine in self.dropped:
            raise BadCell(
                "machine", machine, SlipKind.MACHINE_LEFT_OUT, "a machine whose own row is good"
            )
        kind = SlipKind.UNKNOWN_MACHINE if machine else SlipKind.MISSING_VALUE
        raise BadCell("machine", machine, kind, "a machine of machines.csv")


def read_roster(
    table: CsvFile, *, arms: Mapping[str, Sequence[str]], attributes: Sequence[str]
) -> Roster:
    """Read the machines of both arms; those of other groups are only counted."""
    arm_of = {value: arm for arm in (CANARY, CONTROL) for value in arms[arm]}
    kept: dict[str, _Row] = {}
    others: set[str] = set()
    dropped: set[str] = set()
    groups: Counter[str] = Counter()
    for line, (machine, group, enrolled_at, left_at, *cells) in table.rows(*attributes):
        try:
            if text_in(machine, column="machine") in kept or machine in others:
                raise BadCell("machine", machine, SlipKind.DUPLICATE, "every machine once")
            groups[text_in(group, column="arm")] += 1
            if group in arm_of:
                stay = _stay(enrolled_at, left_at)
                kept[machine] = _Row(arm_of[group] == CANARY, *stay, tuple(cells))
            else:
                others.add(machine)
        except BadCell as bad:
            table.slip(line, bad)
            dropped.add(machine)
    _require_arms(table, arms, groups)
    _require_both(table, kept, groups=groups)
    dropped -= kept.keys() | others  # a second row of a machine does not take the first away
    return _in_order(kept, attributes, others=others, dropped=dropped)


class _Row(NamedTuple):
    is_canary: bool
    enrolled: float
    left: float
    cells: tuple[str, ...]


def _stay(enrolled_at: str, left_at: str) -> tuple[float, float]:
    enrolled = time_in(enrolled_at, column="enrolled_at")
    left = time_in(left_at, column="left_at") if left_at else math.inf
    if left < enrolled:
        raise BadCell(
            "left_at", left_at, SlipKind.END_BEFORE_START, f"a time not before {enrolled_at}"
        )
    return enrolled, left


def _require_arms(
    table: CsvFile, arms: Mapping[str, Sequence[str]], groups: Mapping[str, int]
) -> None:
    """Every value that the policy names must stand in the file, or it was misspelt."""
    column = table.columns["arm"]
    if not groups:
        raise CaseRefused(f"{table.name}: no row with a machine; accepted: at least one per arm")
    seen = ", ".join(f"{value!r} ({groups[value]})" for value in sorted(groups)[:20])
    more = f" and {len(groups) - 20} more" if len(groups) > 20 else ""
    for arm in (CANARY, CONTROL):
        for value in arms[arm]:
            if value not in groups:
                raise CaseRefused(
                    f"{table.name}, column {column}: no row carries {value!r}, which the policy "
                    f"takes as {arm}; accepted: values of the column, which are {seen}{more}. "
                    f'The policy says which is which: "arms": {{"canary": [...], '
                    '"control": [...]}'
                )


def _require_both(table: CsvFile, kept: Mapping[str, _Row], *, groups: Mapping[str, int]) -> None:
    """Where bad rows are left out, an arm may have nobody left."""
    seen = Counter(CANARY if row.is_canary else CONTROL for row in kept.values())
    for arm in (CANARY, CONTROL):
        if not seen[arm]:
            raise CaseRefused(
                f"{table.name}: none of the {sum(groups.values())} rows with a group is a good row "
                f"of the {arm}; accepted: at least one good row per arm"
            )


def _in_order(
    kept: Mapping[str, _Row], attributes: Sequence[str], *, others: set[str], dropped: set[str]
) -> Roster:
    names = sorted(kept)
    rows = [kept[name] for name in names]
    return Roster(
        names=names,
        is_canary=np.array([row.is_canary for row in rows], dtype=np.bool_),
        enrolled=np.array([row.enrolled for row in rows], dtype=np.float64),
        left=np.array([row.left for row in rows], dtype=np.float64),
        attributes={
            name: tuple(row.cells[position] for row in rows)
            for position, name in enumerate(attributes)
        },
        index={name: position for position, name in enumerate(names)},
        others=others,
        dropped=dropped,
    )


def numbers_of(roster: Roster, *, column: str, file: str) -> FloatArray:
    """An attribute as numbers, NaN where the cell is empty."""
    values = np.full(len(roster.names), np.nan)
    for position, cell in enumerate(roster.attributes[column]):
        if not cell:
            continue
        try:
            values[position] = number_in(cell, column=column)
        except BadCell as bad:
            raise CaseRefused(
                f"{file}, machine {roster.names[position]}, column {column}: {bad.value!r}; "
                f"accepted: {bad.accepted}, or nothing where it is unknown"
            ) from bad
    return values
