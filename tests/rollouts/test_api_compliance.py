"""Drift over the API: counted, listed page by page, and never compliant where nothing is known."""

import pytest

from fleet import services
from rollouts.models import Assignment, Rollout, Wave
from tests.factories import NOW, make_bundle, make_image, make_machine, make_platform, make_user
from tests.fleet.test_api import client_of, fields_of

pytestmark = pytest.mark.django_db

API = "/api/v1/firmware/compliance"


@pytest.fixture
def fleet():
    for name, version in (("a", "4.1"), ("b", "4.2"), ("c", ""), ("d", "4.1")):
        make_machine(name, versions={"bmc": version} if version else {}, pool="train")
    bundle = make_bundle(images=[make_image("bmc", "4.2")])
    services.set_desired_bundle(
        make_platform(), bundle=bundle, actor=make_user(), reason="plan", now=NOW
    )
    return bundle


def ask(path: str = "", **query):
    return client_of("viewer").get(f"{API}{path}", query)


def test_drift_is_counted_in_all_and_per_pool(fleet):
    answer = ask().json()

    assert answer["machines"] == 4
    assert {k: n for k, n in answer["counts"].items() if n} == {
        "unknown": 1,
        "older": 2,
        "compliant": 1,
    }
    (group,) = answer["groups"]
    assert (group["platform"], group["pool"], group["bundle"]) == ("dgx-h100", "train", fleet.pk)


def test_machines_of_one_standing_are_listed_page_by_page(fleet):
    client = client_of("viewer")

    first = client.get(f"{API}/machines", {"standing": "older", "page_size": 1}).json()
    second = client.get(first["next"]).json()

    assert [row["machine"] for row in first["results"] + second["results"]] == ["a", "d"]
    assert second["next"] is None
    assert first["results"][0]["reason"] == "bmc runs 4.1, 4.2 is wanted"


def test_a_selector_narrows_and_a_bundle_replaces_what_is_wanted(fleet):
    other = make_bundle(images=[make_image("bmc", "4.1")])

    rows = ask("/machines", selector="name in (a,b)", bundle=other.pk).json()["results"]

    assert [(row["machine"], row["standing"]) for row in rows] == [
        ("a", "compliant"),
        ("b", "newer"),
    ]


def test_what_an_open_rollout_put_on_a_machine_is_what_it_is_meant_to_run(fleet):
    machine = make_machine("e", versions={"bmc": "4.3"}, pool="train")
    rollout = treat(machine, make_bundle(images=[make_image("bmc", "4.3")]))
    assert standing_of("e") == "compliant"

    Rollout.objects.filter(pk=rollout.pk).update(status="cancelled")
    assert standing_of("e") == "newer"


def treat(machine, bundle) -> Rollout:
    rollout = Rollout.objects.create(
        name="update",
        bundle=bundle,
        selector="name=e",
        plan={},
        plan_digest="x",
        seed=1,
        status="running",
        author=make_user(),
        created_at=NOW,
    )
    wave = Wave.objects.create(rollout=rollout, number=1, size=1, window_hours=1)
    Assignment.objects.create(
        rollout=rollout,
        machine=machine,
        machine_name=machine.name,
        unit=machine.name,
        stratum="",
        position=1,
        planned_wave=1,
        wave=wave,
    )
    return rollout


def standing_of(name: str) -> str:
    rows = ask("/machines").json()["results"]
    return {row["machine"]: row["standing"] for row in rows}[name]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"standing": "odler"}, "standing"),
        ({"rakc": "r1"}, "rakc"),
        ({"bundle": "0"}, "bundle"),
        ({"page_size": "0"}, "page_size"),
        ({"as_of": "2026-03-02T12:00:00"}, "as_of"),
    ],
)
def test_a_misspelt_question_is_refused_by_name(query, field):
    assert list(fields_of(ask("/machines", **query))) == [field]


def test_a_misspelt_selector_selects_nothing_and_says_so(fleet):
    answer = ask(selector="rakc=r1")

    assert (answer.status_code, answer.json()["code"]) == (400, "selector_refused")


def test_drift_needs_the_right_to_view():
    assert client_of().get(API).status_code == 403
