"""Halted, now what: machines by physical state, and what is safe to do with them next."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.urls import reverse

from fleet.models import Machine
from rollouts import services
from rollouts.aftermath import MOST_NAMED, aftermath
from rollouts.lifecycle import FAILURES, AttemptStatus
from rollouts.models import Assignment, Attempt, Rollout
from tests.factories import NOW, make_firmware_record, make_user
from tests.rollouts import pages, rows, test_api
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import NEW, OLD, started

pytestmark = pytest.mark.django_db


def halted_with_everything() -> Rollout:
    """A halted rollout of 20 machines with one canary or more in each physical state."""
    rollout = rows.running(machines=30)
    wave = rollout.waves.get(number=1)
    block = wave.blocks.create(number=1, started_at=NOW)
    places = rollout.assignments.order_by("machine_name").select_related("machine")
    ends = [*sorted(FAILURES), "succeeded", "succeeded", "verifying", "called_off"]
    for place, status in zip(places, ends, strict=False):
        Attempt.objects.create(
            rollout=rollout,
            wave=wave,
            block=block,
            machine=place.machine,
            epoch=0,
            targets=[{"kind": "gpu", "version": "2.0"}],
            status=status,
            created_at=NOW,
        )
    services.halt(rollout, actor=make_user(), now=NOW)
    rollout.refresh_from_db()
    return rollout


def groups(rollout: Rollout) -> dict[str, int]:
    return {group.state: group.count for group in aftermath(rollout).groups}


def test_every_machine_is_in_one_group_by_its_physical_state():
    rollout = halted_with_everything()

    found = aftermath(rollout)

    assert found.machines == 30
    assert groups(rollout) == {
        **{status.value: 1 for status in FAILURES},
        "running_new": 2,
        "in_flight": 1,
        "untouched": 18,
    }
    assert found.groups[0].state == "never_returned"
    assert all(group.next_action for group in found.groups)


def test_every_failure_class_has_a_safe_next_action():
    rollout = halted_with_everything()
    said = {group.state: group.next_action for group in aftermath(rollout).groups}

    assert all(said[status] for status in FAILURES)
    assert "triage" in said[AttemptStatus.NEVER_RETURNED]


def test_a_machine_that_was_found_to_have_come_back_is_no_longer_called_lost():
    rollout = halted_with_everything()

    rollout.attempts.filter(status="never_returned").update(triage="recovered")

    assert "never_returned" not in groups(rollout)
    assert groups(rollout)["recovered"] == 1


def test_an_image_that_is_written_but_not_active_must_not_be_booted():
    rollout = halted_with_everything()
    failed, running = (
        rollout.attempts.filter(status=status).first().machine for status in ("failed", "succeeded")
    )
    for machine in (failed, running):
        make_firmware_record(machine, kind="gpu", version="2.0", stage="staged", since=NOW)
    make_firmware_record(running, kind="gpu", version="2.0", since=NOW + timedelta(minutes=1))

    found = aftermath(rollout)

    [staged] = [group for group in found.groups if group.state == "staged"]
    assert (staged.machines, staged.do_not_reboot) == ((failed.name,), True)
    assert staged.next_action.startswith("do not reboot")
    assert "failed" not in groups(rollout)


def test_an_image_that_another_one_replaced_on_its_stage_is_no_danger():
    rollout = halted_with_everything()
    machine = rollout.attempts.get(status="failed").machine
    make_firmware_record(machine, kind="gpu", version="2.0", stage="staged", since=NOW)
    make_firmware_record(
        machine, kind="gpu", version="1.0", stage="staged", since=NOW + timedelta(minutes=1)
    )

    assert "staged" not in groups(rollout)


def test_canaries_that_the_plan_says_not_to_reboot_are_marked_so():
    rollout = halted_with_everything()
    leave = dict.fromkeys(FAILURES, "leave")
    plan = {**rollout.plan, "on_halt": {**leave, "succeeded": "do_not_reboot"}}
    Rollout.objects.filter(pk=rollout.pk).update(plan=plan)
    rollout.refresh_from_db()

    marked = [group.state for group in aftermath(rollout).groups if group.do_not_reboot]

    assert marked == ["running_new"]


def test_machines_that_went_back_are_told_from_those_that_run_the_new(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, machines=20, on_halt={"succeeded": "roll_back"})
    driver.run(rollout, hours=2)
    services.halt(rollout, actor=make_user(), now=driver.now)
    rollout.refresh_from_db()

    before = groups(rollout)
    driver.run(rollout, until="rolled_back")

    assert before == {"running_new": 8, "untouched": 12}
    assert groups(rollout) == {"rolled_back": 8, "untouched": 12}
    assert {fake_fleet.versions[name]["bmc"] for name in fake_fleet.versions} == {OLD}
    assert NEW != OLD


def test_who_cannot_go_back_is_listed_with_the_reason():
    rollout = halted_with_everything()
    machine = rollout.attempts.filter(status="succeeded").first().machine
    untouched = rollout.assignments.order_by("-machine_name").first()
    rollout.assignments.update(irreversible="")
    Assignment.objects.filter(rollout=rollout, machine=machine).update(irreversible="no downgrade")
    Assignment.objects.filter(pk=untouched.pk).update(irreversible="no downgrade")

    found = aftermath(rollout)

    assert found.irreversible == ((machine.name, "no downgrade"),)


def test_lists_are_bounded_and_say_by_how_much():
    rollout = rows.running(machines=MOST_NAMED + 7)

    [group] = aftermath(rollout).groups

    assert (group.count, len(group.machines), group.more) == (MOST_NAMED + 7, MOST_NAMED, 7)


def test_a_retired_machine_asks_for_nothing():
    rollout = halted_with_everything()
    Machine.objects.filter(pk=rollout.attempts.get(status="failed").machine_id).update(
        state="retired", may_take_work=False
    )

    assert groups(rollout)["retired"] == 1


def test_page_api_and_command_list_the_same_groups():
    rollout = halted_with_everything()
    out = StringIO()

    told = test_api.client_of("viewer").get(f"/api/v1/rollouts/{rollout.pk}/aftermath").json()
    client = pages.client_of("viewer")
    page = client.get(reverse("rollouts:now-what", args=(rollout.pk,))).content.decode()
    call_command("explain", "rollout", rollout.name, stdout=out)

    assert reverse("rollouts:now-what", args=(rollout.pk,)) in pages.detail(client, rollout)
    assert told["machines"] == 30
    for group in told["groups"]:
        assert group["next_action"] in page.replace("&#x27;", "'")
        assert f"{group['state']}: {group['count']}" in out.getvalue()


def test_the_statements_do_not_grow_with_the_machines(django_assert_max_num_queries):
    rollout = halted_with_everything()

    with django_assert_max_num_queries(9):
        aftermath(rollout)
