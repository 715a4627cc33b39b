"""Scores, spending and ways to combine families that were tried, on the same drawn waves.

`python -m benchmarks.ideas` prints the table behind "Tried and dropped" in docs/statistics.md. All
of them are exact under the null, since none knows the arms; they differ in power. Seeded, bounded.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from scipy.stats import norm
from threadpoolctl import threadpool_limits

from benchmarks.cells import Cell, generator
from benchmarks.judges import ALPHA, policy_for
from benchmarks.statistics import Share
from benchmarks.waves import HOUR, Floats, Ints, Wave, draw_wave
from rollouts.analysis import judge
from rollouts.analysis.episodes import (
    Events,
    counts_at,
    episodes,
    family_events,
    first_of_each,
    since_clock,
)
from rollouts.analysis.exposure import exposure_at
from rollouts.analysis.foresight import foreseen_counts
from rollouts.analysis.hazards import MOST_SPELLS, FaultTable, thinning_z
from rollouts.analysis.labels import Labels
from rollouts.analysis.policy import Metric
from rollouts.analysis.scores import UNITS_PER_FAULT_SCORE, Strata, adjusted
from rollouts.analysis.sequential import CrossingState, SumArray, cross

CELLS = (
    Cell(ratio=2.0, history=True),
    Cell(ratio=2.0, history=True, rate=0.05),
    Cell(ratio=3.0, history=True, rate=0.02),
    Cell(ratio=1.5, history=True, rate=0.1, days=7.0),
    Cell(ratio=2.0, history=True, shocks=0.2, bursts=2.0, exposure="uneven"),
    Cell(ratio=3.0, history=True, size="8+32"),
    Cell(ratio=2.0, history=True, bursts=2.0),
    Cell(ratio=3.0, history=True, rate=0.005, size="256+1024"),
    Cell(ratio=5.0, history=True, rate=0.005, size="256+1024"),
)
GAP_SECONDS = 900.0
STALE_SHARE = 0.2
CHUNK = 20


@dataclass(frozen=True, eq=False)
class Seen:
    """What a score may know: label-blind counts per unit (rows) and look (columns).

    `harmless` and `ratio` are the truth, for a bound alone: the faults that harmless firmware
    would be expected to have, and what the firmware multiplies them with.
    """

    counted: Events
    units: int
    as_of: Floats
    days: Floats
    past: Floats
    strata: Strata
    harmless: Floats
    ratio: float

    @classmethod
    def of(cls, wave: Wave) -> "Seen":
        samples = wave.samples
        as_of = np.arange(1, wave.cell.hours + 1).astype(np.float64) * HOUR
        every = episodes(family_events(samples, patterns=("fault",)), gap_seconds=GAP_SECONDS)
        return cls(
            counted=since_clock(every, samples),
            units=samples.units.is_canary.size,
            as_of=as_of,
            days=exposure_at(samples, as_of).days,
            past=samples.units.covariates[Metric.FAULTS],
            strata=Strata.of(samples.units.stratum),
            harmless=np.cumsum(wave.expected, axis=1),
            ratio=wave.cell.ratio,
        )

    def count(self, events: Events | None = None) -> Floats:
        chosen = self.counted if events is None else events
        table = counts_at(chosen, unit=np.arange(self.units), units=self.units, as_of=self.as_of)
        return table.astype(np.float64)

    def cells(self, hours: float) -> Floats:
        """At most one episode in each cell of so many hours."""
        return self.count(first_of_each(self.counted, seconds=hours * HOUR))

    def days_hit(self) -> Floats:
        return self.cells(24)

    def stale(self, seed: int) -> Floats:
        """The past, where a fifth of the machines has become somebody else."""
        rng = np.random.default_rng(seed)
        moved = rng.random(self.units) < STALE_SHARE
        return np.where(moved, rng.permutation(self.past), self.past)


Score = Callable[[Seen], Floats]


def less_rate(values: Floats, seen: Seen) -> Floats:
    """Less what the pooled level expects in a unit's days in service."""
    level = values.sum(axis=0) / np.maximum(seen.days.sum(axis=0), 1e-9)
    return np.asarray(values - level * seen.days)


def less_slope(values: Floats, past: Floats, strata: Strata) -> Floats:
    """Less what the square root of the past explains by one slope within strata."""
    root = np.sqrt(past)
    everyone = np.ones(root.size, dtype=np.bool_)
    centred = root - strata.means(root, where=everyone)[strata.code]
    norm = float(centred @ centred)
    return values - np.outer(centred, centred @ values / norm) if norm > 0 else values


