"""What is true of each virtual machine at each time: service, firmware, boots.

Nothing here is stored twice: the truth follows from the versions at the origin, from the orders
that the virtual BMC took, and from the product's own record of who was in service.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.lifecycle import State
from fleet.models import Machine, StateChange
from simulation.fleet_model import FleetModel, Profile, Spells
from simulation.models import VirtualFleet, VirtualOrder
from simulation.orders import Outcome

Versions = Mapping[str, str]


@dataclass(frozen=True)
class Stretch:
    """From `start` on, until the next stretch: what a machine runs, and whether it is up."""

    start: datetime
    versions: Versions
    is_up: bool
    boots: int
    is_by_install: bool = False


def stretches(
    origin: datetime, versions: Versions, orders: Iterable[VirtualOrder]
) -> list[Stretch]:
    """Return a machine's history since the origin, in order of time."""
    history = [Stretch(origin, versions, is_up=True, boots=0)]
    for order in orders:
        before = history[-1]
        if order.down_at is None:
            continue
        if not order.boots_host and order.up_at is not None:
            history.append(Stretch(order.up_at, order.versions_after, True, before.boots))
            continue
        history.append(Stretch(order.down_at, before.versions, is_up=False, boots=before.boots))
        if order.up_at is None:
            continue
        boots = before.boots + 1
        history.append(Stretch(order.up_at, order.versions_after, True, boots, True))
        if order.fell_back_at is not None:
            history.append(Stretch(order.fell_back_at, before.versions, True, boots + 1))
    return history


def at(history: Sequence[Stretch], when: datetime) -> Stretch:
    """Return the stretch that holds at a time; before the origin it is the first."""
    found = history[0]
    for stretch in history:
        if stretch.start <= when:
            found = stretch
    return found


def versions_after(before: Versions, targets: Sequence[tuple[str, str]], outcome: Outcome) -> dict:
    """Return what a machine runs when it comes back from an order."""
    installed = {
        Outcome.PARTIAL: targets[:1],
        Outcome.WRONG_VERSION: (),
        Outcome.BRICKED: (),
        Outcome.NEEDS_AC_CYCLE: (),
    }.get(outcome, targets)
    return {**before, **dict(installed)}


def told(stretch: Stretch, orders: Iterable[VirtualOrder], *, now: datetime) -> dict[str, Versions]:
    """Return what each witness tells of the versions that run; one that is lost tells nothing."""
    last = None
    for order in orders:
        if order.up_at is not None and order.up_at <= now:
            last = order
    told: dict[str, Versions] = {"bmc": stretch.versions, "host": stretch.versions}
    if last is None or last.outcome not in (Outcome.LOST_BMC, Outcome.DISPUTED):
        return told
    if last.outcome == Outcome.LOST_BMC:
        del told["bmc"]
    else:  # the host's tool never sees the new image
        told["host"] = dict.fromkeys(stretch.versions, "0.0")
    return told


def staged(stretch: Stretch, orders: Iterable[VirtualOrder], *, now: datetime) -> Versions:
    """Return the images that are written aside and do not run."""
    written: dict[str, str] = {}
    for order in orders:
        is_in = order.step == VirtualOrder.Step.STAGE and order.staged_at <= now
        if is_in and order.outcome in (Outcome.STAGED, Outcome.BUSY):
            written.update(order.versions_after)
    return {
        kind: version for kind, version in written.items() if stretch.versions.get(kind) != version
    }


class World:
    """The whole fleet's truth over an interval; a constant number of statements."""

    def __init__(self, fleet: VirtualFleet, model: FleetModel, *, low: datetime, high: datetime):
        self.fleet, self.model, self.low, self.high = fleet, model, low, high
        rows = fleet.machines.order_by("index").values_list("index", "machine_id", "versions")
        self._index_of = {machine: index for index, machine, _ in rows}
        orders = defaultdict(list)
        for order in (
            VirtualOrder.objects.filter(machine__fleet=fleet, down_at__lt=high)
            .select_related("machine")
            .order_by("ordinal")
        ):
            orders[order.machine.index].append(order)
        self.histories = {
            index: stretches(fleet.origin, versions, orders[index]) for index, _, versions in rows
        }
        self.spells = self._spells()

    def boot_id(self, index: int, when: datetime) -> str:
        return boot_id(index, at(self.histories[index], when))

    def seconds(self, when: datetime) -> float:
        return (when - self.fleet.origin).total_seconds()

    def _spells(self) -> Spells:
        profiles: dict[tuple[tuple[str, str], ...], int] = {}
        made: list[Profile] = []
        infant = timedelta(hours=self.model.parameters.infant_hours)
        rows = []
        for index, start, end in self._in_service():
            for low, high, stretch in _pieces(self.histories[index], start, end):
                key = tuple(sorted(stretch.versions.items()))
                if key not in profiles:
                    profiles[key] = len(made)
                    made.append(self.model.profile(stretch.versions))
                until = self.seconds(stretch.start + infant) if stretch.is_by_install else -1e18
                rows.append((index, self.seconds(low), self.seconds(high), until, profiles[key]))
        return Spells.build(rows, profiles=made or [self.model.profile({})])

    def _in_service(self) -> Iterator[tuple[int, datetime, datetime]]:
        """Yield each machine's intervals in service, by the product's own records."""
        changes = defaultdict(list)
        for machine, when, old, new in (
            StateChange.objects.filter(machine__in=self._ids(), at__gt=self.low)
            .order_by("at", "pk")
            .values_list("machine_id", "at", "old_state", "new_state")
        ):
            changes[machine].append((when, old, new))
        present = dict(Machine.objects.filter(pk__in=self._ids()).values_list("pk", "state"))
        for machine, index in self._index_of.items():
            moves = changes[machine]
            state, since = (moves[0][1] if moves else present[machine]), self.low
            for when, _, new in [*moves, (self.high, "", "")]:
                end = min(when, self.high)
                if state == State.IN_SERVICE and end > since:
                    yield index, since, end
                state, since = new, when

    def _ids(self):
        return self.fleet.machines.values("machine_id")


def boot_id(index: int, stretch: Stretch) -> str:
    """Return a name of the boot that a stretch belongs to."""
    return f"{index:05d}-{stretch.boots:04d}"


def _pieces(
    history: Sequence[Stretch], start: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, Stretch]]:
    """Cut an interval at the machine's own changes; leave out where it was down."""
    for number, stretch in enumerate(history):
        until = history[number + 1].start if number + 1 < len(history) else end
        low = max(start, stretch.start) if number else start
        high = min(end, until)
        if stretch.is_up and low < high:
            yield low, high, stretch
