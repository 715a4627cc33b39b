"""The worker that the pipeline's tests stand on, in whichever shape the engines give it."""

import time
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from tests.services.probe import make_group


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
    assert not Group.objects.exists()


def test_a_worker_does_not_get_the_messages_of_an_earlier_test(celery_worker_process: None):
    make_group.delay("a marker behind whatever was left")

    assert becomes_true(Group.objects.filter(name__startswith="a marker").exists)
    assert Group.objects.count() == 1
