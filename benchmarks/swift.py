"""The product's judge without what it says: whether it halts or widens, several times faster.

The same scores, re-assignments, levels and rules. Only where a decision can fall (a checkpoint, an
install, a path that crosses) is a look judged in full; at the others each guardrail's halting test
takes its step and no interval is searched. That both decide alike is a criterion of the benchmark
on the waves that both saw.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np

from benchmarks.cells import generator
from benchmarks.judges import ALPHA, Outcome, looks_of, outcome_of, plan_of, policy_for
from benchmarks.waves import Bools, Wave
from rollouts.analysis import judge
from rollouts.analysis.evidence import Columns
from rollouts.analysis.guardrails import prepare
from rollouts.analysis.guardrails.run import Run
from rollouts.analysis.labels import IntArray, Labels
from rollouts.analysis.policy import Guardrail
from rollouts.analysis.recovery import per_root_count
from rollouts.analysis.sequential import CrossingState, SumArray, cross
from rollouts.analysis.spending import halt_level
from rollouts.analysis.verdicts import LookEvaluation
from rollouts.analysis.wave import Look, WaveState


def decided(wave: Wave, *, replication: int, resamples: int, alpha: float = ALPHA) -> Outcome:
    """First halt and first widening of the product's judge over the hourly looks of a wave."""
    cell = wave.cell
    seed = int(generator(cell, replication, purpose="labels").integers(1, 2**31))
    policy = policy_for(cell, resamples=resamples, seed=seed)
    plan, state = plan_of(wave, policy, alpha=alpha), judge.initial_state(wave.samples, policy)
    prepared = _prepared(Run(wave.samples, policy, plan, tuple(looks_of(cell))), state)
    is_single = cell.policy != "engine"
    due = _installs_known(wave)
    evaluations: list[LookEvaluation] = []
    for index, look in enumerate(prepared.run.looks):
        stepped = None if due[index] or _may_widen(look, state) else _step(prepared, index, state)
        if stepped is not None:
            state = stepped
            continue
        evaluation, state = judge._one_look(prepared, index, state)
        evaluations.append(evaluation)
        if outcome_of(evaluations, is_single=is_single).halt is not None:
            break
    return outcome_of(evaluations, is_single=is_single)


class _Sums(dict[str, IntArray]):
    """Sums over every path's canaries: of the halting scores at once, of the others when asked."""

    def __init__(self, columns: Mapping[str, IntArray], labels: Labels) -> None:
        super().__init__()
        self._columns, self._labels = columns, labels
        self._add(
            [key for key in columns if "/harm/" in key or "/harm-sum/" in key or _COUNT in key]
        )

    def _add(self, keys: list[str]) -> None:
        if keys:
            found = self._labels.sums(np.stack([self._columns[key] for key in keys], axis=1))
            self.update((key, found[:, i]) for i, key in enumerate(keys))

    def __missing__(self, key: str) -> IntArray:
        """A look that is judged in full asks for all that is left of it."""
        look = key[key.rindex("/") :]
        self._add([other for other in self._columns if other.endswith(look) and other not in self])
        return self[key]


_COUNT = "/harm-count/"


def _prepared(run: Run, state: WaveState) -> judge._Prepared:
    """As the judge prepares it, but sums are made where they are needed."""
    tracks = {g.name: prepare.track(g, run) for g in run.policy.guardrails}
    labels = judge.labels_for(run.samples, run.policy)
    parts = [track.columns() for track in tracks.values()]
    columns = Columns({key: partial(part.__getitem__, key) for part in parts for key in part})
    return judge._Prepared(
        run=run,
        tracks=tracks,
        alphas=judge.alpha_by_guardrail(run.policy, alpha=run.plan.alpha),
        shortfalls=judge.design_shortfalls(
            judge.design_of(run.samples), run.policy, alpha=run.plan.alpha
        ),
        sums=_Sums(columns, labels),
        columns={},
        paths=labels.paths,
        silence=judge._silence(run, state),
        last_bound=judge._planned_bounds(run.policy, run.plan)[1][-1],
    )


def _may_widen(look: Look, state: WaveState) -> bool:
    """A checkpoint, or one that still waits for data."""
    passed = judge.checkpoint_passed(look, reached=state.reached)
    return passed is not None or any(g.pending is not None for g in state.guardrails.values())


def _step(prepared: judge._Prepared, index: int, state: WaveState) -> WaveState | None:
    """Every halting test's step at a look; None if one crosses, so that all of it is judged."""
    for guardrail in prepared.run.policy.guardrails:
        before = state.of(guardrail.name)
        sums = _harm(prepared, guardrail, index)
        if sums is None or before.is_crossed or not _may_halt(prepared, guardrail, index):
            continue
        level = _level(
            prepared.alphas[guardrail.name],
            prepared.run.looks[index],
            has_extension=prepared.run.plan.can_extend,
        )
        after = cross(before.halt or CrossingState.initial(prepared.paths), sums, level=level)
        if after.is_crossed:
            return None
        state = state.with_guardrail(guardrail.name, replace(before, halt=after))
    return state


@lru_cache(maxsize=4096)
def _level(alpha: Fraction, look: Look, *, has_extension: bool) -> Fraction:
    extended = look.extension_elapsed if look.elapsed >= 1 and has_extension else 0
    return halt_level(alpha, look.elapsed, extended, has_extension=has_extension)


def _may_halt(prepared: judge._Prepared, guardrail: Guardrail, index: int) -> bool:
    kind = judge._LISTENS.get(guardrail.metric, judge.REPORTS)
    silence = prepared.silence.get(kind) if kind is not None else None
    track = prepared.tracks[guardrail.name]
    return (
        guardrail.halt
        and guardrail.name not in prepared.shortfalls
        and not (silence and silence[index])
        and judge._mixed(prepared.run, guardrail) is None
        and track.missing(index) is None
        and judge._constant(track, index) is None
    )


def _harm(prepared: judge._Prepared, guardrail: Guardrail, index: int) -> SumArray | None:
    """Sums of the halting score, as in a replay; None for installs, which have none."""
    number = prepared.run.looks[index].number
    for key in (f"{guardrail.name}/harm/{number}", f"{guardrail.name}/harm-sum/{number}"):
        if key in prepared.sums:
            counts = prepared.sums.get(key.replace("-sum/", "-count/")) if "-sum/" in key else None
            sums = prepared.sums[key]
            return sums if counts is None else per_root_count(sums, counts)
    return None


def _installs_known(wave: Wave) -> Bools:
    """Looks at which an install became known since the look before."""
    looks = np.array([look.as_of_seconds for look in looks_of(wave.cell)])
    found = np.zeros(looks.size, dtype=np.bool_)
    if wave.samples.attempts is not None:
        place = np.searchsorted(looks, wave.samples.attempts.time_seconds, side="left")
        found[place[place < looks.size]] = True
    return found
