"""Doors to the outside: what the product asks of installers, schedulers and collectors.

Each is a `Protocol` of a few methods, chosen by a dotted path in the settings
(`INSTALLER`, `SCHEDULER`, `COLLECTOR`, `PROBER`, `EVIDENCE_STORE`). An adapter may block on the
network, so it is never called inside a database transaction; it gives up by itself within some
seconds. When its system does not answer it raises `OSError` (a `ConnectionError`, a
`TimeoutError`) or `fleet.errors.AdapterFailed`, and will be asked again: every method can be
repeated.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, BinaryIO, Protocol, cast

from django.conf import settings
from django.utils.module_loading import import_string


class Phase(StrEnum):
    """How far an installer has come with one step.

    `busy` has not taken it yet; `unknown` has never been asked for it.
    """

    STAGING = "staging"
    ACTIVATING = "activating"
    AWAITING_REBOOT = "awaiting_reboot"
    DONE = "done"
    BUSY = "busy"
    REJECTED = "rejected"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"


class Step(StrEnum):
    """What is asked of an installer, image by image; see `Installer.apply`."""

    STAGE = "stage"
    ACTIVATE = "activate"
    COMMIT = "commit"


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


@dataclass(frozen=True)
class Snapshot:
    """What a BMC shows of itself: whether its telemetry can be compared with that of before."""

    inventory: tuple[str, ...] = ()
    sensors: tuple[str, ...] = ()
    clock_skew_seconds: float = 0.0
    can_log_in: bool = True


@dataclass(frozen=True)
class Occupancy:
    """What runs on a machine that is being drained, and until when by the scheduler's forecast.

    `drained_by` says who else has drained it and why; such a machine is left alone.
    """

    is_idle: bool
    job: str = ""
    owner: str = ""
    until: datetime | None = None
    drained_by: str = ""


@dataclass(frozen=True)
class ForeignDrain:
    """A machine that somebody else drained at the scheduler: by its node's name, whose, and why."""

    machine: str
    owner: str = ""
    reason: str = ""
    since: datetime | None = None


class Installer(Protocol):
    """Writes firmware step by step. `key` names a step's order: repeating it never does it twice.

    `stage` takes one image and is done once it is written; `activate` takes all images that share
    the activation; `commit` makes one lasting, and is done at once where there is nothing to do.
    """

    def apply(
        self, machine: str, step: Step, targets: Sequence[Target], *, key: str, now: datetime
    ) -> Progress: ...

    def progress(self, machine: str, *, key: str, now: datetime) -> Progress: ...

    def read_versions(self, machine: str, *, now: datetime) -> Sequence[Reading]:
        """Read what is staged and what runs; empty means that the machine does not answer."""
        ...

    def snapshot(self, machine: str, *, now: datetime) -> Snapshot: ...


class Scheduler(Protocol):
    """Keeps work away from a machine, under our own reason; never lifts another's.

    Where a second drain would take the place of the first, as Slurm's does, `drain` leaves a
    machine alone that somebody else has drained, and says `drained_by`.
    """

    def drain(self, machine: str, *, reason: str, now: datetime) -> Occupancy: ...

    def release(self, machine: str, *, reason: str, now: datetime) -> None: ...

    def jobs(self, *, now: datetime) -> Sequence[RunningJob] | None:
        """Return every job that runs; None if the scheduler cannot tell."""
        ...


class JobPlacement(Protocol):
    """What some schedulers can besides: keep each job on machines of one group (a feature)."""

    def keep_apart(
        self, groups: Mapping[str, Sequence[str]], *, reason: str, now: datetime
    ) -> None:
        """Place no new job over two of these groups, nor over one and the rest of the fleet.

        Under our own reason, in place of what was said under it before; no groups lift it.
        """
        ...


class JobReservation(Protocol):
    """What some schedulers can besides: reserve machines for the jobs that ask for them by name."""

    def reserve(
        self, machines: Sequence[str], *, name: str, start: datetime, end: datetime
    ) -> None:
        """Place no job over these machines and others; in place of what the name held before.

        No machines end the reservation; by itself it ends at `end`.
        """
        ...


