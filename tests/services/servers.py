"""Throw-away PostgreSQL and Redis servers, from the binaries that a machine happens to have."""

import ctypes
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import redis

START_SECONDS = 20.0
POSTGRES_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin")
INSTALL_HINT = "apt install postgresql redis-server, or set TEST_DATABASE_URL and TEST_REDIS_URL"


class ServerFailed(RuntimeError):
    """A server's binary is there, but it does not start."""


# --- finding ------------------------------------------------------------------


def postgres_folder() -> Path | None:
    """The newest folder with both `initdb` and `postgres`."""
    named = [os.environ.get("PG_BIN", ""), *os.environ.get("PATH", "").split(os.pathsep)]
    globbed = [path for pattern in POSTGRES_FOLDERS for path in Path("/").glob(pattern[1:])]
    globbed.sort(key=lambda path: [int(part) for part in re.findall(r"\d+", str(path))])
    for folder in [Path(name) for name in named if name] + globbed[::-1]:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    return None


def redis_binary() -> str | None:
    return shutil.which("redis-server") or shutil.which("valkey-server")


def missing_engines() -> list[str]:
    """What neither an address nor a binary stands for."""
    found = {
        "PostgreSQL": os.environ.get("TEST_DATABASE_URL") or postgres_folder(),
        "Redis": os.environ.get("TEST_REDIS_URL") or redis_binary(),
    }
    return [name for name, where in found.items() if not where]


# --- running ------------------------------------------------------------------


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the address of a PostgreSQL server: the given one, or one of our own making."""
    if given := os.environ.get("TEST_DATABASE_URL"):
        yield given
        return
    folder = postgres_folder()
    if folder is None:
        raise ServerFailed("no PostgreSQL binaries found; " + INSTALL_HINT)
    port = free_port()
    with scratch_folder("postgres") as data:
        initdb = [str(folder / "initdb"), "--pgdata", str(data / "db"), "--no-sync"]
        initdb += ["--username=coalmine", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        run_once(initdb, cwd=data)
        command = [str(folder / "postgres"), "-D", str(data / "db"), "-p", str(port)]
        command += ["-k", str(data), "-c", "listen_addresses=127.0.0.1"]
        # A test's rows stay uncommitted: an autovacuum in the middle of one counts none of them,
        # and the planner then joins a hundred thousand observations row by row.
        settings = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off")
        for setting in settings:
            command += ["-c", setting]
        address = f"postgres://coalmine@127.0.0.1:{port}/postgres"
        # SIGINT is PostgreSQL's fast shutdown: it does not wait for its clients.
        with server(command, cwd=data, stop=signal.SIGINT) as process:
            wait_until(lambda: postgres_answers(address), process=process, log=data / "log")
            yield address


@contextmanager
def redis_server() -> Iterator[str]:
    """Yield the address of a Redis server: the given one, or one of our own making."""
    if given := os.environ.get("TEST_REDIS_URL"):
        yield given
        return
    binary = redis_binary()
    if binary is None:
        raise ServerFailed("no redis-server found; " + INSTALL_HINT)
    port = free_port()
    with scratch_folder("redis") as data:
        command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "no", "--dir", str(data)]
        address = f"redis://127.0.0.1:{port}/0"
        with server(command, cwd=data, stop=signal.SIGTERM) as process:
            wait_until(lambda: redis_answers(address), process=process, log=data / "log")
            yield address


def postgres_answers(address: str) -> bool:
    try:
        with psycopg.connect(address, connect_timeout=2) as connection:
            connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def redis_answers(address: str) -> bool:
    try:
        with redis.Redis.from_url(address, socket_connect_timeout=2) as client:
            return bool(client.ping())
    except redis.exceptions.RedisError:
        return False


def versions(*, database_url: str, redis_url: str) -> tuple[str, str]:
    """The versions of both servers, for the closing report."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    with redis.Redis.from_url(redis_url) as client:
        info = client.info("server")
    return str(row[0]).split()[0] if row else "?", str(info["redis_version"])


# --- processes ------------------------------------------------------------------


def identity() -> dict[str, object]:
    """Whom to run a server as: PostgreSQL refuses root, so root steps down."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise ServerFailed("running as root, and neither a user postgres nor nobody exists")


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """A folder of the server's user; in /tmp, since root's own folders are closed to it."""
    folder = Path(tempfile.mkdtemp(prefix=f"coalmine-{name}-", dir="/tmp"))
    who = identity()
    if who:
        os.chown(folder, int(str(who["user"])), int(str(who["group"])))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_once(command: list[str], *, cwd: Path) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=120, **identity()
    )
    if done.returncode:
        raise ServerFailed(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")


@contextmanager
def server(
    command: list[str], *, cwd: Path, stop: signal.Signals
) -> Iterator[subprocess.Popen[bytes]]:
    with (cwd / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=cwd, stdout=log, stderr=log, preexec_fn=die_with_parent, **identity()
        )
    with ended(process, seconds=10, by=stop):
        yield process


@contextmanager
def ended(
    process: subprocess.Popen[bytes], *, seconds: float, by: signal.Signals = signal.SIGTERM
) -> Iterator[None]:
    """End the process when the block ends, however it ends."""
    try:
        yield
    finally:
        process.send_signal(by)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def die_with_parent() -> None:
    """Ask Linux to end this process when the test run is killed and can no longer do it."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))


def wait_until(answers: Callable[[], bool], *, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            raise ServerFailed(f"the server did not come up: {log.read_text(errors='replace')}")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
