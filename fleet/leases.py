"""Who works on a row: a token and a wall time, so that a dead worker is waited for only so long."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.db import DatabaseError, connection
from django.db.models import Q

logger = logging.getLogger(__name__)

#: Wall time after which a row whose worker died is taken over.
LEASE = timedelta(seconds=60)
#: How often work of unknown length asks for its lease anew.
RENEWAL = LEASE / 3


def free(*, wall: datetime, lease: timedelta = LEASE) -> Q:
    """Match rows that nobody holds: never leased, run out, or left by a clock that ran ahead.

    No worker asks for more than `lease`, so an end much later than that was written before the
    wall's clock was set back, and would otherwise hold the row until then.
    """
    return Q(leased_until=None) | Q(leased_until__lt=wall) | Q(leased_until__gt=wall + 2 * lease)


def held(*, wall: datetime, lease: timedelta = LEASE) -> Q:
    """Match rows that a worker holds: what `free` does not match."""
    return Q(leased_until__gte=wall, leased_until__lte=wall + 2 * lease)


@contextmanager
def kept(renew: Callable[[], object], *, every: timedelta = RENEWAL) -> Iterator[None]:
    """Renew a lease again and again while the block runs; a process that dies stops doing so.

    So a lease may be shorter than the work. `renew` is called in a thread, with a connection to
    the database of its own; where it cannot write, it is called again at its next turn.
    """
    over = threading.Event()
    thread = threading.Thread(target=_renew_until, args=(over, renew, every), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _renew_until(over: threading.Event, renew: Callable[[], object], every: timedelta) -> None:
    try:
        while not over.wait(every.total_seconds()):
            try:
                renew()
            except DatabaseError as error:
                logger.warning("a lease could not be renewed: %s", error)
    finally:
        connection.close()
