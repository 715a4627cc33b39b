"""Workers that die anywhere on a machine's way back: a sweep later all is true, nothing twice."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as site

from fleet import services, tasks
from fleet.adapters.webhook import Answer
from fleet.errors import FleetError
from fleet.models import (
    Cordon,
    Evidence,
    Gate,
    Machine,
    PartSwap,
    Repair,
    SchedulerWord,
    StateChange,
    TicketLink,
)
from fleet.services.evidence import StoredFile
from tests.factories import NOW, make_fault_report, make_machines, make_user, passing_value
from tests.fleet.repairs_world import by, gpu
from tests.rollouts.fakes import FakeFleet
from tests.rollouts.kills import Killed, Reaper

HOUR = timedelta(hours=1)
SECRET = b"k" * 32


class Walk:
    """One machine from its fault to its release; whatever dies is begun again."""

    def __init__(self, monkeypatch: Any, reaper: Reaper) -> None:
        self.now = NOW
        self.reaper = reaper
        self.fake = FakeFleet()
        self.posted: list[tuple[str, bytes]] = []
        monkeypatch.setattr("fleet.clock.now", lambda: self.now)
        monkeypatch.setattr("fleet.clock.steady_time", lambda: self.now)
        for door in ("installer", "scheduler"):
            monkeypatch.setattr(f"fleet.adapters.{door}", lambda: self.fake)
        monkeypatch.setattr(site, "TAKE_OUT", True)
        monkeypatch.setattr(site, "TICKET_SYSTEMS", {"dcim": "https://tickets.example/hook"})
        monkeypatch.setattr(site, "TICKET_SECRETS", {"dcim": SECRET})
        monkeypatch.setattr(
            "fleet.adapters.webhook.checked_target", lambda address, *, rules: address
        )
        self.ann, self.bob = make_user("ann"), make_user("bob")
        names = [f"m{number}" for number in range(6)]
        self.fake.add(names, **{"bmc": "4.1", "gpu/3": "96.0"})
        self.machine, *_ = machines = make_machines(6, names=names, versions={"bmc": "4.1"})
        for one in machines:
            one.components.create(kind="gpu", slot="3", model="h100", serial=f"S-{one.name}")
            read = self.fake.read_versions(one.name, now=NOW)
            services.record_readings(one, read, now=NOW, evidence={})

    def post(self, target: Any, *, body: bytes, headers: Any) -> Answer:
        """A ticket system that takes what it is told; the worker may die right after that."""
        self.posted.append((headers["webhook-id"], body))
        self.reaper.visit((f"told {headers['webhook-id']}",))
        return Answer(200, {"ticket": "T-1"})

    def until_done(self, call: Callable[[], Any]) -> Any:
        """Do it again and again until nobody dies of it; who is refused did it the time before."""
        for _ in range(200):
            result: Any = Killed
            with self.reaper.watching():
                try:
                    result = call()
                except FleetError as error:
                    result = error
            if result is not Killed:
                return result
            run_out()
        raise AssertionError("it dies for ever")

    def sweep(self) -> None:
        for task in (tasks.watch, tasks.tell_scheduler, tasks.follow_up, tasks.follow_gates):
            self.until_done(task)
        self.until_done(lambda: services.tell_tickets(post=self.post))

    def do(self, call: Callable[..., Any], *args: Any, **said: Any) -> None:
        self.until_done(lambda: call(*args, now=self.now, **said))
        self.now += timedelta(minutes=6)
        self.sweep()
        self.machine.refresh_from_db()

    @property
    def gate(self) -> Gate:
        return self.machine.gates.latest("pk")

    def run_checks(self) -> None:
        for check in self.gate.checks.exclude(rule__has_key="computed"):
            outcome = services.Outcome(passing_value(check.rule), check.unit, reference="log")
            self.do(services.report_result, check, outcome, actor="bench")


def run_out() -> None:
    """Let the leases of the dead worker be over."""
    for model in (TicketLink, SchedulerWord):
        model.objects.exclude(leased_until=None).update(leased_until=None, lease_token="")


@pytest.mark.django_db
def test_a_machine_comes_back_once_whatever_dies_on_its_way(monkeypatch):
    walk = Walk(monkeypatch, reaper := Reaper())
    file = StoredFile("dcgm.log", "text/plain", 3, "0" * 64)
    report = [make_fault_report(walk.machine, signature="xid.79")]
    worker = by(walk.ann)

    walk.do(services.record, report, source="host", key="k")
    walk.do(services.order_repair, walk.machine, kind="gpu_swap", actor="ann", user=walk.ann)
    repair = Repair.objects.get()
    walk.do(services.start_repair, repair, **worker)
    walk.do(services.close_repair, repair, **worker, swaps=[gpu("S-m0", "N-1")], evidence=[file])
    gate = walk.gate
    walk.do(services.reserve_partner, gate, actor="ann")
    walk.run_checks()
    walk.now = max(walk.now, walk.gate.observe_until or walk.now)
    walk.sweep()
    walk.run_checks()
    walk.do(services.review_gate, walk.gate, is_accepted=True, user=walk.bob, reason="seen")

    machine = Machine.objects.get(pk=walk.machine.pk)
    assert (machine.state, machine.may_take_work) == ("in_service", True)
    assert len(reaper.points) > 60
    moves = Counter(machine.state_changes.values_list("trigger", flat=True))
    assert set(moves.values()) == {1}, moves
    assert (machine.gates.get(), Repair.objects.get()) == (gate, repair)
    assert (PartSwap.objects.count(), Evidence.objects.count()) == (1, 1)
    results = gate.checks.values_list("name", "results__is_passed", "results__source_key")
    assert len(set(results)) == len(results)
    assert not Cordon.objects.filter(lifted_at=None).exists()
    release = StateChange.objects.get(machine=machine, trigger="release")
    assert release.gate_record.status == "passed"
    told = {name: {body for own, body in walk.posted if own == name} for name, _ in walk.posted}
    assert all(len(bodies) == 1 for bodies in told.values())
    assert not TicketLink.objects.exclude(told=repair.events.filter(
        kind__in=services.repairs.TOLD).latest("pk").pk).exists()  # fmt: skip
