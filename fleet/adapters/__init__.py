"""Doors to the outside: what the product asks of installers, schedulers and collectors.

Each is a `Protocol` of one to three methods, chosen by a dotted path in the settings
(`INSTALLER`, `SCHEDULER`, `COLLECTOR`). An adapter may block on the network, so it is never
called inside a database transaction; it gives up by itself within some seconds. When its system
does not answer it raises `OSError` (a `ConnectionError`, a `TimeoutError`) or
`fleet.errors.AdapterFailed`, and will be asked again: every method can be repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from django.conf import settings
from django.utils.module_loading import import_string


class Phase(StrEnum):
    """How far an installer has come with one order."""

    STAGING = "staging"
    ACTIVATING = "activating"
    AWAITING_REBOOT = "awaiting_reboot"
    DONE = "done"
    REJECTED = "rejected"
    FAILED = "failed"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True)
class Target:
    """One image to install: the component's kind, the wanted version, and how it activates.

    `slot` names one part of the kind; empty means all of them.
    """

    kind: str
    version: str
    activation: str = "reboot"
    slot: str = ""


@dataclass(frozen=True)
class Progress:
    """What an installer says; never proof of success."""

    phase: Phase
    detail: str = ""


@dataclass(frozen=True)
class Reading:
    """One version read back from a machine, by one witness (`bmc` or `host`)."""

    kind: str
    slot: str
    version: str
    witness: str
    boot_id: str
    stage: str = "active"


@dataclass(frozen=True)
class Report:
    """One telemetry record as a mapping of the API's own fields (see `fleet.services.record`)."""

    kind: str
    fields: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class RunningJob:
    """One job that runs now, by the scheduler: where, whose, and when it is expected to end."""

    name: str
    machines: Sequence[str]
    kind: str = ""
    owner: str = ""
    partition: str = ""
    started_at: datetime | None = None
    expected_end: datetime | None = None


class Installer(Protocol):
    """Writes firmware. `key` names the order: repeating it never flashes twice."""

    def apply(
        self, machine: str, targets: Sequence[Target], *, key: str, now: datetime
    ) -> Progress: ...

    def progress(self, machine: str, *, key: str, now: datetime) -> Progress: ...

    def read_versions(self, machine: str, *, now: datetime) -> Sequence[Reading]:
        """Read the versions that run; an empty answer means that the machine does not answer."""
        ...


class Scheduler(Protocol):
    """Keeps work away from a machine, under our own reason; never lifts another's."""

    def drain(self, machine: str, *, reason: str, now: datetime) -> None: ...

    def is_idle(self, machine: str, *, now: datetime) -> bool: ...

    def release(self, machine: str, *, reason: str, now: datetime) -> None: ...


class Collector(Protocol):
    """Fetches what machines report over an interval."""

    def fetch(self, *, since: datetime, until: datetime) -> Sequence[Report]: ...


def installer() -> Installer:
    """Return the installer that the settings name."""
    return import_string(settings.INSTALLER)()


def scheduler() -> Scheduler:
    """Return the scheduler that the settings name."""
    return import_string(settings.SCHEDULER)()


def collector() -> Collector:
    """Return the collector that the settings name."""
    return import_string(settings.COLLECTOR)()
