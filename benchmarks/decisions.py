"""`make bench-decisions`: the product's judge, its peers and the limits on the same waves.

Exit status 1 if a criterion fails. Run `python -m benchmarks.decisions --help` for a part of it.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import catalogue, judges, picture
from benchmarks.catalogue import ASYMPTOTIC_LEVEL, PROTOTYPE_SIZE, Entry, Role
from benchmarks.cells import Cell
from benchmarks.statistics import (
    Check,
    Share,
    Tally,
    error_checks,
    least_check,
    power_check,
    tally,
)
from benchmarks.waves import Wave, draw_rollout, draw_wave

RESULTS = Path(__file__).with_name("results")
IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
CHUNK = 10
HALT_FACTOR = 10
LEVELS = {Role.NULL: 0.05, Role.MARGIN: 0.05, Role.ASYMPTOTIC_MARGIN: ASYMPTOTIC_LEVEL}


@dataclass(frozen=True)
class Part:
    """Outcomes of some replications of a cell, by judge."""

    halts: Mapping[str, list[int | None]]
    widens: Mapping[str, list[int | None]]
    excess: Mapping[str, list[float]]
    blind: Mapping[str, int]
    seconds: float


class Bench(StrEnum):
    """Who judges: everybody, the product's judge alone, or only its halting test."""

    ALL = "all"
    ALONE = "alone"
    HALTS = "halts"


def run_part(cell: Cell, first: int, last: int, resamples: int, bench: Bench = Bench.ALL) -> Part:
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


JUDGES = {
    Bench.ALL: judges.judge_all,
    Bench.ALONE: judges.judge_alone,
    Bench.HALTS: judges.judge_halts,
}


def judged(
    cell: Cell, replication: int, resamples: int, bench: Bench
) -> tuple[list[Wave], dict[str, judges.Outcome]]:
    """The waves of one replication, and what every judge makes of them."""
    if not cell.waves:
        wave = draw_wave(cell, replication)
        return [wave], JUDGES[bench](wave, replication=replication, resamples=resamples)
    waves = list(draw_rollout(cell, replication))
    outcome = judges.coalmine_rollout(waves, replication=replication, resamples=resamples)
    return waves, {"coalmine": outcome}


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
    """Replications in which the halting test alone and the whole judge differ."""
    whole = [h for part in parts for h in part.halts.get("coalmine", [])]
    alone = [h for part in parts for h in part.halts.get(judges.HALTS_ALONE, [])]
    return sum(a != b for a, b in zip(whole, alone, strict=False))


@dataclass(frozen=True)
class Result:
    """One cell with its tallies.

    `missing` names metrics that the judge cannot judge; `disagreements` counts replications in
    which its halting test, run alone on many more waves, differed from the whole judge.
    """

    entry: Entry
    tallies: Mapping[str, Tally]
    seconds: float
    missing: tuple[str, ...] = ()
    disagreements: int = 0


def run(
    chosen: Iterable[tuple[Entry, int]],
    *,
    processes: int,
    resamples: int,
    bench: Bench = Bench.ALL,
    halt_factor: int = 0,
) -> list[Result]:
    """All chosen cells, replications spread over processes; the result does not depend on them.

    `halt_factor` says how many times as many waves the halting test alone sees, where it can.
    """
    results = []
    # One BLAS thread per process: the processes are the parallelism.
    with ProcessPoolExecutor(processes, initializer=threadpool_limits, initargs=(1,)) as pool:
        waiting = []
        for entry, size in chosen:
            missing = tuple(judges.unjudged(entry.cell.policy))
            parts = [] if missing else _parts(size, bench)
            if parts and entry.counts_halts and judges.can_halt_alone(entry.cell):
                parts += _parts(halt_factor * size, Bench.HALTS)
            jobs = [
                pool.submit(run_part, entry.cell, first, last, resamples, who)
                for first, last, who in parts
            ]
            waiting.append((entry, missing, jobs))
        for entry, missing, jobs in waiting:
            found = [job.result() for job in jobs]
            result = Result(
                entry,
                joined(found) if found else {},
                sum(part.seconds for part in found),
                missing,
                disagreements(found),
            )
            print("\n".join(rows_of(result)), flush=True)
            results.append(result)
    return results


