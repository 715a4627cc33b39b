"""What each order of a person does to a rollout, its wave and its machines."""

from datetime import timedelta

import pytest

from rollouts import pipeline, selectors, services
from rollouts.errors import OrderRefused, SamePerson
from rollouts.models import Attempt, Order, Rollout, Wave
from tests.factories import NOW, make_user
from tests.rollouts import rows

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(hours=30)


def observed(*, mode: str = "advise", status: str = "observing") -> tuple[Rollout, Wave]:
    """A running rollout whose first wave has been installed and stands as told."""
    rollout = rows.running(mode=mode)
    wave = rollout.waves.get(number=1)
    pipeline.enact(rollout, now=NOW)
    rollout.waves.filter(pk=wave.pk).update(
        status=status,
        clock_start=NOW,
        window_end=NOW + timedelta(hours=48),
        extension_end=NOW + timedelta(hours=72),
    )
    wave.refresh_from_db()
    return rollout, wave


# --- past a wave -----------------------------------------------------------------------------


def test_confirming_an_advised_widen_needs_neither_reason_nor_second_person():
    rollout, wave = observed()
    rows.look(wave, kind="widen", code="not_worse")

    order = services.advance(rollout, actor=rollout.author, now=LATER)

    wave.refresh_from_db()
    assert wave.status == "widened"
    assert wave.transitions.latest("pk").order == order
    assert order.parameters == {"wave": 1}


def test_a_wave_without_advice_is_not_advanced():
    rollout, wave = observed()
    rows.look(wave, kind="hold", code="evidence_open")

    with pytest.raises(OrderRefused, match="has not advised to widen"):
        services.advance(rollout, actor=rollout.author, now=LATER)

    assert not Order.objects.filter(kind="advance").exists()


def test_advice_that_later_looks_speak_against_is_not_confirmed():
    rollout, wave = observed()
    rows.look(wave, 1, kind="widen", code="not_worse")
    rows.look(wave, 2, kind="hold", code="review")

    with pytest.raises(OrderRefused, match="has not advised to widen"):
        services.advance(rollout, actor=rollout.author, now=LATER)


def test_widening_a_held_wave_needs_a_reason_and_a_second_person():
    rollout, wave = observed(status="held")
    ann, bob = rollout.author, make_user("bob")

    with pytest.raises(OrderRefused) as refusal:
        services.advance(rollout, actor=ann, now=LATER)
    with pytest.raises(SamePerson):
        services.advance(rollout, actor=ann, second_person=ann, reason="urgent", now=LATER)
    services.advance(rollout, actor=ann, second_person=bob, reason="urgent", now=LATER)

    assert refusal.value.reasons == [
        "widening a held wave needs a reason",
        "widening a held wave needs a second person",
    ]
    wave.refresh_from_db()
    assert wave.status == "widened"


def test_skipping_a_wave_goes_on_to_the_next_and_keeps_its_machines_treated():
    rollout, wave = observed()
    bob = make_user("bob")

    services.skip_wave(rollout, actor=rollout.author, second_person=bob, reason="cut", now=LATER)

    wave.refresh_from_db()
    assert wave.status == "skipped"
    assert selectors.current_wave(rollout).number == 2
    assert rollout.assignments.filter(wave=wave).count() == wave.size


# --- a window --------------------------------------------------------------------------------


def test_a_wave_is_extended_once():
    rollout, wave = observed()

    services.extend(rollout, actor=rollout.author, now=LATER)
    with pytest.raises(OrderRefused, match="has had its one extension"):
        services.extend(rollout, actor=rollout.author, now=LATER)

    wave.refresh_from_db()
    assert wave.is_extended
    assert Order.objects.filter(kind="extend").count() == 1


# --- words -----------------------------------------------------------------------------------


def test_acknowledged_signatures_are_told_to_the_judge():
    rollout, wave = observed()

    services.acknowledge(rollout, signatures=["xid.500"], actor=rollout.author, now=LATER)
    services.acknowledge(rollout, signatures=["xid.7"], actor=rollout.author, now=LATER)

    assert selectors.acknowledged_signatures(rollout) == {"xid.500", "xid.7"}
    assert pipeline.wave_plan(wave).acknowledged == {"xid.500", "xid.7"}


def test_acknowledging_nothing_is_refused():
    rollout, _ = observed()

    with pytest.raises(OrderRefused, match="at least one signature"):
        services.acknowledge(rollout, signatures=[], actor=rollout.author, now=LATER)


# --- before and after ------------------------------------------------------------------------


def test_a_denied_plan_is_a_draft_that_draws_the_same_order_again():
    rollout = rows.submitted()
    before = list(rollout.assignments.values_list("machine_name", "position", "planned_wave"))

    services.deny(rollout, actor=make_user(), reason="too fast", now=NOW)
    services.submit(rollout, actor=rollout.author, now=LATER)

    assert rollout.status == "awaiting_approval"
    after = list(rollout.assignments.values_list("machine_name", "position", "planned_wave"))
    assert after == before


def test_cancelling_starts_nothing_more_and_undoes_nothing():
    rollout = rows.running()
    pipeline.enact(rollout, now=NOW)
    in_flight = Attempt.objects.filter(status="draining").count()

    services.cancel(rollout, actor=rollout.author, now=LATER)

    assert rollout.status == "cancelled"
    assert in_flight > 0
    assert Attempt.objects.filter(status="draining").count() == in_flight
    assert not Attempt.objects.filter(status__in=("queued", "deferred")).exists()


def test_a_roll_back_of_nobody_is_over_once_nothing_is_in_flight():
    rollout, _ = observed()
    services.halt(rollout, actor=rollout.author, now=LATER)
    rollout.refresh_from_db()

    services.roll_back(rollout, actor=rollout.author, now=LATER)
    rollout.refresh_from_db()
    while_in_flight = rollout.status
    rollout.attempts.update(status="called_off", finished_at=LATER)
    pipeline.enact(rollout, now=LATER)

    rollout.refresh_from_db()
    assert (while_in_flight, rollout.status) == ("rolling_back", "rolled_back")
    assert not rollout.children.exists()
