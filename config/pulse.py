"""Whether decisions are being made: what it means when the worker's heartbeat stays away."""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from fleet.models import Heartbeat

logger = logging.getLogger(__name__)

#: A heartbeat comes every 30 s; one that is older than this is no delay any more.
LONGEST = timedelta(seconds=120)
CHECK_SECONDS = 30.0


def last_beat() -> datetime | None:
    """Return when a worker last did something end to end, or None if none ever did."""
    return Heartbeat.objects.filter(name="worker").values_list("beat_at", flat=True).first()


def stalled_since(*, wall: datetime) -> datetime | None:
    """Return since when no worker has done anything, or None while one does, or none ever has."""
    beat = last_beat()
    return beat if beat is not None and wall - beat > LONGEST else None


def banner(request: HttpRequest) -> list[Any] | None:
    """What stands on every page while no worker does anything: the words and their tone."""
    since = stalled_since(wall=timezone.now()) if request.user.is_authenticated else None
    if since is None:
        return None
    words = _("Decisions are not being made since %(time)s UTC")
    return [words % {"time": f"{since:%Y-%m-%d %H:%M}"}, "danger"]


class Watchdog(threading.Thread):
    """Ends a worker that is connected and takes nothing any more; its supervisor starts it anew.

    A broker that came back can leave it so. `call` sends a message to this worker alone, and
    raises if the broker does not take it: then there is nothing that the worker could have taken.
    The heartbeat is no measure here: where beat is down, or another worker is stuck, none comes,
    and every worker would end in turn.
    """

    def __init__(self, call: Callable[[], Any], *, every: float = CHECK_SECONDS) -> None:
        super().__init__(daemon=True, name="watchdog")
        self.call, self.every = call, every
        self.taken_at = -math.inf
        self.waits_since: float | None = None

    def note(self, **_: object) -> None:
        """The worker has taken a message, whichever it was."""
        self.taken_at = time.monotonic()

    def run(self) -> None:
        while True:
            time.sleep(self.every)
            self.look()
            if is_stuck(self.waits_since, now=time.monotonic()):
                logger.critical("no message was taken for %s; this worker ends", LONGEST)
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def look(self) -> None:
        """See whether the last call was answered, and call again."""
        if self.waits_since is not None and self.taken_at > self.waits_since:
            self.waits_since = None
        called_at = time.monotonic()
        try:
            self.call()
        except (OperationalError, RedisError, OSError) as error:
            logger.warning("the broker takes no messages: %s", type(error).__name__)
            self.waits_since = None
            return
        if self.waits_since is None:
            self.waits_since = called_at


def is_stuck(waits_since: float | None, *, now: float) -> bool:
    """Tell whether a message to this worker has waited for too long."""
    return waits_since is not None and now - waits_since > LONGEST.total_seconds()
