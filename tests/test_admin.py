"""Every model's pages in the admin: what can be seen, and that records cannot be changed."""

from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.db import transaction
from django.http import HttpRequest
from django.test import Client
from django.urls import reverse
from knox.models import AuthToken
from unfold.admin import ModelAdmin

from fleet import services
from fleet.errors import BundleFrozen
from fleet.lifecycle import Trigger
from fleet.models import (
    FirmwareBundle,
    FirmwareImage,
    Machine,
    Platform,
    RoleTeam,
    StateChange,
    Team,
)
from rollouts.models import Decision, Evaluation, Rollout
from tests.factories import NOW, make_bundle, make_image, make_machine, make_user
from tests.rollouts import rows

pytestmark = pytest.mark.django_db

OURS = [
    model
    for label in ("fleet", "rollouts", "simulation")
    for model in apps.get_app_config(label).get_models()
]
SHOWN = [*OURS, User, Group, AuthToken]
EDITABLE = {
    "FaultSignature",
    "FirmwareBundle",
    "FirmwareImage",
    "Machine",
    "Platform",
    "RoleTeam",
    "Team",
}
ADDABLE = EDITABLE - {"Machine", "FaultSignature"} | {"Freeze"}


def address(model: type[Any], page: str, *args: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def root() -> Client:
    return client_of(make_user(is_staff=True, is_superuser=True))


@pytest.fixture
def some_rows() -> None:
    rollout = rows.running()
    rows.look(rollout.waves.first())
    AuthToken.objects.create(user=rollout.author)


def test_every_model_is_shown_in_the_theme():
    for model in SHOWN:
        assert isinstance(admin.site.get_model_admin(model), ModelAdmin), model


def test_every_list_opens_and_can_be_searched(root: Client, some_rows: None):
    for model in SHOWN:
        query = {"q": "nothing"} if admin.site.get_model_admin(model).search_fields else {}

        assert root.get(address(model, "changelist")).status_code == 200, model
        assert root.get(address(model, "changelist"), query).status_code == 200, model


def test_every_row_has_a_page(root: Client, some_rows: None):
    rows_of = {model: model._default_manager.first() for model in SHOWN}

    for model, row in rows_of.items():
        if row is not None:
            assert root.get(address(model, "change", row.pk)).status_code == 200, model
    assert {Rollout, Decision, Evaluation, Machine, StateChange} <= {
        model for model, row in rows_of.items() if row is not None
    }


def test_only_configuration_can_be_added(root: Client):
    may = {m.__name__ for m in OURS if root.get(address(m, "add")).status_code == 200}

    assert may == ADDABLE


def test_nobody_edits_or_deletes_records_in_the_admin(root: Client, some_rows: None):
    for model in OURS:
        row = model._default_manager.first()
        if row is None or model.__name__ in EDITABLE:
            continue
        changed = root.post(address(model, "change", row.pk), {"status": "completed"})
        deleted = root.post(address(model, "delete", row.pk), {"post": "yes"})

        assert (changed.status_code, deleted.status_code) == (403, 403), model
        assert model._default_manager.filter(pk=row.pk).exists()


def test_a_colleague_without_rights_sees_nothing():
    client = client_of(make_user(is_staff=True))

    for model in SHOWN:
        assert client.get(address(model, "changelist")).status_code == 403, model


def test_a_machines_state_cannot_be_edited(root: Client):
    machine = make_machine("gpu-17", state="awaiting_diagnosis")
    form = {
        "name": "other",
        "state": "in_service",
        "may_take_work": "on",
        "site": "north",
        "labels": "{}",
        "components-TOTAL_FORMS": 0,
        "components-INITIAL_FORMS": 0,
        "cordons-TOTAL_FORMS": 0,
        "cordons-INITIAL_FORMS": 0,
    }

    response = root.post(address(Machine, "change", machine.pk), form)

    machine.refresh_from_db()
    assert response.status_code == 302
    assert (machine.site, machine.name, machine.state) == ("north", "gpu-17", "awaiting_diagnosis")
    assert not machine.may_take_work


class Form:
    """What the admin hands on when somebody changed one field."""

    changed_data = ("site",)


def test_a_machine_that_moved_while_its_form_was_open_stays_where_it_moved():
    machine = make_machine("gpu-17")
    Machine.objects.filter(pk=machine.pk).update(state="draining", may_take_work=False)

    machine.site = "north"
    request = HttpRequest()
    request.user = make_user()
    admin.site.get_model_admin(Machine).save_model(request, machine, Form(), change=True)

    machine.refresh_from_db()
    assert (machine.site, machine.state, machine.may_take_work) == ("north", "draining", False)


def test_a_bundle_that_was_approved_while_its_form_was_open_stays_approved():
    bundle = make_bundle(is_approved=False)
    stale = FirmwareBundle.objects.get(pk=bundle.pk)
    services.approve_bundle(bundle, approver=make_user(), now=NOW)

    with pytest.raises(BundleFrozen), transaction.atomic():
        admin.site.get_model_admin(FirmwareBundle).save_model(None, stale, Form(), change=True)

    bundle.refresh_from_db()
    assert bundle.status == "approved"


def test_an_approved_bundle_and_its_images_are_frozen(root: Client):
    image = make_image("gpu")
    bundle = make_bundle(images=[image])

    for row, model in ((bundle, FirmwareBundle), (image, FirmwareImage)):
        assert root.post(address(model, "change", row.pk), {"name": "x"}).status_code == 403
        assert root.post(address(model, "delete", row.pk), {"post": "yes"}).status_code == 403


def test_somebody_elses_draft_is_not_edited(root: Client):
    bundle = make_bundle(is_approved=False)

    assert root.post(address(FirmwareBundle, "change", bundle.pk), {}).status_code == 403


def test_a_bundle_drafted_in_the_admin_has_its_author_and_is_a_draft(root: Client):
    image = make_image("gpu")
    platform = Platform.objects.create(name="dgx-h100")
    form = {
        "name": "gpu",
        "version": "7",
        "platforms": [platform.pk],
        "status": "approved",
        "known_issues": "[]",
        "required_pairs": "{}",
        "on_partial": "quarantine",
        "places-TOTAL_FORMS": 1,
        "places-INITIAL_FORMS": 0,
        "places-0-image": image.pk,
        "places-0-position": 1,
    }

    response = root.post(address(FirmwareBundle, "add"), form)

    assert response.status_code == 302
    bundle = FirmwareBundle.objects.get()
    assert (bundle.status, bundle.author.is_superuser) == ("draft", True)


def test_a_bulk_approval_obeys_the_rule_of_two_people():
    author = make_user(is_staff=True, is_superuser=True)
    bundle = make_bundle(is_approved=False, author=author)
    form = {"action": "approve", "_selected_action": [bundle.pk]}

    page = client_of(author).post(address(FirmwareBundle, "changelist"), form, follow=True)
    bundle.refresh_from_db()
    before = bundle.status
    other = client_of(make_user(is_staff=True, is_superuser=True))
    other.post(address(FirmwareBundle, "changelist"), form)
    bundle.refresh_from_db()

    assert (before, bundle.status) == ("draft", "approved")
    assert str(author) in page.content.decode()


def test_a_bundle_is_withdrawn_in_the_admin_with_a_reason_and_its_rollouts_stop():
    rollout = rows.running()
    approver = make_user(is_staff=True)
    approver.groups.set([Group.objects.get(name="approver")])
    form = {"action": "withdraw", "_selected_action": [rollout.bundle_id], "reason": "bricks"}

    page = client_of(approver).post(address(FirmwareBundle, "changelist"), form, follow=True)

    rollout.refresh_from_db()
    halt = rollout.orders.get(kind="halt")
    assert (rollout.status, rollout.bundle.status) == ("halted", "withdrawn")
    assert (halt.actor, halt.reason) == (approver, "bricks")
    assert f"{rollout} (halt)" in page.content.decode()


def test_withdrawing_in_the_admin_needs_the_right_that_the_api_asks():
    bundle = make_bundle()
    operator = make_user(is_staff=True)
    operator.groups.set([Group.objects.get(name="operator")])

    client_of(operator).post(
        address(FirmwareBundle, "changelist"),
        {"action": "withdraw", "_selected_action": [bundle.pk], "reason": "bricks"},
    )

    bundle.refresh_from_db()
    assert bundle.status == "approved"


def test_a_draft_bundle_is_not_withdrawn_and_the_admin_says_why(root: Client):
    bundle = make_bundle(is_approved=False)
    form = {"action": "withdraw", "_selected_action": [bundle.pk]}

    page = root.post(address(FirmwareBundle, "changelist"), form, follow=True)

    bundle.refresh_from_db()
    assert bundle.status == "draft"
    assert "only one that is approved can become withdrawn" in page.content.decode()


def test_an_editor_of_accounts_cannot_hand_out_rights():
    editor = make_user(is_staff=True)
    editor.user_permissions.set(
        Permission.objects.filter(codename__in=["change_user", "view_user"])
    )
    form = {
        "username": editor.username,
        "is_active": "on",
        "is_staff": "on",
        "is_superuser": "on",
        "date_joined_0": "2026-01-01",
        "date_joined_1": "00:00:00",
        "groups": list(Group.objects.values_list("pk", flat=True)),
    }

    client_of(editor).post(address(User, "change", editor.pk), form)

    editor.refresh_from_db()
    assert not editor.is_superuser
    assert not editor.groups.exists()


def test_an_editor_of_accounts_cannot_take_a_superusers_password():
    chief = make_user(is_superuser=True)
    editor = make_user(is_staff=True)
    editor.user_permissions.set(
        Permission.objects.filter(codename__in=["change_user", "view_user"])
    )

    response = client_of(editor).post(
        reverse("admin:auth_user_password_change", args=(chief.pk,)),
        {"password1": "new-Pa55word", "password2": "new-Pa55word", "usable_password": "true"},
    )

    assert response.status_code == 403


def test_a_tokens_digest_is_not_on_its_page(root: Client):
    row, secret = AuthToken.objects.create(user=make_user())

    page = root.get(address(AuthToken, "change", row.pk)).content.decode()

    assert row.token_key in page
    assert secret not in page


@pytest.mark.parametrize("number", [1, 25])
def test_the_list_of_machines_takes_the_same_statements_however_long(
    number: int, root: Client, django_assert_max_num_queries
):
    for _ in range(number):
        make_machine()

    with django_assert_max_num_queries(12):
        response = root.get(address(Machine, "changelist"))

    assert response.status_code == 200


def test_a_rule_of_who_owns_what_gives_its_machines_to_the_team_at_once(root: Client):
    team, machine = Team.objects.create(name="triage"), make_machine()
    services.move_machine(machine, Trigger.TAKE_OUT, actor="test", now=NOW)

    made = root.post(
        address(RoleTeam, "add"), {"role": "triage", "site": "", "pool": "", "team": team.pk}
    )

    assert made.status_code == 302
    assert Machine.objects.get(pk=machine.pk).owner_team == team
