"""A stored look judged again, whole: from its own whole numbers to the same verdicts."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from rollouts.analysis import judge
from rollouts.analysis.errors import AnalysisError
from rollouts.analysis.policy import Policy
from rollouts.analysis.rejudge import Rejudged, rejudge
from rollouts.analysis.samples import Samples
from rollouts.analysis.verdicts import LookEvaluation
from rollouts.analysis.wave import Look, WavePlan, WaveState
from rollouts.services.evidence.cycles import pack_scores, plain, unpack_scores
from tests.rollouts.analysis import worlds
from tests.rollouts.analysis.worlds import Drawn

EVERY = (
    worlds.FAULTS,
    replace(worlds.FAULTS, name="faults:all", ends_service=True, required=None),
    worlds.THROUGHPUT,
    worlds.RECOVERY,
    worlds.SEVERE,
    worlds.LOST_WORK,
    worlds.NOVEL,
    worlds.INSTALL,
    worlds.TELEMETRY,
)
ALL = worlds.policy(*EVERY, resamples=499)
LIVE: dict[str, object] = {
    "frozen_fault_rate": {"faults": 0.4, "faults:all": 0.001},
    "decidable": {"faults:all": False},
    "earlier": {"telemetry": ((0.0, 0.05),)},
    "cumulative_attempts": (0, 90),
}
Kept = tuple[LookEvaluation, WaveState]


def drawn(seed: int, *, failed: int = 0, known: bool = True, **fields: Any) -> Samples:
    """Eight canaries and a few dozen controls with everything that a look may be told."""
    fleet = Drawn(jobs=4, rate_per_day=1.0, days=2, burst=0.5, has_recoveries=True, **fields)
    outcomes = ["timed_out"] * failed + ["succeeded"] * (16 - failed)
    return replace(
        fleet.draw(seed),
        attempts=worlds.installs(outcomes),
        known_signatures=frozenset({"xid-79"} if known else {"xid-13"}),
        install_baseline=0.002,
    )


def looked_at(
    samples: Samples, policy: Policy = ALL, plan: WavePlan | None = None, *, looks: int = 8
) -> list[Kept]:
    """Live looks one by one, each with the state before it."""
    plan = plan or worlds.live(samples, has_extension=False, **LIVE)
    state, kept = judge.initial_state(samples, policy), []
    for look in worlds.looks(samples, looks):
        (evaluation,), after = judge.evaluate(samples, policy, plan, looks=[look], state=state)
        kept.append((evaluation, state))
        state = after
    return kept


def again(samples: Samples, kept: Kept, policy: Policy = ALL, **changed: Any) -> Rejudged:
    """Judge a look again from what a database would give back."""
    evaluation, before = kept
    scores = unpack_scores(pack_scores(evaluation.scores))
    return rejudge(
        scores | changed.get("scores", {}),
        json.loads(json.dumps(plain(evaluation.told))),
        policy=policy,
        design=judge.design_of(samples),
        state=WaveState.from_dict(json.loads(json.dumps(plain(before.to_dict())))),
    )


def said(evaluation: LookEvaluation) -> dict[str, tuple[object, ...]]:
    return {g.name: (g.verdict, g.crossed, g.shown) for g in evaluation.guardrails}


def found(result: Rejudged) -> dict[str, tuple[object, ...]]:
    return {f.name: (f.verdict, f.crossed, f.shown) for f in result.findings}


def decision(result: Rejudged | LookEvaluation) -> tuple[str, str]:
    return result.recommendation.kind.value, result.recommendation.code.value


WORLDS: Mapping[str, Mapping[str, Any]] = {
    "sound": {},
    "faults": {"rate_ratio": 3.0},
    "slow": {"drop": 0.06},
    "long": {"recovery_factor": 3.0},
    "installs": {"failed": 3},
    "novel": {"known": False, "rate_ratio": 1.5},
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_look_gives_the_same_verdicts_proofs_and_decision_again(world: str):
    samples = drawn(3, **WORLDS[world])

    for kept in looked_at(samples):
        result = again(samples, kept)
        assert found(result) == said(kept[0])
        assert decision(result) == decision(kept[0])


@pytest.mark.parametrize("world", WORLDS)
def test_every_whole_figure_is_the_stored_one(world: str):
    samples = drawn(3, **WORLDS[world])
    names = set()

    for kept in looked_at(samples):
        stored = {g.name: g.details for g in kept[0].guardrails}
        for finding in again(samples, kept).findings:
            names |= finding.figures.keys()
            for name, figure in finding.figures.items():
                assert figure == stored[finding.name][name], (finding.name, name)

    assert names == {
        "statistic",
        "halt_used",
        "widen_z",
        "widen_used",
        "widen_statistic",
        "failures",
        "attempts",
        "log_e_millionths",
    }


def test_the_worlds_above_halt_widen_review_and_hold():
    # Otherwise agreement would say little.
    seen = {
        decision(kept[0]) for fields in WORLDS.values() for kept in looked_at(drawn(3, **fields))
    }
    proofs = {g.name for kept in looked_at(drawn(3)) for g in kept[0].guardrails if g.shown}

    assert {("halt", "harmful"), ("hold", "review"), ("hold", "evidence_open")} <= seen
    assert {"throughput", "install"} <= proofs


def test_a_wave_that_widened_widens_again():
    samples = drawn(5)
    policy = worlds.policy(worlds.THROUGHPUT, worlds.INSTALL, resamples=499)
    plan = worlds.live(samples, cumulative_attempts=(0, 90))

    results = [
        (decision(kept[0]), decision(again(samples, kept, policy)))
        for kept in looked_at(samples, policy, plan)
    ]

    assert ("widen", "not_worse") in [one for one, _ in results]
    assert all(one == other for one, other in results)


def test_the_extension_and_what_was_pending_replay_too():
    samples = replace(drawn(6), window_seconds=worlds.DAY)
    plan = worlds.live(samples, **LIVE)
    state = judge.initial_state(samples, ALL)
    looks = [
        Look(1, 0.3 * worlds.DAY, 0.3),
        Look(2, worlds.DAY, 1.0),
        Look(3, 1.2 * worlds.DAY, 1.0, 0.4),
        Look(4, 1.5 * worlds.DAY, 1.0, 1.0),
    ]

    for look in looks:
        given = replace(plan, is_extended=look.extension_elapsed > 0)
        (evaluation,), after = judge.evaluate(samples, ALL, given, looks=[look], state=state)
        result = again(samples, (evaluation, state))
        assert found(result) == said(evaluation)
        assert decision(result) == decision(evaluation)
        state = after


@pytest.mark.parametrize(
    ("name", "guardrail"),
    [
        ("faults/harm", "faults"),
        ("faults/episodes", "faults"),
        ("microseconds", "faults"),
        ("throughput/widen-sum", "throughput"),
        ("recovery_time/widen-count", "recovery_time"),
        ("severe_path/outcomes", "severe_path"),
        ("telemetry/outcomes", "telemetry"),
        ("installs", "install"),
    ],
)
def test_one_changed_number_changes_what_comes_out(name: str, guardrail: str):
    samples = drawn(3)
    kept = looked_at(samples)[3]  # half of the window is over: a checkpoint
    key = f"{name}/{kept[0].look}"
    column = list(kept[0].scores[key])
    place = max(range(len(column)), key=lambda unit: abs(column[unit]))
    column[place] = {  # many episodes are no more than some, a little more time is nearly as much
        "faults/episodes": 0,
        "microseconds": column[place] // 2,
    }.get(name, 3 * column[place] + 1)

    before, after = (
        {f.name: (f.verdict, dict(f.figures)) for f in again(samples, kept, **scores).findings}
        for scores in ({}, {"scores": {key: column}})
    )

    assert before[guardrail] != after[guardrail]


def test_what_a_look_must_have_kept_is_asked_for_by_name():
    samples = drawn(3)
    evaluation, before = looked_at(samples, looks=4)[0]
    poorer = replace(
        evaluation,
        scores={key: one for key, one in evaluation.scores.items() if "episodes" not in key},
    )

    with pytest.raises(AnalysisError, match="no stored vector 'faults/episodes/1'"):
        again(samples, (poorer, before))


def test_what_is_kept_for_proofs_is_kept_at_checkpoints_alone():
    samples = drawn(3)

    kept = looked_at(samples, looks=8)

    holding = [one.look for one, _ in kept if any("microseconds" in key for key in one.scores)]
    assert holding == [2, 4, 6, 8]


def test_a_recording_keeps_its_files_and_not_its_looks():
    samples = drawn(3)
    policy = worlds.policy(worlds.FAULTS, resamples=99)

    (evaluation,), _ = judge.evaluate(
        samples,
        policy,
        worlds.recorded(samples),
        looks=worlds.looks(samples, 1),
        state=judge.initial_state(samples, policy),
    )

    assert (evaluation.scores, evaluation.told) == ({}, {})


def test_a_plan_is_the_same_after_json():
    plan = WavePlan(
        3600.0,
        0.01,
        acknowledged=frozenset({"b", "a"}),
        **LIVE,  # type: ignore[arg-type]
    )

    assert WavePlan.from_dict(json.loads(json.dumps(plain(plan.to_dict())))) == plan
    assert {field.name for field in dataclasses.fields(WavePlan)} == plan.to_dict().keys()
