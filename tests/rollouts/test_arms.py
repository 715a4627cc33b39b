"""What a machine is meant to run: its arm's bundle before its pool's; and part swaps in a wave."""

from datetime import timedelta
from typing import Any

import pytest

from fleet import capacity, services
from fleet.firmware.drift import Standing
from fleet.identity import Swap
from fleet.intended import intended, intended_bundle, standing
from fleet.models import FirmwareBundle, Machine
from rollouts import contamination
from rollouts.arms import OpenArms
from rollouts.contamination import contaminations
from tests.factories import NOW, make_bundle, make_image, make_machine, make_user
from tests.rollouts.test_changes import compared

HOUR = timedelta(hours=1)


def want(bundle: FirmwareBundle | None, machine: Machine, *, pool: str = "", **fields: Any) -> None:
    told = {"actor": make_user(), "reason": "for the test", "now": NOW - HOUR}
    services.set_desired_bundle(machine.platform, pool=pool, bundle=bundle, **{**told, **fields})


# --- by the pool ----------------------------------------------------------------------------------


@pytest.mark.django_db
def test_without_a_rollout_it_is_the_pools_bundle_before_that_of_every_pool():
    machine = make_machine(pool="train")
    everywhere, here = make_bundle(), make_bundle()
    assert intended_bundle(machine, now=NOW)[0] is None

    want(everywhere, machine)
    assert intended_bundle(machine, now=NOW)[0] == everywhere
    want(here, machine, pool="train")

    found, why = intended_bundle(machine, now=NOW)
    assert found == here
    assert why == f"{here} is set for pool train"


@pytest.mark.django_db
def test_a_bundle_that_is_set_later_is_not_wanted_yet():
    machine = make_machine(pool="train")
    want(make_bundle(), machine, now=NOW + HOUR)

    assert intended_bundle(machine, now=NOW)[0] is None


@pytest.mark.django_db
def test_where_nothing_is_wanted_the_standing_is_unknown_and_not_compliant():
    seen = intended(make_machine(), now=NOW)

    assert (seen.bundle, seen.drift.standing) == (None, Standing.UNKNOWN)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("runs", "image", "said"),
    [
        ("1.0", {"version": "2.0"}, "older"),
        ("2.0", {"version": "2.0"}, "compliant"),
        ("3.0", {"version": "2.0"}, "newer"),
        ("3.0", {"version": "2.0", "is_downgrade_allowed": False}, "incompatible"),
        ("1.0", {"version": "3.0", "floor_version": "2.0"}, "incompatible"),
        ("A7", {"version": "A8", "scheme": "plain"}, "not_comparable"),
        ("", {"version": "2.0"}, "unknown"),
    ],
)
def test_a_spare_that_cannot_come_to_its_bundle_is_incompatible(
    runs: str, image: dict[str, Any], said: str
):
    machine = make_machine(versions={"bmc": runs} if runs else {})
    want(make_bundle(images=[make_image("bmc", **image)]), machine)

    assert intended(machine, now=NOW).drift.standing == said


@pytest.mark.django_db
def test_a_bundle_that_is_not_made_for_the_platform_is_incompatible():
    machine = make_machine(versions={"bmc": "1.0"})
    bundle = make_bundle(platform="hgx-b200")

    seen = standing(machine, bundle, now=NOW)

    assert seen.standing is Standing.INCOMPATIBLE
    assert seen.reason == f"{bundle} is not made for dgx-h100"


# --- by the arm -----------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_canary_is_meant_to_run_the_new_bundle_and_a_control_what_its_pool_had_before():
    rollout, _, [canary, *_], [control, *_] = compared()
    old = make_bundle(name="old", version="1")
    want(old, control)

    assert intended_bundle(canary, now=NOW)[0] == rollout.bundle
    assert "canary of the open rollout" in intended_bundle(canary, now=NOW)[1]
    found, why = intended_bundle(control, now=NOW)
    assert found == old
    assert "control of the open rollout" in why
    assert "it stays on what it ran" in why


@pytest.mark.django_db
def test_a_control_is_not_given_the_new_bundle_because_its_pool_is_to_have_it_in_the_end():
    rollout, _, _, [control, *_] = compared()
    old = make_bundle(name="old", version="1")
    want(old, control, now=NOW - 2 * HOUR)
    want(rollout.bundle, control)

    assert intended_bundle(control, now=NOW)[0] == old


@pytest.mark.django_db
def test_without_an_older_bundle_a_control_is_meant_to_run_none_that_is_known():
    rollout, _, _, [control, *_] = compared()
    want(rollout.bundle, control)

    found, why = intended_bundle(control, now=NOW)

    assert found is None
    assert f"before {rollout.bundle} no bundle was set" in why


@pytest.mark.django_db
def test_the_table_counts_the_canaries_of_open_rollouts():
    rollout, _, canaries, _ = compared()

    [row] = capacity.standings(now=NOW)
    assert (
        row.canary
        == Machine.objects.filter(pk__in=[one.pk for one in canaries], state="in_service").count()
    )
    assert OpenArms().canaries().count() == len(canaries)

    rollout.status = "completed"
    rollout.save(update_fields=["status"])
    assert OpenArms().canaries().count() == 0


# --- swaps in an open comparison ------------------------------------------------------------------


def swapped(machine: Machine) -> None:
    Machine.objects.filter(pk=machine.pk).update(state="repairing", may_take_work=False)
    machine.refresh_from_db()
    services.swap_parts(
        machine, [Swap("fan", "1", "F-new")], repair=None, actor="kim", now=NOW + HOUR
    )


@pytest.mark.django_db
def test_a_part_swap_marks_the_exposure_of_an_open_comparison_whatever_the_part():
    _, wave, _, controls = compared()

    swapped(controls[0])

    [found] = contaminations(wave)
    assert (found.canaries, found.controls) == (0, 1)
    assert "another part is what shows itself there since" in found.why


@pytest.mark.django_db
def test_one_swap_does_not_take_the_widen_from_the_engine():
    _, wave, _, controls = compared()

    swapped(controls[0])

    assert [found.matters for found in contaminations(wave)] == [False]
    assert contamination.widens_by_itself(wave)


@pytest.mark.django_db
def test_a_preview_names_the_rollouts_whose_exposure_a_swap_marks():
    rollout, _, _, [control, *_] = compared()

    seen = services.preview_swap(control, [Swap("gpu", "0", "G-new")], now=NOW)

    [arm] = seen.arms
    assert (arm.rollout, arm.arm, arm.is_compared) == (rollout.pk, "control", True)
    assert arm.kinds == {"gpu"}
