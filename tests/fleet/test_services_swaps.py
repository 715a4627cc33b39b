"""Board and part swaps: what is shown moves, what moves is written down, and parts are followed."""

from datetime import timedelta
from typing import Any

import pytest

from fleet import parts, services
from fleet.errors import AppendOnly, ClaimRefused, RegistrationRefused, SwapRefused
from fleet.identity import Claim, Swap
from fleet.models import Change, Component, FirmwareRecord, Machine, MachineClaim, PartSwap
from fleet.selectors import versions_as_of
from fleet.services.identity import observe_claims
from tests.factories import NOW, make_fault_report, make_machine

HOUR = timedelta(hours=1)
GPU_3 = {"kind": "gpu", "slot": "3", "model": "H100", "serial": "G-old", "version": "96.00"}
MAC = Claim("mac", "b8:ce:f6:00:11:22", "nic/0")


def broken(name: str = "m1", *, components: Any = (GPU_3,), **fields: Any) -> Machine:
    return make_machine(name, state="repairing", components=list(components), **fields)


def swap(machine: Machine, *swaps: Swap, now: Any = NOW) -> list[PartSwap]:
    return services.swap_parts(machine, swaps, repair=None, actor="kim", now=now)


def fault(machine: Machine, component: str, *, at: Any = NOW, key: str = "") -> None:
    report = make_fault_report(machine, component=component, time=at, source_key=key or str(at))
    services.record([report], source="dcgm", key=f"{machine}{component}{at}", now=at)


@pytest.mark.django_db
def test_a_preview_says_what_would_move_and_changes_nothing():
    machine = broken()
    fault(machine, "gpu 3", at=NOW - HOUR)
    services.claim(machine, [MAC], actor="kim", now=NOW - HOUR)

    seen = services.preview_swap(machine, [Swap("gpu", "3", "G-new", "H100")], now=NOW)

    [move] = seen.moves
    assert (move.old_serial, move.new_serial) == ("G-old", "G-new")
    assert (move.leaving_faults, seen.slot_faults, move.unknown_versions) == (1, 1, ("gpu/3",))
    assert seen.claims == ()
    assert [claim.value for claim in seen.staying] == [MAC.value]
    assert seen.reasons == ()
    assert PartSwap.objects.count() == 0
    assert Component.objects.get(kind="gpu").serial == "G-old"


@pytest.mark.django_db
def test_a_swap_does_what_its_preview_showed():
    machine = broken()
    swaps = [Swap("gpu", "3", "G-new", "H100 SXM")]
    seen = services.preview_swap(machine, swaps, now=NOW)

    [row] = swap(machine, *swaps)

    [move] = seen.moves
    assert (row.old_serial, row.new_serial) == (move.old_serial, move.new_serial)
    held = Component.objects.get(machine=machine, kind="gpu", slot="3")
    assert (held.serial, held.model) == ("G-new", "H100 SXM")
    change = Change.objects.get(kind="part")
    assert (change.old, change.new, change.what) == ("G-old", "G-new", "gpu")
    assert list(change.machines.all()) == [machine]


@pytest.mark.django_db
def test_after_a_swap_nobody_knows_what_the_new_part_runs_until_it_is_read_back():
    machine = broken()
    assert versions_as_of(machine, at=NOW) == {"gpu/3": "96.00"}

    swap(machine, Swap("gpu", "3", "G-new"))

    assert versions_as_of(machine, at=NOW) == {}
    assert versions_as_of(machine, at=NOW - HOUR) == {"gpu/3": "96.00"}
    assert FirmwareRecord.objects.get(source="repair").evidence["swap"]


@pytest.mark.django_db
def test_faults_follow_the_part_and_stay_with_the_slot():
    first, second = broken("m1"), broken("m2", components=[GPU_3 | {"serial": "other"}])
    fault(first, "gpu 3", at=NOW - 3 * HOUR)
    fault(first, "gpu 4", at=NOW - 3 * HOUR, key="x")
    swap(first, Swap("gpu", "3", "G-new"), now=NOW - 2 * HOUR)
    fault(first, "gpu 3", at=NOW - HOUR)
    swap(second, Swap("gpu", "3", "G-old"), now=NOW - HOUR)
    fault(second, "gpu/3", at=NOW)

    been = parts.been("G-old", as_of=NOW)

    assert [(stay.machine, stay.slot, stay.faults, stay.until) for stay in been] == [
        ("m1", "3", 1, NOW - 2 * HOUR),
        ("m2", "3", 1, None),
    ]
    assert been[0].since is None  # it was there when its serial was first written down
    assert been[1].signatures == (("xid.119", 1),)
    assert first.faults.count() == 3


@pytest.mark.django_db
def test_a_part_that_left_and_came_back_has_two_stays():
    machine = broken()
    swap(machine, Swap("gpu", "3", ""), now=NOW - 2 * HOUR)
    swap(machine, Swap("gpu", "3", "G-old"), now=NOW)

    been = parts.been("G-old", as_of=NOW)

    assert [(stay.since, stay.until) for stay in been] == [(None, NOW - 2 * HOUR), (NOW, None)]


