"""From samples to verdicts to a recommendation: the decision engine's way through one run.

`evaluate` serves a live look (one look, the state of the look before) and a replay (all looks,
the initial state) alike. It prepares the integer scores of all guardrails and looks, sums them
over the re-assignments in one pass, and then walks the looks. Nothing it decides at one look
depends on a later one.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from threading import Lock

import numpy as np

from rollouts.analysis.conditions import condition_at
from rollouts.analysis.errors import (
    EmptyArm,
    InvalidLevel,
    InvalidState,
    UnitMismatch,
    UnsupportedMetric,
)
from rollouts.analysis.evidence import Moment, Track
from rollouts.analysis.guardrails import prepare
from rollouts.analysis.guardrails.faults import FaultTrack
from rollouts.analysis.guardrails.installs import install_codes, install_stop
from rollouts.analysis.guardrails.interruptions import RecoveryTrack
from rollouts.analysis.guardrails.per_unit import NO_SIGHTING, Sightings, sightings
from rollouts.analysis.guardrails.run import SECONDS_PER_HOUR, Run
from rollouts.analysis.guardrails.throughput import ThroughputTrack
from rollouts.analysis.labels import ENUMERATION_LIMIT, Design, Labels
from rollouts.analysis.policy import Guardrail, Metric, Policy
from rollouts.analysis.quality import coverage, heard_until, report_spacing, sample_ratio_p
from rollouts.analysis.recommendation import Situation, recommend
from rollouts.analysis.samples import FloatArray, IntArray, Samples
from rollouts.analysis.spending import (
    CHECKPOINTS,
    HaltClaim,
    halt_level,
    ni_bounds,
    ni_level,
    share_alpha,
)
from rollouts.analysis.verdicts import ConditionState, LookEvaluation
from rollouts.analysis.wave import GuardrailState, Look, WavePlan, WaveState

__all__ = [
    "ENGINE_VERSION",
    "Look",
    "WavePlan",
    "WaveState",
    "evaluate",
    "initial_state",
    "labels_for",
    "recommend",
]

ENGINE_VERSION = "5"
"""Changes whenever the same samples could give other integers or another verdict."""

NEAR = "is_near_canary"
"""Name under which a look keeps who shares a job, leaf or domain with a canary."""
EXTENSION_CHECKPOINT = 2.0
"""Stands for the extension's end among the checkpoints passed."""
SAMPLE_RATIO_P = 0.001
CACHED_LABELS = 4

_labels: OrderedDict[tuple[str, int, int], Labels] = OrderedDict()
_labels_lock = Lock()


def initial_state(samples: Samples, policy: Policy) -> WaveState:
    """The state before the first look; refuses samples and policies that cannot be judged."""
    _check_arms(samples)
    _check_unit(samples, policy)
    return WaveState(
        guardrails={guardrail.name: GuardrailState() for guardrail in policy.guardrails}
    )


def _check_arms(samples: Samples) -> None:
    canaries = int(samples.units.is_canary.sum())
    controls = samples.units.is_canary.size - canaries
    if not canaries or not controls:
        raise EmptyArm(
            f"a comparison needs a canary and a control: got {canaries} canary and "
            f"{controls} control units"
        )


def _check_unit(samples: Samples, policy: Policy) -> None:
    """Re-assignments shuffle what was assigned: another unit would be far too sure of itself."""
    if samples.units.placement != policy.unit:
        raise UnitMismatch(
            f"the assignment drew {samples.units.placement!r} and the policy judges by "
            f"{policy.unit!r}; accepted is the unit that was drawn"
        )


def design_of(samples: Samples) -> Design:
    return Design(stratum=samples.units.stratum, is_canary=samples.units.is_canary)


def labels_for(samples: Samples, policy: Policy) -> Labels:
    """The re-assignments of these samples; drawn once per design, seed and number."""
    _check_arms(samples)
    return labels_of(design_of(samples), seed=policy.seed, resamples=policy.resamples)


