"""The two shapes, each in a process of its own, since settings are read once."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
POSTGRES = "postgres://coalmine:secret@db.example.org:5433/fleet"
SHOWN = [
    "ALLOWED_HOSTS",
    "CELERY_BEAT_SCHEDULE",
    "CELERY_BROKER_TRANSPORT_OPTIONS",
    "CELERY_BROKER_URL",
    "CELERY_TASK_TIME_LIMIT",
    "DATABASES",
    "DEBUG",
    "INSTALLER",
    "IS_EMBEDDED",
    "PROBER",
    "SECRET_KEY",
    "SIMULATION_ENABLED",
]
SHOW = f"""
import json
from config import settings
print(json.dumps({{name: getattr(settings, name) for name in {SHOWN!r}}}, default=str))
"""


def load(data: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Import the settings with these variables and no others."""
    known = re.findall(r"^#?\s?([A-Z_]+)=", (ROOT / ".env.example").read_text(), flags=re.M)
    blank = dict.fromkeys(known, "")
    environment = {"PATH": os.environ["PATH"], **blank, "DATA_DIR": str(data), **variables}
    return subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def loaded(data: Path, **variables: str) -> dict:
    done = load(data, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_with_nothing_set_it_is_the_embedded_shape(tmp_path: Path):
    settings = loaded(tmp_path)

    assert settings["IS_EMBEDDED"] is True
    assert settings["DEBUG"] is False
    assert settings["CELERY_BROKER_URL"] == "memory://localhost/"
    assert settings["SIMULATION_ENABLED"] is True
    database = settings["DATABASES"]["default"]
    assert database["NAME"] == str(tmp_path / "coalmine.sqlite3")
    assert database["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert "journal_mode=WAL" in database["OPTIONS"]["init_command"]


def test_addresses_make_it_the_full_size_shape(tmp_path: Path):
    settings = loaded(
        tmp_path, DATABASE_URL=POSTGRES, REDIS_URL="redis://cache:6379/1", SECRET_KEY="k" * 50
    )

    assert settings["IS_EMBEDDED"] is False
    assert settings["CELERY_BROKER_URL"] == "redis://cache:6379/1"
    assert settings["SIMULATION_ENABLED"] is False
    assert settings["DATABASES"]["default"]["HOST"] == "db.example.org"
    assert settings["DATABASES"]["default"]["CONN_HEALTH_CHECKS"] is True
    assert not (tmp_path / "secret_key").exists()


def test_a_lost_message_comes_back_only_after_the_longest_task_must_have_ended(tmp_path: Path):
    settings = loaded(
        tmp_path, DATABASE_URL=POSTGRES, REDIS_URL="redis://cache/0", SECRET_KEY="k" * 50
    )

    visibility = settings["CELERY_BROKER_TRANSPORT_OPTIONS"]["visibility_timeout"]
    assert visibility > settings["CELERY_TASK_TIME_LIMIT"]


def test_a_pool_of_connections_does_not_also_keep_them(tmp_path: Path):
    settings = loaded(
        tmp_path,
        DATABASE_URL=POSTGRES,
        SECRET_KEY="k" * 50,
        DATABASE_POOL="true",
        DATABASE_POOL_SIZE="5",
    )

    database = settings["DATABASES"]["default"]
    assert database["OPTIONS"]["pool"]["max_size"] == 5
    assert database["CONN_MAX_AGE"] == 0


def test_the_embedded_shape_makes_one_secret_that_only_its_owner_can_read(tmp_path: Path):
    first = loaded(tmp_path)["SECRET_KEY"]
    second = loaded(tmp_path)["SECRET_KEY"]

    assert first == second
    assert len(first) >= 50
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.glob("secret_key*")] == ["secret_key"]


def test_a_damaged_secret_stops_the_start(tmp_path: Path):
    (tmp_path / "secret_key").write_text("short")

    done = load(tmp_path)

    assert done.returncode != 0
    assert "holds 5 characters" in done.stderr


@pytest.mark.parametrize(
    ("told", "prober"),
    [
        ({}, "simulation.prober.VirtualProber"),
        ({"PROBER": "none"}, ""),
        ({"INSTALLER": "site.redfish.Installer"}, ""),
        (
            {"INSTALLER": "site.redfish.Installer", "PROBER": "site.probes.Prober"},
            "site.probes.Prober",
        ),
    ],
)
def test_real_machines_are_not_probed_by_the_virtual_prober(
    tmp_path: Path, told: dict[str, str], prober: str
):
    assert loaded(tmp_path, **told)["PROBER"] == prober


def test_the_full_size_shape_demands_a_secret(tmp_path: Path):
    done = load(tmp_path, DATABASE_URL=POSTGRES)

    assert done.returncode != 0
    assert "SECRET_KEY is not set" in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("DEBUG", "maybe", "true or false"),
        ("DATABASE_URL", "mysql://x/y", "postgres://"),
        ("REDIS_URL", "cache:6379", "redis://"),
        ("CELERY_BROKER_URL", "amqp://rabbit", "redis://"),
        ("SWEEP_SECONDS", "0", "a whole number from 1 to 300"),
        ("LOG_LEVEL", "chatty", "one of DEBUG"),
        ("INSTALLER", "redfish", "dotted path"),
        ("SIMULATION_ENABLED", "ja", "true or false"),
    ],
)
def test_a_value_that_is_not_understood_stops_the_start(
    tmp_path: Path, name: str, value: str, accepted: str
):
    done = load(tmp_path, **{name: value})

    assert done.returncode != 0
    assert f"{name}='{value}'" in done.stderr
    assert accepted in done.stderr


def test_every_variable_that_the_settings_read_is_explained():
    read = re.findall(
        r'environment\.(?:text|flag|whole|choice|items|url|dotted|dotted_or_none)\(\s*"([A-Z_]+)"',
        (ROOT / "config" / "settings.py").read_text(),
    )
    explained = re.findall(r"^# ([A-Z_]+)=", (ROOT / ".env.example").read_text(), flags=re.M)

    assert len(read) > 10
    assert sorted(set(read)) == sorted(explained)


def test_the_schedule_names_tasks_that_exist():
    from celery import current_app
    from django.conf import settings

    current_app.loader.import_default_modules()

    missing = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()} - set(
        current_app.tasks
    )
    assert missing == set()
