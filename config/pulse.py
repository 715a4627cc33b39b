"""Whether decisions are being made: what it means when the worker's heartbeat stays away."""

import logging
import os
import signal
import threading
import time
from datetime import datetime, timedelta
from typing import Any

import psycopg
from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

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

    A broker that came back can leave it so. A database that is away is no reason: then nobody
    could have written a heartbeat, and the time is counted anew from its return.
    """

    def __init__(self, *, every: float = CHECK_SECONDS) -> None:
        super().__init__(daemon=True, name="watchdog")
        self.every = every

    def run(self) -> None:
        since = timezone.now()
        while True:
            time.sleep(self.every)
            try:
                beat = beat_on_its_own()
            except psycopg.OperationalError:
                since = timezone.now()
                continue
            if is_stuck(beat, since=since, wall=timezone.now()):
                logger.critical("no task was done since %s; this worker ends", beat)
                os.kill(os.getpid(), signal.SIGTERM)
                return


def is_stuck(beat: datetime | None, *, since: datetime, wall: datetime) -> bool:
    """Tell whether no heartbeat has come for too long since the watch began."""
    return wall - max(beat or since, since) > LONGEST


def beat_on_its_own() -> datetime | None:
    """Read the heartbeat on a connection that no child of this process can inherit."""
    statement = f"SELECT beat_at FROM {Heartbeat._meta.db_table} WHERE name = 'worker'"
    with psycopg.connect(settings.DATABASE_URL, connect_timeout=5) as connection:
        row: Any = connection.execute(statement).fetchone()
    return row[0] if row else None
