"""The Celery application; its settings are the `CELERY_*` names of `config.settings`."""

import os
from functools import partial
from typing import Any

from celery import Celery
from celery.signals import celeryd_init, task_received, worker_ready
from celery.utils.nodenames import worker_direct
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("coalmine")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@celeryd_init.connect
def refuse_memory_broker(conf, **_: object) -> None:
    """A worker process of its own never sees another process's memory.

    Messages sent to it would be accepted and lost, so it does not start. The
    embedded worker does not send this signal.
    """
    if str(conf.broker_url).startswith("memory:"):
        raise SystemExit(
            f"CELERY_BROKER_URL is {conf.broker_url!r}, which no other process can reach; "
            "set REDIS_URL, or run `manage.py up`, which holds web, worker and beat in one process"
        )


@app.task
def roll_call() -> None:
    """Nothing to do: that the worker takes the message is the answer."""


@worker_ready.connect
def watch_oneself(sender: Any, **_: object) -> None:
    """A worker process of its own ends when it gets stuck; the embedded one is part of the site."""
    if settings.IS_EMBEDDED:
        return
    from config.pulse import LONGEST, Watchdog  # needs the models, which are not there at import

    own = worker_direct(sender.hostname)
    dog = Watchdog(
        partial(roll_call.apply_async, queue=own, expires=LONGEST.total_seconds(), retry=False)
    )
    task_received.connect(dog.note, weak=False)
    dog.start()
