"""A selector is read as it is meant, or refused; it never widens."""

import pytest

from fleet.errors import SelectorError
from fleet.selection import Check, Requirement, parse


@pytest.mark.parametrize(
    ("text", "requirements"),
    [
        ("rack=r1", [Requirement("rack", Check.IN, ("r1",))]),
        ("rack==r1", [Requirement("rack", Check.IN, ("r1",))]),
        ("rack != r1", [Requirement("rack", Check.NOT_IN, ("r1",))]),
        ("rack in (r1,r2)", [Requirement("rack", Check.IN, ("r1", "r2"))]),
        ("rack notin ( r1 , r2 )", [Requirement("rack", Check.NOT_IN, ("r1", "r2"))]),
        ("env", [Requirement("env", Check.PRESENT)]),
        ("!env", [Requirement("env", Check.ABSENT)]),
        ("in", [Requirement("in", Check.PRESENT)]),
        ("topology.io/zone=a.b-c", [Requirement("topology.io/zone", Check.IN, ("a.b-c",))]),
        (
            "a=1, b in (2,3),c",
            [
                Requirement("a", Check.IN, ("1",)),
                Requirement("b", Check.IN, ("2", "3")),
                Requirement("c", Check.PRESENT),
            ],
        ),
    ],
)
def test_each_form_is_read(text, requirements):
    assert parse(text) == requirements


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        ",",
        "rack=",
        "=r1",
        "rack=r1,",
        "rack=r1,,pool=p",
        "rack in r1",
        "rack in ()",
        "rack in (r1",
        "rack in (r1,)",
        "rack in (r1 r2)",
        "rack=r1 pool=p",
        "rack=r1=r2",
        "!rack=r1",
        "*",
        "rack=r 1",
    ],
)
def test_what_cannot_be_read_is_refused_and_says_what_would_be_accepted(text):
    with pytest.raises(SelectorError, match="platform=dgx-h100"):
        parse(text)
