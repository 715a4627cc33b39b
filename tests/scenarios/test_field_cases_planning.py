"""Planning: what a preview shows is what submitting it does, at any size."""

import json
import random
import re
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from fleet import services as fleet
from fleet.models import Cordon, FirmwareBundle, Job, Machine
from rollouts import pipeline, planning, services
from rollouts.errors import ApprovalExpired, PlanChanged, PlanRefused
from rollouts.models import Assignment, Order, Preview, Rollout
from rollouts.services.plans.previews import members_of
from tests.factories import (
    NOW,
    make_bundle,
    make_image,
    make_machines,
    make_reading,
    make_user,
)
from tests.rollouts.plans import NEW, OLD, bundle_of, document
from tests.rollouts.test_api import client_of, order

pytestmark = pytest.mark.django_db


def fleet_of(number: int, *, racks: int = 100, first: int = 0, **fields: Any) -> None:
    rows = [
        {
            "name": f"n{index:05}",
            "platform": "dgx-h100",
            "rack": f"r{index % racks}",
            "pool": "train",
            "components": [{"kind": "bmc", "version": OLD}],
            **fields,
        }
        for index in range(first, first + number)
    ]
    fleet.register_platform("dgx-h100")
    fleet.register_machines(rows, now=NOW, vouched_by="tests")


def four_waves(**changes: Any) -> Rollout:
    """1 % / 9 % / 30 % / rest, at most two of a rack at once, nobody held back at the end."""
    waves = [{"share": 0.01}, {"share": 0.09}, {"share": 0.30}, {"rest": True}]
    return services.create_draft(
        name="bmc 2",
        bundle=bundle_of("bmc"),
        selector="platform=dgx-h100",
        document=document(
            waves=[{**wave, "window_hours": 48} for wave in waves],
            caps={"per_rack": 2, "max_unavailable_share": None},
            hold_back=0.1,
            **changes,
        ),
        author=make_user(),
        now=NOW,
        seed=7,
    )


def page_digest(rollout: Rollout) -> str:
    """Preview on the page, and read the digest that its form would submit."""
    client = Client()
    client.force_login(make_user(is_superuser=True, is_staff=True))
    shown = client.post(reverse("rollouts:preview", args=[rollout.pk]), follow=True)
    found = re.search(r'name="digest" value="([0-9a-f]{64})"', shown.content.decode())
    assert found, shown.content.decode()
    return found[1]


def command_digest(rollout: Rollout) -> str:
    out = StringIO()
    call_command("preview", rollout.name, "--json", stdout=out)
    return str(json.loads(out.getvalue())["digest"])


# --- S10: the preview and the saved rollout ------------------------------------------------------


def test_page_api_and_command_preview_under_one_digest_and_submitting_it_saves_exactly_that():
    fleet_of(1000)
    rollout = four_waves()
    operator = client_of("operator")

    by_api = operator.post(f"/api/v1/rollouts/{rollout.pk}/previews").json()
    digests = {by_api["digest"], page_digest(rollout), command_digest(rollout)}
    answer = order(operator, rollout, "submit", digest=by_api["digest"])

    assert len(digests) == 1
    assert answer.status_code == 201, answer.content
    rollout.refresh_from_db()
    assert rollout.plan_digest == by_api["digest"]
    sizes = [wave["machines"] for wave in by_api["summary"]["waves"]]
    assert sizes == [9, 81, 270, 540, 100]
    assert sizes == list(rollout.waves.order_by("number").values_list("size", flat=True))
    promised = {
        (row["machine"], row["stratum"], row["position"], row["wave"])
        for row in members_of(rollout.previews.get())
    }
    assert promised == set(
        rollout.assignments.values_list("machine_name", "stratum", "position", "planned_wave")
    )


def test_a_fleet_that_changed_since_the_preview_is_told_by_name_and_nothing_is_saved():
    fleet_of(1000)
    rollout = four_waves()
    operator = client_of("operator")
    digest = operator.post(f"/api/v1/rollouts/{rollout.pk}/previews").json()["digest"]
    fleet_of(3, first=1000)
    Machine.objects.filter(name="n00004").update(state="diagnosing", may_take_work=False)

    answer = order(operator, rollout, "submit", digest=digest)

    assert answer.status_code == 409
    told = answer.json()
    assert told["code"] == "plan_changed"
    assert told["detail"].startswith("fleet changed: 3 added, 1 left")
    named = [error["reason"] for error in told["errors"]]
    assert named[:4] == [
        "added: n01000",
        "added: n01001",
        "added: n01002",
        "left: n00004 (not in service: diagnosing)",
    ]
    rollout.refresh_from_db()
    assert (rollout.status, rollout.assignments.count()) == ("draft", 0)


