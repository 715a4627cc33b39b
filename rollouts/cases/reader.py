"""Folder and policy → samples, looks and what was left out; the recorded twin of aggregation."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from rollouts.analysis.policy import Metric, Policy
from rollouts.analysis.samples import (
    FaultEvents,
    FloatArray,
    IntArray,
    Machines,
    ObservationRows,
    Samples,
    Units,
)
from rollouts.cases import events
from rollouts.cases.csvfile import BadCell, CsvFile, time_in
from rollouts.cases.roster import Roster, numbers_of, read_roster
from rollouts.cases.slips import LeftOut, Slips
from rollouts.errors import CaseRefused, PolicyRefused
from rollouts.policies import Document, case_from, default, policy_from, schema

FILE_METRICS: Mapping[str, frozenset[Metric]] = {
    "faults": frozenset({Metric.FAULTS, Metric.NOVEL_SIGNATURES}),
    # observations are also the sign of life of the fault guardrails
    "observations": frozenset(
        {Metric.THROUGHPUT, Metric.TELEMETRY, Metric.FAULTS, Metric.NOVEL_SIGNATURES}
    ),
    "recoveries": frozenset({Metric.RECOVERY_TIME, Metric.SEVERE_PATH, Metric.LOST_WORK}),
    "attempts": frozenset({Metric.INSTALL}),
}
"""Which guardrails read which file; what no guardrail reads is not opened."""

OBSERVED = frozenset({Metric.THROUGHPUT, Metric.TELEMETRY})
"""What cannot be judged without observations."""


@dataclass(frozen=True)
class Case:
    """A recorded comparison, ready to be judged.

    `policy` is the one that was asked for, fitted to a short recording where `caveats` say so;
    `notes` say what a reader of the report should know besides.
    `attributes` holds the extra columns of `machines.csv` that the policy names, in the order of
    `samples.machines`.
    """

    name: str
    policy: Policy
    samples: Samples
    left_out_machines: int
    left_out_rows: tuple[LeftOut, ...]
    caveats: tuple[str, ...]
    notes: tuple[str, ...]
    attributes: Mapping[str, tuple[str, ...]]

    @property
    def machines(self) -> tuple[int, int]:
        """How many machines the canary and the control have."""
        is_canary = self.samples.units.is_canary[self.samples.machines.unit]
        return int(is_canary.sum()), int((~is_canary).sum())

    @property
    def looks_seconds(self) -> FloatArray:
        """Cutoffs of the looks, seconds since the window's start, equally spaced."""
        burn_in = self.policy.burn_in_hours * 3600
        return np.linspace(burn_in, self.samples.window_seconds, self.policy.looks + 1)[1:]


def read_case(folder: Path, document: Document | None = None) -> Case:
    """Read a recorded case; with no policy document the default policy applies.

    Raises
    ------
    CaseRefused
        A file is missing or wrong; the message names file, line, column and value.
    PolicyRefused
        The policy contradicts the schema, itself or the window that it names.
    """
    given = document or {}
    settings = case_from(given)
    policy = policy_from(given)
    if not folder.is_dir():
        raise CaseRefused(f"{folder}: no such folder; accepted: a folder with machines.csv")
    files = _Files(folder, settings["columns"], Slips(is_reported=settings["bad_rows"] == "report"))
    roster = _roster(files, settings, policy)
    tables = _tables(files, roster, policy)
    window = _window(settings["window"], roster, tables)
    policy, caveats = _fitted(policy, given, window, roster, tables)
    samples = _samples(roster, policy, window, tables)
    _require_names(samples, policy)
    return Case(
        name=settings["name"] or folder.resolve().name,
        policy=policy,
        samples=samples,
        left_out_machines=len(roster.others),
        left_out_rows=files.slips.left_out(),
        caveats=tuple(caveats),
        notes=tuple(_notes(samples, policy, files)),
        attributes=roster.attributes,
    )


# --- files ---------------------------------------------------------------------------------