def labels_of(design: Design, *, seed: int, resamples: int) -> Labels:
    """The re-assignments of a design; the last few are remembered."""
    key = (design.digest, seed, resamples)
    with _labels_lock:
        labels = _labels.get(key)
    if labels is None:  # drawn outside the lock: other waves' looks do not wait for it
        labels = Labels.draw(design, seed=seed, resamples=resamples)
    with _labels_lock:
        _labels[key] = labels
        _labels.move_to_end(key)
        while len(_labels) > CACHED_LABELS:
            _labels.popitem(last=False)
    return labels


# --- levels --------------------------------------------------------------------------------


def alpha_by_guardrail(policy: Policy, *, alpha: float) -> dict[str, Fraction]:
    """Each guardrail's whole halt level in one wave; 0 for those that only report."""
    return share_alpha(
        alpha,
        {
            guardrail.name: HaltClaim(guardrail.metric.value, halts=guardrail.halt)
            for guardrail in policy.guardrails
        },
        waves=1,
        has_surveillance=False,
        weights={metric.value: weight for metric, weight in policy.weights.items()},
    )


PERMUTED = frozenset(Metric) - {Metric.INSTALL}
"""Metrics that halt by re-assignment."""


def design_shortfalls(design: Design, policy: Policy, *, alpha: float) -> dict[str, str]:
    """Guardrails that can never halt by the paths of this design, with the reason in words."""
    shares = alpha_by_guardrail(policy, alpha=alpha)
    is_drawn = design.assignments > ENUMERATION_LIMIT
    paths = policy.resamples + 1 if is_drawn else design.assignments
    return {
        guardrail.name: _shortfall_in_words(paths, shares[guardrail.name], is_drawn=is_drawn)
        for guardrail in policy.guardrails
        if guardrail.halt and guardrail.metric in PERMUTED and shares[guardrail.name] * paths < 1
    }


def _shortfall_in_words(paths: int, alpha: Fraction, *, is_drawn: bool) -> str:
    if not alpha:
        return "nothing of the error budget is left to halt on"
    what = "re-assignments" if is_drawn else "assignments"
    return f"too few {what}: {paths} cannot reach the level {float(alpha):.2g}"


@lru_cache(maxsize=512)
def _bounds(levels: tuple[Fraction, ...], fractions: tuple[float, ...]) -> tuple[float, ...]:
    return ni_bounds(levels, information=fractions)


def _checkpoint_level(policy: Policy, plan: WavePlan, *, fraction: float) -> Fraction:
    return ni_level(
        policy.beta,
        min(fraction, 1.0),
        at_extension_end=fraction > 1,
        has_extension=plan.can_extend,
    )


def _planned_bounds(
    policy: Policy, plan: WavePlan
) -> tuple[tuple[Fraction, ...], tuple[float, ...]]:
    """Levels and bounds of the planned checkpoints within the window."""
    fractions = tuple(float(share) for share in CHECKPOINTS)
    levels = tuple(_checkpoint_level(policy, plan, fraction=share) for share in fractions)
    return levels, _bounds(levels, fractions)


def _widen_levels(
    policy: Policy, plan: WavePlan, state: GuardrailState, *, checkpoint: float | None
) -> tuple[tuple[Fraction, ...], tuple[float, ...]]:
    """Cumulative levels and fractions up to this checkpoint, else for display to the last one."""
    levels = tuple(Fraction(level) for level in state.levels)
    fractions = state.fractions
    if checkpoint is not None:
        levels = (*levels, _checkpoint_level(policy, plan, fraction=checkpoint))
        fractions = (*fractions, checkpoint)
    if not levels:
        first = float(CHECKPOINTS[0])
        return (_checkpoint_level(policy, plan, fraction=first),), (first,)
    return levels, fractions


# --- the way through one run ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Prepared:
    run: Run
    tracks: Mapping[str, Track]
    alphas: Mapping[str, Fraction]
    shortfalls: Mapping[str, str]
    sums: Mapping[str, IntArray]
    columns: Mapping[str, IntArray]
    paths: int
    silence: Mapping[str, tuple[str | None, ...]]
    last_bound: float


