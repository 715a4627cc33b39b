"""Read-back writes the history, disagreement is no success, and an approved bundle is frozen."""

from datetime import timedelta

import pytest

from fleet import selectors, services
from fleet.errors import BundleFrozen, BundleNotReady, SelfApproval
from fleet.models import FirmwareRecord
from tests.factories import (
    NOW,
    make_bundle,
    make_image,
    make_machine,
    make_platform,
    make_reading,
    make_user,
)

pytestmark = pytest.mark.django_db


def read(machine, *readings, now=NOW):
    return services.record_readings(machine, list(readings), now=now, evidence={"visit": 1})


def bmc_now(machine) -> str:
    return selectors.versions_now([machine.pk])[machine.pk]["bmc"]


def test_a_first_reading_is_appended_with_its_evidence():
    machine = make_machine()

    [record] = read(machine, make_reading(version="1.0"))

    assert (record.version, record.since, record.source) == ("1.0", NOW, "host")
    assert FirmwareRecord.objects.get().evidence == {"visit": 1, "boot_id": "boot-1"}


def test_the_same_reading_appends_nothing():
    machine = make_machine()
    read(machine, make_reading(version="1.0"))

    later = read(machine, make_reading(version="1.0", boot_id="boot-2"), now=NOW + timedelta(1))

    assert later == []


def test_a_machine_that_falls_back_appends_its_old_version_again():
    machine = make_machine(versions={"bmc": "1.0"})
    read(machine, make_reading(version="2.0"))

    [record] = read(
        machine, make_reading(version="1.0", boot_id="boot-2"), now=NOW + timedelta(minutes=40)
    )

    assert (record.version, record.evidence["boot_id"]) == ("1.0", "boot-2")
    assert bmc_now(machine) == "1.0"


def test_staged_and_active_are_separate_histories():
    machine = make_machine(versions={"bmc": "1.0"})

    read(machine, make_reading(version="2.0", stage="staged"), make_reading(version="1.0"))

    assert bmc_now(machine) == "1.0"
    assert selectors.versions_now([machine.pk], stage="staged")[machine.pk] == {"bmc": "2.0"}


def test_bmc_and_host_that_disagree_are_disputed_and_equal_no_version():
    machine = make_machine(versions={"bmc": "1.0"})

    records = read(
        machine,
        make_reading(version="2.0", witness="bmc"),
        make_reading(version="1.0", witness="host"),
    )

    assert [(r.source, r.is_disputed) for r in records] == [("bmc", True), ("host", True)]
    assert bmc_now(machine) == "disputed: bmc 2.0, host 1.0"


def test_a_dispute_that_goes_on_appends_nothing_and_one_that_ends_does():
    machine = make_machine()
    pair = (make_reading(version="2.0", witness="bmc"), make_reading(version="1.0"))
    read(machine, *pair)

    assert read(machine, *pair, now=NOW + timedelta(1)) == []
    read(machine, make_reading(version="2.0"), now=NOW + timedelta(2))

    assert bmc_now(machine) == "2.0"


def test_one_witness_that_repeats_its_claim_does_not_settle_a_dispute():
    machine = make_machine()
    bmc, host = make_reading(version="2.0", witness="bmc"), make_reading(version="1.0")
    read(machine, bmc, host)

    assert read(machine, bmc, now=NOW + timedelta(1)) == []
    assert bmc_now(machine).startswith("disputed")


def test_witnesses_that_agree_settle_a_dispute_whoever_gave_in():
    for agreed in ("1.0", "2.0"):
        machine = make_machine()
        read(machine, make_reading(version="2.0", witness="bmc"), make_reading(version="1.0"))

        read(
            machine,
            make_reading(version=agreed, witness="bmc"),
            make_reading(version=agreed, witness="host"),
            now=NOW + timedelta(1),
        )

        assert bmc_now(machine) == agreed


def test_two_spellings_of_one_number_are_no_dispute():
    make_image("nic", version="0x15449bc", scheme="number")
    machine = make_machine()

    [record] = read(
        machine,
        make_reading("nic", "0x15449bc", witness="bmc"),
        make_reading("nic", "22301116", witness="host"),
    )

    assert not record.is_disputed