class _Files:
    """The CSV files of the folder with the columns that play the parts."""

    def __init__(self, folder: Path, columns: Document, slips: Slips) -> None:
        self.folder = folder
        self.columns = columns
        self.slips = slips

    def has(self, name: str) -> bool:
        return (self.folder / f"{name}.csv").exists()

    def table(self, name: str) -> CsvFile:
        parts = schema()["$defs"]["case"]["properties"]["columns"]["properties"][name]
        mapped = self.columns.get(name, {})
        columns = {part: mapped.get(part, part) for part in parts["properties"]}
        return CsvFile(self.folder / f"{name}.csv", columns=columns, slips=self.slips)


def _roster(files: _Files, settings: Document, policy: Policy) -> Roster:
    if not files.has("machines"):
        raise CaseRefused(
            f"{files.folder}: there is no machines.csv; without machines there is no exposure. "
            "Accepted: a folder with machines.csv (machine, arm, enrolled_at, left_at)"
        )
    named = [*policy.strata, *policy.covariates.values()]
    if policy.unit != "machine":
        named.append(policy.unit)
    return read_roster(
        files.table("machines"), arms=settings["arms"], attributes=list(dict.fromkeys(named))
    )


READERS = {
    "faults": events.read_faults,
    "observations": events.read_observations,
    "recoveries": events.read_recoveries,
    "attempts": events.read_attempts,
}


def _tables(files: _Files, roster: Roster, policy: Policy) -> dict[str, Any]:
    """The tables that are there and read by a guardrail, in seconds since 1970."""
    metrics = {guardrail.metric for guardrail in policy.guardrails}
    tables: dict[str, Any] = {}
    if files.has("service_intervals"):
        tables["service"] = events.read_service(files.table("service_intervals"), roster)
    for name, read in READERS.items():
        if FILE_METRICS[name] & metrics and files.has(name):
            tables[name] = read(files.table(name), roster)
    return tables


# --- window --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Window:
    start: float
    end: float

    @property
    def hours(self) -> float:
        return (self.end - self.start) / 3600


def _window(window: Document, roster: Roster, tables: Mapping[str, Any]) -> _Window:
    """The period that the policy names, else the common span of both arms."""
    start, end = _common_span(roster, tables)
    start = _bound(window, "start", default=start)
    end = _bound(window, "end", default=end)
    if not end > start:
        reason = (
            f"window: its end {events.rfc_3339(end)} is not after its start "
            f"{events.rfc_3339(start)}; by default it is the time when both arms had machines"
        )
        raise PolicyRefused([reason])
    return _Window(start, end)


def _bound(window: Document, name: str, *, default: float) -> float:
    text = window[name]
    if text is None:
        return default
    try:
        return time_in(text, column=f"window.{name}")
    except BadCell as bad:
        raise PolicyRefused([f"{bad.column}: {bad.value!r}; accepted: {bad.accepted}"]) from bad


def _common_span(roster: Roster, tables: Mapping[str, Any]) -> tuple[float, float]:
    left = np.minimum(roster.left, _last_time(roster, tables))
    arms = (roster.is_canary, ~roster.is_canary)
    return (
        max(float(roster.enrolled[arm].min()) for arm in arms),
        min(float(left[arm].max()) for arm in arms),
    )


def _last_time(roster: Roster, tables: Mapping[str, Any]) -> float:
    """The latest time that the recording names: for machines still there it ends here."""
    columns = [roster.enrolled, roster.left]
    for table in tables.values():
        for name in ("time_seconds", "end_seconds", "recovered_seconds"):
            columns.append(getattr(table, name, np.zeros(0)))
    times = np.concatenate(columns)
    return float(times[np.isfinite(times)].max())


def _fitted(
    policy: Policy, given: Document, window: _Window, roster: Roster, tables: Mapping[str, Any]
) -> tuple[Policy, list[str]]:
    """Fit what the policy leaves open to a recording shorter than the default least observation.

    It has no burn-in, is observed as a whole before it may widen, and its throughput waits for
    every workload that both arms ran.
    """
    least = default("min_exposure_hours")
    caveats = []
    if window.hours < least:
        caveats.append(
            f"the recording's {window.hours:.4g} h are shorter than the default least observation "
            f"of {least:g} h: it is judged on what it has"
        )
        policy = _with_workloads(policy, _common_workloads(roster, tables, window))
        if "burn_in_hours" not in given and "burn_in_hours" not in given.get("window", {}):
            policy = dataclasses.replace(policy, burn_in_hours=0.0)
        if "min_exposure_hours" not in given:
            whole = window.end - window.start - policy.burn_in_hours * 3600
            policy = dataclasses.replace(policy, min_exposure_hours=max(whole, 0.0) / 3600)
    if policy.burn_in_hours >= window.hours:
        raise PolicyRefused(
            [f"burn_in_hours: {policy.burn_in_hours:g} is not below the {window.hours:g} h window"]
        )
    return policy, caveats


