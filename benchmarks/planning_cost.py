"""`make bench-planning`: what planning a large rollout costs, on SQLite and on PostgreSQL.

One wave over the whole fleet is previewed, submitted, approved, started, begun, halted and
cancelled. What is measured runs in a process of its own, so that its peak memory is its own; the
fleet is made in another. Each step tells its time, its statements and the peak so far. Exit
status 1 if a limit is exceeded.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "planning.json"
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
MACHINES = 100_000
#: Seconds that a step may take.
LIMIT_SECONDS = {"preview": 3.0, "submit": 30.0}
#: No request takes longer, whatever it asks for.
LIMIT_REQUEST = 30.0
#: Statements of one step on PostgreSQL, whatever the number of machines. To begin a wave starts
#: the first attempts as well, each by itself: as many as the plan lets be in flight.
LIMIT_STATEMENTS = 40
BEGUN, EACH = 50, 2
#: Peak memory of a worker.
LIMIT_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Cost:
    """What one step cost: wall clock, statements, and the process's peak memory by then."""

    step: str
    seconds: float
    statements: int
    peak_bytes: int


def prepare(machines: int) -> None:
    """Make a fleet with versions, faults and reports of the period before, and two people."""
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connection

    from fleet import services
    from fleet.bulk import insert_new
    from fleet.models import Fault, FaultSignature, Machine, Observation

    call_command("migrate", verbosity=0)
    services.register_platform("dgx-h100", vendor="nvidia")
    for first in range(0, machines, 10_000):
        services.register_machines(
            [_row(number) for number in range(first, min(first + 10_000, machines))],
            now=NOW - timedelta(days=30),
            vouched_by="bench",
        )
    ann, bob = (User.objects.create_user(name, is_superuser=True) for name in ("ann", "bob"))
    image = services.create_image(kind="bmc", version="2.0")
    bundle = services.create_bundle(
        name="bmc",
        version="2",
        images=[image],
        platforms=list(Machine.platform.field.related_model.objects.all()),
        author=ann,
        now=NOW,
    )
    services.approve_bundle(bundle, approver=bob, now=NOW)
    signature = FaultSignature.objects.order_by("name")[0]
    ids = list(Machine.objects.order_by("pk").values_list("pk", flat=True))
    insert_new(
        Fault,
        (
            "machine_id",
            "time",
            "signature_id",
            "severity",
            "component",
            "boot_id",
            "job",
            "source",
            "source_key",
            "attributes",
            "is_ahead",
            "received_at",
        ),
        [
            (pk, at, signature.pk, "major", "", "", "", "bench", f"{pk}", {}, False, at)
            for pk in ids[::4]
            for at in [NOW - timedelta(hours=1 + pk % 300)]
        ],
    )
    columns = [field.attname for field in Observation._meta.concrete_fields if field.name != "id"]
    insert_new(Observation, columns, [_report(pk, columns) for pk in ids])
    services.summarise(now=NOW)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")  # as PostgreSQL's autovacuum does by itself; ours is off


def _row(number: int) -> dict[str, Any]:
    return {
        "name": f"n{number:06}",
        "platform": "dgx-h100",
        "site": f"s{number // 25_000}",
        "pool": f"p{number // 5_000}",
        "rack": f"r{number // 8}",
        "job": f"job-{number // 64}" if number % 5 else "",
        "workload": "pre-training",
        "components": [{"kind": "bmc", "version": "1.0"}],
    }


def _report(machine: int, columns: list[str]) -> tuple[Any, ...]:
    known = {
        "machine_id": machine,
        "start": NOW - timedelta(hours=2),
        "end": NOW - timedelta(hours=1),
        "in_service_seconds": 3600.0,
        "throughput": 1.0,
        "workload": "pre-training",
        "source": "bench",
        "source_key": f"o{machine}",
        "is_ahead": False,
        "received_at": NOW - timedelta(hours=1),
    }
    return tuple(known.get(column, "") for column in columns)


