"""The one clock: what time it is, and who may move it."""

from datetime import datetime, timedelta

from django.db.models import F
from django.utils import timezone

from fleet.errors import ClockError
from fleet.models import Clock


def now() -> datetime:
    """Return the present time of the clock: the wall's in mode `real`, else the virtual one."""
    clock = Clock.objects.filter(pk=1).values_list("mode", "virtual_time").first()
    if clock is None or clock[0] == Clock.Mode.REAL or clock[1] is None:
        return timezone.now()
    return clock[1]


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
