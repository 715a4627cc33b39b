"""Everything in one process: it serves, works, ticks, and ends cleanly."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from config import embedded
from config.celery import app, refuse_memory_broker
from tests.services.servers import die_with_parent, ended

ROOT = Path(__file__).resolve().parent.parent.parent
SERVE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
import django
django.setup()
from config import embedded
sys.exit(embedded.serve(0, lambda address: print(address, flush=True)))
"""


@contextmanager
def served(data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        cwd=ROOT,
        env=os.environ | {"DATA_DIR": str(data), "DATABASE_URL": "", "REDIS_URL": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,
    )
    with ended(process, seconds=15):
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def is_deciding(address: str, *, seconds: float) -> bool:
    """Whether the worker has done something end to end by then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address + "healthz", timeout=10):
                return True
        except urllib.error.HTTPError:
            time.sleep(0.2)
    return False


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_one_process_serves_the_site_and_ends_cleanly_on_a_signal(
    tmp_path: Path, sent: signal.Signals
):
    with served(tmp_path) as (process, address):
        with urllib.request.urlopen(address + "readyz", timeout=10) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(address + "admin/login/", timeout=10) as answer:
            assert b"Coalmine" in answer.read()
        assert is_deciding(address, seconds=20), "beat's first heartbeat comes after 30 s"

        process.send_signal(sent)
        status = process.wait(20)

    assert status == 0
    with sqlite3.connect(tmp_path / "coalmine.sqlite3") as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_second_process_on_the_same_database_is_refused(tmp_path: Path):
    with (
        embedded.only_process(tmp_path / "db.sqlite3"),
        pytest.raises(embedded.AlreadyRunning, match=r"db\.sqlite3"),
        embedded.only_process(tmp_path / "db.sqlite3"),
    ):
        pass


def test_a_port_that_is_taken_is_named(tmp_path: Path):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with pytest.raises(embedded.StartFailed, match=rf"127\.0\.0\.1:{port}"):
            embedded.EmbeddedWeb(host="127.0.0.1", port=port)


def test_a_worker_of_its_own_refuses_the_in_memory_broker():
    class Memory:
        broker_url = "memory://localhost/"

    class Redis:
        broker_url = "redis://localhost/0"

    with pytest.raises(SystemExit, match="no other process can reach"):
        refuse_memory_broker(conf=Memory())
    refuse_memory_broker(conf=Redis())


@pytest.mark.skipif(
    not app.conf.broker_url.startswith("memory:"), reason="the embedded worker is for memory only"
)
def test_a_worker_can_be_started_again_after_a_stop():
    for _ in range(2):
        started = time.monotonic()
        with embedded.embedded_worker(concurrency=1) as worker:
            assert worker.is_alive()
        assert not worker.is_alive()
        assert time.monotonic() - started < 5


def test_a_worker_that_ends_before_it_is_ready_is_noticed():
    over = threading.Thread(target=lambda: None)
    over.start()

    assert not embedded.wait_for(threading.Event(), thread=over, seconds=5)
