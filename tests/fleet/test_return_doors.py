"""Every door of the way back, tried by everybody: who may, who may not, and without a token."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import NoReverseMatch, URLPattern, reverse
from rest_framework.test import APIClient

from fleet import services
from fleet import urls as page_urls
from fleet.api import urls as api_urls
from fleet.models import BreakGlass, Incident, Machine
from tests.factories import NOW, make_bundle, make_fault_report, make_gate, make_machine, make_user
from tests.fleet.repairs_world import make_broken, ordered

pytestmark = pytest.mark.django_db

GROUPS = ("viewer", "reporter", "operator", "technician", "reviewer", "approver")
HANDS, WORK = {"operator", "technician", "reviewer"}, {"operator", "technician"}
REPORT = {"reporter", "operator"}

#: Who gets in, by route and method; what every group may read is not among them.
API: dict[tuple[str, str], set[str]] = {
    ("machine-detail", "delete"): {"operator"},
    ("machine-break-glass", "post"): {"operator"},
    ("machine-cordon", "post"): WORK,
    ("machine-lift", "post"): WORK,
    ("machine-hand-over", "post"): HANDS,
    ("machine-take", "post"): HANDS,
    ("machine-take-out", "post"): WORK,
    ("machine-diagnose-again", "post"): WORK,
    ("machine-claims", "post"): WORK,
    ("machine-swaps", "post"): WORK,
    ("machine-swaps-preview", "post"): WORK,
    ("repair-list", "post"): WORK,
    ("repair-start", "post"): WORK,
    ("repair-send-away", "post"): WORK,
    ("repair-close", "post"): WORK,
    ("repair-cancel", "post"): WORK,
    ("repair-evidence", "post"): WORK,
    ("gate-partner", "post"): WORK,
    ("gate-retry", "post"): WORK,
    ("gate-review", "post"): {"reviewer"},
    ("gate-check-claim", "post"): WORK,
    ("gate-check-give-back", "post"): WORK,
    ("gate-check-report", "post"): WORK,
    ("gate-plan-list", "post"): {"approver"},
    ("incident-case", "post"): WORK,
    ("incident-diagnose", "post"): WORK,
    ("incident-link", "post"): WORK,
    ("incident-name-cause", "post"): WORK,
    ("incident-note", "post"): WORK,
    ("impact-list", "post"): REPORT | WORK,
    ("impact-batch", "post"): REPORT | WORK,
    ("break-glass-review", "post"): {"reviewer"},
    ("image-list", "post"): {"operator"},
    ("bundle-list", "post"): {"operator"},
    ("bundle-approve", "post"): {"approver"},
    ("desired-list", "post"): {"approver"},
    ("telemetry-faults", "post"): REPORT,
    ("telemetry-counters", "post"): REPORT,
    ("telemetry-observations", "post"): REPORT,
    ("telemetry-recoveries", "post"): REPORT,
    # A person's own tokens, which carry no more than the person may.
    ("token-list", "post"): set(GROUPS),
    ("token-detail", "delete"): set(GROUPS),
}
#: Pages that change something; the same people as over REST.
PAGES: dict[str, set[str]] = {
    "gate-report": WORK,
    "gate-partner": WORK,
    "gate-retry": WORK,
    "gate-review": {"reviewer"},
    "gate-plan-new": {"approver"},
    "machine-take": HANDS,
    "machine-hand-over": HANDS,
    "machine-take-out": WORK,
    "machine-diagnose-again": WORK,
    "machine-cordon": WORK,
    "machine-lift": WORK,
    "machine-retire": {"operator"},
    "machine-break-glass": {"operator"},
    "machine-review-glass": {"reviewer"},
    "incident-diagnose": WORK,
    "incident-cause": WORK,
    "incident-link": WORK,
    "incident-case": WORK,
    "incident-note": WORK,
    "incident-impact": REPORT | WORK,
    "repair-new": WORK,
    "repair-start": WORK,
    "repair-send-away": WORK,
    "repair-cancel": WORK,
    "repair-close": WORK,
    "repair-evidence": WORK,
    "machine-claim": WORK,
    "machine-swap": WORK,
}


@pytest.fixture
def world() -> dict[str, Any]:
    """One of everything that a route may name."""
    machine = make_machine("m1", versions={"bmc": "4.1"})
    gate = make_gate(machine)
    repair = ordered(make_broken("m2"))
    services.record([make_fault_report(machine)], source="t", key="k", now=NOW)
    services.record_incidents(now=NOW)
    glass = BreakGlass.objects.create(
        machine=repair.machine, person=make_user(), reason="x", old_state="observing",
        began_at=NOW, until=NOW.replace(year=2027),
    )  # fmt: skip
    cordon = services.cordon(machine, owner="somebody", reason="x", now=NOW)
    return {
        "gate": gate.pk,
        "check": gate.checks.first().pk,
        "plan": gate.plan_id,
        "repair": repair.pk,
        "incident": Incident.objects.get().pk,
        "glass": glass.pk,
        "cordon": cordon.pk,
        "bundle": make_bundle().pk,
        "machine": machine.name,
    }


def routes(patterns: Any) -> Iterator[URLPattern]:
    for one in patterns:
        if isinstance(one, URLPattern):
            yield one
        else:
            yield from routes(one.url_patterns)


def api_doors() -> set[tuple[str, str]]:
    found = set()
    for one in routes(api_urls.urlpatterns):
        view = one.callback
        methods = getattr(view, "actions", None) or {
            method: "" for method in ("post", "put", "patch", "delete") if hasattr(view.cls, method)
        }
        found |= {(one.name, method) for method in methods if method not in ("get", "head")}
    return found - {("tickets", "post")}  # signed, by no person


def api_address(name: str, world: dict[str, Any]) -> str:
    kind = next(
        (kind for kind in ("gate-check", "gate", "repair", "incident", "break-glass", "bundle",
                           "machine", "token") if name.startswith(kind + "-")), ""
    )  # fmt: skip
    if kind == "machine":
        arguments = {"name": world["machine"]}
    elif kind == "token":
        arguments = {"token_key": "0" * 8}
    else:
        key = {"gate-check": "check", "break-glass": "glass"}.get(kind, kind)
        arguments = {"pk": world.get(key)}
    try:
        return reverse(name, kwargs=arguments)
    except NoReverseMatch:
        return reverse(name)


def page_address(name: str, world: dict[str, Any]) -> str:
    route = next(one for one in fleet_pages() if one.name == name)
    names = set(route.pattern.converters)
    kind = {"gate-plan-new": "plan", "machine-lift": "cordon", "machine-review-glass": "glass"}
    key = kind.get(name) or name.partition("-")[0]
    given = {"name": world["machine"], "pk": world.get(key), "check": world["check"]}
    if name == "machine-review-glass":
        given["name"] = "m2"
    return reverse(f"fleet:{name}", kwargs={one: given[one] for one in names})


def fleet_pages() -> list[URLPattern]:
    return list(routes(page_urls.urlpatterns))


def member(group: str) -> Any:
    user = make_user(group or "stranger")
    if group:
        user.groups.add(Group.objects.get(name=group))
    return user


def test_every_door_of_the_api_says_who_may_use_it():
    assert api_doors() == set(API)


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_only_who_may_gets_through_the_doors_of_the_api(group, world):
    client = APIClient(raise_request_exception=False)
    client.force_authenticate(member(group))

    let_in = {
        (name, method)
        for name, method in API
        if getattr(client, method)(api_address(name, world), {}, format="json").status_code != 403
    }

    expected = {door for door, groups in API.items() if group in groups}
    assert let_in - {("token-list", "post"), ("token-detail", "delete")} == expected - {
        ("token-list", "post"),
        ("token-detail", "delete"),
    }


def test_no_door_of_the_api_fails_inside_whatever_is_sent(world):
    client = APIClient(raise_request_exception=False)
    client.force_authenticate(make_user(is_superuser=True))
    odd: list[Any] = [{}, [], "x", 1e308, None, {"reason": {"a": [1]}}, {"swaps": [{}] * 70}]

    answers = {
        (*door, number): getattr(client, door[1])(
            api_address(door[0], world), body, format="json"
        ).status_code
        for door in API
        for number, body in enumerate(odd)
    }

    assert not {key: code for key, code in answers.items() if code >= 500}


TAG = "<script>alert(1)</script>\u202e"


def test_what_people_write_is_shown_and_never_run(world):
    ann = make_user("ann", is_superuser=True, is_staff=True)
    client, api = Client(), APIClient(raise_request_exception=False)
    client.force_login(ann)
    api.force_authenticate(ann)
    words: dict[str, Any] = {
        "cordon": {"reason": TAG},
        "hand-over": {"word": TAG},
        "take-out": {"reason": TAG},
    }
    for action, body in words.items():
        api.post(f"/api/v1/machines/m1/{action}", body, format="json")
    incident, repair = world["incident"], world["repair"]
    said = {"diagnosis": TAG, "cause": "hardware", "component": TAG}
    api.post(f"/api/v1/incidents/{incident}/diagnose", said, format="json")
    api.post(f"/api/v1/incidents/{incident}/note", {"said": TAG}, format="json")
    api.post(f"/api/v1/repairs/{repair}/start", {"note": TAG}, format="json")
    services.raise_notice(Machine.objects.get(name="m1"), "odd", TAG, now=NOW)

    pages = {name: client.get(page_address(name, world)) for name in SHOWN}

    assert {answer.status_code for answer in pages.values()} == {200}
    shown = "".join(answer.content.decode() for answer in pages.values())
    assert "<script>alert(1)" not in shown
    assert shown.count("&lt;script&gt;alert(1)") >= 4


SHOWN = ("machine", "gate", "incident", "repair", "cordons", "notices", "incidents", "repairs")


def test_nobody_gets_through_the_doors_of_the_api_without_a_name(world):
    client = APIClient()

    answers = {
        door: getattr(client, door[1])(api_address(door[0], world), {}, format="json").status_code
        for door in API
    }

    assert set(answers.values()) == {401}, answers


def changing_pages(world: dict[str, Any]) -> set[str]:
    client = Client(raise_request_exception=False)
    client.force_login(make_user(is_superuser=True, is_staff=True))
    names = [one.name for one in fleet_pages()]
    addresses = {}
    for name in names:
        try:
            addresses[name] = page_address(name, world)
        except (KeyError, NoReverseMatch):
            continue
    answers = {name: client.post(address).status_code for name, address in addresses.items()}
    assert not {name: code for name, code in answers.items() if code >= 500}
    return {name for name, code in answers.items() if code != 405}


def test_every_page_that_changes_something_says_who_may_use_it(world):
    assert changing_pages(world) == set(PAGES)


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_only_who_may_gets_through_the_pages(group, world):
    client = Client(raise_request_exception=False)
    client.force_login(member(group))

    let_in = {name for name in PAGES if client.post(page_address(name, world)).status_code != 403}

    assert let_in == {name for name, groups in PAGES.items() if group in groups}


def test_no_page_changes_anything_without_its_token(world):
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user(is_superuser=True, is_staff=True))
    before = list(Machine.objects.order_by("pk").values())

    answers = {name: client.post(page_address(name, world)).status_code for name in PAGES}

    assert set(answers.values()) == {403}, answers
    assert list(Machine.objects.order_by("pk").values()) == before
