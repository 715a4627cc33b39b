"""Taking machines out: by order and by rule, once, within what a pool can spare."""

from datetime import timedelta

import pytest

from fleet import services
from fleet.errors import TakeOutRefused
from fleet.lifecycle import AT_THE_GATE, State, Trigger
from fleet.models import FaultSignature, Machine, Notice, TakeOut
from fleet.services.departures import BREAKER, carry_on
from fleet.services.notices import raise_about
from tests.factories import NOW, make_fault_report, make_machine, make_machines

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def order(machine: Machine, *, at_once: bool = False, now=NOW) -> TakeOut:
    return services.take_out(machine, actor="ann", reason="smells", at_once=at_once, now=now)


def state_of(machine: Machine) -> str:
    return Machine.objects.get(pk=machine.pk).state


def test_a_machine_with_work_is_drained_first_and_out_once_it_is_idle():
    machine = make_machine()

    standing = order(machine)
    assert state_of(machine) == State.DRAINING
    assert not carry_on(standing, is_idle=False, now=NOW)

    assert carry_on(standing, is_idle=True, now=NOW + HOUR)
    assert state_of(machine) == State.AWAITING_DIAGNOSIS
    assert standing.ended_at == NOW + HOUR


def test_a_dead_machine_is_out_at_once():
    machine = make_machine()

    assert order(machine, at_once=True).ended_at == NOW

    assert state_of(machine) == State.AWAITING_DIAGNOSIS
    assert not Machine.objects.get(pk=machine.pk).may_take_work


def test_the_same_order_twice_is_one_and_may_become_at_once():
    machine = make_machine()
    first = order(machine)

    assert order(machine, now=NOW + HOUR) == first
    assert order(machine, at_once=True).ended_at == NOW

    assert TakeOut.objects.count() == 1
    assert state_of(machine) == State.AWAITING_DIAGNOSIS


@pytest.mark.parametrize("state", AT_THE_GATE)
def test_a_machine_at_its_gate_goes_back_to_diagnosis(state):
    machine = make_machine(state=state)

    order(machine)

    assert state_of(machine) == State.AWAITING_DIAGNOSIS


@pytest.mark.parametrize(
    "state", [State.AWAITING_DIAGNOSIS, State.REPAIRING, State.AT_SUPPLIER, State.RETIRED]
)
def test_what_is_out_already_is_refused_with_what_comes_next(state):
    machine = make_machine(state=state)

    with pytest.raises(TakeOutRefused, match=f"it is {state}, next: "):
        order(machine)

    assert not TakeOut.objects.exists()


@pytest.mark.parametrize("state", [State.UPDATING, State.VERIFYING])
def test_an_order_waits_for_a_rollouts_hands_and_takes_the_machine_when_it_is_back(state):
    machine = make_machine(state=state)
    standing = order(machine)
    assert state_of(machine) == state
    if state is State.UPDATING:
        services.move_machine(machine, Trigger.VERIFY, actor="rollout:1", now=NOW)
    services.move_machine(machine, Trigger.RETURN, actor="rollout:1", now=NOW, gate="read back")

    carry_on(standing, is_idle=False, now=NOW)

    assert state_of(machine) == State.DRAINING
    assert standing.ended_at is None


# --- by rule ------------------------------------------------------------------------------------


def fail(machine: Machine, signature: str = "xid.79", *, at=NOW) -> None:
    report = make_fault_report(machine, signature=signature, time=at)
    services.record([report], source="test", key=f"{machine.name}/{signature}/{at}", now=NOW)
    services.record_incidents(now=NOW)


@pytest.fixture
def by_rule(settings):
    settings.TAKE_OUT = True


@pytest.mark.parametrize(
    ("severity", "kind", "is_lost", "expected"),
    [
        ("critical", "hard", False, "at_once"),
        ("major", "hard", False, "after_job"),
        ("minor", "hard", False, "never"),
        ("critical", "soft", False, "never"),
        ("critical", "unknown", False, "never"),
        ("major", "soft", True, "at_once"),
    ],
)
def test_the_catalogue_says_what_takes_a_machine_out(severity, kind, is_lost, expected):
    signature = FaultSignature(severity=severity, kind=kind, is_unrecoverable=is_lost)

    assert services.takes_out(signature) == expected


def test_a_sites_own_word_about_a_signature_stands_before_the_catalogues():
    signature = FaultSignature(severity="critical", kind="hard", takes_out="never")

    assert services.takes_out(signature) == "never"


def test_without_the_sites_setting_a_fault_takes_nothing_out():
    machine = make_machines(10)[0]
    fail(machine)

    assert services.take_out_by_rule(now=NOW) == 0
    assert state_of(machine) == State.IN_SERVICE


def test_a_fault_takes_its_machine_out_once_and_says_why(by_rule):
    machine = make_machines(10)[0]
    fail(machine)

    assert services.take_out_by_rule(now=NOW) == 1
    assert services.take_out_by_rule(now=NOW) == 0

    assert state_of(machine) in (State.DRAINING, State.AWAITING_DIAGNOSIS)
    taken = TakeOut.objects.get()
    assert taken.is_by_rule
    assert "xid.79" in taken.reason


def test_a_fault_from_before_the_machine_came_into_service_takes_nothing_out(by_rule):
    machine = make_machines(10, now=NOW - HOUR)[0]
    fail(machine, at=NOW - 2 * HOUR)

    assert services.take_out_by_rule(now=NOW) == 0


def test_a_rule_never_takes_out_more_than_a_fifth_of_a_pool_and_says_so(by_rule):
    machines = make_machines(10, site="dfw", pool="train")
    for machine in machines[:5]:
        fail(machine)

    assert services.take_out_by_rule(now=NOW) == 2
    assert services.take_out_by_rule(now=NOW) == 0

    out = Machine.objects.exclude(state=State.IN_SERVICE)
    assert out.count() == 2
    notice = Notice.objects.get(kind="take_out_breaker", cleared_at=None)
    assert notice.subject == "pool dfw/train"
    assert "3 machines" in notice.said


def test_pools_that_a_run_does_not_reach_keep_their_notice_and_are_the_next_ones(by_rule):
    first = make_machines(10, site="dfw", pool="first")
    second = make_machines(10, site="dfw", pool="second")
    fail(first[0])
    for machine in second[:3]:
        fail(machine)
    raise_about("pool dfw/second", BREAKER, "3 machines ask", now=NOW)
    standing = Notice.objects.filter(kind=BREAKER, cleared_at=None)

    assert services.take_out_by_rule(now=NOW, longest_seconds=-1) == 1
    assert [notice.said for notice in standing] == ["3 machines ask"]

    assert services.take_out_by_rule(now=NOW, longest_seconds=-1) == 2
    assert "1 machines of pool dfw/second" in standing.get().said


def test_a_person_may_take_out_what_the_rule_may_not(by_rule):
    machines = make_machines(3, pool="small")
    fail(machines[0])
    assert services.take_out_by_rule(now=NOW) == 0

    order(machines[0], at_once=True)

    assert state_of(machines[0]) == State.AWAITING_DIAGNOSIS
    services.take_out_by_rule(now=NOW)
    assert not Notice.objects.filter(kind="take_out_breaker", cleared_at=None).exists()


def test_to_see_what_the_rule_asks_costs_no_statement_for_each_incident(
    by_rule, django_assert_max_num_queries
):
    machines = make_machines(30, pool="train")
    for machine in machines[:6]:
        fail(machine)
    FaultSignature.objects.update(takes_out="never")

    with django_assert_max_num_queries(4):
        services.take_out_by_rule(now=NOW)
