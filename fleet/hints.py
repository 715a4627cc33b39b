"""The only way to enqueue a task: a hint to look at a row, after commit, never in the way."""

import logging
import math
import time
from datetime import timedelta
from functools import partial

from celery import Task
from django.db import transaction
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)


def hint(task: Task, *args: object) -> None:
    """Enqueue the task once the present transaction is committed.

    A broker that is down costs time only: the failure is logged, and the sweep finds the row.
    Publishing gives up quickly (`CELERY_TASK_PUBLISH_RETRY_POLICY`).
    """
    transaction.on_commit(partial(_publish, task, args))


def hint_rarely(task: Task, *, every: timedelta = timedelta(seconds=5)) -> None:
    """Enqueue a task that takes on whatever is due, unless this process did so just before.

    Where each of many requests brings work for it, one message each would fill the queue before
    the sweep's; the rest is left to the beat, which runs such a task anyway.
    """
    passed = time.monotonic() - _hinted_at.get(task.name, -math.inf)
    if passed >= every.total_seconds():
        _hinted_at[task.name] = time.monotonic()
        hint(task)


#: When this process last sent which task rarely, on the steady clock.
_hinted_at: dict[str, float] = {}


def _publish(task: Task, args: tuple[object, ...]) -> None:
    try:
        task.apply_async(args=args)
    except (OperationalError, RedisError, OSError) as error:
        logger.warning("hint lost, the sweep will find the row: %s%r: %s", task.name, args, error)
