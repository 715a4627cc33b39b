"""Dry runs: what an order would move, refused like the order itself, and nothing is written."""

from typing import Any

import pytest

from fleet.models import FirmwareBundle, Machine
from rollouts import services, tasks
from rollouts.models import AttemptEvent, Order, Rollout, Transition
from tests.factories import NOW, make_bundle, make_image, make_machines, make_user
from tests.rollouts import rows
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import document, started
from tests.rollouts.test_api import client_of

pytestmark = pytest.mark.django_db


def written() -> tuple[Any, ...]:
    """All that an order could leave behind."""
    found = Rollout.objects.order_by("pk").values_list("pk", "status", "epoch", "due_at")
    counts = [model.objects.count() for model in (Order, Transition, AttemptEvent)]
    return (*found, *counts, *FirmwareBundle.objects.values_list("pk", "status"))


def dry(path: str, *groups: str, **body: Any) -> Any:
    return client_of(*groups).post(f"/api/v1/{path}?dry_run=true", body)


def test_a_dry_halt_says_what_it_would_stop_and_stops_nothing(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, caps={"max_in_flight": 2, "max_unavailable_share": None})
    tasks.evaluate(rollout.pk)
    before = written()

    answer = dry(f"rollouts/{rollout.pk}/halt", "viewer", reason="what if")

    assert answer.status_code == 200, answer.content
    [told] = answer.json()["orders"]
    assert (told["kind"], told["rollout"]) == ("halt", rollout.pk)
    moves = [(one["wave"], one["old_status"], one["new_status"]) for one in told["moves"]]
    assert moves == [(None, "running", "halted"), (1, "installing", "halted")]
    assert told["attempts"] == {"called_off": 6}
    assert written() == before


def test_a_dry_order_is_refused_with_the_words_of_the_order_itself() -> None:
    rollout = rows.submitted()
    services.withdraw_bundle(rows.draft(name="other").bundle, actor=make_user(), now=NOW)
    FirmwareBundle.objects.filter(pk=rollout.bundle_id).update(status="withdrawn")

    answer = dry(f"rollouts/{rollout.pk}/approve", "approver", digest=rollout.plan_digest)

    assert answer.status_code == 409
    assert "is withdrawn, not approved" in str(answer.json())


def test_a_dry_order_needs_the_right_that_the_order_needs() -> None:
    rollout = rows.submitted()

    answer = dry(f"rollouts/{rollout.pk}/approve", "viewer", digest=rollout.plan_digest)

    assert answer.status_code == 403


def test_a_dry_run_of_halting_all_and_of_withdrawing_names_each_rollout() -> None:
    running = rows.running(name="one", machines=12)
    Machine.objects.update(state="retired", may_take_work=False)  # so that both have their own
    paused = rows.running(name="two", machines=12)
    services.pause(paused, actor=paused.author, now=NOW)
    before = written()

    every = dry("rollouts/halt_all", "viewer").json()["orders"]
    own = dry(f"bundles/{running.bundle_id}/withdraw", "operator", "approver").json()["orders"]

    assert {one["rollout"] for one in every} == {running.pk, paused.pk}
    assert {one["rollout"] for one in own} == {running.pk}
    assert written() == before


def test_a_dry_draft_is_drawn_and_not_written_down() -> None:
    make_machines(30, versions={"bmc": "1.0"})
    body = {
        "name": "what if",
        "bundle": make_bundle(images=[make_image("bmc", "2.0")]).pk,
        "selector": "platform=dgx-h100",
        "plan": document(waves=[{"count": 8, "window_hours": 2}], burn_in_hours=4),
    }

    answer = client_of("operator").post("/api/v1/rollouts?dry_run=true", body)

    assert answer.status_code == 200, answer.content
    told = answer.json()
    assert len(told["digest"]) == 64
    assert told["summary"]["machines"] == 30
    assert any("burn-in" in reason for reason in told["summary"]["refusals"])
    assert not Rollout.objects.exists()


def test_a_dry_run_that_says_neither_true_nor_false_does_nothing() -> None:
    rollout = rows.running()
    before = written()

    answer = client_of("viewer").post(f"/api/v1/rollouts/{rollout.pk}/halt?dry_run=yes")

    assert answer.status_code == 400
    assert "accepted: true, false" in str(answer.json())
    assert written() == before
