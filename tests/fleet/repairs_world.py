"""Machines on their way through a repair, for the tests of repairs, evidence and tickets."""

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User

from fleet import services
from fleet.identity import Swap
from fleet.lifecycle import State, Trigger
from fleet.models import Component, Machine, Repair, StateChange
from tests.factories import NOW, make_machine, make_user

HOUR = timedelta(hours=1)


def make_broken(name: str = "", *, state: State = State.DIAGNOSING, **fields: Any) -> Machine:
    """Make a machine that is out of service, with one GPU whose serial is known."""
    machine = make_machine(name, **fields)
    Component.objects.create(machine=machine, kind="gpu", slot="3", model="h100", serial="G-OLD")
    Machine.objects.filter(pk=machine.pk).update(state=state, may_take_work=False)
    machine.refresh_from_db()
    return machine


def ordered(machine: Machine | None = None, *, kind: str = "gpu_swap", **fields: Any) -> Repair:
    """Order a repair on a machine that is being diagnosed."""
    defaults = {"component": "gpu 3", "actor": "kim", "now": NOW}
    return services.order_repair(machine or make_broken(), kind=kind, **defaults | fields)


def by(user: User) -> dict[str, Any]:
    """Name a person as services take whoever acts."""
    return {"actor": user.get_username(), "user": user}


def under_way(machine: Machine | None = None, *, user: User | None = None, **fields: Any) -> Repair:
    """Order a repair and begin it."""
    worker = by(user or make_user())
    return services.start_repair(ordered(machine, **fields), **worker, now=NOW + HOUR)


def closed(repair: Repair, *, now: Any = NOW + 2 * HOUR, **fields: Any) -> Repair:
    """End a repair with one swapped GPU."""
    said = {"swaps": [gpu()], "actor": "kim"}
    return services.close_repair(repair, now=now, **said | fields)


def gpu(old: str = "G-OLD", new: str = "G-NEW", **fields: Any) -> Swap:
    """Name a swap of the GPU in slot 3."""
    swap = {"kind": "gpu", "slot": "3", "old_serial": old, "new_serial": new, **fields}
    return Swap(**swap)


def released(repair: Repair, *, at: Any) -> None:
    """Bring the repaired machine back to service, past the gate that is not looked at here."""
    machine = repair.machine
    Machine.objects.filter(pk=machine.pk).update(state=State.IN_SERVICE, may_take_work=True)
    StateChange.objects.create(
        machine=machine,
        old_state=State.AWAITING_RELEASE,
        new_state=State.IN_SERVICE,
        trigger=Trigger.RELEASE,
        at=at,
        recorded_at=at,
        actor="reviewer",
        gate="a gate",
    )
