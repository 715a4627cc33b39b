"""The pages of gates: checks by hand, what is missing, reviews, plans."""

import json

import pytest
from django.contrib.auth.models import Group
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from fleet import clock, services
from fleet.models import Gate, GatePlan
from tests.factories import NOW, make_gate, make_machine, make_user, read_gate, run_checks

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def the_clock_stands_still():
    clock.set_mode("stepped", at=NOW)


def client_of(*groups):
    user = make_user()
    user.groups.set(Group.objects.filter(name__in=groups))
    client = Client()
    client.force_login(user)
    client.user = user
    return client


def read_back_gate(**fields):
    return read_gate(make_gate(make_machine(versions={"bmc": "4.1"}), **fields))


def path_of(gate, name="settings"):
    return reverse("fleet:gate-report", args=[gate.pk, gate.checks.get(name=name).pk])


def form_of(gate, name="settings", **said):
    check = gate.checks.get(name=name)
    whole = {"value": "0", "unit": check.unit, "reference": "log 1"} | said
    return {f"check-{check.pk}-{field}": value for field, value in whole.items()}


def test_a_technician_reports_a_check_with_its_evidence_without_javascript():
    client, gate = client_of("technician"), read_back_gate()
    file = SimpleUploadedFile("settings.txt", b"same\n")

    answer = client.post(path_of(gate), form_of(gate, reference="", file=file))

    result = gate.checks.get(name="settings").results.get()
    assert answer.status_code == 302
    assert (result.is_passed, result.user, result.evidence.get().name) == (
        True,
        client.user,
        "settings.txt",
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"value": ""}, "a value is needed"),
        ({"reference": ""}, "this check needs evidence"),
        ({"value": "nan"}, "Enter a number."),
    ],
)
def test_what_is_missing_in_a_form_is_asked_for_before_the_check_fails(said, words):
    client, gate = client_of("technician"), read_back_gate()

    answer = client.post(path_of(gate), form_of(gate, **said))

    assert answer.status_code == 400
    assert words in answer.content.decode()
    assert not gate.checks.get(name="settings").results.exists()


def test_the_page_says_what_is_missing_and_offers_forms_for_the_present_stage_only():
    client, gate = client_of("technician"), read_back_gate()

    shown = client.get(reverse("fleet:gate", args=[gate.pk])).content.decode()

    assert "What is missing" in shown
    assert path_of(gate) in shown
    assert path_of(gate, "dcgm_r2") not in shown


def test_a_viewer_sees_gates_and_runs_none():
    client, gate = client_of("viewer"), read_back_gate()

    shown = client.get(reverse("fleet:gate", args=[gate.pk])).content.decode()

    assert path_of(gate) not in shown
    assert client.post(path_of(gate), form_of(gate)).status_code == 403
    assert f"/gates/{gate.pk}/" in client.get(reverse("fleet:gates")).content.decode()


def awaiting_review():
    gate = run_checks(read_back_gate(kind="host_part_swap"))
    run_checks(gate, now=gate.observe_until)
    read_gate(gate, now=gate.observe_until)
    services.end_observations(now=gate.observe_until)
    clock.step_to(gate.observe_until)
    return gate


def test_a_reviewer_releases_the_machine_with_a_reason():
    client, gate = client_of("reviewer"), awaiting_review()
    path = reverse("fleet:gate-review", args=[gate.pk])

    shown = client.get(path).content.decode()
    lacking = client.post(path, {"verdict": "accept"})
    answer = client.post(path, {"verdict": "accept", "reason": "all logs read"})

    assert "What was shown" in shown
    assert lacking.status_code == 400
    assert answer.status_code == 302
    assert Gate.objects.get(pk=gate.pk).status == "passed"


def test_the_list_begins_with_gates_that_keep_machines_out_and_not_with_those_of_rollouts():
    of_repair = make_gate(make_machine("repaired"))
    of_rollout = make_gate(make_machine("updated"))
    Gate.objects.filter(pk=of_rollout.pk).update(made_for="rollout:1/wave:1")
    client, path = client_of("viewer"), reverse("fleet:gates")

    plain = client.get(path).context["listed"]
    asked = client.get(path, {"status": "unfinished", "whose": "rollouts"}).context["listed"]

    assert plain == [of_repair]
    assert asked == [of_rollout]


def test_an_unknown_status_in_the_list_is_refused():
    answer = client_of("viewer").get(reverse("fleet:gates"), {"status": "opne"})

    assert answer.status_code == 400


def test_a_failed_gate_is_tried_again_from_its_page():
    client, gate = client_of("technician"), read_back_gate()
    client.post(path_of(gate), form_of(gate, value="2"))

    answer = client.post(reverse("fleet:gate-retry", args=[gate.pk]))

    assert answer.status_code == 302
    assert Gate.objects.get(retry_of=gate).status == "open"


def test_plans_are_shown_and_get_a_version_from_the_page():
    client, plan = client_of("approver"), GatePlan.objects.get(kind="thermal", level=0)
    form = {
        "kind": "thermal",
        "level": 0,
        "title": "Ours",
        "workload": plan.workload,
        "observation_hours": 12,
        "review": "human",
    }
    path = reverse("fleet:gate-plan-new", args=[plan.pk])

    refused = client.post(path, {**form, "checks": "[]"})
    answer = client.post(path, {**form, "checks": json.dumps(plan.checks)})

    assert "a plan needs at least one check" in refused.content.decode()
    assert answer.status_code == 302
    assert "Ours" in client.get(reverse("fleet:gate-plans")).content.decode()
    assert client.get(path).status_code == 200
