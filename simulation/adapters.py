"""The virtual fleet behind the product's three doors: installer, scheduler, collector."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from fleet.adapters import (
    ForeignDrain,
    Occupancy,
    Phase,
    Progress,
    Reading,
    Report,
    RunningJob,
    Snapshot,
    Step,
    Target,
)
from simulation import jobs, truth
from simulation.errors import NoVirtualFleet
from simulation.fleet_model import (
    PATHS,
    Faults,
    FleetModel,
    Observations,
    Recoveries,
    fleet_model,
)
from simulation.models import VirtualFleet, VirtualMachine, VirtualOrder
from simulation.orders import Outcome, staging, timeline
from simulation.streams import Purpose, stream

DETECTOR = "virtual-1"
#: Paths of recovery that stop a job on all its machines.
_WHOLE_JOB = ("job_restarted_from_checkpoint", "job_lost")


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
        self, machine: str, step: Step, targets: Sequence[Target], *, key: str, now: datetime
    ) -> Progress:
        if step is Step.COMMIT:
            return Progress(Phase.DONE)  # a virtual image lasts once it runs
        order = VirtualOrder.objects.filter(key=key).first()
        if order is None:
            take = _take_stage if step is Step.STAGE else _take_activation
            order = take(virtual(machine), targets, key=key, now=now)
        return _progress(order, now=now)

    def progress(self, machine: str, *, key: str, now: datetime) -> Progress:
        order = VirtualOrder.objects.filter(key=key, machine__machine__name=machine).first()
        if order is None:
            return Progress(Phase.UNKNOWN, f"{machine} has no order {key}")
        return _progress(order, now=now)

    def read_versions(self, machine: str, *, now: datetime) -> Sequence[Reading]:
        found = virtual(machine)
        orders = list(found.orders.order_by("ordinal"))
        stretch = truth.at(truth.stretches(found.fleet.origin, found.versions, orders), now)
        if not stretch.is_up:
            return ()
        boot = truth.boot_id(found.index, stretch)
        told = truth.told(stretch, orders, now=now)
        active = [
            Reading(kind, "", version, witness, boot)
            for witness, versions in told.items()
            for kind, version in sorted(versions.items())
        ]
        staged = truth.staged(stretch, orders, now=now) if "bmc" in told else {}
        return active + [
            Reading(kind, "", version, "bmc", boot, "staged")
            for kind, version in sorted(staged.items())
        ]

    def snapshot(self, machine: str, *, now: datetime) -> Snapshot:
        found = virtual(machine)
        orders = list(found.orders.order_by("ordinal"))
        stretch = truth.at(truth.stretches(found.fleet.origin, found.versions, orders), now)
        if not stretch.is_up or "bmc" not in truth.told(stretch, orders, now=now):
            raise ConnectionError(f"the BMC of {machine} does not answer")
        effects = model_of(VirtualFleet.objects.get(pk=found.fleet_id)).parameters.effects
        is_renamed = any(
            effect.renames_sensors and stretch.versions.get(effect.kind) == effect.version
            for effect in effects
        )
        sensors = [f"Temp_{kind}" for kind in sorted(stretch.versions)]
        shown = [name.lower().replace("_", " ") for name in sensors] if is_renamed else sensors
        return Snapshot(tuple(sorted(stretch.versions)), (*shown, "Fan1"))


def _take_stage(
    machine: VirtualMachine, targets: Sequence[Target], *, key: str, now: datetime
) -> VirtualOrder:
    """Take an order to write one image aside."""
    model, ordinal = model_of(machine.fleet), machine.orders.count()
    image = {target.kind: target.version for target in targets}
    fate = staging(
        seed=machine.fleet.seed,
        machine=machine.index,
        ordinal=ordinal,
        image=model.profile(image),
        parameters=model.parameters,
        now=now,
    )
    return _place(
        machine,
        key,
        ordinal=ordinal,
        step=VirtualOrder.Step.STAGE,
        outcome=fate.outcome,
        versions_after=image,
        taken_at=now,
        staged_at=fate.staged_at,
    )


def _take_activation(
    machine: VirtualMachine, targets: Sequence[Target], *, key: str, now: datetime
) -> VirtualOrder:
    """Take an order to activate. All its instants are fixed here: progress is a matter of time."""
    model = model_of(machine.fleet)
    orders = list(machine.orders.order_by("ordinal"))
    before = truth.at(truth.stretches(machine.fleet.origin, machine.versions, orders), now)
    wanted = [(target.kind, target.version) for target in targets]
    fate = timeline(
        seed=machine.fleet.seed,
        machine=machine.index,
        ordinal=sum(order.step == VirtualOrder.Step.ACTIVATE for order in orders),
        after=model.profile({**before.versions, **dict(wanted)}),
        parameters=model.parameters,
        is_ac_cycle=any(target.activation in ("ac_cycle", "by_hand") for target in targets),
        now=now,
    )
    return _place(
        machine,
        key,
        ordinal=len(orders),
        step=VirtualOrder.Step.ACTIVATE,
        outcome=fate.outcome,
        boots_host=any(target.activation not in ("none", "reset") for target in targets),
        versions_after=truth.versions_after(before.versions, wanted, fate.outcome),
        taken_at=now,
        staged_at=now,
        down_at=fate.down_at,
        up_at=fate.up_at,
        fell_back_at=fate.fell_back_at,
        by_hand_at=fate.by_hand_at,
        is_repaired_by_hand=fate.is_repaired_by_hand,
    )


def _place(machine: VirtualMachine, key: str, **fields: object) -> VirtualOrder:
    try:
        with transaction.atomic():
            return VirtualOrder.objects.create(machine=machine, key=key, **fields)
    except IntegrityError:  # another worker placed the same order in this moment
        return VirtualOrder.objects.get(key=key)


def _progress(order: VirtualOrder, *, now: datetime) -> Progress:
    if order.step == VirtualOrder.Step.STAGE:
        return _staging_progress(order, now=now)
    if order.down_at is None or now < order.down_at:
        return Progress(Phase.ACTIVATING)
    if order.up_at is None or now < order.up_at:
        return Progress(Phase.AWAITING_REBOOT, f"down since {order.down_at:%H:%M}")
    return Progress(Phase.DONE)


def _staging_progress(order: VirtualOrder, *, now: datetime) -> Progress:
    if order.outcome == Outcome.REJECTED:
        return Progress(Phase.REJECTED, "the BMC refuses the image: component not updateable")
    if order.outcome == Outcome.STALLED:
        return Progress(Phase.STAGING, f"since {order.taken_at:%H:%M}")
    if now < order.staged_at:
        if order.outcome == Outcome.BUSY:
            return Progress(Phase.BUSY, "the BMC is busy with another task")
        return Progress(Phase.STAGING, f"since {order.taken_at:%H:%M}")
    if order.outcome == Outcome.FAILED:
        return Progress(Phase.FAILED, "the image could not be written")
    return Progress(Phase.DONE)


class VirtualScheduler:
    """A scheduler whose jobs need some time to leave a machine.

    Where the fleet has jobs that come and go (`jobs`), a drained machine keeps its job to the
    job's end; else its work needs some minutes to leave.
    """

    def drain(self, machine: str, *, reason: str, now: datetime) -> Occupancy:
        seen = virtual(machine)
        if held := seen.foreign_drain:
            return Occupancy(is_idle=False, drained_by=f"{held['owner']}: {held['reason']}")
        if reason not in seen.drains:
            with transaction.atomic():
                found = VirtualMachine.objects.select_for_update().get(pk=seen.pk)
                if not found.drains:
                    found.idle_at = now + self._takes(seen, now=now)
                found.drains = {**found.drains, reason: now.isoformat()}
                found.save(update_fields=["drains", "idle_at"])
            seen.idle_at = found.idle_at
        if job := jobs.running_on(seen, now=now):
            return Occupancy(False, job.name, job.owner, max(job.expected_end, now))
        is_idle = seen.idle_at is not None and seen.idle_at <= now
        return Occupancy(is_idle, until=None if is_idle else seen.idle_at)

    def release(self, machine: str, *, reason: str, now: datetime) -> None:
        with transaction.atomic():
            found = VirtualMachine.objects.select_for_update().get(pk=virtual(machine).pk)
            found.drains = {why: since for why, since in found.drains.items() if why != reason}
            found.idle_at = found.idle_at if found.drains else None
            found.save(update_fields=["drains", "idle_at"])

    def jobs(self, *, now: datetime) -> Sequence[RunningJob] | None:
        fleet = VirtualFleet.objects.first()
        return None if fleet is None else jobs.listed(fleet, model_of(fleet), now=now)

    def foreign_drains(self, *, now: datetime) -> Sequence[ForeignDrain]:
        held = VirtualMachine.objects.exclude(foreign_drain={}).select_related("machine")
        return [
            ForeignDrain(
                machine=one.machine.scheduler_node or one.machine.name,
                owner=one.foreign_drain["owner"],
                reason=one.foreign_drain["reason"],
                since=datetime.fromisoformat(one.foreign_drain["since"]),
            )
            for one in held.order_by("index")
        ]

    def reserve(
        self, machines: Sequence[str], *, name: str, start: datetime, end: datetime
    ) -> None:
        groups = {f"{jobs.UNTIL}{end.isoformat()}": machines} if machines else {}
        self.keep_apart(groups, reason=name, now=start)

    def keep_apart(
        self, groups: Mapping[str, Sequence[str]], *, reason: str, now: datetime
    ) -> None:
        group_of = {name: group for group, names in groups.items() for name in names}
        with transaction.atomic():
            machines = VirtualMachine.objects.select_for_update(of=("self",)).select_related(
                "machine"
            )
            changed = []
            for machine in machines.order_by("pk"):
                features = {why: own for why, own in machine.features.items() if why != reason}
                if group := group_of.get(machine.machine.name):
                    features[reason] = group
                if features != machine.features:
                    machine.features = features
                    changed.append(machine)
            VirtualMachine.objects.bulk_update(changed, ["features"], batch_size=500)

    @staticmethod
    def _takes(machine: VirtualMachine, *, now: datetime) -> timedelta:
        parameters = model_of(machine.fleet).parameters
        if parameters.jobs is not None:
            return timedelta(0)
        minute = int((now - machine.fleet.origin).total_seconds() // 60)
        rng = stream(machine.fleet.seed, Purpose.DRAIN, machine.index, minute)
        return timedelta(minutes=parameters.drain_minutes * rng.uniform(0.5, 1.5))


def drain_as(owner: str, machine: str, *, reason: str, now: datetime) -> None:
    """Drain a machine as somebody who is not the product; without a reason, lift that drain."""
    held = {"owner": owner, "reason": reason, "since": now.isoformat()} if reason else {}
    VirtualMachine.objects.filter(machine__name=machine).update(foreign_drain=held)


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
        placed = None
        if model.parameters.jobs is not None:
            placed = jobs.Placements(fleet, low=low, high=until)
        return [
            *self._events(world, placed, first, since),
            *self._observations(world, placed, since),
        ]

    def _events(
        self, world: truth.World, placed: jobs.Placements | None, first: int, since: datetime
    ) -> Iterator[Report]:
        """Yield the faults in the interval, and what began or ended of the recoveries in it."""
        low, high = world.seconds(since), world.seconds(world.high)
        for tick in range(first, world.model.tick_at(high) + 1):
            faults, recoveries = world.model.happenings(tick, world.spells)
            for number in ((low <= faults.seconds) & (faults.seconds < high)).nonzero()[0].tolist():
                yield _fault(world, placed, faults, number)
            begins = (low <= recoveries.start) & (recoveries.start < high)
            ends = (low <= recoveries.end) & (recoveries.end < high)
            for number in (begins | ends).nonzero()[0].tolist():
                is_closed = bool(ends[number])
                yield from _recoveries(world, placed, recoveries, number, is_closed=is_closed)

    def _observations(
        self, world: truth.World, placed: jobs.Placements | None, since: datetime
    ) -> Iterator[Report]:
        """Yield the reports of the ticks that end in the interval."""
        model = world.model
        first = model.tick_at(world.seconds(since))
        for tick in range(first, model.tick_at(world.seconds(world.high))):
            start = world.fleet.origin + timedelta(seconds=model.tick_start(tick))
            end = start + timedelta(seconds=model.parameters.tick_seconds)
            seen = model.observations(tick, world.spells)
            speeds = _speeds(world, placed, seen, start)
            for number, index in enumerate(seen.machine.tolist()):
                facts = model.machines[index]
                yield Report(
                    "observation",
                    {
                        "machine": facts.name,
                        "start": start,
                        "end": end,
                        "in_service_seconds": round(float(seen.in_service_seconds[number]), 3),
                        "throughput": round(speeds[number], 6),
                        "workload": facts.workload,
                        "job": _job(world, placed, index, start),
                        "boot_id": world.boot_id(index, end),
                        "detector": DETECTOR,
                        "source_key": f"{tick}.o{index}",
                    },
                )


def _job(world: truth.World, placed: jobs.Placements | None, index: int, when: datetime) -> str:
    """Return the name of the job on a machine at a time: of its place, where none come and go."""
    if placed is None:
        return world.model.machines[index].job
    job = placed.job(index, when)
    return "" if job is None else job.name


def _speeds(
    world: truth.World, placed: jobs.Placements | None, seen: Observations, when: datetime
) -> list[float]:
    """Return what each machine reports: in a synchronous job the throughput of the slowest."""
    own: list[float] = seen.throughput.tolist()
    mix = world.model.parameters.jobs
    if placed is None or mix is None or not mix.is_synchronous:
        return own
    names = [_job(world, placed, index, when) for index in seen.machine.tolist()]
    slowest: dict[str, float] = {}
    for name, speed in zip(names, own, strict=True):
        slowest[name] = min(speed, slowest.get(name, speed))
    return [slowest[name] if name else speed for name, speed in zip(names, own, strict=True)]


def _fault(
    world: truth.World, placed: jobs.Placements | None, faults: Faults, number: int
) -> Report:
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
            "job": _job(world, placed, index, when),
            "source_key": faults.key[number],
        },
    )


def _recoveries(
    world: truth.World,
    placed: jobs.Placements | None,
    recoveries: Recoveries,
    number: int,
    *,
    is_closed: bool,
) -> Iterator[Report]:
    """Yield what an interruption cost; what throws a job back does so on all its machines."""
    index = int(recoveries.machine[number])
    start, end = _instant(world, recoveries.start[number]), _instant(world, recoveries.end[number])
    path = PATHS[recoveries.path[number]]
    ending = {
        "recovered_at": end,
        "path": path,
        "recovery_seconds": round((end - start).total_seconds(), 3),
        "repeated_seconds": round(float(recoveries.repeated_seconds[number]), 3),
    }
    struck = {index: str(recoveries.key[number])}
    if placed is not None and path in _WHOLE_JOB:
        struck |= {mate: f"{struck[index]}.j{mate}" for mate in placed.mates(index, start)}
    for machine, key in struck.items():
        fields = {
            "machine": world.model.machines[machine].name,
            "time": start,
            "job": _job(world, placed, index, start),
            "source_key": key,
        }
        yield Report("recovery", {**fields, **(ending if is_closed else {})})


def _instant(world: truth.World, seconds: float) -> datetime:
    return world.fleet.origin + timedelta(seconds=round(float(seconds), 3))
