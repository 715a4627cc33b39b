"""Did a fix work? Asked in worlds of known truth, where machines are lemons or have bad weeks.

`python -m benchmarks.fix_worlds` prints the table of "Did a fix work?" in docs/statistics.md. It
ends with 1 if a fix without effect is called one more often than the level allows. Seeded.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.statistics import Share
from rollouts.analysis.episodes import Events, episodes
from rollouts.analysis.fixes.answer import Answer, FixVerdict, did_it_work
from rollouts.analysis.fixes.history import FixHistory
from rollouts.analysis.fixes.ratios import LEVEL

DAY = 86_400.0
RATE = 0.02
"""Faults per machine-day."""
LEMON_SHARE = 0.03
BEFORE_DAYS = 28.0
SPELLS_PER_DAY, SPELL_DAYS, SPELL_RATE = 0.01, 7, 0.3
GAP_SECONDS = 900.0
OUTPUT = Path(__file__).parent / "results" / "fix_worlds.json"


@dataclass(frozen=True)
class World:
    """A fleet, some of whose machines are fixed.

    `effect` is the rate after the fix over that before. `chosen` says who is fixed: half of all
    `at_random` over half the window, the third with the most faults before (`worst`), or every
    other one that fails, half a day after a fault (`after_a_fault`). With spells, machines are
    alike and have bad weeks; without, a few are lemons.
    """

    chosen: str
    effect: float = 1.0
    machines: int = 120
    days: float = 120.0
    has_spells: bool = False

    @property
    def words(self) -> str:
        effect = "no effect" if self.effect == 1 else f"effect {self.effect:g}"
        kind = "bad weeks" if self.has_spells else "lemons"
        return f"{effect}, {kind}, {self.chosen.replace('_', ' ')}"

    def draw(self, rng: np.random.Generator) -> FixHistory:
        """One such fleet, with what happened to it."""
        who, when = self._faults(rng)
        fixed = self._fixed(rng, who, when)
        kept = (when < fixed[who]) | (rng.random(when.size) < self.effect)
        order = np.lexsort((when[kept], who[kept]))
        nothing = Events(np.empty(0, dtype=np.int64), np.empty(0))
        return FixHistory(
            window_seconds=self.days * DAY,
            fixed_seconds=fixed * DAY,
            stratum=np.zeros(self.machines, dtype=np.int64),
            entered_seconds=np.full(self.machines, math.nan),
            span_machine=np.arange(self.machines),
            span_start_seconds=np.full(self.machines, -BEFORE_DAYS * DAY),
            span_end_seconds=np.full(self.machines, self.days * DAY),
            episodes=episodes(
                Events(who[kept][order], when[kept][order] * DAY), gap_seconds=GAP_SECONDS
            ),
            others=nothing,
            signature=np.empty(0, dtype=np.int64),
            signatures=(),
            interruptions=nothing,
            path=np.empty(0, dtype=np.int64),
            lost_hours=np.empty(0),
            paths=(),
        )

    def _faults(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Machine and day of every fault there would be without the fix; day 0 is the window's."""
        size, length = self.machines, self.days + BEFORE_DAYS
        level = rng.gamma(2, 0.5, size)
        level *= np.where(rng.random(size) < LEMON_SHARE, rng.uniform(10, 30, size), 1)
        level = np.ones(size) if self.has_spells else level / level.mean()
        who = np.repeat(np.arange(size), rng.poisson(RATE * level * length))
        when = rng.uniform(-BEFORE_DAYS, self.days, who.size)
        if self.has_spells:
            bad = np.repeat(np.arange(size), rng.poisson(SPELLS_PER_DAY * length, size))
            begun = rng.uniform(-BEFORE_DAYS, self.days, bad.size)
            inside = rng.poisson(SPELL_RATE * SPELL_DAYS, bad.size)
            who = np.concatenate([who, np.repeat(bad, inside)])
            lasted = rng.uniform(0, SPELL_DAYS, int(inside.sum()))
            when = np.concatenate([when, np.repeat(begun, inside) + lasted])
        return who[when < self.days], when[when < self.days]

    def _fixed(self, rng: np.random.Generator, who: np.ndarray, when: np.ndarray) -> np.ndarray:
        """The day of each machine's fix; inf for never."""
        size = self.machines
        fixed = np.full(size, math.inf)
        if self.chosen == "at_random":
            some = rng.permutation(size)[: size // 2]
            fixed[some] = rng.uniform(0, self.days / 2, some.size)
        elif self.chosen == "worst":
            bad_luck = np.bincount(who[when < 0], minlength=size) + rng.random(size) / 2
            fixed[np.argsort(-bad_luck)[: size // 3]] = 0.0
        elif self.chosen == "after_a_fault":
            for machine in range(size):
                hits = np.sort(when[(who == machine) & (when >= 0)])
                taken = hits[rng.random(hits.size) < 0.5]
                fixed[machine] = taken[0] + 0.5 if taken.size else math.inf
        else:
            raise ValueError(f"chosen is at_random, worst or after_a_fault: got {self.chosen!r}")
        return fixed


WORLDS = (
    *(
        (World(chosen, has_spells=has_spells), 400)
        for has_spells in (False, True)
        for chosen in ("at_random", "worst", "after_a_fault")
    ),
    (World("at_random", effect=0.5), 300),
    (World("worst", effect=0.5), 300),
)


def answers(world: World, *, worlds: int, seed: int) -> list[Answer]:
    """What is answered in so many draws of a world."""
    rng = np.random.default_rng(seed)
    return [did_it_work(world.draw(rng)) for _ in range(worlds)]


def verdict_share(verdict: FixVerdict, world: World, *, worlds: int, seed: int) -> float:
    """In which share of the draws the answer is this one."""
    found = answers(world, worlds=worlds, seed=seed)
    return sum(answer.verdict is verdict for answer in found) / worlds


def most_accepted(worlds: int) -> float:
    """The level and two standard errors: what a fix without effect may be called one in."""
    level = 1 - LEVEL
    return level + 2 * math.sqrt(level * (1 - level) / worlds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and keep the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fix_worlds", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    rows, is_met = [], True
    print(f"{'':<34}{'reduced %':>12}{'not reduced %':>15}{'before/after alone %':>22}")
    for world, worlds in WORLDS:
        found = answers(world, worlds=worlds, seed=options.seed)
        reduced, not_reduced, fell = (
            Share(sum(hits), worlds)
            for hits in (
                [answer.verdict is FixVerdict.REDUCED for answer in found],
                [answer.verdict is FixVerdict.NOT_REDUCED for answer in found],
                [answer.falling.fixed.is_below for answer in found],
            )
        )
        is_met = is_met and (world.effect != 1 or reduced.value <= most_accepted(worlds))
        print(f"{world.words:<34}{reduced!s:>12}{not_reduced!s:>15}{fell!s:>22}", flush=True)
        rows.append(
            {
                **asdict(world),
                "worlds": worlds,
                "reduced": reduced.hits,
                "not_reduced": not_reduced.hits,
                "before_after_below": fell.hits,
            }
        )
    command = " ".join(["python -m benchmarks.fix_worlds", *(arguments or sys.argv[1:])])
    kept = {"command": command, "is_met": is_met, "worlds": rows}
    options.output.write_text(json.dumps(kept, indent=1) + "\n")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
