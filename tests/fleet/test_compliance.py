"""What machines are meant to run, and how they stand to it."""

import pytest

from fleet import compliance, services
from fleet.errors import BundleNotReady
from fleet.models import Machine
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

pytestmark = pytest.mark.django_db


@pytest.fixture
def bundle():
    return make_bundle(images=[make_image("bmc", "4.2")])


def want(bundle, *, pool: str = "", platform: str = "dgx-h100", now=NOW):
    return services.set_desired_bundle(
        make_platform(platform), pool=pool, bundle=bundle, actor=make_user(), reason="x", now=now
    )


def standings(**arguments) -> dict[str, str]:
    found = compliance.compliance(Machine.objects.all(), **arguments)
    return {row.machine: row.standing.value for row in found}


def test_machines_are_counted_per_platform_pool_and_bundle(bundle):
    make_machine("a", versions={"bmc": "4.1"}, pool="train")
    make_machine("b", versions={"bmc": "4.2"}, pool="train")
    make_machine("c", pool="infer")
    want(bundle)

    groups = compliance.summary(compliance.compliance(Machine.objects.all()))

    assert [(g.platform, g.pool, g.machines, dict(g.counts)) for g in groups] == [
        ("dgx-h100", "infer", 1, {"unknown": 1}),
        ("dgx-h100", "train", 2, {"older": 1, "compliant": 1}),
    ]


def test_a_pools_own_bundle_goes_before_that_of_every_pool(bundle):
    make_machine("a", versions={"bmc": "4.1"}, pool="train")
    make_machine("b", versions={"bmc": "4.1"}, pool="infer")
    want(bundle)
    want(make_bundle(images=[make_image("bmc", "4.1")]), pool="train")

    assert standings() == {"a": "compliant", "b": "older"}


def test_the_newest_word_on_a_pool_holds_and_none_takes_it_back(bundle):
    make_machine("a", versions={"bmc": "4.1"}, pool="train")
    want(bundle, pool="train")
    want(None, pool="train")

    assert standings() == {}


def test_what_a_rollout_put_on_a_machine_goes_before_the_pools(bundle):
    treated, _ = make_machines(2, names=["a", "b"], versions={"bmc": "4.3"})
    want(bundle)
    newer = make_bundle(images=[make_image("bmc", "4.3")])

    assert standings(treated={treated.pk: newer.pk}) == {"a": "compliant", "b": "newer"}


def test_a_cordoned_machine_is_told_as_such_with_the_drift_behind_it(bundle):
    machine = make_machine("a", versions={"bmc": "4.1"})
    services.cordon(machine, owner="ana", reason="fan", now=NOW)

    (row,) = compliance.compliance(Machine.objects.all(), bundle=bundle)

    assert (row.standing, row.drift) == ("cordoned", "older")
    assert row.reason == "bmc runs 4.1, 4.2 is wanted"


def test_a_platform_that_the_bundle_is_not_made_for_is_incompatible(bundle):
    make_machine("a", platform="gb200", versions={"bmc": "4.2"})

    assert standings(bundle=bundle) == {"a": "incompatible"}


def test_a_retired_machine_is_not_counted(bundle):
    make_machine("a", state="retired")

    assert standings(bundle=bundle) == {}


def test_compliance_can_be_asked_as_of_a_time(bundle):
    machine = make_machine("a", versions={"bmc": "4.1"})
    make_firmware_record(machine, version="4.2", since=NOW)

    assert standings(bundle=bundle) == {"a": "compliant"}
    assert standings(bundle=bundle, at=NOW - (NOW - machine.registered_at) / 2) == {"a": "older"}


def test_statements_do_not_grow_with_machines(bundle, django_assert_num_queries):
    make_machines(300, versions={"bmc": "4.1", "bios": "1"})
    want(bundle)

    with django_assert_num_queries(7):
        rows = list(compliance.compliance(Machine.objects.all()))

    assert len(rows) == 300


def test_a_machine_that_is_listed_later_comes_after(bundle):
    make_machines(3, names=["a", "b", "c"])

    assert list(standings(bundle=bundle, after="a")) == ["b", "c"]


def test_only_an_approved_bundle_of_the_platform_is_wanted(bundle):
    with pytest.raises(BundleNotReady, match="is draft; an approved one is needed"):
        want(make_bundle(is_approved=False))
    with pytest.raises(BundleNotReady, match="is made for dgx-h100, not for gb200"):
        want(bundle, platform="gb200")
