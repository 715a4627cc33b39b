"""Every judge as a function of one wave: when does it halt, when does it let the wave widen?"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from benchmarks import peers
from benchmarks.cells import Cell, generator
from benchmarks.waves import HOUR, Wave
from rollouts import policies
from rollouts.analysis import judge, power
from rollouts.analysis.episodes import (
    Events,
    counts_at,
    episodes,
    family_events,
    first_of_each,
    since_clock,
)
from rollouts.analysis.exposure import exposure_at
from rollouts.analysis.guardrails.prepare import TRACKS
from rollouts.analysis.labels import Labels
from rollouts.analysis.policy import Metric, Policy
from rollouts.analysis.sequential import CrossingState, cross, p_value
from rollouts.analysis.spending import CHECKPOINTS, halt_level, ni_bounds, ni_level
from rollouts.analysis.verdicts import DecisionKind, LookEvaluation, Verdict
from rollouts.analysis.wave import Look, WavePlan

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ALPHA = 0.05
ALPHA_WAVES = 0.04
"""Of a rollout's .05, what its waves share; the rest is for surveillance."""
UNITS = 1_000_000


@dataclass(frozen=True)
class Outcome:
    """Look (hour) of the first halt and of the first widening before it; None: never.

    `blind_widens` counts looks that widened while a required guardrail had no data.
    """

    halt: int | None
    widen: int | None = None
    blind_widens: int = 0


# --- the product's judge -------------------------------------------------------------------

SINGLE: Mapping[str, str] = {
    "faults": "faults",
    "throughput": "throughput",
    "recovery_time": "recovery_time",
    "severe_path": "severe_path",
    "install": "install",
    "telemetry": "telemetry",
}


def policy_for(cell: Cell, *, resamples: int, seed: int) -> Policy:
    """One guardrail with the whole level, or all of them with their shares."""
    return replace(_unseeded(cell, resamples=resamples), seed=seed)


@lru_cache(maxsize=64)
def _unseeded(cell: Cell, *, resamples: int) -> Policy:
    """Read once per cell: the schema's check takes as long as a tenth of a wave."""
    kind = cell.policy
    document: dict[str, object] = {"seed": 1, "resamples": resamples}
    if kind == "engine":
        document["guardrails"] = [
            {"metric": "faults", "signatures": ["fault"]},
            *({"metric": m.value} for m in Metric if m is not Metric.FAULTS),
        ]
    else:
        item: dict[str, object] = {"metric": SINGLE[kind], "required": True, "halt": cell.halts}
        if kind == "faults":
            item["signatures"] = ["fault"]
        document["guardrails"] = [item]
    found = policies.policy_from(document, kind=policies.Kind.CASE)
    return replace(found, extension=(cell.hours - cell.window_hours) / cell.window_hours)


def unjudged(cell: Cell) -> list[str]:
    """Metrics of a policy that the judge has no estimator for."""
    policy = policy_for(cell, resamples=19, seed=1)
    return sorted({g.metric.value for g in policy.guardrails if g.metric not in TRACKS})


def looks_of(cell: Cell) -> list[Look]:
    window, rest = cell.window_hours, cell.hours - cell.window_hours
    return [
        Look(
            number=hour,
            as_of_seconds=hour * HOUR,
            elapsed=min(1.0, hour / window),
            extension_elapsed=max(0, hour - window) / rest if rest else 0.0,
        )
        for hour in range(1, cell.hours + 1)
    ]


def plan_of(wave: Wave, policy: Policy, *, alpha: float = ALPHA) -> WavePlan:
    """What the planner, who knows the fleet's rates from before, tells the judge of this wave."""
    cell = wave.cell
    rate = cell.rate + 0.3 * cell.shocks
    fault_names = [g.name for g in policy.guardrails if g.metric is Metric.FAULTS]
    return WavePlan(
        window_seconds=cell.window_hours * HOUR,
        alpha=alpha,
        has_extension=cell.extension,
        is_extended=False,
        frozen_fault_rate=dict.fromkeys(fault_names, rate),
        decidable=_decidable(wave, policy, rate) if cell.policy == "engine" else {},
    )


