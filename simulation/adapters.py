"""The virtual fleet behind the product's three doors: installer, scheduler, collector."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from fleet.adapters import Phase, Progress, Reading, Report, Target
from simulation import truth
from simulation.errors import NoVirtualFleet
from simulation.fleet_model import PATHS, FleetModel, fleet_model
from simulation.models import VirtualFleet, VirtualMachine, VirtualOrder
from simulation.orders import Outcome, timeline
from simulation.streams import Purpose, stream

DETECTOR = "virtual-1"


def model_of(fleet: VirtualFleet) -> FleetModel:
    """Return the model behind a stored fleet."""
    return fleet_model(fleet.seed, json.dumps(fleet.parameters, sort_keys=True))


def virtual(machine: str) -> VirtualMachine:
    """Return the virtual machine behind a name.

    Raises
    ------
    NoVirtualFleet
        If no virtual machine stands behind it.
    """
    found = (
        VirtualMachine.objects.filter(machine__name=machine)
        .select_related("fleet")
        .defer("fleet__parameters")  # a whole fleet's truth; only an order needs it
        .first()
    )
    if found is None:
        raise NoVirtualFleet(f"no virtual machine stands behind {machine!r}")
    return found


class VirtualInstaller:
    """A BMC that takes orders, and sometimes refuses, lies, falls back or never comes back."""

    def apply(
        self, machine: str, targets: Sequence[Target], *, key: str, now: datetime
    ) -> Progress:
        order = VirtualOrder.objects.filter(key=key).first()
        return _progress(order or _take(virtual(machine), targets, key=key, now=now), now=now)

    def progress(self, machine: str, *, key: str, now: datetime) -> Progress:
        order = VirtualOrder.objects.filter(key=key, machine__machine__name=machine).first()
        if order is None:
            return Progress(Phase.FAILED, f"{machine} has no order {key}")
        return _progress(order, now=now)

    def read_versions(self, machine: str, *, now: datetime) -> Sequence[Reading]:
        found = virtual(machine)
        history = truth.history_of(found)
        stretch = truth.at(history, now)
        if not stretch.is_up:
            return ()
        boot = truth.boot_id(found.index, stretch)
        return [
            Reading(kind, "", version, witness, boot)
            for kind, version in sorted(stretch.versions.items())
            for witness in ("bmc", "host")
        ]


def _take(
    machine: VirtualMachine, targets: Sequence[Target], *, key: str, now: datetime
) -> VirtualOrder:
    """Take an order. All its instants are fixed here, so progress is a matter of the time only."""
    model = model_of(machine.fleet)
    orders = list(machine.orders.order_by("ordinal"))
    before = truth.at(truth.stretches(machine.fleet.origin, machine.versions, orders), now)
    wanted = [(target.kind, target.version) for target in targets]
    fate = timeline(
        seed=machine.fleet.seed,
        machine=machine.index,
        ordinal=len(orders),
        after=model.profile({**before.versions, **dict(wanted)}),
        parameters=model.parameters,
        now=now,
    )
    try:
        with transaction.atomic():
            return VirtualOrder.objects.create(
                machine=machine,
                key=key,
                ordinal=len(orders),
                outcome=fate.outcome,
                versions_after=truth.versions_after(before.versions, wanted, fate.outcome),
                taken_at=now,
                staged_at=fate.staged_at,
                down_at=fate.down_at,
                up_at=fate.up_at,
                fell_back_at=fate.fell_back_at,
                by_hand_at=fate.by_hand_at,
                is_repaired_by_hand=fate.is_repaired_by_hand,
            )
    except IntegrityError:  # another worker placed the same order in this moment
        return VirtualOrder.objects.get(key=key)


def _progress(order: VirtualOrder, *, now: datetime) -> Progress:
    if order.outcome == Outcome.REJECTED:
        return Progress(Phase.REJECTED, "the BMC refuses the image: component not updateable")
    if now < order.staged_at:
        return Progress(Phase.STAGING, f"since {order.taken_at:%H:%M}")
    if order.down_at is None:
        return Progress(Phase.FAILED, "the image could not be written")
    if now < order.down_at:
        return Progress(Phase.ACTIVATING)
    if order.up_at is None or now < order.up_at:
        return Progress(Phase.AWAITING_REBOOT, f"down since {order.down_at:%H:%M}")
    return Progress(Phase.DONE)


class VirtualScheduler:
    """A scheduler whose jobs need some minutes to leave a machine."""

    def drain(self, machine: str, *, reason: str, now: datetime) -> None:
        seen = virtual(machine)
        if reason in seen.drains:
            return
        with transaction.atomic():
            found = VirtualMachine.objects.select_for_update().get(pk=seen.pk)
            if not found.drains:
                found.idle_at = now + self._takes(seen, now=now)
            found.drains = {**found.drains, reason: now.isoformat()}
            found.save(update_fields=["drains", "idle_at"])

    def is_idle(self, machine: str, *, now: datetime) -> bool:
        idle_at = virtual(machine).idle_at
        return idle_at is not None and idle_at <= now

    def release(self, machine: str, *, reason: str, now: datetime) -> None:
        with transaction.atomic():
            found = VirtualMachine.objects.select_for_update().get(pk=virtual(machine).pk)
            found.drains = {why: since for why, since in found.drains.items() if why != reason}
            found.idle_at = found.idle_at if found.drains else None
            found.save(update_fields=["drains", "idle_at"])

    @staticmethod
    def _takes(machine: VirtualMachine, *, now: datetime) -> timedelta:
        minute = int((now - machine.fleet.origin).total_seconds() // 60)
        rng = stream(machine.fleet.seed, Purpose.DRAIN, machine.index, minute)
        return timedelta(
            minutes=model_of(machine.fleet).parameters.drain_minutes * rng.uniform(0.5, 1.5)
        )


class VirtualCollector:
    """The fleet's telemetry: faults as they happen, recoveries, a report at each tick's end."""

    def fetch(self, *, since: datetime, until: datetime) -> Sequence[Report]:
        fleet = VirtualFleet.objects.first()
        if fleet is None or until <= since:
            return []
        model = model_of(fleet)
        reach = max(model.longest_recovery, model.parameters.burst_seconds)
        first = model.tick_at((since - fleet.origin).total_seconds() - reach)
        low = fleet.origin + timedelta(seconds=model.tick_start(first))
        world = truth.World(fleet, model, low=low, high=until)
        return [*self._events(world, first, since), *self._observations(world, since)]

    def _events(self, world: truth.World, first: int, since: datetime) -> Iterator[Report]:
        """Yield the faults in the interval, and what began or ended of the recoveries in it."""
        low, high = world.seconds(since), world.seconds(world.high)
        for tick in range(first, world.model.tick_at(high) + 1):
            faults, recoveries = world.model.happenings(tick, world.spells)
            for number in ((low <= faults.seconds) & (faults.seconds < high)).nonzero()[0].tolist():
                yield _fault(world, faults, number)
            begins = (low <= recoveries.start) & (recoveries.start < high)
            ends = (low <= recoveries.end) & (recoveries.end < high)
            for number in (begins | ends).nonzero()[0].tolist():
                yield _recovery(world, recoveries, number, is_closed=bool(ends[number]))

    def _observations(self, world: truth.World, since: datetime) -> Iterator[Report]:
        """Yield the reports of the ticks that end in the interval."""
        model = world.model
        first = model.tick_at(world.seconds(since))
        for tick in range(first, model.tick_at(world.seconds(world.high))):
            start = world.fleet.origin + timedelta(seconds=model.tick_start(tick))
            end = start + timedelta(seconds=model.parameters.tick_seconds)
            seen = model.observations(tick, world.spells)
            for number, index in enumerate(seen.machine.tolist()):
                facts = model.machines[index]
                yield Report(
                    "observation",
                    {
                        "machine": facts.name,
                        "start": start,
                        "end": end,
                        "in_service_seconds": round(float(seen.in_service_seconds[number]), 3),
                        "throughput": round(float(seen.throughput[number]), 6),
                        "workload": facts.workload,
                        "job": facts.job,
                        "boot_id": world.boot_id(index, end),
                        "detector": DETECTOR,
                        "source_key": f"{tick}.o{index}",
                    },
                )


def _fault(world: truth.World, faults, number: int) -> Report:
    index = int(faults.machine[number])
    when = _instant(world, faults.seconds[number])
    facts = world.model.machines[index]
    return Report(
        "fault",
        {
            "machine": facts.name,
            "time": when,
            "signature": faults.signature[number],
            "boot_id": world.boot_id(index, when),
            "job": facts.job,
            "source_key": faults.key[number],
        },
    )


def _recovery(world: truth.World, recoveries, number: int, *, is_closed: bool) -> Report:
    facts = world.model.machines[int(recoveries.machine[number])]
    start, end = _instant(world, recoveries.start[number]), _instant(world, recoveries.end[number])
    ending = {
        "recovered_at": end,
        "path": PATHS[recoveries.path[number]],
        "recovery_seconds": round((end - start).total_seconds(), 3),
        "repeated_seconds": round(float(recoveries.repeated_seconds[number]), 3),
    }
    return Report(
        "recovery",
        {
            "machine": facts.name,
            "time": start,
            "job": facts.job,
            "source_key": recoveries.key[number],
            **(ending if is_closed else {}),
        },
    )


def _instant(world: truth.World, seconds: float) -> datetime:
    return world.fleet.origin + timedelta(seconds=round(float(seconds), 3))
