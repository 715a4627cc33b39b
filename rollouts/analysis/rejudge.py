"""Judge a stored look again, from what it kept alone: the same whole numbers, the same words.

No telemetry is read and nothing that another machine or another library might compute otherwise:
re-assignments come from the stored seed, levels from the policy as exact fractions. Taken from the
record as they are: bounds of z (checked against published tables elsewhere), and which reports
were missing at the look.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from rollouts.analysis.differences import Outcomes, difference_of
from rollouts.analysis.errors import AnalysisError
from rollouts.analysis.evidence import (
    EffectLine,
    Moment,
    is_below,
    millionths,
    stepped_halt,
    stepped_widen,
    stepped_widen_paths,
    verdict_for,
)
from rollouts.analysis.guardrails.difference import difference_z, with_earlier
from rollouts.analysis.guardrails.faults import (
    MICROSECONDS,
    margin_at,
    margin_z,
    model_of,
    table_of,
)
from rollouts.analysis.guardrails.installs import WORKED, install_stop, stepped_installs
from rollouts.analysis.guardrails.per_unit import Sightings
from rollouts.analysis.judge import (
    INSTALLS,
    NEAR,
    NOVEL_SIGNATURE,
    NOVEL_UNIT,
    alpha_by_guardrail,
    checkpoint_passed,
    design_shortfalls,
    fraction_of,
    labels_of,
    moment_of,
    most_bricks,
)
from rollouts.analysis.jumps import FaultChange, Jump, PaceChange
from rollouts.analysis.labels import Design, Labels
from rollouts.analysis.policy import Guardrail, Metric, Policy
from rollouts.analysis.proportions import judge_installs
from rollouts.analysis.recommendation import HALT_ONLY, Situation, recommend
from rollouts.analysis.recovery import per_root_count
from rollouts.analysis.samples import IntArray
from rollouts.analysis.scores import Strata
from rollouts.analysis.sequential import CrossingState, cross
from rollouts.analysis.verdicts import (
    ArmCounts,
    GuardrailEvaluation,
    Interval,
    Recommendation,
    Verdict,
)
from rollouts.analysis.wave import GuardrailState, Look, WavePlan, WaveState

Scores = Mapping[str, Sequence[int]]


# --- the whole look --------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One guardrail judged again; `figures` are whole numbers under the names of the record."""

    name: str
    verdict: Verdict
    crossed: bool
    shown: bool
    figures: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Rejudged:
    """A whole look judged again."""

    findings: tuple[Finding, ...]
    recommendation: Recommendation


@dataclass(frozen=True, eq=False)
class _Look:
    """What a look kept, unpacked."""

    scores: Scores
    told: Mapping[str, Any]
    policy: Policy
    design: Design
    labels: Labels
    plan: WavePlan
    look: Look

    def column(self, name: str) -> IntArray:
        """One stored vector of this look."""
        key = f"{name}/{self.look.number}"
        if key not in self.scores:
            raise AnalysisError(f"no stored vector {key!r}; stored are {', '.join(self.scores)}")
        return np.array(self.scores[key], dtype=np.int64)

    def sums(self, name: str) -> IntArray:
        return _stored_sums(self.scores, f"{name}/{self.look.number}", labels=self.labels)


