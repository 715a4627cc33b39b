"""A pause freezes clock and evidence: its time is cut out of the samples, for both arms alike."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from rollouts.analysis.samples import BoolArray, FloatArray, Samples


@dataclass(frozen=True)
class Pause:
    """A half-open interval [start, end) of the comparison's time that does not count."""

    start_seconds: float
    end_seconds: float


def without_pauses(samples: Samples, pauses: Sequence[Pause]) -> Samples:
    """Return the samples as if the pauses had taken no time.

    Parameters
    ----------
    samples : Samples
    pauses : sequence of Pause
        Disjoint, in order, in seconds since the samples' origin. What lies before the origin
        does not matter: the period before is not part of the window.

    Returns
    -------
    Samples
        Faults and interruptions that began in a pause and observations that touch one are left
        out; every later time is moved back by the length of the pauses before it. Install
        attempts are kept: what is in flight goes to its end whatever the rollout does.

    Examples
    --------
    >>> round(float(_moved(np.array([5.0, 25.0]), [Pause(10.0, 20.0)])[1]), 1)
    15.0
    """
    cut = [
        Pause(max(pause.start_seconds, 0.0), pause.end_seconds)
        for pause in pauses
        if pause.end_seconds > 0
    ]
    if not cut:
        return samples
    return replace(
        samples,
        as_of_seconds=float(_moved(np.array([samples.as_of_seconds]), cut)[0]),
        units=_moved_table(samples.units, cut),
        machines=_moved_table(samples.machines, cut),
        service=_moved_table(samples.service, cut),
        faults=_moved_table(_kept(samples.faults, cut, time="time_seconds"), cut),
        observations=_moved_table(_kept_whole(samples.observations, cut), cut),
        recoveries=_moved_table(_kept(samples.recoveries, cut, time="time_seconds"), cut),
        attempts=_moved_table(samples.attempts, cut),
    )


#: Lengths of time, not instants.
_DURATIONS = frozenset({"in_service_seconds", "recovery_seconds", "repeated_seconds"})


def _moved(times: FloatArray, pauses: Sequence[Pause]) -> FloatArray:
    moved = times.astype(np.float64, copy=True)
    for pause in pauses:
        length = pause.end_seconds - pause.start_seconds
        moved -= np.clip(times - pause.start_seconds, 0.0, length)
    return moved


def _moved_table(table: Any, pauses: Sequence[Pause]) -> Any:
    if table is None:
        return table
    instants = [
        field.name
        for field in fields(table)
        if field.name.endswith("_seconds") and field.name not in _DURATIONS
    ]
    changes: dict[str, Any] = {name: _moved(getattr(table, name), pauses) for name in instants}
    return replace(table, **changes)


def _kept(table: Any, pauses: Sequence[Pause], *, time: str) -> Any:
    if table is None:
        return table
    at = getattr(table, time)
    return _rows(table, ~_within(at, pauses))


def _within(at: FloatArray, pauses: Sequence[Pause]) -> BoolArray:
    inside = np.zeros(at.shape, dtype=np.bool_)
    for pause in pauses:
        inside |= (at >= pause.start_seconds) & (at < pause.end_seconds)
    return inside


def _kept_whole(table: Any, pauses: Sequence[Pause]) -> Any:
    if table is None:
        return table
    start, end = table.start_seconds, table.end_seconds
    touches = np.zeros(start.shape, dtype=np.bool_)
    for pause in pauses:
        touches |= (start < pause.end_seconds) & (end > pause.start_seconds)
    return _rows(table, ~touches)


def _rows(table: Any, keep: BoolArray) -> Any:
    """Keep some rows of every column; names and codes' labels stay as they are."""
    columns: dict[str, Any] = {
        field.name: value[keep]
        for field in fields(table)
        if isinstance(value := getattr(table, field.name), np.ndarray)
    }
    if isinstance(severity := getattr(table, "severity", None), tuple):
        columns["severity"] = tuple(
            name for name, is_kept in zip(severity, keep, strict=True) if is_kept
        )
    return replace(table, **columns)
