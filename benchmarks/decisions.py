"""`make bench-decisions`: the product's judge, its peers and the limits on the same waves.

Exit status 1 if a criterion fails. Run `python -m benchmarks.decisions --help` for a part of it.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import catalogue, judges, picture, swift
from benchmarks.catalogue import ASYMPTOTIC_LEVEL, PROTOTYPE_SIZES, Entry, Role
from benchmarks.cells import Cell
from benchmarks.kept import Kept, Part, sources_digest
from benchmarks.statistics import (
    Check,
    Share,
    Tally,
    error_checks,
    least_check,
    paired_check,
    power_check,
    tally,
)
from benchmarks.waves import Wave, draw_rollout, draw_wave

RESULTS = Path(__file__).with_name("results")
KEPT = Path(__file__).resolve().parent.parent / "var" / "bench-decisions"
IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
LEVELS = {Role.NULL: 0.05, Role.MARGIN: 0.05, Role.ASYMPTOTIC_MARGIN: ASYMPTOTIC_LEVEL}


class Bench(StrEnum):
    """Who judges a wave: the whole judge, it without words, the prototype's rule, or peers."""

    WHOLE = "whole"
    SWIFT = "swift"
    PROTOTYPE = "prototype"
    PEERS = "peers"


CHUNK: Mapping[Bench, int] = {
    Bench.WHOLE: 5,
    Bench.PEERS: 20,
    Bench.SWIFT: 50,
    Bench.PROTOTYPE: 50,
}
"""Replications that are drawn, judged and kept together."""
SWIFT = "coalmine_swift"
"""Name of the product's judge without words in every table."""


def run_part(cell: Cell, first: int, last: int, resamples: int, bench: Bench = Bench.WHOLE) -> Part:
    """Replications `first` to `last` - 1 of one cell, each through the bench."""
    halts: dict[str, list[int | None]] = {}
    widens: dict[str, list[int | None]] = {}
    excess: dict[str, list[float]] = {}
    blind: dict[str, int] = {}
    started = time.process_time()
    for replication in range(first, last):
        waves, found = judged(cell, replication, resamples, bench)
        suffered = np.concatenate([[0.0], np.cumsum(np.concatenate([w.added for w in waves]))])
        for name, outcome in found.items():
            halts.setdefault(name, []).append(outcome.halt)
            widens.setdefault(name, []).append(outcome.widen)
            until = suffered.size - 1 if outcome.halt is None else outcome.halt
            excess.setdefault(name, []).append(float(suffered[until]))
            blind[name] = blind.get(name, 0) + outcome.blind_widens
    return Part(halts, widens, excess, blind, time.process_time() - started)


def judged(
    cell: Cell, replication: int, resamples: int, bench: Bench
) -> tuple[list[Wave], dict[str, judges.Outcome]]:
    """The waves of one replication, and what every judge makes of them."""
    how = {"replication": replication, "resamples": resamples}
    waves = list(draw_rollout(cell, replication)) if cell.waves else [draw_wave(cell, replication)]
    if bench is Bench.PEERS:
        return waves, {} if cell.waves else judges.judge_peers(waves[0], **how)
    if bench is Bench.PROTOTYPE:
        return waves, {bench.value: judges.prototype(waves[0], **how)}
    name, decide = ("coalmine", judges.coalmine) if bench is Bench.WHOLE else (SWIFT, swift.decided)
    if cell.waves:
        return waves, {name: judges.over_rollout(waves, decide=decide, **how)}
    return waves, {name: decide(waves[0], **how)}


def joined(parts: Sequence[Part]) -> dict[str, Tally]:
    """The parts of one cell as one tally per judge."""
    names = dict.fromkeys(name for part in parts for name in part.halts)
    return {
        name: tally(
            [h for part in parts for h in part.halts.get(name, [])],
            [w for part in parts for w in part.widens.get(name, [])],
            [x for part in parts for x in part.excess.get(name, [])],
            blind=sum(part.blind.get(name, 0) for part in parts),
        )
        for name in names
    }


def disagreements(parts: Sequence[Part]) -> int:
    """Replications in which the judge without words and the whole one differ."""
    return sum(a != b for a, b in _outcomes(parts, "coalmine", SWIFT))


def beside_prototype(parts: Sequence[Part]) -> tuple[int, int] | None:
    """Replications that only the product halted, and only the prototype's rule; None: not run."""
    pairs = [(a is None, b is None) for (a, _), (b, _) in _outcomes(parts, SWIFT, Bench.PROTOTYPE)]
    return (pairs.count((False, True)), pairs.count((True, False))) if pairs else None


