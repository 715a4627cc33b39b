"""A task for the tests of the worker itself; the product does not know it."""

import os
import signal

from celery import shared_task
from django.contrib.auth.models import Group


@shared_task(name="tests.services.make_group")
def make_group(name: str) -> None:
    """Safe to repeat: a group of that name exists once."""
    Group.objects.get_or_create(name=name)


@shared_task(name="tests.services.die_once")
def die_once() -> None:
    """Kill the process that runs this, the first time; then leave a mark."""
    if Group.objects.get_or_create(name="tried")[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    Group.objects.get_or_create(name="finished")