def test_a_second_change_at_one_instant_comes_after_the_first():
    machine = make_machine()
    read(machine, make_reading(version="1.0"))
    read(machine, make_reading(version="2.0"))

    assert bmc_now(machine) == "2.0"


def test_slots_are_told_apart():
    machine = make_machine()

    read(machine, *(make_reading("gpu", f"96.{slot}", slot=str(slot)) for slot in range(2)))

    versions = selectors.versions_now([machine.pk])[machine.pk]
    assert versions == {"gpu/0": "96.0", "gpu/1": "96.1"}


def test_an_unknown_witness_is_refused():
    with pytest.raises(ValueError, match="'rumour'"):
        read(make_machine(), make_reading(witness="rumour"))


def test_one_witness_with_two_versions_is_refused():
    machine = make_machine()

    with pytest.raises(ValueError, match=r"as 1\.0 and as 2\.0"):
        read(machine, make_reading(version="1.0"), make_reading(version="2.0"))

    assert not machine.firmware.exists()


# --- bundles -----------------------------------------------------------------


def test_a_bundle_keeps_the_order_of_its_images():
    images = [make_image("cpld"), make_image("bmc"), make_image("bios")]

    bundle = make_bundle(images=images, is_approved=False)

    assert [place.image for place in bundle.places.order_by("position")] == images
    assert (bundle.status, bundle.digest) == ("draft", "")


def test_a_bundle_without_images_or_platforms_is_refused():
    fields = {"name": "b", "version": "1", "author": make_user(), "now": NOW}

    with pytest.raises(BundleNotReady, match="no images"):
        services.create_bundle(**fields, images=[], platforms=[make_platform()])
    with pytest.raises(BundleNotReady, match="no platforms"):
        services.create_bundle(**fields, images=[make_image()], platforms=[])


def test_two_images_of_one_kind_are_refused():
    with pytest.raises(BundleNotReady, match="two images"):
        make_bundle(images=[make_image("bmc"), make_image("bmc")])


def test_an_approval_freezes_the_bundle_under_a_digest():
    bundle = make_bundle()

    assert (bundle.status, bundle.digest) == ("approved", services.bundle_digest(bundle))
    assert bundle.approved_at == NOW


def test_the_author_cannot_approve(settings):
    author = make_user()

    with pytest.raises(SelfApproval, match="ALLOW_SELF_APPROVAL"):
        make_bundle(author=author, approver=author)

    settings.ALLOW_SELF_APPROVAL = True
    assert make_bundle(author=author, approver=author).status == "approved"


def test_a_bundle_is_approved_once():
    bundle = make_bundle()

    with pytest.raises(BundleNotReady, match="is approved"):
        services.approve_bundle(bundle, approver=make_user(), now=NOW)


def test_a_withdrawn_bundle_keeps_its_digest_and_says_who_withdrew_it():
    bundle = make_bundle()
    digest = bundle.digest
    actor = make_user()

    services.withdraw_bundle(bundle, actor=actor, now=NOW)

    assert (bundle.status, bundle.digest) == ("withdrawn", digest)
    assert (bundle.withdrawer, bundle.withdrawn_at) == (actor, NOW)


def test_a_draft_cannot_be_withdrawn():
    with pytest.raises(BundleNotReady, match="is draft"):
        services.withdraw_bundle(make_bundle(is_approved=False), actor=make_user(), now=NOW)


def test_the_rows_of_an_approved_bundle_refuse_to_change():
    bundle = make_bundle()
    place = bundle.places.get()

    for change in (place.save, place.delete, place.image.save):
        with pytest.raises(BundleFrozen, match="approved"):
            change()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_digest_depends_on_the_order_of_the_images(order):
    images = [make_image("bmc", "1"), make_image("bios", "2")]
    bundle = make_bundle(name="b", images=images, is_approved=False)
    before = services.bundle_digest(bundle)

    bundle.places.all().delete()
    for position, place in enumerate(order, start=1):
        bundle.places.create(image=images[place], position=position)

    assert (services.bundle_digest(bundle) == before) == (order == (0, 1))
