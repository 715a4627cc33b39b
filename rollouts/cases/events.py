"""The files with what happened to machines: service, faults, observations, recoveries, attempts.

Every reader streams its file once into packed arrays of seconds since 1970 and machine indices;
a row with a slip leaves nothing behind. `shifted` moves a table to the comparison's origin.
"""

import dataclasses
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import numpy as np

from rollouts.analysis.samples import (
    AttemptRows,
    FaultEvents,
    FloatArray,
    IntArray,
    ObservationRows,
    RecoveryRows,
    ServiceIntervals,
)
from rollouts.cases.csvfile import BadCell, CsvFile, number_in, text_in, time_in
from rollouts.cases.roster import Roster
from rollouts.cases.slips import SlipKind
from rollouts.lifecycle import FAILURES, AttemptStatus

Table = TypeVar("Table", ServiceIntervals, FaultEvents, ObservationRows, RecoveryRows, AttemptRows)

OUTCOMES = (
    *(status.value for status in AttemptStatus if status in FAILURES | {AttemptStatus.SUCCEEDED}),
    "bricked",
)
"""How an attempt ends; `bricked` is what a live one becomes by triage."""


def read_service(table: CsvFile, roster: Roster) -> ServiceIntervals:
    """Half-open times in service; an empty end means that the machine is still in."""
    machine, line = array("q"), array("q")
    start, end = array("d"), array("d")
    for number, position, (start_at, end_at) in _rows_of(table, roster):
        try:
            span = _span(start_at, end_at, is_open=True)
        except BadCell as bad:
            table.slip(number, bad)
            continue
        machine.append(position)
        line.append(number)
        start.append(span[0])
        end.append(span[1])
    columns = _Columns(_ints(machine), _floats(start), _floats(end), _ints(line))
    keep = _without_overlaps(table, columns, roster)
    return ServiceIntervals(
        machine=columns.machine[keep],
        start_seconds=columns.start[keep],
        end_seconds=columns.end[keep],
    )


def read_faults(table: CsvFile, roster: Roster) -> FaultEvents:
    """Raw fault events; unknown signatures and severities are kept as they are."""
    machine, signature, severity = array("q"), array("q"), array("q")
    time = array("d")
    signatures, severities = _Codes(), _Codes()
    for number, position, (at, name, level) in _rows_of(table, roster):
        try:
            moment, code = time_in(at, column="time"), text_in(name, column="signature")
        except BadCell as bad:
            table.slip(number, bad)
            continue
        machine.append(position)
        time.append(moment)
        signature.append(signatures.code(code))
        severity.append(severities.code(level))
    names, order = signatures.sorted()
    levels = severities.names
    return FaultEvents(
        machine=_ints(machine),
        time_seconds=_floats(time),
        signature=order[_ints(signature)],
        signatures=names,
        severity=tuple(levels[code] for code in severity),
    )


def read_observations(table: CsvFile, roster: Roster) -> ObservationRows:
    """Interval reports; an empty throughput means that the machine reported none."""
    machine, workload, line = array("q"), array("q"), array("q")
    start, end, seconds, rate = array("d"), array("d"), array("d"), array("d")
    workloads = _Codes()
    for number, position, (start_at, end_at, in_service, throughput, work) in _rows_of(
        table, roster
    ):
        try:
            span = _span(start_at, end_at, is_open=False)
            exposure = _exposure(in_service)
            level = _number_or_nan(throughput, column="throughput")
        except BadCell as bad:
            table.slip(number, bad)
            continue
        machine.append(position)
        line.append(number)
        start.append(span[0])
        end.append(span[1])
        seconds.append(exposure)
        rate.append(level)
        workload.append(workloads.code(work))
    columns = _Columns(_ints(machine), _floats(start), _floats(end), _ints(line))
    keep = _without_overlaps(table, columns, roster)
    names, order = workloads.sorted()
    return ObservationRows(
        machine=columns.machine[keep],
        start_seconds=columns.start[keep],
        end_seconds=columns.end[keep],
        in_service_seconds=_floats(seconds)[keep],
        throughput=_floats(rate)[keep],
        workload=order[_ints(workload)][keep],
        workloads=names,
    )


def read_recoveries(table: CsvFile, roster: Roster) -> RecoveryRows:
    """Interruptions; without `recovered_at` not yet over, `repeated_work` in seconds."""
    machine, path = array("q"), array("q")
    time, recovered = array("d"), array("d")
    recovery, repeated = array("d"), array("d")
    paths = _Codes()
    for number, position, (at, recovered_at, way, seconds, work) in _rows_of(table, roster):
        try:
            begun, over = _interruption(at, recovered_at)
            lasted = _number_or_nan(seconds, column="recovery_seconds")
            again = _number_or_nan(work, column="repeated_work")
        except BadCell as bad:
            table.slip(number, bad)
            continue
        machine.append(position)
        time.append(begun)
        recovered.append(over)
        recovery.append(over - begun if math.isnan(lasted) else lasted)
        repeated.append(again)
        path.append(paths.code(way))
    names, order = paths.sorted()
    return RecoveryRows(
        machine=_ints(machine),
        time_seconds=_floats(time),
        recovered_seconds=_floats(recovered),
        recovery_seconds=_floats(recovery),
        repeated_seconds=_floats(repeated),
        path=order[_ints(path)],
        paths=names,
    )


