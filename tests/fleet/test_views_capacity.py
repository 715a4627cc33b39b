"""The board, the capacity page, a machine's identity with swaps, and where a part has been."""

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from fleet import services
from fleet.clock import set_mode
from fleet.identity import Claim, Swap
from fleet.lifecycle import Trigger
from fleet.models import Machine, PartSwap, Team
from fleet.services.identity import observe_claims
from tests.factories import NOW, make_machine, make_machines, make_user
from tests.fleet.test_capacity import OUT, move
from tests.rollouts.pages import client_of

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
GPU = {"kind": "gpu", "slot": "3", "serial": "G-old"}
SWAP = {"kind": "gpu", "slot": "3", "new_serial": "G-new"}


@pytest.fixture(autouse=True)
def at_noon():
    set_mode("stepped", at=NOW)


def show(name: str, *args: str, status: int = 200, client: Any = None, **query: Any) -> str:
    response = (client or client_of("viewer")).get(reverse(f"fleet:{name}", args=args), query)
    assert response.status_code == status
    return response.content.decode()


def out(*names: str, at: Any = NOW - DAY, **fields: Any) -> list[Machine]:
    machines = make_machines(len(names), names=names, now=NOW - 10 * DAY, **fields)
    for machine in machines:
        move(machine, *OUT, at=at)
    return machines


# --- the board ------------------------------------------------------------------------------------


def test_the_board_shows_age_against_goal_owner_and_next_step():
    out("late", at=NOW - 2 * DAY)
    out("young", at=NOW - timedelta(hours=3))
    make_machine("works")

    page = show("return")

    assert "2 machines on their way back" in page
    assert "1 overdue" in page
    assert "3.0 h <" in page
    assert "of 24.0 h" in page
    assert "data_centre" in page
    assert "schedule the work" in page
    assert page.index("late") < page.index("young")
    assert "works" not in page


def test_mine_are_those_in_hand_and_those_of_my_teams():
    mine, theirs, free = out("m-mine", "m-theirs", "m-free")
    me = make_user(is_staff=True)
    team = Team.objects.create(name="dc")
    team.members.add(me)
    Machine.objects.filter(pk=mine.pk).update(held_by=me)
    Machine.objects.filter(pk=theirs.pk).update(held_by=make_user())
    Machine.objects.filter(pk=free.pk).update(owner_team=team)

    page = show("return", client=client_of("viewer", user=me), mine="on")

    assert "m-mine" in page
    assert "m-free" in page
    assert "m-theirs" not in page


def test_a_long_queue_shows_its_first_cards_and_how_many_more_there_are():
    out(*(f"m{number:02}" for number in range(12)))

    page = show("return")

    assert "and 4 more" in page
    assert page.count("cm-ticket") == 8
    assert show("return-state", "awaiting_repair").count('<th scope="row">') == 12


def test_a_state_that_is_no_way_back_is_not_found():
    show("return-state", "in_service", status=404)


def test_a_platform_that_does_not_exist_is_refused_and_shows_no_machine():
    out("m1")

    assert "m1" not in show("return", platform="none", status=400)


# --- capacity -------------------------------------------------------------------------------------


def test_the_page_names_the_bottleneck_in_words():
    first, *_ = out("m1", "m2", at=NOW - 4 * DAY, pool="a")
    move(first, Trigger.START_REPAIR, at=NOW - 2 * DAY)
    services.keep_days(now=NOW)

    page = show("capacity")

    assert "Of the queues, awaiting repair keeps the most machines out" in page
    assert "2.0 d" in page
    assert "over 11 days: from 0 to 2, now 1" in page


def test_without_a_stay_that_ended_no_queue_is_named():
    out("m1")
    services.keep_days(now=NOW)

    assert "no queue is named" in show("capacity")


def test_a_pool_is_shown_day_by_day_with_a_dash_for_what_nobody_measured():
    make_machines(2, pool="a", now=NOW - 2 * DAY)
    services.keep_days(now=NOW)

    page = show("capacity", pool="a")

    assert "Day by day" in page
    assert page.count('<td class="cm-number">–</td>') >= 6


