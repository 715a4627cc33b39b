"""What every test stands on: which engines, a clean broker, and the closing report.

By default the suite runs on SQLite and the in-memory broker, whatever the shell's
environment says. `tests/services` repeats it in a process of its own, on PostgreSQL
and Redis, with `COALMINE_TEST_SERVICES` set.
"""

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import django
import pytest

ROOT = Path(__file__).resolve().parent.parent
ON_SERVICES = os.environ.get("COALMINE_TEST_SERVICES") == "1"
KEPT_ON_SERVICES = {"DATABASE_URL", "REDIS_URL", "SECRET_KEY"}
PRODUCT_APPS = ("fleet", "rollouts", "simulation")
SCRATCH = tempfile.TemporaryDirectory(prefix="coalmine-tests-")


def isolate_environment() -> None:
    """Blank every variable that the product knows, so that the shell's values do not leak in."""
    known = re.findall(r"^#?\s?([A-Z_]+)=", (ROOT / ".env.example").read_text(), flags=re.M)
    for name in known:
        if not (ON_SERVICES and name in KEPT_ON_SERVICES):
            os.environ[name] = ""
    os.environ["DATA_DIR"] = SCRATCH.name
    os.environ["SIMULATION_ENABLED"] = "true"
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"


isolate_environment()
django.setup()

from django.apps import apps  # noqa: E402
from django.conf import settings  # noqa: E402
from django.db import connection, connections  # noqa: E402
from django.db.models import Model  # noqa: E402
from django.test import TransactionTestCase  # noqa: E402

from config.celery import app  # noqa: E402
from fleet import appendonly  # noqa: E402
from tests.services import repeating, servers, worker_process  # noqa: E402

settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # speed

NOT_REPEATED = pytest.StashKey[int]()


# --- databases --------------------------------------------------------------


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A SQLite test database must be a file: threads cannot share one in memory.

    On a server, the process number keeps two runs apart.
    """
    name = f"test_coalmine_{os.getpid()}"
    if connection.vendor == "sqlite":
        name = str(tmp_path_factory.mktemp("database") / f"{name}.sqlite3")
    connections["default"].settings_dict["TEST"]["NAME"] = name


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Let a transactional test's flush past the append-only triggers, and undo its excess.

    The flush empties every table, also of what migrations put there; those rows come back.
    """
    plain = TransactionTestCase._fixture_teardown
    with django_db_blocker.unblock():
        shipped = shipped_rows()

    def teardown(case: TransactionTestCase) -> None:
        with appendonly.maintenance():
            plain(case)
        for model, rows in shipped.items():
            model._base_manager.bulk_create(deepcopy(rows))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", teardown)
        yield


def shipped_rows() -> dict[type[Model], list[Model]]:
    """What this product's migrations have put into a fresh database, by model."""
    found = {
        model: list(model._base_manager.order_by("pk"))
        for app_config in apps.get_app_configs()
        if app_config.name in PRODUCT_APPS
        for model in app_config.get_models()
    }
    return {model: rows for model, rows in found.items() if rows}


# --- broker and worker ------------------------------------------------------


@pytest.fixture(autouse=True)
def empty_queues(request: pytest.FixtureRequest) -> None:
    """Start without another test's messages."""
    if touches_engines(request.node):
        worker_process.forget_messages(app)


@pytest.fixture
def celery_worker_process(transactional_db: None, empty_queues: None) -> Iterator[None]:
    """A running worker: threads of this process on SQLite, a process of its own on services."""
    with worker_process.running(app):
        yield


# --- the repeat on services ---------------------------------------------------


def touches_engines(item: pytest.Item) -> bool:
    """True for a test that uses the database, and so, maybe, the broker."""
    fixtures = set(getattr(item, "fixturenames", ()))
    asks = {"db", "transactional_db", "celery_worker_process", "live_server"} & fixtures
    return bool(asks) or any(item.get_closest_marker(name) for name in ("django_db", "services"))


def is_repeat(item: pytest.Item) -> bool:
    return "tests/services/test_repeat" in item.nodeid


@pytest.fixture(scope="session", autouse=True)
def running_repeat(request: pytest.FixtureRequest) -> Iterator[repeating.Repeat | None]:
    """Start the repeat with the first test, so that it runs beside all others; None without."""
    wanted = any(is_repeat(item) for item in request.session.items)
    if ON_SERVICES or not wanted or servers.missing_engines():
        yield None
        return
    with repeating.running() as repeat:
        yield repeat


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On services, run what touches them; otherwise end with the wait for the repeat."""
    if ON_SERVICES:
        left_out = [item for item in items if not touches_engines(item)]
        config.stash[NOT_REPEATED] = len(left_out)
    else:
        left_out = [item for item in items if item.get_closest_marker("services")]
        items.sort(key=is_repeat)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


# --- the closing report -----------------------------------------------------


@pytest.fixture
def report_engine(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Add a line on an engine to the closing report."""
    return partial(record_property, "engine")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    outcome = summary_of(terminalreporter, config)
    if report := os.environ.get("COALMINE_TEST_REPORT"):
        Path(report).write_text(json.dumps(outcome))
    if ON_SERVICES:
        return
    terminalreporter.section("engines")
    terminalreporter.write_line("SQLite (file, WAL) with the in-memory broker: this run")
    lines = reported_engines(terminalreporter)
    for line in lines or ["PostgreSQL with Redis: not among the chosen tests"]:
        terminalreporter.write_line(line)
    for reason, count in outcome["skips"].items():
        terminalreporter.write_line(f"skipped {count}: {reason}")


def reported_engines(reporter: pytest.TerminalReporter) -> list[str]:
    reports = [
        one for kind in ("passed", "failed", "skipped") for one in reporter.stats.get(kind, [])
    ]
    return [text for one in reports for name, text in one.user_properties if name == "engine"]


def summary_of(reporter: pytest.TerminalReporter, config: pytest.Config) -> dict:
    counts = {
        kind: len(reports)
        for kind, reports in reporter.stats.items()
        if kind in {"passed", "failed", "error", "skipped", "xfailed", "xpassed"}
    }
    skips = Counter(skip_reason(report) for report in reporter.stats.get("skipped", []))
    return {
        "counts": counts,
        "skips": dict(skips),
        "not_repeated": config.stash.get(NOT_REPEATED, 0),
    }


def skip_reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return str(text).removeprefix("Skipped: ")
