"""The roster of a wave: its machines and units by name, arms, strata and clock starts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from django.db.models import F, Q

from fleet.columns import Seconds, read_columns
from rollouts.aggregation.reading import Cutoff, codes, since
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray, Machines
from rollouts.errors import MixedUnit
from rollouts.models import Membership, Wave

MACHINE = "machine"
"""The placement unit that is the machine itself."""


@dataclass(frozen=True)
class Roster:
    """Machines and units by name, and the index of a machine by its key."""

    machines: Machines
    unit_names: tuple[str, ...]
    is_canary: FloatArray
    stratum: IntArray
    clock_start: FloatArray
    sorted_ids: IntArray
    place: IntArray

    @property
    def is_canary_machine(self) -> BoolArray:
        return self.is_canary.astype(np.bool_)[self.machines.unit]

    def index(self, machine_ids: FloatArray) -> IntArray:
        """Index of each machine; every one must be on the roster."""
        return self.place[np.searchsorted(self.sorted_ids, machine_ids.astype(np.int64))]


def read_roster(wave: Wave, cutoff: Cutoff) -> Roster:
    (ids, is_canary, block, clock, registered), (names, units, strata) = read_columns(
        Membership.objects.filter(wave=wave).order_by(),
        numbers=(
            "machine_id",
            Q(arm=Membership.Arm.CANARY),
            "block__number",
            Seconds(F("block__clock_start")),
            Seconds(F("machine__registered_at")),
        ),
        names=("machine__name", "unit", "stratum"),
    )
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    unit, unit_names = codes([units[index] for index in order])
    cells = [f"{strata[index]}\0{int(block[index]):05d}" for index in order]
    stratum, _ = codes(cells)
    start = since(cutoff.origin, clock[order])
    start = np.where(np.isnan(start) | (start > cutoff.seconds(cutoff.as_of)), np.inf, start)
    first = np.unique(unit, return_index=True)[1]
    for column, what in ((is_canary[order], "arm"), (stratum, "stratum or block")):
        _require_one_value(column, unit=unit, first=first, names=unit_names, what=what)
    keys = ids[order].astype(np.int64)
    place = np.argsort(keys)
    return Roster(
        machines=Machines(
            name=tuple(names[index] for index in order),
            unit=unit,
            enrolled_seconds=since(cutoff.origin, registered[order]),
            left_seconds=np.full(keys.size, np.inf),
        ),
        unit_names=unit_names,
        is_canary=is_canary[order][first],
        stratum=stratum[first],
        clock_start=start[first],
        sorted_ids=keys[place],
        place=place.astype(np.int64),
    )


def _require_one_value(
    column: FloatArray | IntArray,
    *,
    unit: IntArray,
    first: IntArray,
    names: Sequence[str],
    what: str,
) -> None:
    """The machines of a unit were randomised together, so they share arm, stratum and block."""
    bad = np.flatnonzero(column != column[first][unit])
    if bad.size:
        raise MixedUnit(f"the machines of unit {names[unit[bad[0]]]!r} differ in their {what}")


def placement_of(wave: Wave, roster: Roster) -> str:
    """What the assignment drew, as the roster shows it."""
    is_machine = roster.unit_names == roster.machines.name
    planned = str(wave.rollout.plan.get("unit", MACHINE))
    return planned if is_machine or planned != MACHINE else "group of machines"
