"""The fake fleet of the rollouts' tests."""

from tests.rollouts.conftest import driver, fake_fleet

__all__ = ["driver", "fake_fleet"]