def _parts(size: int, bench: Bench) -> list[tuple[int, int, Bench]]:
    return [(first, min(first + CHUNK, size), bench) for first in range(0, size, CHUNK)]


RERUN = 10_000


def is_doubtful(result: Result) -> bool:
    """More errors than two standard errors above the level: to be rerun with many more."""
    level = LEVELS.get(result.entry.role)
    if level is None or "coalmine" not in result.tallies:
        return False
    share = _error(result)
    return share.value > level + 2 * math.sqrt(level * (1 - level) / share.size)


def rerun(result: Result, *, processes: int, resamples: int) -> Result:
    """The same cell with 10,000 replications of the product's judge; peers keep their figures."""
    print(f"\nbeyond two standard errors, rerun with {RERUN}: {result.entry.cell.name}")
    again = run(
        [(result.entry, RERUN)], processes=processes, resamples=resamples, bench=Bench.ALONE
    )[0]
    return replace(again, tallies={**result.tallies, **again.tallies})


# --- criteria ------------------------------------------------------------------------------


def checks_of(results: Sequence[Result]) -> list[Check]:
    """Every criterion that these cells can speak to."""
    checks = [
        Check(f"judged: {r.entry.cell.name}", False, f"no estimator yet for {', '.join(r.missing)}")
        for r in results
        if r.missing
    ]
    known = [r for r in results if r.tallies]
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
        mine, entry = _halting(r), r.entry
        if entry.role is Role.POWER and entry.reference is not None:
            checks.append(
                power_check(
                    f"power: {entry.cell.name}",
                    mine.halted,
                    reference=entry.reference,
                    reference_size=PROTOTYPE_SIZE,
                )
            )
        if entry.role is Role.LEAST and entry.reference is not None:
            checks.append(
                least_check(f"power: {entry.cell.name}", mine.halted, least=entry.reference)
            )
    blind = {r.entry.cell.name: r.tallies["coalmine"].blind_widens for r in known}
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
            "the halting test alone agrees with the whole judge",
            not differing,
            "; ".join(f"{n}: {k} waves" for n, k in differing.items()) or "in every wave",
        )
    )
    return checks


def _error(result: Result) -> Share:
    if result.entry.judged_as_widening:
        return result.tallies["coalmine"].widened
    return _halting(result).halted


def _halting(result: Result) -> Tally:
    """The tally with the most waves behind its halts."""
    return result.tallies.get(judges.HALTS_ALONE, result.tallies["coalmine"])


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
    widened, open_ = (
        ("", "") if name == judges.HALTS_ALONE else (f"{t.widened}", f"{t.inconclusive}")
    )
    return (
        f"{name:<16}{t.halted!s:>13}{median:>12}{p90:>7}"
        f"{f'{t.excess:.2f} ± {t.excess_se:.2f}':>14}{widened:>13}{widen:>6}"
        f"{open_:>16}"
    )


def document(
    results: Sequence[Result], checks: Sequence[Check], *, command: str, resamples: int
) -> dict[str, object]:
    """Everything that was found, in JSON."""
    return {
        "command": command,
        "resamples": resamples,
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
    parser.add_argument("--alone", action="store_true", help="the product's judge, no peers")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    resamples = options.resamples or (1_999 if options.full else 999)
    planned = catalogue.entries(is_full=options.full or bool(options.only))
    chosen = [
        (entry, options.replications or size)
        for entry, size in planned
        if options.only in entry.cell.name
    ]
    if not chosen:
        parser.error(f"no cell's name contains {options.only!r}")
    started = time.monotonic()
    results = run(
        chosen,
        processes=options.processes,
        resamples=resamples,
        bench=Bench.ALONE if options.alone else Bench.ALL,
        halt_factor=HALT_FACTOR,
    )
    if options.full:
        results = [
            rerun(r, processes=options.processes, resamples=resamples) if is_doubtful(r) else r
            for r in results
        ]
    checks = checks_of(results)
    for check in checks:
        print(f"{'met ' if check.is_met else 'FAIL'}  {check.name}: {check.detail}")
    print(f"\n{time.monotonic() - started:.0f} s on {options.processes} processes, B = {resamples}")
    command = "python -m benchmarks.decisions " + " ".join(arguments or sys.argv[1:])
    stored = document(results, checks, command=command.strip(), resamples=resamples)
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
