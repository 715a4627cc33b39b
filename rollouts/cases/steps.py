"""Times per step of the workers of one job, from a CSV file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollouts.analysis.samples import FloatArray
from rollouts.cases.csvfile import BadCell, CsvFile, number_in, text_in
from rollouts.cases.slips import SlipKind, Slips
from rollouts.errors import CaseRefused


@dataclass(frozen=True)
class StepTimes:
    """Times of workers (columns) per step (rows, in order); NaN where there is none."""

    seconds: FloatArray
    steps: tuple[str, ...]
    workers: tuple[str, ...]


def read_steps(path: Path, *, worker: str, step: str, time: str) -> StepTimes:
    """Read one row per worker and step; steps are numbers and may come in any order.

    Raises
    ------
    CaseRefused
        At the first row that cannot be read, with file, line, column and what is accepted.
    """
    table = CsvFile(
        path,
        columns={"worker": worker, "step": step, "time": time},
        slips=Slips(is_reported=False),
    )
    times: dict[tuple[float, str], float] = {}
    for line, (who, at, taken) in table.rows():
        try:
            key = number_in(at, column="step"), text_in(who, column="worker")
            if key in times:
                raise BadCell("step", at, SlipKind.DUPLICATE, "every step of a worker once")
            times[key] = number_in(taken, column="time", at_least=0)
        except BadCell as bad:
            table.slip(line, bad)
    if not times:
        raise CaseRefused(f"{table.name}: no row; accepted: one row per worker and step")
    return step_times(times)


def step_times(
    times: Mapping[tuple[float, str], float], *, name: Callable[[float], str] = "{:g}".format
) -> StepTimes:
    """Put (step, worker) → time in order; `name` says how a step is called."""
    steps = sorted({at for at, _ in times})
    workers = sorted({who for _, who in times})
    row = {at: place for place, at in enumerate(steps)}
    column = {who: place for place, who in enumerate(workers)}
    seconds = np.full((len(steps), len(workers)), np.nan)
    for (at, who), taken in times.items():
        seconds[row[at], column[who]] = taken
    return StepTimes(seconds, tuple(map(name, steps)), tuple(workers))