def rejudge(
    scores: Scores,
    told: Mapping[str, Any],
    *,
    policy: Policy,
    design: Design,
    state: WaveState,
) -> Rejudged:
    """Judge a stored look again, whole.

    Parameters
    ----------
    scores : mapping of name to whole numbers
        As `LookEvaluation.scores` keeps them: one per unit, of installs one per attempt.
    told : mapping
        As `LookEvaluation.told` keeps it, out of JSON.
    policy : Policy
        Of the frozen plan; its seed and number of re-assignments give the labels.
    design : Design
        Of the wave's frozen roster.
    state : WaveState
        After the look before.

    Returns
    -------
    Rejudged
        Verdicts, crossings, proofs and whole figures equal to the stored ones, and the kind and
        code of the recommendation.

    Raises
    ------
    AnalysisError
        If something that the look must have kept is not there or does not fit.

    Examples
    --------
    >>> from rollouts.analysis.wave import WavePlan
    >>> guardrail = Guardrail("lost", Metric.LOST_WORK, False, True, margin=0.0, tolerance=0.0)
    >>> policy = Policy((guardrail,), weights={Metric.LOST_WORK: 1.0}, resamples=999)
    >>> told = {"look": {"number": 1, "as_of_seconds": 9.0, "elapsed": 1.0},
    ...         "plan": WavePlan(window_seconds=9.0, alpha=0.05, has_extension=False).to_dict(),
    ...         "situation": {"observed_hours": 30.0, "least_hours": 24.0, "waiting_units": 0,
    ...                       "unmet": []},
    ...         "install_baseline": None, "novel_signatures": [],
    ...         "guardrails": {"lost": {"missing": None, "undersized": None, "bound": 1.827}}}
    >>> scores = {"lost/harm/1": [3, 3, 3, -1, -1, -1, -2, -2, -2], "installs/1": [],
    ...           "novel-unit/1": [], "novel-signature/1": []}
    >>> again = rejudge(scores, told, policy=policy, state=WaveState(),
    ...                 design=Design(stratum=np.zeros(9, int), is_canary=np.arange(9) < 3))
    >>> again.findings[0].verdict.value, again.recommendation.code.value
    ('harmful', 'harmful')
    """
    here = _Look(
        scores=scores,
        told=told,
        policy=policy,
        design=design,
        labels=labels_of(design, seed=policy.seed, resamples=policy.resamples),
        plan=WavePlan.from_dict(told["plan"]),
        look=Look(**told["look"]),
    )
    alphas = alpha_by_guardrail(policy, alpha=here.plan.alpha)
    shortfalls = design_shortfalls(design, policy, alpha=here.plan.alpha)
    passed = checkpoint_passed(here.look, reached=state.reached)
    findings, evaluations, judged = [], [], passed is not None
    for guardrail in policy.guardrails:
        before = state.of(guardrail.name)
        if passed is not None:
            before = replace(before, pending=fraction_of(here.look, policy))
        moment = _moment(
            here,
            guardrail,
            before,
            alpha=alphas[guardrail.name],
            shortfall=shortfalls.get(guardrail.name),
        )
        judged = judged or moment.checkpoint is not None
        after, figures = _JUDGES[guardrail.metric](here, guardrail, moment)
        verdict = verdict_for(moment, after)
        findings.append(Finding(guardrail.name, verdict, after.is_crossed, after.is_shown, figures))
        evaluations.append(_evaluation(guardrail, moment, after, verdict))
    recommendation = recommend(
        evaluations,
        plan=here.plan,
        policy=policy,
        look=here.look,
        is_checkpoint=judged,
        situation=_situation(here),
    )
    return Rejudged(tuple(findings), recommendation)


def _moment(
    here: _Look,
    guardrail: Guardrail,
    state: GuardrailState,
    *,
    alpha: Fraction,
    shortfall: str | None,
) -> Moment:
    told = here.told["guardrails"][guardrail.name]
    bound = told["bound"]
    return moment_of(
        guardrail,
        here.policy,
        here.plan,
        look=here.look,
        state=state,
        index=0,
        paths=here.labels.paths,
        alpha=alpha,
        missing=told["missing"],
        undersized=shortfall or told["undersized"],
        decidable=here.plan.decidable.get(guardrail.name),
        bound=math.inf if bound is None else bound,
    )


def _evaluation(
    guardrail: Guardrail, moment: Moment, state: GuardrailState, verdict: Verdict
) -> GuardrailEvaluation:
    """What a recommendation reads of a guardrail; what people read is left out."""
    none, nobody = Interval(None, None, 0.0), ArmCounts(0, None, 0.0)
    return GuardrailEvaluation(
        name=guardrail.name,
        metric=guardrail.metric,
        verdict=verdict,
        unit="",
        estimate=None,
        repeated=none,
        fixed_look=none,
        canary=nobody,
        control=nobody,
        reason="",
        required=moment.is_required,
        is_decidable=moment.is_decidable,
        crossed=state.is_crossed,
        shown=state.is_shown,
    )


def _situation(here: _Look) -> Situation:
    told, number = here.told["situation"], here.look.number
    canary = here.design.is_canary
    novel = Sightings(
        here.column(NOVEL_UNIT),
        here.column(NOVEL_SIGNATURE),
        tuple(here.told["novel_signatures"]),
    )
    jumps = {
        guardrail.name: replay_jump(
            here.scores,
            name=guardrail.name,
            look=number,
            design=here.design,
            tolerance=guardrail.tolerance,
        )
        for guardrail in here.policy.guardrails
    }
    return Situation(
        observed_hours=told["observed_hours"],
        least_hours=told["least_hours"],
        waiting_units=told["waiting_units"],
        hard_stop=here.plan.hard_stop
        or install_stop(here.column(INSTALLS), most_bricks=most_bricks(here.policy, here.plan)),
        unacknowledged=novel.unacknowledged(is_canary=canary, acknowledged=here.plan.acknowledged),
        blind=tuple(g.name for g in here.policy.guardrails if g.required is not False),
        jumps={name: jump for name, jump in jumps.items() if jump is not None},
        unmet=tuple(told["unmet"]),
    )


