"""When no worker does anything any more, it is said, and the worker makes room for a new one."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from config import pulse
from fleet.models import Heartbeat
from tests.factories import NOW, make_user
from tests.services.worker_process import database_url

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


@pytest.mark.parametrize(
    ("beat_at", "since", "stuck"),
    [
        (NOW - 3 * MINUTE, NOW - 9 * MINUTE, True),
        (NOW - MINUTE, NOW - 9 * MINUTE, False),
        (None, NOW - 3 * MINUTE, True),
        (NOW - 60 * MINUTE, NOW - MINUTE, False),  # it has only just begun to watch
    ],
)
def test_a_worker_is_stuck_when_no_heartbeat_came_since_it_began(beat_at, since, stuck):
    assert pulse.is_stuck(beat_at, since=since, wall=NOW) is stuck


@pytest.mark.services
@pytest.mark.django_db(transaction=True)
def test_the_watchdog_ends_a_stuck_worker_once(monkeypatch: pytest.MonkeyPatch):
    ended = []
    monkeypatch.setattr(pulse, "LONGEST", timedelta(seconds=0))
    monkeypatch.setattr(pulse.os, "kill", lambda pid, sign: ended.append(sign))
    monkeypatch.setattr(pulse.settings, "DATABASE_URL", database_url())
    beat(ago=3 * MINUTE)

    dog = pulse.Watchdog(every=0.01)
    dog.start()
    dog.join(10)

    assert ended == [pulse.signal.SIGTERM]
