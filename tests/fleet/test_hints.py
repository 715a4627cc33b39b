"""A hint goes out after commit, once, and a broker that is down costs time only."""

import logging
import time
from datetime import timedelta

import pytest
from celery import Celery
from django.db import transaction

from fleet.hints import hint, hint_rarely


def look_at(number: int) -> None:
    """The task that no worker ever gets."""


class Recorder:
    """Stands for a task; keeps what was published."""

    name = "recorder"

    def __init__(self) -> None:
        self.published: list[tuple] = []

    def apply_async(self, *, args: tuple) -> None:
        self.published.append(args)


@pytest.mark.django_db(transaction=True)
def test_a_hint_waits_for_the_commit():
    task = Recorder()

    with transaction.atomic():
        hint(task, 7)
        assert task.published == []

    assert task.published == [(7,)]


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_transaction_hints_nothing():
    task = Recorder()

    with transaction.atomic():
        hint(task, 7)
        transaction.set_rollback(True)

    assert task.published == []


@pytest.mark.django_db(transaction=True)
def test_a_broker_that_is_down_is_logged_in_short_time_and_not_raised(settings, caplog):
    app = Celery("down", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.task_publish_retry_policy = settings.CELERY_TASK_PUBLISH_RETRY_POLICY
    task = app.task(name="down.task")(look_at)

    begin = time.monotonic()
    with caplog.at_level(logging.WARNING):
        hint(task, 7)

    assert time.monotonic() - begin < 5
    assert "down.task(7,)" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_rare_hint_goes_out_once_however_many_requests_ask_for_it():
    task = Recorder()
    task.name = "rare"

    for _ in range(100):
        hint_rarely(task, every=timedelta(seconds=3600))
    assert task.published == [()]

    hint_rarely(task, every=timedelta(0))
    assert task.published == [(), ()]
