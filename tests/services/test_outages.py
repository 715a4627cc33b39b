"""Two schedulers at once, Redis and PostgreSQL that go and come back, under a running rollout."""

import json
import os
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
import redis

from tests.services import outage, servers
from tests.services.failover import Address, OwnPostgres, address_of
from tests.services.outage import DRIVER, ask, beat, kept_running, process, soon, worker

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1500)]

PROGRESS = "SELECT count(*) FROM rollouts_attemptevent"
ROLLOUT = "SELECT status FROM rollouts_rollout"


@pytest.fixture
def database_url() -> Iterator[str]:
    """A database of its own on the server of the tests."""
    server, name = os.environ["DATABASE_URL"], f"outage_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield server.rsplit("/", 1)[0] + f"/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def flashed(environment: dict[str, str]) -> Counter:
    with redis.Redis.from_url(environment["DEADLY_REDIS_URL"], decode_responses=True) as store:
        return Counter(store.lrange("flashed", 0, -1))


def assert_done_once(environment: dict[str, str]) -> None:
    """The end that one scheduler, one worker and no outage would have reached."""
    url = environment["DATABASE_URL"]
    assert ask(url, ROLLOUT) == [("completed",)]
    waves = ask(url, "SELECT number, status, looks FROM rollouts_wave ORDER BY number")
    assert [status for _, status, _ in waves] == ["widened"] * len(waves)
    # Each canary wave is proven at its first look; the release is not judged.
    assert [looks for *_, looks in waves] == [1] * len(outage.WAVES) + [0]
    starts = "SELECT wave_id FROM rollouts_transition WHERE trigger = 'start'"
    assert set(Counter(ask(url, starts + " AND wave_id IS NOT NULL")).values()) == {1}
    looks = "SELECT wave_id, as_of FROM rollouts_evaluation"
    assert max(Counter(ask(url, looks)).values()) == 1
    moves = "SELECT attempt_id, old_status, new_status FROM rollouts_attemptevent"
    assert max(Counter(ask(url, moves)).values()) == 1
    ended = "SELECT status, count(*) FROM rollouts_attempt GROUP BY status"
    assert ask(url, ended) == [("succeeded", outage.MACHINES)]
    assert set(flashed(environment).values()) == {1}
    assert len(flashed(environment)) == outage.MACHINES


# --- S17 -------------------------------------------------------------------------------------


def test_s17_two_schedulers_and_two_workers_do_everything_once(database_url: str, tmp_path: Path):
    redis_url = os.environ["REDIS_URL"].rsplit("/", 1)[0] + "/6"
    environment = outage.environment_of(
        database_url=database_url, redis_url=redis_url, folder=tmp_path
    )
    outage.prepare(environment)

    with ExitStack() as stack:
        for name in ("one", "two"):
            for command in (worker(name), beat(tmp_path, name)):
                log = tmp_path / f"{name}.log"
                stack.enter_context(process(*command, environment=environment, log=log))
        driver = stack.enter_context(
            process(*DRIVER, environment=environment, log=tmp_path / "driver.log")
        )
        assert driver.wait(900) == 0, (tmp_path / "driver.log").read_text()

    assert_done_once(environment)


# --- S18 -------------------------------------------------------------------------------------


