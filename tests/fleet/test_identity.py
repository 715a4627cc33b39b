"""What machines claim to be, and what of it leaves with a part."""

import pytest

from fleet.errors import ClaimRefused
from fleet.identity import Claim, Swap, moves, normal


@pytest.mark.parametrize(
    ("kind", "told", "value"),
    [
        ("mac", "B8CE.F600.1122", "b8:ce:f6:00:11:22"),
        ("mac", "e8:eb:d3:03:00:a1:b2:c4", "e8:eb:d3:03:00:a1:b2:c4"),
        ("uuid", "4C4C4544004235108051B4C04F4E3132", "4c4c4544-0042-3510-8051-b4c04f4e3132"),
        ("serial", " SN-1a ", "SN-1a"),
        ("bmc_address", "BMC-17.Example.Net", "bmc-17.example.net"),
        ("mac", "", ""),
    ],
)
def test_a_claim_has_one_spelling(kind: str, told: str, value: str):
    assert normal(Claim(kind, told)).value == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [("mac", "b8:ce"), ("uuid", "not one"), ("colour", "red"), ("serial", "x" * 201)],
)
def test_what_is_no_such_value_is_refused_with_what_is_accepted(kind: str, value: str):
    with pytest.raises(ClaimRefused, match="accepted"):
        normal(Claim(kind, value))


STANDING = {
    ("serial", ""): "S1",
    ("uuid", ""): "4c4c4544-0042-3510-8051-b4c04f4e3132",
    ("mac", "nic/0"): "b8:ce:f6:00:11:22",
    ("mac", "bmc"): "b8:ce:f6:00:11:33",
    ("bmc_address", ""): "10.0.0.17",
}


def test_a_board_takes_the_uuid_and_the_bmcs_mac_along_and_leaves_serial_and_address():
    moved = moves([Swap("board", new_serial="B2")], STANDING)

    assert set(moved) == {("uuid", ""), ("mac", "bmc")}
    assert {new for _, new in moved.values()} == {""}


def test_a_nic_takes_its_own_mac_only_and_the_new_one_brings_its_own():
    swap = Swap("nic", "0", "N2", claims=(Claim("mac", "B8CEF6001144", "nic/0"),))

    assert moves([swap], STANDING) == {("mac", "nic/0"): ("b8:ce:f6:00:11:22", "b8:ce:f6:00:11:44")}


def test_two_parts_cannot_say_different_things_of_one_claim():
    swaps = [
        Swap("board", claims=(Claim("serial", "S2"),)),
        Swap("nic", "0", claims=(Claim("serial", "S3"),)),
    ]

    with pytest.raises(ClaimRefused, match="S2 and S3"):
        moves(swaps, STANDING)
