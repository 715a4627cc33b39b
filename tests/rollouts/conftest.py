"""A fake fleet behind the adapters, for tests that carry rollouts out."""

import pytest

from fleet import adapters
from tests.rollouts.fakes import Driver, FakeFleet


@pytest.fixture
def fake_fleet(monkeypatch: pytest.MonkeyPatch) -> FakeFleet:
    fleet = FakeFleet()
    monkeypatch.setattr(adapters, "installer", lambda: fleet)
    monkeypatch.setattr(adapters, "scheduler", lambda: fleet)
    return fleet


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)
