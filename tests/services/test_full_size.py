"""The commands of the compose file, as processes on this machine: web, worker and beat together."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
import yaml

from tests.services import servers

ROOT = Path(__file__).resolve().parent.parent.parent
DATABASE = f"full_size_{os.getpid()}"

pytestmark = pytest.mark.services


def commands() -> dict[str, list[str]]:
    """Each service's command, found in this environment instead of the image's."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    image = re.findall(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), flags=re.M)[-1]
    found = {
        name: service.get("command", json.loads(image))
        for name, service in services.items()
        if "build" in service
    }
    bin_folder = Path(sys.executable).parent
    return {name: [str(bin_folder / words[0]), *words[1:]] for name, words in found.items()}


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A database of its own, and the variables that the compose file would set."""
    server = os.environ["DATABASE_URL"]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}")
        yield os.environ | {
            "DATABASE_URL": server.rsplit("/", 1)[0] + f"/{DATABASE}",
            "DATABASE_POOL": "true",
            "REDIS_URL": os.environ["REDIS_URL"].rsplit("/", 1)[0] + "/7",
            "SIMULATION_ENABLED": "false",
            "SWEEP_SECONDS": "1",
            "DATA_DIR": str(tmp_path),
            "HOME": str(tmp_path),
        }
        connection.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


@pytest.mark.timeout(300)
def test_web_worker_and_beat_serve_and_tick_together(environment: dict[str, str], tmp_path: Path):
    run = commands()
    port = servers.free_port()
    web = [word.replace("0.0.0.0:8000", f"127.0.0.1:{port}") for word in run["web"]]
    subprocess.run(run["migrate"], cwd=ROOT, env=environment, check=True, timeout=120)

    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(started(command, environment, tmp_path / f"{name}.log"))
            for name, command in {"web": web, "worker": run["worker"], "beat": run["beat"]}.items()
        }
        assert soon(lambda: answers(f"http://127.0.0.1:{port}/readyz")), logs(tmp_path)
        assert soon(lambda: ticked(environment["DATABASE_URL"])), logs(tmp_path)
        assert {name: process.poll() for name, process in processes.items()} == dict.fromkeys(
            processes
        )


@contextmanager
def started(
    command: list[str], environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=file,
            stderr=file,
            preexec_fn=servers.die_with_parent,
        )
    with servers.ended(process, seconds=15):
        yield process


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2) as answer:
            return json.load(answer) == {"status": "ready", "database": "postgresql"}
    except (urllib.error.URLError, OSError):
        return False


def ticked(database_url: str) -> bool:
    """True once a tick of beat went through Redis to the worker and left its row."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT count(*) FROM fleet_heartbeat").fetchone()
    return row is not None and row[0] > 0


def soon(claim, *, seconds: float = 90.0) -> bool:
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def logs(folder: Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(folder.glob("*.log")))
