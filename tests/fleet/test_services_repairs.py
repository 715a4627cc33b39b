"""Repairs: ordered, done and ended, each step with the machine's."""

import pytest

from fleet import services
from fleet.errors import (
    IllegalRepairStep,
    IllegalTransition,
    RepairRefused,
    StaleRepair,
)
from fleet.gate_state import why_not_review
from fleet.lifecycle import State
from fleet.models import Component, Gate, Machine, PartSwap, Repair, StateChange
from fleet.services.repairs import _set
from tests.factories import NOW, make_machine, make_user
from tests.fleet.repairs_world import HOUR, by, closed, gpu, make_broken, ordered, under_way

pytestmark = pytest.mark.django_db


def state_of(repair: Repair) -> str:
    return Machine.objects.get(pk=repair.machine_id).state


def kinds_of(repair: Repair) -> list[str]:
    return list(repair.events.values_list("kind", flat=True))


# --- the way through ------------------------------------------------------------------------------


def test_an_ordered_repair_lets_its_machine_wait_for_it():
    repair = ordered()

    assert (repair.status, state_of(repair)) == ("ordered", State.AWAITING_REPAIR)
    assert kinds_of(repair) == ["ordered"]


def test_the_machine_is_repaired_while_the_work_is_under_way():
    user = make_user("kim")

    repair = under_way(user=user)

    assert (repair.status, state_of(repair)) == ("under_way", State.REPAIRING)
    assert repair.technician == user


def test_a_closed_repair_is_no_ready_machine_but_opens_its_gate():
    repair = closed(under_way())

    machine = Machine.objects.get(pk=repair.machine_id)
    assert (repair.status, repair.outcome) == ("closed", "repaired")
    assert machine.state == State.AWAITING_VALIDATION
    assert not machine.may_take_work
    gate = Gate.objects.get(machine=machine)
    assert (gate.repair, gate.plan.kind, gate.status) == (repair, "gpu_swap", "open")


def test_a_swapped_part_is_known_by_its_new_serial_and_the_old_one_is_kept():
    repair = closed(under_way())

    swap = PartSwap.objects.get(repair=repair)
    assert (swap.old_serial, swap.new_serial) == ("G-OLD", "G-NEW")
    part = Component.objects.get(machine=repair.machine, kind="gpu", slot="3")
    assert part.serial == "G-NEW"


def test_a_part_can_go_to_the_supplier_and_come_back_to_be_fitted():
    repair = under_way()

    away = services.send_to_supplier(repair, supplier_case="RMA-7", actor="kim", now=NOW + 2 * HOUR)
    assert (away.status, state_of(away)) == ("at_supplier", State.AT_SUPPLIER)
    back = services.start_repair(away, actor="kim", now=NOW + 50 * HOUR)

    assert (back.status, state_of(back)) == ("under_way", State.REPAIRING)
    assert back.supplier_case == "RMA-7"
    assert kinds_of(back) == ["ordered", "started", "sent_away", "returned"]


def test_the_supplier_may_find_no_fault_and_the_gate_is_the_longer_one():
    away = services.send_to_supplier(ordered(), supplier_case="RMA-7", actor="kim", now=NOW + HOUR)

    repair = closed(away, swaps=[], outcome="no_fault_found")

    assert repair.outcome == "no_fault_found"
    assert Gate.objects.get(repair=repair).plan.kind == "no_fault_found"
    assert state_of(repair) == State.AWAITING_VALIDATION
    last = StateChange.objects.filter(machine=repair.machine).order_by("pk").last()
    assert last.trigger == "find_no_fault"


def test_no_fault_found_here_has_the_longer_gate_too():
    repair = closed(under_way(), swaps=[], outcome="no_fault_found")

    assert Gate.objects.get(repair=repair).plan.kind == "no_fault_found"


@pytest.mark.parametrize("begin", [ordered, under_way])
def test_a_repair_that_is_given_up_sends_its_machine_back_to_diagnosis(begin):
    repair = services.cancel_repair(begin(), reason="wrong part", actor="kim", now=NOW + 2 * HOUR)

    assert (repair.status, state_of(repair)) == ("cancelled", State.AWAITING_DIAGNOSIS)
    assert ordered(Machine.objects.get(pk=repair.machine_id)).status == "ordered"


def test_giving_up_moves_no_machine_that_was_taken_elsewhere():
    repair = under_way()
    Machine.objects.filter(pk=repair.machine_id).update(state=State.LEMON_REVIEW)

    services.cancel_repair(repair, reason="for review", actor="kim", now=NOW + 2 * HOUR)

    assert state_of(repair) == State.LEMON_REVIEW


def test_the_repair_of_a_machine_that_is_retired_is_given_up():
    repair = under_way()
    services.retire_machine(repair.machine, actor="kim", now=NOW + 2 * HOUR, reason="old")

    assert services.end_abandoned(now=NOW + 3 * HOUR) == 1
    assert services.end_abandoned(now=NOW + 3 * HOUR) == 0

    repair.refresh_from_db()
    assert (repair.status, state_of(repair)) == ("cancelled", State.RETIRED)
    assert repair.events.last().said == "the machine was retired"


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (State.AWAITING_REPAIR, "ordered"),
        (State.REPAIRING, "under_way"),
        (State.AT_SUPPLIER, "at_supplier"),
    ],
)
def test_a_machine_in_repair_without_a_record_gets_one_as_it_stands(state: State, status: str):
    repair = ordered(make_broken(state=state))

    assert (repair.status, state_of(repair)) == (status, state)


