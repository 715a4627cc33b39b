"""Replaying needs no library whose last digit may differ: shown without SciPy, and under another.

The second is run by hand (`-m slow`): it fetches another NumPy and SciPy from the package index.
"""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from fleet import services as fleet_services
from fleet.models import Machine
from rollouts import selectors, services
from rollouts.models import Rollout
from rollouts.replay import differences, rejudged, replay
from tests.factories import (
    NOW,
    make_fault_report,
    make_observation_report,
    make_recovery_report,
    make_user,
)
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import started

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = ("numpy==1.26.4", "scipy==1.13.1")
GUARDRAILS = [
    {"metric": "install", "required": True},
    {"metric": "faults", "required": False},
    {"metric": "throughput", "required": False},
    {"metric": "recovery_time", "required": False},
    {"metric": "severe_path", "required": False},
    {"metric": "telemetry", "required": False},
    {"metric": "novel_signatures"},
]


def halted(fake_fleet: FakeFleet, driver: Driver) -> Rollout:
    """A rollout with every kind of evaluation: checks of the draw, looks, surveillance, a halt."""
    rollout = started(
        fake_fleet,
        machines=60,
        waves=[{"count": 20, "window_hours": 12}, {"count": 5, "window_hours": 72}],
        guardrails=GUARDRAILS,
        resamples=1999,
        extension=0,
        min_exposure_hours=6,
    )
    machines = list(Machine.objects.order_by("name"))
    report(machines, since=NOW - timedelta(days=9), steps=9 * 4, hours=6)
    report(machines, since=NOW, steps=36, hours=1)
    driver.run(rollout, hours=18)
    ann, bob = make_user(), make_user()
    services.advance(rollout, actor=ann, second_person=bob, reason="calm", now=driver.now)
    driver.run(rollout, hours=12)
    treated = rollout.assignments.filter(wave__number=1).values_list("machine_name", flat=True)
    reports = [
        make_fault_report(machine, time=driver.now - timedelta(minutes=50 - number))
        for number, machine in enumerate(Machine.objects.filter(name__in=treated[:12]))
    ]
    fleet_services.record(reports, source="test", key="bad", now=driver.now)
    driver.run(rollout, hours=12)
    assert rollout.status == "halted"
    return rollout


def report(machines: list[Machine], *, since: Any, steps: int, hours: int) -> None:
    reports = [
        make_observation_report(
            machine,
            start=since + timedelta(hours=hours * step),
            end=since + timedelta(hours=hours * (step + 1)),
            in_service_seconds=3600.0 * hours,
            throughput=1 + 0.001 * ((7 * number + 3 * step) % 11),
        )
        for number, machine in enumerate(machines)
        for step in range(steps)
    ]
    reports += [
        make_recovery_report(
            machine,
            time=(at := since + timedelta(hours=5, minutes=number)),
            recovered_at=at + timedelta(minutes=10 + number % 7),
            path="continued",
        )
        for number, machine in enumerate(machines)
    ]
    fleet_services.record(
        reports, source="test", key=since.isoformat(), now=since + timedelta(hours=hours * steps)
    )


@pytest.mark.django_db
def test_replaying_asks_nothing_of_scipy(
    fake_fleet: FakeFleet, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = halted(fake_fleet, driver)
    evaluations = list(rollout.evaluations.order_by("pk"))
    said = [replay(one) for one in evaluations]
    whole = [rejudged(one) for one in evaluations]
    take_scipy_away(monkeypatch)

    again = [replay(one) for one in evaluations]

    assert [rejudged(one) for one in evaluations] == whole
    assert [one is not None for one in whole] == [one.kind == "look" for one in evaluations]
    assert [line for one in evaluations for line in differences(one)] == []
    assert {one.kind for one in evaluations} == {"look", "surveillance", "draw_check"}
    assert again == said
    assert any(crossed for one in said for crossed in one.values())
    assert selectors.latest_evaluation(selectors.waves_of(rollout)[0]) is not None


def take_scipy_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whatever the product has taken from SciPy refuse to be called."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("SciPy was asked")

    taken = 0
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in ("rollouts", "fleet"):
            continue
        for attribute, value in list(vars(module).items()):
            home = getattr(value, "__module__", None) or type(value).__module__
            if str(home).split(".")[0] == "scipy" or is_ufunc_of_scipy(value):
                monkeypatch.setattr(module, attribute, refuse)
                taken += 1
    assert taken > 5


def is_ufunc_of_scipy(value: object) -> bool:
    from scipy import special

    name = getattr(value, "__name__", "")
    return isinstance(name, str) and getattr(special, name, None) is value


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.django_db(transaction=True)
def test_evaluations_replay_under_another_numpy_and_scipy(
    fake_fleet: FakeFleet, driver: Driver, tmp_path: Path
) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("another process reads the database as a file")
    rollout = halted(fake_fleet, driver)
    count = rollout.evaluations.count()
    elsewhere = tmp_path / "elsewhere"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
    subprocess.run([*install, str(elsewhere), *ELSEWHERE], check=True, timeout=600)
    environment = os.environ | {
        "PYTHONPATH": str(elsewhere),
        "DATABASE_URL": f"sqlite:///{connection.settings_dict['NAME']}",
        "DATA_DIR": str(tmp_path),
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout.strip()

    versions = run("-c", "import numpy, scipy; print(numpy.__version__, scipy.__version__)")
    said = run("manage.py", "replay", rollout.name)

    assert versions == "1.26.4 1.13.1"
    assert said == f"{count} evaluations recomputed, 0 differences"