def forecast(seen: Seen, past: Floats) -> Floats:
    """Expected episodes by every look, scaled to the pooled total."""
    expected = foreseen_counts(past)[:, None] * seen.days
    total = np.maximum(expected.sum(axis=0), 1e-9)
    return np.asarray(expected * (seen.count().sum(axis=0) / total))


def surprise(seen: Seen, past: Floats, *, limit: float = 1.0) -> Floats:
    return np.minimum(np.sqrt(seen.count() + 1) - np.sqrt(forecast(seen, past) + 1), limit)


def residual(seen: Seen) -> Floats:
    """Counts less forecast, each unit weighed down as a lemon's counts scatter more."""
    expected = forecast(seen, seen.past)
    return np.asarray((seen.count() - expected) / (1 + 0.1 * expected))


def few(values: Floats, seen: Seen) -> Floats:
    """The logarithm of a count that is limited to 3, or to one for each day in service."""
    return less_rate(np.log1p(np.minimum(values, np.maximum(seen.days, MOST_SPELLS))), seen)


def below_rank(values: Floats, seen: Seen, *, share: float = 0.975) -> Floats:
    """The same, limited to the pooled count below which so many of all units are."""
    limit = np.quantile(values, share, axis=0, method="higher")
    return less_rate(np.log1p(np.minimum(values, np.maximum(limit, 1))), seen)


def likelihood(seen: Seen) -> Floats:
    """Log likelihood ratio of each unit by the truth: no score finds more at one look."""
    return np.asarray(seen.count() * math.log(seen.ratio) - (seen.ratio - 1) * seen.harmless)


SCORES: Mapping[str, Score] = {
    "likelihood ratio, the truth known (a bound)": likelihood,
    "days with an episode (the prototype's)": lambda s: less_rate(s.days_hit(), s),
    "log(1 + spells of 4 h), few  [adopted, no past]": lambda s: few(s.cells(4), s),
    "the same of spells of 8 h": lambda s: few(s.cells(8), s),
    "the same of spells of 2 h": lambda s: few(s.cells(2), s),
    "the same of episodes": lambda s: few(s.count(), s),
    "the same, at most what 97.5 % of units have": lambda s: below_rank(s.count(), s),
    "log(1 + days)": lambda s: less_rate(np.log1p(s.days_hit()), s),
    "days, at most 2": lambda s: less_rate(np.minimum(s.days_hit(), 2), s),
    "machines with an episode": lambda s: less_rate(np.minimum(s.days_hit(), 1), s),
    "cells of 8 h": lambda s: less_rate(s.cells(8), s),
    "cells of 36 h": lambda s: less_rate(s.cells(36), s),
    "episodes, at most 2": lambda s: less_rate(np.minimum(s.cells(1), 2), s),
    "square root of episodes": lambda s: less_rate(np.sqrt(s.count()), s),
    "episodes as they are": lambda s: less_rate(s.count(), s),
    "days, one slope on the root of the past": lambda s: less_slope(
        less_rate(s.days_hit(), s), s.past, s.strata
    ),
    "root of episodes, the same slope": lambda s: less_slope(
        less_rate(np.sqrt(s.count()), s), s.past, s.strata
    ),
    "episodes less forecast, weighed": residual,
    "root less root of forecast, no limit": lambda s: surprise(s, s.past, limit=np.inf),
    "the same, limited to 1  [adopted]": lambda s: surprise(s, s.past),
    "no limit, a fifth of the past stale": lambda s: surprise(s, s.stale(1), limit=np.inf),
    "limited to 1, a fifth of the past stale": lambda s: surprise(s, s.stale(1)),
    "days and slope, a fifth of the past stale": lambda s: less_slope(
        less_rate(s.days_hit(), s), s.stale(1), s.strata
    ),
}
SPENDING: Mapping[str, float] = {"f^½": 0.5, "f": 1.0, "f^1½": 1.5}
"""Shapes beside the adopted f^¾, with the adopted score."""
ADOPTED = "the same, limited to 1  [adopted]"


def centred_sums(values: Floats, seen: Seen, labels: Labels) -> Ints:
    everyone = np.ones(seen.units, dtype=np.bool_)
    columns = [
        adjusted(
            np.rint(UNITS_PER_FAULT_SCORE * column).astype(np.int64),
            strata=seen.strata,
            where=everyone,
        )
        for column in values.T
    ]
    return labels.sums(np.stack(columns, axis=1))


