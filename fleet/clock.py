"""The one clock: what time it is, and who may move it."""

import socket
import time
from datetime import date, datetime, timedelta
from pathlib import Path

from django.core.exceptions import ValidationError
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from fleet.errors import ClockError
from fleet.models import Clock, ClockReading

_BOOT = Path("/proc/sys/kernel/random/boot_id")
#: Years that may be asked about.
FIRST_YEAR, LAST_YEAR = 1970, 2199


def validate_year(at: date) -> None:
    """Refuse a day or time of a year in which no machine stood, on forms and in addresses.

    A week before the first of all days does not exist.
    """
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        raise ValidationError(
            _("The year %(year)s is not in those from %(first)s to %(last)s."),
            params={"year": at.year, "first": FIRST_YEAR, "last": LAST_YEAR},
        )


def now() -> datetime:
    """Return the present time of the clock: in mode `real` the wall's as it runs on, or virtual.

    A wall clock that is set does not move it: see `steady_time`.
    """
    clock = Clock.objects.filter(pk=1).values_list("mode", "virtual_time").first()
    if clock is None or clock[0] == Clock.Mode.REAL or clock[1] is None:
        return steady_time()
    return clock[1]


def steady_time() -> datetime:
    """Return the wall's time as it was last agreed on, run on with a clock that nobody can set.

    Windows, deadlines and leases follow it, so none of them runs out because somebody set the
    wall's clock forward, and nothing waits because it was set back.
    """
    last = ClockReading.objects.filter(host=host()).values_list("wall", "steady_seconds").first()
    if last is None:
        return timezone.now()
    return last[0] + timedelta(seconds=steady_seconds() - last[1])


def is_real() -> bool:
    """Tell whether the clock is the wall's."""
    return not Clock.objects.filter(pk=1).exclude(mode=Clock.Mode.REAL).exists()


def host() -> str:
    """Name this host and its boot: since it, the steady clock has run without a step."""
    boot = _BOOT.read_text().strip() if _BOOT.exists() else "unknown boot"
    return f"{socket.gethostname()[:100]}/{boot}"


def steady_seconds() -> float:
    """Return the seconds since boot by the clock that nobody sets; sleep counts where it can."""
    kind = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(kind)


def set_mode(mode: str, *, at: datetime | None = None, rate: float = 1.0) -> None:
    """Put the clock into a mode; `scaled` and `stepped` start at `at`.

    Raises
    ------
    ClockError
        If a virtual mode is asked for without a time, or the time would go backwards.
    """
    if mode != Clock.Mode.REAL and at is None:
        raise ClockError(f"mode {mode} needs the virtual time to start from")
    clock = Clock.objects.filter(pk=1).first()
    if clock and clock.virtual_time and at and at < clock.virtual_time:
        raise ClockError(f"the clock stands at {clock.virtual_time}, it cannot go back to {at}")
    Clock.objects.update_or_create(
        pk=1,
        defaults={"mode": mode, "virtual_time": at, "rate": rate, "ticked_at": timezone.now()},
    )


def step_to(at: datetime) -> None:
    """Move a stepped clock forward to `at`; only the driver of a demo does this.

    Raises
    ------
    ClockError
        If the clock is not in mode `stepped` or stands later than `at`.
    """
    moved = Clock.objects.filter(pk=1, mode=Clock.Mode.STEPPED, virtual_time__lte=at).update(
        virtual_time=at
    )
    if not moved:
        raise ClockError(f"the clock cannot step to {at}: it is not stepped, or later already")


def tick(*, wall: datetime, longest: timedelta) -> datetime | None:
    """Advance a scaled clock by the wall time since its last tick, at most by `longest`.

    Safe to repeat and to race: the tick is a compare-and-set on the last tick's wall time. A
    process that was stopped stops time, because of `longest`.
    """
    clock = Clock.objects.filter(pk=1, mode=Clock.Mode.SCALED).first()
    if clock is None or clock.virtual_time is None:
        return None
    passed = wall - (clock.ticked_at or wall)
    advance = min(max(passed, timedelta(0)) * clock.rate, longest)
    Clock.objects.filter(pk=1, mode=Clock.Mode.SCALED, ticked_at=clock.ticked_at).update(
        virtual_time=F("virtual_time") + advance, ticked_at=wall
    )
    return now()