def measure() -> list[Cost]:
    """Plan and begin one wave over everybody, and say what each step cost."""
    from django.contrib.auth.models import User

    from fleet.models import FirmwareBundle
    from rollouts import pipeline, services
    from rollouts.models import Rollout
    from rollouts.services.plans.previews import preview

    ann, bob = (User.objects.get(username=name) for name in ("ann", "bob"))
    costs: list[Cost] = []

    def step(name: str, act: Callable[[], Any]) -> Any:
        before = time.perf_counter()
        with _counted() as statements:
            result = act()
        costs.append(Cost(name, time.perf_counter() - before, statements[0], _peak()))
        print(_line(costs[-1]), file=sys.stderr, flush=True)
        return result

    rollout = step(
        "create",
        lambda: services.create_draft(
            name=f"all {time.time_ns()}",
            bundle=FirmwareBundle.objects.get(),
            selector="platform=dgx-h100",
            document={"waves": [{"rest": True, "window_hours": 168}], "mode": "automatic"},
            author=ann,
            now=NOW,
        ),
    )
    step("preview", lambda: preview(rollout, now=NOW))
    seen = step("preview again", lambda: preview(rollout, now=NOW))
    step("submit", lambda: services.submit(rollout, actor=ann, now=NOW, digest=seen.digest))
    step("approve", lambda: services.approve(rollout, actor=bob, now=NOW))
    step("start", lambda: services.start(rollout, actor=ann, now=NOW))
    step("begin the wave", lambda: pipeline.enact(Rollout.objects.get(pk=rollout.pk), now=NOW))
    rollout.refresh_from_db()
    step("halt", lambda: services.halt(rollout, actor=bob, now=NOW))
    rollout.refresh_from_db()
    step("cancel", lambda: services.cancel(rollout, actor=ann, now=NOW))
    return costs


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Count the statements that reach the database; `executemany` is one."""
    from django.db import connection

    counted = [0]

    def count(execute: Any, *rest: Any) -> Any:
        counted[0] += 1
        return execute(*rest)

    with connection.execute_wrapper(count):
        yield counted


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _line(cost: Cost) -> str:
    return (
        f"{cost.step:<16} {cost.seconds:8.2f} s {cost.statements:6d} statements "
        f"{cost.peak_bytes / 2**20:7.0f} MiB"
    )


# --- engines -----------------------------------------------------------------------------------


def run_on(name: str, database: str, *, machines: int, folder: str) -> list[Cost]:
    """Make the fleet in one process and measure in another."""
    print(f"{name}, {machines} machines", file=sys.stderr, flush=True)
    shell = {
        **os.environ,
        "DATABASE_URL": database,
        "REDIS_URL": "redis://127.0.0.1:1/0" if database else "",
        "SECRET_KEY": "only-for-benchmarks-" * 3 if database else "",
        "DATA_DIR": folder,
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }
    command = [sys.executable, "-m", "benchmarks.planning_cost", "--machines", str(machines)]
    subprocess.run([*command, "--part", "prepare"], env=shell, check=True)
    done = subprocess.run(
        [*command, "--part", "measure"], env=shell, check=True, stdout=subprocess.PIPE
    )
    return [Cost(**row) for row in json.loads(done.stdout)]


def breaches(engine: str, costs: list[Cost]) -> Iterator[str]:
    """Name every limit that was exceeded."""
    for cost in costs:
        limit = LIMIT_SECONDS.get(cost.step, LIMIT_REQUEST)
        if cost.seconds > limit:
            yield f"{engine}: {cost.step} took {cost.seconds:.1f} s of {limit:g} s"
        most = LIMIT_STATEMENTS + (BEGUN * EACH if cost.step == "begin the wave" else 0)
        if engine == "PostgreSQL" and cost.statements > most:
            yield f"{engine}: {cost.step} took {cost.statements} statements of {most}"
        if cost.peak_bytes > LIMIT_BYTES:
            yield f"{engine}: {cost.step} reached {cost.peak_bytes / 2**20:.0f} MiB of 512 MiB"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=MACHINES)
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), action="append")
    parser.add_argument("--part", choices=("prepare", "measure"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        import django

        django.setup()
        if options.part == "prepare":
            prepare(options.machines)
        else:
            print(json.dumps([asdict(cost) for cost in measure()]))
        return 0
    found: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="coalmine-bench-") as folder:
        if "sqlite" in (options.engine or ["sqlite"]):
            found["SQLite"] = run_on("SQLite", "", machines=options.machines, folder=folder)
        if "postgresql" in (options.engine or ["postgresql"]):
            from tests.services.servers import postgres

            with postgres() as address:
                found["PostgreSQL"] = run_on(
                    "PostgreSQL", address, machines=options.machines, folder=folder
                )
    failed = [breach for engine, costs in found.items() for breach in breaches(engine, costs)]
    for breach in failed:
        print(breach)
    if not options.engine and options.machines == MACHINES:
        document = {"command": "python -m benchmarks.planning_cost", "machines": options.machines}
        rows = {engine: [asdict(cost) for cost in costs] for engine, costs in found.items()}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({**document, "costs": rows}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
