"""Make rows for tests: plain functions, each with sensible defaults for what a test leaves out."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from django.contrib.auth.models import User

from fleet import services
from fleet.adapters import Reading, Report
from fleet.models import (
    FirmwareBundle,
    FirmwareImage,
    FirmwareRecord,
    Gate,
    GatePlan,
    Machine,
    Platform,
)

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)

_number = count(1)


def make_user(name: str = "", **fields: Any) -> User:
    """Make a user, with a password nobody needs."""
    return User.objects.create_user(name or f"user-{next(_number)}", password="x", **fields)


def make_platform(name: str = "dgx-h100") -> Platform:
    """Return the platform of that name, made if there is none."""
    return services.register_platform(name, vendor="nvidia")


def make_machine(name: str = "", **fields: Any) -> Machine:
    """Make one machine in service (or as `state` says), with the versions of `versions`."""
    return make_machines(1, names=[name or f"m{next(_number):05}"], **fields)[0]


def make_machines(
    number: int,
    *,
    names: Sequence[str] = (),
    platform: str = "dgx-h100",
    versions: dict[str, str] | None = None,
    now: datetime = NOW - timedelta(days=30),
    state: str = "",
    **fields: Any,
) -> list[Machine]:
    """Make machines in service that differ in name only; `versions` maps kinds to versions."""
    make_platform(platform)
    parts = [{"kind": kind, "version": version} for kind, version in (versions or {}).items()]
    called = names or [f"m{next(_number):05}" for _ in range(number)]
    rows = [{"name": name, "platform": platform, "components": parts, **fields} for name in called]
    machines = services.register_machines(rows, now=now, vouched_by="tests")
    if state:
        for machine in machines:
            machine.state = state
            machine.may_take_work = machine.may_take_work and state == "in_service"
        Machine.objects.bulk_update(machines, ["state", "may_take_work"])
    return machines


def make_image(kind: str = "bmc", version: str = "", **fields: Any) -> FirmwareImage:
    """Make an image; without a version it gets one of its own."""
    return services.create_image(kind=kind, version=version or f"1.{next(_number)}", **fields)


def make_bundle(
    *,
    images: Sequence[FirmwareImage] = (),
    platform: str = "dgx-h100",
    author: User | None = None,
    approver: User | None = None,
    is_approved: bool = True,
    now: datetime = NOW,
    **fields: Any,
) -> FirmwareBundle:
    """Make a bundle, approved unless told otherwise."""
    bundle = services.create_bundle(
        **{"name": f"bundle-{next(_number)}", "version": "1", **fields},
        images=images or [make_image()],
        platforms=[make_platform(platform)],
        author=author or make_user(),
        now=now,
    )
    if is_approved:
        services.approve_bundle(bundle, approver=approver or make_user(), now=now)
    return bundle


def make_reading(kind: str = "bmc", version: str = "1.0", **fields: Any) -> Reading:
    """Make a reading by the host, after boot 1."""
    return Reading(
        **{"kind": kind, "slot": "", "version": version, "witness": "host", "boot_id": "boot-1"}
        | fields
    )


def make_fault_report(machine: Machine, /, **fields: Any) -> Report:
    """Make the report of a hard fault."""
    return Report("fault", {"machine": machine.name, "time": NOW, "signature": "xid.119", **fields})


def make_observation_report(machine: Machine, /, **fields: Any) -> Report:
    """Make the report of one full hour in service up to `NOW`."""
    defaults = {
        "machine": machine.name,
        "start": NOW - timedelta(hours=1),
        "end": NOW,
        "in_service_seconds": 3600.0,
        "throughput": 1.0,
        "workload": "pretraining",
    }
    return Report("observation", defaults | fields)


def make_recovery_report(machine: Machine, /, **fields: Any) -> Report:
    """Make the report of an interruption that is still open."""
    return Report("recovery", {"machine": machine.name, "time": NOW, "job": "job-1", **fields})


def make_firmware_record(machine: Machine, **fields: Any) -> FirmwareRecord:
    """Append one record of the version history."""
    defaults = {
        "machine": machine,
        "kind": "bmc",
        "stage": "active",
        "version": "1.0",
        "since": NOW,
        "source": "host",
        "recorded_at": NOW,
    }
    return FirmwareRecord.objects.create(**defaults | fields)


def make_passed_gate(machine: Machine, *, now: datetime = NOW, **fields: Any) -> Gate:
    """Make a gate that the machine has passed, opened at `now`, of a plan without checks."""
    plan, _ = GatePlan.objects.get_or_create(
        kind="no_fault_found",
        level=0,
        version=9000,
        defaults={
            "title": "of a test",
            "checks": [],
            "workload": "none",
            "author": "tests",
            "recorded_at": NOW,
        },
    )
    defaults = {"plan": plan, "why": "a test", "status": Gate.Status.PASSED, "opened_at": now}
    return Gate.objects.create(machine=machine, **defaults | {"closed_at": now} | fields)
