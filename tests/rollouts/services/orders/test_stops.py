"""What stops more than one rollout: halt all, a withdrawn bundle, a newer rollout."""

from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.urls import reverse

from fleet.models import Machine
from rollouts import services
from rollouts.errors import OrderRefused, PlanRefused
from rollouts.models import Order, Rollout
from rollouts.services.plans import submission
from tests.factories import NOW, make_bundle, make_image, make_user
from tests.rollouts import pages, rows, test_api
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import document, started

pytestmark = pytest.mark.django_db


def three() -> list[Rollout]:
    """One that runs, one that is paused, one that only waits for approval."""
    found = [rows.running(name=f"number {number}", machines=12) for number in range(2)]
    services.pause(found[1], actor=found[1].author, now=NOW)
    Machine.objects.all().update(site="elsewhere")
    return [*found, rows.submitted(name="asks", machines=12)]


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each rollout of `rows` select its own new machines only."""
    plain, number = services.create_draft, iter(range(1000))

    def own(**fields: Any) -> Rollout:
        pool = f"pool-{next(number)}"
        Machine.objects.filter(pool="").update(pool=pool)
        return plain(**{**fields, "selector": f"pool={pool}"})

    monkeypatch.setattr(services, "create_draft", own)


def statuses(*found: Rollout) -> list[str]:
    return [Rollout.objects.get(pk=one.pk).status for one in found]


# --- halt all ------------------------------------------------------------------------------------


def test_halting_all_stops_what_is_under_way_by_an_order_each():
    found, ann = three(), make_user("ann")

    given = services.halt_all(actor=ann, now=NOW)

    assert statuses(*found) == ["halted", "halted", "awaiting_approval"]
    assert [(order.kind, order.actor) for order in given] == [("halt", ann)] * 2
    assert services.halt_all(actor=ann, now=NOW) == []


def test_halting_all_stops_a_rollout_that_is_going_back_and_its_child(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20, on_halt={"succeeded": "roll_back"})
    driver.run(rollout, hours=2)
    services.halt(rollout, actor=make_user(), now=driver.now)
    driver.settle()
    child = rollout.children.get()

    services.halt_all(actor=make_user(), now=driver.now)

    assert statuses(rollout, child) == ["halted", "halted"]


def test_everybody_may_halt_all_over_the_api_without_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = three()
    nobody = test_api.client_of().post("/api/v1/rollouts/halt_all", {})

    answer = test_api.client_of("viewer").post("/api/v1/rollouts/halt_all", {})

    assert nobody.status_code == 403
    assert answer.status_code == 201, answer.content
    assert {order["rollout"] for order in answer.json()["halted"]} == {found[0].pk, found[1].pk}
    assert statuses(*found[:2]) == ["halted", "halted"]


def test_the_home_page_halts_all_by_one_click():
    found = three()
    client = pages.client_of("viewer")
    page = client.get(reverse("rollouts:home")).content.decode()

    answer = client.post(reverse("rollouts:halt-all"), {})

    assert f'action="{reverse("rollouts:halt-all")}"' in page
    assert answer.status_code == 302
    assert statuses(*found[:2]) == ["halted", "halted"]
    assert pages.client_of().post(reverse("rollouts:halt-all"), {}).status_code == 403


def test_the_command_halts_all():
    found, ann = three(), make_user("ann")
    ann.user_permissions.add(Permission.objects.get(codename="halt_rollout"))
    out = StringIO()

    call_command("halt", all=True, user="ann", stdout=out)

    assert "number 0, number 1" in out.getvalue()
    assert statuses(*found[:2]) == ["halted", "halted"]


@pytest.mark.parametrize(
    ("action", "expected"),
    [("halt_selected", ["halted", "paused"]), ("halt_all", ["halted", "halted"])],
)
def test_the_admin_halts_those_selected_or_all(action: str, expected: list[str]):
    found = three()
    client = pages.client_of("viewer")

    client.post(
        reverse("admin:rollouts_rollout_changelist"),
        {"action": action, "_selected_action": [found[0].pk]},
    )

    assert statuses(*found[:2]) == expected


# --- a withdrawn bundle --------------------------------------------------------------------------


def test_withdrawing_a_bundle_halts_its_rollouts_and_cancels_what_has_not_begun():
    running, paused, asks = three()
    Rollout.objects.filter(pk__in=(paused.pk, asks.pk)).update(bundle=running.bundle)
    other = rows.running(name="other", machines=12)
    ann = make_user("ann")

    given = services.withdraw_bundle(running.bundle, actor=ann, now=NOW, reason="bricks")

    assert statuses(running, paused, asks, other) == ["halted", "halted", "cancelled", "running"]
    assert [(order.kind, order.reason) for order in given] == [
        ("halt", "bricks"),
        ("halt", "bricks"),
        ("cancel", "bricks"),
    ]
    running.bundle.refresh_from_db()
    assert running.bundle.status == "withdrawn"


def test_withdrawing_a_bundle_does_not_stop_who_goes_back_from_it(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20, on_halt={"succeeded": "roll_back"})
    driver.run(rollout, hours=2)
    services.halt(rollout, actor=make_user(), now=driver.now)
    driver.settle()
    child = rollout.children.get()

    services.withdraw_bundle(rollout.bundle, actor=make_user(), now=driver.now)
    driver.run(rollout, until="rolled_back")

    assert statuses(rollout, child) == ["rolled_back", "completed"]


def test_the_api_tells_what_a_withdrawal_stopped():
    rollout = rows.running()
    address = f"/api/v1/bundles/{rollout.bundle_id}/withdraw"

    refused = test_api.client_of("operator").post(address, {})
    answer = test_api.client_of("approver").post(address, {"reason": "bricks"})

    assert refused.status_code == 403
    assert answer.status_code == 200, answer.content
    assert answer.json()["status"] == "withdrawn"
    assert [order["kind"] for order in answer.json()["orders"]] == ["halt"]
    assert statuses(rollout) == ["halted"]


# --- a newer rollout -----------------------------------------------------------------------------


def newer(rollout: Rollout, *, kind: str = "gpu") -> Rollout:
    return submission.create_draft(
        name="newer",
        bundle=make_bundle(images=[make_image(kind, "3.0")]),
        selector=rollout.selector,
        document=document(),
        author=rollout.author,
        now=NOW,
    )


def test_a_newer_rollout_takes_the_machines_of_the_one_that_it_supersedes(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20)
    driver.settle()
    by = newer(rollout, kind="bmc")
    ann = make_user()

    order = services.supersede(rollout, by=by, actor=ann, reason="3.0 is out", now=driver.now)
    services.submit(by, actor=by.author, now=driver.now)

    assert statuses(rollout, by) == ["cancelled", "awaiting_approval"]
    assert order.parameters == {"by": "newer", "by_id": by.pk}
    assert rollout.transitions.latest("pk").note == "superseded by newer"
    assert not rollout.attempts.filter(status__in=("queued", "deferred")).exists()


def test_only_a_newer_rollout_of_the_same_component_supersedes():
    rollout = rows.running()
    other = newer(rollout, kind="nic")
    Rollout.objects.filter(pk=other.pk).update(status="cancelled", created_at="2020-01-01T00:00Z")
    other.refresh_from_db()

    with pytest.raises(OrderRefused) as refusal:
        services.supersede(rollout, by=other, actor=rollout.author, now=NOW)
    with pytest.raises(OrderRefused, match="itself"):
        services.supersede(rollout, by=rollout, actor=rollout.author, now=NOW)

    assert refusal.value.reasons == [
        "newer is older than gpu firmware; only a newer rollout can supersede it",
        "newer is cancelled; only a rollout that is still to do its work can supersede one",
        "gpu firmware updates gpu, newer updates nic: they have no component in common",
    ]
    assert not Order.objects.filter(kind="supersede").exists()


def test_the_page_offers_the_newer_rollouts_that_could_supersede():
    rollout = rows.running()
    client = pages.client_of("operator")
    before = pages.offered(pages.detail(client, rollout))
    by = newer(rollout)

    after = pages.offered(pages.detail(client, rollout))
    pages.give(client, rollout, "supersede", by=str(by.pk), reason="3.0")

    assert "supersede" in after - before
    assert statuses(rollout) == ["cancelled"]


def test_a_refused_order_is_a_conflict_that_names_every_reason():
    rollout = rows.running()

    answer = test_api.order(
        test_api.client_of("operator"), rollout, "retry", machines=["m1", "m2"], reason="again"
    )

    assert answer.status_code == 409
    assert answer.json()["code"] == "order_refused"
    assert [item["reason"] for item in answer.json()["errors"]] == [
        "m1 has not been tried in this rollout",
        "m2 has not been tried in this rollout",
    ]


# --- a withdrawn bundle stays withdrawn ----------------------------------------------------------


def withdrawn_after(*moves: str) -> Rollout:
    rollout = rows.running()
    for name in moves:
        getattr(services, name)(rollout, actor=rollout.author, now=NOW)
    services.withdraw_bundle(rollout.bundle, actor=make_user(), now=NOW)
    rollout.refresh_from_db()
    return rollout


def test_no_override_takes_up_a_rollout_whose_bundle_was_withdrawn():
    rollout, second = withdrawn_after(), make_user()

    with pytest.raises(OrderRefused, match="is withdrawn, not approved"):
        services.override(
            rollout, actor=rollout.author, second_person=second, reason="we need it", now=NOW
        )
    assert statuses(rollout) == ["halted"]


def test_nobody_resumes_a_rollout_whose_bundle_was_withdrawn_meanwhile():
    rollout = rows.running()
    services.pause(rollout, actor=rollout.author, now=NOW)
    type(rollout.bundle).objects.update(status="withdrawn")  # as a race would have it

    with pytest.raises(OrderRefused, match="is withdrawn, not approved"):
        services.resume(rollout, actor=rollout.author, now=NOW)
    assert statuses(rollout) == ["paused"]


def test_a_draft_whose_bundle_was_withdrawn_since_it_was_read_is_not_submitted():
    draft = rows.draft()
    services.withdraw_bundle(draft.bundle, actor=make_user(), now=NOW)
    draft.bundle.status = "approved"  # as whoever read it before still sees it

    with pytest.raises(PlanRefused, match="is withdrawn, not approved"):
        services.submit(draft, actor=draft.author, now=NOW)
    assert statuses(draft) == ["draft"]


def test_nobody_approves_a_plan_whose_bundle_was_withdrawn_meanwhile():
    rollout = rows.submitted()
    type(rollout.bundle).objects.update(status="withdrawn")  # as a race would have it

    with pytest.raises(OrderRefused, match="is withdrawn, not approved"):
        services.approve(rollout, actor=make_user(), now=NOW)
    assert statuses(rollout) == ["awaiting_approval"]
    assert not rollout.orders.filter(kind="approve").exists()