def evaluate(
    samples: Samples,
    policy: Policy,
    plan: WavePlan,
    *,
    looks: Sequence[Look],
    state: WaveState,
) -> tuple[list[LookEvaluation], WaveState]:
    """Judge all guardrails of a wave at the given looks, one after the other.

    Parameters
    ----------
    samples : Samples
        All that is known; a look uses only what its cutoff knows.
    policy : Policy
    plan : WavePlan
    looks : sequence of Look
        In order of time: one for a live look, all for a replay.
    state : WaveState
        After the look before; `initial_state` at the first.

    Returns
    -------
    list of LookEvaluation, WaveState
        One evaluation per look, and the state to hand to the next call.

    Raises
    ------
    EmptyArm, InvalidLevel, InvalidState, UnitMismatch, UnsupportedMetric
        If the comparison, the looks or the policy cannot be judged at all.

    Notes
    -----
    Scores are made without regard to the arms, but for the rescaling of the canaries' raw values
    that a tested effect asks for; the arms enter with the sums. `docs/statistics.md` names the
    tests, their sources and what each is guaranteed to keep.

    Examples
    --------
    Ten of ten canaries fault, of thirty controls none:

    >>> from datetime import UTC, datetime
    >>> from rollouts.analysis.samples import FaultEvents, Machines, Units
    >>> names = tuple(f"m{number:02}" for number in range(40))
    >>> units = Units(names, np.arange(40) < 10, np.zeros(40, int), np.zeros(40))
    >>> machines = Machines(names, np.arange(40), np.zeros(40), np.full(40, np.inf))
    >>> faults = FaultEvents(np.arange(10), np.full(10, 3600.0), np.zeros(10, int), ("a",), ("",))
    >>> samples = Samples(datetime(2026, 1, 1, tzinfo=UTC), 86_400.0, 86_400.0, units, machines,
    ...                   faults=faults)
    >>> guardrail = Guardrail("faults", Metric.FAULTS, True, True, margin=2.0, tolerance=1.0)
    >>> policy = Policy((guardrail,), weights={Metric.FAULTS: 1.0}, resamples=999)
    >>> (look,), state = evaluate(
    ...     samples, policy, WavePlan(window_seconds=86_400.0, alpha=0.05, has_extension=False),
    ...     looks=[Look(1, 86_400.0, elapsed=1.0)], state=initial_state(samples, policy))
    >>> look.recommendation.kind.value, look.recommendation.code.value
    ('halt', 'harmful')
    """
    _check_arms(samples)
    _check_unit(samples, policy)
    _check_state(samples, state)
    _check_looks(looks, state)
    check_supported(policy)
    prepared = _prepare(Run(samples, policy, plan, tuple(looks)), state)
    evaluations = []
    for index in range(len(looks)):
        evaluation, state = _one_look(prepared, index, state)
        evaluations.append(evaluation)
    return evaluations, state


def check_supported(policy: Policy) -> None:
    """Every metric of the policy has an estimator; an unknown one is never passed silently."""
    unknown = [g.name for g in policy.guardrails if g.metric not in prepare.TRACKS]
    if unknown:
        raise UnsupportedMetric(f"no estimator yet for: {', '.join(unknown)}")


def _check_state(samples: Samples, state: WaveState) -> None:
    """What was heard of the units so far is of these units."""
    units = samples.units.is_canary.size
    for kind, heard in state.heard_seconds.items():
        if heard.shape != (units,):
            raise InvalidState(
                f"the state before holds {kind} of {heard.size} units, the comparison has {units}"
            )


def _check_looks(looks: Sequence[Look], state: WaveState) -> None:
    before = state.as_of_seconds
    for look in looks:
        if before is not None and look.as_of_seconds <= before:
            raise InvalidLevel(
                f"looks go forward: look {look.number} at {look.as_of_seconds:g} s "
                f"does not come after {before:g} s"
            )
        before = look.as_of_seconds
    numbers = [look.number for look in looks]
    if any(later <= number for number, later in pairwise(numbers)):
        raise InvalidLevel(f"numbers of looks rise: got {numbers}")


