"""From verdicts to one decision: the worst wins, doubt holds, and every decision says why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rollouts.analysis.jumps import Jump
from rollouts.analysis.policy import Metric, Policy
from rollouts.analysis.spending import CHECKPOINTS
from rollouts.analysis.verdicts import (
    DecisionKind,
    GuardrailEvaluation,
    Reason,
    Recommendation,
    Verdict,
)
from rollouts.analysis.wave import Look, WavePlan

ROUNDING_HOURS = 1e-6
HALT_ONLY = frozenset({Metric.NOVEL_SIGNATURES, Metric.LOST_WORK})
"""Metrics without a margin: they can stop a wave, but prove nothing."""


@dataclass(frozen=True)
class Situation:
    """What a recommendation needs to know beyond the verdicts.

    Parameters
    ----------
    observed_hours, least_hours : float
        Since the clock of the last enrolled block started; and what widening asks for.
    waiting_units : int
        Enrolled units whose clock has not started.
    hard_stop : str or None
        Why to stop outside the error budget.
    unacknowledged : tuple of str
        Novel signatures on canaries that nobody has acknowledged.
    blind : tuple of str
        Guardrails whose missing data hold the wave: all but those that are never required, and
        those of a recording that does not collect their kind of report at all.
    jumps : mapping of str to Jump
        Guardrails on which both arms do worse than in their own period before.
    unmet : tuple of str
        Workload conditions of the plan that are not met, in words.
    """

    observed_hours: float
    least_hours: float
    waiting_units: int = 0
    hard_stop: str | None = None
    unacknowledged: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
    jumps: Mapping[str, Jump] = field(default_factory=dict)
    unmet: tuple[str, ...] = ()


def recommend(
    guardrails: Sequence[GuardrailEvaluation],
    *,
    plan: WavePlan,
    policy: Policy,
    look: Look,
    is_checkpoint: bool,
    situation: Situation,
) -> Recommendation:
    """Turn one evaluation per guardrail into one decision; the worst wins, doubt holds.

    Parameters
    ----------
    guardrails : sequence of GuardrailEvaluation
        Of one look, at least one.
    plan : WavePlan
    policy : Policy
    look : Look
    is_checkpoint : bool
        Whether non-inferiority was judged at this look; only then may a wave widen.
    situation : Situation

    Returns
    -------
    Recommendation
        `halt`, `hold` or `widen` with a stable reason code and one sentence. In this order: hard
        stop, harm, what a person must look at, a jump of both arms, missing data, proof, waiting.

    Examples
    --------
    >>> from rollouts.analysis.policy import Guardrail
    >>> guardrail = Guardrail("faults", Metric.FAULTS, True, True, margin=2.0, tolerance=1.0)
    >>> found = recommend(
    ...     [], plan=WavePlan(window_seconds=86_400.0, alpha=0.05),
    ...     policy=Policy((guardrail,), weights={}), look=Look(1, 3600.0, 0.5),
    ...     is_checkpoint=True,
    ...     situation=Situation(observed_hours=1.0, least_hours=24.0, hard_stop="2 bricks"))
    >>> found.kind.value, found.reason
    ('halt', '2 bricks')
    """
    stop = _halt(guardrails, situation) or _block(guardrails, situation)
    if stop is not None:
        return stop
    open_names = _unproven(guardrails)
    undecided = _undecided(guardrails)
    has_evidence = any(g.required for g in guardrails)
    too_early = _too_early(situation)
    if is_checkpoint and not open_names and too_early is None and not situation.unmet:
        if has_evidence and not undecided:
            return _recommended(
                DecisionKind.WIDEN,
                Reason.NOT_WORSE,
                f"not worse than the margin: {_listed(g.name for g in guardrails if g.required)}",
            )
        refusal = _smoke_refusal(plan, policy)
        if refusal is None:
            return _recommended(DecisionKind.WIDEN, Reason.SMOKE_ONLY, _smoke_words(guardrails))
    return _wait(
        plan,
        look,
        open_names=open_names,
        undecided=undecided,
        has_evidence=has_evidence,
        too_early=too_early,
        refusal=_smoke_refusal(plan, policy),
        unmet=situation.unmet,
    )


def _recommended(kind: DecisionKind, code: Reason, reason: str) -> Recommendation:
    return Recommendation(kind, code, reason)


def _hold(code: Reason, reason: str) -> Recommendation:
    return Recommendation(DecisionKind.HOLD, code, reason)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _halt(guardrails: Sequence[GuardrailEvaluation], situation: Situation) -> Recommendation | None:
    if situation.hard_stop is not None:
        return _recommended(DecisionKind.HALT, Reason.HARD_STOP, situation.hard_stop)
    harmful = [g for g in guardrails if g.verdict is Verdict.HARMFUL]
    if harmful:
        words = "; ".join(f"{g.name} is {g.reason}" for g in harmful)
        return _recommended(DecisionKind.HALT, Reason.HARMFUL, f"harmful: {words}")
    return None


def _block(
    guardrails: Sequence[GuardrailEvaluation], situation: Situation
) -> Recommendation | None:
    """What holds a wave whatever else was shown."""
    tolerated = [g.name for g in guardrails if g.crossed and g.verdict is not Verdict.HARMFUL]
    if tolerated:
        return _review(
            f"real but within the margin, a person must look: {_listed(tolerated)}", situation
        )
    if situation.unacknowledged:
        return _review(
            f"signatures never seen before on canaries: {_listed(situation.unacknowledged)}",
            situation,
        )
    if situation.jumps:
        return _jumped(situation.jumps)
    silent = [g for g in guardrails if g.verdict is Verdict.NO_DATA and g.name in situation.blind]
    if silent:
        words = "; ".join(f"{g.name}: {g.reason}" for g in silent)
        return _hold(Reason.NO_DATA, words)
    return None


def _review(words: str, situation: Situation) -> Recommendation:
    """Who looks at the one must know of the other: a jump is named, though a review goes before."""
    if situation.jumps:
        jump = _jumped(situation.jumps)
        words = f"{words}; besides, {jump.code.value}: {jump.reason}"
    return _hold(Reason.REVIEW, words)


def _jumped(jumps: Mapping[str, Jump]) -> Recommendation:
    """The environment only where units far from every canary suffer too, on every guardrail."""
    suspect = {name: jump for name, jump in jumps.items() if not jump.is_environment}
    code = Reason.INTERFERENCE if suspect else Reason.ENVIRONMENT
    told = suspect or jumps
    words = "; ".join(f"{name}: {jump.words}" for name, jump in told.items())
    return _hold(code, f"both arms do worse than in their own period before ({words})")


def _unproven(guardrails: Sequence[GuardrailEvaluation]) -> list[str]:
    return [g.name for g in guardrails if g.required and g.verdict is not Verdict.NOT_WORSE]


def _undecided(guardrails: Sequence[GuardrailEvaluation]) -> list[str]:
    """Fault families that the planner says this wave cannot decide, and has not by luck."""
    return [
        g.name
        for g in guardrails
        if g.metric is Metric.FAULTS
        and g.is_decidable is False
        and not g.required
        and g.verdict is not Verdict.NOT_WORSE
    ]


def _too_early(situation: Situation) -> str | None:
    if situation.waiting_units:
        return f"{situation.waiting_units} enrolled units are not past their burn-in"
    if situation.observed_hours < situation.least_hours - ROUNDING_HOURS:
        return (
            f"{situation.observed_hours:.1f} h observed, at least "
            f"{situation.least_hours:.1f} h are needed"
        )
    return None


def _smoke_refusal(plan: WavePlan, policy: Policy) -> str | None:
    if plan.is_recorded:
        return "a recorded case is not widened on a smoke test"
    if not (plan.allows_smoke and policy.smoke_widen):
        return "smoke widening is off for this wave"
    if plan.expected_excess_faults is None:
        return "the next wave's expected excess faults are unknown"
    if plan.expected_excess_faults > policy.max_excess_faults:
        return (
            f"the next wave could suffer {plan.expected_excess_faults:.0f} excess faults before "
            f"a halt, {policy.max_excess_faults:.0f} are accepted"
        )
    return None


def _smoke_words(guardrails: Sequence[GuardrailEvaluation]) -> str:
    open_names = [
        g.name
        for g in guardrails
        if g.verdict is not Verdict.NOT_WORSE and g.metric not in HALT_ONLY
    ]
    return f"no harm seen; this wave could not have ruled out harm in {_listed(open_names)}"


def _wait(
    plan: WavePlan,
    look: Look,
    *,
    open_names: Sequence[str],
    undecided: Sequence[str],
    has_evidence: bool,
    too_early: str | None,
    refusal: str | None,
    unmet: Sequence[str],
) -> Recommendation:
    is_over = look.elapsed >= 1 and (not plan.can_extend or look.extension_elapsed >= 1)
    shown = _missing_words(open_names, undecided, has_evidence=has_evidence, refusal=refusal)
    missing = "; ".join([*([shown] if shown else []), *unmet])
    if is_over:
        return _hold(
            Reason.INCONCLUSIVE, f"window over: {missing or too_early or 'shown too late'}"
        )
    if look.elapsed >= 1 and not plan.is_extended and look.extension_elapsed == 0:
        why = missing or too_early or "shown, and not widened yet"
        return _hold(Reason.EXTENDED, f"window over, extended once: {why}")
    if missing:
        return _hold(Reason.EVIDENCE_OPEN, f"{missing}; {_next_checkpoint(look)}")
    why = too_early or "wave widens at checkpoints only"
    return _hold(Reason.WINDOW_OPEN, f"not worse so far; {why}; {_next_checkpoint(look)}")


def _missing_words(
    open_names: Sequence[str], undecided: Sequence[str], *, has_evidence: bool, refusal: str | None
) -> str:
    if open_names:
        return f"not yet proven: {_listed(open_names)}"
    if undecided and refusal:
        return f"undecidable in this wave: {_listed(undecided)} ({refusal})"
    if not has_evidence and refusal:
        return f"no guardrail is required, so nothing can be proven ({refusal})"
    return ""


def _next_checkpoint(look: Look) -> str:
    coming = [float(c) for c in CHECKPOINTS if c > look.elapsed]
    where = f"{coming[0]:.0%} of the window" if coming else "the extension's end"
    return f"judged next at {where}"
