"""Units in their drawn order, stored or not yet, with the keys of their machines."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from django.db.models import QuerySet

from rollouts import planning
from rollouts.analysis.samples import BoolArray, IntArray
from rollouts.models import Assignment


@dataclass(frozen=True, eq=False)
class Drawn:
    """Units by name and the machines in them.

    Parameters
    ----------
    names : (units,) tuple of str
    stratum, planned_wave, position : (units,) int arrays
    ids : (machines,) int array
        Keys of the machines, ascending.
    unit : (machines,) int array
        Index of each machine's unit.
    """

    names: tuple[str, ...]
    stratum: IntArray
    planned_wave: IntArray
    position: IntArray
    ids: IntArray
    unit: IntArray

    @property
    def units(self) -> int:
        return len(self.names)

    @property
    def machines(self) -> int:
        return int(self.ids.size)

    def unit_of(self, machine: IntArray) -> tuple[IntArray, BoolArray]:
        """Return each machine's unit, and which of the machines belong to any."""
        at = np.minimum(np.searchsorted(self.ids, machine), max(self.machines - 1, 0))
        is_own = self.ids[at] == machine if self.machines else np.zeros(machine.size, np.bool_)
        return self.unit[at[is_own]], is_own

    def head(self, *, machines: int) -> "Drawn":
        """Return about so many machines: the head of each stratum's random order."""
        if self.machines <= machines:
            return self
        _, code, size = np.unique(self.stratum, return_inverse=True, return_counts=True)
        chosen = self.position < np.ceil(size[code] * (machines / self.machines))
        place = np.cumsum(chosen) - 1
        kept = chosen[self.unit]
        return replace(
            self,
            names=tuple(name for name, is_in in zip(self.names, chosen, strict=True) if is_in),
            stratum=self.stratum[chosen],
            planned_wave=self.planned_wave[chosen],
            position=self.position[chosen],
            ids=self.ids[kept],
            unit=place[self.unit[kept]],
        )


def stored(places: QuerySet[Assignment]) -> Drawn:
    """Read who stands at these places of the drawn order."""
    return _drawn(
        list(
            places.order_by().values_list(
                "machine_id", "unit", "stratum", "planned_wave", "position"
            )
        )
    )


def drawn_from(design: planning.Assignments, machine_ids: Mapping[str, int]) -> Drawn:
    """Return a draw that is not stored yet; `machine_ids` maps names of machines to keys."""
    return _drawn(
        [
            (machine_ids[name], unit, stratum, planned_wave, position)
            for unit, machines, stratum, position, planned_wave, _ in design.rows
            for name in machines
        ]
    )


def _drawn(rows: list[tuple[int, str, str, int, int]]) -> Drawn:
    ids = np.array([row[0] for row in rows], dtype=np.int64)
    order = np.argsort(ids)
    code = {name: index for index, name in enumerate(sorted({row[1] for row in rows}))}
    unit = np.array([code[row[1]] for row in rows], dtype=np.int64)
    first = np.zeros(len(code), dtype=np.int64)
    first[unit[::-1]] = np.arange(unit.size)[::-1]
    strata = {name: index for index, name in enumerate(sorted({row[2] for row in rows}))}
    heads = [rows[index] for index in first.tolist()]
    return Drawn(
        names=tuple(code),
        stratum=np.array([strata[row[2]] for row in heads], dtype=np.int64),
        planned_wave=np.array([row[3] for row in heads], dtype=np.int64),
        position=np.array([row[4] for row in heads], dtype=np.int64),
        ids=ids[order],
        unit=unit[order],
    )
