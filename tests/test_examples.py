"""The examples in docstrings run as they stand, wherever there are any."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("config", "fleet", "rollouts", "simulation", "benchmarks")
#: Modules with an example, by what their text says.
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if re.search(r"^ +>>> ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run_as_they_stand(name: str):
    found = doctest.testmod(importlib.import_module(name))

    assert found.failed == 0
    assert found.attempted > 0
