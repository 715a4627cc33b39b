"""The whole suite once more in a process of its own, beside the run on SQLite."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services import servers

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_SECONDS = 2100
COMMAND = [sys.executable, "-m", "pytest", "tests", "--color=no", "-q", "-p", "no:cacheprovider"]


@dataclass(frozen=True)
class Outcome:
    """How the repeat ended: its exit status, what it printed, and what it counted."""

    status: int
    output: str
    seconds: float
    counts: dict[str, int]
    skips: dict[str, int]
    not_repeated: int
    engines: str


@dataclass(frozen=True)
class Repeat:
    """A running repeat; `wait` for its end."""

    process: subprocess.Popen[bytes]
    folder: Path
    started: float
    engines: str

    def wait(self) -> Outcome:
        left = self.started + LONGEST_SECONDS - time.monotonic()
        status = self.process.wait(max(left, 1.0))
        report = self.folder / "report.json"
        empty = {"counts": {}, "skips": {}, "not_repeated": 0}
        return Outcome(
            status=status,
            output=(self.folder / "output").read_text(errors="replace"),
            seconds=time.monotonic() - self.started,
            engines=self.engines,
            **(json.loads(report.read_text()) if report.exists() else empty),
        )


@contextmanager
def running() -> Iterator[Repeat]:
    """Start both servers and the repeat; end all of them when the block ends."""
    with (
        tempfile.TemporaryDirectory(prefix="coalmine-repeat-") as name,
        servers.postgres() as database_url,
        servers.redis_server() as redis_url,
    ):
        folder = Path(name)
        postgres, redis = servers.versions(database_url=database_url, redis_url=redis_url)
        environment = os.environ | {
            "COALMINE_TEST_SERVICES": "1",
            "COALMINE_TEST_REPORT": str(folder / "report.json"),
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "SECRET_KEY": "only-for-tests-" * 4,
        }
        environment.pop("PYTEST_CURRENT_TEST", None)
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                COMMAND,
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=servers.die_with_parent,
            )
        with servers.ended(process, seconds=10):
            engines = f"PostgreSQL {postgres} with Redis {redis}"
            yield Repeat(process, folder, time.monotonic(), engines)
