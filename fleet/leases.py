"""Who works on a row: a token and a wall time, so that a dead worker is waited for only so long."""

from datetime import datetime, timedelta

from django.db.models import Q

#: Wall time after which a row whose worker died is taken over.
LEASE = timedelta(seconds=120)


def free(*, wall: datetime, lease: timedelta = LEASE) -> Q:
    """Match rows that nobody holds: never leased, run out, or left by a clock that ran ahead.

    No worker asks for more than `lease`, so an end much later than that was written before the
    wall's clock was set back, and would otherwise hold the row until then.
    """
    return Q(leased_until=None) | Q(leased_until__lt=wall) | Q(leased_until__gt=wall + 2 * lease)


def held(*, wall: datetime, lease: timedelta = LEASE) -> Q:
    """Match rows that a worker holds: what `free` does not match."""
    return Q(leased_until__gte=wall, leased_until__lte=wall + 2 * lease)
