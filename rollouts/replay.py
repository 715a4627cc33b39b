"""Recompute a stored evaluation from its own record: an auditor need not take the engine's word.

Nothing is read but the evaluation, its scores, the frozen plan, and the roster that was frozen
when the wave started; telemetry may have aged out long ago.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from rollouts import aggregation, policies
from rollouts.analysis import rejudge
from rollouts.analysis.balance import balance_of
from rollouts.analysis.labels import Design
from rollouts.analysis.sequential import CrossingState
from rollouts.analysis.surveillance import watch
from rollouts.analysis.verdicts import Reason, Verdict
from rollouts.analysis.wave import WaveState
from rollouts.models import Assignment, Evaluation
from rollouts.services.evidence import surveillance
from rollouts.services.evidence.cycles import content_digest, digest_of, unpack_scores
from rollouts.services.evidence.drawn import stored


def replay(evaluation: Evaluation) -> dict[str, bool]:
    """Tell, per guardrail, whether the evaluation had shown harm (or a broken draw) by its cutoff.

    Equal to what the evaluation says as `crossed`, by the same integers, on every machine.
    Guardrails that halt without re-assignments are left out: `rejudged` has installs too.

    Raises
    ------
    AnalysisError
        If the stored scores do not fit the roster or cannot be read.
    """
    return _REPLAYS[Evaluation.Kind(evaluation.kind)](evaluation)


def rejudged(evaluation: Evaluation) -> rejudge.Rejudged | None:
    """Judge a look again whole: harm, "not worse", installs, new signatures, recommendation.

    None for looks of before all of it was kept, and for evaluations that are no looks.

    Raises
    ------
    AnalysisError
        If what is stored does not fit together or cannot be read.
    """
    told = evaluation.inputs.get("told")
    if Evaluation.Kind(evaluation.kind) is not Evaluation.Kind.LOOK or not told:
        return None
    policy = policies.policy_from(evaluation.rollout.plan, kind=policies.Kind.PLAN)
    kept = evaluation.inputs["state_before"]
    return rejudge.rejudge(
        unpack_scores(bytes(evaluation.scores.content)),
        told,
        policy=policy,
        design=aggregation.design_of(evaluation.wave),
        state=WaveState.from_dict(kept) if kept else WaveState(),
    )


def differences(evaluation: Evaluation) -> list[str]:
    """Tell where an evaluation and what its own record gives differ, in words; none if it agrees.

    Raises
    ------
    AnalysisError
        If what is stored does not fit together or cannot be read.
    """
    if content_digest(bytes(evaluation.scores.content)) != evaluation.scores.digest:
        return [f"{evaluation}: its scores are not those that were written"]
    if evaluation.digest and digest_of(evaluation) != evaluation.digest:
        changed = f"{evaluation}: its content is not what was written"
        return [changed, *_crossings(evaluation)]
    return [*_jump_differences(evaluation), *_crossings(evaluation), *_verdicts(evaluation)]


def _crossings(evaluation: Evaluation) -> list[str]:
    again = replay(evaluation)
    return [
        f"{evaluation}: {guardrail['name']} is stored as "
        f"{_word(guardrail['crossed'])}, recomputed as {_word(again[guardrail['name']])}"
        for guardrail in evaluation.guardrails
        if guardrail["name"] in again and again[guardrail["name"]] != guardrail["crossed"]
    ]


def _word(is_crossed: bool) -> str:
    return "harm shown" if is_crossed else "no harm shown"


def _jump_differences(evaluation: Evaluation) -> list[str]:
    jumps = replay_jumps(evaluation)
    stored = {
        guardrail["name"]: jump_word(guardrail["details"]["jump"]["is_environment"])
        for guardrail in evaluation.guardrails
        if "jump" in guardrail["details"]
    }
    return [
        f"{evaluation}: {name} is stored as {stored.get(name, 'no jump')} of both arms, "
        f"recomputed as {jumps.get(name, 'no jump')}"
        for name in sorted(stored.keys() | jumps.keys())
        if stored.get(name) != jumps.get(name)
    ]


def _verdicts(evaluation: Evaluation) -> list[str]:
    """Compare verdicts, proofs, whole figures and the decision, where all of it was kept."""
    again = rejudged(evaluation)
    if again is None:
        return []
    stored = {guardrail["name"]: guardrail for guardrail in evaluation.guardrails}
    found = [
        f"{evaluation}: {finding.name} is stored with {name} {was}, recomputed {now}"
        for finding in again.findings
        for name, was, now in _pairs(stored[finding.name], finding)
        if was != now
    ]
    decision = getattr(evaluation, "decision", None)
    told = (again.recommendation.kind.value, again.recommendation.code.value)
    if decision is not None and (decision.kind, decision.reason_code) != told:
        found.append(
            f"{evaluation}: the decision is stored as {decision.kind} ({decision.reason_code}), "
            f"recomputed as {told[0]} ({told[1]})"
        )
    return found


def _pairs(
    stored: Mapping[str, Any], finding: rejudge.Finding
) -> Iterator[tuple[str, object, object]]:
    """Name, stored value and recomputed value of everything that must agree."""
    yield "verdict", stored["verdict"], finding.verdict.value
    yield "not worse shown", stored["shown"], finding.shown
    yield "harm shown", stored["crossed"], finding.crossed
    for name, figure in finding.figures.items():
        yield name.replace("_", " "), stored["details"].get(name), figure


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
    found = rejudge.replay(
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
        guardrail["name"]: rejudge.replay_jump(
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