def test_work_that_swaps_nothing_needs_no_serials():
    repair = closed(under_way(kind="node_reboot"), swaps=[])

    assert repair.status == "closed"
    assert not PartSwap.objects.exists()


# --- what is refused ------------------------------------------------------------------------------


def test_a_machine_has_one_open_repair():
    repair = ordered()

    with pytest.raises(RepairRefused, match=f"repair {repair.pk} of .* is ordered"):
        ordered(repair.machine)


def test_no_repair_is_ordered_for_a_machine_in_service():
    with pytest.raises(IllegalTransition, match="in_service cannot order_repair; possible: "):
        ordered(make_machine())


def test_what_is_no_work_of_hands_cannot_be_ordered():
    with pytest.raises(RepairRefused, match="kind 'new_machine' cannot be ordered; accepted: "):
        ordered(kind="new_machine")


def test_a_repair_that_has_not_begun_cannot_end():
    repair = ordered()

    with pytest.raises(IllegalRepairStep, match="possible: start, send_away, cancel"):
        closed(repair)

    assert state_of(repair) == State.AWAITING_REPAIR


def test_a_closed_repair_takes_no_step():
    repair = closed(under_way())

    with pytest.raises(IllegalRepairStep, match="closed cannot start; possible: none, it is over"):
        services.start_repair(repair, actor="kim", now=NOW + 3 * HOUR)
    with pytest.raises(IllegalRepairStep):
        services.assign_repair(repair, actor="kim", technician_name="kim", now=NOW)


def test_a_step_that_the_machine_cannot_take_leaves_the_repair_as_it_is():
    repair = under_way()
    Machine.objects.filter(pk=repair.machine_id).update(state=State.LEMON_REVIEW)

    with pytest.raises(IllegalTransition, match="lemon_review cannot close_repair"):
        closed(repair)

    repair.refresh_from_db()
    assert repair.status == "under_way"
    assert not PartSwap.objects.exists()


def test_a_step_by_an_outdated_view_does_what_the_row_allows():
    repair = under_way()
    outdated = Repair.objects.get(pk=repair.pk)
    closed(repair)

    with pytest.raises(IllegalRepairStep, match="is closed"):
        services.cancel_repair(outdated, reason="late", actor="kim", now=NOW + 3 * HOUR)


def test_a_swap_is_not_done_without_a_part():
    with pytest.raises(RepairRefused, match="gpu_swap ends with the serials of each swapped part"):
        closed(under_way(), swaps=[])


@pytest.mark.parametrize(
    ("swap", "said"),
    [
        (gpu(old=""), "gpu/3: the old serial is missing"),
        (gpu(new=""), "gpu/3: the new serial is missing"),
        (gpu(old="G-OTHER"), "gpu/3 of .* is G-OLD by the inventory, not G-OTHER"),
        (gpu(new="G-OLD"), "gpu/3: old and new serial are the same, G-OLD"),
        (gpu(new="G" * 101), "new_serial is 101 long; accepted: up to 100"),
        (gpu(new="G\u202e1"), "new_serial 'G\\\\u202e1' holds"),
        (gpu(new=" G1"), "holds blanks at its ends"),
        (gpu(kind=""), "a part has no kind"),
    ],
)
def test_a_serial_that_cannot_be_is_refused(swap, said: str):
    repair = under_way()

    with pytest.raises(RepairRefused, match=said):
        closed(repair, swaps=[swap])

    assert state_of(repair) == State.REPAIRING


def test_a_part_that_sits_in_another_machine_is_refused_with_where():
    make_broken("gpu-17")
    Component.objects.filter(machine__name="gpu-17").update(serial="G-NEW")

    with pytest.raises(RepairRefused, match="G-NEW sits in gpu/3 of gpu-17"):
        closed(under_way())


def test_two_parts_of_a_machine_may_change_places():
    repair = under_way()
    Component.objects.create(machine=repair.machine, kind="gpu", slot="4", serial="G-FOUR")

    closed(repair, swaps=[gpu(new="G-FOUR"), gpu("G-FOUR", "G-OLD", slot="4")])

    parts = Component.objects.filter(machine=repair.machine).values_list("slot", "serial")
    assert dict(parts) == {"3": "G-FOUR", "4": "G-OLD"}


def test_one_part_cannot_come_into_two_slots():
    with pytest.raises(RepairRefused, match="G-NEW cannot come into two slots"):
        closed(under_way(), swaps=[gpu(), gpu("G-5", "G-NEW", slot="5")])


def test_what_goes_to_a_supplier_has_a_case():
    with pytest.raises(RepairRefused, match="needs the number of the supplier's case"):
        services.send_to_supplier(ordered(), supplier_case=" ", actor="kim", now=NOW)


def test_whoever_laid_hands_on_a_repair_does_not_review_its_gate():
    first, second, third = make_user("kim"), make_user("lee"), make_user("sam")
    repair = closed(under_way(user=first), **by(second))
    gate = Gate.objects.get(repair=repair)

    assert [bool(why_not_review(gate, user)) for user in (first, second, third)] == [
        True,
        True,
        False,
    ]


def test_a_row_that_changed_in_between_is_not_overwritten():
    repair = ordered()
    Repair.objects.filter(pk=repair.pk).update(status="cancelled")

    with pytest.raises(StaleRepair, match="no longer ordered"):
        _set(repair, Repair.Status.ORDERED, {"status": "under_way"})
