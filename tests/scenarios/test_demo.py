"""The demo: through the real tasks to the right ends, and on after it was killed."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.models import Machine, Observation
from rollouts.models import Attempt, Decision, Rollout, Wave
from simulation import demo
from simulation.scenario import HARMFUL, SOUND
from tests.scenarios import short_demo

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def groups(transactional_db: None) -> None:
    """The flush of the test before took the groups that migrations made."""
    from django.apps import apps

    from rollouts.roles import create_groups

    create_groups(sender=apps.get_app_config("rollouts"))


def test_a_sound_bundle_reaches_everybody_and_a_harmful_one_is_rolled_back(
    groups: None, celery_worker_process: None
):
    fleet = demo.set_up(short_demo.parameters(), seed=3)

    demo.run(fleet, document=short_demo.plan())

    sound, harmful = (Rollout.objects.get(name=story.name) for story in (SOUND, HARMFUL))
    assert (sound.status, harmful.status) == ("completed", "rolled_back")
    assert demo.ended_as_it_should(sound)
    assert demo.ended_as_it_should(harmful)
    assert set(sound.waves.values_list("status", flat=True)) == {"widened"}
    first = harmful.waves.get(number=1)
    assert first.status == "halted"
    assert Decision.objects.filter(wave=first, kind="halt", reason_code="harmful").exists()
    # Every machine that ever got the harmful image was asked to take the old one back.
    installed = harmful.attempts.filter(status="succeeded").values_list("machine_id", flat=True)
    back = harmful.children.get().attempts.values_list("machine_id", flat=True)
    assert set(installed) <= set(back)
    assert installed.count() == first.size - harmful.attempts.exclude(status="succeeded").count()
    assert not Wave.objects.filter(rollout=harmful, number=2).exclude(status="pending").exists()
    # Machines that did not come back were looked after, and nobody is left untriaged.
    assert not Attempt.objects.filter(status="never_returned", triage="").exists()
    assert Observation.objects.values("machine").distinct().count() == Machine.objects.count()


# --- killed ---------------------------------------------------------------------------------


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "DATA_DIR": str(folder),
        "DATABASE_URL": "",
        "REDIS_URL": "",
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PYTHONPATH": str(ROOT),
        "LOG_LEVEL": "WARNING",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.scenarios.short_demo"],
        cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def kill_after(process: subprocess.Popen[str], *, word: str, lines: int) -> None:
    """Kill -9 once so many lines began with the word."""
    seen = 0
    output = []
    for line in process.stdout:
        output.append(line)
        seen += line.startswith(word)
        if seen == lines:
            process.send_signal(signal.SIGKILL)
            process.wait(10)
            return
    pytest.fail(f"ended before it could be killed: {''.join(output)[-2000:]}")


def query(folder: Path, statement: str) -> list[tuple]:
    with sqlite3.connect(folder / "coalmine.sqlite3") as connection:
        return connection.execute(statement).fetchall()


def test_killed_in_the_middle_it_goes_on_and_nothing_counts_twice(tmp_path: Path):
    kill_after(start(tmp_path), word="history", lines=8)
    kill_after(start(tmp_path), word="step", lines=6)  # attempts are in flight

    second = start(tmp_path)
    output, _ = second.communicate(timeout=100)

    assert second.returncode == 0, output[-3000:]
    ends = "SELECT name, status FROM rollouts_rollout WHERE parent_id IS NULL ORDER BY id"
    assert query(tmp_path, ends) == [(SOUND.name, "completed"), (HARMFUL.name, "rolled_back")]
    assert query(tmp_path, "SELECT count(*) FROM simulation_virtualfleet") == [(1,)]
    assert twice(tmp_path, "rollouts_attempt", "rollout_id, machine_id") == []
    assert twice(tmp_path, "fleet_observation", "machine_id, start") == []
    # Each image of each attempt is written once: a repeated order never flashed again.
    written = "SELECT count(*) FROM simulation_virtualorder WHERE step = 'stage'"
    wanted = "SELECT sum(json_array_length(targets)) FROM rollouts_attempt"
    assert query(tmp_path, written) == query(tmp_path, wanted)


def twice(folder: Path, table: str, columns: str) -> list[tuple]:
    return query(folder, f"SELECT {columns} FROM {table} GROUP BY {columns} HAVING count(*) > 1")