def _outcomes(parts: Sequence[Part], *names: str) -> Iterator[tuple[tuple[int | None, ...], ...]]:
    """Hours of halt and widening of the replications that all these judges saw."""
    found = [
        [
            pair
            for part in parts
            for pair in zip(part.halts.get(n, []), part.widens.get(n, []), strict=True)
        ]
        for n in names
    ]
    return zip(*found, strict=False)


@dataclass(frozen=True)
class Result:
    """One cell with its tallies.

    `missing` names metrics that the judge cannot judge; `disagreements` counts replications in
    which it decided otherwise without words, on many more waves, than with them.
    """

    entry: Entry
    tallies: Mapping[str, Tally]
    seconds: float
    missing: tuple[str, ...] = ()
    disagreements: int = 0
    paired: tuple[int, int] | None = None


URGENCY: Mapping[Role, float] = {Role.SHOWN: 3.0}
"""What is only reported progresses at a third of the pace of what is judged."""


@dataclass(frozen=True)
class Form:
    """Waves judged with words and by peers, and re-assignments of a wave."""

    whole: int
    peers: int
    resamples: int
    engine_resamples: int

    def resamples_of(self, cell: Cell) -> int:
        """The whole engine divides its level by metric and wave: a share needs more paths."""
        return self.engine_resamples if cell.policy == "engine" else self.resamples


SHORT = Form(whole=5, peers=100, resamples=999, engine_resamples=1_999)
FULL = Form(whole=5, peers=100, resamples=999, engine_resamples=1_999)


@dataclass(frozen=True)
class Job:
    """Some replications of chosen cell number `place`; `progress` orders jobs over all cells."""

    place: int
    progress: float
    cell: Cell
    first: int
    last: int
    resamples: int
    bench: Bench

    def __str__(self) -> str:
        return f"{self.cell.name}: {self.bench} {self.first} to {self.last}, B = {self.resamples}"


def jobs_of(place: int, entry: Entry, size: int, *, resamples: int, form: Form) -> list[Job]:
    """All jobs of a cell: the first replications by the whole judge and its peers too."""
    cell = entry.cell
    spans = [(0, size, Bench.SWIFT), (0, min(size, form.whole), Bench.WHOLE)]
    if entry.role is Role.POWER:
        spans.append((0, size, Bench.PROTOTYPE))
    if judges.has_peers(cell):
        spans.append((0, min(size, form.peers), Bench.PEERS))
    return [
        Job(
            place,
            first / size * URGENCY.get(entry.role, 1.0),
            cell,
            first,
            min(first + CHUNK[who], stop),
            resamples,
            who,
        )
        for start, stop, who in spans
        for first in range(start, stop, CHUNK[who])
    ]


def run(
    chosen: Sequence[tuple[Entry, int]],
    *,
    form: Form,
    processes: int,
    kept: Kept,
    until: float = math.inf,
) -> list[Result]:
    """All chosen cells, replications spread over processes; the result does not depend on them.

    All cells progress together; at the time `until` no new job starts, and what is done counts.
    """
    found: dict[int, list[tuple[Job, Part]]] = {}
    jobs = [
        job
        for place, (entry, size) in enumerate(chosen)
        if not judges.unjudged(entry.cell)
        for job in jobs_of(place, entry, size, resamples=form.resamples_of(entry.cell), form=form)
    ]
    for job, part in _carried_out(jobs, processes=processes, kept=kept, until=until):
        found.setdefault(job.place, []).append((job, part))
    results = []
    for place, (entry, _) in enumerate(chosen):
        parts = [part for _, part in sorted(found.get(place, []), key=lambda pair: pair[0].first)]
        result = Result(
            entry,
            joined(parts) if parts else {},
            sum(part.seconds for part in parts),
            tuple(judges.unjudged(entry.cell)),
            disagreements(parts),
            beside_prototype(parts),
        )
        print("\n".join(rows_of(result)), flush=True)
        results.append(result)
    return results


def _carried_out(
    jobs: Sequence[Job], *, processes: int, kept: Kept, until: float
) -> Iterator[tuple[Job, Part]]:
    """Jobs with their outcomes, kept as they come: a run that is stopped goes on where it was."""
    waiting = []
    for job in sorted(jobs, key=lambda job: job.progress):
        part = kept.get(job)
        if part is None:
            waiting.append(job)
        else:
            yield job, part
    # One BLAS thread per process: the processes are the parallelism.
    with ProcessPoolExecutor(processes, initializer=threadpool_limits, initargs=(1,)) as pool:
        running: dict[Future[Part], Job] = {}
        while running or (waiting and time.monotonic() < until):
            while waiting and len(running) < 2 * processes and time.monotonic() < until:
                job = waiting.pop(0)
                running[
                    pool.submit(run_part, job.cell, job.first, job.last, job.resamples, job.bench)
                ] = job
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                kept.put(job, future.result())
                yield job, future.result()


