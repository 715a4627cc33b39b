"""Which way back a machine takes that came back broken: the rules operators use."""

from datetime import UTC, datetime, timedelta

import pytest

from fleet.repair.recurrence import Remediation, Symptom, choose

NOW = datetime(2026, 3, 30, 12, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


def repair(part="gpu", *, days=0.0, kind="gpu_reset"):
    return Remediation(kind, part, NOW - days * DAY)


def fault(code, *, hours, component="gpu 3", is_fatal=False):
    return Symptom(code, component, NOW - hours * HOUR, is_fatal)


def test_a_first_repair_takes_the_usual_gate():
    path = choose(repair(), earlier=[])

    assert (path.level, path.is_lemon, path.needs_person) == (0, False, False)


def test_a_second_repair_of_the_part_within_28_days_takes_the_longer_gate():
    path = choose(repair(), earlier=[repair(days=27.9)])

    assert (path.level, path.needs_person, path.is_lemon) == (1, True, False)


@pytest.mark.parametrize("earlier", [[repair(days=28)], [repair("nic", days=1)]])
def test_what_is_older_or_of_another_part_does_not_count(earlier):
    assert choose(repair(), earlier=earlier).level == 0


def test_a_third_repair_of_the_part_within_28_days_is_a_lemons():
    path = choose(repair(), earlier=[repair(days=20), repair(days=9)])

    assert path.is_lemon
    assert path.why[0].startswith("3rd repair of gpu within 28 days (gpu_reset on 2026-03-10 12:00")


def test_five_repairs_of_any_kind_within_7_days_are_a_lemons():
    parts = ["nic", "host", "cooling", "firmware"]

    path = choose(repair(), earlier=[repair(part, days=6) for part in parts])
    fewer = choose(repair(), earlier=[repair(part, days=6) for part in parts[:3]])

    assert path.is_lemon
    assert not fewer.is_lemon


def test_a_recurrence_that_reliability_has_seen_keeps_their_release_and_no_second_review():
    earlier = [repair(days=20), repair(days=9)]

    seen = choose(repair(), earlier=earlier, reviewed_at=NOW - 5 * DAY)
    before = choose(repair(), earlier=earlier, reviewed_at=NOW - 15 * DAY)

    assert (seen.is_lemon, seen.needs_reliability, seen.level) == (False, True, 2)
    assert before.is_lemon  # another one came after they had decided


@pytest.mark.parametrize(
    ("faults", "is_longer"),
    [
        ([fault("xid.31", hours=30), fault("xid.31", hours=7)], True),
        ([fault("xid.31", hours=32), fault("xid.31", hours=7)], False),
        ([fault("xid.31", hours=9), fault("xid.31", hours=7, component="gpu 5")], False),
        ([fault("xid.31", hours=9), fault("xid.31", hours=8.98)], False),  # one burst
        ([fault("xid.74", hours=9), fault("xid.74", hours=7)], True),
        ([fault("xid.79", hours=h, is_fatal=True) for h in (20, 15, 10, 5, 1)], True),
        ([fault("xid.79", hours=h) for h in (20, 15, 10, 5, 1)], False),
        ([fault("nic.link_flap", hours=h, component="nic 0") for h in (11, 6, 1)], True),
        ([fault("nic.link_flap", hours=h, component="nic 0") for h in (14, 6, 1)], False),
        ([fault("nic.tx_timeout", hours=h, component="nic 0") for h in (1.9, 1.5, 1)], True),
    ],
)
def test_codes_that_come_too_often_on_one_part_ask_for_the_longer_gate(faults, is_longer):
    path = choose(repair(), earlier=[], symptoms=faults)

    assert (path.level == 1) is is_longer


def test_the_same_code_after_a_reboot_asks_to_look_at_the_hardware_but_xid_94_does_not():
    earlier = [repair(days=2)]

    again = [fault("xid.119", hours=60), fault("xid.119", hours=3)]
    contained = [fault("xid.94", hours=60), fault("xid.94", hours=3)]

    assert any(
        "look at the hardware" in why
        for why in choose(repair(), earlier=earlier, symptoms=again).why
    )
    assert not any(
        "look at the hardware" in why
        for why in choose(repair(), earlier=earlier, symptoms=contained).why
    )
