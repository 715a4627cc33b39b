"""A recorded case as the history of a fix: some groups were fixed, the others were not."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from rollouts.analysis.episodes import Events, episodes, family_events
from rollouts.analysis.exposure import service_spans
from rollouts.analysis.fixes.history import FixHistory
from rollouts.analysis.samples import FloatArray, IntArray, Samples
from rollouts.cases import Case, read_case
from rollouts.cases.csvfile import BadCell, time_in
from rollouts.errors import CaseRefused
from rollouts.fixes.asked import Asked, Told
from rollouts.policies import Document

#: Names that the columns of machines.csv may also have, the first that is there.
ALSO_CALLED: Mapping[str, tuple[str, ...]] = {
    "arm": ("arm", "group"),
    "enrolled_at": ("enrolled_at", "in_service_from"),
    "left_at": ("left_at", "in_service_to"),
}
#: When each machine was fixed; without this column, when it came into service.
FIXED_AT = "fixed_at"
#: Recovery paths that cost the whole job its progress.
SEVERE = ("job_restarted_from_checkpoint", "job_lost")
GAP_SECONDS = 900.0
#: Names of signatures that a refusal lists.
MOST_NAMED = 10


@dataclass(frozen=True)
class Arms:
    """Groups of machines.csv: those that were fixed, and those that were not."""

    fixed: tuple[str, ...]
    unfixed: tuple[str, ...]


def read_history(
    folder: Path,
    *,
    signatures: Sequence[str],
    document: Document | None = None,
    arms: Arms | None = None,
) -> Asked:
    """Read a folder as the history of a fix.

    Parameters
    ----------
    folder : Path
        With machines.csv and faults.csv, and service_intervals.csv, recoveries.csv if there are.
    signatures : sequence of str
        Patterns of the faults that the fix was made for.
    document : dict, optional
        A policy whose columns, arms, window and strata are taken; its guardrails play no part.
    arms : Arms, optional
        Which groups were fixed; goes before the policy's.

    Raises
    ------
    CaseRefused
        A file is missing or wrong, or no fault is called so.
    PolicyRefused
        The policy contradicts the schema or itself.
    """
    rows = _Rows(folder)
    case = read_case(folder, _document(rows, document or {}, arms=arms))
    samples, pattern = case.samples, tuple(signatures)
    known = samples.faults.signatures if samples.faults is not None else ()
    _require_match(known, pattern)
    others, signature = _others(samples, pattern=pattern)
    machine, start, end = service_spans(samples)
    interruptions, path, lost, paths = _interruptions(samples)
    history = FixHistory(
        window_seconds=samples.window_seconds,
        fixed_seconds=_fixed_seconds(case, rows),
        stratum=samples.units.stratum[samples.machines.unit],
        entered_seconds=samples.machines.enrolled_seconds,
        span_machine=machine,
        span_start_seconds=start,
        span_end_seconds=end,
        episodes=episodes(family_events(samples, patterns=pattern), gap_seconds=GAP_SECONDS),
        others=others,
        signature=signature,
        signatures=known,
        interruptions=interruptions,
        path=path,
        lost_hours=lost,
        paths=paths,
        severe_paths=SEVERE,
    )
    told = Told(
        fix=case.name,
        signatures=pattern,
        since=samples.origin,
        until=samples.origin + timedelta(seconds=samples.window_seconds),
        is_recorded=True,
        notes=(*rows.notes, *_left_out(case)),
    )
    return Asked(history, told)


# --- which groups, which columns -----------------------------------------------------------------


class _Rows:
    """machines.csv as plain text, for what the reader of cases does not ask; it checks the rest."""

    def __init__(self, folder: Path) -> None:
        self.notes: list[str] = []
        self.rows: list[dict[str, str]] = []
        self.header: Sequence[str] = ()
        try:
            with (folder / "machines.csv").open(encoding="utf-8-sig", newline="") as handle:
                reader = csv.DictReader(handle)
                self.header = reader.fieldnames or ()
                self.rows = [dict(row) for row in reader]
        except (OSError, UnicodeDecodeError, csv.Error):
            return  # the reader of cases says what is wrong with it

    def column(self, name: str) -> list[str]:
        return [row.get(name) or "" for row in self.rows]


def _document(rows: _Rows, given: Document, *, arms: Arms | None) -> Document:
    """The policy, with what it leaves open read off the file."""
    document: dict[str, Any] = dict(given)
    columns = {name: dict(parts) for name, parts in document.get("columns", {}).items()}
    machines = columns.setdefault("machines", {})
    for part, names in ALSO_CALLED.items():
        found = next((name for name in names if name in rows.header), None)
        if found is not None:
            machines.setdefault(part, found)
    document["columns"] = columns
    arms = arms or (None if "arms" in document else _arms(rows, machines))
    if arms is not None:
        document["arms"] = {"canary": list(arms.fixed), "control": list(arms.unfixed)}
    document.setdefault("bad_rows", "report")
    document["guardrails"] = [
        {"metric": "faults", "signatures": ["*"]},
        {"metric": "lost_work"},
    ]
    return document


def _arms(rows: _Rows, columns: Mapping[str, str]) -> Arms | None:
    """Of two groups that nobody named, the one that came into service later was fixed."""
    first: dict[str, list[str]] = {}
    groups = rows.column(columns.get("arm", "arm"))
    for group, entered in zip(groups, rows.column(columns.get("enrolled_at", "")), strict=True):
        first.setdefault(group, []).append(entered)
    if len(first) != 2 or {"canary", "control"} == set(first):
        return None
    middle = {group: sorted(times)[len(times) // 2] for group, times in first.items()}
    old, new = sorted(middle, key=lambda group: (middle[group], group))
    rows.notes.append(
        f"nobody said which group was fixed; {new!r}, which came into service later than {old!r}, "
        "was taken"
    )
    return Arms((new,), (old,))


def _fixed_seconds(case: Case, rows: _Rows) -> FloatArray:
    """When each machine was fixed: by its own column, else when it came into service."""
    samples = case.samples
    is_fixed = samples.units.is_canary[samples.machines.unit]
    entered = samples.machines.enrolled_seconds
    if FIXED_AT not in rows.header:
        return np.where(is_fixed, entered, math.inf)
    told = dict(zip(rows.column("machine"), rows.column(FIXED_AT), strict=True))
    origin = samples.origin.timestamp()
    fixed = np.full(entered.size, math.inf)
    for index, name in enumerate(samples.machines.name):
        if told.get(name):
            fixed[index] = _time(told[name], machine=name) - origin
    return fixed


def _time(cell: str, *, machine: str) -> float:
    try:
        return time_in(cell, column=FIXED_AT)
    except BadCell as bad:
        raise CaseRefused(
            f"machines.csv, machine {machine}, column {FIXED_AT}: {cell!r}; "
            f"accepted: {bad.accepted}, or nothing for a machine that was not fixed"
        ) from bad


def _require_match(known: Sequence[str], patterns: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            shown = ", ".join(known[:MOST_NAMED]) + (", ..." if len(known) > MOST_NAMED else "")
            raise CaseRefused(
                f"no row of faults.csv matches {pattern!r}; its signatures are {shown or 'none'}"
            )


# --- what else happened --------------------------------------------------------------------------


def _others(samples: Samples, *, pattern: tuple[str, ...]) -> tuple[Events, IntArray]:
    """Episodes of every signature that the patterns do not match, each signature by itself."""
    machine, time, code = [], [], []
    known = samples.faults.signatures if samples.faults is not None else ()
    for index, name in enumerate(known):
        if any(fnmatchcase(name, glob) for glob in pattern):
            continue
        exactly = (name.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]"),)
        found = episodes(family_events(samples, patterns=exactly), gap_seconds=GAP_SECONDS)
        machine.append(found.machine)
        time.append(found.time_seconds)
        code.append(np.full(found.machine.size, index, dtype=np.int64))
    if not machine:
        return Events(np.empty(0, dtype=np.int64), np.empty(0)), np.empty(0, dtype=np.int64)
    return Events(np.concatenate(machine), np.concatenate(time)), np.concatenate(code)


def _interruptions(samples: Samples) -> tuple[Events, IntArray, FloatArray, tuple[str, ...]]:
    rows = samples.recoveries
    if rows is None:
        nothing = Events(np.empty(0, dtype=np.int64), np.empty(0))
        return nothing, np.empty(0, dtype=np.int64), np.empty(0), ()
    known = np.isfinite(rows.recovery_seconds) | np.isfinite(rows.repeated_seconds)
    seconds = np.nan_to_num(rows.recovery_seconds) + np.nan_to_num(rows.repeated_seconds)
    lost = np.where(known, seconds / 3_600.0, np.nan)
    return Events(rows.machine, rows.time_seconds), rows.path, lost, rows.paths


def _left_out(case: Case) -> Iterator[str]:
    for one in case.left_out_rows:
        kind = one.kind.replace("_", " ")
        yield f"left out: {one.count} rows of {one.file} ({kind}); the first: {one.first}"
    if case.left_out_machines:
        yield f"left out: {case.left_out_machines} machines of other groups"