def _decidable(wave: Wave, policy: Policy, rate: float) -> dict[str, bool]:
    cell = wave.cell
    canaries, controls = int(wave.is_canary.sum()), int((~wave.is_canary).sum())
    levels = [ni_level(policy.beta, c, has_extension=cell.extension) for c in CHECKPOINTS]
    bound = ni_bounds(levels, information=CHECKPOINTS)[-1]
    met = rate * cell.days
    history = power.FaultRate(rate, dispersion=2.0 if cell.lemons else 0.0)
    chances = {
        Metric.FAULTS: power.fault_ni_power(
            history, n_canary=canaries, n_control=controls, days=cell.days, margin=2.0, bound=bound
        ),
        Metric.RECOVERY_TIME: power.recovery_ni_power(met * canaries, met * controls, bound=bound),
        Metric.SEVERE_PATH: power.severe_ni_power(met * canaries, met * controls, bound=bound),
        Metric.INSTALL: power.install_ni_power(
            canaries, failure_share=0.013, limit=0.06, beta=policy.beta
        ),
        Metric.TELEMETRY: power.severe_ni_power(
            canaries, controls, bound=bound, share=0.02, margin=0.05
        ),
    }
    return {
        g.name: power.is_decidable(chances[g.metric])
        for g in policy.guardrails
        if g.metric in chances
    }


def coalmine(wave: Wave, *, replication: int, resamples: int, alpha: float = ALPHA) -> Outcome:
    """The product's judge at every hourly look."""
    cell = wave.cell
    seed = int(generator(cell, replication, purpose="labels").integers(1, 2**31))
    policy = policy_for(cell, resamples=resamples, seed=seed)
    evaluations, _ = judge.evaluate(
        wave.samples,
        policy,
        plan_of(wave, policy, alpha=alpha),
        looks=looks_of(cell),
        state=judge.initial_state(wave.samples, policy),
    )
    return outcome_of(evaluations, is_single=cell.policy != "engine")


class Decide(Protocol):
    """The product's judge on one wave, in words or swiftly."""

    def __call__(
        self, wave: Wave, /, *, replication: int, resamples: int, alpha: float = ALPHA
    ) -> Outcome: ...


def over_rollout(
    waves: Iterable[Wave], *, decide: Decide, replication: int, resamples: int
) -> Outcome:
    """A whole rollout by the error budget: a person advances it unless a wave is halted.

    Hours count on over the windows; it has widened if its last wave has.
    """
    blind, widen, before = 0, None, 0
    for wave in waves:
        count = len(wave.cell.waves)
        found = decide(
            wave, replication=replication, resamples=resamples, alpha=ALPHA_WAVES / count
        )
        blind += found.blind_widens
        if found.halt is not None:
            return Outcome(before + found.halt, None, blind)
        widen = None if found.widen is None else before + found.widen
        before += wave.cell.hours
    return Outcome(None, widen, blind)


def outcome_of(evaluations: Sequence[LookEvaluation], *, is_single: bool) -> Outcome:
    """First halt and first widening; of a single guardrail, the crossing itself counts."""
    halt = widen = None
    blind = 0
    for evaluation in evaluations:
        kind = evaluation.recommendation.kind
        crossed = is_single and any(g.crossed for g in evaluation.guardrails)
        if halt is None and (kind is DecisionKind.HALT or crossed):
            halt = evaluation.look
        if kind is DecisionKind.WIDEN:
            blind += any(g.required and g.verdict is Verdict.NO_DATA for g in evaluation.guardrails)
            if widen is None and halt is None:
                widen = evaluation.look
    return Outcome(halt, widen, blind)


# --- peers ---------------------------------------------------------------------------------

Rule = Callable[[Wave], int | None]


@dataclass(frozen=True, eq=False)
class FaultView:
    """Raw alarms as a monitoring system would show them: per arm and hour."""

    cumulative: Floats
    arm_hourly: tuple[Ints, Ints]
    arm_total: tuple[Ints, Ints]
    sizes: tuple[int, int]

    @classmethod
    def of(cls, wave: Wave) -> "FaultView":
        mine = wave.is_canary
        hourly = wave.events[mine].sum(axis=0), wave.events[~mine].sum(axis=0)
        return cls(
            cumulative=np.cumsum(wave.events, axis=1).astype(np.float64),
            arm_hourly=hourly,
            arm_total=(np.cumsum(hourly[0]), np.cumsum(hourly[1])),
            sizes=(int(mine.sum()), int((~mine).sum())),
        )

    @property
    def share(self) -> float:
        return self.sizes[0] / sum(self.sizes)

    def rates(self, window: int) -> tuple[Floats, Floats]:
        """Alarms per machine over the last `window` hours, at every look."""
        parts = []
        for total, size in zip(self.arm_total, self.sizes, strict=True):
            before = np.concatenate([np.zeros(window, dtype=np.int64), total])[: total.size]
            parts.append((total - before) / size)
        return parts[0], parts[1]


