"""A draft from the page and from a file: what is asked, what is refused beside which field."""

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from rollouts import policies, services
from rollouts.drafts import read_draft
from rollouts.models import Policy, Preview, Rollout
from tests.factories import NOW, make_bundle, make_image, make_machines, make_user
from tests.rollouts.plans import NEW, OLD, bundle_of, document
from tests.rollouts.test_views import client_of

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


# --- the page ------------------------------------------------------------------------------------


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


# --- a file --------------------------------------------------------------------------------------


def a_file(folder: Path, **said: Any) -> Path:
    """A draft's file with a seed; what is None is left out."""
    whole = {
        "name": "from a file",
        "bundle": "bmc 2",
        "selector": "platform=dgx-h100",
        "plan": document(),
        "seed": 7,
        **said,
    }
    path = folder / "draft.json"
    path.write_text(json.dumps({key: value for key, value in whole.items() if value is not None}))
    return path


def a_fleet() -> None:
    """Forty machines, and the bundle that the file names; the image to go back to is kept."""
    make_machines(40, versions={"bmc": OLD})
    make_image("bmc", OLD)
    make_bundle(name="bmc", version="2", images=[make_image("bmc", NEW)])


def shown(path: Path, *options: str) -> str:
    out = StringIO()
    call_command("preview", str(path), *options, stdout=out)
    return out.getvalue()


def test_a_file_is_previewed_under_the_digest_that_its_draft_will_have_and_nothing_is_kept(
    tmp_path: Path,
):
    a_fleet()
    path = a_file(tmp_path)

    seen = json.loads(shown(path, "--json"))

    assert (seen["seed"], seen["is_kept"], seen["machines"]) == (7, False, 40)
    assert not Rollout.objects.exists()
    assert not Preview.objects.exists()
    rollout = services.create_draft(**read_draft(path), author=make_user(), now=NOW)
    assert services.preview(rollout, now=NOW).digest == seen["digest"]
    assert services.submit(rollout, actor=rollout.author, now=NOW, digest=seen["digest"])


def test_a_file_without_a_seed_is_told_the_one_that_was_drawn(tmp_path: Path):
    a_fleet()
    path = a_file(tmp_path, seed=None)

    said = shown(path)

    seed = re.search(r"nothing is kept; .* with seed (\d+) has this digest", said)
    assert seed is not None, said
    again = json.loads(shown(a_file(tmp_path, seed=int(seed[1])), "--json"))
    assert said.startswith(f"digest {again['digest']}\n")


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".toml", 'name = "x"\nbundle = "bmc 2"\nselector = "name"\npolicy = "house v1"\n'),
        (".yaml", "name: x\nbundle: bmc 2\nselector: name\npolicy: house\n"),
    ],
)
def test_a_file_may_be_toml_or_yaml_and_name_a_policy(tmp_path: Path, suffix: str, text: str):
    make_machines(1)
    policy = a_policy(burn_in_hours=5)
    bundle = make_bundle(name="bmc", version="2")
    path = tmp_path / f"draft{suffix}"
    path.write_text(text)

    found = read_draft(path)

    assert (found["policy"], found["bundle"], found["document"]) == (policy, bundle, {})


def test_everything_that_is_wrong_in_a_file_is_said_at_once(tmp_path: Path):
    make_machines(1)
    path = a_file(
        tmp_path,
        name=None,
        bundle="bmc 3",
        selector="rakc=r1",
        plan={"alpha": 2, "mode": "observe"},
        policy="none",
        mode="all",
        seed=-1,
        waves=[],
    )

    with pytest.raises(CommandError) as refused:
        shown(path)

    said = str(refused.value)
    for part in (
        "name: missing",
        "bundle: 'bmc 3' is not known; known: none",
        "selector: 'rakc' is neither",
        "plan: mode: said beside the plan",
        "policy: 'none' is not known",
        "mode: 'all' is not accepted; accepted: observe, advise, automatic",
        "seed: -1 is not a whole number",
        "waves: unknown key; it belongs into `plan`",
    ):
        assert part in said, said


def test_every_breach_of_a_files_plan_is_named(tmp_path: Path):
    a_fleet()

    with pytest.raises(CommandError) as refused:
        shown(a_file(tmp_path, plan={"alpha": 2, "burn_in_huors": 1}))

    assert "plan: alpha: 2 is" in str(refused.value)
    assert "plan: burn_in_huors: unknown key; did you mean 'burn_in_hours'" in str(refused.value)


def test_a_file_of_a_name_that_is_taken_points_to_the_rollout(tmp_path: Path):
    a_fleet()
    path = a_file(tmp_path)
    services.create_draft(**read_draft(path), author=make_user(), now=NOW)

    with pytest.raises(CommandError, match="preview it by its name"):
        shown(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(CommandError, match=r"gone\.yaml: cannot be read"):
        shown(tmp_path / "gone.yaml")
