"""Two technicians, or a technician and a ticket system, at the same repair at once."""

from functools import partial

import pytest
from django.db import IntegrityError

from fleet import parts, services
from fleet.errors import (
    ClaimRefused,
    FleetError,
    IllegalRepairStep,
    RegistrationRefused,
    RepairRefused,
    SwapRefused,
)
from fleet.identity import Claim
from fleet.models import Gate, PartSwap, Repair, TicketReceipt
from fleet.services.charges import charge_repairs
from fleet.services.swaps import swap_parts
from fleet.services.tickets import Said
from tests.factories import NOW, make_fault_report, make_machine, make_platform
from tests.fleet.repairs_world import HOUR, closed, gpu, make_broken, ordered, released, under_way
from tests.fleet.test_races import at_once

pytestmark = pytest.mark.django_db(transaction=True)

TRIES = 4


def test_of_two_orders_at_once_one_stands():
    for number in range(TRIES):
        machine = make_broken(f"gpu-{number}")
        order = partial(services.order_repair, machine, kind="thermal", actor="k", now=NOW)

        results = at_once(order, order)

        assert {type(result) for result in results} == {Repair, RepairRefused}


def test_a_repair_that_two_people_end_at_once_ends_once():
    for number in range(TRIES):
        repair = under_way(make_broken(f"gpu-{number}"))
        swap = gpu("G-OLD", f"G-NEW-{number}")
        end = partial(services.close_repair, repair, swaps=[swap], actor="k", now=NOW + 2 * HOUR)

        results = at_once(end, end)

        assert {type(result) for result in results} == {Repair, IllegalRepairStep}
        assert PartSwap.objects.filter(repair=repair).count() == 1
        assert Gate.objects.filter(repair=repair).count() == 1


def test_an_end_and_a_cancellation_at_once_leave_one_of_the_two():
    for number in range(TRIES):
        repair = under_way(make_broken(f"gpu-{number}"))
        swap = gpu("G-OLD", f"G-NEW-{number}")

        at_once(
            partial(services.close_repair, repair, swaps=[swap], actor="k", now=NOW + 2 * HOUR),
            partial(services.cancel_repair, repair, reason="x", actor="l", now=NOW + 2 * HOUR),
        )

        repair.refresh_from_db()
        was_closed = repair.status == "closed"
        assert PartSwap.objects.filter(repair=repair).exists() == was_closed
        assert repair.machine.__class__.objects.get(pk=repair.machine_id).state == (
            "awaiting_validation" if was_closed else "awaiting_diagnosis"
        )


def test_a_message_that_arrives_twice_at_once_is_carried_out_once():
    for number in range(TRIES):
        repair = ordered(make_broken(f"gpu-{number}"))
        said = Said("in_progress", repair=repair.pk)

        def take(said: Said = said, message: str = f"m{number}") -> object:
            try:
                return services.take_ticket(
                    "dcim", said, message_id=message, body=b"{}", now=NOW + HOUR
                )
            except IntegrityError as error:  # told to the sender as a conflict, who sends again
                return error

        at_once(take, take)

        assert TicketReceipt.objects.filter(message_id=f"m{number}").count() == 1
        assert repair.events.filter(kind="started").count() == 1


def test_a_fault_that_two_sweeps_find_at_once_is_charged_once():
    repair = closed(under_way())
    released(repair, at=NOW + 3 * HOUR)
    report = make_fault_report(repair.machine, time=NOW + 5 * HOUR, signature="xid.79")
    services.record([report], source="tests", key="k", now=NOW + 6 * HOUR)

    sweep = partial(charge_repairs, now=NOW + 6 * HOUR)
    results = at_once(sweep, sweep)

    assert not [result for result in results if isinstance(result, FleetError)]
    assert repair.events.filter(kind="ineffective").count() == 1


def test_of_two_machines_that_claim_one_serial_at_once_one_has_it():
    for number in range(TRIES):
        machines = [make_machine(), make_machine()]
        claims = [Claim("serial", f"S-{number}")]

        results = at_once(
            *(partial(services.claim, one, claims, actor="kim", now=NOW) for one in machines)
        )

        assert sum(isinstance(result, ClaimRefused) for result in results) == 1
        assert len(parts.claimants("serial", f"S-{number}")) == 1


def test_of_two_machines_into_which_one_part_comes_at_once_one_has_it():
    for number in range(TRIES):
        machines = [make_broken(f"a-{number}"), make_broken(f"b-{number}")]
        swap = [gpu("G-OLD", f"G-NEW-{number}")]

        results = at_once(
            *(partial(swap_parts, one, swap, repair=None, actor="kim", now=NOW) for one in machines)
        )

        assert sum(isinstance(result, SwapRefused) for result in results) == 1
        assert len(parts.where_now(f"G-NEW-{number}")) == 1


def test_of_two_registrations_of_one_part_at_once_one_stands():
    make_platform()
    for number in range(TRIES):
        parts_of = [{"kind": "gpu", "serial": f"S-{number}"}]
        rows = [
            {"name": f"{name}-{number}", "platform": "dgx-h100", "components": parts_of}
            for name in "ab"
        ]

        results = at_once(*(partial(services.register_machines, [row], now=NOW) for row in rows))

        assert sum(isinstance(result, RegistrationRefused) for result in results) == 1
        assert len(parts.where_now(f"S-{number}")) == 1
