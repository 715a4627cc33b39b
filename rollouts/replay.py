"""Recompute a stored evaluation from its own record: an auditor need not take the engine's word.

Nothing is read but the evaluation, its scores, and the roster that was frozen when the wave
started; telemetry may have aged out long ago.
"""

from rollouts import aggregation
from rollouts.analysis import judge
from rollouts.analysis.sequential import CrossingState
from rollouts.analysis.verdicts import Verdict
from rollouts.analysis.wave import WaveState
from rollouts.models import Evaluation
from rollouts.services.cycles import unpack_scores


def replay(evaluation: Evaluation) -> dict[str, bool]:
    """Tell, per guardrail that halts by re-assignment, whether harm had been shown by this look.

    Equal to what the evaluation says as `crossed`, by the same integers, on every machine.

    Raises
    ------
    AnalysisError
        If the stored scores do not fit the roster or cannot be read.
    """
    scores = unpack_scores(bytes(evaluation.scores.content))
    stored = evaluation.inputs["state_before"]
    before = WaveState.from_dict(stored) if stored else WaveState()
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


def _harm_score(name: str, look: int, scores: dict[str, list[int]]) -> str:
    """Return the name of the score that the halting test summed; empty where there is none."""
    names = (f"{name}/harm/{look}", f"{name}/harm-sum/{look}")
    return next((key for key in names if key in scores), "")


def _was_tested(guardrail: dict[str, object]) -> bool:
    """Tell whether the look spent anything: not without data, nor where the guardrail reports."""
    details = guardrail["details"]
    has_level = isinstance(details, dict) and details["halt_level"] is not None
    return has_level and guardrail["verdict"] != Verdict.NO_DATA