class OwnRedis:
    """A server that can be killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.port = servers.free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        binary = servers.redis_binary() or pytest.skip("no redis-server on this machine")
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "yes", "--dir", str(self.folder)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, preexec_fn=servers.die_with_parent
        )
        assert soon(lambda: servers.redis_answers(self.url), seconds=20)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def cut(self) -> None:
        """Drop every connection, as a switch that reboots does."""
        with redis.Redis.from_url(self.url) as client:
            client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub", skipme=True)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[OwnRedis]:
    server = OwnRedis(tmp_path)
    server.start()
    yield server
    server.kill()


def test_s18_after_redis_restarts_and_is_cut_three_times_the_next_step_runs_within_90_s(
    database_url: str, own_redis: OwnRedis, tmp_path: Path
):
    environment = outage.environment_of(
        database_url=database_url, redis_url=own_redis.url, folder=tmp_path
    )
    outage.prepare(environment)

    with ExitStack() as stack:
        # A worker that lost its broker may end by itself; its supervisor is part of the product.
        starts = {
            name: stack.enter_context(
                kept_running(*command, environment=environment, log=tmp_path / f"{name}.log")
            )
            for name, command in {"worker": worker("one"), "beat": beat(tmp_path)}.items()
        }
        driver = stack.enter_context(
            process(*DRIVER, environment=environment, log=tmp_path / "driver.log")
        )
        assert soon(lambda: ask(database_url, PROGRESS)[0][0] > 10, seconds=120)

        own_redis.kill()
        own_redis.start()
        for _ in range(3):
            own_redis.cut()
            time.sleep(0.9)
        before, begun = ask(database_url, PROGRESS)[0][0], time.monotonic()

        moved = soon(lambda: ask(database_url, PROGRESS)[0][0] > before, seconds=90)
        assert moved, (tmp_path / "worker.log").read_text()[-3000:]
        print(f"the next step ran {time.monotonic() - begun:.0f} s after the last cut")
        print("started", {name: len(times) for name, times in starts.items()}, "times")
        assert driver.wait(900) == 0, (tmp_path / "driver.log").read_text()

    assert_done_once(environment)


# --- S20 -------------------------------------------------------------------------------------


@pytest.fixture
def own_postgres() -> Iterator[OwnPostgres]:
    found = servers.postgres_folder() or pytest.skip("no PostgreSQL on this machine")
    tools = (found / "postgres").resolve().parent  # past links, which need not be there for all
    missing = [name for name in ("pg_ctl", "pg_basebackup") if not shutil.which(str(tools / name))]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} on this machine")
    with servers.scratch_folder("outage") as folder:
        server = OwnPostgres(folder, tools)
        server.create()
        server.start()
        yield server
        server.stop_at_once()


@pytest.fixture
def own_standby(own_postgres: OwnPostgres) -> Iterator[OwnPostgres]:
    other = own_postgres.standby()
    yield other
    other.stop_at_once()


@pytest.fixture
def one_address(own_postgres: OwnPostgres) -> Iterator[Address]:
    address = Address(own_postgres.port)
    yield address
    address.close()


class Agent(threading.Thread):
    """Reports one fault after the other, each in a batch of its own, and notes each answer."""

    def __init__(self, address: str, token: str) -> None:
        super().__init__(daemon=True)
        self.address, self.token = address, token
        self.answers: list[tuple[str, int, str | None, float]] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.is_over.wait(0.2):
            number += 1
            begun = time.monotonic()
            status, retry_after = self.report(f"batch-{number}")
            self.answers.append((f"batch-{number}", status, retry_after, time.monotonic() - begun))

    def report(self, key: str) -> tuple[int, str | None]:
        record = {"machine": "outage/00", "time": "2026-03-01T00:00:00Z", "signature": key}
        body = {"source": "agent", "key": key, "records": [record]}
        request = urllib.request.Request(
            f"{self.address}/api/v1/telemetry/faults",
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Token {self.token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, None
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Retry-After"]
        except OSError:
            return 0, None  # no answer at all, which the test does not accept


@contextmanager
def web(environment: dict[str, str], log: Path) -> Iterator[str]:
    port = servers.free_port()
    command = ("-m", "gunicorn", "config.wsgi", f"--bind=127.0.0.1:{port}")
    command += ("--worker-class=gthread", "--workers=2", "--threads=4")
    with process(*command, environment=environment, log=log):
        assert soon(lambda: is_ready(f"http://127.0.0.1:{port}/readyz"), seconds=180)
        yield f"http://127.0.0.1:{port}"


def is_ready(address: str) -> bool:
    """The first request loads the whole site; the agent's are measured after it."""
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_s20_through_a_restart_and_a_failover_of_postgresql_all_goes_on_and_every_batch_is_once(
    own_postgres: OwnPostgres, own_standby: OwnPostgres, one_address: Address, tmp_path: Path
):
    url = address_of(one_address.port)
    redis_url = os.environ["REDIS_URL"].rsplit("/", 1)[0] + "/6"
    environment = outage.environment_of(database_url=url, redis_url=redis_url, folder=tmp_path)
    token = outage.prepare(environment)
    begun_waves = "SELECT count(*) FROM rollouts_wave WHERE started_at IS NOT NULL"

    def restart() -> None:
        own_postgres.stop_at_once()
        time.sleep(20)
        own_postgres.start()

    def fail_over() -> None:
        own_postgres.stop_at_once()
        time.sleep(5)
        own_standby.promote()
        one_address.move_to(own_standby.port)

    with ExitStack() as stack:
        address = stack.enter_context(web(environment, tmp_path / "web.log"))
        for name, command in {"worker": worker("one"), "beat": beat(tmp_path)}.items():
            log = tmp_path / f"{name}.log"
            stack.enter_context(process(*command, environment=environment, log=log))
        driver = stack.enter_context(
            process(*DRIVER, environment=environment, log=tmp_path / "driver.log")
        )
        agent = Agent(address, token)
        agent.start()
        for wave, outage_of_it in ((2, restart), (3, fail_over)):
            is_begun = soon(lambda wave=wave: ask(url, begun_waves)[0][0] >= wave, seconds=300)
            assert is_begun, (tmp_path / "worker.log").read_text()[-3000:]
            outage_of_it()
            before, begun = ask(url, PROGRESS)[0][0], time.monotonic()

            moved = soon(lambda before=before: ask(url, PROGRESS)[0][0] > before, seconds=60)
            assert moved, (tmp_path / "worker.log").read_text()[-3000:]
            print(f"{outage_of_it.__name__}: it went on {time.monotonic() - begun:.0f} s after")
        assert driver.wait(900) == 0, (tmp_path / "driver.log").read_text()
        agent.is_over.set()
        agent.join(30)
        kept = Counter(ask(url, "SELECT key FROM fleet_telemetrybatch WHERE source = 'agent'"))
        faults = Counter(
            ask(
                url,
                "SELECT s.name FROM fleet_fault f JOIN fleet_faultsignature s "
                "ON s.id = f.signature_id WHERE f.source = 'agent'",
            )
        )
        assert_done_once(environment)

    taken = [key for key, status, *_ in agent.answers if 200 <= status < 300]
    refused = [answer for answer in agent.answers if not 200 <= answer[1] < 300]
    assert taken
    assert refused
    assert [kept[key,] for key in taken] == [1] * len(taken)
    assert [faults[key,] for key in taken] == [1] * len(taken)
    assert {(status, retry) for _, status, retry, _ in refused} == {(503, "5")}
    longest = max(seconds for *_, seconds in refused)
    print(f"the longest of {len(refused)} refusals took {longest:.1f} s")
    assert longest < 15
