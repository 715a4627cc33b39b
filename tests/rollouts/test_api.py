"""Rollouts over REST: orders and who may give them, records, and what is refused."""

import base64
from typing import Any

import pytest
from django.contrib.auth.models import AbstractBaseUser, Group
from django.core.management import call_command
from rest_framework.test import APIClient

import fleet.errors
import rollouts.errors
from config.api import PROBLEMS
from rollouts import roles, services
from rollouts.models import Attempt, Order, Rollout
from rollouts.services.evidence.cycles import unpack_scores
from tests.factories import NOW, make_bundle, make_user
from tests.rollouts import rows

pytestmark = pytest.mark.django_db

EVERYBODY = ("viewer", "reporter", "operator", "approver")


def member_of(*groups: str, name: str = "") -> AbstractBaseUser:
    user = make_user(name)
    user.groups.set(Group.objects.filter(name__in=groups))
    return user


def client_of(*groups: str, user: AbstractBaseUser | None = None) -> APIClient:
    client = APIClient()
    client.force_authenticate(user or member_of(*groups))
    return client


def order(client: APIClient, rollout: Rollout, kind: str, **body: Any) -> Any:
    return client.post(f"/api/v1/rollouts/{rollout.pk}/{kind}", body)


def in_status(status: str) -> Rollout:
    """A rollout in this status, by writing the row."""
    rollout = rows.submitted()
    Rollout.objects.filter(pk=rollout.pk).update(status=status)
    rollout.refresh_from_db()
    return rollout


# --- orders --------------------------------------------------------------------------------------


def test_a_rollout_goes_from_draft_to_halted_by_orders_over_the_api():
    rollout = rows.draft()
    operator, approver = client_of("operator"), client_of("approver")
    preview = operator.post(f"/api/v1/rollouts/{rollout.pk}/previews")
    digest = preview.json()["digest"]

    answers = [
        order(operator, rollout, "submit", digest=digest),
        order(approver, rollout, "approve", digest=digest),
        order(operator, rollout, "start"),
        order(operator, rollout, "pause", reason="lunch"),
        order(operator, rollout, "resume"),
        order(client_of("viewer"), rollout, "halt", reason="smoke"),
    ]

    assert [answer.status_code for answer in answers] == [201] * 6, answers[-1].content
    assert [answer.json()["kind"] for answer in answers] == [
        "submit",
        "approve",
        "start",
        "pause",
        "resume",
        "halt",
    ]
    rollout.refresh_from_db()
    assert rollout.status == "halted"


def test_every_group_may_halt_and_needs_no_reason():
    for group in EVERYBODY:
        rollout = rows.running(name=f"halted by {group}", machines=12)

        response = order(client_of(group), rollout, "halt")

        assert response.status_code == 201, (group, response.content)
        # Machines belong to one open rollout at a time.
        services.cancel(Rollout.objects.get(pk=rollout.pk), actor=rollout.author, now=NOW)


def test_an_order_without_its_permission_is_refused_and_leaves_no_trace():
    rollout = in_status("running")
    clients = {"": client_of()} | {name: client_of(name) for name in roles.GROUPS}
    before = Order.objects.count()

    for kind in roles.NEEDED:
        for group, client in clients.items():
            if not may(group, kind):
                response = order(client, rollout, kind, reason="because")

                assert response.status_code == 403, (group, kind, response.content)
                assert response.json()["code"] == "permission_denied"
    assert Order.objects.count() == before
    rollout.refresh_from_db()
    assert rollout.status == "running"


def may(group: str, kind: Order.Kind) -> bool:
    needed = roles.NEEDED[kind]
    return bool(group) and (needed == roles.HALT or needed in roles.GROUPS[group])


def test_an_order_needs_an_account():
    rollout = rows.draft()

    assert {order(APIClient(), rollout, kind).status_code for kind in roles.NEEDED} == {401}


def test_every_order_kind_has_a_permission():
    assert set(Order.Kind) == set(roles.NEEDED)


