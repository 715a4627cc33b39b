"""Stand-ins behind the adapters' protocols, and a driver that walks the clock without a broker."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from fleet.adapters import (
    ForeignDrain,
    Occupancy,
    Phase,
    Progress,
    Reading,
    RunningJob,
    Snapshot,
    Step,
    Target,
)
from rollouts import selectors, tasks
from rollouts.models import Rollout
from tests.factories import NOW


class FakeFleet:
    """Machines that answer as told: an installer and a scheduler in one.

    `behaviour` maps a machine to what it does with an order: `ok`, `reject` (refuses the image),
    `unwritable` (the writing fails), `occupied` (its BMC is busy for ever), `fail` (the activation
    fails), `lie` (says done, runs the old version), `vanish` (never answers again), `no_boot`
    (never reboots), `half` (activates the first image only), `half_once` (the same, the first time
    only), `disputed` (its host reads the old version), `lost_bmc` (its BMC falls silent), `busy`
    (its job never ends).
    """

    def __init__(self) -> None:
        self.versions: dict[str, dict[str, str]] = {}
        self.before: dict[str, dict[str, str]] = {}  # what ran before the last activation
        self.staged: dict[str, dict[str, str]] = {}
        self.boots: dict[str, int] = {}
        self.orders: dict[str, tuple[str, list[Target]]] = {}
        self.steps: list[tuple[str, str, tuple[str, ...]]] = []  # machine, step, kinds
        self.flashed: list[str] = []
        self.behaviour: dict[str, str] = {}
        self.drained: set[str] = set()
        self.reserved: dict[str, tuple[list[str], datetime, datetime]] = {}
        self.apart: dict[str, dict[str, list[str]]] = {}
        self.spelling: dict[str, str] = {}  # how a witness spells a version
        self.witnesses: tuple[str, ...] = ("bmc",)
        self.work: dict[str, Occupancy] = {}  # what runs on a machine until the test ends it
        self.shown: dict[str, Snapshot] = {}  # what a BMC shows of itself
        self.foreign: dict[str, ForeignDrain] = {}  # what others drained at the scheduler

    def of(self, machine: str) -> str:
        return self.behaviour.get(machine, "ok")

    def add(self, machines: Sequence[str], **versions: str) -> None:
        for machine in machines:
            self.versions[machine] = dict(versions)
            self.boots[machine] = 1

    # --- installer

    def apply(
        self, machine: str, step: Step, targets: Sequence[Target], *, key: str, now: datetime
    ) -> Progress:
        refusal = _REFUSALS.get((self.of(machine), step))
        if refusal is not None:
            return refusal
        if key not in self.orders:
            self.orders[key] = (machine, list(targets))
            self.steps.append((machine, step.value, tuple(target.kind for target in targets)))
            if step is Step.STAGE:
                self._write(machine, targets)
            elif step is Step.ACTIVATE:
                self._flash(machine, targets)
        return Progress(Phase.DONE)

    def _write(self, machine: str, targets: Sequence[Target]) -> None:
        for part, version in _parts(self.versions[machine], targets):
            self.staged.setdefault(machine, {})[part] = version

    def _flash(self, machine: str, targets: Sequence[Target]) -> None:
        how = self.of(machine)
        self.flashed.append(machine)
        self.before[machine] = dict(self.versions[machine])
        taken = {"half": targets[:1], "half_once": targets[:1], "lie": (), "vanish": ()}
        for part, version in _parts(self.versions[machine], taken.get(how, targets)):
            self.versions[machine][part] = version
            self.staged.get(machine, {}).pop(part, None)
        if how == "half_once":
            del self.behaviour[machine]
        if how != "no_boot":
            self.boots[machine] += 1

    def progress(self, machine: str, *, key: str, now: datetime) -> Progress:
        return Progress(Phase.DONE if key in self.orders else Phase.UNKNOWN)

    def read_versions(self, machine: str, *, now: datetime) -> Sequence[Reading]:
        if self.of(machine) == "vanish" and machine in self.flashed:
            return ()
        return [
            self._reading(machine, part, version, witness=witness, stage=stage)
            for stage, held in (("active", self.versions), ("staged", self.staged))
            for part, version in held.get(machine, {}).items()
            for witness in (self.witnesses if stage == "active" else ("bmc",))
            if not self._is_silent(machine, witness)
        ]

    def _is_silent(self, machine: str, witness: str) -> bool:
        return self.of(machine) == "lost_bmc" and machine in self.flashed and witness == "bmc"

    def _reading(
        self, machine: str, part: str, version: str, *, witness: str, stage: str
    ) -> Reading:
        if self.of(machine) == "disputed" and witness == "host":
            version = self.before.get(machine, self.versions[machine])[part]
        kind, _, slot = part.partition("/")
        boot = f"{machine}-boot-{self.boots[machine]}"
        spelt = self.spelling.get(version, version)
        return Reading(kind, slot, spelt, witness, boot, stage)

    def snapshot(self, machine: str, *, now: datetime) -> Snapshot:
        return self.shown.get(machine, Snapshot(("gpu1",), ("Temp_GPU1", "Fan1")))

    # --- scheduler

    def drain(self, machine: str, *, reason: str, now: datetime) -> Occupancy:
        if held := self.foreign.get(machine):
            return Occupancy(is_idle=False, drained_by=f"{held.owner}: {held.reason}")
        self.drained.add(machine)
        if self.of(machine) == "busy":
            return Occupancy(is_idle=False, job="endless")
        work = self.work.get(machine)
        return work if work and (work.until is None or work.until > now) else Occupancy(True)

    def release(self, machine: str, *, reason: str, now: datetime) -> None:
        self.drained.discard(machine)

    def foreign_drains(self, *, now: datetime) -> Sequence[ForeignDrain]:
        return list(self.foreign.values())

    def reserve(
        self, machines: Sequence[str], *, name: str, start: datetime, end: datetime
    ) -> None:
        self.reserved[name] = (list(machines), start, end)

    def keep_apart(
        self, groups: Mapping[str, Sequence[str]], *, reason: str, now: datetime
    ) -> None:
        self.apart[reason] = {group: list(names) for group, names in groups.items()}

    def jobs(self, *, now: datetime) -> Sequence[RunningJob] | None:
        return None


_REFUSALS = {
    ("reject", Step.STAGE): Progress(Phase.REJECTED, "signature refused"),
    ("unwritable", Step.STAGE): Progress(Phase.FAILED, "flash write error"),
    ("occupied", Step.STAGE): Progress(Phase.BUSY, "another update is running"),
    ("fail", Step.ACTIVATE): Progress(Phase.FAILED, "the new image does not start"),
}


def _parts(present: dict[str, str], targets: Sequence[Target]) -> list[tuple[str, str]]:
    """Return which parts of a machine the targets concern, each with its new version."""
    return [
        (part, target.version)
        for target in targets
        for part in present
        if part.partition("/")[0] == target.kind and target.slot in ("", part.partition("/")[2])
    ]


class Driver:
    """Steps a clock from one due instant to the next and does the tasks' work in this process."""

    def __init__(self, monkeypatch: "object", *, now: datetime = NOW) -> None:
        self.now = now
        monkeypatch.setattr(tasks.clock, "now", lambda: self.now)

    def settle(self) -> None:
        """Do everything that is due at this instant."""
        for _ in range(200):
            rollouts = selectors.due_rollouts(self.now)
            attempts = selectors.due_attempts(self.now)
            if not rollouts and not attempts:
                return
            for rollout in rollouts:
                tasks.evaluate(rollout)
            if attempts:
                tasks.install(attempts)
        raise AssertionError(f"work is due for ever at {self.now}: {rollouts} {attempts}")

    def run(self, rollout: Rollout, *, until: str = "", hours: float = 24.0 * 60) -> Rollout:
        """Go on until the rollout has that status, nothing is due, or the time is over."""
        end = self.now + timedelta(hours=hours)
        while True:
            self.settle()
            rollout.refresh_from_db()
            due = selectors.next_due_at()
            if rollout.status == until or due is None or due > end:
                return rollout
            self.now = max(due, self.now)
