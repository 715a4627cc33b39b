"""Stand-ins behind the adapters' protocols, and a driver that walks the clock without a broker."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from fleet.adapters import Phase, Progress, Reading, Target
from rollouts import selectors, tasks
from rollouts.models import Rollout
from tests.factories import NOW


class FakeFleet:
    """Machines that answer as told: an installer and a scheduler in one.

    `behaviour` maps a machine to what it does with an order: `ok`, `reject`, `fail`, `lie`
    (says done, runs the old version), `vanish` (never answers again), `no_boot` (never reboots),
    `half` (takes the first image only), `busy` (its job never ends).
    """

    def __init__(self) -> None:
        self.versions: dict[str, dict[str, str]] = {}
        self.boots: dict[str, int] = {}
        self.orders: dict[str, tuple[str, list[Target]]] = {}
        self.flashed: list[str] = []
        self.behaviour: dict[str, str] = {}
        self.drained: set[str] = set()
        self.spelling: dict[str, str] = {}  # how a witness spells a version

    def of(self, machine: str) -> str:
        return self.behaviour.get(machine, "ok")

    def add(self, machines: Sequence[str], **versions: str) -> None:
        for machine in machines:
            self.versions[machine] = dict(versions)
            self.boots[machine] = 1

    # --- installer

    def apply(
        self, machine: str, targets: Sequence[Target], *, key: str, now: datetime
    ) -> Progress:
        if self.of(machine) == "reject":
            return Progress(Phase.REJECTED, "signature refused")
        if key not in self.orders:
            self.orders[key] = (machine, list(targets))
            self._flash(machine, targets)
        return Progress(Phase.ACTIVATING)

    def _flash(self, machine: str, targets: Sequence[Target]) -> None:
        self.flashed.append(machine)
        taken = {"half": list(targets)[:1], "lie": [], "fail": [], "vanish": []}
        for target in taken.get(self.of(machine), list(targets)):
            for part in self.versions[machine]:
                kind, _, slot = part.partition("/")
                if kind == target.kind and target.slot in ("", slot):
                    self.versions[machine][part] = target.version
        if self.of(machine) != "no_boot":
            self.boots[machine] += 1

    def progress(self, machine: str, *, key: str, now: datetime) -> Progress:
        if self.of(machine) == "fail":
            return Progress(Phase.FAILED, "flash write error")
        return Progress(Phase.DONE)

    def read_versions(self, machine: str, *, now: datetime) -> Sequence[Reading]:
        if self.of(machine) == "vanish" and machine in self.flashed:
            return ()
        boot = f"{machine}-boot-{self.boots[machine]}"
        return [
            Reading(
                kind=part.partition("/")[0],
                slot=part.partition("/")[2],
                version=self.spelling.get(version, version),
                witness="bmc",
                boot_id=boot,
            )
            for part, version in self.versions[machine].items()
        ]

    # --- scheduler

    def drain(self, machine: str, *, reason: str, now: datetime) -> None:
        self.drained.add(machine)

    def is_idle(self, machine: str, *, now: datetime) -> bool:
        return self.of(machine) != "busy"

    def release(self, machine: str, *, reason: str, now: datetime) -> None:
        self.drained.discard(machine)


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
