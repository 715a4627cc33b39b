"""Several workers and people at once, on a database that keeps them apart by its own locks."""

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from django.db import OperationalError, connection

from fleet.models import Machine
from rollouts import pipeline, selectors, services, tasks
from rollouts.errors import OrderRefused, PlanChanged, PlanRefused, StaleRollout
from rollouts.lifecycle import IllegalTransition
from rollouts.models import Attempt, AttemptEvent, Decision, Evaluation, Rollout, Transition, Wave
from rollouts.services.attempts import starts
from rollouts.services.evidence import cycles
from tests.factories import make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import started

pytestmark = pytest.mark.django_db(transaction=True)

TRIES = 15
LOST = (StaleRollout, OrderRefused, PlanChanged, PlanRefused, IllegalTransition)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(20260302)


def at_once(*calls: Callable[[], Any], rng: random.Random | None = None) -> list[Any]:
    """Run the calls in threads that start within 2 ms; return results, and who lost, in order."""
    barrier = Barrier(len(calls))
    delays = [rng.uniform(0, 0.002) if rng else 0.0 for _ in calls]

    def run(call: Callable[[], Any], delay: float) -> Any:
        barrier.wait(timeout=10)
        time.sleep(delay)
        try:
            return call()
        except LOST as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls, delays))


def small(fake_fleet: FakeFleet, **changes: Any) -> Rollout:
    return started(fake_fleet, machines=20, **changes)


def another_draft(first: Rollout, *, name: str, now: datetime) -> Rollout:
    """A draft over the same machines by an author of its own."""
    kept = {key: first.plan[key] for key in ("guardrails", "strata", "resamples", "caps")}
    return services.create_draft(
        name=name,
        bundle=first.bundle,
        selector=first.selector,
        document={"waves": [{"count": 8, "window_hours": 48}], **kept},
        author=make_user(),
        now=now,
    )


def stand(rollout: Rollout, *, wave: str) -> Wave:
    """Put rollout and first wave back to where a try begins."""
    Rollout.objects.filter(pk=rollout.pk).update(status="running", due_at=rollout.started_at)
    Wave.objects.filter(rollout=rollout, number=1).update(status=wave)
    return Wave.objects.get(rollout=rollout, number=1)


# --- a halt against what goes on -----------------------------------------------------------------


def test_a_halt_and_a_widen_at_once_end_halted_in_either_order(
    fake_fleet: FakeFleet, driver: Driver, rng: random.Random
) -> None:
    race_halt_and_widen(fake_fleet, driver, rng, tries=TRIES)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_halt_and_a_widen_raced_five_hundred_times_end_halted_whoever_was_first(
    fake_fleet: FakeFleet, driver: Driver, rng: random.Random
) -> None:
    widened_first = race_halt_and_widen(fake_fleet, driver, rng, tries=500)

    print(f"of 500 races the widen was first in {widened_first}")
    assert 0 < widened_first < 500


def race_halt_and_widen(
    fake_fleet: FakeFleet, driver: Driver, rng: random.Random, *, tries: int
) -> int:
    """Let both come at once, over and over; return how often the widen was first."""
    rollout, ann = small(fake_fleet), make_user()
    tasks.evaluate(rollout.pk)
    widened = 0
    for number in range(tries):
        wave = stand(rollout, wave="observing")
        at = driver.now + timedelta(seconds=number)
        cycles.decide(rollout, "widen", "not_worse", "ok", as_of=at, wave=wave)
        calls = [
            partial(pipeline.enact, Rollout.objects.get(pk=rollout.pk), now=at),
            partial(services.halt, Rollout.objects.get(pk=rollout.pk), actor=ann, now=at),
        ]

        results = at_once(*calls, rng=rng)

        rollout.refresh_from_db()
        assert rollout.status == "halted"
        assert not isinstance(results[1], Exception), results
        wave.refresh_from_db()
        assert wave.status in ("widened", "halted")
        widened += wave.status == "widened"
    assert rollout.epoch == tries
    assert rollout.orders.filter(kind="halt").count() == tries
    assert not Wave.objects.filter(rollout=rollout, number=2).exclude(status="pending").exists()
    return widened


