"""Recompute a stored evaluation from its own record: an auditor need not take the engine's word.

Nothing is read but the evaluation, its scores, and the roster that was frozen when the wave
started; telemetry may have aged out long ago.
"""

from fractions import Fraction

import numpy as np

from rollouts import aggregation
from rollouts.analysis import judge
from rollouts.analysis.balance import balance_of
from rollouts.analysis.labels import Design
from rollouts.analysis.sequential import CrossingState
from rollouts.analysis.surveillance import watch
from rollouts.analysis.verdicts import Reason, Verdict
from rollouts.analysis.wave import WaveState
from rollouts.models import Assignment, Evaluation
from rollouts.services.evidence import surveillance
from rollouts.services.evidence.cycles import unpack_scores
from rollouts.services.evidence.drawn import stored


def replay(evaluation: Evaluation) -> dict[str, bool]:
    """Tell, per guardrail, whether the evaluation had shown harm (or a broken draw) by its cutoff.

    Equal to what the evaluation says as `crossed`, by the same integers, on every machine.
    Guardrails that halt without re-assignments are left out: installs have an e-value of their own.

    Raises
    ------
    AnalysisError
        If the stored scores do not fit the roster or cannot be read.
    """
    return _REPLAYS[Evaluation.Kind(evaluation.kind)](evaluation)


def _surveillance(evaluation: Evaluation) -> dict[str, bool]:
    """Multiply the evidence up again from first episodes and the drawn order."""
    inputs = evaluation.inputs
    scores = unpack_scores(bytes(evaluation.scores.content))
    drawn = stored(Assignment.objects.filter(rollout=evaluation.rollout_id))
    terms = [surveillance.Term(**term) for term in inputs["waves"]]
    watched = surveillance.watched_at(evaluation.rollout, drawn, terms)
    needed = Fraction(inputs["needed"])
    return {
        name: watch(
            watched,
            surveillance.firsts_of(scores, name, units=drawn.units),
            tolerance=tolerance,
        ).highest.reaches(needed)
        for name, tolerance in inputs["tolerance"].items()
    }


def _draw_check(evaluation: Evaluation) -> dict[str, bool]:
    """Re-assign the stored figures of the period before again."""
    scores = unpack_scores(bytes(evaluation.scores.content))
    found = balance_of(
        {
            guardrail["name"]: np.array(scores[f"{guardrail['name']}/before"], dtype=np.int64)
            for guardrail in evaluation.guardrails
        },
        design=Design(
            stratum=np.array(scores["design/stratum"], dtype=np.int64),
            is_canary=np.array(scores["design/is_canary"], dtype=np.bool_),
        ),
        seed=evaluation.inputs["seed"],
        resamples=evaluation.inputs["resamples"],
    )
    return {name: found.breaks(name) for name in found.p_values}


def _look(evaluation: Evaluation) -> dict[str, bool]:
    """Recompute the crossings of a wave's look from its scores and its frozen roster."""
    scores = unpack_scores(bytes(evaluation.scores.content))
    kept = evaluation.inputs["state_before"]
    before = WaveState.from_dict(kept) if kept else WaveState()
    keys = {
        guardrail["name"]: _harm_score(guardrail["name"], evaluation.look, scores)
        for guardrail in evaluation.guardrails
    }
    levels = {
        key: guardrail["details"]["halt_level"]
        for guardrail in evaluation.guardrails
        if (key := keys[guardrail["name"]]) and _was_tested(guardrail)
    }
    states: dict[str, CrossingState] = {
        key: halt for name, key in keys.items() if key and (halt := before.of(name).halt)
    }
    found = judge.replay(
        scores,
        design=aggregation.design_of(evaluation.wave),
        seed=evaluation.inputs["seed"],
        resamples=evaluation.inputs["resamples"],
        levels=levels,
        states=states,
    )
    return {
        name: before.of(name).is_crossed or (key in found and found[key].is_crossed)
        for name, key in keys.items()
        if key
    }


def replay_jumps(evaluation: Evaluation) -> dict[str, str]:
    """Tell what each jump of both arms was, by guardrail: `environment` or `interference`.

    From the change of each unit since the period before and the stored neighbourhoods; only
    guardrails that had jumped have these.
    """
    if Evaluation.Kind(evaluation.kind) is not Evaluation.Kind.LOOK:
        return {}
    scores = unpack_scores(bytes(evaluation.scores.content))
    design = aggregation.design_of(evaluation.wave)
    found = {
        guardrail["name"]: judge.replay_jump(
            scores,
            name=guardrail["name"],
            look=evaluation.look,
            design=design,
            tolerance=guardrail["details"].get("tolerance", 1.0),
        )
        for guardrail in evaluation.guardrails
    }
    return {name: jump_word(jump.is_environment) for name, jump in found.items() if jump}


def jump_word(is_environment: bool) -> str:
    return (Reason.ENVIRONMENT if is_environment else Reason.INTERFERENCE).value


def _harm_score(name: str, look: int, scores: dict[str, list[int]]) -> str:
    """Return the name of the score that the halting test summed; empty where there is none."""
    names = (f"{name}/harm/{look}", f"{name}/harm-sum/{look}")
    return next((key for key in names if key in scores), "")


def _was_tested(guardrail: dict[str, object]) -> bool:
    """Tell whether the look spent anything: not without data, nor where the guardrail reports."""
    details = guardrail["details"]
    has_level = isinstance(details, dict) and details["halt_level"] is not None
    return has_level and guardrail["verdict"] != Verdict.NO_DATA


_REPLAYS = {
    Evaluation.Kind.LOOK: _look,
    Evaluation.Kind.SURVEILLANCE: _surveillance,
    Evaluation.Kind.DRAW_CHECK: _draw_check,
}