def _prepare(run: Run, state: WaveState) -> _Prepared:
    tracks = {g.name: prepare.track(g, run) for g in run.policy.guardrails}
    design = design_of(run.samples)
    labels = labels_for(run.samples, run.policy)
    columns = {key: column for track in tracks.values() for key, column in track.columns().items()}
    if columns:
        stacked = labels.sums(np.stack(list(columns.values()), axis=1))
        sums = {key: np.ascontiguousarray(stacked[:, i]) for i, key in enumerate(columns)}
    else:
        sums = {}
    return _Prepared(
        run=run,
        tracks=tracks,
        alphas=alpha_by_guardrail(run.policy, alpha=run.plan.alpha),
        shortfalls=design_shortfalls(design, run.policy, alpha=run.plan.alpha),
        sums=sums,
        columns=columns,
        paths=labels.paths,
        silence=_silence(run, state),
        last_bound=_planned_bounds(run.policy, run.plan)[1][-1],
    )


REPORTS = "reports"
THROUGHPUT = "throughput"
PROBES = "node probes"
_LISTENS: Mapping[Metric, str | None] = {
    Metric.THROUGHPUT: THROUGHPUT,
    Metric.INSTALL: None,
    Metric.TELEMETRY: None,
}


def _heard(run: Run) -> dict[str, FloatArray]:
    if run.samples.observations is None:
        return {}
    heard = {
        REPORTS: heard_until(run.samples, run.as_of, needs_throughput=False),
        THROUGHPUT: heard_until(run.samples, run.as_of, needs_throughput=True, is_probe=False),
    }
    if any(guardrail.is_probed for guardrail in run.policy.guardrails):
        heard[PROBES] = heard_until(run.samples, run.as_of, needs_throughput=True, is_probe=True)
    return heard


def _silence(run: Run, state: WaveState) -> dict[str, tuple[str | None, ...]]:
    """Per kind of report and look, why it counts as missing (None: it does not)."""
    heard = _heard(run)
    spacing = report_spacing(run.samples)
    found: dict[str, tuple[str | None, ...]] = {}
    for kind, until in heard.items():
        if kind == PROBES:
            found[kind] = tuple(_unprobed(run, until[:, k], k) for k in range(len(run.looks)))
            continue
        problems = []
        before = state.heard_seconds.get(kind)
        since = run.first_clock if state.as_of_seconds is None else state.as_of_seconds
        for k, cutoff in enumerate(run.as_of.tolist()):
            here = coverage(
                run.samples,
                heard=until[:, k],
                heard_before=before,
                since=since,
                until=cutoff,
                spacing=spacing,
            )
            problems.append(
                here.problem(kind) or _long_silence(run, until[:, k], kind, since, cutoff, spacing)
            )
            before, since = until[:, k], cutoff
        found[kind] = tuple(problems)
    return found


def _unprobed(run: Run, heard: FloatArray, index: int) -> str | None:
    """Whether canaries have been probed less often than controls since the first clock.

    Probes come in idle gaps, so that nobody owes one between two looks.
    """
    cutoff = float(run.as_of[index])
    ever = coverage(
        run.samples,
        heard=heard,
        heard_before=None,
        since=run.first_clock,
        until=cutoff,
        spacing=0.0,
    )
    return ever.differential(PROBES)


LONG_SILENCE = 3
"""Looks, or reports where those are rarer, without a sign of life that make a silence long."""


def _long_silence(
    run: Run, heard: FloatArray, kind: str, since: float, cutoff: float, spacing: float
) -> str | None:
    """Whether canaries that went dark for good hide among reports that got lost by chance.

    Reports get lost on both arms, and at a single look that noise can cover a few canaries that
    have stopped for ever; hardly any healthy machine loses several in a row.
    """
    start = cutoff - LONG_SILENCE * max(spacing, cutoff - since)
    if start < run.first_clock:
        return None
    lasting = coverage(
        run.samples, heard=heard, heard_before=None, since=start, until=cutoff, spacing=spacing
    )
    return lasting.differential(kind)