def test_a_halt_and_an_advance_at_once_end_halted_in_either_order(
    fake_fleet: FakeFleet, driver: Driver, rng: random.Random
) -> None:
    rollout, ann, bob = small(fake_fleet), make_user(), make_user()
    tasks.evaluate(rollout.pk)
    for _ in range(TRIES):
        wave = stand(rollout, wave="held")
        fresh = partial(Rollout.objects.get, pk=rollout.pk)
        advance = partial(services.advance, actor=ann, second_person=bob, reason="x")

        results = at_once(
            partial(advance, fresh(), now=driver.now),
            partial(services.halt, fresh(), actor=bob, now=driver.now),
            rng=rng,
        )

        wave.refresh_from_db()
        assert fresh().status == "halted"
        assert not isinstance(results[1], Exception), results
        assert wave.status == ("halted" if isinstance(results[0], Exception) else "widened")


def test_no_attempt_starts_after_a_halt_has_committed(
    fake_fleet: FakeFleet, driver: Driver, rng: random.Random
) -> None:
    rollout, ann = small(fake_fleet), make_user()
    tasks.evaluate(rollout.pk)
    block = rollout.waves.first().blocks.get()
    orders = Counter()
    for _ in range(TRIES):
        stand(rollout, wave="installing")
        epoch = Rollout.objects.get(pk=rollout.pk).epoch
        Attempt.objects.update(status="queued", epoch=epoch, due_at=None)
        Machine.objects.update(state="in_service", may_take_work=True)
        last = AttemptEvent.objects.order_by("-pk").first().pk

        at_once(
            partial(starts.start_waiting, block, now=driver.now),
            partial(services.halt, Rollout.objects.get(pk=rollout.pk), actor=ann, now=driver.now),
            rng=rng,
        )

        halted = Transition.objects.filter(rollout=rollout, wave=None).latest("pk")
        started_ = AttemptEvent.objects.filter(pk__gt=last, new_status="draining")
        assert halted.new_status == "halted"
        assert not started_.filter(recorded_at__gt=halted.recorded_at).exists()
        ended = Counter(Attempt.objects.values_list("status", flat=True))
        assert ended in ({"called_off": 8}, {"draining": 8})
        orders[next(iter(ended))] += 1
    assert sum(orders.values()) == TRIES


def test_a_wave_that_starts_while_a_halt_comes_is_halted_or_never_started(
    fake_fleet: FakeFleet, driver: Driver, rng: random.Random
) -> None:
    for number in range(6):
        fleet = FakeFleet()
        rollout = _another(fleet, number)

        results = at_once(
            partial(pipeline.enact, Rollout.objects.get(pk=rollout.pk), now=driver.now),
            partial(
                services.halt,
                Rollout.objects.get(pk=rollout.pk),
                actor=rollout.author,
                now=driver.now,
            ),
        )

        rollout.refresh_from_db()
        assert rollout.status == "halted"
        assert not isinstance(results[1], Exception), results
        assert rollout.waves.first().status in ("pending", "halted")
        assert not rollout.attempts.filter(status__in=("queued", "deferred")).exists()


def _another(fleet: FakeFleet, number: int) -> Rollout:
    """One more running rollout on the machines of those before, which are cancelled."""
    if number == 0:
        return small(fleet)
    first = Rollout.objects.order_by("pk").first()
    author = make_user()
    rollout = services.create_draft(
        name=f"update {number}",
        bundle=first.bundle,
        selector=first.selector,
        document={k: v for k, v in first.plan.items() if k in ("waves", "guardrails", "strata")}
        | {"resamples": 999, "caps": {"max_unavailable_share": None, "paced": False}},
        author=author,
        now=first.created_at,
        seed=number,
    )
    for earlier in Rollout.objects.filter(status="halted"):
        services.cancel(earlier, actor=author, now=first.created_at)
    Attempt.objects.filter(status="draining").update(status="called_off", due_at=None)
    Machine.objects.update(state="in_service", may_take_work=True)
    services.submit(rollout, actor=author, now=first.created_at)
    services.approve(rollout, actor=first.author, now=first.created_at)
    services.start(rollout, actor=author, now=first.created_at)
    return rollout


# --- workers against workers ---------------------------------------------------------------------


