"""A Celery worker for the length of a test, in the shape that the engines allow."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from celery import Celery
from django.db import connection
from kombu.transport.memory import Channel

from config.embedded import embedded_worker
from tests.services.servers import die_with_parent

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 30.0


def running(app: Celery) -> AbstractContextManager[object]:
    if app.conf.broker_url.startswith("memory:"):
        return embedded_worker(concurrency=4)
    return separate_process(app)


def forget_messages(app: Celery) -> None:
    """Drop what is queued, and what a worker had taken and not yet acknowledged."""
    if app.conf.broker_url.startswith("memory:"):
        Channel.queues.clear()
        return
    with app.connection_for_write() as broker:
        broker.default_channel.client.delete(
            app.conf.task_default_queue, "unacked", "unacked_index", "unacked_mutex"
        )


@contextmanager
def separate_process(
    app: Celery,
    *,
    include: str = "tests.services.probe",
    is_awaited: bool = True,
    name: str | None = None,
    **variables: str,
) -> Iterator[subprocess.Popen[bytes]]:
    """`celery worker` with its ordinary pool of processes, on the test's own database."""
    name = name or f"test-{os.getpid()}-{time.monotonic_ns()}@localhost"
    command = [sys.executable, "-m", "celery", "-A", "config", "worker", "--hostname", name]
    command += ["--concurrency=2", "--loglevel=WARNING", f"--include={include}"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    # A killed pool leaves temporary folders behind: let them go with the test's own.
    environment = os.environ | {"DATABASE_URL": database_url(), "TMPDIR": os.environ["DATA_DIR"]}
    environment |= variables
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    try:
        if is_awaited:
            wait_until_ready(app, name=name, process=process)
        yield process
    finally:
        # A warm stop takes two seconds; what still runs has nothing more to tell the test.
        with suppress(ProcessLookupError):  # it may have been killed already
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_ready(app: Celery, *, name: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not app.control.ping(destination=[name], timeout=0.2):
        if process.poll() is not None:
            raise RuntimeError(f"the Celery worker ended with {process.returncode}; see its log")
        if time.monotonic() > deadline:
            raise RuntimeError(f"the Celery worker was not ready after {START_SECONDS:.0f} s")


def database_url() -> str:
    """The address of the database that the tests use, not of the one they were pointed at."""
    found = connection.settings_dict
    login = ":".join(quote(str(found[key]), safe="") for key in ("USER", "PASSWORD") if found[key])
    port = found["PORT"] or 5432
    return f"postgres://{login}@{found['HOST']}:{port}/{found['NAME']}"
