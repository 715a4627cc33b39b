"""The same suite once more, on PostgreSQL and Redis, with real worker processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services import servers

ROOT = Path(__file__).resolve().parent.parent.parent
REPEAT_SECONDS = 1500


@pytest.mark.timeout(REPEAT_SECONDS + 120)
def test_the_suite_passes_on_postgresql_and_redis(
    tmp_path: Path, report_engine: Callable[[str], None], pytestconfig: pytest.Config
):
    if os.environ.get("COALMINE_TEST_SERVICES") == "1":
        pytest.skip("this is the repeat itself")
    if missing := servers.missing_engines():
        reason = f"no {' and no '.join(missing)} found: {servers.INSTALL_HINT}"
        report_engine(f"PostgreSQL with Redis: not used; {reason}")
        pytest.skip(reason)

    with servers.postgres() as database_url, servers.redis_server() as redis_url:
        postgres, redis = servers.versions(database_url=database_url, redis_url=redis_url)
        started = time.monotonic()
        status, output, outcome = repeat(
            tmp_path / "report.json", database_url=database_url, redis_url=redis_url
        )
    seconds = time.monotonic() - started

    counts = ", ".join(f"{number} {kind}" for kind, number in outcome["counts"].items() if number)
    report_engine(
        f"PostgreSQL {postgres} with Redis {redis} and worker processes: {counts or 'no tests'} "
        f"in {seconds:.0f} s ({outcome['not_repeated']} tests touch neither and were not repeated)"
    )
    for reason, number in outcome["skips"].items():
        report_engine(f"  skipped there {number}: {reason}")
    assert status == 0, output
    assert outcome["counts"].get("passed", 0) > 0


def repeat(report: Path, *, database_url: str, redis_url: str) -> tuple[int, str, dict]:
    """Run pytest in a process of its own; its exit status, its output and its report."""
    environment = os.environ | {
        "COALMINE_TEST_SERVICES": "1",
        "COALMINE_TEST_REPORT": str(report),
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "SECRET_KEY": "only-for-tests-" * 4,
    }
    environment.pop("PYTEST_CURRENT_TEST", None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests",
        "--color=no",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=REPEAT_SECONDS,
        preexec_fn=servers.die_with_parent,
    )
    empty = {"counts": {}, "skips": {}, "not_repeated": 0}
    outcome = json.loads(report.read_text()) if report.exists() else empty
    return done.returncode, done.stdout, outcome