def test_two_sweeps_and_every_task_delivered_to_two_workers_at_once_do_everything_once(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = small(fake_fleet, look_minutes=1440, batch_size=4)
    for _ in range(400):
        rollout.refresh_from_db()
        if rollout.decisions.count() >= 2:
            break
        due = selectors.due_attempts(driver.now)
        calls = [partial(tasks.evaluate, rollout.pk)] if selectors.due_rollouts(driver.now) else []
        calls += [partial(tasks.install, due)] if due else []
        if calls:
            at_once(*calls, *calls)
        elif (following := selectors.next_due_at()) is not None:
            driver.now = max(following, driver.now)

    assert rollout.decisions.count() >= 2
    assert sorted(Counter(fake_fleet.flashed).values()) == [1] * 8
    for rows in (
        Transition.objects.values_list("wave", "old_status", "new_status"),
        AttemptEvent.objects.values_list("attempt", "old_status", "new_status"),
        Evaluation.objects.values_list("wave", "as_of"),
        Decision.objects.values_list("wave", "as_of", "kind"),
    ):
        assert max(Counter(rows).values()) == 1


def test_two_plans_over_the_same_machines_submitted_at_once_are_not_both_taken(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    first = small(fake_fleet)
    services.cancel(first, actor=make_user(), now=driver.now)
    drafts = [another_draft(first, name=f"draft {n}", now=driver.now) for n in range(2)]

    results = at_once(
        *(partial(services.submit, one, actor=one.author, now=driver.now) for one in drafts)
    )

    assert [type(result) for result in results].count(PlanRefused) == 1
    assert Rollout.objects.filter(status="awaiting_approval").count() == 1


def test_a_preview_beside_a_submission_is_what_it_promises_or_comes_too_late(
    fake_fleet: FakeFleet, driver: Driver, rng: random.Random
) -> None:
    first = small(fake_fleet)
    services.cancel(first, actor=make_user(), now=driver.now)
    for number in range(3):
        draft = another_draft(first, name=f"draft {number}", now=driver.now)
        one = Machine.objects.filter(state="in_service").order_by("pk").first()
        taken = Machine.objects.filter(pk=one.pk)

        results = at_once(
            partial(services.submit, draft, actor=draft.author, now=driver.now),
            partial(services.preview, Rollout.objects.get(pk=draft.pk), now=driver.now),
            # One machine less for whichever of them looks later.
            partial(taken.update, state="draining", may_take_work=False),
            rng=rng,
        )

        draft.refresh_from_db()
        newest = draft.previews.first()
        if isinstance(results[0], PlanChanged):
            assert (draft.status, newest.digest) == ("draft", results[1].digest)
        else:
            assert (draft.status, newest.digest) == ("awaiting_approval", draft.plan_digest)
            services.cancel(draft, actor=draft.author, now=driver.now)


@pytest.mark.parametrize("order", ["start", "pause", "halt", "cancel"])
def test_an_order_given_twice_at_once_acts_once(
    fake_fleet: FakeFleet, driver: Driver, order: str
) -> None:
    rollout, ann = small(fake_fleet), make_user()
    if order == "start":
        Rollout.objects.update(status="approved")
    copies = [Rollout.objects.get(pk=rollout.pk) for _ in range(2)]
    before = rollout.transitions.count()

    at_once(*(partial(getattr(services, order), one, actor=ann, now=driver.now) for one in copies))

    assert rollout.transitions.count() == before + 1


# --- the database goes away ----------------------------------------------------------------------


def test_a_database_that_goes_away_for_a_while_loses_nothing(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = small(fake_fleet)
    tasks.evaluate(rollout.pk)
    calls = Counter()

    def gone(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        calls["all"] += 1
        if calls["all"] > 20:
            raise OperationalError("server closed the connection unexpectedly")
        return execute(sql, *rest)

    with connection.execute_wrapper(gone), pytest.raises(OperationalError):
        tasks.install.run(selectors.due_attempts(driver.now))
    Attempt.objects.exclude(leased_until=None).update(leased_until=driver.now)
    driver.run(rollout, hours=3)

    assert Counter(rollout.attempts.values_list("status", flat=True)) == {"succeeded": 8}
    assert max(Counter(fake_fleet.flashed).values()) == 1
    assert calls["all"] > 20
