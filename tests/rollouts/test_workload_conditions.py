"""Workload conditions through a whole wave: said in advance, held by, explained, met."""

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from fleet import services as fleet
from fleet.models import Machine
from rollouts import policies, services
from rollouts.errors import PolicyRefused
from rollouts.explain import explain
from rollouts.models import Rollout
from rollouts.services.plans.previews import preview
from tests.factories import NOW, make_observation_report, make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import bundle_of, document, started

pytestmark = pytest.mark.django_db

CONDITION = {"workloads": ["pretraining"], "least_canaries": 5}
PLAN = {
    "workload_conditions": [CONDITION],
    "guardrails": [{"metric": "install", "required": True, "margin": 0.5}],
    "waves": [{"count": 8, "window_hours": 24}],
    "min_exposure_hours": 0,
    "extension": 0,
    "look_minutes": 720,
}


def observe(rollout: Rollout, *, workload: str) -> None:
    """Let every machine report four hours from the clock's start on."""
    start = rollout.waves.get(number=1).clock_start
    reports = [
        make_observation_report(
            machine,
            start=start,
            end=start + timedelta(hours=4),
            in_service_seconds=4 * 3600.0,
            workload=workload,
        )
        for machine in Machine.objects.all()
    ]
    fleet.record(reports, source="tests", key=workload, now=start + timedelta(hours=4))


def run_to_the_clock(driver: Driver, rollout: Rollout) -> None:
    driver.run(rollout, hours=4)
    assert rollout.waves.get(number=1).clock_start


def test_a_wave_whose_machines_ran_something_else_is_held_and_says_so(
    fake_fleet: FakeFleet, driver: Driver, client: Client
) -> None:
    rollout = started(fake_fleet, **PLAN)
    run_to_the_clock(driver, rollout)
    observe(rollout, workload="inference")

    driver.run(rollout, hours=14)

    words = "workload condition not met: 0 of 5 canaries ran pretraining"
    wave = rollout.waves.get(number=1)
    assert wave.status == "observing"
    assert any(words in condition.present for condition in explain(wave))
    assert words in rollout.decisions.order_by("-pk").first().reason
    client.force_login(make_user(is_staff=True, is_superuser=True))
    assert words in client.get(reverse("rollouts:detail", args=[rollout.pk])).content.decode()
    evaluations = client.get(f"/api/v1/rollouts/{rollout.pk}/evaluations").json()["results"]
    assert evaluations[-1]["workload_conditions"][0]["is_met"] is False

    driver.run(rollout, until="completed", hours=24)

    wave.refresh_from_db()
    assert wave.status == "held"


def test_a_wave_whose_machines_ran_what_the_plan_names_widens(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, **PLAN)
    run_to_the_clock(driver, rollout)
    observe(rollout, workload="pretraining")

    driver.run(rollout, hours=24)

    assert rollout.waves.get(number=1).status == "widened"


def test_the_preview_and_the_approval_tell_what_must_have_run(fake_fleet: FakeFleet) -> None:
    rollout = started(fake_fleet, workload_conditions=[CONDITION])
    approval = rollout.orders.get(kind="approve")
    draft = services.create_draft(
        name="another",
        bundle=bundle_of("bios"),
        selector="platform=dgx-h100",
        document=document(workload_conditions=[CONDITION]),
        author=make_user(),
        now=NOW,
    )

    words = (
        "no wave widens before 5 canaries and 5 controls, and 50 % of each, have run "
        "pretraining for 1 h"
    )
    assert approval.parameters["risk"]["terms"] == [words]
    assert preview(draft, now=NOW).summary["terms"] == [words]


@pytest.mark.parametrize(
    "condition",
    [
        {},
        {"workloads": []},
        {"workloads": ["a"], "least_share": 1.5},
        {"workloads": ["a"], "least": 3},
    ],
)
def test_a_malformed_condition_is_refused(condition: dict) -> None:
    with pytest.raises(PolicyRefused, match="workload_conditions"):
        policies.plan_from(document(workload_conditions=[condition]))
