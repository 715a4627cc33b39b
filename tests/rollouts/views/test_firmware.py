"""The pages about versions: drift, one machine's history, and whom an advisory concerns."""

import re
from typing import Any

import pytest
from django.urls import reverse

from fleet import services
from fleet.models import DesiredBundle
from tests.factories import (
    NOW,
    make_bundle,
    make_firmware_record,
    make_image,
    make_machine,
    make_machines,
    make_platform,
    make_user,
)
from tests.rollouts.pages import client_of

pytestmark = pytest.mark.django_db

PAGES = ("firmware", "firmware-machines", "firmware-runs", "firmware-wanted")


def show(name: str, *args: str, status: int = 200, **query: str) -> str:
    response = client_of("viewer").get(reverse(f"rollouts:{name}", args=args), query)
    assert response.status_code == status
    return response.content.decode()


@pytest.fixture
def wanted():
    make_machine("a", versions={"bmc": "4.1"}, pool="train")
    make_machine("b", pool="train")
    bundle = make_bundle(name="spring", images=[make_image("bmc", "4.2")])
    services.set_desired_bundle(
        make_platform(), bundle=bundle, actor=make_user(), reason="plan", now=NOW
    )
    return bundle


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_for_those_who_may_see_the_history(name: str):
    assert client_of().get(reverse(f"rollouts:{name}")).status_code == 403
    assert show(name)


def test_drift_is_counted_and_leads_to_the_machines(wanted):
    page = show("firmware")

    assert "2 machines of which something is wanted" in page
    assert "standing=older" in page
    assert "standing=compliant" not in page


def test_the_machines_of_one_standing_say_why(wanted):
    page = show("firmware-machines", standing="older")

    assert "bmc runs 4.1, 4.2 is wanted" in page
    assert reverse("rollouts:firmware-machine", args=("a",)) in page
    assert reverse("rollouts:firmware-machine", args=("b",)) not in page


def test_a_misspelt_selector_shows_nothing_and_says_so(wanted):
    page = show("firmware", selector="rakc=r1", status=400)

    assert "is neither a field nor a label" in page
    assert "No machine of which something is wanted" in page


def test_whom_an_advisory_concerns_is_listed_with_from_when_to_when():
    make_firmware_record(make_machine("a"), kind="nic", version="1.0", since=NOW)

    query = {"kind": "nic", "version": "1.0", "stage": "active", "start": "2026-03-01 00:00"}
    page = show("firmware-runs", **query, end="2026-03-05 00:00")
    assert reverse("rollouts:firmware-machine", args=("a",)) in page

    page = show("firmware-runs", **query, end="2026-03-01 00:00", status=400)
    assert "is not after the beginning" in page


def test_a_long_list_goes_on_after_the_last_machine_shown():
    names = [f"m{number:03}" for number in range(101)]
    for machine in make_machines(101, names=names):
        make_firmware_record(machine, kind="nic", version="1.0", since=NOW)
    query = {"kind": "nic", "version": "1.0", "stage": "active", "start": "2026-03-01 00:00"}

    first = show("firmware-runs", **query, end="2026-03-05 00:00")
    last = show("firmware-runs", **query, end="2026-03-05 00:00", after="m099")

    assert "after=m099" in first
    assert "m100" not in first
    assert "m100" in last


def test_a_machine_shows_its_history_up_to_a_time(wanted):
    machine = make_machine("gpu-17", versions={"nic": "1.0"})
    make_firmware_record(machine, kind="nic", version="3.7", since=NOW)

    assert "3.7" in show("firmware-machine", "gpu-17", as_of="2026-03-03 00:00")
    assert "3.7" not in show("firmware-machine", "gpu-17", as_of="2026-03-01 00:00")
    assert "unknown" in show("firmware-machine", "gpu-17")


def test_a_machine_that_does_not_exist_is_not_found():
    show("firmware-machine", "none", status=404)


# --- what is wanted ------------------------------------------------------------------------------


def say(group: str, button: str, **fields: Any) -> Any:
    body = {"platform": make_platform().pk, "pool": "", "bundle": "", button: "1", **fields}
    return client_of(group).post(reverse("rollouts:firmware-wanted"), body)


def cells(page: str, standing: str) -> list[str]:
    row = page.split(f'<th scope="row">{standing}</th>')[1].split("</tr>")[0]
    return re.findall(r">(\d+)<", row)


def test_the_page_of_wanted_bundles_shows_what_holds_and_who_said_so(wanted):
    page = show("firmware-wanted")

    assert "spring" in page
    assert "every other" in page
    assert "Set it" not in page


def test_a_bundle_is_looked_at_before_it_is_set_and_nothing_is_written(wanted):
    newer = make_bundle(name="summer", images=[make_image("bmc", "4.1")])

    answer = say("approver", "look", pool="train", bundle=newer.pk)

    page = answer.content.decode()
    assert answer.status_code == 200
    assert "2 machines" in page
    assert cells(page, "older") == ["1", "0"]
    assert cells(page, "compliant") == ["0", "1"]
    assert DesiredBundle.objects.count() == 1


def test_a_bundle_is_set_for_one_pool_with_a_reason_and_a_name(wanted):
    newer = make_bundle(name="summer", images=[make_image("bmc", "4.3")])

    refused = say("approver", "set", pool="train", bundle=newer.pk)
    taken = say("approver", "set", pool="train", bundle=newer.pk, reason="trial")

    assert refused.status_code == 400
    assert "say why" in refused.content.decode()
    assert taken.status_code == 302
    newest = DesiredBundle.objects.latest("pk")
    assert (newest.pool, newest.bundle, newest.reason) == ("train", newer, "trial")


def test_a_pool_of_nobody_and_a_bundle_for_others_are_refused_by_name(wanted):
    other = make_bundle(name="other", platform="hgx")

    page = say("approver", "look", pool="trian", bundle=other.pk).content.decode()

    assert "is in pool" in page
    assert "not made for this platform" in page


def test_only_who_may_order_bundles_sets_what_is_wanted(wanted):
    assert say("viewer", "set", reason="no").status_code == 403
    assert DesiredBundle.objects.count() == 1