def test_a_draft_that_was_previewed_is_not_submitted_as_something_else_without_its_digest():
    make_machines(40, versions={"bmc": OLD})
    rollout = four_waves()
    services.preview(rollout, now=NOW)
    make_machines(1, versions={"bmc": OLD})

    with pytest.raises(PlanChanged, match="1 added, 0 left"):
        services.submit(rollout, actor=rollout.author, now=NOW)


def test_a_digest_that_no_preview_had_is_refused():
    make_machines(40, versions={"bmc": OLD})
    rollout = four_waves()

    with pytest.raises(PlanChanged, match="no preview of bmc 2 has the digest 'ffff'"):
        services.submit(rollout, actor=rollout.author, now=NOW, digest="ffff")


def test_who_joins_moves_nobody_past_anybody_else():
    make_machines(40, versions={"bmc": OLD})
    rollout = four_waves()
    before = [row["machine"] for row in members_of(services.preview(rollout, now=NOW))]
    joined = {machine.name for machine in make_machines(10, versions={"bmc": OLD})}

    after = [row["machine"] for row in members_of(services.preview(rollout, now=NOW))]

    assert [name for name in after if name not in joined] == before
    assert Preview.objects.filter(rollout=rollout).count() == 2


def test_everybody_in_a_preview_is_listed_page_by_page():
    make_machines(40, versions={"bmc": OLD})
    rollout = four_waves()
    seen = services.preview(rollout, now=NOW)
    client = client_of("viewer")
    address = f"/api/v1/rollouts/{rollout.pk}/previews/{seen.digest}/machines"

    listed = []
    page = {"next": f"{address}?page_size=15"}
    while page["next"]:
        page = client.get(page["next"]).json()
        listed += page["results"]
    of_wave = client.get(address, {"wave": 3}).json()["results"]

    assert listed == members_of(seen)
    assert of_wave == [row for row in listed if row["wave"] == 3]
    assert client.get(address, {"page_size": 0}).status_code == 400
    assert client.get(address, {"wav": 3}).status_code == 400


def test_only_an_operator_previews_and_only_a_draft():
    make_machines(40, versions={"bmc": OLD})
    rollout = four_waves()
    address = f"/api/v1/rollouts/{rollout.pk}/previews"

    by_viewer = client_of("viewer").post(address)
    services.submit(rollout, actor=rollout.author, now=NOW)
    too_late = client_of("operator").post(address)

    assert by_viewer.status_code == 403
    assert (too_late.status_code, too_late.json()["code"]) == (409, "order_refused")


# --- who is left out, and what it costs ----------------------------------------------------------


def test_a_preview_says_of_everybody_selected_who_is_left_out_and_why():
    make_machines(30, versions={"bmc": OLD})
    busy, cordoned, new, odd = make_machines(
        4, names=["busy", "cordoned", "new", "odd"], versions={"bmc": OLD}
    )
    Machine.objects.filter(pk=busy.pk).update(state="repairing", may_take_work=False)
    Cordon.objects.create(machine=cordoned, owner="ops", reason="noisy fan", since=NOW)
    fleet.record_readings(new, [make_reading(version=NEW)], now=NOW)
    fleet.record_readings(odd, [make_reading(version="A7")], now=NOW)
    rollout = four_waves()

    left_out = {
        tuple(group["first"]): group["reason"]
        for group in services.preview(rollout, now=NOW).summary["excluded"]
    }

    assert left_out == {
        ("busy",): "not in service: repairing",
        ("cordoned",): "cordoned by ops",
        ("new",): "runs the bundle already",
        ("odd",): "blocked: version can't be ordered: bmc A7 against 2.0 (dotted)",
    }


def test_machines_that_cannot_go_back_are_named_before_and_kept_with_the_assignment():
    make_machines(40, versions={"bmc": "1.5"})  # no image of this version is kept
    rollout = four_waves()

    shown = services.preview(rollout, now=NOW).summary["irreversible"]
    services.submit(rollout, actor=rollout.author, now=NOW)

    (group,) = shown
    assert group["count"] == 40
    assert group["reason"] == "no image of bmc 1.5 is kept to go back to"
    kept = Assignment.objects.filter(rollout=rollout).values_list("irreversible", flat=True)
    assert set(kept) == {group["reason"]}


