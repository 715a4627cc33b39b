"""Changes made elsewhere, machines that move, and machines that leave."""

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from fleet import services
from fleet.errors import BatchConflict, ChangeRefused, MachineBusy, SelectorError
from fleet.lifecycle import State
from fleet.models import Change, Machine, StateChange
from tests.factories import NOW, make_machine, make_machines, make_user
from tests.rollouts.pages import client_of as page_of
from tests.rollouts.test_api import client_of

pytestmark = pytest.mark.django_db


def report(**changes: Any) -> Change:
    told = {
        "source": "ansible",
        "key": "run-1",
        "kind": "driver",
        "what": "nvidia-driver",
        "selector": "rack=r1",
        "old": "550",
        "new": "560",
        "at": NOW - timedelta(hours=1),
        "now": NOW,
    }
    return services.record_change(**{**told, **changes})


# --- changes -------------------------------------------------------------------------------------


def test_a_change_keeps_the_machines_that_its_selector_meant_then():
    first = make_machines(3, rack="r1")
    make_machine(rack="r2")

    change = report()
    make_machine(rack="r1")

    assert set(change.machines.all()) == set(first)
    assert change.machine_count == 3


def test_a_report_that_is_repeated_counts_once_and_another_content_is_refused():
    make_machine(rack="r1")
    first = report()

    again = report()
    with pytest.raises(BatchConflict, match="'run-1' before, with other new"):
        report(new="570")

    assert again == first
    assert Change.objects.count() == 1


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"selector": ""}, "by a selector or by machines"),
        ({"machines": ["m1"]}, "by a selector or by machines"),
        ({"selector": "", "machines": ["nobody"]}, "unknown machines: nobody"),
        ({"selector": "rack=r9"}, "selects no machine"),
        ({"at": NOW + timedelta(minutes=1)}, "still to come"),
    ],
)
def test_a_report_that_names_nobody_or_a_time_to_come_is_refused(
    wrong: dict[str, Any], reason: str
):
    make_machine(rack="r1")

    with pytest.raises(ChangeRefused, match=reason):
        report(**wrong)
    assert not Change.objects.exists()


def test_a_misspelt_selector_touches_nothing():
    make_machine(rack="r1")

    with pytest.raises(SelectorError, match="rakc"):
        report(selector="rakc=r1")


# --- moves ---------------------------------------------------------------------------------------


def test_a_move_is_written_down_with_where_the_machine_was():
    machine = make_machine(rack="r1", pool="train")

    made = services.relocate(
        machine, places={"rack": "r2", "pool": "train", "state": "retired"}, actor="ann", now=NOW
    )

    machine.refresh_from_db()
    assert (machine.rack, machine.state) == ("r2", "in_service")
    assert [(change.what, change.old, change.new) for change in made] == [("rack", "r1", "r2")]


def test_the_admin_writes_moves_down():
    machine = make_machine(rack="r1")
    client = page_of(user=make_user(is_staff=True, is_superuser=True))
    address = reverse("admin:fleet_machine_change", args=(machine.pk,))
    form = client.get(address).context["adminform"].form
    data = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}

    client.post(
        address,
        {name: "" if value is None else value for name, value in data.items()}
        | {"rack": "r2", "labels": "{}"}
        | {
            f"{prefix}-{name}": 0
            for prefix in ("components", "cordons")
            for name in ("TOTAL_FORMS", "INITIAL_FORMS")
        },
    )

    machine.refresh_from_db()
    assert machine.rack == "r2"
    assert list(Change.objects.values_list("kind", "old", "new")) == [("place", "r1", "r2")]


# --- leaving -------------------------------------------------------------------------------------


BUSY = {State.DRAINING, State.UPDATING, State.VERIFYING}


@pytest.mark.parametrize("state", sorted(set(State) - BUSY - {State.RETIRED}))
def test_a_machine_retires_from_every_state_in_which_nothing_is_under_way(state: str):
    machine = make_machine(state=state)

    services.retire_machine(machine, actor="ann", now=NOW, reason="sold")
    services.retire_machine(machine, actor="ann", now=NOW)

    machine.refresh_from_db()
    assert (machine.state, machine.may_take_work) == ("retired", False)
    assert StateChange.objects.filter(machine=machine).latest("pk").reason == "sold"
    assert Change.objects.get(kind="retirement").old == state


@pytest.mark.parametrize("state", sorted(BUSY))
def test_a_machine_with_an_attempt_in_flight_does_not_retire(state: str):
    machine = make_machine(state=state)

    with pytest.raises(MachineBusy, match=f"is {state}"):
        services.retire_machine(machine, actor="ann", now=NOW)

    assert Machine.objects.get(pk=machine.pk).state == state


def test_deleting_over_the_api_retires_and_needs_the_right():
    machine, busy = make_machine("leaves"), make_machine("stays", state="updating")
    address = "/api/v1/machines/{}"

    refused = client_of("viewer").delete(address.format("leaves"))
    answer = client_of("operator").delete(address.format("leaves"), {"reason": "sold"})
    conflict = client_of("operator").delete(address.format("stays"))

    assert refused.status_code == 403
    assert (answer.status_code, answer.json()["state"]) == (200, "retired")
    assert (conflict.status_code, conflict.json()["code"]) == (409, "machine_busy")
    machine.refresh_from_db()
    busy.refresh_from_db()
    assert (machine.state, busy.state) == ("retired", "updating")


def test_the_admin_retires_and_does_not_delete():
    machine = make_machine()
    client = page_of("operator")

    client.post(
        reverse("admin:fleet_machine_changelist"),
        {"action": "retire", "_selected_action": [machine.pk]},
    )

    machine.refresh_from_db()
    assert machine.state == "retired"