def _one_look(
    prepared: _Prepared, index: int, state: WaveState
) -> tuple[LookEvaluation, WaveState]:
    run = prepared.run
    look = run.looks[index]
    passed = checkpoint_passed(look, reached=state.reached)
    evaluations, moments = [], {}
    judged = passed is not None
    for guardrail in run.policy.guardrails:
        before = state.of(guardrail.name)
        if passed is not None:
            before = replace(before, pending=fraction_of(look, run.policy))
        moment = _moment(prepared, guardrail, index, before)
        moments[guardrail.name] = moment
        judged = judged or moment.checkpoint is not None
        evaluation, after = prepared.tracks[guardrail.name].judge(moment, prepared.sums)
        if moment.checkpoint is not None:
            after = replace(after, pending=None)
        evaluations.append(evaluation)
        state = state.with_guardrail(guardrail.name, after)
    state = replace(
        state,
        as_of_seconds=look.as_of_seconds,
        reached=state.reached if passed is None else passed,
        heard_seconds={kind: until[:, index] for kind, until in _heard(run).items()}
        if index == len(run.looks) - 1
        else state.heard_seconds,
    )
    conditions = _conditions(run, index)
    situation = _situation(prepared, index, conditions)
    recommendation = recommend(
        evaluations,
        plan=run.plan,
        policy=run.policy,
        look=look,
        is_checkpoint=judged,
        situation=situation,
    )
    return (
        LookEvaluation(
            look=look.number,
            as_of_seconds=look.as_of_seconds,
            elapsed=look.elapsed + run.policy.extension * look.extension_elapsed,
            guardrails=tuple(evaluations),
            recommendation=recommendation,
            flags=_flags(run, index),
            conditions=conditions,
            scores=_scores(prepared, index, moments),
            told=_told(prepared, index, moments, situation),
        ),
        state,
    )


def checkpoint_passed(look: Look, *, reached: float) -> float | None:
    """The largest planned checkpoint that this look is the first to pass, or None."""
    passed = max((float(c) for c in CHECKPOINTS if look.elapsed >= c), default=0.0)
    if look.extension_elapsed >= 1:
        passed = EXTENSION_CHECKPOINT
    return passed if passed > reached else None


def fraction_of(look: Look, policy: Policy) -> float:
    """Information of a look: elapsed share of the window, above 1 at the extension's end."""
    return look.elapsed + (policy.extension if look.extension_elapsed >= 1 else 0.0)


def _moment(prepared: _Prepared, guardrail: Guardrail, index: int, state: GuardrailState) -> Moment:
    run = prepared.run
    look = run.looks[index]
    track = prepared.tracks[guardrail.name]
    kind = PROBES if guardrail.is_probed else _LISTENS.get(guardrail.metric, REPORTS)
    silence = prepared.silence.get(kind) if kind is not None else None
    missing = (
        _mixed(run, guardrail)
        or _withheld(run, guardrail)
        or track.missing(index)
        or (silence[index] if silence else None)
    )
    return moment_of(
        guardrail,
        run.policy,
        run.plan,
        look=look,
        state=state,
        index=index,
        paths=prepared.paths,
        alpha=prepared.alphas[guardrail.name],
        missing=missing,
        undersized=prepared.shortfalls.get(guardrail.name) or _constant(track, index),
        decidable=_is_decidable(prepared, guardrail, index, missing=missing),
    )


def moment_of(
    guardrail: Guardrail,
    policy: Policy,
    plan: WavePlan,
    *,
    look: Look,
    state: GuardrailState,
    index: int,
    paths: int,
    alpha: Fraction,
    missing: str | None,
    undersized: str | None,
    decidable: bool | None,
    bound: float | None = None,
) -> Moment:
    """What one guardrail may spend at one look; `bound` is given where it is known from before."""
    checkpoint = state.pending if missing is None else None
    levels, fractions = _widen_levels(policy, plan, state, checkpoint=checkpoint)
    return Moment(
        index=index,
        look=look,
        state=state,
        paths=paths,
        halt_level=halt_level(
            alpha,
            look.elapsed,
            look.extension_elapsed if look.elapsed >= 1 and plan.can_extend else 0,
            has_extension=plan.can_extend,
        )
        if guardrail.halt
        else None,
        whole_alpha=alpha,
        checkpoint=checkpoint,
        widen_level=levels[-1],
        widen_bound=_bounds(levels, fractions)[-1] if bound is None else bound,
        missing=missing,
        undersized=undersized,
        is_required=guardrail.required
        if guardrail.required is not None
        else decidable is not False,
        is_decidable=decidable,
    )


