"""How a machine stands to a bundle; unknown is never compliant."""

import pytest

from fleet.firmware.drift import Standing, Wanted, drift


def standing(versions: dict[str, str], *wanted: Wanted) -> Standing:
    return drift(versions, wanted=wanted or [Wanted("bmc", "4.2")]).standing


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"bmc": "4.2"}, "compliant"),
        ({"bmc": "4.1"}, "older"),
        ({"bmc": "4.10"}, "newer"),
        ({"bmc": "A7"}, "not_comparable"),
        ({"bmc": "disputed: bmc 4.2, host 4.1"}, "unknown"),
        ({"bios": "4.2"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_a_version_stands_to_the_wanted_one_by_its_scheme(versions, expected):
    assert standing(versions) == expected


def test_both_spellings_of_a_number_are_the_same_version():
    wanted = Wanted("nic", "22301116", "number")

    assert standing({"nic": "0x15449bc"}, wanted) == "compliant"


def test_under_plain_another_spelling_is_never_on_target():
    assert standing({"psu": "A07"}, Wanted("psu", "A7", "plain")) == "not_comparable"


def test_every_part_of_a_kind_has_to_run_the_image():
    assert standing({"gpu/0": "4.2", "gpu/1": "4.1"}, Wanted("gpu", "4.2")) == "older"


def test_a_kind_whose_name_begins_alike_is_another_kind():
    assert standing({"gpu": "4.2", "gpu_board": "1.0"}, Wanted("gpu", "4.2")) == "compliant"


def test_what_is_not_known_outweighs_what_is_old():
    wanted = (Wanted("bmc", "4.2"), Wanted("bios", "2"))

    found = drift({"bmc": "4.1"}, wanted=wanted)

    assert found.standing == "unknown"
    assert found.reason == "it is not known what bios runs, 2 is wanted"


def test_a_bundle_without_images_is_met_by_nobody():
    assert drift({"bmc": "4.2"}, wanted=[]).standing == "unknown"
