"""`make bench-analysis`: what one look of six metrics costs, beside the bare BLAS products.

Each size runs in a process of its own, so that its peak memory is its own. The labels of a wave
are drawn once, packed, and reported apart; a later look finds them ready. The bare product is
what no judge by re-assignment can avoid: unpacked labels times the score columns, of the same
shapes, with numpy alone. All of it runs on one core. Exit status 1 if a limit is exceeded.
"""

import argparse
import json
import multiprocessing
import platform
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.cells import Cell
from benchmarks.judges import plan_of
from benchmarks.statistics import Check
from benchmarks.waves import HOUR, Wave, draw_fleet, wave_of
from rollouts import policies
from rollouts.analysis import judge
from rollouts.analysis.labels import Labels
from rollouts.analysis.policy import Policy
from rollouts.analysis.wave import Look, WavePlan

RESULTS = Path(__file__).with_name("results")
METRICS = (
    "faults",
    "throughput",
    "novel_signatures",
    "recovery_time",
    "severe_path",
    "lost_work",
)
RESAMPLES = 19_999
LIMIT_SECONDS = {1_280: 1.5, 10_000: 10.0, 100_000: 90.0}
LIMIT_BYTES = 1.5 * 2**30
LIMIT_RATIO = 3.0
LOOK_HOUR = 24
PRODUCT_BYTES = 1 << 26
"""Of assignments in float64 that the bare product multiplies at once."""
REPEATS = 5
"""Everything is timed so many times; the fastest counts."""


class Spent(NamedTuple):
    """Seconds on the wall, and of the core."""

    wall: float
    core: float

    @classmethod
    def now(cls) -> "Spent":
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(self.wall - other.wall, self.core - other.core)

    def __add__(self, other: object) -> "Spent":
        if not isinstance(other, Spent):
            return NotImplemented
        return Spent(self.wall + other.wall, self.core + other.core)


@dataclass(frozen=True)
class Cost:
    """What one size costs: wall clock, time of the core that did it, and the process's peak memory.

    Ratios are of the core's time, which others on the same machine cannot lengthen.
    """

    machines: int
    resamples: int
    columns: int
    labels_seconds: float
    first_look_seconds: float
    look_seconds: float
    look_core_seconds: float
    product_seconds: float
    bare_product_seconds: float
    bare_product_core_seconds: float
    peak_bytes: int

    @property
    def ratio(self) -> float:
        """A later look over the bare BLAS product, labels unpacked beforehand."""
        return self.look_core_seconds / self.bare_product_core_seconds


def policy() -> Policy:
    items: list[dict[str, object]] = [{"metric": name} for name in METRICS]
    items[0]["signatures"] = ["fault"]
    return policies.policy_from(
        {"guardrails": items, "resamples": RESAMPLES}, kind=policies.Kind.CASE
    )


