"""The examples in the docstrings of the analysis run as they stand."""

import doctest
import importlib
import pkgutil

import pytest

from rollouts import analysis

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(analysis.__path__, prefix="rollouts.analysis.")
)
WITH_EXAMPLES = {"hazards", "recovery", "differences", "labels", "sequential"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_run_as_they_stand(name):
    found = doctest.testmod(importlib.import_module(name))

    assert found.failed == 0
    if name.rsplit(".", 1)[-1] in WITH_EXAMPLES:
        assert found.attempted > 0
