"""A draft on the page: what is asked, and what is refused beside which field."""

import json
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from rollouts import policies, services
from rollouts.models import Policy, Rollout
from tests.factories import NOW, make_bundle, make_machines, make_user
from tests.rollouts import rows
from tests.rollouts.pages import client_of
from tests.rollouts.plans import OLD, bundle_of, document

pytestmark = pytest.mark.django_db

NEW_PAGE = "/rollouts/new"


def a_policy(**said: Any) -> Policy:
    return services.save_policy(name="house", document=said, author=None, now=NOW)


def words(**changes: Any) -> dict[str, Any]:
    """What a person writes into the form, with changes."""
    said = {
        "name": "bmc 2",
        "bundle": bundle_of().pk if "bundle" not in changes else changes["bundle"],
        "selector": "platform=dgx-h100",
        "mode": "",
        "policy": "",
        "filled_from": "",
        "plan": json.dumps(document()),
    }
    return {**said, **changes}


def errors_of(response: HttpResponse) -> dict[str, list[str]]:
    assert response.status_code == 200
    return dict(response.context["form"].errors)


def test_a_draft_written_on_the_page_leads_to_its_planner():
    make_machines(40, versions={"bmc": OLD})
    client = client_of("operator")

    answer = client.post(NEW_PAGE, words())

    rollout = Rollout.objects.get()
    assert answer["Location"] == reverse("rollouts:plan", args=[rollout.pk])
    assert (rollout.name, rollout.status, rollout.mode) == ("bmc 2", "draft", "advise")
    assert rollout.plan["waves"][0]["count"] == 8
    assert rollout.author.username == client.get(NEW_PAGE).context["user"].username
    assert client.get(answer["Location"]).status_code == 200


@pytest.mark.parametrize("group", ["viewer", "approver"])
def test_a_draft_on_the_page_needs_the_right_that_the_api_asks(group: str):
    make_machines(1)
    client = client_of(group)

    assert client.get(NEW_PAGE).status_code == 403
    assert client.post(NEW_PAGE, words()).status_code == 403
    assert NEW_PAGE not in client.get(reverse("rollouts:home")).content.decode()
    assert not Rollout.objects.exists()


@pytest.mark.parametrize("route", ["rollouts:home", "rollouts:index"])
def test_whoever_may_write_drafts_is_shown_where(route: str):
    shown = client_of("operator").get(reverse(route)).content.decode()

    assert f'href="{NEW_PAGE}"' in shown


def test_the_form_begins_with_every_default_of_a_plan():
    form = client_of("operator").get(NEW_PAGE).context["form"]

    shown = json.loads(form["plan"].value())
    defaults = policies.with_defaults({}, kind=policies.Kind.PLAN)
    assert shown == {k: v for k, v in defaults.items() if k not in ("selector", "mode")}


def test_a_saved_policy_fills_the_plan_and_keeps_what_was_said():
    policy = a_policy(mode="observe", burn_in_hours=5)

    answer = client_of("operator").post(NEW_PAGE, words(policy=policy.pk, fill="1", plan="{}"))

    form = answer.context["form"]
    assert not Rollout.objects.exists()
    assert json.loads(form["plan"].value())["burn_in_hours"] == 5
    assert (form["name"].value(), form["mode"].value()) == ("bmc 2", "observe")
    assert form["filled_from"].value() == policy.pk


def test_a_draft_filled_from_a_policy_names_it_and_the_text_wins():
    make_machines(1)
    policy = a_policy(burn_in_hours=5)
    text = json.dumps(document(burn_in_hours=3))

    client_of("operator").post(
        NEW_PAGE, words(policy=policy.pk, filled_from=policy.pk, plan=text, mode="observe")
    )

    rollout = Rollout.objects.get()
    assert (rollout.policy, rollout.plan["burn_in_hours"], rollout.mode) == (policy, 3, "observe")


def test_a_policy_chosen_after_the_text_was_filled_in_is_not_taken_for_it():
    make_machines(1)

    answer = client_of("operator").post(NEW_PAGE, words(policy=a_policy(burn_in_hours=5).pk))

    assert errors_of(answer) == {
        "policy": ["the plan below was not filled in from this policy; fill it in first"]
    }


def test_every_breach_of_the_schema_is_listed_beside_the_plan():
    make_machines(1)
    text = json.dumps({"burn_in_huors": 1, "alpha": 2, "resamples": "many"})

    said = errors_of(client_of("operator").post(NEW_PAGE, words(plan=text)))

    assert set(said) == {"plan"}
    for part in ("did you mean 'burn_in_hours'", "alpha: 2 is", 'resamples: "many" is not'):
        assert any(part in reason for reason in said["plan"]), said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not valid JSON"),
        ("[1]", "accepted: one object of fields"),
        ('{"alpha": 0.1, "alpha": 0.2}', "the key 'alpha' stands there 2 times"),
        ('{"selector": "name", "mode": "observe"}', "selector, mode: asked for in fields"),
    ],
)
def test_a_text_that_is_no_plan_is_refused_beside_it(text: str, why: str):
    make_machines(1)

    [said] = errors_of(client_of("operator").post(NEW_PAGE, words(plan=text)))["plan"]

    assert why in said


def test_what_is_wrong_is_said_beside_each_field_at_once():
    make_machines(1)
    services.create_draft(
        name="bmc 2",
        bundle=bundle_of(),
        selector="name",
        document=document(),
        author=make_user(),
        now=NOW,
    )
    draft = make_bundle(name="unread", is_approved=False)

    said = errors_of(
        client_of("operator").post(NEW_PAGE, words(bundle=draft.pk, selector="rakc=r1", mode="all"))
    )

    assert set(said) == {"name", "bundle", "selector", "mode"}
    assert "rakc" in said["selector"][0]


def test_the_form_asks_for_a_login():
    assert "/admin/login/" in Client().get(NEW_PAGE)["Location"]


def test_a_bundle_that_was_halted_before_says_so_in_every_later_plan():
    halted = rows.running()
    services.halt(halted, actor=make_user("eve"), reason="fans at full speed", now=NOW)
    again = services.create_draft(
        name="again",
        bundle=halted.bundle,
        selector="platform=dgx-h100",
        document=document(),
        author=halted.author,
        now=NOW,
    )

    services.preview(again, now=NOW)
    page = client_of("operator").get(reverse("rollouts:plan", args=[again.pk])).content.decode()

    assert "This bundle was halted before" in page
    assert "halted by eve: fans at full speed" in page
    halted.refresh_from_db()
    assert not services.preview(other_bundle(halted), now=NOW).summary["earlier_halts"]


def other_bundle(halted: Rollout) -> Rollout:
    return services.create_draft(
        name="other",
        bundle=bundle_of("nic"),
        selector="platform=dgx-h100",
        document=document(),
        author=halted.author,
        now=NOW,
    )
