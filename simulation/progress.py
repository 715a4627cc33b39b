"""Progress bars of the demo; on something that is no terminal, one line per change."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db.models import Count, Q
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from rollouts.lifecycle import IN_FLIGHT, WAITING
from rollouts.models import Rollout
from rollouts.selectors import current_wave
from simulation.scenario import HISTORY, ORIGIN, STORIES


class Bars:
    """One bar for the period before, one per rollout: machines done of the population."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console, self._progress = console, progress
        self._tasks: dict[str, TaskID] = {}
        self._told: dict[str, str] = {}
        self._history = progress.add_task("the period before", total=HISTORY.total_seconds())

    def on_history(self, now: datetime) -> None:
        """Show how far the period before has come."""
        done = min(now - ORIGIN, HISTORY).total_seconds()
        self._progress.update(self._history, completed=done, description=f"{now:%a %d %H:%M}")

    def on_step(self, now: datetime) -> None:
        """Show where each rollout stands."""
        self._progress.update(self._history, description=f"{now:%a %d %H:%M}")
        for rollout in Rollout.objects.filter(name__in=[story.name for story in STORIES]):
            self._show(rollout, now)

    def _show(self, rollout: Rollout, now: datetime) -> None:
        text = describe(rollout)
        if rollout.name not in self._tasks:
            total = rollout.assignments.count()
            self._tasks[rollout.name] = self._progress.add_task(rollout.name, total=total)
        done = rollout.attempts.exclude(status__in=WAITING | IN_FLIGHT).count()
        self._progress.update(
            self._tasks[rollout.name], completed=done, description=f"{rollout.name}: {text}"
        )
        if self._told.get(rollout.name) != text and not self._console.is_terminal:
            self._told[rollout.name] = text
            self._console.print(f"{now:%a %d %H:%M}  {rollout.name}: {text}")


def describe(rollout: Rollout) -> str:
    """Return where a rollout stands, in a few words."""
    wave = current_wave(rollout)
    if rollout.status != "running":
        return rollout.status
    if wave is None:
        return "released, under surveillance"
    counts = wave.attempts.aggregate(
        done=Count("pk", filter=~Q(status__in=WAITING | IN_FLIGHT)), all=Count("pk")
    )
    suffix = f" {counts['done']}/{counts['all']}" if wave.status == "installing" else ""
    return f"wave {wave.number} {wave.status}" + (suffix if suffix.strip() else "")


@contextmanager
def bars(console: Console) -> Iterator[Bars]:
    """Show progress for the length of a block."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        yield Bars(console, progress)