def test_the_pages_are_for_those_who_may_see_machines():
    make_machine("m1")
    for name, args in (
        ("return", ()),
        ("capacity", ()),
        ("parts", ()),
        ("part", ("x",)),
        ("machine-identity", ("m1",)),
    ):
        assert client_of().get(reverse(f"fleet:{name}", args=args)).status_code == 403


@pytest.mark.parametrize(("name", "most"), [("return", 30), ("capacity", 25)])
def test_a_page_asks_no_more_for_more_machines(
    name: str, most: int, django_assert_max_num_queries: Any
):
    client = client_of("viewer")
    out(*(f"m{number:02}" for number in range(30)))
    services.keep_days(now=NOW)

    with django_assert_max_num_queries(most):
        show(name, client=client)


# --- identity -------------------------------------------------------------------------------------


def give(name: str, order: str, *groups: str, **words: str) -> Any:
    return client_of(*groups).post(reverse(f"fleet:machine-{order}", args=[name]), words)


def test_a_swap_is_shown_first_and_done_only_when_confirmed():
    make_machine("m1", state="repairing", components=[GPU])

    seen = give("m1", "swap", "technician", **SWAP)

    assert seen.status_code == 200
    assert "Swap it so" in seen.content.decode()
    assert "G-old → G-new" in seen.content.decode()
    assert not PartSwap.objects.exists()
    assert give("m1", "swap", "technician", **SWAP, confirm="1").status_code == 302
    assert PartSwap.objects.get().new_serial == "G-new"
    page = show("machine-identity", "m1")
    assert "Swapped so far" in page
    assert reverse("fleet:part", args=["G-new"]) in page


def test_what_was_seen_to_leave_has_to_be_there_still_when_it_is_confirmed():
    machine = make_machine("m1", state="repairing", components=[GPU])
    seen = give("m1", "swap", "technician", **SWAP).content.decode()
    assert 'name="old_serial" value="G-old"' in seen
    other = [Swap("gpu", "3", "G-third")]
    services.swap_parts(machine, other, repair=None, actor="lee", now=NOW)

    late = give("m1", "swap", "technician", **SWAP, old_serial="G-old", confirm="1")

    assert late.status_code == 409
    assert PartSwap.objects.get().actor == "lee"


def test_a_swap_that_would_be_refused_offers_no_button_to_do_it():
    make_machine("m1", components=[GPU])

    seen = give("m1", "swap", "technician", **SWAP).content.decode()

    assert "take it out for repair first" in seen
    assert "Swap it so" not in seen
    assert give("m1", "swap", "technician", **SWAP, confirm="1").status_code == 409
    assert not PartSwap.objects.exists()


@pytest.mark.parametrize(
    ("order", "words"),
    [("swap", SWAP | {"confirm": "1"}), ("claim", {"kind": "serial", "value": "S"})],
)
def test_identity_is_changed_by_those_who_repair(order: str, words: dict[str, str]):
    make_machine("m1", state="repairing", components=[GPU])

    assert give("m1", order, "viewer", **words).status_code == 403
    assert give("m1", order, "technician", **words).status_code == 302


def test_a_conflict_is_shown_at_the_claim_and_in_the_list_of_all():
    first, second = make_machine("m1", serial="S1"), make_machine("m2")
    observe_claims(second, [Claim("serial", "S1")], source="bmc", now=NOW)

    assert "claimed by others too" in show("machine-identity", first.name)
    assert "Claimed by several machines at once" in show("parts")
    assert "S1" in show("parts")


def test_a_part_is_found_by_its_serial_and_followed():
    make_machine("m1", components=[GPU])
    client = client_of("viewer")

    asked = client.get(reverse("fleet:parts"), {"serial": "G-old"})

    assert asked.url == reverse("fleet:part", args=["G-old"])
    assert "m1" in show("part", "G-old")
    assert "Nobody ever wrote this serial down" in show("part", "x<y")