def _constant(track: Track, index: int) -> str | None:
    """Why figures that never differ are no measurement: a stuck sensor proves nothing."""
    if isinstance(track, ThroughputTrack) and track.is_constant(index):
        return "not measurable: every report says exactly the same throughput"
    if isinstance(track, RecoveryTrack) and track.is_constant(index):
        return "not measurable: every interruption lasts exactly as long as the others of its path"
    return None


SHARED_BY_A_JOB = frozenset(
    {Metric.THROUGHPUT, Metric.RECOVERY_TIME, Metric.SEVERE_PATH, Metric.LOST_WORK}
)
"""Metrics that the machines of one synchronous job share: its pace, and its restarts."""


def _mixed(run: Run, guardrail: Guardrail) -> str | None:
    """Why a metric that a job's machines share cannot be estimated where jobs mix the arms."""
    purity, floor = run.samples.purity, run.policy.purity_floor
    if guardrail.scope != "job" or guardrail.metric not in SHARED_BY_A_JOB:
        return None
    if purity is None or purity >= floor:
        return None
    return (
        f"not estimable: mixed jobs ({purity:.0%} of exposure lies in jobs whose machines are all "
        f"in one arm, the plan's floor is {floor:.0%})"
    )


def _withheld(run: Run, guardrail: Guardrail) -> str | None:
    """Why faults cannot be counted that one of the guardrail's signatures would count."""
    if guardrail.metric is not Metric.FAULTS:
        return None
    for name, reason in sorted(run.samples.withheld.items()):
        if any(fnmatchcase(name, pattern) for pattern in guardrail.signatures):
            return f"{name} is not counted: {reason}"
    return None


def _is_decidable(
    prepared: _Prepared, guardrail: Guardrail, index: int, *, missing: str | None
) -> bool | None:
    """The planner's word; for a recording, judged from what is there. None: nobody was asked."""
    run = prepared.run
    if guardrail.name in run.plan.decidable:
        return run.plan.decidable[guardrail.name]
    if _is_outside(prepared, guardrail):
        return False
    if not run.plan.is_recorded or guardrail.required is not None or missing is not None:
        return None
    return prepared.tracks[guardrail.name].is_decidable(
        index, elapsed=run.looks[index].elapsed, bound=prepared.last_bound
    )


def _is_outside(prepared: _Prepared, guardrail: Guardrail) -> bool:
    """An `auto` guardrail on a kind of report that a recording does not hold at all."""
    is_auto = prepared.run.plan.is_recorded and guardrail.required is None
    return is_auto and prepared.tracks[guardrail.name].absent is not None


def _flags(run: Run, index: int) -> tuple[str, ...]:
    """What a person should know of the comparison beyond its verdicts."""
    contributes = run.exposure.seconds[:, index] > 0
    p = sample_ratio_p(contributes, is_canary=run.is_canary)
    return ("sample_ratio",) if p < SAMPLE_RATIO_P else ()


INSTALLS, NOVEL_UNIT, NOVEL_SIGNATURE = "installs", "novel-unit", "novel-signature"
"""Names under which a look keeps how its installs ended, and who showed a new signature."""


def _scores(
    prepared: _Prepared, index: int, moments: Mapping[str, Moment]
) -> dict[str, tuple[int, ...]]:
    """The integers of a live look, enough to replay it; recordings keep their files."""
    run = prepared.run
    if run.plan.is_recorded:
        return {}
    number = run.looks[index].number
    kept = {key: column for key, column in prepared.columns.items() if key.endswith(f"/{number}")}
    for name, track in prepared.tracks.items():
        kept.update(track.kept(index, at_checkpoint=moments[name].checkpoint is not None))
        if not isinstance(track, FaultTrack | ThroughputTrack) or track.jump(index) is None:
            continue
        change = track.change(index)
        for part, column in ({} if change is None else change.columns()).items():
            kept[f"{name}/jump-{part}/{number}"] = column
    novel = _sightings(run, index)
    kept[f"{INSTALLS}/{number}"] = install_codes(run, index)
    kept[f"{NOVEL_UNIT}/{number}"] = novel.unit
    kept[f"{NOVEL_SIGNATURE}/{number}"] = novel.signature
    near = run.samples.units.is_near_canary
    if near is not None:
        kept[f"{NEAR}/{number}"] = near.astype(np.int64)
    return {key: tuple(column.tolist()) for key, column in kept.items()}