def _samples(roster: Roster, policy: Policy, window: _Window, tables: Mapping[str, Any]) -> Samples:
    unit, units = _units(roster, policy, start=policy.burn_in_hours * 3600)
    shifted = {name: events.shifted(table, window.start) for name, table in tables.items()}
    return Samples(
        known_signatures=_signatures_before(shifted.get("faults")),
        origin=datetime.fromtimestamp(window.start, UTC),
        as_of_seconds=window.end - window.start,
        window_seconds=window.end - window.start,
        units=units,
        machines=Machines(
            name=tuple(roster.names),
            unit=unit,
            enrolled_seconds=roster.enrolled - window.start,
            left_seconds=roster.left - window.start,
        ),
        **shifted,
    )


def _signatures_before(faults: FaultEvents | None) -> frozenset[str] | None:
    """The catalogue of before: what the recording shows before its window, if it goes so far."""
    if faults is None or not (faults.time_seconds < 0).any():
        return None
    codes = np.unique(faults.signature[faults.time_seconds < 0])
    return frozenset(faults.signatures[code] for code in codes)


# --- units ---------------------------------------------------------------------------------


def _units(roster: Roster, policy: Policy, *, start: float) -> tuple[IntArray, Units]:
    """Each machine's unit, and the units in order of name."""
    is_machine = policy.unit == "machine"
    labels = roster.names if is_machine else roster.attributes[policy.unit]
    if "" in labels:
        machine = roster.names[labels.index("")]
        raise CaseRefused(
            f"machines.csv, machine {machine}, column {policy.unit}: empty; accepted: the name "
            "of the machine's unit"
        )
    names = sorted(set(labels))
    place = {name: position for position, name in enumerate(names)}
    unit = np.array([place[label] for label in labels], dtype=np.int64)
    return unit, Units(
        placement=policy.unit,
        name=tuple(names),
        is_canary=_shared(roster, unit, roster.is_canary.tolist(), column="arm").astype(np.bool_),
        stratum=_strata(roster, unit, policy.strata),
        clock_start_seconds=np.full(len(names), start),
        covariates={
            metric: _means(numbers_of(roster, column=column, file="machines.csv"), unit)
            for metric, column in policy.covariates.items()
        },
    )


def _strata(roster: Roster, unit: IntArray, columns: Sequence[str]) -> IntArray:
    labels = list(zip(*(roster.attributes[column] for column in columns), strict=True))
    labels = labels or [()] * len(roster.names)
    codes = {label: code for code, label in enumerate(sorted(set(labels)))}
    values = [codes[label] for label in labels]
    return _shared(roster, unit, values, column=", ".join(columns)).astype(np.int64)


def _shared(roster: Roster, unit: IntArray, values: Sequence[int], *, column: str) -> IntArray:
    """One value per unit; its machines must agree."""
    array = np.array(values, dtype=np.int64)
    shared = np.zeros(int(unit.max()) + 1, dtype=np.int64)
    shared[unit] = array
    differs = np.flatnonzero(shared[unit] != array)
    if differs.size:
        one = differs[0]
        other = np.flatnonzero((unit == unit[one]) & (array != array[one]))[0]
        raise CaseRefused(
            f"machines.csv, column {column}: {roster.names[one]} and {roster.names[other]} are "
            "of one unit but differ; accepted: one value per unit"
        )
    return shared


def _means(values: FloatArray, unit: IntArray) -> FloatArray:
    """Mean over the unit's machines whose value is known; NaN where none is."""
    is_known = np.isfinite(values)
    size = int(unit.max()) + 1
    count = np.bincount(unit[is_known], minlength=size)
    total = np.bincount(unit[is_known], weights=values[is_known], minlength=size)
    return np.divide(total, count, out=np.full(size, np.nan), where=count > 0)