def halt_hour(sums: SumArray, *, alpha: float = ALPHA, power: float = 0.75) -> int | None:
    """First look at which the observed path crosses, with the level spent as `alpha f^power`."""
    state = CrossingState.initial(sums.shape[0])
    for look in range(1, sums.shape[1] + 1):
        spent = Fraction(alpha * (look / sums.shape[1]) ** power).limit_denominator(10**9)
        state = cross(state, np.ascontiguousarray(sums[:, look - 1]), level=spent)
        if state.is_crossed:
            return look
    return None


# --- families ------------------------------------------------------------------------------


def by_family(wave: Wave, seen: Seen, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Episode-days of two families; the firmware's faults are all of the first."""
    ratio = wave.cell.ratio
    is_first = rng.random(seen.counted.machine.size) < np.where(
        wave.is_canary[seen.counted.machine], (ratio - 0.5) / ratio, 0.5
    )
    return tuple(
        np.log1p(
            seen.count(
                first_of_each(
                    Events(seen.counted.machine[m], seen.counted.time_seconds[m]), seconds=24 * HOUR
                )
            )
        )
        for m in (is_first, ~is_first)
    )  # type: ignore[return-value]


def least_p(parts: Sequence[SumArray], *, shares: Sequence[float]) -> Floats:
    """Minus the smallest p of several metrics over its share, for every path (rows) and look.

    A path's p is the share of paths that are at least as large: all paths know it, so the result
    is a statistic like any other.

    Examples
    --------
    >>> least_p([np.array([[3.0], [1.0]]), np.array([[5.0], [9.0]])], shares=[0.5, 0.5])
    array([[-1.],
           [-1.]])
    """
    scaled = []
    for sums, share in zip(parts, shares, strict=True):
        ordered = np.sort(sums, axis=0)
        below = np.stack(
            [np.searchsorted(o, s, side="left") for o, s in zip(ordered.T, sums.T, strict=True)],
            axis=1,
        )
        scaled.append((1 - below / sums.shape[0]) / share)
    return np.asarray(-np.minimum.reduce(scaled))


def combined(wave: Wave, seen: Seen, labels: Labels, *, seed: int) -> dict[str, int | None]:
    """Ways to judge two families of which one is hit."""
    first, second = by_family(wave, seen, np.random.default_rng(seed))
    parts = [centred_sums(less_rate(f, seen), seen, labels) for f in (first, second)]
    alone = [halt_hour(p, alpha=ALPHA / 2) for p in parts]
    hours = [h for h in alone if h is not None]
    return {
        "two families, half the level each  [adopted]": min(hours) if hours else None,
        "two families, the smaller p of both": halt_hour(least_p(parts, shares=(0.5, 0.5))),
        "two families, all faults in one": halt_hour(parts[0] + parts[1]),
    }


# --- non-inferiority -----------------------------------------------------------------------


def logrank_at_margin(
    is_canary: Sequence[bool], *, at_risk: tuple[int, int], margin: float
) -> tuple[float, float, float]:
    """Score, variance and z of "canaries fail `margin` times as often", by first episodes.

    Arms in order of time; who failed is no longer at risk. A negative z says less than the margin.

    Examples
    --------
    >>> score, variance, z = logrank_at_margin([False, True], at_risk=(1, 1), margin=2.0)
    >>> round(score, 3), round(variance, 3)
    (-0.667, 0.222)
    """
    canaries, controls = at_risk
    score = variance = 0.0
    for mine in is_canary:
        share = margin * canaries / (margin * canaries + controls)
        score += mine - share
        variance += share * (1 - share)
        canaries, controls = canaries - mine, controls - (not mine)
    return score, variance, score / math.sqrt(variance) if variance > 0 else math.nan


def shown_at_the_end(wave: Wave, *, margin: float = 2.0) -> dict[str, bool]:
    """Is a wave called not worse than the margin, at one look at its end and 5 %?"""
    seen, mine = Seen.of(wave), wave.is_canary
    _, first = np.unique(seen.counted.machine, return_index=True)
    order = first[np.argsort(seen.counted.time_seconds[first], kind="stable")]
    arms = [bool(mine[m]) for m in seen.counted.machine[order]]
    logrank = logrank_at_margin(arms, at_risk=(int(mine.sum()), int((~mine).sum())), margin=margin)
    table = FaultTable(seen.count()[:, -1].astype(np.int64), seen.days[:, -1], mine, seen.strata)
    thinned = thinning_z(table, ratio=margin)
    bound = float(norm.isf(0.05))
    return {
        "log-rank at the margin, first episodes": logrank[2] < -bound,
        "thinning-matched score  [adopted]": thinned is not None and thinned < -bound,
    }


def shown(cell: Cell, first: int, last: int) -> list[dict[str, bool]]:
    """Replications `first` to `last` - 1 of a cell at the margin."""
    return [shown_at_the_end(draw_wave(cell, replication)) for replication in range(first, last)]


MARGINS = (
    Cell(ratio=2.0, history=True),
    Cell(ratio=2.0, history=True, size="256+1024"),
)


# --- the run -------------------------------------------------------------------------------


def halted(
    wave: Wave, *, replication: int, resamples: int, chosen: Sequence[str] = ()
) -> dict[str, int | None]:
    """When every idea halts a wave, or every score whose name holds one of the texts."""
    seed = int(generator(wave.cell, replication, purpose="labels").integers(1, 2**31))
    policy = policy_for(wave.cell, resamples=resamples, seed=seed)
    labels, seen = judge.labels_for(wave.samples, policy), Seen.of(wave)
    found: dict[str, int | None] = {}
    for name, score in SCORES.items():
        if chosen and not any(text in name for text in chosen):
            continue
        sums = centred_sums(score(seen), seen, labels)
        found[name] = halt_hour(sums)
        if name == ADOPTED and not chosen:
            for words, power in SPENDING.items():
                found[f"adopted score, spent as {words}"] = halt_hour(sums, power=power)
    return found if chosen else found | combined(wave, seen, labels, seed=seed)


def halts(
    cell: Cell, first: int, last: int, resamples: int, chosen: Sequence[str] = ()
) -> list[dict[str, int | None]]:
    """Every idea on replications `first` to `last` - 1 of a cell."""
    return [
        halted(
            draw_wave(cell, replication),
            replication=replication,
            resamples=resamples,
            chosen=chosen,
        )
        for replication in range(first, last)
    ]


def row(name: str, hours: Sequence[int | None], *, longest: int) -> str:
    """Share of halts, and the mean hour, waves without a halt counted at the window's end."""
    share = Share(sum(h is not None for h in hours), len(hours))
    mean = np.mean([longest if h is None else h for h in hours])
    return f"{name:<46}{share!s:>12}{mean:>8.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of every idea in every cell."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ideas", description=__doc__)
    parser.add_argument("--replications", type=int, default=400)
    parser.add_argument("--first", type=int, default=0, help="number of the first replication")
    parser.add_argument("--resamples", type=int, default=999)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="cells whose name contains this text")
    parser.add_argument("--scores", nargs="*", default=[], help="scores named by these texts")
    parser.add_argument("--margin", action="store_true", help="false non-inferiority instead")
    parser.add_argument("--null", action="store_true", help="harmless firmware: the level")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    stored = {}
    end = options.first + options.replications
    spans = [(n, min(n + CHUNK, end)) for n in range(options.first, end, CHUNK)]
    with ProcessPoolExecutor(
        options.processes, initializer=threadpool_limits, initargs=(1,)
    ) as pool:
        if options.margin:
            for cell in MARGINS:
                waves = [
                    w for j in [pool.submit(shown, cell, *s) for s in spans] for w in j.result()
                ]
                print(f"\n{cell.name}: called not worse than twice")
                for name in waves[0]:
                    print(f"{name:<46}{Share(sum(w[name] for w in waves), len(waves))!s:>12} %")
            return 0
        for cell in CELLS:
            chosen = cell.with_(ratio=1.0) if options.null else cell
            if options.only not in chosen.name:
                continue
            jobs = [
                pool.submit(halts, chosen, *span, options.resamples, options.scores)
                for span in spans
            ]
            waves = [wave for job in jobs for wave in job.result()]
            joined = {name: [wave[name] for wave in waves] for name in waves[0]}
            print(f"\n{chosen.name}\n{'':<46}{'halt %':>12}{'hours':>8}")
            for name, hours in joined.items():
                print(row(name, hours, longest=chosen.hours), flush=True)
            stored[chosen.name] = {
                name: {
                    "halted": sum(h is not None for h in hours),
                    "replications": len(hours),
                    "mean_hours": float(np.mean([chosen.hours if h is None else h for h in hours])),
                }
                for name, hours in joined.items()
            }
    if options.output is not None:
        options.output.write_text(json.dumps(stored, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