def _exceeds(canary: Floats, control: Floats, factor: float) -> NDArray[np.bool_]:
    return np.asarray(canary > factor * control)


def fault_peers(wave: Wave) -> dict[str, int | None]:
    """Halts of the peers' rules on the same alarms."""
    view = FaultView.of(wave)
    means = peers.ArmMeans(view.cumulative, is_canary=wave.is_canary)
    a, b = (h / n for h, n in zip(view.arm_hourly, view.sizes, strict=True))
    canary, control = view.arm_total
    planned = wave.cell.rate * wave.cell.days * (1 + wave.cell.bursts)
    events = max(20, math.ceil(2 * planned * sum(view.sizes)))
    return {
        "kayenta": peers.kayenta_halt(a, b, direction=peers.Direction.INCREASE),
        "argo": peers.argo_halt(_exceeds(*view.rates(6), 2.0)),
        "flagger": peers.flagger_halt(_exceeds(a, b, 1.5)),
        "growthbook_5000": means.growthbook(n_star=5000),
        "growthbook_n": means.growthbook(n_star=means.total),
        "statsig": means.statsig(),
        "peeking": peers.peeking_binomial_halt(canary, control, share=view.share),
        "maxsprt": peers.maxsprt_halt(canary, control, share=view.share, events=events),
        "lindon_malek": peers.lindon_malek_halt(canary, control, share=view.share),
    }


def throughput_peers(wave: Wave) -> dict[str, int | None]:
    """Halts of the peers' rules on the same throughput, adjusted by the day before (CUPED)."""
    if wave.speed is None or wave.speed_before is None:
        raise ValueError(f"{wave.cell.name} has no throughput")
    mine = wave.is_canary
    known = np.isfinite(wave.speed)
    running = np.cumsum(np.where(known, wave.speed, 0.0), axis=1) / np.maximum(
        np.cumsum(known, axis=1), 1
    )
    running = np.where(np.cumsum(known, axis=1) > 0, running, np.nan)
    means = peers.ArmMeans(-_cuped(running, wave.speed_before), is_canary=mine)
    with np.errstate(invalid="ignore"):
        a, b = np.nanmean(wave.speed[mine], axis=0), np.nanmean(wave.speed[~mine], axis=0)
    return {
        "kayenta": peers.kayenta_halt(a, b, direction=peers.Direction.DECREASE),
        "argo": peers.argo_halt(a < 0.98 * b),
        "flagger": peers.flagger_halt(a < 0.97 * b),
        "growthbook_5000": means.growthbook(n_star=5000),
        "growthbook_n": means.growthbook(n_star=means.total),
        "statsig": means.statsig(),
        "peeking": means.peeking_welch(),
        "fixed": _fixed_z(means),
    }


def _cuped(running: Floats, before: Floats) -> Floats:
    """Each look's machine means, less what the machine's day before explains."""
    x = before - before.mean()
    filled = np.where(np.isfinite(running), running, np.nanmean(running, axis=0))
    slope = x @ (filled - filled.mean(axis=0)) / (x @ x)
    return np.asarray(running - x[:, None] * slope)


def _fixed_z(means: peers.ArmMeans) -> int | None:
    z = float(means.gap[-1] / means.se[-1])
    return means.gap.size if z > norm.isf(ALPHA) else None


def install_peers(wave: Wave) -> dict[str, int | None]:
    """Numbers are attempts, not hours: all installs lie before the window."""
    attempts = wave.samples.attempts
    if attempts is None:
        raise ValueError(f"{wave.cell.name} has no installs")
    failed = attempts.outcome > 0
    return {
        "hawkbit": peers.hawkbit_halts(failed),
        "aws_iot": peers.aws_iot_halts(failed),
    }


