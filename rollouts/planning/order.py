"""Strata and the one random order of their units: who is treated when."""

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rollouts.planning.waves import allocate

#: Strata of a plan that names none; merged from the last key to the first.
DEFAULT_STRATA = ("platform", "from_version", "workload", "recent_faults", "site")

LEAST_CANARIES = 1
LEAST_CONTROLS = 4
"""What a stratum needs in every wave; smaller strata are merged."""

LONGEST_LABEL = 240

#: From so many faults in the period before on, a unit counts as having many.
MANY_FAULTS = 3


@dataclass(frozen=True)
class UnitInput:
    """A placement unit: its name, its machines, and the values that strata are made of."""

    name: str
    fields: Mapping[str, str] = field(default_factory=dict)
    machines: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Its machines; a unit that names none is the machine itself."""
        return self.machines or (self.name,)


class Assigned(NamedTuple):
    """One unit's place: the stratum, the position in its random order, and the planned wave."""

    unit: str
    machines: tuple[str, ...]
    stratum: str
    position: int
    planned_wave: int
    is_hold_back: bool


@dataclass(frozen=True)
class Merge:
    """Strata that became one, because one of them was too small."""

    strata: tuple[str, ...]
    into: str
    because: str

    def __str__(self) -> str:
        few = len(self.strata) <= 5
        named = ", ".join(self.strata) if few else f"{len(self.strata)} strata"
        return f"{named} became {self.into}: {self.because}"


@dataclass(frozen=True)
class Assignments:
    """The random order of every stratum, who is planned for which wave, and what was merged.

    `planned` maps a stratum to its units per wave; the last number is the release wave.
    """

    rows: tuple[Assigned, ...]
    sizes: tuple[int, ...]
    planned: Mapping[str, tuple[int, ...]]
    merges: tuple[Merge, ...]

    @property
    def release_wave(self) -> int:
        """Number of the wave in which the hold-back is treated."""
        return len(self.sizes) + 1

    def counts(self, wave: int) -> dict[str, tuple[int, int]]:
        """Per stratum, planned canaries and controls of a wave (numbered from 1)."""
        return {
            stratum: (planned[wave - 1], sum(planned[wave:]))
            for stratum, planned in self.planned.items()
        }


@dataclass(frozen=True)
class _Stratum:
    """Original cells (one value per key), the number of their units, and why they were merged."""

    cells: tuple[tuple[str, ...], ...]
    units: int
    because: str = ""

    @property
    def label(self) -> str:
        return _label(self.cells)

    def prefix(self, length: int) -> tuple[str, ...]:
        return self.cells[0][:length]


def draw_order(
    units: Iterable[UnitInput],
    *,
    sizes: Sequence[int],
    seed: int,
    salt: str,
    strata: Sequence[str] = DEFAULT_STRATA,
) -> Assignments:
    """Draw the one random order of every stratum and plan who is treated in which wave.

    The order is pinned by SHA-256 instead of a library's generator, so it depends neither on
    the order of the input nor on the version of anything.

    Parameters
    ----------
    units : iterable of UnitInput
        The eligible population; its order does not matter.
    sizes : sequence of int
        Units per wave, as `wave_sizes` gives them; who is left is the hold-back.
    seed, salt
        The draft's seed, and what tells this rollout from others with the same seed.
    strata : sequence of str
        Fields of the units, most important first; the empty sequence means one stratum.

    Raises
    ------
    ValueError
        If a unit appears twice, lacks a field, or the waves are larger than the population.

    Notes
    -----
    Strata are merged until each has at least one canary and four controls in every wave that is
    not empty. Values of the last key are merged first, then of the key before, and so on; in
    each round the failing strata of a group, smallest first, are paired with each other, an odd
    one with the smallest sibling that is large enough.

    Examples
    --------
    >>> units = [UnitInput(f"n{number}", {"site": "a"}) for number in range(20)]
    >>> drawn = draw_order(units, sizes=[2, 10], seed=1, salt="r1", strata=["site"])
    >>> drawn.planned, drawn.release_wave
    ({'a': (2, 10, 8)}, 3)
    >>> [row.planned_wave for row in drawn.rows][:4]
    [1, 1, 2, 2]
    """
    population = sorted(units, key=lambda unit: unit.name)
    _check_population(population, sizes=sizes, strata=strata)
    by_cell: dict[tuple[str, ...], list[UnitInput]] = defaultdict(list)
    cell_of: dict[int, tuple[str, ...]] = {}  # units that are alike may share their fields
    for unit in population:
        cell = cell_of.get(id(unit.fields))
        if cell is None:
            cell = cell_of[id(unit.fields)] = tuple(unit.fields[key] for key in strata)
        by_cell[cell].append(unit)
    cells = [_Stratum((cell,), len(members)) for cell, members in sorted(by_cell.items())]
    merged = _merge_small(cells, sizes=sizes, keys=len(strata))
    planned = _plan_counts([stratum.units for stratum in merged], sizes=sizes)
    # By label, so that the rows come in the order in which everybody reads them.
    labelled = sorted(zip(merged, planned, strict=True), key=lambda pair: pair[0].label)
    rows = [
        row
        for stratum, counts in labelled
        for row in _ordered(
            [unit for cell in stratum.cells for unit in by_cell[cell]],
            stratum=stratum.label,
            counts=counts,
            key=f"{seed}\0{salt}",
        )
    ]
    return Assignments(
        rows=tuple(rows),
        sizes=tuple(sizes),
        planned={s.label: tuple(counts) for s, counts in zip(merged, planned, strict=True)},
        merges=tuple(
            Merge(tuple(_label([cell]) for cell in stratum.cells), stratum.label, stratum.because)
            for stratum in merged
            if stratum.because
        ),
    )


