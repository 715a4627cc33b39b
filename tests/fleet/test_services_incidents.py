"""Faults become incidents, in whatever order they come, and incidents come to an end."""

from datetime import timedelta
from itertools import permutations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from fleet import services
from fleet.adapters import Report
from fleet.lifecycle import Trigger
from fleet.models import FaultSignature, Incident, IncidentCursor, IncidentFault, Machine
from fleet.services import incidents as recording
from fleet.telemetry import episodes
from tests.factories import NOW, make_machine, make_machines

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
LATER = NOW + timedelta(minutes=5)


def report(machine: Machine | str, signature: str, minutes: float, **fields) -> Report:
    name = getattr(machine, "name", machine)
    time = NOW + minutes * MINUTE
    return Report("fault", {"machine": name, "signature": signature, "time": time, **fields})


def tell(*reports: Report, key: str = "", now=LATER) -> None:
    result = services.record(list(reports), source="test", key=key or repr(reports)[:150], now=now)
    assert not result.refused


def roots() -> list[tuple]:
    """The incidents that are part of no other, without their keys."""
    rows = Incident.objects.filter(merged_into=None).select_related("machine", "signature")
    return sorted(
        (
            one.machine.name,
            one.family,
            one.opened_at,
            one.last_fault_at,
            one.fault_count,
            one.signature.name,
            one.severity,
            one.kind,
            one.closed_at,
            one.parent.family if one.parent else "",
        )
        for one in rows
    )


def test_a_burst_is_one_incident_with_the_worst_of_its_faults():
    machine = make_machine()
    tell(
        report(machine, "xid.119", -20, component="gpu 3"),
        report(machine, "xid.119", -19, component="gpu 3"),
        report(machine, "xid.62", -5),
        report(machine, "nic.link_flap", -5),
    )

    assert services.record_incidents(now=LATER) == 4

    gsp = Incident.objects.get(family="gpu.gsp")
    assert (gsp.fault_count, gsp.signature.name, gsp.component) == (3, "xid.119", "gpu 3")
    assert (gsp.severity, gsp.kind, gsp.detector) == ("major", "hard", episodes.VERSION)
    assert (gsp.opened_at, gsp.last_fault_at) == (NOW - 20 * MINUTE, NOW - 5 * MINUTE)
    assert [event.kind for event in gsp.events.all()] == ["opened"]
    assert Incident.objects.get(family="nic").fault_count == 1


def test_the_gap_is_the_familys_and_a_later_fault_is_another_incident():
    machine = make_machine()
    gap = FaultSignature.objects.get(name="xid.46").gap_minutes
    tell(report(machine, "xid.46", -3 * gap), report(machine, "xid.109", -2 * gap))

    services.record_incidents(now=LATER)

    assert Incident.objects.filter(family="gpu.hang").count() == 2


def test_an_unknown_signature_is_a_family_of_its_own_and_is_never_dropped():
    machine = make_machine()
    tell(report(machine, "who.knows", -1))

    services.record_incidents(now=LATER)

    incident = Incident.objects.get()
    assert (incident.family, incident.kind) == ("who.knows", "unknown")
    assert recording.counts(incident)


def test_whatever_order_faults_arrive_in_the_incidents_are_the_same():
    # 63 accompanies 48; a link that flaps at -50, -25 and -2 is one incident through its middle.
    told = [("xid.48", -30), ("xid.63", -28), ("nic.link_flap", -50), ("nic.link_flap", -2)]
    told += [("nic.link_flap", -25)]
    found = []
    for number, order in enumerate(list(permutations(told))[::30]):
        machine = make_machine()
        for each, (signature, minutes) in enumerate(order):
            tell(report(machine, signature, minutes), key=f"{number}/{each}")
            services.record_incidents(now=LATER)
        found.append([row[1:] for row in roots() if row[0] == machine.name])

    assert len(found[0]) == 3
    assert all(each == found[0] for each in found)


