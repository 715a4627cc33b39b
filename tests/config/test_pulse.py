"""When no worker does anything any more, it is said, and the worker makes room for a new one."""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace

import pytest
from celery import current_app
from celery.utils.nodenames import worker_direct
from django.test import Client
from django.utils import timezone
from kombu.exceptions import OperationalError

from config import pulse
from fleet.models import Heartbeat
from tests.factories import make_user
from tests.services import worker_process

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def beat(*, ago: timedelta) -> None:
    Heartbeat.objects.create(name="worker", beat_at=timezone.now() - ago)


def page() -> str:
    client = Client()
    client.force_login(make_user(is_superuser=True, is_staff=True))
    return client.get("/rollouts/").content.decode()


def test_health_is_red_and_every_page_says_so_when_no_worker_does_anything(client: Client):
    beat(ago=3 * MINUTE)

    answer = client.get("/healthz")

    assert (answer.status_code, answer.json()["status"]) == (503, "stalled")
    assert "Decisions are not being made since" in page()


def test_health_is_green_and_nothing_is_said_while_a_worker_works(client: Client):
    beat(ago=MINUTE)

    answer = client.get("/healthz")

    assert (answer.status_code, answer.json()["status"]) == (200, "deciding")
    assert "Decisions are not being made" not in page()


def test_where_no_worker_has_ever_worked_health_is_not_green(client: Client):
    answer = client.get("/healthz")

    assert (answer.status_code, answer.json()["status"]) == (503, "no worker yet")


# --- a stuck worker ------------------------------------------------------------------------------


class Ended(Exception):
    """Stands for the end of the process."""


def watched(
    monkeypatch: pytest.MonkeyPatch, *, call: Callable[[], None], seconds: float
) -> pulse.Watchdog:
    """A watchdog that has watched for so long, on a clock that only its sleep moves on."""
    passed = [1000.0]

    def sleep(by: float) -> None:
        passed[0] += by
        if passed[0] > 1000 + seconds:
            raise StopIteration

    def end(pid: int, sign: int) -> None:
        raise Ended(passed[0] - 1000)

    monkeypatch.setattr(pulse, "time", SimpleNamespace(monotonic=lambda: passed[0], sleep=sleep))
    monkeypatch.setattr(pulse.os, "kill", end)
    dog = pulse.Watchdog(call)
    with suppress(StopIteration):
        dog.run()
    return dog


def test_a_worker_that_takes_no_message_of_its_own_ends(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Ended) as ended:
        watched(monkeypatch, call=lambda: None, seconds=600)

    assert ended.value.args == (180.0,)  # called after 30 s, missed for more than 120 s


def test_a_worker_that_answers_its_roll_call_stays_though_no_heartbeat_comes(
    monkeypatch: pytest.MonkeyPatch,
):
    beat(ago=60 * MINUTE)
    dogs: list[pulse.Watchdog] = []
    plain = pulse.Watchdog.look

    def look(dog: pulse.Watchdog) -> None:
        plain(dog)
        pulse.time.sleep(1)
        dog.note()
        dogs.append(dog)

    monkeypatch.setattr(pulse.Watchdog, "look", look)
    watched(monkeypatch, call=lambda: None, seconds=3600)

    assert len(dogs) > 100


def test_no_worker_ends_because_its_broker_is_away(monkeypatch: pytest.MonkeyPatch):
    def refused() -> None:
        raise OperationalError("Connection refused")

    dog = watched(monkeypatch, call=refused, seconds=3600)

    assert dog.waits_since is None


@pytest.mark.services
@pytest.mark.slow
def test_of_two_workers_without_a_beat_only_the_one_that_takes_nothing_ends():
    with (
        worker_process.separate_process(current_app, name="stuck@localhost") as stuck,
        worker_process.separate_process(current_app, name="well@localhost") as well,
    ):
        own = worker_direct("stuck@localhost").name
        for queue in (current_app.conf.task_default_queue, own):
            current_app.control.cancel_consumer(queue, destination=["stuck@localhost"])

        assert stuck.wait(240) == 0
        time.sleep(60)
        assert well.poll() is None
