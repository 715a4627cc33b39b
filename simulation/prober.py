"""Node probes of the virtual fleet: what each machine can do by itself, by its true firmware."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from fleet.adapters import Probed
from simulation import jobs, truth
from simulation.adapters import model_of
from simulation.models import VirtualFleet, VirtualMachine
from simulation.streams import Purpose, stream

#: Of one fixed test; far less than of the jobs that run on the machines.
NOISE = 0.002
LENGTH = timedelta(minutes=3)


class VirtualProber:
    """Probes up to the third minute, by the machine's own level and firmware; busy ones not."""

    def probe(
        self, machines: Sequence[str], *, key: str, begun: datetime, now: datetime
    ) -> Sequence[Probed]:
        fleet = VirtualFleet.objects.first()
        if fleet is None or now < begun + LENGTH:
            return []
        found = VirtualMachine.objects.filter(machine__name__in=list(machines))
        return [
            probed
            for machine in found.select_related("machine").order_by("index")
            if (probed := _one(fleet, machine, begun)) is not None
        ]


def _one(fleet: VirtualFleet, machine: VirtualMachine, begun: datetime) -> Probed | None:
    """Return a machine's figure; None if it works or is down while it would be probed."""
    end = begun + LENGTH
    if any(jobs.running_on(machine, now=when) for when in (begun, end)):
        return None
    orders = list(machine.orders.order_by("ordinal"))
    history = truth.stretches(fleet.origin, machine.versions, orders)
    before, after = truth.at(history, begun), truth.at(history, end)
    if before != after or not before.is_up:
        return None
    minute = int((begun - fleet.origin).total_seconds() // 60)
    rng = stream(fleet.seed, Purpose.PROBE, machine.index, minute)
    firmware = model_of(fleet).profile(before.versions).throughput
    level = machine.throughput_level * firmware * (1 + NOISE * rng.standard_normal())
    boot = truth.boot_id(machine.index, before)
    return Probed(machine.machine.name, begun, end, round(float(level), 6), boot)
