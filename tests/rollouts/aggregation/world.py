"""A wave at rest and rows of telemetry around its clock start."""

from datetime import UTC, datetime, timedelta
from typing import Any

from fleet.models import Fault, FaultSignature, Machine, Observation, Recovery, StateChange
from rollouts.models import Attempt, Block, Membership, Rollout, Wave
from tests import factories

START = datetime(2026, 3, 2, 10, tzinfo=UTC)
CLOCK = START + timedelta(hours=2)
AS_OF = CLOCK + timedelta(hours=6)


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


def make_wave(
    canaries: list[Machine],
    controls: list[Machine],
    *,
    clocks: list[datetime | None] | None = None,
    blocks: dict[str, int] | None = None,
    units: dict[str, str] | None = None,
    strata: dict[str, str] | None = None,
) -> Wave:
    """A wave whose machines lie in block 1 and stratum `s` unless told otherwise."""
    rollout = Rollout.objects.create(
        name=f"rollout {Rollout.objects.count()}",
        bundle=factories.make_bundle(),
        selector="platform=dgx-h100",
        plan={},
        seed=1,
        author=factories.make_user(),
        created_at=START,
    )
    wave = Wave.objects.create(
        rollout=rollout,
        number=1,
        size=len(canaries),
        window_hours=72.0,
        status="observing",
        started_at=START,
        clock_start=CLOCK,
    )
    made = [
        Block.objects.create(wave=wave, number=number, started_at=START, clock_start=clock)
        for number, clock in enumerate(clocks or [CLOCK], 1)
    ]
    Membership.objects.bulk_create(
        Membership(
            wave=wave,
            block=made[(blocks or {}).get(machine.name, 1) - 1],
            machine=machine,
            unit=(units or {}).get(machine.name, machine.name),
            stratum=(strata or {}).get(machine.name, "s"),
            arm=arm,
        )
        for arm, machines in (("canary", canaries), ("control", controls))
        for machine in machines
    )
    return wave


def machines(*names: str, **fields: Any) -> list[Machine]:
    return factories.make_machines(len(names), names=names, **fields)


def observe(machine: Machine, *, end: datetime, received: datetime | None = None, **fields: Any):
    return Observation.objects.create(
        **{
            "machine": machine,
            "start": end - hours(1),
            "end": end,
            "in_service_seconds": 3600.0,
            "throughput": 1.0,
            "workload": "pretraining",
            "source": "tests",
            "source_key": f"{machine.name} {end} {fields.get('workload', '')}",
            "received_at": received or end,
        }
        | fields
    )


def fail(machine: Machine, *, at: datetime, signature: str = "xid.48", **fields: Any) -> Fault:
    kind = fields.pop("kind", FaultSignature.Kind.HARD)
    row, _ = FaultSignature.objects.get_or_create(name=signature, defaults={"kind": kind})
    return Fault.objects.create(
        **{
            "machine": machine,
            "time": at,
            "signature": row,
            "severity": "major",
            "source": "tests",
            "source_key": f"{machine.name} {at.isoformat()} {signature}",
            "received_at": at,
        }
        | fields
    )


def interrupt(machine: Machine, *, at: datetime, key: str, **fields: Any) -> Recovery:
    return Recovery.objects.create(
        **{
            "machine": machine,
            "time": at,
            "source": "tests",
            "source_key": key,
            "received_at": fields.get("recovered_at") or at,
        }
        | fields
    )


def attempt(wave: Wave, machine: Machine, *, finished: datetime | None, **fields: Any) -> Attempt:
    return Attempt.objects.create(
        **{
            "rollout": wave.rollout,
            "wave": wave,
            "block": wave.blocks.get(number=1),
            "machine": machine,
            "epoch": 0,
            "targets": [],
            "status": "succeeded",
            "created_at": START,
            "finished_at": finished,
        }
        | fields
    )


def move(machine: Machine, old: str, new: str, *, at: datetime) -> StateChange:
    return StateChange.objects.create(
        machine=machine,
        old_state=old,
        new_state=new,
        trigger="test",
        at=at,
        recorded_at=at,
        actor="tests",
        gate="test" if new == "in_service" else "",
    )
