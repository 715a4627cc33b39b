"""Which repairs did not help: faults in the watch period after a machine's return."""

from datetime import timedelta

import pytest

from fleet import services
from fleet.models import FaultSignature, Repair
from tests.factories import NOW, make_fault_report
from tests.fleet.repairs_world import HOUR, closed, make_broken, ordered, released, under_way

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
BACK = NOW + 30 * HOUR


@pytest.fixture
def repair() -> Repair:
    done = closed(under_way())
    released(done, at=BACK)
    return done


def fault(repair: Repair, *, at, heard=None, signature: str = "xid.79") -> None:
    report = make_fault_report(repair.machine, time=at, signature=signature)
    key = f"{at.isoformat()}{signature}"
    services.record([report], source="tests", key=key, now=heard or at)


def charged(repair: Repair, *, now):
    services.charge_repairs(now=now)
    repair.refresh_from_db()
    return repair.ineffective_since


def test_a_fault_in_the_watch_period_counts_against_the_repair_once(repair: Repair):
    fault(repair, at=BACK + 2 * DAY)

    assert services.charge_repairs(now=BACK + 3 * DAY) == 1
    assert services.charge_repairs(now=BACK + 3 * DAY) == 0
    repair.refresh_from_db()
    assert repair.ineffective_since == BACK + 2 * DAY
    assert repair.watch_until == BACK + 7 * DAY
    assert repair.events.filter(kind="ineffective").count() == 1


def test_a_fault_after_the_watch_period_is_not_the_repairs(repair: Repair):
    fault(repair, at=BACK + 7 * DAY + HOUR)

    assert charged(repair, now=BACK + 8 * DAY) is None


def test_a_fault_from_before_the_return_is_not_the_repairs_however_late_it_comes(repair: Repair):
    fault(repair, at=BACK - HOUR, heard=BACK + DAY)

    assert charged(repair, now=BACK + DAY) is None


def test_a_fault_that_is_told_late_counts_by_its_own_time(repair: Repair):
    fault(repair, at=BACK + DAY, heard=BACK + 20 * DAY)

    assert charged(repair, now=BACK + 20 * DAY) == BACK + DAY


def test_a_soft_fault_is_no_relapse(repair: Repair):
    FaultSignature.objects.create(name="soft.one", kind="soft", severity="major")
    fault(repair, at=BACK + DAY, signature="soft.one")

    assert charged(repair, now=BACK + 2 * DAY) is None


def test_an_unknown_fault_counts(repair: Repair):
    fault(repair, at=BACK + DAY, signature="never.seen")

    assert charged(repair, now=BACK + 2 * DAY) == BACK + DAY


def test_of_two_repairs_before_a_return_the_last_one_is_charged():
    machine = make_broken()
    first = closed(under_way(machine))
    machine.refresh_from_db()
    type(machine).objects.filter(pk=machine.pk).update(state="validation_failed")
    first.machine.gates.update(status="failed")
    again = services.start_repair(
        ordered(machine, kind="node_reboot", now=NOW + 4 * HOUR),
        actor="kim",
        now=NOW + 5 * HOUR,
    )
    second = closed(again, swaps=[], now=NOW + 6 * HOUR)
    released(second, at=BACK)
    fault(second, at=BACK + DAY)

    assert charged(second, now=BACK + DAY) == BACK + DAY
    first.refresh_from_db()
    assert (first.released_at, first.ineffective_since) == (None, None)


def test_a_machine_that_is_not_back_yet_charges_nothing():
    repair = closed(under_way())
    fault(repair, at=NOW + 3 * HOUR)

    assert charged(repair, now=NOW + 4 * HOUR) is None


def test_a_return_after_half_a_year_is_not_charged_to_the_repair():
    repair = closed(under_way())
    late = NOW + 200 * DAY
    released(repair, at=late)
    fault(repair, at=late + DAY)

    assert charged(repair, now=late + DAY) is None
