"""A machine's page shows where it stands and takes the orders that are possible there."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.test import Client

from fleet import clock, services
from fleet.lifecycle import State, Trigger
from fleet.models import Cordon, Machine, RoleTeam, Team
from tests.factories import NOW, make_machine, make_passed_gate, make_user

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def now():
    clock.set_mode("stepped", at=NOW)


def logged_in(*groups: str, name: str = "") -> Client:
    user = make_user(name, is_staff=True)
    user.groups.set(Group.objects.filter(name__in=groups))
    client = Client()
    client.force_login(user)
    client.user = user
    return client


def waiting(name: str = "m1", **fields) -> Machine:
    machine = make_machine(name, **fields)
    services.move_machine(machine, Trigger.TAKE_OUT, actor="test", now=NOW, reason="smoke")
    return machine


def text(client: Client, machine: Machine) -> str:
    response = client.get(f"/machines/{machine.name}/")
    assert response.status_code == 200
    return response.content.decode()


def test_the_page_says_state_owner_next_step_deadline_and_how_it_came_here():
    machine = waiting()
    Machine.objects.filter(pk=machine.pk).update(owner_team=Team.objects.create(name="night shift"))

    shown = text(logged_in("viewer"), machine)

    for said in ("awaiting_diagnosis", "night shift", "assign a diagnosis", "13:00", "smoke"):
        assert said in shown
    assert "Take it" not in shown
    assert "takes no work" in shown


def test_a_machine_whose_checks_failed_is_sent_to_be_diagnosed_again():
    machine, client = make_machine(state=State.VALIDATION_FAILED), logged_in("technician")
    order = f"/machines/{machine.name}/diagnose-again"
    assert order in text(client, machine)
    assert order not in text(logged_in("viewer"), machine)

    assert client.post(order, {"reason": ""}).status_code == 400
    assert client.post(order, {"reason": "failed twice"}).status_code == 302

    machine.refresh_from_db()
    assert machine.state == State.AWAITING_DIAGNOSIS
    assert machine.state_changes.latest("pk").reason == "failed twice"
    assert client.post(order, {"reason": "again"}).status_code == 409
    assert order not in text(client, machine)


def test_one_click_takes_a_machine_and_begins_its_diagnosis():
    machine, client = waiting(), logged_in("technician")
    assert "Take it and begin the diagnosis" in text(client, machine)

    response = client.post(f"/machines/{machine.name}/take")

    stored = Machine.objects.get(pk=machine.pk)
    assert response.status_code == 302
    assert (stored.state, stored.held_by) == (State.DIAGNOSING, client.user)


def test_a_hand_over_is_one_form_with_a_word():
    machine, client, bob = waiting(), logged_in("technician"), make_user("bob")
    client.post(f"/machines/{machine.name}/take")

    client.post(f"/machines/{machine.name}/hand-over", {"person": "bob", "word": "slot 3"})

    assert Machine.objects.get(pk=machine.pk).held_by == bob
    assert "slot 3" in text(client, machine)


def test_a_form_that_is_wrong_comes_back_with_its_reason():
    machine = make_machine()

    response = logged_in("technician").post(f"/machines/{machine.name}/take-out", {"reason": ""})

    assert response.status_code == 400
    assert "This field is required" in response.content.decode()
    assert Machine.objects.get(pk=machine.pk).state == State.IN_SERVICE


def test_an_order_that_is_refused_is_told_in_words():
    machine = waiting()

    response = logged_in("technician").post(
        f"/machines/{machine.name}/take-out", {"reason": "again"}
    )

    assert response.status_code == 409
    assert "out of work already" in response.content.decode()


@pytest.mark.parametrize(
    ("order", "fields"),
    [
        ("take", {}),
        ("hand-over", {}),
        ("take-out", {"reason": "x"}),
        ("diagnose-again", {"reason": "x"}),
        ("cordon", {"reason": "x"}),
        ("retire", {"reason": "x"}),
        ("break-glass", {"reason": "x", "hours": 1}),
    ],
)
def test_no_order_is_given_without_its_permission(order, fields):
    machine = waiting()

    response = logged_in("viewer").post(f"/machines/{machine.name}/{order}", fields)

    assert response.status_code == 403


def test_each_owner_lifts_only_their_own_cordon():
    machine, ann, bob = make_machine(), logged_in("operator"), logged_in("operator")
    ann.post(f"/machines/{machine.name}/cordon", {"reason": "waiting for vendor"})
    cordon = Cordon.objects.get()
    lift = f"/machines/{machine.name}/cordons/{cordon.pk}/lift"
    assert lift in text(ann, machine)
    assert lift not in text(bob, machine)

    assert bob.post(lift).status_code == 409
    assert ann.post(lift).status_code == 302

    assert Machine.objects.get(pk=machine.pk).may_take_work


def test_cordons_are_listed_by_owner_and_reason():
    one, other = make_machine(), make_machine()
    services.cordon(one, owner="ann", reason="waiting for vendor", now=NOW)
    services.cordon(other, owner="bob", reason="noise", now=NOW)

    shown = logged_in("viewer").get("/cordons/?owner=ann&reason=vendor").content.decode()

    assert one.name in shown
    assert other.name not in shown


def test_a_broken_glass_is_a_banner_on_the_page_and_on_the_home_page():
    machine, client = waiting(), logged_in("operator", name="ann")

    client.post(f"/machines/{machine.name}/break-glass", {"reason": "launch", "hours": 6})

    assert "It works without its gate until 2026-03-02 18:00 UTC." in text(client, machine)
    home = client.get("/").content.decode()
    assert "works without its gate until 2026-03-02 18:00 UTC, by order of ann: launch" in home


def test_a_machine_at_work_without_its_gate_is_told_on_the_board_too():
    machine, client = waiting(), logged_in("operator", name="ann")
    client.post(f"/machines/{machine.name}/break-glass", {"reason": "launch", "hours": 6})

    shown = client.get("/return/").content.decode()

    assert "works without its gate until 2026-03-02 18:00 UTC, by order of ann: launch" in shown


def test_a_reviewer_sees_the_form_once_it_is_over_and_who_broke_it_does_not():
    machine, ann = waiting(), logged_in("operator", "reviewer")
    services.break_glass(machine, user=ann.user, reason="x", until=NOW + HOUR, now=NOW)
    services.end_break_glasses(now=NOW + 2 * HOUR)
    glass = machine.break_glasses.get()
    review = f"/machines/{machine.name}/break-glass/{glass.pk}/review"
    bob = logged_in("reviewer")
    assert review in text(bob, machine)
    assert review not in text(ann, machine)

    assert bob.post(review, {"word": "logs are clean"}).status_code == 302

    assert "glass broken" not in text(bob, machine)


def test_the_time_line_names_the_gate_of_a_release():
    machine = make_machine(state=State.AWAITING_RELEASE)
    gate = make_passed_gate(machine)
    services.move_machine(machine, Trigger.RELEASE, actor="ann", now=NOW, gate_record=gate)

    shown = text(logged_in("viewer"), machine)

    assert f"gate {gate.pk} of {machine.name}" in shown
    assert "watched until 2026-03-09 12:00" in shown


def test_notices_are_on_a_page_of_their_own_and_mine_is_a_filter():
    machine, client = waiting(), logged_in("technician")
    services.raise_notice(machine, "overdue", "late since noon", now=NOW)

    assert "late since noon" in client.get("/notices/").content.decode()
    assert "late since noon" not in client.get("/notices/?mine=on").content.decode()
    services.take(machine, user=client.user, now=NOW)
    assert "late since noon" in client.get("/notices/?mine=on").content.decode()


@pytest.mark.parametrize(("is_on", "said"), [(True, "up to 20 % of a pool"), (False, "is off")])
def test_whether_faults_take_machines_out_is_said(settings, is_on, said):
    settings.TAKE_OUT = is_on

    assert said in logged_in("viewer").get("/notices/").content.decode()


def test_a_review_without_a_word_says_what_is_missing():
    machine, ann = waiting(), logged_in("operator")
    services.break_glass(machine, user=ann.user, reason="x", until=NOW + HOUR, now=NOW)
    services.end_break_glasses(now=NOW + 2 * HOUR)
    review = f"/machines/{machine.name}/break-glass/{machine.break_glasses.get().pk}/review"

    response = logged_in("reviewer").post(review, {"word": " "})

    assert response.status_code == 400
    assert "This field is required" in response.content.decode()


def in_lemon_review() -> Machine:
    machine = make_machine("m1")
    services.move_machine(machine, Trigger.SUSPECT, actor="test", now=NOW, reason="third time")
    return machine


def test_a_lemon_review_leads_to_a_repair_and_to_retirement():
    machine = in_lemon_review()

    shown = text(logged_in("operator"), machine)

    assert "/repairs/new?machine=m1" in shown
    assert "/machines/m1/retire" in shown


@pytest.mark.parametrize(
    ("address", "fields"),
    [
        ("/repairs/new", {"machine": "m1", "kind": "gpu_reset"}),
        ("/machines/m1/retire", {"reason": "three boards in a month"}),
    ],
)
def test_only_who_owns_reliability_sends_a_lemon_on(address, fields):
    machine, ann, rel = in_lemon_review(), logged_in("operator"), logged_in("operator")
    team = Team.objects.create(name="reliability")
    RoleTeam.objects.create(role="reliability", team=team)
    team.members.add(rel.user)

    refused = ann.post(address, fields)

    assert refused.status_code == 409
    assert "belongs to no team that owns reliability" in refused.content.decode()
    assert Machine.objects.get(pk=machine.pk).state == State.LEMON_REVIEW
    assert rel.post(address, fields).status_code == 302
    assert Machine.objects.get(pk=machine.pk).state != State.LEMON_REVIEW


def test_who_may_not_retire_is_not_offered_it():
    shown = text(logged_in("technician"), in_lemon_review())

    assert "/repairs/new?machine=m1" in shown
    assert "/machines/m1/retire" not in shown


def test_a_machine_in_service_is_not_offered_a_repair():
    shown = text(logged_in("operator"), make_machine("m1"))

    assert "/repairs/new" not in shown
    assert "/machines/m1/retire" not in shown


def test_a_lemon_is_retired_with_a_reason():
    machine, ann = in_lemon_review(), logged_in("operator", name="ann")

    response = ann.post("/machines/m1/retire", {"reason": "three boards in a month"})

    assert response.status_code == 302
    assert Machine.objects.get(pk=machine.pk).state == State.RETIRED
    assert machine.state_changes.latest("pk").reason == "three boards in a month"


def test_nobody_retires_a_machine_without_saying_why():
    machine = in_lemon_review()

    response = logged_in("operator").post("/machines/m1/retire", {"reason": ""})

    assert response.status_code == 400
    assert Machine.objects.get(pk=machine.pk).state == State.LEMON_REVIEW


def test_a_machine_that_does_not_exist_is_not_found():
    assert logged_in("viewer").get("/machines/nobody/").status_code == 404
