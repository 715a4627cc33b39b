"""A rollout that real processes carry out, in a database of its own, while servers come and go.

`python -m tests.services.outage begin` writes what is needed and prints a token for telemetry;
`… drive` steps the clock whenever nothing is due, as the demo does, until nothing waits for time.
Both are processes of their own: the test's own connections are to another database.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.services import servers

ROOT = Path(__file__).resolve().parent.parent.parent
MACHINES = 40
ADAPTER = "tests.services.deadly.RedisFleet"
WAVES = (4, 5, 6, 7)


def environment_of(*, database_url: str, redis_url: str, folder: Path) -> dict[str, str]:
    """The variables that the compose file would set, and the fleet of these tests."""
    return os.environ | {
        "DATABASE_URL": database_url,
        "DATABASE_POOL": "true",
        "REDIS_URL": redis_url,
        "DEADLY_REDIS_URL": redis_url.rsplit("/", 1)[0] + "/5",
        "INSTALLER": ADAPTER,
        "SCHEDULER": ADAPTER,
        "SIMULATION_ENABLED": "false",
        "SWEEP_SECONDS": "1",
        "DATA_DIR": str(folder),
        "HOME": str(folder),
        "ALLOWED_HOSTS": "127.0.0.1",
    }


def run(*words: str, environment: Mapping[str, str]) -> str:
    """One step of the preparation; returns what it printed last."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=dict(environment),
        check=True,
        timeout=300,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip().rpartition("\n")[2]


def prepare(environment: Mapping[str, str]) -> str:
    """Migrate and begin; returns the token."""
    run("manage.py", "migrate", "--noinput", "--verbosity=0", environment=environment)
    return run("-m", "tests.services.outage", "begin", environment=environment)


@contextmanager
def process(
    *command: str, environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the product for as long as the block runs."""
    with log.open("ab") as file:
        started = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=dict(environment),
            stdout=file,
            stderr=file,
            preexec_fn=servers.die_with_parent,
        )
    with servers.ended(started, seconds=15):
        yield started


@contextmanager
def kept_running(*command: str, environment: Mapping[str, str], log: Path) -> Iterator[list[float]]:
    """A process that is started anew whenever it ends, as its supervisor does (compose: restart).

    Yields when it was started, by the monotonic clock: more than once if it had to be.
    """
    is_over, starts = threading.Event(), list[float]()

    def keep() -> None:
        while not is_over.is_set():
            starts.append(time.monotonic())
            with process(*command, environment=environment, log=log) as running:
                while running.poll() is None and not is_over.wait(0.5):
                    pass

    supervisor = threading.Thread(target=keep)
    supervisor.start()
    try:
        yield starts
    finally:
        is_over.set()
        supervisor.join()


def worker(name: str) -> tuple[str, ...]:
    words = ("-m", "celery", "-A", "config", "worker", "--concurrency=2", "--loglevel=WARNING")
    return (*words, f"--hostname={name}@localhost", "--include=tests.services.deadly")


def beat(folder: Path, name: str = "beat") -> tuple[str, ...]:
    words = ("-m", "celery", "-A", "config", "beat", "--scheduler", "celery.beat:Scheduler")
    return (*words, "--loglevel=WARNING", f"--pidfile={folder / name}.pid")


DRIVER = ("-m", "tests.services.outage", "drive")


def ask(database_url: str, question: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database_url, connect_timeout=5) as connection:
        return connection.execute(question).fetchall()  # type: ignore[arg-type]


def soon(claim: Any, *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


# --- in the processes ------------------------------------------------------------------------


def begin() -> None:
    from django.contrib.auth.models import Group
    from knox.models import AuthToken

    from fleet import clock
    from rollouts import services
    from tests.factories import NOW, make_bundle, make_image, make_machines, make_user
    from tests.rollouts.plans import document
    from tests.services import deadly

    clock.set_mode("stepped", at=NOW)
    names = [f"outage/{number:02}" for number in range(MACHINES)]
    make_machines(MACHINES, names=names, versions={deadly.KIND: deadly.OLD})
    author, agent = make_user("ann"), make_user("agent")
    agent.groups.set(Group.objects.filter(name="reporter"))
    plan = document(
        waves=[{"count": count, "window_hours": 48} for count in WAVES],
        guardrails=[{"metric": "install", "required": True, "margin": 0.9}],
        look_minutes=1440,
        batch_size=10,
        max_bricks=None,
        extension=0,
    )
    rollout = services.create_draft(
        name="outage",
        bundle=make_bundle(images=[make_image(deadly.KIND, deadly.NEW)]),
        selector="platform=dgx-h100",
        document={"mode": "automatic", **plan},
        author=author,
        now=NOW,
        seed=7,
    )
    services.submit(rollout, actor=author, now=NOW)
    services.approve(rollout, actor=make_user("bob"), now=NOW)
    services.start(rollout, actor=author, now=NOW)
    print(AuthToken.objects.create(user=agent)[1])


def drive() -> None:
    from django.db import InterfaceError, OperationalError, connections

    from fleet import clock
    from rollouts import selectors

    while True:
        try:
            now = clock.now()
            if not selectors.has_due_work(now):
                due = selectors.next_due_at()
                if due is None:
                    return
                clock.step_to(max(due, now))
        except (OperationalError, InterfaceError):
            connections.close_all()
        time.sleep(0.1)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    {"begin": begin, "drive": drive}[sys.argv[1]]()
