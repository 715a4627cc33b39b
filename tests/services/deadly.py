"""A fleet whose BMCs live in Redis, and a worker that kills itself once at each named point.

Loaded by a worker process (`--include`): what it patches is patched there only. A point belongs
to the rollout of its name, so many can be tried at once.
"""

import os
import signal
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import wraps
from typing import Any

import redis

from fleet.adapters import (
    Occupancy,
    Phase,
    Progress,
    Reading,
    RunningJob,
    Snapshot,
    Step,
    Target,
)
from rollouts import pipeline, tasks
from rollouts.analysis.verdicts import DecisionKind
from rollouts.lifecycle import WaveTrigger
from rollouts.services.attempts import starts

#: The ten points, in the order in which a rollout comes by them.
POINTS = (
    "planned",
    "leased",
    "before-the-bmc-accepted",
    "after-the-bmc-accepted",
    "rebooting",
    "read-back",
    "window-closed",
    "verdict-written",
    "before-the-next-wave",
    "while-halting",
)
REBOOT = timedelta(minutes=5)
KIND, OLD, NEW = "bmc", "1.0", "2.0"


def bmcs() -> redis.Redis:
    return redis.Redis.from_url(os.environ["DEADLY_REDIS_URL"], decode_responses=True)


def point_of(machine: str) -> str:
    """Machines are named after the point that their rollout dies at: `leased/03`."""
    return machine.rpartition("/")[0]


def die(point: str, wanted: str) -> None:
    """Kill the worker and all its processes, as `kill -9` does; at each point once."""
    if point == wanted and bmcs().hsetnx("killed", point, os.getpid()):
        os.killpg(os.getpgrp(), signal.SIGKILL)
        signal.pause()  # nothing more is done while the signal is under way


class RedisFleet:
    """Machines that take orders by key, reboot for five minutes, and count what was written."""

    def __init__(self) -> None:
        self.store = bmcs()

    # --- installer

    def apply(
        self, machine: str, step: Step, targets: Sequence[Target], *, key: str, now: datetime
    ) -> Progress:
        point = point_of(machine)
        if step is Step.ACTIVATE:
            die(point, "before-the-bmc-accepted")
        if self.store.hsetnx("orders", key, machine) and step is Step.ACTIVATE:
            self.store.rpush("flashed", machine)
            self.store.hset("boots", machine, now.isoformat())
            if point != "while-halting":
                self.store.hset("versions", machine, targets[0].version)
            die(point, "after-the-bmc-accepted")
        return Progress(Phase.DONE)

    def progress(self, machine: str, *, key: str, now: datetime) -> Progress:
        return Progress(Phase.DONE if self.store.hexists("orders", key) else Phase.UNKNOWN)

    def read_versions(self, machine: str, *, now: datetime) -> Sequence[Reading]:
        booted = self.store.hget("boots", machine)
        point = point_of(machine)
        if booted and now < datetime.fromisoformat(booted) + REBOOT:
            die(point, "rebooting")
            return ()
        if booted:
            die(point, "read-back")
        version = self.store.hget("versions", machine) or OLD
        return [Reading(KIND, "", version, "bmc", f"boot {booted}")]

    def snapshot(self, machine: str, *, now: datetime) -> Snapshot:
        return Snapshot(("gpu1",), ("Temp_GPU1",))

    # --- scheduler

    def drain(self, machine: str, *, reason: str, now: datetime) -> Occupancy:
        die(point_of(machine), "leased")
        return Occupancy(is_idle=True)

    def release(self, machine: str, *, reason: str, now: datetime) -> None:
        return None

    def jobs(self, *, now: datetime) -> Sequence[RunningJob] | None:
        return None


# --- points inside the product --------------------------------------------------------------


def after(owner: Any, name: str, kill: Callable[..., None]) -> None:
    """Call `kill` with what the function returned and was given, once it has returned."""
    plain = getattr(owner, name)

    @wraps(plain)
    def call(*args: Any, **words: Any) -> Any:
        result = plain(*args, **words)
        kill(result, *args, **words)
        return result

    setattr(owner, name, call)


def before(owner: Any, name: str, kill: Callable[..., None]) -> None:
    plain = getattr(owner, name)

    @wraps(plain)
    def call(*args: Any, **words: Any) -> Any:
        kill(*args, **words)
        return plain(*args, **words)

    setattr(owner, name, call)


def arm() -> None:
    """Set the traps of this process."""
    after(pipeline.course, "start_wave", lambda _, wave, **__: die(wave.rollout.name, "planned"))
    before(
        pipeline,
        "run_cycle",
        lambda wave, as_of, **_: (
            wave.window_end is not None
            and as_of >= wave.window_end
            and die(wave.rollout.name, "window-closed")
        ),
    )
    after(
        pipeline,
        "run_cycle",
        lambda decision, wave, **_: (
            decision.kind == DecisionKind.WIDEN and die(wave.rollout.name, "verdict-written")
        ),
    )
    after(
        pipeline,
        "move_wave",
        lambda _, wave, trigger, **__: (
            trigger == WaveTrigger.WIDEN and die(wave.rollout.name, "before-the-next-wave")
        ),
    )
    before(starts, "call_off_waiting", lambda rollout, **_: die(rollout.name, "while-halting"))


if os.environ.get("DEADLY") == "1":
    assert tasks.pipeline is pipeline
    arm()
