"""The stepped clock's driver: work until nothing is due, then step to when something is."""

import math
import time
from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import partial

from django.db.models import Min

from fleet import clock
from fleet import selectors as fleet_selectors
from fleet.hints import hint
from fleet.models import Clock
from fleet.tasks import collect, keep_capacity
from rollouts import selectors
from rollouts.models import Attempt, Rollout
from rollouts.tasks import sweep
from simulation import technician
from simulation.adapters import model_of
from simulation.errors import Stuck
from simulation.models import VirtualFleet
from simulation.tasks import reconcile

POLL_SECONDS = 0.02
#: Wall time without an end of the work that is due, after which the demo gives up.
PATIENCE_SECONDS = 120.0
#: A hint may be lost; it is repeated while work is due.
HINT_AGAIN_SECONDS = 1.0
#: What falls due within so short a time is taken together: being late is never harmful.
GRAIN = timedelta(minutes=7)


class Driver:
    """Drives everything that is due through the real tasks; it alone moves the clock.

    Parameters
    ----------
    fleet : VirtualFleet
    on_step : callable, optional
        Called after each instant's work is done, with the virtual time.
    """

    def __init__(
        self, fleet: VirtualFleet, *, on_step: Callable[[datetime], None] | None = None
    ) -> None:
        self.fleet = fleet
        self.tick = timedelta(seconds=model_of(fleet).parameters.tick_seconds)
        self.on_step = on_step or (lambda now: None)
        self.kept_day: date | None = None

    def run_until(self, end: datetime) -> None:
        """Let time pass until `end`."""
        self.run_while(lambda: clock.now() < end, end=end)

    def run_while(self, goes_on: Callable[[], bool], *, end: datetime | None = None) -> None:
        """Step from one due instant to the next as long as it goes on.

        Raises
        ------
        Stuck
            If work that is due does not end, or nothing is due any more.
        """
        self.settle()
        while goes_on():
            clock.step_to(self._next_instant(end))
            self.settle()

    # --- one instant --------------------------------------------------------------------

    def settle(self) -> None:
        """Work off what is due at the present instant: telemetry first, then everything else."""
        now = clock.now()
        if self._wants_telemetry(now):
            self._wait(
                now, lambda: fleet_selectors.collected_until() == now, partial(hint, collect)
            )
        while True:
            self._wait(now, lambda: not selectors.has_due_work(now), sweep)
            if not _is_due(technician.next_due_at(), now):
                break
            self._wait(
                now, lambda: not _is_due(technician.next_due_at(), now), partial(hint, reconcile)
            )
        if now.date() != self.kept_day:
            hint(keep_capacity)  # nothing waits for it: a day that is missed is added up later
            self.kept_day = now.date()
        self.on_step(now)

    def _wants_telemetry(self, now: datetime) -> bool:
        """Tell whether reports have come due or a look wants to see the newest ones."""
        until = fleet_selectors.collected_until() or self.fleet.origin
        return until < now and (self._next_tick(until) <= now or _is_due(next_rollout_at(), now))

    def _wait(
        self, now: datetime, is_done: Callable[[], bool], give_hint: Callable[[], object]
    ) -> None:
        """Hint and wait for the worker; hint again where a message may have been lost."""
        started = time.monotonic()
        hinted = -math.inf
        while not is_done():
            wall = time.monotonic()
            if wall - hinted > HINT_AGAIN_SECONDS:
                give_hint()
                hinted = wall
            if wall - started > PATIENCE_SECONDS:
                raise Stuck(f"what is due at {now} was not done in {PATIENCE_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    # --- the next instant ---------------------------------------------------------------

    def _next_instant(self, end: datetime | None) -> datetime:
        """Return when something is due next: looks to the minute, small steps by the grain."""
        now = clock.now()
        small = [at for at in (next_attempt_at(), technician.next_due_at()) if at]
        looks = [at for at in (next_rollout_at(),) if at]
        if not small and not looks and end is None:
            raise Stuck(f"nothing is due any more at {now}, and the rollouts have not ended")
        instants = [*looks, *(max(at, now + GRAIN) for at in small), self._next_tick(now)]
        if end is not None:
            instants.append(end)
        return max(min(instants), now)

    def _next_tick(self, now: datetime) -> datetime:
        passed = (now - self.fleet.origin) // self.tick
        return self.fleet.origin + (passed + 1) * self.tick


def _is_due(at: datetime | None, now: datetime) -> bool:
    return at is not None and at <= now


def next_rollout_at() -> datetime | None:
    """Return when a rollout next wants to be looked at."""
    return Rollout.objects.filter(status__in=selectors.LIVE).aggregate(at=Min("due_at"))["at"]


def next_attempt_at() -> datetime | None:
    """Return when an attempt next wants to be looked at."""
    return Attempt.objects.aggregate(at=Min("due_at"))["at"]


def use_stepped_clock(*, at: datetime) -> datetime:
    """Put the clock into the driver's hand: at `at`, or where a virtual clock stands already."""
    virtual = Clock.objects.filter(pk=1).exclude(mode=Clock.Mode.REAL).first()
    start = (virtual and virtual.virtual_time) or at
    clock.set_mode(Clock.Mode.STEPPED, at=start)
    return start
