"""A stored evaluation says again what it said, from its own record alone."""

from datetime import datetime, timedelta

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from django.db.models import QuerySet

from fleet import appendonly
from fleet import services as fleet
from rollouts import pipeline
from rollouts.models import Decision, Evaluation, Membership, ScoreBlob, Wave
from rollouts.replay import differences, rejudged, replay
from rollouts.services.evidence.cycles import pack_scores, unpack_scores
from rollouts.services.waves.course import start_wave
from tests.factories import NOW, make_fault_report, make_observation_report
from tests.rollouts import rows

pytestmark = pytest.mark.django_db


def evaluated(*, bad_days: int, looks: int = 2) -> Evaluation:
    """The last of some looks at a wave whose canaries had a fault on so many days."""
    rollout = rows.running()
    wave = rollout.waves.get(number=1)
    start_wave(wave, cause=None, now=NOW)
    wave.blocks.update(clock_start=NOW)
    rollout.waves.filter(pk=wave.pk).update(
        status="observing",
        clock_start=NOW,
        window_end=NOW + timedelta(hours=48),
        extension_end=NOW + timedelta(hours=72),
    )
    report(wave, bad_days=bad_days)
    for look in range(1, looks + 1):
        wave.refresh_from_db()
        at = NOW + timedelta(hours=22 * look)
        decision = pipeline.run_cycle(wave, as_of=at, now=at + timedelta(days=3))
    return decision.evaluation


def report(wave: Wave, *, bad_days: int) -> None:
    members = wave.members.select_related("machine")
    hours = [NOW + timedelta(hours=hour) for hour in range(1, 48)]
    reports = [
        make_observation_report(member.machine, start=at - timedelta(hours=1), end=at)
        for member in members
        for at in hours
    ]
    reports += [
        make_fault_report(member.machine, time=at, signature="xid.119")
        for member in members.filter(arm=Membership.Arm.CANARY)
        for at in fault_times(bad_days)
    ]
    fleet.record(reports, source="tests", key="all", now=NOW + timedelta(days=2))


def fault_times(days: int) -> list[datetime]:
    return [NOW + timedelta(hours=4 + 24 * day) for day in range(days)]


def said(evaluation: Evaluation) -> dict[str, bool]:
    return {guardrail["name"]: guardrail["crossed"] for guardrail in evaluation.guardrails}


@pytest.mark.parametrize(("bad_days", "is_harmful"), [(0, False), (2, True)])
def test_a_stored_evaluation_replays_to_what_it_said(bad_days: int, is_harmful: bool):
    evaluation = evaluated(bad_days=bad_days)

    again = replay(evaluation)

    assert again["faults:xid.*"] is is_harmful
    assert again == {name: crossed for name, crossed in said(evaluation).items() if name in again}


def test_scores_that_were_changed_do_not_replay():
    evaluation = evaluated(bad_days=2, looks=1)
    scores = unpack_scores(bytes(evaluation.scores.content))
    forged = {name: np.zeros(len(values), dtype=int) for name, values in scores.items()}
    evaluation.scores = ScoreBlob(digest="0" * 64, content=pack_scores(forged))

    assert said(evaluation)["faults:xid.*"]
    assert not replay(evaluation)["faults:xid.*"]


def test_the_command_recomputes_every_evaluation_of_a_rollout(capsys: pytest.CaptureFixture[str]):
    evaluation = evaluated(bad_days=2)

    call_command("replay", evaluation.rollout.name)

    assert capsys.readouterr().out == "2 evaluations recomputed, 0 differences\n"


def test_the_command_names_the_look_that_does_not_replay():
    evaluation = evaluated(bad_days=2, looks=1)
    claimed = [{**guardrail, "crossed": False} for guardrail in evaluation.guardrails]
    with appendonly.maintenance():
        QuerySet(Evaluation).filter(pk=evaluation.pk).update(guardrails=claimed)

    with pytest.raises(CommandError, match=r"look 1: faults:xid.\* is stored as no harm shown"):
        call_command("replay", evaluation.rollout.name)


@pytest.mark.parametrize("bad_days", [0, 2])
def test_a_look_judged_again_says_the_same_of_everything(bad_days: int):
    evaluation = evaluated(bad_days=bad_days)

    again = rejudged(evaluation)

    assert again is not None
    assert [(f.name, f.verdict, f.crossed, f.shown) for f in again.findings] == [
        (one["name"], one["verdict"], one["crossed"], one["shown"]) for one in evaluation.guardrails
    ]
    assert again.recommendation.kind == evaluation.decision.kind
    assert again.recommendation.code == evaluation.decision.reason_code
    assert differences(evaluation) == []


def stored(evaluation: Evaluation, **fields: object) -> Evaluation:
    """The evaluation as somebody left it who got past the model and its triggers."""
    with appendonly.maintenance():
        QuerySet(Evaluation).filter(pk=evaluation.pk).update(**fields)
    return Evaluation.objects.get(pk=evaluation.pk)


def test_one_changed_byte_of_the_scores_is_found():
    evaluation = evaluated(bad_days=0, looks=1)
    content = bytearray(evaluation.scores.content)
    content[len(content) // 2] ^= 1
    with appendonly.maintenance():
        QuerySet(ScoreBlob).filter(pk=evaluation.scores_id).update(content=bytes(content))

    found = differences(Evaluation.objects.get(pk=evaluation.pk))

    assert found == [f"{evaluation}: its scores are not those that were written"]


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("inputs", ("told", "situation", "observed_hours")),
        ("inputs", ("told", "guardrails", "faults:xid.*", "bound")),
        ("inputs", ("seed",)),
        ("guardrails", (0, "estimate")),
        ("guardrails", (0, "reason")),
    ],
)
def test_anything_changed_in_an_evaluation_is_found(field: str, path: tuple[str | int, ...]):
    evaluation = evaluated(bad_days=0, looks=1)
    content = getattr(evaluation, field)
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = 0.125

    found = differences(stored(evaluation, **{field: content}))

    assert f"{evaluation}: its content is not what was written" in found


def test_a_forged_verdict_is_found_even_without_a_digest():
    # As on a record of before digests, or where somebody computed the digest anew.
    evaluation = evaluated(bad_days=2, looks=1)
    claimed = [
        {**one, "verdict": "not_worse", "shown": True, "crossed": False}
        for one in evaluation.guardrails
    ]

    found = differences(stored(evaluation, guardrails=claimed, digest=""))

    assert any("faults:xid.* is stored with verdict not_worse" in line for line in found)
    assert any("faults:xid.* is stored with not worse shown True" in line for line in found)


def test_a_decision_that_does_not_follow_is_found():
    evaluation = evaluated(bad_days=2, looks=1)
    with appendonly.maintenance():
        QuerySet(Decision).filter(evaluation=evaluation).update(
            kind="widen", reason_code="not_worse"
        )

    found = differences(Evaluation.objects.get(pk=evaluation.pk))

    assert found == [
        f"{evaluation}: the decision is stored as widen (not_worse), recomputed as halt (harmful)"
    ]


def test_looks_of_before_proofs_were_kept_replay_what_they_hold_and_say_so(
    capsys: pytest.CaptureFixture[str],
):
    evaluation = evaluated(bad_days=2, looks=1)
    inputs = {key: value for key, value in evaluation.inputs.items() if key != "told"}
    old = stored(evaluation, inputs=inputs, digest="")

    call_command("replay", evaluation.rollout.name)

    assert rejudged(old) is None
    assert replay(old)["faults:xid.*"]
    assert "1 of them were recorded before proofs and installs were kept" in capsys.readouterr().out
