"""Machines are registered all or none, and whoever vouches for one is on record."""

import pytest

from fleet import services
from fleet.errors import RegistrationRefused
from fleet.models import Component, FirmwareRecord, Machine, StateChange
from tests.factories import NOW, make_machine, make_platform

pytestmark = pytest.mark.django_db


def row(name: str = "m1", **fields: object) -> dict[str, object]:
    return {"name": name, "platform": "dgx-h100", **fields}


def test_a_new_machine_waits_for_validation_and_takes_no_work():
    make_platform()

    [machine] = services.register_machines([row(rack="r1")], now=NOW)

    stored = Machine.objects.get()
    assert stored == machine
    assert (stored.state, stored.may_take_work, stored.rack) == ("awaiting_validation", False, "r1")
    assert stored.owner_role == "validation"
    assert stored.deadline_at > NOW
    assert StateChange.objects.get().gate == ""


def test_a_vouched_machine_is_in_service_and_its_record_says_who_vouched():
    make_platform()

    services.register_machines([row()], now=NOW, vouched_by="ann")

    assert Machine.objects.get().may_take_work
    change = StateChange.objects.get()
    assert (change.old_state, change.new_state) == ("registered", "in_service")
    assert change.gate == "imported: vouched for by ann"


def test_components_and_their_versions_are_imported():
    make_platform()
    parts = [
        {"kind": "bmc", "version": "1.2"},
        {"kind": "gpu", "slot": "0", "version": "96.00", "serial": "s0"},
        {"kind": "gpu", "slot": "1"},
    ]

    services.register_machines([row(components=parts)], now=NOW)

    assert Component.objects.count() == 3
    records = FirmwareRecord.objects.order_by("kind").values_list("kind", "slot", "version")
    assert list(records) == [("bmc", "", "1.2"), ("gpu", "0", "96.00")]
    assert set(FirmwareRecord.objects.values_list("source", "stage")) == {("import", "active")}


def test_statements_grow_by_batches_only(django_assert_max_num_queries):
    make_platform()
    parts = [{"kind": "bmc", "version": "1"}, {"kind": "bios", "version": "2"}]
    rows = [row(f"m{number}", components=parts) for number in range(1000)]

    with django_assert_max_num_queries(60):
        services.register_machines(rows, now=NOW, vouched_by="ann")

    assert FirmwareRecord.objects.count() == 2000


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"platform": "dgx-b200"}, "'dgx-b200' is not registered; known: dgx-h100"),
        ({"name": ""}, "name is ''"),
        ({"name": None}, "name is None"),
        ({"rakc": "r1"}, "unknown column 'rakc'"),
        ({"rack": 7}, "rack is 7"),
        ({"labels": {"env": 1}}, "labels are {'env': 1}"),
        ({"components": [{"slot": "0"}]}, "has no kind"),
        ({"components": [{"kind": "bmc"}, {"kind": "bmc"}]}, "stands twice"),
        ({"components": [{"kind": "bmc", "serial": None}]}, "component serial is None"),
        ({"components": [{"kind": "k" * 41}]}, "a text of at most 40 is needed"),
        ({"components": [{"kind": ["bmc"]}]}, "component kind is ['bmc']"),
        ({"components": ["bmc"]}, "component 'bmc' is no mapping"),
        ({"components": [{"kind": "bmc", "vresion": "1"}]}, "unknown component column 'vresion'"),
    ],
)
def test_a_wrong_row_is_refused_and_nothing_is_stored(wrong, reason):
    make_platform()

    with pytest.raises(RegistrationRefused) as refusal:
        services.register_machines([row("good"), row() | wrong], now=NOW)

    assert reason in str(refusal.value)
    assert "row 2" in str(refusal.value)
    assert not Machine.objects.exists()


def test_every_reason_is_named_at_once():
    make_platform()

    with pytest.raises(RegistrationRefused) as refusal:
        services.register_machines([row(rakc="r1"), row("m2", platform="x")], now=NOW)

    assert len(refusal.value.reasons) == 2


def test_a_name_that_is_taken_or_stands_twice_is_refused():
    make_machine("m1")

    with pytest.raises(RegistrationRefused) as refusal:
        services.register_machines([row("m1"), row("m2"), row("m2")], now=NOW)

    assert refusal.value.reasons == [
        "machine 'm2' is named twice",
        "machine 'm1' is registered already",
    ]


def test_a_part_cannot_be_registered_in_two_places():
    make_platform()
    gpu, nic = {"kind": "gpu", "serial": "S-1"}, {"kind": "nic", "serial": "S-1"}
    services.register_machines([row("a", components=[gpu | {"slot": "3"}, nic])], now=NOW)
    services.register_machines([row("gone", components=[gpu | {"serial": "S-2"}])], now=NOW)
    Machine.objects.filter(name="gone").update(state="retired")

    with pytest.raises(RegistrationRefused) as refusal:
        services.register_machines(
            [
                row("b", components=[gpu]),
                row("c", components=[{"kind": "bmc", "serial": "S-1"}]),
                row("d", components=[gpu | {"serial": "S-9"}]),
                row("e", components=[gpu | {"serial": "S-9"}]),
            ],
            now=NOW,
        )

    assert refusal.value.reasons == [
        "gpu S-9 is named twice; a part sits in one place",
        "gpu S-1 sits in gpu/3 of a; take it out there first",
    ]
    services.register_machines([row("f", components=[gpu | {"serial": "S-2"}])], now=NOW)


def test_a_platform_keeps_its_first_facts():
    first = services.register_platform("dgx-h100", vendor="nvidia")

    again = services.register_platform("dgx-h100", vendor="other")

    assert (again.pk, again.vendor) == (first.pk, "nvidia")
