"""Writing plans down: policies that plans copy, and the mode of a site's first rollout."""

from typing import Any

import pytest

from fleet.models import FirmwareBundle
from rollouts import services
from rollouts.errors import PlanRefused, PolicyRefused, StaleRollout
from rollouts.models import Policy, Rollout
from rollouts.services.plans import previews
from tests.factories import NOW, make_bundle, make_image, make_machines, make_user
from tests.rollouts.plans import NEW, OLD, bundle_of, document

pytestmark = pytest.mark.django_db


def draft(name: str = "update", **fields: object) -> Rollout:
    wanted = {"document": document(), "author": make_user(), **fields}
    bundle = FirmwareBundle.objects.first() or bundle_of("bmc")
    return services.create_draft(
        name=name, bundle=bundle, selector="platform=dgx-h100", now=NOW, **wanted
    )


def test_a_policy_gets_its_next_version_when_it_says_something_new():
    ann = make_user()
    strict = {"alpha": 0.02}

    first = services.save_policy(name="strict", document=strict, author=ann, now=NOW)
    again = services.save_policy(name="strict", document=dict(strict), author=ann, now=NOW)
    other = services.save_policy(name="strict", document={"alpha": 0.01}, author=ann, now=NOW)

    assert again == first
    assert [policy.version for policy in (first, other)] == [1, 2]
    assert Policy.objects.get(pk=first.pk).document == strict


def test_a_policy_that_breaks_the_schema_is_not_stored():
    with pytest.raises(PolicyRefused, match="alhpa"):
        services.save_policy(name="typo", document={"alhpa": 1}, author=None, now=NOW)

    assert not Policy.objects.exists()


def test_a_plan_copies_its_policy_and_its_own_words_win():
    make_machines(20)
    strict = services.save_policy(
        name="strict", document={"alpha": 0.02, "beta": 0.01}, author=None, now=NOW
    )

    rollout = draft(policy=strict, document={**document(), "beta": 0.03})

    assert rollout.policy == strict
    assert (rollout.plan["alpha"], rollout.plan["beta"]) == (0.02, 0.03)


def test_the_first_rollout_of_a_site_only_advises_to_widen():
    make_machines(20, site="ams")
    first = draft("first")
    first.assignments.model.objects.create(
        rollout=first,
        machine_id=make_machines(1, site="ams")[0].pk,
        machine_name="x",
        unit="x",
        stratum="all",
        position=0,
        planned_wave=1,
    )
    Rollout.objects.filter(pk=first.pk).update(status="completed", plan_digest="d")

    second = draft("second")
    make_machines(20, site="fra")
    third = draft("third")

    assert [first.mode, second.mode, third.mode] == ["advise", "automatic", "advise"]


def test_a_mode_that_is_named_is_kept():
    make_machines(20)

    assert draft("named", mode="automatic").mode == "automatic"
    assert draft("written", document=document(mode="observe")).mode == "observe"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unit": "nvlink"}, "unit: no selected machine has a 'nvlink'; accepted: chassis, "),
        ({"unit": "rack"}, "unit: no selected machine has a 'rack'"),
        ({"unit": "recent_faults"}, "unit: no selected machine has a 'recent_faults'"),
        ({"strata": ["platform", "rakc"]}, "strata: no selected machine has a 'rakc'"),
    ],
)
def test_a_unit_or_a_stratum_that_no_machine_has_is_refused_not_dropped(
    changes: dict[str, object], reason: str
):
    make_machines(20, versions={"bmc": "1.0"})
    rollout = draft(document=document(**changes))

    with pytest.raises(PlanRefused, match=reason):
        services.submit(rollout, actor=rollout.author, now=NOW)


def test_a_label_that_some_machine_has_is_a_stratum():
    make_machines(10, versions={"bmc": "1.0"})
    make_machines(10, versions={"bmc": "1.0"}, labels={"batch": "b2"})
    rollout = draft(document=document(strata=["batch"]))

    services.submit(rollout, actor=rollout.author, now=NOW)

    assert set(rollout.assignments.values_list("stratum", flat=True)) == {"-", "b2"}


def test_a_floor_that_is_violated_refuses_the_plan_by_name():
    make_machines(30, versions={"bmc": OLD})
    [low] = make_machines(1, names=["low"], versions={"bmc": "0.8"})
    [dark] = make_machines(1, names=["dark"])  # which nobody has read
    make_image("bmc", OLD)
    rollout = services.create_draft(
        name="floor",
        bundle=make_bundle(images=[make_image("bmc", NEW, floor_version="0.9")]),
        selector="platform=dgx-h100",
        document=document(),
        author=make_user(),
        now=NOW,
    )

    with pytest.raises(PlanRefused) as refused:
        services.submit(rollout, actor=rollout.author, now=NOW)

    blocked = "blocked: bmc 2.0 needs 0.9 or newer, and"
    mended = "narrow the selector, or set leave_out_unfit"
    assert set(refused.value.reasons) == {
        f"1 selected machines ({low}): {blocked} 0.8 runs; {mended}",
        f"1 selected machines ({dark}): {blocked} what runs is not known; {mended}",
    }
    assert not rollout.assignments.exists()


def test_a_platform_for_which_the_bundle_has_no_images_refuses_the_plan_by_name():
    make_machines(30, versions={"bmc": OLD})
    make_machines(12, names=[f"b{n:02}" for n in range(12)], platform="hgx-b200")
    bundle = bundle_of()
    rollout = services.create_draft(
        name="two platforms",
        bundle=bundle,
        selector="platform in (dgx-h100,hgx-b200)",
        document=document(),
        author=make_user(),
        now=NOW,
    )

    shown = services.preview(rollout, now=NOW).summary["refusals"]
    with pytest.raises(PlanRefused) as refused:
        services.submit(rollout, actor=rollout.author, now=NOW)

    [reason] = refused.value.reasons
    assert shown == [reason]
    assert reason.startswith("12 selected machines (b00, b01, ")
    assert f"platform hgx-b200 is not covered by bundle {bundle}" in reason


def test_a_preview_that_ends_after_the_draft_was_submitted_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_machines(20, versions={"bmc": OLD})
    rollout, plain = draft(), previews.outlook

    def slow(*args: Any, **words: Any) -> Any:
        monkeypatch.setattr(previews, "outlook", plain)
        make_machines(1, names=["late"], versions={"bmc": OLD})
        services.submit(Rollout.objects.get(), actor=rollout.author, now=NOW)
        return plain(*args, **words)

    monkeypatch.setattr(previews, "outlook", slow)
    with pytest.raises(StaleRollout):
        services.preview(rollout, now=NOW)

    rollout.refresh_from_db()
    assert list(rollout.previews.values_list("digest", flat=True)) == [rollout.plan_digest]