def read_attempts(table: CsvFile, roster: Roster) -> AttemptRows:
    """Finished install attempts of canaries in order of time; ties by machine name."""
    machine, outcome = array("q"), array("q")
    time = array("d")
    for number, position, (at, result) in _rows_of(table, roster):
        try:
            moment = time_in(at, column="time")
            if result not in OUTCOMES:
                raise BadCell("outcome", result, SlipKind.UNKNOWN_OUTCOME, ", ".join(OUTCOMES))
        except BadCell as bad:
            table.slip(number, bad)
            continue
        if roster.is_canary[position]:
            machine.append(position)
            time.append(moment)
            outcome.append(OUTCOMES.index(result))
    order = np.lexsort((_ints(machine), _floats(time)))
    return AttemptRows(
        machine=_ints(machine)[order],
        time_seconds=_floats(time)[order],
        outcome=_ints(outcome)[order],
        outcomes=OUTCOMES,
    )


TIMES = ("time_seconds", "start_seconds", "end_seconds", "recovered_seconds")


def shifted(table: Table, origin: float) -> Table:
    """The same table with its times counted from `origin`; durations stay."""
    times = {name: getattr(table, name) - origin for name in TIMES if hasattr(table, name)}
    return dataclasses.replace(table, **times)


# --- rows and cells ------------------------------------------------------------------------


def _rows_of(table: CsvFile, roster: Roster) -> Iterator[tuple[int, int, list[str]]]:
    """Line, machine and the remaining cells of every row about a machine of either arm."""
    for line, (machine, *cells) in table.rows():
        try:
            position = roster.position(machine)
        except BadCell as bad:
            table.slip(line, bad)
            continue
        if position is not None:
            yield line, position, cells


def _span(start_at: str, end_at: str, *, is_open: bool) -> tuple[float, float]:
    start = time_in(start_at, column="start")
    end = math.inf if is_open and not end_at else time_in(end_at, column="end")
    if end < start:
        raise BadCell("end", end_at, SlipKind.END_BEFORE_START, f"a time not before {start_at}")
    return start, end


def _interruption(at: str, recovered_at: str) -> tuple[float, float]:
    begun = time_in(at, column="time")
    over = time_in(recovered_at, column="recovered_at") if recovered_at else math.nan
    if over < begun:
        raise BadCell(
            "recovered_at", recovered_at, SlipKind.END_BEFORE_START, f"a time not before {at}"
        )
    return begun, over


def _exposure(cell: str) -> float:
    try:
        return number_in(cell, column="in_service_seconds", at_least=0)
    except BadCell as bad:
        if bad.kind is SlipKind.NEGATIVE_VALUE:
            bad.kind = SlipKind.NEGATIVE_EXPOSURE
        raise


def _number_or_nan(cell: str, *, column: str) -> float:
    return number_in(cell, column=column, at_least=0) if cell else math.nan


class _Codes:
    """Gives every text a number in order of appearance."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))

    @property
    def names(self) -> list[str]:
        return list(self._codes)

    def sorted(self) -> tuple[tuple[str, ...], IntArray]:
        """The texts in order, and for each code its place there, so that row order is no matter."""
        names = sorted(self._codes)
        place = {name: position for position, name in enumerate(names)}
        return tuple(names), np.array([place[name] for name in self._codes], dtype=np.int64)


def _ints(values: "array[int]") -> IntArray:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)


def _floats(values: "array[float]") -> FloatArray:
    return np.frombuffer(values, dtype=np.float64) if values else np.zeros(0)


# --- intervals -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Columns:
    machine: IntArray
    start: FloatArray
    end: FloatArray
    line: IntArray


def _without_overlaps(table: CsvFile, rows: _Columns, roster: Roster) -> IntArray:
    """Indices of the rows to keep; of two that overlap the later start is a slip."""
    order = np.lexsort((rows.line, rows.end, rows.start, rows.machine))
    machine, start, end = rows.machine[order], rows.start[order], rows.end[order]
    same = machine[1:] == machine[:-1]
    suspects = np.unique(machine[1:][same & (start[1:] < end[:-1])])
    if not suspects.size:
        return order
    keep = np.ones(order.size, dtype=np.bool_)
    for one in suspects:
        low, high = np.searchsorted(machine, [one, one + 1])
        for later, earlier in _overlapping(start[low:high], end[low:high]):
            keep[low + later] = False
            other = int(rows.line[order[low + earlier]])
            bad = BadCell(
                "start",
                f"{rfc_3339(start[low + later])} of {roster.names[one]}",
                SlipKind.OVERLAP,
                f"a start not before {rfc_3339(end[low + earlier])}, the end in line {other}",
            )
            table.slip(int(rows.line[order[low + later]]), bad)
    return order[keep]


def _overlapping(start: FloatArray, end: FloatArray) -> list[tuple[int, int]]:
    """Each interval that begins before an earlier kept one ends, with that one; sorted by start."""
    found = []
    last = 0
    for place in range(1, start.size):
        if start[place] < end[last]:
            found.append((place, last))
        else:
            last = place
    return found


def rfc_3339(seconds: float) -> str:
    """Seconds since 1970 as people write it.

    Examples
    --------
    >>> rfc_3339(0.0)
    '1970-01-01T00:00:00Z'
    """
    if math.isinf(seconds):
        return "(still in service)"
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
