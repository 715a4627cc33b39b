"""Work without a gate: one person's word, for some hours, seen by all and looked at after."""

from datetime import timedelta

import pytest

from fleet import services
from fleet.errors import BreakGlassRefused, SelfApproval
from fleet.lifecycle import BREAKABLE, State, Trigger
from fleet.models import BreakGlass, Machine, Notice, TakeOut
from fleet.services.departures import carry_on
from tests.factories import NOW, make_machine, make_user

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture
def ann():
    return make_user("ann")


def broken(user, *, state: str = State.OBSERVING, hours: float = 8) -> BreakGlass:
    machine = make_machine(state=state)
    until = NOW + hours * HOUR
    return services.break_glass(machine, user=user, reason="launch", until=until, now=NOW)


@pytest.mark.parametrize("state", BREAKABLE)
def test_a_machine_works_without_its_gate_and_the_change_says_who_answers_for_it(ann, state):
    glass = broken(ann, state=state)

    machine = Machine.objects.get(pk=glass.machine_id)
    change = machine.state_changes.latest("pk")
    assert (machine.state, machine.may_take_work) == (State.IN_SERVICE, True)
    assert machine.watch_until is None
    assert (change.trigger, change.user, change.gate_record) == (Trigger.BREAK_GLASS, ann, None)
    assert change.gate == f"none: break glass {glass.pk} by ann: launch"


def test_it_is_told_as_long_as_it_lasts_and_until_somebody_else_has_looked(ann):
    glass = broken(ann)
    standing = Notice.objects.filter(kind="break_glass", cleared_at=None)
    assert "until 2026-03-02 20:00 UTC, by order of ann: launch" in standing.get().said

    services.end_break_glasses(now=NOW + 8 * HOUR)
    assert "waits for a review" in standing.get().said

    glass.refresh_from_db()
    services.review_break_glass(glass, user=make_user(), word="logs are clean", now=NOW + 9 * HOUR)
    assert not standing.exists()


@pytest.mark.parametrize(
    ("state", "queue"),
    [
        (State.AWAITING_DIAGNOSIS, State.AWAITING_DIAGNOSIS),
        (State.AWAITING_REPAIR, State.AWAITING_REPAIR),
        (State.OBSERVING, State.AWAITING_VALIDATION),
        (State.AWAITING_RELEASE, State.AWAITING_VALIDATION),
    ],
)
def test_when_its_time_is_over_the_machine_is_drained_and_goes_back_to_its_queue(ann, state, queue):
    glass = broken(ann, state=state)

    assert services.end_break_glasses(now=NOW + 7 * HOUR) == 0
    assert services.end_break_glasses(now=NOW + 8 * HOUR) == 1
    assert services.end_break_glasses(now=NOW + 8 * HOUR) == 0

    machine = Machine.objects.get(pk=glass.machine_id)
    assert (machine.state, machine.may_take_work) == (State.DRAINING, False)
    assert carry_on(TakeOut.objects.get(), is_idle=True, now=NOW + 9 * HOUR)
    assert Machine.objects.get(pk=machine.pk).state == queue


def test_a_machine_that_breaks_meanwhile_ends_it_and_stays_out(ann):
    glass = broken(ann)
    services.take_out(glass.machine, actor="bob", reason="smoke", at_once=True, now=NOW + HOUR)

    services.end_break_glasses(now=NOW + HOUR)

    glass.refresh_from_db()
    assert glass.ended_why == "the machine is awaiting_diagnosis"
    services.end_break_glasses(now=NOW + 9 * HOUR)
    assert Machine.objects.get(pk=glass.machine_id).state == State.AWAITING_DIAGNOSIS


@pytest.mark.parametrize("hours", [0, -1, 72.1])
def test_it_lasts_at_most_three_days(ann, hours):
    with pytest.raises(BreakGlassRefused, match="72 hours"):
        broken(ann, hours=hours)

    assert not BreakGlass.objects.exists()


@pytest.mark.parametrize("state", sorted(set(State) - set(BREAKABLE)))
def test_where_hands_are_on_the_machine_it_is_refused_with_what_is_possible(ann, state):
    with pytest.raises(BreakGlassRefused, match="possible out of: awaiting_diagnosis"):
        broken(ann, state=state)


def test_a_reason_is_needed(ann):
    machine = make_machine(state=State.OBSERVING)

    with pytest.raises(BreakGlassRefused, match="reason"):
        services.break_glass(machine, user=ann, reason=" ", until=NOW + HOUR, now=NOW)


def test_it_lifts_nobodys_cordon(ann):
    machine = make_machine(state=State.OBSERVING)
    services.cordon(machine, owner="bob", reason="waiting for vendor", now=NOW)

    with pytest.raises(BreakGlassRefused, match="cordoned by bob"):
        services.break_glass(machine, user=ann, reason="launch", until=NOW + HOUR, now=NOW)

    assert Machine.objects.get(pk=machine.pk).state == State.OBSERVING


def test_whoever_broke_the_glass_does_not_review_it_and_nobody_before_it_is_over(ann):
    glass = broken(ann)

    with pytest.raises(SelfApproval):
        services.review_break_glass(glass, user=ann, word="fine", now=NOW)
    with pytest.raises(BreakGlassRefused, match="lasts until"):
        services.review_break_glass(glass, user=make_user(), word="fine", now=NOW)


def test_one_person_reviews_it_and_may_repeat_it(ann):
    glass, bob = broken(ann), make_user("bob")
    services.end_break_glasses(now=NOW + 9 * HOUR)
    glass.refresh_from_db()
    services.review_break_glass(glass, user=bob, word="fine", now=NOW + 9 * HOUR)

    services.review_break_glass(glass, user=bob, word="again", now=NOW + 10 * HOUR)
    with pytest.raises(BreakGlassRefused, match="bob has reviewed it"):
        services.review_break_glass(glass, user=make_user(), word="mine", now=NOW)

    assert BreakGlass.objects.get().review == "fine"