def test_an_author_may_not_approve_the_own_plan():
    both = member_of("operator", "approver")
    rollout = rows.submitted(author=both)

    response = order(client_of(user=both), rollout, "approve", digest=rollout.plan_digest)

    assert response.status_code == 403
    assert response.json()["code"] == "same_person"
    assert not Order.objects.filter(kind="approve").exists()


def test_an_order_that_the_state_forbids_is_a_conflict_that_says_what_is_possible():
    response = order(client_of("operator"), rows.draft(), "start")

    assert response.status_code == 409
    assert response.json()["code"] == "illegal_transition"
    assert "submit" in response.json()["detail"]


def test_a_plan_that_cannot_be_carried_out_names_every_reason():
    rollout = rows.draft(machines=1)

    response = order(client_of("operator"), rollout, "submit")

    assert response.status_code == 400
    assert response.json()["code"] == "plan_refused"
    assert response.json()["errors"][0]["reason"]


def test_an_override_needs_a_reason_and_somebody_else():
    rollout = in_status("halted")
    me = member_of("approver", name="me")
    member_of("approver", name="other")
    client = client_of(user=me)

    without = order(client, rollout, "override")
    alone = order(client, rollout, "override", reason="known", second_person="me")
    member_of("operator", name="weak")
    nobody = order(client, rollout, "override", reason="known", second_person="nobody")
    weak = order(client, rollout, "override", reason="known", second_person="weak")
    together = order(client, rollout, "override", reason="known", second_person="other")

    assert {item["field"] for item in without.json()["errors"]} == {"reason", "second_person"}
    assert (alone.status_code, alone.json()["code"]) == (403, "same_person")
    assert (nobody.status_code, weak.status_code) == (400, 400)
    assert (together.status_code, together.json()["second_person"]) == (201, "other")


def test_widening_a_held_wave_needs_the_right_to_override():
    rollout = rows.running()
    rollout.waves.filter(number=1).update(status="held")
    member_of("approver", name="other")
    words = {"reason": "known issue", "second_person": "other"}

    by_operator = order(client_of("operator"), rollout, "advance", **words)
    by_approver = order(client_of("approver"), rollout, "advance", **words)

    assert by_operator.status_code == 403
    assert by_approver.status_code == 201


@pytest.mark.parametrize("outcome", ["recovered", "bogus", ""])
def test_a_failed_attempt_is_triaged_by_an_accepted_word_only(outcome: str):
    attempt = failed_attempt()
    address = f"/api/v1/rollouts/{attempt.rollout_id}/attempts/{attempt.pk}/triage"

    response = client_of("operator").post(address, {"outcome": outcome})

    attempt.refresh_from_db()
    assert (response.status_code == 200) == (outcome == "recovered")
    assert attempt.triage == ("recovered" if outcome == "recovered" else "")


def test_triage_needs_the_right_to_operate():
    attempt = failed_attempt()
    address = f"/api/v1/rollouts/{attempt.rollout_id}/attempts/{attempt.pk}/triage"

    assert client_of("viewer").post(address, {"outcome": "recovered"}).status_code == 403


def failed_attempt() -> Attempt:
    rollout = rows.running()
    wave = rollout.waves.first()
    assignment = rollout.assignments.first()
    return Attempt.objects.create(
        rollout=rollout,
        wave=wave,
        block=wave.blocks.create(number=9),
        machine=assignment.machine,
        number=9,
        epoch=0,
        targets=[],
        status="never_returned",
        created_at=NOW,
    )


# --- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["submit", "start", "halt", "pause", "approve"])
def test_an_order_refuses_fields_that_it_does_not_know(kind: str):
    rollout = in_status("running")
    client = client_of("operator", "approver")

    response = order(client, rollout, kind, status="completed", verdict="widen")

    assert response.status_code == 400
    assert {item["field"] for item in response.json()["errors"]} == {"status", "verdict"}
    rollout.refresh_from_db()
    assert rollout.status == "running"