def wave(machines: int) -> Wave:
    """A day of a wave with one canary in five, jobs of 20."""
    cell = Cell(policy="engine", days=1.0, rate=0.2)
    rng = np.random.default_rng(machines)
    fleet = draw_fleet(rng, jobs=machines // 20, per_job=20, lemons=True)
    is_canary = np.concatenate([rng.permutation(20) < 4 for _ in range(machines // 20)])
    return wave_of(cell, fleet, is_canary, rng)


def measure(machines: int) -> Cost:
    """Labels, a first look, a later look, and the bare products of the same shapes."""
    drawn, rules = wave(machines), policy()
    plan = plan_of(drawn, rules)
    started = time.perf_counter()
    labels = judge.labels_for(drawn.samples, rules)
    labels_seconds = time.perf_counter() - started
    before = judge.initial_state(drawn.samples, rules)
    first, columns, state = _look(drawn, rules, plan, before, hour=LOOK_HOUR - 1)
    later: list[Spent] = []
    for _ in range(REPEATS):  # what it may keep is kept from the look before, not from its double
        _look(drawn, rules, plan, before, hour=LOOK_HOUR - 1)
        look, columns, _ = _look(drawn, rules, plan, state, hour=LOOK_HOUR)
        later.append(look)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    products = [_product(labels, columns) for _ in range(REPEATS)]
    return Cost(
        machines=machines,
        resamples=RESAMPLES,
        columns=columns,
        labels_seconds=labels_seconds,
        first_look_seconds=first.wall,
        look_seconds=min(look.wall for look in later),
        look_core_seconds=min(look.core for look in later),
        product_seconds=min(whole.wall for whole, _ in products),
        bare_product_seconds=min(bare.wall for _, bare in products),
        bare_product_core_seconds=min(bare.core for _, bare in products),
        peak_bytes=peak,
    )


def _product(labels: Labels, columns: int) -> tuple[Spent, Spent]:
    """Unpacking and multiplying, and the bare products alone."""
    scores = np.random.default_rng(1).integers(-1000, 1000, (labels.units, columns))
    factors = scores.astype(np.float64)
    rows = max(1, PRODUCT_BYTES // (8 * labels.units))
    bare = Spent(0.0, 0.0)
    started = Spent.now()
    for start in range(0, labels.paths, rows):
        block = labels.rows(start, min(start + rows, labels.paths)).astype(np.float64)
        before = Spent.now()
        block @ factors
        bare += Spent.now() - before
    return Spent.now() - started, bare


def _look(
    drawn: Wave, rules: Policy, plan: WavePlan, state: judge.WaveState, *, hour: int
) -> tuple[Spent, int, judge.WaveState]:
    """What one live look costs, its score columns, and the state after it."""
    look = Look(number=hour, as_of_seconds=hour * HOUR, elapsed=hour / LOOK_HOUR)
    started = Spent.now()
    evaluations, state = judge.evaluate(drawn.samples, rules, plan, looks=[look], state=state)
    return Spent.now() - started, len(evaluations[0].scores), state


def checks_of(costs: Sequence[Cost]) -> list[Check]:
    """The limits of each size, and that cost grows no faster than machines."""
    checks = []
    for cost in costs:
        name = f"{cost.machines} machines"
        limit = LIMIT_SECONDS.get(cost.machines)
        if limit is not None:
            checks.append(
                Check(
                    f"{name}: one look", cost.look_seconds <= limit,
                    f"{cost.look_seconds:.2f} s, at most {limit:g} s",
                )
            )  # fmt: skip
        checks.append(
            Check(
                f"{name}: memory", cost.peak_bytes <= LIMIT_BYTES,
                f"{cost.peak_bytes / 2**20:.0f} MiB, at most {LIMIT_BYTES / 2**20:.0f} MiB",
            )
        )  # fmt: skip
        checks.append(
            Check(
                f"{name}: a later look over the bare product", cost.ratio <= LIMIT_RATIO,
                f"{cost.ratio:.2f} times, at most {LIMIT_RATIO:g}",
            )
        )  # fmt: skip
    for small, large in pairwise(costs):
        growth = large.look_core_seconds / small.look_core_seconds
        most = large.machines * large.resamples / (small.machines * small.resamples)
        checks.append(
            Check(
                f"growth from {small.machines} to {large.machines} machines", growth <= most,
                f"{growth:.1f} times the time, at most {most:.1f}",
            )
        )  # fmt: skip
    return checks


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the chosen sizes; 0 if every limit is kept, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analysis_cost", description=__doc__)
    parser.add_argument("--machines", type=int, nargs="+", default=list(LIMIT_SECONDS))
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    print(
        f"{'machines':>9}{'labels s':>10}{'first look s':>14}{'later look s':>14}"
        f"{'bare BLAS s':>13}{'unpacked too':>14}{'ratio':>7}{'peak MiB':>10}"
    )
    costs = []
    context = multiprocessing.get_context("spawn")
    for machines in options.machines:
        with context.Pool(1, initializer=threadpool_limits, initargs=(1,)) as pool:
            cost = pool.apply(measure, (machines,))
        costs.append(cost)
        print(
            f"{cost.machines:>9}{cost.labels_seconds:>10.2f}{cost.first_look_seconds:>14.2f}"
            f"{cost.look_seconds:>14.2f}{cost.bare_product_seconds:>13.2f}"
            f"{cost.product_seconds:>14.2f}{cost.ratio:>7.2f}"
            f"{cost.peak_bytes / 2**20:>10.0f}",
            flush=True,
        )
    checks = checks_of(costs)
    for check in checks:
        print(f"{'met ' if check.is_met else 'FAIL'}  {check.name}: {check.detail}")
    is_default = options.machines == list(LIMIT_SECONDS)
    target = options.output or (RESULTS / "analysis.json" if is_default else None)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        stored = {
            "command": "python -m benchmarks.analysis_cost " + " ".join(arguments or sys.argv[1:]),
            "machine": {
                "processor": platform.machine(),
                "python": platform.python_version(),
                "numpy": np.__version__,
            },
            "metrics": list(METRICS),
            "costs": [{**asdict(c), "ratio": c.ratio} for c in costs],
            "checks": [asdict(c) for c in checks],
        }
        target.write_text(json.dumps(stored, indent=1, allow_nan=False) + "\n")
    return 0 if all(check.is_met for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