@pytest.mark.django_db
def test_a_board_swap_ends_the_hosts_uuid_and_keeps_its_serial():
    machine = broken(serial="S1")
    uuid = Claim("uuid", "4c4c4544-0042-3510-8051-b4c04f4e3132")
    services.claim(machine, [uuid, MAC], actor="kim", now=NOW - HOUR)

    swap(machine, Swap("board", new_serial="B-new"))

    standing = parts.standing_claims(machine, at=NOW)
    assert standing == {("serial", ""): "S1", ("uuid", ""): "", ("mac", "nic/0"): MAC.value}
    held = {held.kind: held.until for held in parts.claims_of(machine, as_of=NOW)}
    assert held == {"serial": None, "uuid": NOW, "mac": None}
    assert MachineClaim.objects.get(kind="uuid", value="").swap == PartSwap.objects.get()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Swap("gpu", "3", "G-new", old_serial="G-else"), "is G-old by the inventory, not G-else"),
        (Swap("gpu", "3", "G-old"), "sits in gpu/3 of m1 already"),
        (Swap("gpu", "3", "G-else"), "sits in gpu/3 of m2; take it out there first"),
        (Swap("", "3", "G-new"), "has no kind"),
        (Swap("gpu", "3", "x" * 101), "new_serial is 101 long; accepted: up to 100"),
        (Swap("nic", "0", "N", claims=(MAC,)), "is claimed by m2; end that claim first"),
        (Swap("nic", "0", "N", claims=(Claim("mac", "?"),)), "is no MAC"),
    ],
)
def test_what_cannot_be_is_refused_by_the_preview_and_the_act_alike(wanted: Swap, said: str):
    machine, other = broken("m1"), broken("m2", components=[GPU_3 | {"serial": "G-else"}])
    services.claim(other, [MAC], actor="kim", now=NOW - HOUR)

    seen = services.preview_swap(machine, [wanted], now=NOW)

    assert any(said in reason for reason in seen.reasons)
    with pytest.raises(SwapRefused) as refused:
        swap(machine, wanted)
    assert refused.value.reasons == list(seen.reasons)
    assert PartSwap.objects.count() == 0


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["in_service", "validating", "observing", "retired"])
def test_a_machine_that_works_or_is_checked_is_not_opened(state: str):
    machine = make_machine(state=state, components=[GPU_3])

    with pytest.raises(SwapRefused, match=f"is {state}; take it out for repair first"):
        swap(machine, Swap("gpu", "3", "G-new"))


@pytest.mark.django_db
def test_two_parts_of_one_machine_may_trade_places():
    machine = broken(components=[GPU_3, GPU_3 | {"slot": "4", "serial": "G-four"}])

    swap(machine, Swap("gpu", "3", "G-four"), Swap("gpu", "4", "G-old"))

    told = machine.components.order_by("slot").values_list("slot", "serial")
    assert list(told) == [("3", "G-four"), ("4", "G-old")]


# --- claims -------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_what_another_machine_claims_is_refused_to_a_person_and_shown_of_a_bmc():
    first, second = make_machine("m1", serial="S1"), make_machine("m2")

    with pytest.raises(ClaimRefused, match="serial S1 is claimed by m1"):
        services.claim(second, [Claim("serial", "S1")], actor="kim", now=NOW)
    observe_claims(second, [Claim("serial", "S1")], source="bmc", now=NOW)

    assert parts.conflicts(limit=10) == [("serial", "S1", ["m1", "m2"])]
    [held] = parts.claims_of(first, as_of=NOW)
    assert held.others == ("m2",)


@pytest.mark.django_db
def test_a_claim_that_stands_is_not_written_twice_and_the_row_shows_the_newest():
    machine = make_machine("m1", serial="S1")

    services.claim(machine, [Claim("serial", "S1")], actor="kim", now=NOW)
    services.claim(machine, [Claim("serial", "S2")], actor="kim", now=NOW)

    assert list(machine.claims.order_by("pk").values_list("value", flat=True)) == ["S1", "S2"]
    assert Machine.objects.get(name="m1").serial == "S2"


@pytest.mark.django_db
def test_a_retired_machine_claims_nothing_any_more():
    gone = make_machine("m1", serial="S1", state="retired")

    make_machine("m2", serial="S1")

    assert [one.name for one in parts.claimants("serial", "S1")] == ["m2"]
    assert gone.claims.count() == 1


@pytest.mark.django_db
def test_two_machines_cannot_be_registered_with_one_serial_or_bmc():
    make_machine("m1", bmc_address="BMC-1")

    with pytest.raises(RegistrationRefused, match="bmc_address 'bmc-1' is claimed by m1 already"):
        make_machine("m2", bmc_address="bmc-1")


@pytest.mark.django_db
def test_claims_are_never_edited():
    make_machine("m1", serial="S1")

    with pytest.raises(AppendOnly):
        MachineClaim.objects.update(value="S2")
