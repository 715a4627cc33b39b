"""Workers that die: at the first write from each line of the product, and in each adapter call."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import connection
from django.utils import timezone

from rollouts import selectors, tasks
from rollouts.models import Attempt, Rollout
from tests.rollouts.fakes import Driver, FakeFleet

ROOT = Path(__file__).resolve().parent.parent.parent
_PRODUCT = tuple(str(ROOT / name) for name in ("rollouts", "fleet"))
_WRITES = ("INSERT", "UPDATE", "DELETE")


class Killed(BaseException):
    """The worker is gone. No `except` of the product sees it, as with SIGKILL."""


class Reaper:
    """Kills at each point once, and keeps the dead from doing anything on their way out.

    A point is the chain of the product's lines that leads to a write. Clauses of `finally` still
    run here, but their statements no longer reach the database.
    """

    def __init__(self) -> None:
        self.points: list[tuple[str, ...]] = []
        self.is_dead = False

    def __call__(self, execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if self.is_dead and "SAVEPOINT" not in sql:
            raise Killed
        if sql.startswith(_WRITES):
            self.visit(_place())
        return execute(sql, *rest)

    def visit(self, point: tuple[str, ...]) -> None:
        if self.is_dead or point not in self.points:
            self.points.append(point)
            self.is_dead = True
            raise Killed

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Run a worker's task: it may die, and then its leases run out."""
        self.is_dead = False
        try:
            with connection.execute_wrapper(self):
                yield
        except Killed:
            run_out()


def _place() -> tuple[str, ...]:
    frame, lines = sys._getframe(2), []
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PRODUCT):
            lines.append(f"{Path(frame.f_code.co_filename).stem}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(lines)


def run_out() -> None:
    """Let the wall's time pass until the dead worker's leases are over."""
    past = timezone.now() - timedelta(seconds=1)
    for model in (Rollout, Attempt):
        model.objects.exclude(leased_until=None).update(leased_until=past)


class DeadlyFleet(FakeFleet):
    """Kills the worker once in each adapter call, after the call had its effect."""

    def __init__(self, reaper: Reaper) -> None:
        super().__init__()
        self.reaper = reaper

    def apply(self, machine, step, targets, *, key, now):
        answer = super().apply(machine, step, targets, key=key, now=now)
        self.reaper.visit((f"apply {step}",))
        return answer

    def progress(self, machine, *, key, now):
        self.reaper.visit(("progress",))
        return super().progress(machine, key=key, now=now)

    def read_versions(self, machine, *, now):
        self.reaper.visit(("read_versions",))
        return super().read_versions(machine, now=now)

    def drain(self, machine, *, reason, now):
        answer = super().drain(machine, reason=reason, now=now)
        self.reaper.visit(("drain",))
        return answer

    def release(self, machine, *, reason, now):
        self.reaper.visit(("release",))
        super().release(machine, reason=reason, now=now)


class MortalDriver(Driver):
    """Does what a sweep finds, with workers that die wherever they come for the first time."""

    def __init__(self, monkeypatch: Any, reaper: Reaper) -> None:
        super().__init__(monkeypatch)
        self.reaper = reaper

    def settle(self) -> None:
        for _ in range(1000):
            rollouts = selectors.due_rollouts(self.now)
            attempts = selectors.due_attempts(self.now)
            if not rollouts and not attempts:
                return
            for rollout in rollouts:
                with self.reaper.watching():
                    tasks.evaluate(rollout)
            with self.reaper.watching():
                tasks.install(attempts)
            Rollout.objects.update(crashes=0)  # real deaths lie further apart
        raise AssertionError(f"work is due for ever at {self.now}: {rollouts} {attempts}")