def test_a_late_fault_makes_two_incidents_one_and_what_was_said_stays():
    machine = make_machine()
    tell(report(machine, "nic.link_flap", -50), report(machine, "nic.link_flap", -2))
    services.record_incidents(now=LATER)
    early, late = Incident.objects.order_by("opened_at")
    services.open_case(late, supplier_case="SR-1", actor="ann", now=LATER)

    tell(report(machine, "nic.link_flap", -26), key="late")
    services.record_incidents(now=LATER)

    early.refresh_from_db()
    late.refresh_from_db()
    assert (late.merged_into, early.merged_into) == (early, None)
    assert (early.fault_count, early.last_fault_at) == (3, NOW - 2 * MINUTE)
    assert early.supplier_case == "SR-1"
    assert IncidentFault.objects.filter(incident=late).count() == 1
    assert "merged" in set(late.events.values_list("kind", flat=True))


def test_a_report_that_is_repeated_and_a_run_that_is_repeated_change_nothing():
    machine = make_machine()
    tell(report(machine, "xid.79", -60), key="first")
    services.record_incidents(now=LATER)
    before = (roots(), Incident.objects.get().events.count())

    tell(report(machine, "xid.79", -60), key="again, days later")

    assert services.record_incidents(now=LATER) == 0
    assert (roots(), Incident.objects.get().events.count()) == before


def test_a_fault_that_was_passed_over_is_found_by_the_next_whole_check(monkeypatch):
    monkeypatch.setattr(recording, "OVERLAP", 0)
    machine = make_machine()
    tell(report(machine, "xid.79", -60))
    IncidentCursor.objects.create(pk=1, done_to=10**9, checked_at=NOW)

    assert services.record_incidents(now=LATER) == 0
    assert services.record_incidents(now=LATER + recording.WHOLE_CHECK) == 1


def test_a_machines_clock_that_runs_ahead_opens_no_incident_in_the_future():
    machine = make_machine()
    tell(report(machine, "xid.79", 600), now=NOW)

    services.record_incidents(now=NOW)

    assert Incident.objects.get().opened_at == NOW


def test_the_number_of_statements_does_not_grow_with_the_machines():
    def statements(names: list[str]) -> int:
        tell(*(report(name, "xid.79", -30) for name in names), key=names[0])
        tell(*(report(name, "pcie.aer_uncorrectable", -29) for name in names), key=names[1])
        with CaptureQueriesContext(
            connection,
        ) as caught:
            assert services.record_incidents(now=LATER) == 2 * len(names)
        return len(caught)

    few = statements([machine.name for machine in make_machines(3)])
    many = statements([machine.name for machine in make_machines(60)])

    assert Incident.objects.exclude(parent=None).count() == 63
    assert many <= few + 1  # SQLite cuts wide inserts into several


# --- the end -------------------------------------------------------------------------------------


def close(hours: float) -> Incident:
    services.record_incidents(now=NOW + timedelta(hours=hours))
    return Incident.objects.get()


def test_what_does_not_count_is_over_with_its_gap():
    tell(report(make_machine(), "nic.link_flap", 0))

    assert close(0.25).closed_at is None
    assert close(0.5).closed_at == NOW + 30 * MINUTE


def test_what_counts_waits_until_its_machine_is_back_in_service():
    machine = make_machine()
    tell(report(machine, "xid.79", 0))
    services.move_machine(machine, Trigger.DRAIN, actor="ann", now=NOW + MINUTE)
    assert close(90).closed_at is None

    back = NOW + timedelta(hours=91)
    services.move_machine(machine, Trigger.CALL_OFF, actor="ann", now=back, gate="untouched")

    assert close(92).closed_at == back
    last = Incident.objects.get().events.last()
    assert (last.kind, last.said) == ("closed", "the machine is back in service")


def test_what_counts_on_a_machine_that_nobody_took_out_is_over_after_a_quiet_day():
    tell(report(make_machine(), "xid.79", 0))

    assert close(23).closed_at is None
    assert close(25).closed_at == NOW + recording.QUIET