def _check_population(
    population: Sequence[UnitInput], *, sizes: Sequence[int], strata: Sequence[str]
) -> None:
    twice = [name for name, times in Counter(u.name for u in population).items() if times > 1]
    if twice:
        raise ValueError(f"each unit is drawn once: {twice[0]!r} was given twice")
    if sum(sizes) > len(population) or min(sizes, default=0) < 0:
        raise ValueError(f"waves of {list(sizes)} do not fit {len(population)} units")
    for unit in {id(unit.fields): unit for unit in population}.values():
        lacking = [key for key in strata if key not in unit.fields]
        if lacking:
            raise ValueError(
                f"unit {unit.name!r} has no {lacking[0]!r}; it has {', '.join(sorted(unit.fields))}"
            )


def _ranks(names: Iterable[str], *, key: str) -> list[bytes]:
    """Units' random ranks: uniform over names, the same on every machine and in every year."""
    start = hashlib.sha256(f"assignment 1\0{key}\0".encode())
    ranks = []
    for name in names:
        own = start.copy()
        own.update(name.encode())
        ranks.append(own.digest())
    return ranks


def _ordered(
    units: Sequence[UnitInput], *, stratum: str, counts: Sequence[int], key: str
) -> list[Assigned]:
    # Ranks of different names differ, so nothing behind them is ever compared.
    ranks = _ranks((unit.name for unit in units), key=key)
    order = sorted(range(len(units)), key=ranks.__getitem__)
    waves = [number for number, count in enumerate(counts, 1) for _ in range(count)]
    last = len(counts)
    return [
        Assigned(unit.name, unit.machines or (unit.name,), stratum, position, wave, wave == last)
        for position, (unit, wave) in enumerate(
            zip(map(units.__getitem__, order), waves, strict=True)
        )
    ]


def _plan_counts(units: Sequence[int], *, sizes: Sequence[int]) -> list[list[int]]:
    """Per stratum, its units in each wave and in the hold-back, in proportion."""
    held = allocate(sum(units) - sum(sizes), weights=units)
    left = [count - kept for count, kept in zip(units, held, strict=True)]
    columns = []
    for size in sizes:
        part = allocate(size, weights=left)
        columns.append(part)
        left = [rest - taken for rest, taken in zip(left, part, strict=True)]
    return [list(row) for row in zip(*columns, held, strict=True)]


def _shortage(counts: Sequence[int], *, sizes: Sequence[int]) -> str:
    """Why a stratum is too small, or nothing; a wave that is empty for all asks nothing of it."""
    for wave, size in enumerate(sizes, 1):
        canaries, controls = counts[wave - 1], sum(counts[wave:])
        if size and canaries < LEAST_CANARIES:
            return f"{canaries} canaries in wave {wave}"
        if size and controls < LEAST_CONTROLS:
            return f"{controls} controls in wave {wave}"
    return ""


def _merge_small(strata: list[_Stratum], *, sizes: Sequence[int], keys: int) -> list[_Stratum]:
    for length in range(keys - 1, -1, -1):
        while pairs := _pairs(strata, sizes=sizes, length=length):
            gone = {stratum.cells for pair in pairs for stratum in pair}
            kept = [stratum for stratum in strata if stratum.cells not in gone]
            joined = [_merged(small, partner) for small, partner in pairs]
            strata = sorted(kept + joined, key=lambda stratum: stratum.cells)
    return strata


