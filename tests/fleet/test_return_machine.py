"""Faults, repairs, gates, cordons, people, tickets and leaps of the clock, in any order.

After every step the invariants hold. What a rule does is a person's or a worker's step through the
product's own doors; what it may be refused, it is refused by a named error. At the end every
machine can still be brought back to service, or retired.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest
from django.conf import settings as site
from django.db import transaction
from django.db.models import Model, Q
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from fleet import services, tasks
from fleet.adapters import Report
from fleet.errors import FleetError
from fleet.lifecycle import AT_THE_GATE, STATES, TRANSITIONS, State, Trigger
from fleet.models import (
    BreakGlass,
    CheckResult,
    Component,
    Cordon,
    Evidence,
    Fault,
    Gate,
    GateCheck,
    GateEvent,
    HandOver,
    Incident,
    IncidentEvent,
    IncidentFault,
    Machine,
    Notice,
    PartSwap,
    Repair,
    RepairEvent,
    RoleTeam,
    StateChange,
    TakeOut,
    Team,
    TicketReceipt,
)
from fleet.repair.gating import UNFINISHED
from fleet.services.tickets import Said
from tests.factories import NOW, make_machines, make_user, passing_value
from tests.fleet.repairs_world import by, gpu
from tests.rollouts.fakes import FakeFleet

RECORDS: tuple[type[Model], ...] = (
    CheckResult,
    Evidence,
    Fault,
    GateEvent,
    HandOver,
    IncidentEvent,
    IncidentFault,
    PartSwap,
    RepairEvent,
    StateChange,
    TicketReceipt,
)
PRESENT: tuple[type[Model], ...] = (BreakGlass, Cordon, Gate, Machine, Repair, TakeOut)
NAMES = [f"m{number:02}" for number in range(10)]
#: Few machines meet often; the others are what the breaker counts.
FOCUS = NAMES[:2]
SIGNATURES = ("xid.79", "xid.79", "xid.48", "xid.13", "new.kind")
KINDS = ("gpu_swap", "gpu_reset", "thermal", "numerical", "host_part_swap")
SWEEPS = (tasks.watch, tasks.tell_scheduler, tasks.follow_up, tasks.follow_gates)

names = st.sampled_from(FOCUS)
rarely = st.integers(0, 5).map(lambda number: number == 0)


class Return(RuleBasedStateMachine):
    """A few machines, the people who repair, check and review them, and one ticket system."""

    monkeypatch: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        self.block = transaction.atomic()
        self.block.__enter__()
        self.now = NOW
        self.monkeypatch.setattr("fleet.clock.now", lambda: self.now)
        self.monkeypatch.setattr("fleet.clock.steady_time", lambda: self.now)
        self.monkeypatch.setattr(site, "TAKE_OUT", True)
        self.fake = FakeFleet()
        self.monkeypatch.setattr("fleet.adapters.installer", lambda: self.fake)
        self.monkeypatch.setattr("fleet.adapters.scheduler", lambda: self.fake)
        self.ann, self.bob, self.eve = (make_user(name) for name in ("ann", "bob", "eve"))
        self.people = (self.ann, self.bob, self.eve)
        self.batches: list[tuple[str, list[Report]]] = []
        self.messages: list[tuple[str, Said]] = []
        self.seen: dict[type[Model], dict[int, tuple[Any, ...]]] = {one: {} for one in RECORDS}
        self.serial = 0

    def teardown(self) -> None:
        try:
            self.ends()
        finally:
            transaction.set_rollback(True)
            self.block.__exit__(None, None, None)

    def order(self, call: Callable[..., Any], *args: Any, **words: Any) -> Any:
        """Give an order; a refusal has to be a named one, and leaves nothing behind."""
        try:
            with transaction.atomic():
                return call(*args, **words, now=self.now)
        except FleetError:
            return None

    @initialize(has_teams=st.booleans())
    def register(self, has_teams: bool) -> None:
        machines = make_machines(len(NAMES), names=NAMES, pool="train", versions={"bmc": "4.1"})
        Component.objects.bulk_create(
            Component(machine=one, kind="gpu", slot="3", model="h100", serial=f"S-{one.name}")
            for one in machines
        )
        self.fake.add(NAMES, **{"bmc": "4.1", "gpu/3": "96.0"})
        for machine in machines:
            read = self.fake.read_versions(machine.name, now=NOW)
            services.record_readings(machine, read, now=NOW, evidence={})
        if has_teams:
            for role, people in (("triage", [self.ann, self.eve]), ("data_centre", [self.ann])):
                team = Team.objects.create(name=role)
                team.members.set(people)
                RoleTeam.objects.update_or_create(
                    role=role, site="", pool="", defaults={"team": team}
                )

    # --- what machines tell --------------------------------------------------------------------

    @rule(
        name=names,
        signature=st.sampled_from(SIGNATURES),
        age=st.sampled_from([0, 0, 0, 1, 5, 60, 600, 6000]),
    )
    def report_fault(self, name: str, signature: str, age: int) -> None:
        """A fault of now, or one that is told minutes or days late."""
        at = self.now - timedelta(minutes=age)
        fault = {"machine": name, "time": at, "signature": signature, "severity": "critical"}
        reports = [Report("fault", fault)]
        key = f"batch {len(self.batches)}"
        self.batches.append((key, reports))
        services.record(reports, source="host", key=key, now=self.now)

    @rule(data=st.data(), has_new_key=st.booleans())
    def replay(self, data: st.DataObject, has_new_key: bool) -> None:
        """What was told before is told again: nothing at all changes, also after the sweeps."""
        if not self.batches:
            return
        self.sweep_all()
        before = self.everything()
        key, reports = data.draw(st.sampled_from(self.batches))
        key = f"{key} again {self.now.isoformat()}" if has_new_key else key
        services.record(reports, source="host", key=key, now=self.now)
        self.sweep_all()
        assert self.everything() == before

    @rule(name=names, days=st.integers(2, 60))
    def tell_what_is_long_over(self, name: str, days: int) -> None:
        """A fault of days before the machine last moved is recorded, and moves nothing."""
        self.sweep_all()
        machine = Machine.objects.get(name=name)
        at = min(self.oldest_of_interest(machine), self.now) - timedelta(days=days)
        before = self.present_of(machine)
        self.report_fault_at(name, at)
        self.sweep_all()
        assert self.present_of(machine) == before

    def oldest_of_interest(self, machine: Machine) -> datetime:
        changes = StateChange.objects.filter(machine=machine).order_by("-pk")[:12]
        return min([one.at for one in changes], default=NOW)

    def report_fault_at(self, name: str, at: datetime) -> None:
        fault = {"machine": name, "time": at, "signature": "xid.79"}
        key = f"late {len(self.batches)}"
        self.batches.append((key, [Report("fault", fault)]))
        services.record(self.batches[-1][1], source="host", key=key, now=self.now)

    def present_of(self, machine: Machine) -> list[Any]:
        fresh = Machine.objects.get(pk=machine.pk)
        return [
            (fresh.state, fresh.may_take_work, fresh.watch_until),
            list(machine.gates.order_by("pk").values_list("pk", "status")),
            list(machine.repairs.order_by("pk").values_list("pk", "status", "ineffective_since")),
            list(machine.take_outs.order_by("pk").values_list("pk", "ended_at")),
        ]

    # --- out of work ---------------------------------------------------------------------------

    @rule(name=names, at_once=st.booleans())
    def take_out(self, name: str, at_once: bool) -> None:
        machine = Machine.objects.get(name=name)
        self.order(services.take_out, machine, actor="ann", reason="noise", at_once=at_once)

    @rule(name=st.sampled_from(NAMES[:3]), owner=st.sampled_from(["ann", "bob"]))
    def cordon_or_lift(self, name: str, owner: str) -> None:
        machine = Machine.objects.get(name=name)
        standing = machine.cordons.filter(lifted_at=None, owner=owner).first()
        if standing is None:
            self.order(services.cordon, machine, owner=owner, reason="fan")
        else:
            self.order(services.lift_cordon, standing, owner=owner)

    @rule(data=st.data(), owner=st.sampled_from(["ann", "bob", "gate:1"]))
    def lift_what_is_not_ours(self, data: st.DataObject, owner: str) -> None:
        foreign = Cordon.objects.filter(lifted_at=None).exclude(owner=owner)
        if one := foreign.first():
            assert self.order(services.lift_cordon, one, owner=owner) is None
            assert Cordon.objects.get(pk=one.pk).lifted_at is None

    @rule(name=names, is_meant=rarely)
    def retire(self, name: str, is_meant: bool) -> None:
        if is_meant:
            self.order(services.retire_machine, Machine.objects.get(name=name), actor="ann")

    @rule(name=names, data=st.data())
    def move(self, name: str, data: st.DataObject) -> None:
        """A bare move, as an old script or a rollout does it; never past the gate."""
        machine = Machine.objects.get(name=name)
        forbidden = (Trigger.RELEASE, Trigger.BREAK_GLASS, Trigger.VOUCH, Trigger.RETIRE)
        here = sorted(
            trigger
            for state, trigger in TRANSITIONS
            if state == machine.state and trigger not in forbidden
        )
        if here:
            trigger = data.draw(st.sampled_from(here))
            self.order(services.move_machine, machine, trigger, actor="ann", gate="by a test")

    # --- whose it is ---------------------------------------------------------------------------

    @rule(name=names, who=st.integers(0, 2))
    def take(self, name: str, who: int) -> None:
        machine, user = Machine.objects.get(name=name), self.people[who]
        held = machine.held_by_id
        taken = self.order(services.take, machine, user=user)
        if held is not None and held != user.pk:
            assert taken is None

    @rule(name=names, who=st.integers(0, 2), to=st.integers(0, 3))
    def hand_over(self, name: str, who: int, to: int) -> None:
        machine = Machine.objects.get(name=name)
        person = self.people[to] if to < len(self.people) else None
        self.order(services.hand_over, machine, user=self.people[who], person=person)

    # --- diagnosis and repair ------------------------------------------------------------------

    @rule(data=st.data(), kind=st.sampled_from(["", *KINDS]))
    def diagnose(self, data: st.DataObject, kind: str) -> None:
        still = list(Incident.objects.filter(closed_at=None).order_by("pk"))
        if not still:
            return
        self.order(
            services.diagnose_and_act,
            data.draw(st.sampled_from(still)),
            cause="hardware" if kind else "no_fault_found",
            diagnosis="looked at",
            repair_kind=kind,
            actor="ann",
            user=self.ann,
        )

    @rule(name=names, kind=st.sampled_from(KINDS))
    def order_repair(self, name: str, kind: str) -> None:
        machine = Machine.objects.get(name=name)
        self.order(services.order_repair, machine, kind=kind, actor="ann", user=self.ann)

    @rule(data=st.data(), step=st.sampled_from(["start", "away", "close", "close", "cancel"]))
    def repair(self, data: st.DataObject, step: str) -> None:
        """A step on any repair, also one that is over."""
        found = list(Repair.objects.order_by("-pk")[:4])
        if found:
            self.take_step(data.draw(st.sampled_from(found)), step)

    def take_step(self, repair: Repair, step: str, *, is_found: bool = True) -> Any:
        worker = by(self.ann)
        if step == "start":
            return self.order(services.start_repair, repair, **worker)
        if step == "away":
            return self.order(services.send_to_supplier, repair, supplier_case="C 1", **worker)
        if step == "cancel":
            return self.order(services.cancel_repair, repair, reason="x", **worker)
        outcome = "repaired" if is_found else "no_fault_found"
        swaps = self.swaps_of(repair) if is_found else []
        return self.order(services.close_repair, repair, swaps=swaps, outcome=outcome, **worker)

    def swaps_of(self, repair: Repair) -> list[Any]:
        if not repair.kind.endswith("_swap"):
            return []
        self.serial += 1
        old = Component.objects.get(machine=repair.machine_id, kind="gpu").serial
        return [gpu(old, f"N-{self.serial}")]

    # --- tickets -------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        state=st.sampled_from(
            ["assigned", "in_progress", "waiting_for_supplier", "done", "cancelled"]
        ),
    )
    def ticket(self, data: st.DataObject, state: str) -> None:
        """A message of the ticket system about any repair, in whatever order."""
        found = list(Repair.objects.order_by("-pk")[:4])
        if not found:
            return
        repair = data.draw(st.sampled_from(found))
        said = Said(
            state,
            repair=repair.pk,
            ticket=f"T-{repair.pk}",
            technician="kim",
            supplier_case="C 2",
            swaps=tuple(self.swaps_of(repair)) if state == "done" else (),
        )
        self.messages.append((f"message {len(self.messages)}", said))
        self.deliver(len(self.messages) - 1)

    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        """A message that was carried out before changes nothing, however late it comes again."""
        if not self.messages:
            return
        number = data.draw(st.integers(0, len(self.messages) - 1))
        message_id, _ = self.messages[number]
        was_done = TicketReceipt.objects.filter(message_id=message_id).exists()
        before = self.everything()
        self.deliver(number)
        assert not was_done or self.everything() == before

    def deliver(self, number: int) -> None:
        message_id, said = self.messages[number]
        self.order(
            services.take_ticket, "dcim", said, message_id=message_id, body=message_id.encode()
        )

    # --- gates ---------------------------------------------------------------------------------

    @rule(data=st.data(), how=st.sampled_from(["pass", "pass", "pass", "fail", "miss", "crash"]))
    def run_check(self, data: st.DataObject, how: str) -> None:
        """A result for any check of a newer gate, by hand, whether it is its turn or not."""
        checks = list(GateCheck.objects.order_by("-gate", "position")[:8])
        if checks:
            self.report(data.draw(st.sampled_from(checks)), how)

    def report(self, check: GateCheck, how: str, *, token: str = "", key: str = "") -> Any:
        value = passing_value(check.rule) if "computed" not in check.rule else 0.0
        wrong = value + (1 if check.rule.get("kind") != ">=" else -1)
        outcome = services.Outcome(
            value={"pass": value, "fail": wrong, "crash": value}.get(how),
            unit=check.unit,
            reference="log 1",
            has_failed=how == "crash",
        )
        return self.order(
            services.report_result, check, outcome, actor="eve", user=self.eve, token=token, key=key
        )

    @rule(data=st.data(), is_told_twice=st.booleans())
    def automate(self, data: st.DataObject, is_told_twice: bool) -> None:
        """An automation claims a check and tells its result, once or twice, with the same key."""
        checks = list(GateCheck.objects.filter(gate__status__in=UNFINISHED).order_by("pk"))
        if not checks:
            return
        check = data.draw(st.sampled_from(checks))
        claimed = self.order(services.claim_check, check, actor="runner")
        if claimed is None:
            return
        assert self.order(services.claim_check, check, actor="other") is None
        first = self.report(check, "pass", token=claimed.claim_token, key="run 1")
        if first is not None and is_told_twice:
            again = self.report(check, "pass", token=claimed.claim_token, key="run 1")
            assert again == first

    @rule(data=st.data())
    def claim_and_leave(self, data: st.DataObject) -> None:
        checks = list(GateCheck.objects.filter(gate__status__in=UNFINISHED).order_by("pk"))
        if checks:
            self.order(services.claim_check, data.draw(st.sampled_from(checks)), actor="dead")

    @rule(data=st.data(), who=st.integers(0, 2), is_accepted=st.booleans())
    def review(self, data: st.DataObject, who: int, is_accepted: bool) -> None:
        """A verdict on any gate, by anybody: whoever did the work is always refused."""
        found = list(Gate.objects.order_by("-pk")[:4])
        if not found:
            return
        gate, user = data.draw(st.sampled_from(found)), self.people[who]
        done = self.order(
            services.review_gate, gate, is_accepted=is_accepted, user=user, reason="seen"
        )
        if done is not None:
            assert not CheckResult.objects.filter(gate_check__gate=gate, user=user).exists()
            assert gate.repair is None or gate.repair.technician != user

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        found = list(Gate.objects.order_by("-pk")[:4])
        if found:
            self.order(services.retry_gate, data.draw(st.sampled_from(found)), actor="ann")

    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        found = list(Gate.objects.order_by("-pk")[:4])
        if found:
            self.order(services.reserve_partner, data.draw(st.sampled_from(found)), actor="ann")

    # --- past the gate, on one's own word ------------------------------------------------------

    @rule(name=names, hours=st.integers(1, 80))
    def break_glass(self, name: str, hours: int) -> None:
        self.order(
            services.break_glass,
            Machine.objects.get(name=name),
            user=self.bob,
            reason="needed",
            until=self.now + timedelta(hours=hours),
        )

    @rule(who=st.integers(0, 2))
    def review_glass(self, who: int) -> None:
        if glass := BreakGlass.objects.filter(reviewer=None).first():
            user = self.people[who]
            self.order(services.review_break_glass, glass, user=user, word="seen")

    # --- workers and time ----------------------------------------------------------------------

    @rule(task=st.sampled_from(SWEEPS), times=st.integers(1, 2))
    def sweep(self, task: Any, times: int) -> None:
        """A worker's turn: late, or twice; what it finds never makes it fail."""
        for _ in range(times):
            task()

    @rule()
    def sweep_all(self) -> None:
        for task in SWEEPS:
            task()
        self.gates_and_machines_agree()

    def gates_and_machines_agree(self) -> None:
        """Within one sweep: every machine before its gate has one, and every gate its machine."""
        waiting = Machine.objects.filter(state__in=AT_THE_GATE)
        open_gates = Gate.objects.filter(status__in=UNFINISHED)
        assert {one.pk for one in waiting} == {one.machine_id for one in open_gates}
        partners = Cordon.objects.filter(owner__startswith="gate:", lifted_at=None)
        assert {one.owner for one in partners} <= {f"gate:{gate.pk}" for gate in open_gates}
        ordered = Repair.objects.filter(status__in=services.OPEN_REPAIR)
        assert not ordered.filter(machine__state=State.RETIRED).exists()

    @rule(minutes=st.sampled_from([1, 10, 60, 60 * 6, 60 * 24, 60 * 24 * 5]))
    def wait(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)

    @rule(minutes=st.sampled_from([1, 30, 60 * 5]))
    def set_clock_back(self, minutes: int) -> None:
        self.now -= timedelta(minutes=minutes)

    @rule(name=names, steps=st.integers(1, 20))
    def bring_on(self, name: str, steps: int) -> None:
        """What people do who mean well: the next thing that the machine waits for."""
        for _ in range(steps):
            self.do_next(Machine.objects.get(name=name))

    def do_next(self, machine: Machine) -> None:
        repair = machine.repairs.filter(status__in=services.OPEN_REPAIR).first()
        match State(machine.state):
            case State.AWAITING_DIAGNOSIS:
                self.order(services.move_machine, machine, Trigger.DIAGNOSE, actor="ann")
            case State.DIAGNOSING | State.VALIDATION_FAILED | State.LEMON_REVIEW:
                if repair is not None:
                    self.take_step(repair, "cancel")
                self.order(services.order_repair, machine, kind="gpu_reset", actor="ann")
            case State.AWAITING_REPAIR | State.REPAIRING | State.AT_SUPPLIER:
                if repair is None:
                    self.order(services.order_repair, machine, kind="gpu_reset", actor="ann")
                else:
                    self.take_step(repair, "start" if repair.status == "ordered" else "close")
            case State.DRAINING:
                if machine.take_outs.filter(ended_at=None).exists():
                    tasks.tell_scheduler()
                else:
                    self.order(services.take_out, machine, actor="a", reason="x", at_once=True)
            case State.UPDATING | State.VERIFYING:
                self.order(services.move_machine, machine, Trigger.FAIL_UPDATE, actor="ann")
            case State.IN_SERVICE:
                pass
            case _:
                self.pass_gate(machine)

    def pass_gate(self, machine: Machine) -> None:
        self.sweep_all()
        gate = machine.gates.filter(status__in=UNFINISHED).first()
        if gate is None:
            return
        if gate.status == "awaiting_review":
            self.order(services.review_gate, gate, is_accepted=True, user=self.bob, reason="seen")
            return
        if gate.status == "observing":
            self.now = max(self.now, gate.observe_until)
        if gate.checks.filter(needs_partner=True).exists():
            self.order(services.reserve_partner, gate, actor="ann")
        for check in gate.checks.order_by("position"):
            self.report(check, "pass")
        self.now += timedelta(minutes=6)
        tasks.follow_gates()

    # --- what always holds ---------------------------------------------------------------------

    def everything(self) -> dict[type[Model], list[tuple[Any, ...]]]:
        """Return every row that could tell of a change, without what only notes that it looked."""
        return {
            model: list(
                model._default_manager.order_by("pk").values_list(
                    *(
                        field.attname
                        for field in model._meta.concrete_fields
                        if field.attname not in ("asked_at", "read_at")
                    )
                )
            )
            for model in (*RECORDS, *PRESENT, Notice)
        }

    @invariant()
    def holds(self) -> None:
        self.work_is_taken_in_one_state_without_a_cordon()
        self.every_way_into_service_has_what_vouches_for_it()
        self.one_gate_and_one_repair_are_open()
        self.every_state_has_owner_step_and_deadline()
        self.one_has_it_in_hand()
        self.records_only_grow()

    def work_is_taken_in_one_state_without_a_cordon(self) -> None:
        working = Machine.objects.filter(may_take_work=True)
        assert not working.exclude(state=State.IN_SERVICE).exists()
        standing = Cordon.objects.filter(lifted_at=None).values("machine_id")
        assert not working.filter(pk__in=standing).exists()
        ordered_out = TakeOut.objects.filter(ended_at=None).values("machine_id")
        assert not working.filter(pk__in=ordered_out).exists()
        idle = Machine.objects.filter(state=State.IN_SERVICE, may_take_work=False)
        assert not idle.exclude(Q(pk__in=standing) | Q(pk__in=ordered_out)).exists()

    def every_way_into_service_has_what_vouches_for_it(self) -> None:
        into = StateChange.objects.filter(new_state=State.IN_SERVICE).exclude(old_state="")
        for change in into.filter(pk__gt=max(self.seen[StateChange], default=0)):
            assert change.gate
            if change.trigger == Trigger.BREAK_GLASS:
                assert BreakGlass.objects.filter(machine=change.machine).exists()
            if change.trigger != Trigger.RELEASE:
                continue
            gate = change.gate_record
            assert gate is not None
            assert (gate.machine_id, gate.status) == (change.machine_id, "passed")
            newer = services.open_faults(change.machine, since=gate.opened_at)
            assert not newer.exists(), f"{gate} passed with {newer.first()}"
            assert self.arrived_before(change) == gate.opened_at or gate.retry_of_id
            for check in gate.checks.all():
                assert check.results.latest("pk").is_passed

    def arrived_before(self, change: StateChange) -> datetime:
        """Return when the machine came before the gate through which it left now."""
        earlier = StateChange.objects.filter(machine=change.machine, pk__lt=change.pk)
        return earlier.filter(new_state=State.AWAITING_VALIDATION).latest("pk").at

    def one_gate_and_one_repair_are_open(self) -> None:
        for model, still in ((Gate, UNFINISHED), (Repair, services.OPEN_REPAIR)):
            rows = model.objects.filter(status__in=still).values_list("machine", flat=True)
            assert max(Counter(rows).values(), default=0) <= 1

    def every_state_has_owner_step_and_deadline(self) -> None:
        for machine in Machine.objects.filter(name__in=FOCUS):
            state = STATES[State(machine.state)]
            assert (machine.owner_role, machine.next_step) == (state.owner, state.next_step)
            assert (machine.deadline_at is None) == (state.deadline_hours is None)

    def one_has_it_in_hand(self) -> None:
        held = Machine.objects.exclude(held_by=None)
        assert not held.filter(state__in=(State.IN_SERVICE, State.RETIRED)).exists()
        for machine in held:
            assert machine.held_by == machine.hand_overs.latest("pk").new_person
            assert not machine.owner_team or machine.owner_team.members.contains(machine.held_by)

    def records_only_grow(self) -> None:
        for model in RECORDS:
            columns = [field.attname for field in model._meta.concrete_fields]
            now = {row[0]: row for row in model._default_manager.values_list("pk", *columns)}
            before = self.seen[model]
            assert {pk: now.get(pk) for pk in before} == before, model
            self.seen[model] = now

    # --- how it ends ---------------------------------------------------------------------------

    def ends(self) -> None:
        """Whatever happened: people who mean well bring every machine back, or it is retired."""
        self.now += timedelta(days=80)  # past every window in which a recurrence counts
        self.sweep_all()
        for cordon in Cordon.objects.filter(lifted_at=None):
            self.order(services.lift_cordon, cordon, owner=cordon.owner)
        for name in FOCUS:
            for _ in range(60):
                machine = Machine.objects.get(name=name)
                is_ordered_out = machine.take_outs.filter(ended_at=None).exists()
                if machine.state == State.RETIRED or (machine.may_take_work and not is_ordered_out):
                    break
                self.do_next(machine)
                self.now += timedelta(hours=1)
                tasks.watch()
            else:
                raise AssertionError(f"{name} does not come back: it is {machine.state}")


def run(
    monkeypatch: pytest.MonkeyPatch,
    *,
    examples: int,
    steps: int,
    phases: Sequence[Phase] = (Phase.generate,),
) -> None:
    Return.monkeypatch = monkeypatch
    run_state_machine_as_test(
        Return,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.django_db
def test_the_invariants_hold_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, examples=4, steps=20)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.django_db
def test_the_invariants_hold_over_many_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, examples=300, steps=60)