class DrainListing(Protocol):
    """What some schedulers can besides: list every drain that was not set through `drain`."""

    def foreign_drains(self, *, now: datetime) -> Sequence[ForeignDrain]: ...


@dataclass(frozen=True)
class Probed:
    """What one machine did in one node probe: work per time, relative to nominal."""

    machine: str
    start: datetime
    end: datetime
    throughput: float
    boot_id: str = ""


class Prober(Protocol):
    """Runs a fixed compute, memory and loopback test on single machines that no job uses."""

    def probe(
        self, machines: Sequence[str], *, key: str, begun: datetime, now: datetime
    ) -> Sequence[Probed]:
        """Begin the probe of `key` on these machines unless it has begun; return what is measured.

        It ends at most three minutes after `begun`, gives way to any job, and leaves out a
        machine that is at work. Machines come in the order of their names: who is compared with
        whom, the prober is not told.
        """
        ...


class Collector(Protocol):
    """Fetches what machines report over an interval."""

    def fetch(self, *, since: datetime, until: datetime) -> Sequence[Report]: ...


class EvidenceStore(Protocol):
    """Keeps files by the digest of their content; what is kept is never changed."""

    def keep(self, chunks: Iterable[bytes]) -> tuple[str, int]:
        """Return SHA-256 and size of what was written; what `chunks` raises leaves nothing."""
        ...

    def open(self, sha256: str) -> BinaryIO:
        """Open for reading; `FileNotFoundError` if it is not there."""
        ...

    def sweep(
        self, *, older_than: timedelta, needed: Callable[[Collection[str]], Collection[str]]
    ) -> int:
        """Remove what was begun and never finished, and what `needed` does not return."""
        ...


@dataclass(frozen=True)
class Arm:
    """One machine's place in an open rollout: `bundle` is what it is to run because of it.

    Without a bundle it stays on what it ran, and `new` names what it is not to run yet.
    """

    rollout: int
    name: str
    arm: str
    new: int
    bundle: int | None
    kinds: frozenset[str]
    is_compared: bool


class OpenArms(Protocol):
    """What the fleet may ask of the rollouts that are open, without knowing them."""

    def of(self, machine: int) -> Sequence[Arm]:
        """Return the machine's places in open rollouts, the newest rollout first."""
        ...

    def at(self, machine: int, time: datetime) -> Sequence[Arm]:
        """Return the machine's places in the rollouts that were open at a time, newest first."""
        ...

    def canaries(self) -> Any:
        """Return a query for the keys of the machines that open rollouts have treated."""
        ...


def open_arms() -> OpenArms | None:
    """Return the reader of open rollouts that the settings name; None where they name none."""
    named = getattr(settings, "OPEN_ARMS", "")
    return import_string(named)() if named else None


def installer() -> Installer:
    """Return the installer that the settings name."""
    return import_string(settings.INSTALLER)()


def scheduler() -> Scheduler:
    """Return the scheduler that the settings name."""
    return import_string(settings.SCHEDULER)()


def job_placement() -> JobPlacement | None:
    """Return the scheduler as one that keeps jobs apart; None where it cannot."""
    found = scheduler()
    return cast(JobPlacement, found) if hasattr(found, "keep_apart") else None


def job_reservation() -> JobReservation | None:
    """Return the scheduler as one that reserves machines by name; None where it cannot."""
    found = scheduler()
    return cast(JobReservation, found) if hasattr(found, "reserve") else None


def drain_listing() -> DrainListing | None:
    """Return the scheduler as one that lists the drains of others; None where it cannot."""
    found = scheduler()
    return cast(DrainListing, found) if hasattr(found, "foreign_drains") else None


def prober() -> Prober | None:
    """Return the prober that the settings name; None where they name none."""
    return import_string(settings.PROBER)() if settings.PROBER else None


def collector() -> Collector:
    """Return the collector that the settings name."""
    return import_string(settings.COLLECTOR)()


def evidence_store() -> EvidenceStore:
    """Return the store of evidence that the settings name."""
    return import_string(settings.EVIDENCE_STORE)()
