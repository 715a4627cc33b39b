"""The only way to enqueue a task: a hint to look at a row, after commit, never in the way."""

import logging
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


def _publish(task: Task, args: tuple[object, ...]) -> None:
    try:
        task.apply_async(args=args)
    except (OperationalError, RedisError, OSError) as error:
        logger.warning("hint lost, the sweep will find the row: %s%r: %s", task.name, args, error)