def _pairs(
    strata: Sequence[_Stratum], *, sizes: Sequence[int], length: int
) -> list[tuple[_Stratum, _Stratum]]:
    """Whom to merge in this round, among strata that agree in the first `length` keys.

    The first of a pair is too small and says why.
    """
    counts = _plan_counts([stratum.units for stratum in strata], sizes=sizes)
    judged = [
        (stratum, _shortage(row, sizes=sizes)) for stratum, row in zip(strata, counts, strict=True)
    ]
    groups: dict[tuple[str, ...], list[tuple[_Stratum, str]]] = defaultdict(list)
    for stratum, why in sorted(judged, key=lambda pair: (pair[0].units, pair[0].cells)):
        groups[stratum.prefix(length)].append((stratum, why))
    pairs: list[tuple[_Stratum, _Stratum]] = []
    for _, group in sorted(groups.items()):
        failing = [replace(s, because=s.because or why) for s, why in group if why]
        large = [stratum for stratum, why in group if not why]
        partners = [*failing[1::2], *(large[:1] if len(failing) % 2 else [])]
        pairs += zip(failing[0::2], partners, strict=False)
    return pairs


def _merged(first: _Stratum, second: _Stratum) -> _Stratum:
    return _Stratum(
        cells=tuple(sorted(first.cells + second.cells)),
        units=first.units + second.units,
        because=first.because or second.because,
    )


def _label(cells: Sequence[tuple[str, ...]]) -> str:
    """A readable name; cells that it does not spell out fully are told apart by a digest."""
    if not cells[0]:
        return "all"
    values = [sorted(set(column)) for column in zip(*cells, strict=True)]
    label = "/".join("+".join(value or "-" for value in column) for column in values)
    spelt_out = len(cells) == math.prod(len(column) for column in values)
    is_plain = not any(set("/+") & set(value) or value == "-" for cell in cells for value in cell)
    if spelt_out and is_plain and len(label) <= LONGEST_LABEL:
        return label
    digest = hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:8]
    return f"{label[:LONGEST_LABEL]}{'…' if len(label) > LONGEST_LABEL else ''}#{digest}"


def recent_fault_class(faults: int) -> str:
    """The stratum value of a unit's fault count in the period before.

    Examples
    --------
    >>> [recent_fault_class(count) for count in (0, 2, 3)]
    ['none', 'few', 'many']
    """
    if faults < 0:
        raise ValueError(f"a count of faults is not negative: got {faults}")
    return "none" if not faults else "few" if faults < MANY_FAULTS else "many"


def plan_digest(document: Mapping[str, Any], rows: Iterable[Assigned]) -> str:
    """SHA-256 over the canonical JSON of a plan and its ordered members.

    The approver signs this; a preview and what is saved are the same if their digests are.

    Examples
    --------
    >>> row = Assigned("n1", ("n1",), "all", 0, 1, False)
    >>> plan_digest({"seed": 1}, [row])[:12]
    'cbc7f3eddba2'
    """
    members = sorted(
        [row.stratum, row.position, row.unit, *sorted(row.machines), row.planned_wave]
        if len(row.machines) > 1
        else [row.stratum, row.position, row.unit, *row.machines, row.planned_wave]
        for row in rows
    )
    return document_digest({"format": "plan 1", "document": document, "members": members})


def document_digest(document: Mapping[str, Any]) -> str:
    """SHA-256 over the canonical JSON of a document: the order of its keys does not matter.

    Examples
    --------
    >>> document_digest({"a": 1, "b": 2}) == document_digest({"b": 2, "a": 1})
    True
    """
    text = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def fleet_change(before: Collection[str], after: Collection[str]) -> str:
    """What became of the population since the preview, or nothing.

    Examples
    --------
    >>> fleet_change(["n1", "n2"], ["n2", "n3", "n4"])
    'fleet changed: 2 added (n3, n4), 1 left (n1)'
    """
    added, left = sorted(set(after) - set(before)), sorted(set(before) - set(after))
    if not added and not left:
        return ""
    return f"fleet changed: {_counted(added, 'added')}, {_counted(left, 'left')}"


def _counted(names: Sequence[str], what: str) -> str:
    if not names:
        return f"0 {what}"
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"{len(names)} {what} ({', '.join(names[:10])}{more})"