RERUN = 10_000


def is_doubtful(result: Result) -> bool:
    """More errors than two standard errors above the level: to be rerun with many more."""
    level = LEVELS.get(result.entry.role)
    if level is None or not _is_judged(result):
        return False
    share = _error(result)
    return share.value > level + 2 * math.sqrt(level * (1 - level) / share.size)


def rerun(
    results: Sequence[Result], *, form: Form, processes: int, kept: Kept, until: float
) -> list[Result]:
    """Doubtful cells again with 10,000 replications, the worst first, while there is time.

    Peers keep their figures.
    """
    doubtful = sorted((r for r in results if is_doubtful(r)), key=lambda r: -_error(r).value)
    print(f"\nbeyond two standard errors, rerun with {RERUN}: {len(doubtful)} cells")
    again = run(
        [(r.entry, RERUN) for r in doubtful],
        form=replace(form, whole=0, peers=0),
        processes=processes,
        kept=kept,
        until=until,
    )
    new = {
        r.entry.cell.name: r.tallies
        for r in again
        if SWIFT in r.tallies and r.tallies[SWIFT].halted.size == RERUN
    }
    return [replace(r, tallies={**r.tallies, **new.get(r.entry.cell.name, {})}) for r in results]


# --- criteria ------------------------------------------------------------------------------


def checks_of(results: Sequence[Result]) -> list[Check]:
    """Every criterion that these cells can speak to."""
    checks = [
        Check(f"judged: {r.entry.cell.name}", False, f"no estimator yet for {', '.join(r.missing)}")
        for r in results
        if r.missing
    ]
    known = [r for r in results if _is_judged(r)]
    titles = {
        Role.NULL: "false halts",
        Role.MARGIN: "false widens",
        Role.ASYMPTOTIC_MARGIN: "false widens, asymptotic",
    }
    for role, title in titles.items():
        shares = {r.entry.cell.name: _error(r) for r in known if r.entry.role is role}
        if shares:
            checks += error_checks(title, shares, level=LEVELS[role])
    for r in known:
        mine, entry = _ours(r), r.entry
        if entry.role is Role.POWER and entry.reference is not None:
            checks.append(
                power_check(
                    f"power: {entry.cell.name}",
                    mine.halted,
                    reference=entry.reference,
                    reference_size=PROTOTYPE_SIZES[entry.cell.size],
                )
            )
        if r.paired is not None:
            ours, theirs = r.paired
            checks.append(
                paired_check(
                    f"power beside the prototype's rule: {entry.cell.name}",
                    only_ours=ours,
                    only_theirs=theirs,
                )
            )
        if entry.role is Role.LEAST and entry.reference is not None:
            checks.append(
                least_check(f"power: {entry.cell.name}", mine.halted, least=entry.reference)
            )
    blind = {
        r.entry.cell.name: sum(r.tallies[n].blind_widens for n in OURS if n in r.tallies)
        for r in known
    }
    seen = [f"{name}: {count}" for name, count in blind.items() if count]
    checks.append(
        Check(
            "never a widening with missing data",
            not seen,
            "; ".join(seen) or f"none in {len(known)} cells",
        )
    )
    differing = {r.entry.cell.name: r.disagreements for r in known if r.disagreements}
    checks.append(
        Check(
            "the judge without words agrees with the whole one",
            not differing,
            "; ".join(f"{n}: {k} waves" for n, k in differing.items()) or "in every wave",
        )
    )
    return checks


OURS = (SWIFT, "coalmine")


def _is_judged(result: Result) -> bool:
    return any(name in result.tallies for name in OURS)


def _error(result: Result) -> Share:
    ours = _ours(result)
    return ours.widened if result.entry.judged_as_widening else ours.halted


def _ours(result: Result) -> Tally:
    """The product's tally with the most waves behind it."""
    return max(
        (result.tallies[n] for n in OURS if n in result.tallies), key=lambda t: t.halted.size
    )


# --- words ---------------------------------------------------------------------------------

HEADER = (
    f"{'judge':<16}{'halt %':>13}{'median h':>12}{'p90 h':>7}{'excess':>14}"
    f"{'widen %':>13}{'at h':>6}{'inconclusive %':>16}"
)


