"""Versions compare under a stated scheme; what cannot be ordered is said to be so."""

import pytest

from fleet.firmware import versions
from fleet.firmware.versions import Order
from fleet.models import FirmwareImage

OPPOSITE = {Order.OLDER: Order.NEWER, Order.NEWER: Order.OLDER}


@pytest.mark.parametrize(
    ("scheme", "one", "other", "order"),
    [
        ("dotted", "1.10.0", "1.9.9", Order.NEWER),
        ("dotted", "7.2.3.1", "7.2.3", Order.NEWER),
        ("dotted", "1.02", "1.2", Order.EQUAL),
        ("dotted", "1.2", "1.2.0", Order.OLDER),
        ("dotted", "1.2-rc1", "1.2", Order.NOT_COMPARABLE),
        ("dotted", "0x12", "18", Order.NOT_COMPARABLE),
        ("number", "0x15449bc", "22301116", Order.EQUAL),
        ("number", "0x15449bc", "22301115", Order.NEWER),
        ("number", "15449bc", "22301116", Order.NOT_COMPARABLE),
        ("number", "1.2", "1", Order.NOT_COMPARABLE),
        ("hexadecimal", "15449bc", "0x15449BC", Order.EQUAL),
        ("hexadecimal", "10", "9", Order.NEWER),
        ("hexadecimal", "10", "f", Order.NEWER),
        ("vendor_letters", "U46", "U9", Order.NEWER),
        ("vendor_letters", "A07", "A7", Order.EQUAL),
        ("vendor_letters", "U46a", "u46B", Order.OLDER),
        ("vendor_letters", "U46", "46", Order.NOT_COMPARABLE),
        ("plain", "A07", "A07", Order.EQUAL),
        ("plain", "A07", "A7", Order.NOT_COMPARABLE),
        ("plain", "1.2", "1.3", Order.NOT_COMPARABLE),
        ("dotted", "", "1.0", Order.NOT_COMPARABLE),
        ("plain", "", "", Order.NOT_COMPARABLE),
        ("dotted", "", "", Order.NOT_COMPARABLE),
    ],
)
def test_versions_compare_under_their_scheme_and_the_other_way_round(scheme, one, other, order):
    assert versions.compare(one, other, scheme=scheme) is order
    assert versions.compare(other, one, scheme=scheme) is OPPOSITE.get(order, order)


def test_an_unknown_scheme_raises():
    with pytest.raises(ValueError, match="semver"):
        versions.compare("1", "2", scheme="semver")


def test_every_scheme_that_an_image_may_carry_is_known():
    assert set(FirmwareImage.Scheme.values) == {scheme.value for scheme in versions.Scheme}


@pytest.mark.parametrize(
    ("scheme", "version", "shown"),
    [
        ("number", "0x15449bc", "0x15449bc (22301116)"),
        ("number", "22301116", "22301116 (0x15449bc)"),
        ("hexadecimal", "10", "10 (16)"),
        ("number", "1.2", "1.2"),
        ("dotted", "1.2", "1.2"),
    ],
)
def test_a_number_is_shown_in_both_spellings(scheme, version, shown):
    assert versions.spellings(version, scheme=scheme) == shown