def _told(
    prepared: _Prepared, index: int, moments: Mapping[str, Moment], situation: Situation
) -> dict[str, object]:
    """What a live look was told besides its scores, the policy and the state, to replay it."""
    run = prepared.run
    if run.plan.is_recorded:
        return {}
    return {
        "look": dict(vars(run.looks[index])),
        "plan": run.plan.to_dict(),
        "situation": {
            "observed_hours": situation.observed_hours,
            "least_hours": situation.least_hours,
            "waiting_units": situation.waiting_units,
            "unmet": situation.unmet,
        },
        "install_baseline": run.samples.install_baseline,
        "novel_signatures": _sightings(run, index).names,
        "guardrails": {
            name: {
                "missing": moment.missing,
                "undersized": moment.undersized,
                "bound": moment.widen_bound if moment.checkpoint is not None else None,
                "method": _method(prepared.tracks[name], index),
            }
            for name, moment in moments.items()
        },
    }


def _method(track: Track, index: int) -> str | None:
    return track.method(index) if isinstance(track, FaultTrack) else None


# --- what a recommendation needs to know --------------------------------------------------


def _conditions(run: Run, index: int) -> tuple[ConditionState, ...]:
    cutoff = float(run.as_of[index])
    return tuple(
        condition_at(condition, run.samples, cutoff=cutoff)
        for condition in run.policy.workload_conditions
    )


def _situation(prepared: _Prepared, index: int, conditions: Sequence[ConditionState]) -> Situation:
    run = prepared.run
    cutoff = float(run.as_of[index])
    units = run.samples.units
    first = np.full(run.units, np.inf)
    np.minimum.at(first, run.samples.machines.unit, run.samples.machines.enrolled_seconds)
    enrolled = first <= cutoff
    waiting = enrolled & (units.clock_start_seconds > cutoff)
    running = enrolled & ~waiting
    last = float(units.clock_start_seconds[running].max()) if running.any() else cutoff
    least = run.policy.min_exposure_hours
    if run.plan.is_recorded:  # a short recording is judged on what it has
        least = min(least, run.plan.window_seconds / SECONDS_PER_HOUR)
    return Situation(
        observed_hours=(cutoff - last) / SECONDS_PER_HOUR,
        least_hours=least,
        waiting_units=int(waiting.sum()),
        hard_stop=run.plan.hard_stop
        or install_stop(install_codes(run, index), most_bricks=most_bricks(run.policy, run.plan)),
        unacknowledged=_sightings(run, index).unacknowledged(
            is_canary=run.is_canary, acknowledged=run.plan.acknowledged
        ),
        blind=tuple(
            guardrail.name
            for guardrail in run.policy.guardrails
            if guardrail.required is not False and not _is_outside(prepared, guardrail)
        ),
        jumps={
            name: jump
            for name, track in prepared.tracks.items()
            if isinstance(track, FaultTrack | ThroughputTrack)
            and (jump := track.jump(index)) is not None
        },
        unmet=tuple(condition.words for condition in conditions if not condition.is_met),
    )


def _sightings(run: Run, index: int) -> Sightings:
    """New signatures count where the policy asks for them."""
    if any(g.metric is Metric.NOVEL_SIGNATURES for g in run.policy.guardrails):
        return sightings(run, index)
    return NO_SIGHTING


def most_bricks(policy: Policy, plan: WavePlan) -> int:
    """Bricks that a wave survives: those of the policy, else none in a smoke wave and one later."""
    if policy.max_bricks is not None:
        return policy.max_bricks
    return 0 if plan.allows_smoke else 1