# --- one guardrail ---------------------------------------------------------------------------

Judged = tuple[GuardrailState, dict[str, int | None]]


def _faults(here: _Look, guardrail: Guardrail, moment: Moment) -> Judged:
    state, figures = _halted(here, moment, name=f"{guardrail.name}/harm")
    if moment.checkpoint is None:
        return state, figures
    table = table_of(
        here.column(f"{guardrail.name}/episodes"),
        here.column(MICROSECONDS),
        is_canary=here.design.is_canary,
        stratum=here.design.stratum,
    )
    margin = margin_at(
        here.plan.frozen_fault_rate.get(guardrail.name),
        margin=guardrail.margin,
        delta_abs=here.policy.delta_abs,
    )
    method = here.told["guardrails"][guardrail.name]["method"]
    return _shown_by_z(moment, state, margin_z(model_of(table, method=method), margin), figures)


def _shared(here: _Look, guardrail: Guardrail, moment: Moment) -> Judged:
    """Both tests sum the scores: throughput and recovery time."""
    state, figures = _halted(here, moment, name=f"{guardrail.name}/harm-sum")
    if moment.checkpoint is not None:
        line = EffectLine(here.sums(f"{guardrail.name}/widen-sum"), None, 0.0)
        figures["widen_statistic"] = int(line.sums[0])
        if moment.may_show and not state.is_crossed:
            state = stepped_widen_paths(moment, state, line)
    figures["widen_used"] = None if state.widen is None else state.widen.used
    return _booked(moment, state), figures


def _share(here: _Look, guardrail: Guardrail, moment: Moment) -> Judged:
    """A share or a figure per unit: severe path, telemetry, lost work, novel signatures."""
    per_interruption = guardrail.metric is Metric.SEVERE_PATH
    name = f"{guardrail.name}/{'harm-sum' if per_interruption else 'harm'}"
    state, figures = _halted(here, moment, name=name)
    if moment.checkpoint is None or guardrail.metric in HALT_ONLY:
        return _booked(moment, state), figures
    found = difference_of(
        Outcomes(
            here.column(f"{guardrail.name}/outcomes").astype(np.float64),
            here.column(f"{guardrail.name}/occasions"),
            here.design.is_canary,
            Strata.of(here.design.stratum),
        )
    )
    wave = None if found is None else found.under_margin(guardrail.margin)
    every = with_earlier(wave, here.plan.earlier.get(guardrail.name, ()))
    return _shown_by_z(moment, state, difference_z(every, guardrail.margin), figures)


def _installs(here: _Look, guardrail: Guardrail, moment: Moment) -> Judged:
    codes = here.column(INSTALLS)
    mine = int((codes != WORKED).sum()), codes.size
    now, every = (
        judge_installs(
            failures,
            attempts,
            baseline=here.told["install_baseline"] or 0.0,
            alpha=float(moment.whole_alpha) if moment.may_halt else 0.0,
            beta=here.policy.beta,
            tolerance=guardrail.tolerance,
            margin=guardrail.margin,
        )
        for failures, attempts in (mine, here.plan.cumulative_attempts or mine)
    )
    state = stepped_installs(moment) if now.is_harmful else moment.state
    if moment.may_show and not state.is_crossed:
        state = stepped_widen(moment, state, is_shown=every.is_not_worse)
    figures = {
        "failures": now.failures,
        "attempts": now.attempts,
        "log_e_millionths": millionths(now.log_e),
    }
    return _booked(moment, state), figures


_JUDGES: Mapping[Metric, Callable[[_Look, Guardrail, Moment], Judged]] = {
    Metric.FAULTS: _faults,
    Metric.INSTALL: _installs,
    Metric.LOST_WORK: _share,
    Metric.NOVEL_SIGNATURES: _share,
    Metric.RECOVERY_TIME: _shared,
    Metric.SEVERE_PATH: _share,
    Metric.TELEMETRY: _share,
    Metric.THROUGHPUT: _shared,
}


def _halted(here: _Look, moment: Moment, *, name: str) -> Judged:
    sums = here.sums(name)
    state = stepped_halt(moment, sums)
    used = None if state.halt is None else state.halt.used
    return state, {"statistic": int(sums[0]), "halt_used": used}