# --- limits --------------------------------------------------------------------------------


def fault_limits(wave: Wave, *, replication: int, resamples: int) -> dict[str, int | None]:
    """What knowing the truth would allow, and what not peeking would."""
    cell = wave.cell
    mine = wave.is_canary
    found: dict[str, int | None] = {}
    if not cell.shocks and not cell.bursts and not cell.removal and cell.ratio > 1:
        found["oracle"] = peers.oracle_halt(
            wave.events[mine].sum(axis=0),
            wave.expected[mine].sum(axis=0),
            ratio=cell.ratio,
            first_hour=int(cell.onset_hours),
        )
    labels = _labels(wave, replication=replication, resamples=resamples)
    counts = _at_looks(wave, _episodes(wave))
    known = np.sqrt(np.cumsum(wave.expected, axis=1) + 1)
    found["ceiling"] = _first_crossing(wave, labels, np.sqrt(counts + 1) - known)
    found["fixed"] = cell.hours if p_value(labels.sums(counts[:, -1])) <= ALPHA else None
    return found


def prototype(wave: Wave, *, replication: int, resamples: int) -> Outcome:
    """The score of the method's first version, in the same test: machine-days with an episode.

    Less what the pooled level expects of the days in service. It knows no period before.
    """
    days = exposure_at(wave.samples, _hours(wave)).days
    hit = _at_looks(wave, first_of_each(_episodes(wave), seconds=24 * HOUR)).astype(np.float64)
    level = hit.sum(axis=0) / np.maximum(days.sum(axis=0), 1e-9)
    labels = _labels(wave, replication=replication, resamples=resamples)
    return Outcome(_first_crossing(wave, labels, hit - level * days))


def _labels(wave: Wave, *, replication: int, resamples: int) -> Labels:
    """The very re-assignments that the product's judge draws for this wave."""
    seed = int(generator(wave.cell, replication, purpose="labels").integers(1, 2**31))
    return judge.labels_for(wave.samples, policy_for(wave.cell, resamples=resamples, seed=seed))


def _first_crossing(wave: Wave, labels: Labels, scores: Floats) -> int | None:
    """First look at which the canaries' scores (units x looks) cross at the whole level."""
    sums = labels.sums(np.rint(UNITS * scores).astype(np.int64))
    state = CrossingState.initial(labels.paths)
    for look in looks_of(wave.cell):
        level = halt_level(ALPHA, look.elapsed, has_extension=False)
        state = cross(state, np.ascontiguousarray(sums[:, look.number - 1]), level=level)
        if state.is_crossed:
            return look.number
    return None


def _hours(wave: Wave) -> Floats:
    return np.arange(1, wave.cell.hours + 1).astype(np.float64) * HOUR


def _episodes(wave: Wave) -> Events:
    """Episodes since the clock's start, as the product counts them."""
    every = episodes(family_events(wave.samples, patterns=("fault",)), gap_seconds=900.0)
    return since_clock(every, wave.samples)


def _at_looks(wave: Wave, events: Events) -> Ints:
    """How many of the events each unit (rows) had by every look (columns)."""
    units = wave.samples.units.is_canary.size
    return counts_at(events, unit=wave.samples.machines.unit, units=units, as_of=_hours(wave))


def has_peers(cell: Cell) -> bool:
    """Has any peer or limit a word on this cell's waves?"""
    is_faults = cell.policy == "faults" and cell.unit == "machine"
    return not cell.waves and (is_faults or cell.policy in ("throughput", "install"))


def judge_peers(wave: Wave, *, replication: int, resamples: int) -> dict[str, Outcome]:
    """All peers and limits that have a word on this wave.

    What they do not halt they let widen at its end.
    """
    cell = wave.cell
    others: dict[str, int | None] = {}
    if cell.policy == "faults" and cell.unit == "machine":
        others |= fault_peers(wave)
        others |= fault_limits(wave, replication=replication, resamples=resamples)
    elif cell.policy == "throughput":
        others |= throughput_peers(wave)
    elif cell.policy == "install":
        others |= install_peers(wave)
    return {
        name: Outcome(halt, None if halt is not None else cell.hours)
        for name, halt in others.items()
    }
