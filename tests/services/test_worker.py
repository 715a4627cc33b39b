"""The worker that the pipeline's tests stand on, in whichever shape the engines give it."""

import time
from collections.abc import Callable
from functools import partial

import pytest
from celery import current_app
from django.contrib.auth.models import Group
from django.db import transaction

from fleet.hints import hint
from tests.services import servers, worker_process
from tests.services.probe import die_once, make_group


def becomes_true(claim: Callable[[], bool], *, seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_the_worker_acts_on_the_database_of_the_test(celery_worker_process: None):
    make_group.delay("made by the worker")

    assert becomes_true(Group.objects.filter(name="made by the worker").exists)


def test_a_task_sent_on_commit_runs_after_the_commit(celery_worker_process: None):
    with transaction.atomic():
        Group.objects.create(name="first")
        make_group.delay_on_commit("second")
        time.sleep(0.2)
        assert not Group.objects.filter(name="second").exists()

    assert becomes_true(Group.objects.filter(name="second").exists)


@pytest.mark.django_db(transaction=True)
def test_without_a_worker_a_message_waits_and_the_next_test_does_not_see_it():
    make_group.delay("nobody takes it")

    time.sleep(0.3)
    assert not Group.objects.filter(name="nobody takes it").exists()


def test_a_worker_does_not_get_the_messages_of_an_earlier_test(celery_worker_process: None):
    make_group.delay("a marker behind whatever was left")

    assert becomes_true(Group.objects.filter(name__startswith="a marker").exists)
    assert not Group.objects.filter(name="nobody takes it").exists()


@pytest.mark.services
def test_a_task_whose_process_is_killed_runs_again(celery_worker_process: None):
    die_once.delay()

    assert becomes_true(Group.objects.filter(name="finished").exists)


@pytest.mark.services
def test_a_second_worker_takes_over_what_waits(celery_worker_process: None):
    with worker_process.running(current_app):
        for number in range(20):
            make_group.delay(f"group {number}")

        assert becomes_true(lambda: Group.objects.filter(name__startswith="group ").count() == 20)


@pytest.mark.services
def test_a_hint_to_a_broker_that_is_down_costs_little_and_raises_nothing(
    db: None,
    django_capture_on_commit_callbacks,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    unreachable = current_app.connection_for_write(f"redis://127.0.0.1:{servers.free_port()}/0")
    monkeypatch.setattr(
        make_group, "apply_async", partial(make_group.apply_async, connection=unreachable)
    )
    started = time.monotonic()

    with django_capture_on_commit_callbacks(execute=True):
        hint(make_group, "never made")

    assert time.monotonic() - started < 3
    assert "hint lost" in caplog.text