def rows_of(result: Result) -> list[str]:
    """The table's rows of one cell."""
    entry = result.entry
    head = f"\n{entry.cell.name}  [{entry.role.value}]"
    if result.missing:
        return [head, f"  not judged: no estimator yet for {', '.join(result.missing)}"]
    sizes = " and ".join(str(n) for n in sorted({t.halted.size for t in result.tallies.values()}))
    lines = [f"{head}  {sizes} waves, {result.seconds:.0f} CPU-s", HEADER]
    return lines + [_row(name, t) for name, t in result.tallies.items()]


def _row(name: str, t: Tally) -> str:
    median = "-" if t.median_halt is None else f"{t.median_halt:.0f} ± {t.median_halt_se:.0f}"
    p90 = "-" if t.p90_halt is None else f"{t.p90_halt:.0f}"
    widen = "-" if t.median_widen is None else f"{t.median_widen:.0f}"
    return (
        f"{name:<16}{t.halted!s:>13}{median:>12}{p90:>7}"
        f"{f'{t.excess:.2f} ± {t.excess_se:.2f}':>14}{t.widened!s:>13}{widen:>6}"
        f"{t.inconclusive!s:>16}"
    )


def document(
    results: Sequence[Result], checks: Sequence[Check], *, command: str, form: Form
) -> dict[str, object]:
    """Everything that was found, in JSON."""
    return {
        "command": command,
        "resamples": form.resamples,
        "engine_resamples": form.engine_resamples,
        "is_met": all(c.is_met for c in checks),
        "checks": [{"name": c.name, "is_met": c.is_met, "detail": c.detail} for c in checks],
        "cells": [
            {
                "name": r.entry.cell.name,
                "role": r.entry.role.value,
                "reference": r.entry.reference,
                "cpu_seconds": round(r.seconds, 2),
                "missing_metrics": list(r.missing),
                "judges": {name: _stored(t) for name, t in r.tallies.items()},
                "paired": r.paired,
            }
            for r in results
        ],
    }


def _stored(t: Tally) -> dict[str, object]:
    return {
        "replications": t.halted.size,
        "halted": t.halted.hits,
        "halted_se": t.halted.se,
        "widened": t.widened.hits,
        "widened_se": t.widened.se,
        "inconclusive": t.inconclusive.hits,
        "median_halt_hours": t.median_halt,
        "median_halt_hours_se": t.median_halt_se,
        "p90_halt_hours": t.p90_halt,
        "median_widen_hours": t.median_widen,
        "excess_faults": t.excess,
        "excess_faults_se": t.excess_se if t.halted.size > 1 else None,
        "blind_widens": t.blind_widens,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen cells; 0 if every criterion holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all cells and replications")
    parser.add_argument("--only", default="", help="cells whose name contains this text")
    parser.add_argument("--replications", type=int, help="per cell, instead of the planned ones")
    parser.add_argument("--resamples", type=int, help="re-assignments per wave (B)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="start nothing new after so long")
    parser.add_argument(
        "--keep", action=argparse.BooleanOptionalAction, help="outcomes as they come (full: yes)"
    )
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    form = FULL if options.full else SHORT
    if options.resamples:
        form = replace(form, resamples=options.resamples, engine_resamples=options.resamples)
    planned = catalogue.entries(is_full=options.full or bool(options.only))
    chosen = [
        (entry, options.replications or size)
        for entry, size in planned
        if options.only in entry.cell.name
    ]
    if not chosen:
        parser.error(f"no cell's name contains {options.only!r}")
    started = time.monotonic()
    until = math.inf if options.minutes is None else started + 60 * options.minutes
    keeps = options.full if options.keep is None else options.keep
    kept = Kept(KEPT / sources_digest() if keeps else None)
    how = {"form": form, "processes": options.processes, "kept": kept, "until": until}
    results = run(chosen, **how)
    if options.full:
        results = rerun(results, **how)
    checks = checks_of(results)
    for check in checks:
        print(f"{'met ' if check.is_met else 'FAIL'}  {check.name}: {check.detail}")
    print(f"\n{time.monotonic() - started:.0f} s on {options.processes} processes")
    command = "python -m benchmarks.decisions " + " ".join(arguments or sys.argv[1:])
    stored = document(results, checks, command=command.strip(), form=form)
    name = "decisions-full" if options.full else "decisions"
    target = options.output or (None if options.only else RESULTS / f"{name}.json")
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(stored, indent=1, allow_nan=False) + "\n")
        print(f"written to {target}")
        if options.output is None:
            (IMAGES / "bench-decisions.svg").write_text(picture.draw(stored))
    return 0 if all(check.is_met for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
