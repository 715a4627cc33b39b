"""Which machines, which versions at what time, and who ran what."""

from datetime import timedelta

import pytest

from fleet import selectors
from fleet.errors import SelectorError
from fleet.models import CollectorCursor
from tests.factories import NOW, make_firmware_record, make_machine, make_machines

pytestmark = pytest.mark.django_db


def day(number: int):
    return NOW + timedelta(days=number)


def names(text: str) -> set[str]:
    return set(selectors.machines_matching(text).values_list("name", flat=True))


@pytest.fixture
def fleet():
    make_machine("a", rack="r1", labels={"env": "lab", "topology.io/zone": "z1"})
    make_machine("b", rack="r2", labels={"env": "prod"})
    make_machine("c", rack="r3", platform="gb200", state="draining")
    make_machine("d", platform="gb200", labels={"contains": "x"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("platform=dgx-h100", {"a", "b"}),
        ("rack in (r1,r3)", {"a", "c"}),
        ("rack notin (r1,r3)", {"b", "d"}),
        ("rack!=r1", {"b", "c", "d"}),
        ("rack", {"a", "b", "c"}),
        ("!rack", {"d"}),
        ("env=lab", {"a"}),
        ("env!=lab", {"b", "c", "d"}),
        ("env notin (lab,prod)", {"c", "d"}),
        ("env", {"a", "b"}),
        ("!env", {"c", "d"}),
        ("topology.io/zone=z1", {"a"}),
        ("contains=x", {"d"}),
        ("state=draining", {"c"}),
        ("team", set()),
        ("!team", {"a", "b", "c", "d"}),
        ("platform=dgx-h100,env!=lab", {"b"}),
        ("env=lab,env=prod", set()),
        ("rack=r99", set()),
    ],
)
def test_every_requirement_must_hold(fleet, text, expected):
    assert names(text) == expected


@pytest.mark.parametrize("text", ["rakc=r1", "rack=r1,rakc=r1", "!rakc", "rakc notin (r1)"])
def test_a_misspelt_key_selects_nothing_and_suggests_the_right_one(fleet, text):
    with pytest.raises(SelectorError, match="did you mean rack"):
        selectors.machines_matching(text)


def test_an_empty_selector_selects_nothing(fleet):
    with pytest.raises(SelectorError, match="empty"):
        selectors.machines_matching("")


# --- versions ----------------------------------------------------------------


def test_the_version_now_is_the_last_record_of_each_component():
    machine, other = make_machines(2, versions={"bmc": "1.0", "bios": "7"})
    make_firmware_record(machine, version="2.0", since=day(0))

    versions = selectors.versions_now([machine.pk, other.pk])

    assert versions == {
        machine.pk: {"bmc": "2.0", "bios": "7"},
        other.pk: {"bmc": "1.0", "bios": "7"},
    }


def test_a_machine_of_which_nothing_is_known_has_no_versions():
    machine = make_machine()

    assert selectors.versions_now([machine.pk]) == {machine.pk: {}}


def test_an_empty_version_says_that_nothing_is_known_from_then_on():
    machine = make_machine(versions={"bmc": "1.0"})
    make_firmware_record(machine, version="", since=day(1))

    assert selectors.versions_now([machine.pk]) == {machine.pk: {}}
    assert selectors.versions_as_of(machine, at=day(0)) == {"bmc": "1.0"}


def test_versions_as_of_a_time_include_the_change_of_that_instant():
    machine = make_machine()
    make_firmware_record(machine, version="1.0", since=day(0))
    make_firmware_record(machine, version="2.0", since=day(2))

    assert selectors.versions_as_of(machine, at=day(0) - timedelta(seconds=1)) == {}
    assert selectors.versions_as_of(machine, at=day(0)) == {"bmc": "1.0"}
    assert selectors.versions_as_of(machine, at=day(1)) == {"bmc": "1.0"}
    assert selectors.versions_as_of(machine, at=day(2)) == {"bmc": "2.0"}


def test_versions_of_many_machines_take_one_statement(django_assert_num_queries):
    machines = make_machines(300, versions={"bmc": "1.0"})

    with django_assert_num_queries(1):
        versions = selectors.versions_now([machine.pk for machine in machines])

    assert len(versions) == 300


def test_the_history_closes_each_interval_where_the_next_begins():
    machine = make_machine()
    for number, version in enumerate(("1.0", "2.0", "1.0")):
        make_firmware_record(machine, version=version, since=day(number))
    make_firmware_record(machine, version="3.0", stage="staged", since=day(1))

    spans = [(i.stage, i.version, i.since, i.until) for i in selectors.history(machine)]

    assert spans == [
        ("active", "1.0", day(0), day(1)),
        ("active", "2.0", day(1), day(2)),
        ("active", "1.0", day(2), None),
        ("staged", "3.0", day(1), None),
    ]


def test_the_history_as_of_a_time_knows_nothing_later():
    machine = make_machine()
    make_firmware_record(machine, version="1.0", since=day(0))
    make_firmware_record(machine, version="2.0", since=day(2))

    [interval] = selectors.history(machine, as_of=day(1))

    assert (interval.version, interval.until) == ("1.0", None)


def test_both_sides_of_a_dispute_hold_over_the_same_interval():
    machine = make_machine()
    for source, version in (("bmc", "2.0"), ("host", "1.0")):
        make_firmware_record(
            machine, version=version, source=source, is_disputed=True, since=day(0)
        )
    make_firmware_record(machine, version="2.0", since=day(1))

    ends = [(i.version, i.until) for i in selectors.history(machine)]

    assert ends == [("2.0", day(1)), ("1.0", day(1)), ("2.0", None)]


@pytest.mark.parametrize(
    ("start", "end", "runs"),
    [
        (-2, -1, []),
        (-1, 0, []),
        (-1, 1, [(0, 2)]),
        (0, 1, [(0, 2)]),
        (1, 2, [(0, 2)]),
        (2, 3, []),
        (1, 9, [(0, 2), (4, None)]),
        (5, 9, [(4, None)]),
    ],
)
def test_who_ran_a_version_answers_with_whole_intervals_that_touch_the_question(start, end, runs):
    machine = make_machine("a")
    for number, version in ((0, "1.0"), (2, "2.0"), (4, "1.0")):
        make_firmware_record(machine, version=version, since=day(number))
    make_machine("b", versions={"bmc": "2.0"})

    found = selectors.who_ran("bmc", "1.0", start=day(start), end=day(end))

    spans = [(first, None if last is None else day(last)) for first, last in runs]
    assert [(run.machine.name, run.since, run.until) for run in found] == [
        ("a", day(first), last) for first, last in spans
    ]


# --- telemetry ---------------------------------------------------------------


def test_without_a_collectors_run_nothing_is_collected():
    assert selectors.collected_until() is None


def test_the_collectors_cursor_is_told(settings):
    CollectorCursor.objects.create(collector=settings.COLLECTOR, collected_until=NOW)

    assert selectors.collected_until() == NOW