@pytest.mark.parametrize("method", ["put", "patch", "delete"])
def test_a_rollout_is_neither_edited_nor_deleted(method: str):
    rollout = rows.draft()
    client = client_of("operator", "approver")

    for body in ({"status": "approved"}, {"approver": "me"}, {"verdict": "widen"}):
        response = getattr(client, method)(f"/api/v1/rollouts/{rollout.pk}", body)

        assert response.status_code in (403, 405), body
    assert Rollout.objects.get().status == "draft"


def new_rollout(**changes: Any) -> dict[str, Any]:
    return {
        "name": "gpu 7",
        "bundle": make_bundle().pk,
        "selector": "platform=dgx-h100",
        "plan": {"looks": 10},
        **changes,
    }


def test_a_draft_shows_every_default_that_will_be_judged():
    response = client_of("operator").post("/api/v1/rollouts", new_rollout())

    assert response.status_code == 201, response.content
    assert response.json()["status"] == "draft"
    assert response.json()["plan"]["looks"] == 10
    assert response.json()["plan"]["hold_back"] == 0.1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"status": "approved"}, "status"),
        ({"approver": "me"}, "approver"),
        ({"plan_digest": "0" * 64}, "plan_digest"),
        ({"mode": "yolo"}, "mode"),
        ({"bundle": 999999}, "bundle"),
        ({"seed": -1}, "seed"),
        ({"selector": ""}, "selector"),
    ],
)
def test_a_draft_names_the_field_that_is_wrong(changes: dict[str, Any], field: str):
    response = client_of("operator").post("/api/v1/rollouts", new_rollout(**changes))

    assert response.status_code == 400
    assert [item["field"] for item in response.json()["errors"]] == [field]
    assert not Rollout.objects.exists()


def test_a_plan_with_unknown_keys_lists_each_of_them():
    plan = {"lookz": 3, "guardrails": [{"metric": "fautls"}]}

    response = client_of("operator").post("/api/v1/rollouts", new_rollout(plan=plan))

    assert response.status_code == 400
    assert response.json()["code"] == "policy_refused"
    assert len(response.json()["errors"]) == 2


def test_a_selector_that_is_wrong_makes_no_draft():
    response = client_of("operator").post("/api/v1/rollouts", new_rollout(selector="rakc=r1"))

    assert (response.status_code, response.json()["code"]) == (400, "selector_refused")


def test_a_name_that_is_taken_is_refused():
    rows.draft(name="gpu 7")

    response = client_of("operator").post("/api/v1/rollouts", new_rollout())

    assert response.status_code == 400
    assert response.json()["errors"][0]["field"] == "name"


def test_a_viewer_drafts_no_rollout():
    assert client_of("viewer").post("/api/v1/rollouts", new_rollout()).status_code == 403


# --- records -------------------------------------------------------------------------------------


def test_an_evaluation_comes_with_the_scores_that_replay_it():
    rollout = rows.running()
    decision = rows.look(rollout.waves.first(), purity=0.75)

    answer = client_of("viewer").get(
        f"/api/v1/rollouts/{rollout.pk}/evaluations/{decision.evaluation_id}"
    )

    assert answer.json()["purity"] == 0.75
    scores = unpack_scores(base64.b64decode(answer.json()["scores"]))
    assert scores == {"faults": [1, -2, 3]}
    assert answer.json()["inputs"] == {"seed": 1, "resamples": 999, "purity": 0.75}


def test_decisions_come_newest_first_and_can_be_narrowed():
    rollout = rows.running()
    wave = rollout.waves.first()
    rows.look(wave, 1)
    rows.look(wave, 2, kind="halt", code="harmful", reason="harmful: faults")
    client = client_of("viewer")

    every = client.get(f"/api/v1/rollouts/{rollout.pk}/decisions").json()["results"]
    halts = client.get(f"/api/v1/rollouts/{rollout.pk}/decisions?kind=halt").json()["results"]

    assert [row["kind"] for row in every] == ["halt", "hold"]
    assert [row["reason"] for row in halts] == ["harmful: faults"]


def test_a_rollout_says_what_it_waits_for():
    rollout = rows.submitted()

    answer = client_of("viewer").get(f"/api/v1/rollouts/{rollout.pk}/explanation").json()

    assert [condition["what"] for condition in answer] == ["approval"]


