"""Worker, beat and web server as threads of one process.

The in-memory broker lives and dies with its process, so this shape has exactly
one. Only the main thread can take signals: what is started here installs no
handler, but for `serve`, which is meant to be called from there.
"""

import fcntl
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from celery import signals
from celery.beat import Scheduler, Service
from celery.worker import WorkController, state
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from waitress.server import create_server

from config.celery import app
from config.uploads import most_bytes

logger = logging.getLogger(__name__)

START_SECONDS = 30.0
GRACE_SECONDS = 10.0


class AlreadyRunning(RuntimeError):
    """Another process holds this database's in-memory queue."""


class StartFailed(RuntimeError):
    """A part of the embedded process did not come up."""


class EmbeddedWorker:
    """A Celery worker with a pool of threads, started and stopped from outside.

    `celery.apps.worker.Worker` would take the process's signals; its base class
    does not, but leaves out `worker_init`, on which Celery connects the handlers
    that close database connections around each task.
    """

    def __init__(self, *, concurrency: int = 4) -> None:
        self.concurrency = concurrency
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="celery-worker", daemon=True)

    def start(self) -> None:
        """Return once the worker takes messages."""
        if state.should_stop is not None:
            raise StartFailed("an earlier worker of this process has not stopped yet")
        self._thread.start()
        if not wait_for(self._ready, thread=self._thread, seconds=START_SECONDS):
            raise StartFailed("the Celery worker did not start; its log says why")

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, *, grace: float = GRACE_SECONDS) -> bool:
        """Let running tasks end; false if one still runs when the grace is over."""
        deadline = time.monotonic() + grace
        while self._thread.is_alive():
            state.should_stop = os.EX_OK  # type: ignore[assignment]
            # The loop waits up to 2 s for a message, and once more before it ends.
            app.control.broadcast("ping")
            self._thread.join(0.1)
            if time.monotonic() > deadline:
                return False
        state.should_stop = None  # else the next worker of this process would stop at once
        return True

    def _run(self) -> None:
        try:
            worker = WorkController(
                app=app,
                hostname="embedded@localhost",
                pool="threads",
                concurrency=self.concurrency,
                without_heartbeat=True,
                without_mingle=True,
                without_gossip=True,
                ready_callback=lambda consumer: self._ready.set(),
            )
            signals.worker_init.send(sender=worker)
            worker.start()
        finally:
            connections.close_all()


class EmbeddedBeat:
    """Celery's beat with its schedule in memory: nothing to corrupt, nothing to clean up."""

    def __init__(self) -> None:
        self._service = Service(app, max_interval=1, scheduler_cls=Scheduler)
        self._thread = threading.Thread(target=self._service.start, name="celery-beat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, *, grace: float = GRACE_SECONDS) -> bool:
        self._service.stop()
        self._thread.join(grace)
        return not self._thread.is_alive()


class EmbeddedWeb:
    """The site behind waitress."""

    def __init__(self, *, host: str, port: int) -> None:
        from config.wsgi import application

        try:
            self._server = create_server(
                application,
                host=host,
                port=port,
                threads=4,
                # What is somewhat too large is told in words; what is far too large is not read.
                max_request_body_size=2 * most_bytes(),
            )
        except OSError as error:
            raise StartFailed(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self.port = int(self._server.effective_port)
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, *, grace: float = GRACE_SECONDS) -> bool:
        self._server.close()
        self._thread.join(grace)
        return not self._thread.is_alive()

    def _run(self) -> None:
        # Closing the socket from another thread ends the loop with a bad descriptor.
        with suppress(OSError, ValueError):
            self._server.run()


Part = EmbeddedWorker | EmbeddedBeat | EmbeddedWeb


@contextmanager
def embedded_worker(*, concurrency: int = 4) -> Iterator[EmbeddedWorker]:
    """Run a worker, and nothing else, for the length of a block."""
    worker = EmbeddedWorker(concurrency=concurrency)
    worker.start()
    try:
        yield worker
    finally:
        if not worker.stop():
            logger.warning("a task still runs after %.0f s of grace", GRACE_SECONDS)


@contextmanager
def only_process(database: Path) -> Iterator[None]:
    """Hold this database's place as the one process that has its in-memory queue."""
    with database.with_name(database.name + ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(
                f"another Coalmine process is at work on {database}; stop it first"
            ) from error
        yield


def serve(
    port: int = 8000,
    on_ready: Callable[[str], None] | None = None,
    *,
    host: str = "127.0.0.1",
    concurrency: int = 4,
) -> int:
    """Migrate, run web, worker and beat until a signal comes, and return an exit status.

    Call it from the main thread. `on_ready` gets the site's address. A task that
    outlives the grace period is cut off: its row's lease runs out and the sweep
    takes it up after the next start.
    """
    with only_process(queue_owner()):
        call_command("migrate", interactive=False, verbosity=0)
        return run_parts(host=host, port=port, on_ready=on_ready, concurrency=concurrency)


def queue_owner() -> Path:
    name = settings.DATABASES["default"]["NAME"]
    return Path(name) if settings.IS_EMBEDDED else settings.DATA_DIR / "embedded"


def run_parts(
    *, host: str, port: int, on_ready: Callable[[str], None] | None, concurrency: int
) -> int:
    stop = threading.Event()
    parts: list[Part] = []
    with stop_signals(stop):
        try:
            web = EmbeddedWeb(host=host, port=port)  # first: a port that is taken ends it here
            for part in (web, EmbeddedWorker(concurrency=concurrency), EmbeddedBeat()):
                part.start()
                parts.append(part)
            # Beat waits a whole interval first; until then a page would call the worker away.
            app.send_task("fleet.tasks.heartbeat")
            (on_ready or announce)(f"http://{host}:{web.port}/")
            fallen = watch(parts, stop=stop)
        finally:
            stopped = stop_all(parts)
    if not stopped:
        leave(1)
    return 1 if fallen else 0


def announce(address: str) -> None:
    print(f"Coalmine serves {address} (stop with Ctrl-C)", flush=True)


def watch(parts: list[Part], *, stop: threading.Event) -> bool:
    """Wait for a signal; true if a part died instead."""
    while not stop.wait(0.5):
        dead = [type(part).__name__ for part in parts if not part.is_alive()]
        if dead:
            logger.error("stopping, because a part ended by itself: %s", ", ".join(dead))
            return True
    return False


def stop_all(parts: list[Part]) -> bool:
    """Stop the clock first, then the work, then the pages."""
    stopped = [part.stop() for part in reversed(parts)]
    return all(stopped)


def leave(status: int) -> None:
    """End now. The interpreter itself would wait for the running task."""
    logger.warning("a part did not stop within %.0f s; leaving it behind", GRACE_SECONDS)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextmanager
def stop_signals(stop: threading.Event) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into the event; restore what was there before."""

    def request_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {
        number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for(event: threading.Event, *, thread: threading.Thread, seconds: float) -> bool:
    """True once the event is set; false if the thread ends first, or time is up."""
    for _ in range(int(seconds / 0.05)):
        if event.wait(0.05):
            return True
        if not thread.is_alive():
            return False
    return False
