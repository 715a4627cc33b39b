"""Notice when somebody sets the wall's clock: it is compared with one that nobody can set."""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from fleet import clock
from fleet.models import ClockJump, ClockReading, Machine

logger = logging.getLogger(__name__)

#: A wall clock that moved by more was set by somebody; what is less is followed.
LEAST_JUMP = timedelta(seconds=60)
#: A smaller difference is not worth a statement.
_NOTICED = timedelta(seconds=0.5)


@dataclass(frozen=True)
class Wall:
    """How the wall's clock stands to the product's time: how far off, and how much of it is new."""

    off: timedelta
    jumped: timedelta

    @property
    def was_set(self) -> bool:
        """Tell whether somebody has set the clock since it was last looked at."""
        return abs(self.jumped) >= LEAST_JUMP


def look_at_wall(*, wall: datetime) -> Wall:
    """Compare the wall's clock with the product's time, and follow its small corrections.

    Safe to repeat; it takes no lock where there is nothing to note.
    """
    steady = clock.steady_seconds()
    known = ClockReading.objects.filter(host=clock.host()).first()
    if known is None:
        ClockReading.objects.get_or_create(
            host=clock.host(), defaults={"wall": wall, "steady_seconds": steady}
        )
        return Wall(timedelta(0), timedelta(0))
    seen = _compare(known, wall=wall, steady=steady)
    if known.set_by_seconds == 0.0 and _NOTICED < abs(seen.off) < LEAST_JUMP:
        _agree(known, wall=wall, steady=steady)
    return seen


def _compare(known: ClockReading, *, wall: datetime, steady: float) -> Wall:
    off = wall - (known.wall + timedelta(seconds=steady - known.steady_seconds))
    return Wall(off, off - timedelta(seconds=known.set_by_seconds))


@transaction.atomic
def record_jump(*, wall: datetime) -> ClockJump | None:
    """Write down that the clock was set; the product's time goes on as if it had not been.

    That lasts until the wall comes back or `adopt_wall` follows it. Safe to race: of two workers
    that see the same jump one records it.
    """
    steady = clock.steady_seconds()
    known = ClockReading.objects.select_for_update().get(host=clock.host())
    seen = _compare(known, wall=wall, steady=steady)
    if not seen.was_set:
        return None
    is_back = abs(seen.off) < LEAST_JUMP
    ClockReading.objects.filter(pk=known.pk).update(
        set_by_seconds=0.0 if is_back else seen.off.total_seconds()
    )
    seconds = seen.jumped.total_seconds()
    logger.warning("the clock of %s was set by %+.0f s", known.host, seconds)
    return ClockJump.objects.create(
        host=known.host, seconds=seconds, before=wall - seen.off, after=wall
    )


def _agree(known: ClockReading, *, wall: datetime, steady: float) -> None:
    ClockReading.objects.filter(pk=known.pk, steady_seconds=known.steady_seconds).update(
        wall=wall, steady_seconds=steady, set_by_seconds=0.0
    )


@transaction.atomic
def adopt_wall(*, wall: datetime) -> None:
    """Let the product's time follow a wall that was set; the machines have as long as before."""
    known = ClockReading.objects.filter(host=clock.host()).first()
    if known is None or known.set_by_seconds == 0.0:
        return
    by = wall - clock.steady_time()
    _agree(known, wall=wall, steady=clock.steady_seconds())
    machines = Machine.objects.all()
    machines.exclude(deadline_at=None).update(deadline_at=F("deadline_at") + by)
    machines.exclude(watch_until=None).update(watch_until=F("watch_until") + by)
    logger.warning("the product's time follows the wall's clock again, by %s", by)