def test_the_drain_calendar_waits_for_jobs_to_end_and_says_whose_they_are():
    fleet_of(39, racks=39)
    fleet_of(1, first=39, job="train-7")
    Job.objects.create(
        name="train-7", owner="vision", expected_end=NOW + timedelta(hours=30), seen_at=NOW
    )
    rollout = four_waves()

    seen = services.preview(rollout, now=NOW)

    summary = seen.summary
    assert summary["calendar"]["owners"] == [
        {"owner": "vision", "jobs": 1, "machines": 1, "machine_hours": 1.5}
    ]
    assert summary["calendar"]["machine_hours"] == 60.0  # 40 machines, 60 + 30 minutes each
    (waiting,) = [row for row in members_of(seen) if row["job"]]
    assert waiting["starts_in_hours"] >= 30
    (pool,) = summary["capacity"]
    assert (pool["pool"], pool["machines"], pool["machine_hours"]) == ("train", 40, 60.0)


def test_machines_whose_turn_nobody_can_tell_cost_their_hours_all_the_same():
    fleet_of(30, racks=30)
    fleet_of(10, first=30, job="train-8")
    Job.objects.create(name="train-8", owner="vision", seen_at=NOW)

    summary = services.preview(four_waves(), now=NOW).summary

    assert summary["calendar"]["unknown_start"] == 10
    assert summary["calendar"]["machine_hours"] == 60.0  # at most, so of all 40
    assert [pool["machine_hours"] for pool in summary["capacity"]] == [60.0]


@pytest.mark.parametrize(("kind", "blocks"), [("bmc", True), ("nic", False)])
def test_another_rollout_is_in_the_way_only_where_it_writes_the_same_parts(kind: str, blocks: bool):
    make_machines(40, versions={"bmc": OLD, "nic": OLD})
    first = four_waves()
    services.submit(first, actor=first.author, now=NOW)
    second = services.create_draft(
        name="second",
        bundle=make_bundle(images=[make_image(kind, "3.0")]),
        selector="platform=dgx-h100",
        document=document(),
        author=make_user(),
        now=NOW,
    )

    summary = services.preview(second, now=NOW).summary

    (conflict,) = summary["conflicts"]
    assert (conflict["rollout"], conflict["kinds"], conflict["blocks"]) == (
        "bmc 2",
        ["bmc"],
        blocks,
    )
    assert conflict["machines"]["count"] == 40
    assert any("in rollout 'bmc 2' already" in why for why in summary["refusals"]) is blocks


def test_machines_that_the_bundle_is_not_for_refuse_the_plan_with_every_reason_at_once():
    make_machines(30, versions={"bmc": OLD})
    fleet.record_readings(make_machines(1, names=["odd"])[0], [make_reading(version="A7")], now=NOW)
    make_machines(1, names=["other"], platform="hgx-b200", versions={"bmc": OLD})
    bundle = bundle_of("bmc")
    services.withdraw_bundle(bundle, actor=make_user(), now=NOW, reason="bricks")
    bundle.refresh_from_db()
    fields = {"bundle": bundle, "selector": "name", "author": make_user(), "now": NOW}
    strict, lenient = (
        services.create_draft(
            name=f"leaves out: {leaves_out}",
            document=document(
                leave_out_unfit=leaves_out,
                waves=[{"count": 30, "window_hours": 2}],
                burn_in_hours=4,
                hold_back=0.0,
            ),
            **fields,
        )
        for leaves_out in (False, True)
    )

    with pytest.raises(PlanRefused) as refused:
        services.submit(strict, actor=strict.author, now=NOW)
    with pytest.raises(PlanRefused) as left_out:
        services.submit(lenient, actor=lenient.author, now=NOW)

    said = [
        "withdrawn, not approved",
        "1 selected machines (odd): blocked: version can't be ordered: bmc A7 against 2.0",
        "1 selected machines (other): platform hgx-b200 is not covered by bundle",
        "a window of 2 h is not longer than the burn-in of 4 h",
        "leaves no control",
    ]
    for part in said:
        assert any(part in reason for reason in refused.value.reasons), refused.value.reasons
    assert not any("selected machines" in reason for reason in left_out.value.reasons)


# --- approval ------------------------------------------------------------------------------------


