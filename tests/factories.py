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
from fleet.selectors import versions_now

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
        level=9,  # no recurrence asks for it
        version=1,
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


_BEFORE_ITS_GATE = {
    "registered": ("queue_validation",),
    "in_service": ("take_out", "order_repair", "start_repair", "close_repair"),
    "awaiting_repair": ("start_repair", "close_repair"),
}


def make_gate(
    machine: Machine, *, kind: str = "gpu_reset", now: datetime = NOW, **fields: Any
) -> Gate | None:
    """Bring a machine before its gate, as a repair that was closed does; None for a lemon."""
    machine.refresh_from_db()
    for trigger in _BEFORE_ITS_GATE.get(machine.state, ()):
        services.move_machine(machine, trigger, actor="tests", now=now)
    whole = {"repair": None, "incident": None, "actor": "tests", **fields}
    return services.open_gate(machine, kind=kind, now=now, **whole)


def read_gate(gate: Gate, *, now: datetime = NOW, **versions: str) -> Gate:
    """Let the machine answer a read-back with these versions; by default what it ran last."""
    held = versions or versions_now([gate.machine_id])[gate.machine_id]
    readings = [make_reading(kind, version) for kind, version in held.items()]
    return services.read_back(gate, readings, now=now)


def run_checks(gate: Gate, *, user: User | None = None, now: datetime = NOW) -> Gate:
    """Report a passing result for every check whose turn it is, stage by stage."""
    gate.refresh_from_db()
    if any(check.needs_partner for check in gate.checks.all()) and gate.partner_id is None:
        services.reserve_partner(gate, actor="tests", now=now)
    for check in gate.checks.filter(results=None).exclude(rule__has_key="computed"):
        gate.refresh_from_db()
        is_observed = gate.status == "observing" and now >= gate.observe_until
        if (check.stage == "observation") != is_observed:
            continue
        outcome = services.Outcome(
            value=passing_value(check.rule), unit=check.unit, reference="https://lab/logs/1"
        )
        services.report_result(check, outcome, actor=str(user or "bench"), user=user, now=now)
    gate.refresh_from_db()
    return gate


def passing_value(rule: dict[str, Any]) -> float:
    """Return a value that passes a rule; for the fleet's norm, its absolute fallback."""
    rule = rule.get("fallback", rule)
    return float(rule.get("value", rule.get("low", 0.0)))


def pass_gate(gate: Gate, *, reviewer: User, user: User | None = None, now: datetime = NOW) -> Gate:
    """Take a gate to its end: read back, checks by `user`, observation, and the review."""
    read_gate(gate, now=now)
    gate = run_checks(gate, user=user, now=now)
    services.end_observations(now=now)
    gate.refresh_from_db()
    if gate.status == "observing":
        now = gate.observe_until
        gate = run_checks(gate, user=user, now=now)
        read_gate(gate, now=now)
        services.end_observations(now=now)
        gate.refresh_from_db()
    if gate.status == "awaiting_review":
        services.review_gate(gate, is_accepted=True, user=reviewer, reason="seen", now=now)
        gate.refresh_from_db()
    return gate
