"""What a rollout waits for, in each state that it can wait in."""

from datetime import timedelta

import pytest

from rollouts import pipeline, services
from rollouts.explain import explain
from rollouts.models import Rollout
from tests.factories import NOW, make_user
from tests.rollouts import rows

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("status", "needed", "who"),
    [
        ("draft", "submitted", "its author"),
        (
            "awaiting_approval",
            "approved, which then holds for 7 days",
            "anybody but its author",
        ),
        ("approved", "started", "an operator"),
        ("paused", "resumed", "an operator"),
        (
            "halted",
            "rolled back, overridden or cancelled",
            "an operator, with a second person to override",
        ),
    ],
)
def test_a_state_that_waits_for_a_person_says_for_whom(status: str, needed: str, who: str):
    rollout = rows.submitted()
    Rollout.objects.filter(pk=rollout.pk).update(status=status)
    rollout.refresh_from_db()

    [condition] = explain(rollout)

    assert (condition.needed, condition.who) == (needed, who)


def test_an_approved_rollout_says_until_when_its_approval_holds():
    rollout = rows.draft()
    rollout.plan["approval_days"] = 2.5
    rollout.save()
    services.submit(rollout, actor=rollout.author, now=NOW)
    [before] = explain(rollout)
    order = services.approve(rollout, actor=make_user(), now=NOW)

    [after] = explain(rollout)

    ends = NOW + timedelta(days=2.5)
    assert before.needed == "approved, which then holds for 2.5 days"
    assert after.present == f"approved until {ends:%Y-%m-%d %H:%M} UTC"
    assert order.parameters["expires_at"] == ends.isoformat()


@pytest.mark.parametrize("status", ["rolled_back", "completed", "cancelled"])
def test_a_rollout_that_has_ended_waits_for_nothing(status: str):
    rollout = rows.submitted()
    Rollout.objects.filter(pk=rollout.pk).update(status=status)
    rollout.refresh_from_db()

    assert explain(rollout) == []


def test_required_guardrails_that_are_not_proven_are_named_with_their_verdict():
    rollout = rows.running()
    rows.look(rollout.waves.get(number=1))

    conditions = explain(rollout)

    assert [condition.what for condition in conditions] == ["guardrail faults:xid.*"]
    assert conditions[0].present == "harmful: more than in control"


def test_an_advised_widen_waits_for_an_operator_only_where_the_engine_may_not():
    rollout = rows.running(mode="advise")
    rows.look(rollout.waves.get(number=1), kind="widen", code="not_worse", guardrails=[])

    advised = explain(rollout)
    Rollout.objects.filter(pk=rollout.pk).update(mode="automatic")
    rollout.refresh_from_db()

    assert [condition.who for condition in advised] == ["an operator"]
    assert [condition.present for condition in advised] == ["the engine advises to widen"]
    assert [condition.who for condition in explain(rollout)] == ["the engine"]


def test_a_review_says_what_has_to_be_looked_at():
    rollout = rows.running()
    rows.look(
        rollout.waves.get(number=1), code="review", reason="never seen: xid.500", guardrails=[]
    )

    [condition] = explain(rollout)

    assert (condition.what, condition.present) == ("review", "never seen: xid.500")


def test_a_held_wave_needs_a_reason_and_a_second_person():
    rollout = rows.running()
    rollout.waves.filter(number=1).update(status="held")

    [condition] = explain(rollout)

    assert condition.who == "an operator with a reason and a second person"


def test_a_machine_that_never_returned_waits_for_triage():
    rollout = rows.running()
    pipeline.enact(rollout, now=NOW)
    lost = rollout.attempts.first()
    rollout.attempts.filter(pk=lost.pk).update(status="never_returned", finished_at=NOW)

    before = [condition.what for condition in explain(rollout)]
    lost.refresh_from_db()
    services.triage(lost, outcome="recovered", actor=str(make_user()), now=NOW + timedelta(hours=1))

    assert f"triage of {lost.machine.name}" in before
    assert not any("triage" in condition.what for condition in explain(rollout))


@pytest.mark.parametrize(
    ("caps", "present"),
    [
        ({"max_in_flight": 1}, "3 attempts wait: 1 of at most 1 in flight"),
        (
            {"max_unavailable_share": 0.01},
            (
                "4 attempts wait: blocked: limit allows 0 of 20 in no known pool, "
                "raise the limit or set a count"
            ),
        ),
    ],
)
def test_installs_that_wait_name_the_cap_that_keeps_them(caps: dict[str, float], present: str):
    rollout = rows.running()
    rollout.plan["caps"].update(caps)
    rollout.save()
    pipeline.enact(rollout, now=NOW)

    [condition] = explain(rollout)

    assert condition.present == present