# --- names and notes -----------------------------------------------------------------------


def _common_workloads(
    roster: Roster, tables: Mapping[str, Any], window: _Window
) -> tuple[str, ...]:
    """What both arms ran within the window."""
    if "observations" not in tables:
        return ()
    rows: ObservationRows = tables["observations"]
    counts = (rows.start_seconds >= window.start) & (rows.end_seconds <= window.end)
    counts &= np.isfinite(rows.throughput)
    is_canary = roster.is_canary[rows.machine]
    canary, control = (
        set(rows.workload[counts & (is_canary == arm)].tolist()) for arm in (True, False)
    )
    return tuple(rows.workloads[code] for code in sorted(canary & control))


def _with_workloads(policy: Policy, workloads: tuple[str, ...]) -> Policy:
    """List these where a throughput guardrail lists none.

    A suite runs its workloads one after the other, and the first of them do not stand for all.
    """
    guardrails = (
        dataclasses.replace(guardrail, workloads=workloads)
        if guardrail.metric is Metric.THROUGHPUT and not guardrail.workloads
        else guardrail
        for guardrail in policy.guardrails
    )
    return dataclasses.replace(policy, guardrails=tuple(guardrails))


def _require_names(samples: Samples, policy: Policy) -> None:
    """A workload that the policy lists and no row carries is a misspelling."""
    if samples.observations is None:
        return
    known = samples.observations.workloads
    for guardrail in policy.guardrails:
        for workload in guardrail.workloads:
            if workload not in known:
                raise CaseRefused(
                    f"observations.csv, column workload: no row carries {workload!r}, which "
                    f"guardrail {guardrail.name} lists; accepted: {', '.join(known)}"
                )


def _notes(samples: Samples, policy: Policy, files: _Files) -> Iterator[str]:
    """What a reader of the report should know and no verdict says."""
    for name, metrics in FILE_METRICS.items():
        needing = [g.name for g in policy.guardrails if g.metric in metrics]
        if needing and not files.has(name) and name != "observations":
            yield f"there is no {name}.csv: {', '.join(needing)} cannot be judged"
    if samples.observations is None:
        needing = [g.name for g in policy.guardrails if g.metric in OBSERVED]
        if needing:
            yield f"there is no observations.csv: {', '.join(needing)} cannot be judged"
    yield from _unmatched(samples, policy)
    outside = _faults_out_of_service(samples)
    if outside:
        yield (
            f"{outside} faults in the window lie outside their machine's time in service: they "
            "count, without exposure"
        )


def _unmatched(samples: Samples, policy: Policy) -> Iterator[str]:
    if samples.faults is None:
        return
    known = samples.faults.signatures
    for guardrail in policy.guardrails:
        if guardrail.metric is not Metric.FAULTS:
            continue
        for pattern in guardrail.signatures:
            if not any(fnmatchcase(signature, pattern) for signature in known):
                shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
                yield f"no row of faults.csv matches {pattern!r}; its signatures are {shown}"


def _faults_out_of_service(samples: Samples) -> int:
    if samples.faults is None or samples.service is None:
        return 0
    faults, service = samples.faults, samples.service
    times = faults.time_seconds
    is_in_window = (times >= 0) & (times <= samples.window_seconds)
    order = np.lexsort((service.start_seconds, service.machine))
    keys = service.machine[order], service.start_seconds[order]
    # position of each fault among (machine, start): one combined sort finds all at once
    machine = np.concatenate([keys[0], faults.machine])
    moment = np.concatenate([keys[1], times])
    is_fault = np.concatenate([np.zeros(order.size), np.ones(times.size)])
    ranks = np.lexsort((is_fault, moment, machine))
    before = np.cumsum(is_fault[ranks] == 0)
    last = np.empty(machine.size, dtype=np.int64)
    last[ranks] = before - 1
    last = last[order.size :]
    is_in = np.zeros(times.size, dtype=np.bool_)
    has = last >= 0
    row = order[last[has]]
    is_in[has] = (service.machine[row] == faults.machine[has]) & (
        times[has] <= service.end_seconds[row]
    )
    return int((is_in_window & ~is_in).sum())