def _shown_by_z(
    moment: Moment, state: GuardrailState, z: float | None, figures: dict[str, int | None]
) -> Judged:
    if moment.may_show and not state.is_crossed:
        state = stepped_widen(moment, state, is_shown=is_below(z, moment.widen_bound))
    return _booked(moment, state), {**figures, "widen_z": millionths(z)}


def _booked(moment: Moment, state: GuardrailState) -> GuardrailState:
    return state if moment.checkpoint is None else replace(state, pending=None)


# --- crossings and jumps alone ---------------------------------------------------------------


def replay(
    scores: Mapping[str, Sequence[int]],
    *,
    design: Design,
    seed: int,
    resamples: int,
    levels: Mapping[str, str | Fraction],
    states: Mapping[str, CrossingState],
) -> dict[str, CrossingState]:
    """Recompute the crossings of a stored look from its stored integers.

    Parameters
    ----------
    scores : mapping of score name to one integer per unit
        As `LookEvaluation.scores` keeps them.
    design, seed, resamples
        Of the wave.
    levels : mapping of score name to Fraction or its text
        Error spent by the look; a score without a level is left out.
    states : mapping of score name to CrossingState
        After the look before; missing ones start anew.

    Returns
    -------
    mapping of score name to CrossingState
        Equal to the stored ones, bit for bit, on every machine.

    Raises
    ------
    AnalysisError
        If a level names a score that was not stored, or scores and design do not fit.

    Examples
    --------
    >>> design = Design(stratum=np.zeros(9, int), is_canary=np.arange(9) < 3)
    >>> scores = {"faults/harm/1": (3, 3, 3, -1, -1, -1, -2, -2, -2)}
    >>> found = replay(scores, design=design, seed=1, resamples=999,
    ...                levels={"faults/harm/1": "1/20"}, states={})
    >>> found["faults/harm/1"].is_crossed
    True
    """
    labels = labels_of(design, seed=seed, resamples=resamples)
    found = {}
    for name, level in levels.items():
        sums = _stored_sums(scores, name, labels=labels)
        before = states.get(name, CrossingState.initial(labels.paths))
        found[name] = cross(before, sums, level=Fraction(level))
    return found


def replay_jump(
    scores: Mapping[str, Sequence[int]],
    *,
    name: str,
    look: int,
    design: Design,
    tolerance: float,
) -> Jump | None:
    """Recompute from a stored look whether both arms of a guardrail had jumped.

    Parameters
    ----------
    scores : mapping of score name to one integer per unit
        As `LookEvaluation.scores` keeps them: the change since the period before is there only
        where there was a jump.
    name, look
        Of the guardrail and the look.
    design : Design
        Of the wave.
    tolerance : float
        The guardrail's; of throughput a relative drop, of faults it does not matter.

    Returns
    -------
    Jump or None
        Equal to what the look saw, up to the last digits of another SciPy.

    Examples
    --------
    >>> design = Design(stratum=np.zeros(30, int), is_canary=np.arange(30) < 10)
    >>> pace = (1e9 * (0.9 + 0.001 * np.arange(30))).astype(int)
    >>> found = replay_jump({"throughput/jump-pace/1": pace.tolist()}, name="throughput", look=1,
    ...                     design=design, tolerance=0.01)
    >>> found.is_environment
    False
    """
    near = scores.get(f"{NEAR}/{look}")
    is_near = None if near is None else np.array(near, dtype=np.bool_)
    head = f"{name}/jump-"
    parts = {
        key.removeprefix(head).removesuffix(f"/{look}"): np.array(column, dtype=np.int64)
        for key, column in scores.items()
        if key.startswith(head) and key.endswith(f"/{look}")
    }
    if "pace" in parts:
        return PaceChange(parts["pace"]).jump(
            tolerance=tolerance, is_canary=design.is_canary, is_near=is_near
        )
    if "episodes" not in parts:
        return None
    change = FaultChange(
        episodes=parts["episodes"],
        seconds=parts["seconds"],
        episodes_before=parts["episodes-before"],
        seconds_before=parts["seconds-before"],
    )
    return change.jump(is_canary=design.is_canary, is_near=is_near)


def _stored_sums(scores: Mapping[str, Sequence[int]], name: str, *, labels: Labels) -> IntArray:
    """Sums of a stored score; one per interruption goes over the root of its counts."""
    if name not in scores:
        raise AnalysisError(f"no stored score {name!r}; stored are {', '.join(scores)}")
    sums = labels.sums(np.array(scores[name], dtype=np.int64))
    counts = name.replace("-sum/", "-count/")
    if counts == name or counts not in scores:
        return sums
    return per_root_count(sums, labels.sums(np.array(scores[counts], dtype=np.int64)))
