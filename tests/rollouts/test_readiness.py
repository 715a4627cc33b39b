"""Rollback readiness: who can take the bundle, who runs it, and who takes it for good."""

import pytest

from rollouts import planning, selectors, services
from rollouts.planning import Image
from tests.factories import make_bundle, make_image, make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import NEW, started

OLD = Image("bmc", "4.1")


def of(version: str | None, image: Image, *kept: Image, **options: bool) -> planning.Readiness[str]:
    parts = {} if version is None else {"bmc": version}
    return planning.readiness({"n1": parts}, bundle=[image], images=kept, **options)


def test_a_machine_whose_old_image_is_kept_can_take_the_bundle_and_go_back():
    ready = of("4.1", Image("bmc", "4.2"), OLD)

    assert (ready.blocked, ready.current, ready.irreversible) == ({}, frozenset(), {})


def test_a_machine_that_runs_the_bundle_is_current_and_nothing_else():
    ready = of("0x15449bc", Image("bmc", "22301116", scheme="number", is_downgrade_allowed=False))

    assert ready.current == {"n1"}
    assert not ready.blocked
    assert not ready.irreversible


def test_a_version_that_cannot_be_ordered_blocks_and_is_never_taken_as_the_target():
    ready = of("A7", Image("bmc", "A07", scheme="plain"))

    assert ready.blocked == {"n1": "blocked: version can't be ordered: bmc A7 against A07 (plain)"}
    assert not ready.current


def test_a_plan_may_say_in_writing_that_the_order_of_versions_does_not_matter():
    kept = Image("bmc", "A7", scheme="plain")

    ready = of("A7", Image("bmc", "A07", scheme="plain"), kept, allow_unordered=True)

    assert not ready.blocked
    assert not ready.irreversible


def test_a_disputed_version_blocks():
    ready = of("disputed: bmc 4.1, host 4.0", Image("bmc", "4.2"), OLD)

    assert "can't be ordered" in ready.blocked["n1"]


def test_a_version_below_the_floor_blocks_and_one_at_it_does_not():
    image = Image("bmc", "4.2", floor_version="4.1")

    assert of("4.0.9", image).blocked == {
        "n1": "blocked: bmc 4.2 needs 4.1 or newer, and 4.0.9 runs"
    }
    assert not of("4.1", image, OLD).blocked


def test_what_is_not_known_blocks_only_where_there_is_a_floor():
    unknown = of(None, Image("bmc", "4.2"), OLD)

    assert not unknown.blocked
    assert unknown.irreversible == {"n1": "it is not known which version of bmc to go back to"}
    assert (
        "what runs is not known" in of(None, Image("bmc", "4.2", floor_version="4.1")).blocked["n1"]
    )


def test_a_newer_version_is_replaced_only_where_downgrades_are_allowed():
    newer = Image("bmc", "4.2", is_downgrade_allowed=False)

    assert not of("4.2", OLD, Image("bmc", "4.2")).blocked
    assert of("4.2", OLD, newer).blocked == {
        "n1": "blocked: bmc 4.1 cannot replace the newer 4.2: downgrades are not allowed"
    }


@pytest.mark.parametrize(
    ("image", "kept", "why"),
    [
        (Image("bmc", "4.2"), [], "no image of bmc 4.1 is kept to go back to"),
        (
            Image("bmc", "4.2"),
            [Image("bmc", "4.1", activation="by_hand")],
            "bmc 4.1 is activated by hand, which no roll back can do",
        ),
        (
            Image("bmc", "4.2", is_downgrade_allowed=False),
            [OLD],
            "bmc 4.2 cannot be replaced by the older 4.1: downgrades are not allowed",
        ),
        (
            Image("bmc", "4.2"),
            [Image("bmc", "4.1", is_downgrade_allowed=False)],
            "bmc 4.2 cannot be replaced by the older 4.1: downgrades are not allowed",
        ),
        (
            Image("bmc", "4.0"),
            [Image("bmc", "4.1", floor_version="4.1")],
            "bmc 4.1 replaces 4.1 or newer only, not 4.0",
        ),
    ],
)
def test_a_machine_that_cannot_go_back_says_why(image, kept, why):
    ready = of("4.1", image, *kept)

    assert not ready.blocked
    assert ready.irreversible == {"n1": why}


def test_the_old_image_of_the_same_vendor_decides():
    kept = [Image("bmc", "4.1", vendor="b", activation="by_hand"), Image("bmc", "4.1", vendor="a")]

    assert not of("4.1", Image("bmc", "4.2", vendor="a"), *kept).irreversible
    assert of("4.1", Image("bmc", "4.2", vendor="b"), *kept).irreversible


def test_one_part_that_cannot_go_back_makes_the_machine_irreversible():
    versions = {"n1": {"nic/a": "1", "nic/b": "2", "bmc": "9"}}

    ready = planning.readiness(versions, bundle=[Image("nic", "3")], images=[Image("nic", "1")])

    assert ready.irreversible == {"n1": "no image of nic 2 is kept to go back to"}


@pytest.mark.django_db
def test_readiness_reads_the_images_that_are_kept():
    make_image("bmc", "1.0")
    bundle = make_bundle(images=[make_image("bmc", "2.0", floor_version="0.9")])

    ready = selectors.readiness_of(
        bundle, {1: {"bmc": "1.0"}, 2: {"bmc": "0.8"}, 3: {"bmc": "0.9"}}, plan={}
    )

    assert list(ready.blocked) == [2]
    assert ready.irreversible == {3: "no image of bmc 0.9 is kept to go back to"}


@pytest.mark.django_db
def test_a_roll_back_leaves_who_cannot_go_back_and_says_how_many_and_why(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, on_halt={"succeeded": "roll_back"})
    names = list(rollout.assignments.filter(planned_wave=1).values_list("machine_name", flat=True))
    fake_fleet.add(names[:3], bmc="0.9")  # flashed by others since: no image of it is kept
    driver.run(rollout, hours=3)

    services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
    driver.run(rollout, until="rolled_back", hours=12)

    child = rollout.children.get()
    back = set(child.assignments.values_list("machine_name", flat=True))
    assert back == set(names[3:])
    assert child.transitions.get(trigger="start", wave=None).note == (
        "leaves 3 that cannot go back (3: no image of bmc 0.9 is kept to go back to)"
    )


@pytest.mark.django_db
def test_where_nobody_can_go_back_the_roll_back_ends_at_once_and_says_so(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    fuse = make_bundle(images=[make_image("bmc", NEW, is_downgrade_allowed=False)])
    rollout = started(fake_fleet, bundle=fuse, on_halt={"succeeded": "roll_back"})
    driver.run(rollout, hours=3)

    services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
    driver.run(rollout, until="rolled_back", hours=12)

    assert not rollout.children.exists()
    note = rollout.transitions.get(trigger="finish_roll_back").note
    assert note.startswith("leaves 8 that cannot go back (8: ")
