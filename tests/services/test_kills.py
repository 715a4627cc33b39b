"""kill -9 of the worker at ten named points of a rollout, and what is true soon after."""

import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import redis
from celery import current_app
from django.db import connection

from fleet import clock
from fleet.models import Machine
from fleet.selectors import versions_now
from fleet.tasks import heartbeat
from rollouts import selectors, services, tasks
from rollouts.lifecycle import IN_FLIGHT
from rollouts.models import Attempt, AttemptEvent, Decision, Evaluation, Rollout, Transition
from tests.factories import NOW, make_bundle, make_image, make_machines, make_user
from tests.rollouts.plans import document
from tests.services import deadly, worker_process

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.django_db(transaction=True),
]

LONGEST_SECONDS = 90.0
MACHINES = 12
ADAPTER = "tests.services.deadly.RedisFleet"


@pytest.fixture
def bmcs(monkeypatch: pytest.MonkeyPatch, settings) -> Iterator[redis.Redis]:
    address = os.environ["REDIS_URL"].rsplit("/", 1)[0] + "/9"
    monkeypatch.setenv("DEADLY_REDIS_URL", address)
    settings.INSTALLER = settings.SCHEDULER = ADAPTER
    store = deadly.bmcs()
    store.flushdb()
    yield store
    store.flushdb()


def begin(point: str) -> Rollout:
    """A rollout of two waves over machines of its own, named after where its worker dies."""
    names = [f"{point}/{number:02}" for number in range(MACHINES)]
    make_machines(
        MACHINES, names=names, pool=point, platform=point, versions={deadly.KIND: deadly.OLD}
    )
    author = make_user()
    image = make_image(deadly.KIND, deadly.NEW, vendor=point)
    plan = document(
        waves=[{"count": count, "window_hours": 48} for count in (4, 4)],
        guardrails=[{"metric": "install", "required": True, "margin": 0.9}],
        look_minutes=2880,
        batch_size=3,
        max_bricks=None,
        extension=0,
    )
    rollout = services.create_draft(
        name=point,
        bundle=make_bundle(images=[image], platform=point),
        selector=f"platform={point}",
        document={"mode": "automatic", **plan},
        author=author,
        now=NOW,
        seed=7,
    )
    services.submit(rollout, actor=author, now=NOW)
    services.approve(rollout, actor=make_user(), now=NOW)
    services.start(rollout, actor=author, now=NOW)
    return rollout


def test_after_kill_9_at_any_of_ten_points_nothing_is_flashed_twice_and_all_states_are_true(
    bmcs: redis.Redis,
):
    clock.set_mode("stepped", at=NOW)
    rollouts = {point: begin(point) for point in deadly.POINTS}

    recoveries = live_on(bmcs)

    assert set(bmcs.hgetall("killed")) == set(deadly.POINTS)
    assert max(recoveries) <= LONGEST_SECONDS, recoveries
    assert max(Counter(bmcs.lrange("flashed", 0, -1)).values()) == 1
    assert not Attempt.objects.filter(status__in=IN_FLIGHT).exists()
    assert_told_once()
    assert_true(bmcs)
    for point, rollout in rollouts.items():
        rollout.refresh_from_db()
        assert rollout.status == ("halted" if point == "while-halting" else "completed"), point


def live_on(bmcs: redis.Redis) -> list[float]:
    """Walk the clock until nothing is due any more; start the worker anew whenever it is dead.

    Returns, per death, the seconds from the moment when a worker is there again to the moment
    when all that was due had been done.
    """
    recoveries: list[float] = []
    is_hurt = False
    while True:
        with worker_process.separate_process(
            current_app,
            include="tests.services.deadly",
            is_awaited=False,  # it may die while it starts
            INSTALLER=ADAPTER,
            SCHEDULER=ADAPTER,
            DEADLY="1",
        ) as worker:
            ready_at = None
            while worker.poll() is None:
                if ready_at is None and current_app.control.ping(timeout=0.5):
                    ready_at = time.monotonic()
                if ready_at and not selectors.has_due_work(clock.now()):
                    if is_hurt:
                        recoveries.append(time.monotonic() - ready_at)
                        print(f"all done {recoveries[-1]:.0f} s after the restart")
                        is_hurt = False
                    due = selectors.next_due_at()
                    if due is None:
                        return recoveries
                    clock.step_to(max(due, clock.now()))
                tasks.sweep.delay()
                heartbeat.delay()
                time.sleep(0.2)
        is_hurt = True
        print(f"killed so far: {', '.join(bmcs.hgetall('killed'))}")


def assert_told_once() -> None:
    moves = Transition.objects.values_list("rollout", "wave", "old_status", "new_status")
    events = AttemptEvent.objects.values_list("attempt", "old_status", "new_status")
    looks = Evaluation.objects.values_list("wave", "as_of")
    decisions = Decision.objects.values_list("rollout", "wave", "as_of", "kind")
    for rows in (moves, events, looks, decisions):
        assert [row for row, n in Counter(rows).items() if n > 1] == []
    for model in (Rollout, Attempt):
        assert not model.objects.exclude(leased_until=None).exists()


def assert_true(bmcs: redis.Redis) -> None:
    """What the product says of each machine is what its BMC says."""
    machines = list(Machine.objects.all())
    told = versions_now([machine.pk for machine in machines])
    for machine in machines:
        runs = bmcs.hget("versions", machine.name) or deadly.OLD
        assert told[machine.pk][deadly.KIND] == runs, machine.name
    succeeded = Attempt.objects.filter(status="succeeded").values_list("machine__name", flat=True)
    assert {bmcs.hget("versions", name) for name in succeeded} == {deadly.NEW}
    assert connection.vendor == "postgresql"