RECORDS = ("waves", "orders", "attempts", "decisions", "evaluations")


def test_records_are_of_one_rollout_only():
    rollout = rows.running()
    rows.look(rollout.waves.first())
    client = client_of("viewer")

    for what in RECORDS:
        here = client.get(f"/api/v1/rollouts/{rollout.pk}/{what}")
        nowhere = client.get(f"/api/v1/rollouts/{rollout.pk + 1}/{what}")

        assert (here.status_code, nowhere.status_code) == (200, 404), what


def test_records_are_never_written_over_the_api():
    rollout = rows.running()
    client = client_of(*EVERYBODY)

    for what in RECORDS:
        for method in ("post", "put", "patch", "delete"):
            response = getattr(client, method)(f"/api/v1/rollouts/{rollout.pk}/{what}", {})

            assert response.status_code in (403, 405), (what, method)


def test_records_need_the_right_to_view():
    rollout = rows.running()
    client = client_of()

    for what in RECORDS:
        assert client.get(f"/api/v1/rollouts/{rollout.pk}/{what}").status_code == 403, what


@pytest.mark.parametrize("address", ["rollouts", "policies", *(f"rollouts/1/{r}" for r in RECORDS)])
def test_an_unknown_filter_is_refused_everywhere(address: str):
    response = client_of("viewer").get(f"/api/v1/{address}?statsu=running")

    assert response.status_code == 400
    assert response.json()["errors"][0]["code"] == "unknown_filter"


@pytest.mark.parametrize("number", [1, 12])
@pytest.mark.parametrize("what", ["decisions", "evaluations"])
def test_lists_of_records_take_the_same_statements_however_long(
    what: str, number: int, django_assert_num_queries
):
    rollout = rows.running()
    for look in range(1, number + 1):
        rows.look(rollout.waves.first(), look)
    client = client_of("viewer")

    with django_assert_num_queries(4):  # permissions, the rollout, the page
        client.get(f"/api/v1/rollouts/{rollout.pk}/{what}")


# --- the conventions -----------------------------------------------------------------------------


def domain_errors() -> list[type[Exception]]:
    found: list[type[Exception]] = []
    for module, base in (
        (fleet.errors, fleet.errors.FleetError),
        (rollouts.errors, rollouts.errors.RolloutError),
    ):
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, base) and value is not base
        ]
    return found


@pytest.mark.parametrize("error", domain_errors(), ids=lambda error: error.__name__)
def test_every_domain_error_has_a_status_and_a_code_of_its_own(error: type[Exception]):
    assert error in PROBLEMS


def test_codes_are_unique():
    codes = [code for _, code in PROBLEMS.values()]

    assert len(codes) == len(set(codes))


def test_the_schema_is_valid_and_without_warnings(tmp_path):
    call_command(
        "spectacular", "--validate", "--fail-on-warn", "--file", str(tmp_path / "schema.yaml")
    )

    assert "/api/v1/rollouts/{id}/halt" in (tmp_path / "schema.yaml").read_text()


def test_the_documentation_page_has_no_script_of_its_own(client):
    page = client.get("/api/docs/").content.decode()

    assert "swagger-ui" in page
    assert not [part for part in page.split("<script")[1:] if "src=" not in part.split(">")[0]]


def test_an_operator_stores_a_policy_and_a_plan_copies_it():
    client = client_of("operator")

    stored = client.post(
        "/api/v1/policies", {"name": "strict", "document": {"alpha": 0.02}}, format="json"
    )
    refused = client.post(
        "/api/v1/policies", {"name": "typo", "document": {"alhpa": 0.02}}, format="json"
    )

    assert stored.status_code == 201
    assert (stored.data["name"], stored.data["version"]) == ("strict", 1)
    assert refused.status_code == 400
    assert "alhpa" in str(refused.data)


def test_a_viewer_stores_no_policy():
    body = {"name": "strict", "document": {"alpha": 0.02}}

    answer = client_of("viewer").post("/api/v1/policies", body, format="json")

    assert answer.status_code == 403
