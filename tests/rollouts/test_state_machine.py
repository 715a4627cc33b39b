"""Plans, orders, failures, telemetry, lost and repeated messages and leaps of the clock, at random.

After every step the invariants hold. What a rule does is a person's or a worker's step through the
product's own doors; what it may be refused, it is refused by a named error.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar

import pytest
from django.db import transaction
from django.db.models import Model, Q
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import fleet.errors
import rollouts.errors
from fleet import services as fleet_services
from fleet.adapters import Report
from fleet.lifecycle import Trigger as MachineTrigger
from fleet.models import Cordon, FirmwareRecord, Machine, StateChange
from rollouts import selectors, services, tasks
from rollouts.analysis.errors import AnalysisError
from rollouts.explain import explain
from rollouts.lifecycle import FAILURES, IN_FLIGHT
from rollouts.models import (
    Action,
    Assignment,
    Attempt,
    AttemptEvent,
    Decision,
    Evaluation,
    Membership,
    Order,
    Rollout,
    Transition,
)
from tests.factories import (
    NOW,
    make_bundle,
    make_image,
    make_machines,
    make_passed_gate,
    make_user,
)
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import OLD, document

REFUSED = (fleet.errors.FleetError, rollouts.errors.RolloutError, AnalysisError)
RECORDS: tuple[type[Model], ...] = (
    Action,
    AttemptEvent,
    Decision,
    Evaluation,
    FirmwareRecord,
    Order,
    StateChange,
    Transition,
)
BEHAVIOURS = (
    *("ok",) * 6,
    *("reject", "unwritable", "occupied", "fail", "lie", "vanish", "no_boot", "busy", "lost_bmc"),
)
MACHINES, RACKS = 24, 4
NAMES = [f"m{number:02}" for number in range(MACHINES)]
IN_FLIGHT_CAP, RACK_CAP = 5, 2
WAY_BACK = (
    MachineTrigger.DIAGNOSE,
    MachineTrigger.ORDER_REPAIR,
    MachineTrigger.START_REPAIR,
    MachineTrigger.CLOSE_REPAIR,
    MachineTrigger.START_VALIDATION,
    MachineTrigger.PASS_CHECKS,
    MachineTrigger.END_OBSERVATION,
    MachineTrigger.RELEASE,
)
OVER = ("widen", "advance", "skip")

rarely = st.integers(0, 5).map(lambda number: number == 0)
odd_ones = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(BEHAVIOURS), max_size=8)
some_names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)


class Fleet(RuleBasedStateMachine):
    """One fleet of fake machines, up to three rollouts, one person who commands and one more."""

    monkeypatch: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        self.block = transaction.atomic()
        self.block.__enter__()
        self.driver = Driver(self.monkeypatch)
        self.fake = FakeFleet()
        self.monkeypatch.setattr("fleet.adapters.installer", lambda: self.fake)
        self.monkeypatch.setattr("fleet.adapters.scheduler", lambda: self.fake)
        self.ann, self.bob = make_user("ann"), make_user("bob")
        self.messages: list[Any] = []
        self.reported_until = NOW
        self.rosters: dict[int, set[tuple[int, str]]] = {}
        self.sizes: dict[int, int] = {}
        self.seen: dict[type[Model], dict[int, tuple[Any, ...]]] = {one: {} for one in RECORDS}
        self.starts = 0
        self.changes = 0

    def teardown(self) -> None:
        try:
            self.ends()
        finally:
            transaction.set_rollback(True)
            self.block.__exit__(None, None, None)

    @property
    def now(self) -> datetime:
        return self.driver.now

    def order(self, call: Any, *args: Any, **words: Any) -> Any:
        """Give an order; a refusal has to be a named one, and leaves nothing behind."""
        try:
            with transaction.atomic():
                return call(*args, now=self.now, **words)
        except REFUSED:
            return None

    def any_rollout(self, data: st.DataObject) -> Rollout:
        return Rollout.objects.get(
            pk=data.draw(st.sampled_from(sorted(Rollout.objects.values_list("pk", flat=True))))
        )

    # --- plans ---------------------------------------------------------------------------------

    @initialize(odd=odd_ones, is_easy=st.booleans())
    def register(self, odd: dict[str, str], is_easy: bool) -> None:
        for rack in range(RACKS):
            own = NAMES[rack::RACKS]
            make_machines(
                len(own),
                names=own,
                rack=f"r{rack}",
                pool="train",
                versions={"bmc": OLD, "nic": OLD},
            )
        self.fake.add(NAMES, bmc=OLD, nic=OLD)
        self.fake.behaviour |= odd
        self.begin_rollout(
            counts=[3, 5],
            window_hours=24,
            batch=3,
            kinds=["bmc"],
            brings=True,
            is_easy=is_easy,
        )

    @rule(
        counts=st.lists(st.integers(1, 6), min_size=1, max_size=3),
        window_hours=st.sampled_from([24, 48]),
        batch=st.integers(1, 4),
        kinds=st.sampled_from([["bmc"], ["nic"], ["bmc", "nic"]]),
        brings=st.booleans(),
        is_easy=st.booleans(),
    )
    @precondition(lambda self: Rollout.objects.count() < 3)
    def begin_rollout(
        self,
        counts: list[int],
        window_hours: int,
        batch: int,
        kinds: list[str],
        brings: bool,
        is_easy: bool,
    ) -> None:
        number = Rollout.objects.count() + 1
        waves = [{"count": count, "window_hours": window_hours} for count in counts]
        margin = {"margin": 0.9} if is_easy else {}  # so wide that a few installs are proof
        caps = {
            "max_in_flight": IN_FLIGHT_CAP,
            "per_rack": RACK_CAP,
            "max_unavailable_share": None,
        }
        plan = document(
            waves=waves,
            guardrails=[{"metric": "install", "required": True, **margin}],
            batch_size=batch,
            caps=caps,
            look_minutes=60 * window_hours // 2,
            max_bricks=1,
            hold_back=0.1,
            drain_timeout_minutes=120,
        )
        images = [make_image(kind, f"{number + 1}.0") for kind in kinds]
        rollout = self.order(
            services.create_draft,
            name=f"rollout {number}",
            bundle=make_bundle(images=images),
            selector="platform=dgx-h100",
            document={"mode": "automatic", **plan},
            author=self.ann,
            seed=number,
        )
        if rollout is not None and brings:
            self.order(services.submit, rollout, actor=self.ann)
            self.order(services.approve, rollout, actor=self.bob)
            self.order(services.start, rollout, actor=self.ann)

    @rule(data=st.data())
    def bring_on(self, data: st.DataObject) -> None:
        rollout = self.any_rollout(data)
        step, actor = data.draw(
            st.sampled_from(
                [
                    (services.submit, self.ann),
                    (services.approve, self.bob),
                    (services.approve, self.ann),
                    (partial(services.deny, reason="x"), self.bob),
                    (services.start, self.ann),
                ]
            )
        )
        self.order(step, rollout, actor=actor)

    # --- orders --------------------------------------------------------------------------------

    @rule(data=st.data(), is_meant=rarely)
    def halt(self, data: st.DataObject, is_meant: bool) -> None:
        if not is_meant:
            return
        rollout = self.any_rollout(data)
        if self.order(services.halt, rollout, actor=self.bob) is not None:
            rollout.refresh_from_db()
            assert rollout.status == "halted"

    @rule(is_meant=rarely)
    def halt_all(self, is_meant: bool) -> None:
        if not is_meant:
            return
        services.halt_all(actor=self.bob, now=self.now, reason="stop")
        assert not Rollout.objects.filter(status__in=("running", "paused")).exists()

    @rule(data=st.data())
    def steer(self, data: st.DataObject) -> None:
        rollout = self.any_rollout(data)
        command = data.draw(
            st.sampled_from(
                [services.pause, services.resume, services.extend, services.roll_back]
                + [services.resume] * 2
            )
        )
        self.order(command, rollout, actor=self.ann)

    @rule(data=st.data(), is_meant=rarely)
    def cancel(self, data: st.DataObject, is_meant: bool) -> None:
        if is_meant:
            self.order(services.cancel, self.any_rollout(data), actor=self.ann)

    @rule(data=st.data(), is_alone=st.booleans())
    def go_past_a_verdict(self, data: st.DataObject, is_alone: bool) -> None:
        rollout = self.any_rollout(data)
        command = data.draw(
            st.sampled_from([services.override, services.advance, services.skip_wave])
        )
        second = self.ann if is_alone else self.bob
        given = self.order(command, rollout, actor=self.ann, second_person=second, reason="x")
        if is_alone and given is not None:
            assert given.kind == Order.Kind.ADVANCE  # an advised widen needs no second person

    @rule(data=st.data(), names=some_names)
    def pick_machines(self, data: st.DataObject, names: list[str]) -> None:
        command = data.draw(st.sampled_from([services.retry, services.exclude]))
        rollout = self.any_rollout(data)
        self.order(command, rollout, machines=names, actor=self.ann, reason="x")

    @rule(data=st.data())
    @precondition(lambda self: Attempt.objects.filter(status__in=FAILURES).exists())
    def triage(self, data: st.DataObject) -> None:
        failed = Attempt.objects.filter(status__in=FAILURES).order_by("pk")
        attempt = data.draw(st.sampled_from(list(failed)))
        outcome = data.draw(st.sampled_from(Attempt.Triage.values))
        self.order(services.triage, attempt, outcome=outcome, actor="ann")

    # --- machines ------------------------------------------------------------------------------

    @rule(names=some_names, how=st.sampled_from(BEHAVIOURS))
    def behave(self, names: list[str], how: str) -> None:
        self.fake.behaviour |= dict.fromkeys(names, how)

    @rule(name=st.sampled_from(NAMES))
    def cordon_or_lift(self, name: str) -> None:
        machine = Machine.objects.get(name=name)
        standing = machine.cordons.filter(lifted_at=None, owner="carol").first()
        if standing is None:
            self.order(fleet_services.cordon, machine, owner="carol", reason="fan")
        else:
            self.order(fleet_services.lift_cordon, standing, owner="carol")

    @rule(name=st.sampled_from(NAMES))
    def take_away(self, name: str) -> None:
        machine = Machine.objects.get(name=name)
        self.order(
            fleet_services.move_machine, machine, MachineTrigger.DRAIN, actor="carol", reason="x"
        )

    @rule(days=st.integers(1, 2), faulty=some_names, silent=some_names)
    def report(self, days: int, faulty: list[str], silent: list[str]) -> None:
        end = min(self.now, self.reported_until + timedelta(days=days))
        if end <= self.reported_until:
            return
        reports = [
            Report(
                "observation",
                {
                    "machine": name,
                    "start": self.reported_until,
                    "end": end,
                    "in_service_seconds": (end - self.reported_until).total_seconds(),
                    "workload": "pretraining",
                },
            )
            for name in NAMES
            if name not in silent
        ]
        reports += [
            Report("fault", {"machine": name, "time": end, "signature": "xid.119"})
            for name in faulty
        ]
        key = end.isoformat()
        first = fleet_services.record(reports, source="agent", key=key, now=self.now)
        again = fleet_services.record(reports, source="agent", key=key, now=self.now)
        assert (first.accepted, first.refused) == (len(reports), again.refused)
        self.reported_until = end

    # --- messages and time ---------------------------------------------------------------------

    @rule()
    def send(self) -> None:
        """A sweep: what is due is sent to workers, and waits."""
        self.messages += selectors.due_rollouts(self.now)
        if due := selectors.due_attempts(self.now):
            self.messages.append(due)

    @rule(data=st.data(), times=st.integers(1, 3), is_kept=st.booleans())
    @precondition(lambda self: self.messages)
    def deliver(self, data: st.DataObject, times: int, is_kept: bool) -> None:
        """Any message, at once or late, once or more often."""
        at = data.draw(st.integers(0, len(self.messages) - 1))
        message = self.messages[at] if is_kept else self.messages.pop(at)
        for _ in range(times):
            if isinstance(message, int):
                tasks.evaluate(message)
                tasks.enact(message)
            else:
                tasks.install(message)

    @rule()
    @precondition(lambda self: self.messages)
    def lose(self) -> None:
        self.messages.clear()

    @rule(steps=st.integers(1, 12))
    def work(self, steps: int) -> None:
        """All that is due is done, at one due instant after the other."""
        for _ in range(steps):
            self.driver.settle()
            due = selectors.next_due_at()
            if due is None:
                return
            self.driver.now = max(due, self.now)

    @rule(steps=st.integers(5, 40), is_healed=st.booleans())
    def live(self, steps: int, is_healed: bool) -> None:
        """The same, with somebody who widens what is held, goes on after a halt, and repairs."""
        if is_healed:
            self.fake.behaviour.clear()
        self.live_on(steps)

    @rule(steps=st.integers(5, 40))
    def live_on(self, steps: int) -> None:
        for _ in range(steps):
            self.work(1)
            self.encourage()

    def encourage(self) -> None:
        past = {"actor": self.ann, "second_person": self.bob, "reason": "x"}
        for attempt in Attempt.objects.filter(status="never_returned", triage=""):
            self.order(services.triage, attempt, outcome="recovered", actor="ann")
        for rollout in Rollout.objects.filter(finished_at=None):
            if rollout.status == "halted" and not rollout.is_overridden:
                self.order(services.override, rollout, **past)
            elif rollout.status == "paused":
                self.order(services.resume, rollout, actor=self.ann)
            elif rollout.waves.filter(status="held").exists():
                self.order(services.advance, rollout, **past)
        for machine in Machine.objects.filter(state="awaiting_diagnosis"):
            for trigger in WAY_BACK:
                gate = None
                if trigger is MachineTrigger.RELEASE:
                    gate = make_passed_gate(machine, now=self.driver.now)
                self.order(
                    fleet_services.move_machine, machine, trigger, actor="carol", gate_record=gate
                )

    @rule(hours=st.sampled_from([0.1, 1, 12, 72]))
    def leap(self, hours: float) -> None:
        """Time passes and nobody works."""
        self.driver.now += timedelta(hours=hours)

    # --- what holds after every step -----------------------------------------------------------

    @invariant()
    def all_of_this_holds(self) -> None:
        self.one_attempt_in_flight_per_machine()
        self.no_attempt_starts_unless_its_rollout_runs()
        self.caps_are_kept()
        self.waves_advance_once_and_in_order()
        self.sizes_add_up()
        self.who_is_not_treated_is_left_alone()
        self.nothing_is_flashed_more_often_than_it_was_tried()
        self.denominators_are_frozen()
        self.records_are_append_only()
        self.only_machines_in_service_without_a_cordon_take_work()
        self.every_rollout_says_what_it_waits_for()

    def one_attempt_in_flight_per_machine(self) -> None:
        flying = Attempt.objects.filter(status__in=IN_FLIGHT).values_list("machine_id", flat=True)
        assert max(Counter(flying).values(), default=0) <= 1

    def no_attempt_starts_unless_its_rollout_runs(self) -> None:
        starts = AttemptEvent.objects.filter(new_status="draining")
        moves = Transition.objects.filter(wave=None).order_by("pk")
        status: dict[int, list[tuple[datetime, str]]] = {}
        for rollout, at, new in moves.values_list("rollout_id", "recorded_at", "new_status"):
            status.setdefault(rollout, []).append((at, new))
        for rollout, at in starts.values_list("attempt__rollout_id", "recorded_at"):
            before = [new for since, new in status[rollout] if since <= at]
            assert before[-1] == "running", f"started while {before[-1]}"

    def caps_are_kept(self) -> None:
        """Where attempts started in this step, there was room for them in fleet and rack."""
        starts = AttemptEvent.objects.filter(new_status="draining").order_by("pk")
        changes = StateChange.objects.order_by("pk")
        new = list(starts.values_list("attempt__machine__rack", flat=True)[self.starts :])
        moved = list(changes[self.changes :].values_list("machine__rack", "old_state", "trigger"))
        self.starts += len(new)
        self.changes += len(moved)
        if not new:
            return
        assert Attempt.objects.filter(status__in=IN_FLIGHT).count() <= IN_FLIGHT_CAP
        fell = Counter(
            rack
            for rack, old, trigger in moved
            if old == "in_service" and trigger != MachineTrigger.DRAIN
        )
        for rack in set(new):
            away = Machine.objects.filter(Q(may_take_work=False), rack=rack).count()
            assert away - fell[rack] <= RACK_CAP, f"{away} of {rack} are out of service"

    def waves_advance_once_and_in_order(self) -> None:
        moves = Transition.objects.exclude(wave=None).order_by("pk")
        rows = list(moves.values_list("wave_id", "wave__rollout_id", "wave__number", "trigger"))
        begun = Counter(wave for wave, *_, trigger in rows if trigger == "start")
        ended = Counter(wave for wave, *_, trigger in rows if trigger in OVER)
        assert max(begun.values(), default=0) <= 1
        assert max(ended.values(), default=0) <= 1
        over: dict[int, int] = {}
        for _, rollout, number, trigger in rows:
            if trigger == "start":
                assert over.get(rollout, 0) == number - 1
            elif trigger in OVER:
                over[rollout] = number

    def sizes_add_up(self) -> None:
        for rollout in Rollout.objects.exclude(status="draft").filter(kind="update"):
            planned = Counter(rollout.assignments.values_list("planned_wave", flat=True))
            sizes = {wave.number: wave.size for wave in rollout.waves.all()}
            if not sizes:
                continue
            assert +Counter(sizes) == planned
            self.sizes.setdefault(rollout.pk, sum(planned.values()))
            assert self.sizes[rollout.pk] == sum(planned.values())

    def who_is_not_treated_is_left_alone(self) -> None:
        started = Attempt.objects.exclude(started_at=None)
        touched = set(started.values_list("machine__name", flat=True))
        assert set(self.fake.flashed) | {name for name, *_ in self.fake.steps} <= touched
        for name in set(NAMES) - touched:
            assert self.fake.versions.get(name, {"bmc": OLD}).get("bmc", OLD) == OLD
        treated = Assignment.objects.exclude(wave=None).values_list("rollout_id", "machine_id")
        tried = started.filter(rollout__kind="update").values_list("rollout_id", "machine_id")
        assert set(tried) <= set(treated)

    def nothing_is_flashed_more_often_than_it_was_tried(self) -> None:
        tried = Counter(
            name
            for name, targets in Attempt.objects.exclude(started_at=None).values_list(
                "machine__name", "targets"
            )
            for _ in targets
        )
        for name, times in Counter(self.fake.flashed).items():
            assert times <= tried[name]

    def denominators_are_frozen(self) -> None:
        now: dict[int, set[tuple[int, str]]] = {}
        for wave, machine, arm in Membership.objects.values_list("wave_id", "machine_id", "arm"):
            now.setdefault(wave, set()).add((machine, arm))
        for wave, roster in self.rosters.items():
            assert now[wave] == roster
        self.rosters = now
        canaries = Membership.objects.filter(arm="canary")
        per_rollout = Counter(canaries.values_list("wave__rollout_id", "machine_id"))
        assert max(per_rollout.values(), default=0) <= 1

    def records_are_append_only(self) -> None:
        for model in RECORDS:
            columns = [field.attname for field in model._meta.concrete_fields]
            now = {row[0]: row for row in model._default_manager.values_list("pk", *columns)}
            before = self.seen[model]
            assert {pk: now.get(pk) for pk in before} == before, model
            self.seen[model] = now

    def only_machines_in_service_without_a_cordon_take_work(self) -> None:
        working = Machine.objects.filter(may_take_work=True)
        assert not working.exclude(state="in_service").exists()
        standing = Cordon.objects.filter(lifted_at=None).values("machine_id")
        assert not working.filter(pk__in=standing).exists()

    def every_rollout_says_what_it_waits_for(self) -> None:
        for rollout in Rollout.objects.all():
            assert rollout.finished_at or explain(rollout)

    # --- how it ends ---------------------------------------------------------------------------

    def ends(self) -> None:
        """Whatever happened: once workers work again, no machine stays in flight for ever."""
        if not Attempt.objects.exists():
            return
        end = self.now + timedelta(days=20)
        while Attempt.objects.filter(status__in=IN_FLIGHT).exists():
            self.driver.settle()
            due = selectors.next_due_at()
            assert due is None or due <= end, "an attempt is in flight for twenty days"
            if due is None:
                break
            self.driver.now = max(due, self.now + timedelta(hours=1))  # workers may be late
        assert not Attempt.objects.filter(status__in=IN_FLIGHT).exists()


def run(
    monkeypatch: pytest.MonkeyPatch,
    *,
    examples: int,
    steps: int,
    phases: Sequence[Phase] = (Phase.generate,),
) -> None:
    Fleet.monkeypatch = monkeypatch
    run_state_machine_as_test(
        Fleet,
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
    run(monkeypatch, examples=5, steps=20)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.django_db
def test_the_invariants_hold_over_many_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, examples=150, steps=60)