def test_an_incident_ends_with_the_first_return_whenever_it_is_looked_at():
    machine = make_machine()
    tell(report(machine, "xid.79", 0))
    moves = ((1, Trigger.DRAIN), (3, Trigger.CALL_OFF), (9, Trigger.DRAIN))
    for hours, trigger in moves:
        at = NOW + timedelta(hours=hours)
        services.move_machine(machine, trigger, actor="ann", now=at, gate="untouched")

    assert close(10).closed_at == NOW + timedelta(hours=3)  # it is out again, for something else

    services.move_machine(machine, Trigger.CALL_OFF, actor="ann", now=at, gate="untouched")
    Incident.objects.update(closed_at=None)
    assert close(99).closed_at == NOW + timedelta(hours=3)


def test_a_quiet_day_ends_an_incident_though_its_machine_was_taken_out_after_it():
    machine = make_machine()
    tell(report(machine, "xid.79", 0))
    for hours, trigger in ((30, Trigger.DRAIN), (40, Trigger.CALL_OFF)):
        at = NOW + timedelta(hours=hours)
        services.move_machine(machine, trigger, actor="ann", now=at, gate="untouched")

    assert close(50).closed_at == NOW + recording.QUIET


def test_a_retired_machines_incident_ends_with_it_and_a_late_fault_with_its_gap():
    machine = make_machine()
    tell(report(machine, "xid.79", 0))
    services.retire_machine(machine, actor="ann", now=NOW + timedelta(hours=2))
    tell(report(machine, "xid.79", 180), key="late", now=NOW + timedelta(hours=4))

    services.record_incidents(now=NOW + timedelta(hours=5))

    ends = Incident.objects.order_by("opened_at").values_list("closed_at", flat=True)
    gap = timedelta(minutes=FaultSignature.objects.get(name="xid.79").gap_minutes)
    assert list(ends) == [NOW + timedelta(hours=2), NOW + timedelta(hours=3) + gap]


def test_closing_stops_when_its_time_is_over_and_goes_on_in_the_next_run(monkeypatch):
    monkeypatch.setattr(recording, "BATCH", 2)
    waiting = make_machine()
    services.move_machine(waiting, Trigger.DRAIN, actor="ann", now=NOW - MINUTE)
    tell(report(waiting, "xid.79", 0))  # the oldest, and not over while its machine is out
    tell(*(report(make_machine(), "nic.link_flap", 0) for _ in range(3)), key="others")
    while recording.record_incidents(now=LATER):
        pass
    open_ones = Incident.objects.filter(closed_at=None)
    assert open_ones.count() == 4

    later = NOW + timedelta(hours=1)
    left = []
    for _ in range(2):
        services.record_incidents(now=later, longest_seconds=-1)
        left.append(open_ones.count())

    assert left == [2, 1]


def test_a_late_fault_that_goes_on_opens_a_closed_incident_again():
    machine = make_machine()
    tell(report(machine, "nic.link_flap", 0))
    assert close(1).closed_at == NOW + 30 * MINUTE
    tell(report(machine, "nic.link_flap", 20), key="late", now=NOW + 70 * MINUTE)

    incident = close(1.25)

    assert incident.closed_at == NOW + 50 * MINUTE
    kinds = list(incident.events.order_by("pk").values_list("kind", flat=True))
    assert kinds == ["opened", "closed", "reopened", "closed"]


# --- which faults count --------------------------------------------------------------------------


def test_faults_that_count_are_hard_or_unknown_and_newer_by_their_own_time():
    machine = make_machine()
    tell(
        report(machine, "xid.79", 1),
        report(machine, "who.knows", 2),
        report(machine, "nic.link_flap", 2),
        report(machine, "job.software", 2),
        report(machine, "xid.119", -1),  # before, however late it is told
        report(make_machine(), "xid.79", 1),
        now=NOW + timedelta(days=3),
    )

    found = services.open_faults(machine, since=NOW)

    assert [fault.signature.name for fault in found] == ["xid.79", "who.knows"]