def test_an_approval_signs_the_risk_in_words_under_the_digest_that_was_seen():
    make_machines(200, versions={"bmc": OLD})
    rollout = four_waves(guardrails=[{"metric": "faults", "margin_ratio": 2.0}])
    services.submit(rollout, actor=rollout.author, now=NOW)
    approver = client_of("approver")

    stale = order(approver, rollout, "approve", digest="0" * 64)
    without = order(approver, rollout, "approve")
    answer = order(approver, rollout, "approve", digest=rollout.plan_digest)

    assert (stale.status_code, stale.json()["code"]) == (409, "plan_changed")
    assert without.status_code == 400
    assert answer.status_code == 201, answer.content
    signed = Order.objects.get(kind="approve").parameters
    assert signed["plan_digest"] == rollout.plan_digest == signed["risk"]["plan_digest"]
    assert signed["risk"]["on_halt"]["succeeded"] == "leave"
    assert [wave["number"] for wave in signed["risk"]["waves"]] == [1, 2, 3, 4]
    (word,) = signed["risk"]["waves"][0]["words"]
    assert word == "faults: can rule out nothing, the margin is × 2.0; halts on: unknown"


def test_an_approval_expires_and_is_asked_for_anew():
    make_machines(40, versions={"bmc": OLD})
    rollout = four_waves(approval_days=2)
    services.submit(rollout, actor=rollout.author, now=NOW)
    services.approve(rollout, actor=make_user(), now=NOW)
    later = NOW + timedelta(days=2)

    with pytest.raises(ApprovalExpired, match="expired 2026-03-04 12:00 UTC"):
        services.start(rollout, actor=rollout.author, now=later)
    expired = [services.expire_approvals(now=at) for at in (later - timedelta(hours=1), later)]

    rollout.refresh_from_db()
    assert expired == [0, 1]
    assert (rollout.status, rollout.approver) == ("awaiting_approval", None)
    services.approve(rollout, actor=make_user(), now=later)
    services.start(rollout, actor=rollout.author, now=later)
    assert rollout.status == "running"


# --- S14: percentages that round to nothing or to everything -------------------------------------


def test_waves_of_any_population_up_to_two_thousand_add_up_and_leave_nobody_twice():
    draw = random.Random(14)
    for population in range(1, 2001):
        cuts = sorted(round(draw.random(), 3) for _ in range(draw.randint(0, 4)))
        shares = [b - a for a, b in zip([0, *cuts], [*cuts, 1], strict=True)]
        specs = [planning.WaveSpec(share=round(share, 3)) for share in shares if share > 0]

        sizes = planning.wave_sizes(population, specs, hold_back=0.0)

        assert sum(sizes) == population, (population, shares)
        assert all(
            abs(size - population * planning.exact(spec.share)) < 1
            for size, spec in zip(sizes, specs, strict=True)
        )


def test_a_wave_that_rounding_leaves_empty_is_shown_as_empty():
    make_machines(40, versions={"bmc": OLD})
    rollout = four_waves()

    waves = services.preview(rollout, now=NOW).summary["waves"]

    assert [(wave["machines"], wave["is_empty"]) for wave in waves] == [
        (1, False),
        (3, False),
        (11, False),
        (21, False),
        (4, False),
    ]


# --- S15: works with ten machines, and past a thousand -------------------------------------------


def statements(act: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as caught:
        act()
    return len(caught)


STEPS = ("preview", "submit", "approve", "start", "begin", "halt", "cancel")


def costs(machines: int) -> dict[str, int]:
    """Statements of every step, from the draft to the end, of one wave over all machines."""
    make_machines(machines, versions={"bmc": OLD}, site=f"s{machines}", rack="r1")
    rollout = services.create_draft(
        name=f"all of {machines}",
        bundle=FirmwareBundle.objects.first() or bundle_of("bmc"),
        selector=f"site=s{machines}",
        document=document(
            waves=[{"rest": True, "window_hours": 48}],
            caps={"max_in_flight": 2, "max_unavailable_share": None},
        ),
        author=make_user(),
        now=NOW,
    )
    ann, bob = rollout.author, make_user()
    steps = (
        lambda: services.preview(rollout, now=NOW),
        lambda: services.submit(rollout, actor=ann, now=NOW),
        lambda: services.approve(rollout, actor=bob, now=NOW),
        lambda: services.start(rollout, actor=ann, now=NOW),
        lambda: pipeline.enact(Rollout.objects.get(pk=rollout.pk), now=NOW),
        lambda: services.halt(Rollout.objects.get(pk=rollout.pk), actor=bob, now=NOW),
        lambda: services.cancel(Rollout.objects.get(pk=rollout.pk), actor=ann, now=NOW),
    )
    return dict(zip(STEPS, map(statements, steps), strict=True))


def test_no_order_takes_more_statements_for_more_machines():
    few, many = costs(20), costs(2500)

    # To begin a wave starts the first attempts, each by itself, as many as the caps allow.
    assert few.pop("begin") <= 120
    assert many.pop("begin") <= 120
    assert all(many[step] <= min(few[step] + 2, 45) for step in many), (few, many)
