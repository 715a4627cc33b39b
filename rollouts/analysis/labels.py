"""Re-assignments of a wave: which units could have been canaries instead.

The first row is the assignment that was made; the others choose, inside every
stratum, as many canaries as were chosen, each choice equally likely. The
generator is written out here, because the streams of libraries may change and
a verdict must replay to the same integers on every machine and in every year.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product

import numpy as np
import numpy.typing as npt

from rollouts.analysis.errors import (
    AnalysisError,
    InvalidSample,
    ScoreOverflow,
    UnitMismatch,
)

BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint64]

ENUMERATION_LIMIT = 20_000
CHUNK_BYTES = 1 << 25
"""Bytes of one unpacked chunk of assignments while drawing (one byte per unit and path)."""
BLOCK_BYTES = 1 << 19
SLAB_UNITS = 1 << 11
"""Summing goes through blocks of so many bytes in float64 and units, which stay in a core's cache:
unpacked at once, the assignments would be written to memory and read from it 64 times as large."""
EXACT_FLOAT_LIMIT = 1 << 53
REMEMBERED_COLUMNS = 64
"""A run of more columns is a replay; a live look has a few per guardrail."""

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def splitmix64(counter: WordArray, *, key: int) -> WordArray:
    """Output number `counter` (from 0) of the SplitMix64 stream that starts at `key`.

    Random access makes the draws independent of chunks and threads [1]_.

    References
    ----------
    .. [1] G. L. Steele, D. Lea, C. H. Flood, OOPSLA 2014, 453-472.

    Examples
    --------
    >>> int(splitmix64(np.zeros(1, dtype=np.uint64), key=1234567)[0])
    6457827717110365317
    """
    state = (counter + np.uint64(1)) * np.uint64(_GOLDEN)
    state += np.uint64(key & _WORD)
    return _mix(state, np.empty_like(state))


def _mix(state: WordArray, scratch: WordArray) -> WordArray:
    """SplitMix64's finaliser, in place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.right_shift(state, np.uint64(shift), out=scratch)
        np.bitwise_xor(state, scratch, out=state)
        np.multiply(state, np.uint64(factor), out=state)
    np.right_shift(state, np.uint64(31), out=scratch)
    np.bitwise_xor(state, scratch, out=state)
    return state


@dataclass(frozen=True, eq=False)
class Design:
    """Who could have been canary: one stratum code and the observed arm per unit.

    Units keep the order in which they are given; callers sort them by name, so
    that the same wave always meets the same re-assignments.
    """

    stratum: IntArray
    is_canary: BoolArray

    def __post_init__(self) -> None:
        stratum = np.array(self.stratum, dtype=np.int64)
        is_canary = np.array(self.is_canary, dtype=np.bool_)
        if stratum.ndim != 1 or stratum.shape != is_canary.shape:
            raise UnitMismatch(
                f"one stratum and one arm per unit: got {stratum.shape} and {is_canary.shape}"
            )
        if not stratum.size:
            raise InvalidSample("a design needs at least one unit")
        stratum.setflags(write=False)
        is_canary.setflags(write=False)
        object.__setattr__(self, "stratum", stratum)
        object.__setattr__(self, "is_canary", is_canary)

    @property
    def units(self) -> int:
        return int(self.stratum.size)

    @cached_property
    def sizes(self) -> dict[int, tuple[int, int]]:
        """Per stratum code, ascending: units and canaries among them."""
        codes, index = np.unique(self.stratum, return_inverse=True)
        units = np.bincount(index, minlength=codes.size)
        canaries = np.bincount(index, weights=self.is_canary, minlength=codes.size)
        return {
            int(code): (int(n), int(c)) for code, n, c in zip(codes, units, canaries, strict=True)
        }

    @cached_property
    def assignments(self) -> int:
        """How many assignments the randomisation could have made: the product of C(n, c)."""
        return math.prod(math.comb(n, c) for n, c in self.sizes.values())

    @cached_property
    def digest(self) -> str:
        """Names this design; with seed and resamples it is the key of a cache of labels."""
        parts = hashlib.sha256(b"design 1\0")
        parts.update(self.stratum.astype("<i8").tobytes())
        parts.update(np.packbits(self.is_canary).tobytes())
        return parts.hexdigest()


@dataclass(frozen=True, eq=False)
class Labels:
    """The observed assignment (row 0) and its re-assignments, one bit per unit.

    Memory: `paths * ceil(units / 8)` bytes (38 MB for 15,156 units and 20,000
    paths), while drawing one chunk of `CHUNK_BYTES` more.
    """

    packed: ByteArray
    units: int
    is_enumerated: bool
    _known: dict[bytes, IntArray] = field(default_factory=dict, repr=False)
    """Sums of the last call's columns, so that a look does not repeat what has not changed."""

    @classmethod
    def draw(cls, design: Design, *, seed: int, resamples: int) -> Labels:
        """The observed assignment and `resamples` seeded ones; or all there are, if few.

        Where the strata allow at most `ENUMERATION_LIMIT` assignments, each of
        them stands exactly once and `seed` and `resamples` have no effect.

        Parameters
        ----------
        design : Design
            Strata and observed arms; only the number of canaries per stratum
            enters the draw, never who they are.
        seed : int
            Of the re-assignment; must not be the seed of the assignment.
        resamples : int
            B, at least 1. Row b does not depend on B: more resamples extend
            the same rows.

        Notes
        -----
        Floyd's algorithm picks canaries (or controls, where they are fewer),
        vectorised over paths and over strata of equal size. A position below m
        is the top half of a 64-bit word times m, shifted: its probability is
        off by less than m / 2**32 of itself.

        Examples
        --------
        >>> design = Design(stratum=np.zeros(6, int), is_canary=np.arange(6) < 2)
        >>> labels = Labels.draw(design, seed=1, resamples=999)
        >>> labels.paths, labels.is_enumerated
        (15, True)
        """
        if resamples < 1:
            raise AnalysisError(f"at least one re-assignment is needed: got {resamples}")
        if design.assignments <= ENUMERATION_LIMIT:
            return cls(_enumerate(design), design.units, is_enumerated=True)
        packed = np.empty((resamples + 1, -(-design.units // 8)), dtype=np.uint8)
        packed[0] = np.packbits(design.is_canary)
        plan = _DrawPlan.of(design, seed=seed)
        rows = max(1, CHUNK_BYTES // design.units)
        for start in range(1, resamples + 1, rows):
            stop = min(start + rows, resamples + 1)
            packed[start:stop] = np.packbits(plan.rows(start, stop), axis=1)
        return cls(packed, design.units, is_enumerated=False)

    @property
    def paths(self) -> int:
        """B + 1."""
        return int(self.packed.shape[0])

    def rows(self, start: int, stop: int) -> ByteArray:
        """Assignments `start` to `stop` as zeros and ones, one row per path."""
        return np.unpackbits(self.packed[start:stop], axis=1, count=self.units)

    def sums(self, columns: IntArray) -> IntArray:
        """Sum of every column over the canaries of every path, exactly.

        Parameters
        ----------
        columns : int64 array, (units, m) or (units,)
            Scores; m = 150 columns at 15,156 units and 20,000 paths take
            seconds, because the product runs in BLAS.

        Returns
        -------
        int64 array, (paths, m) or (paths,)

        Raises
        ------
        UnitMismatch
            If there is not one row per unit.
        ScoreOverflow
            If the absolute values of a column add to 2**53 or more; below
            that, every partial sum is an integer that float64 holds, so the
            result does not depend on the order of summation or on BLAS.

        Examples
        --------
        >>> design = Design(stratum=np.zeros(3, int), is_canary=np.array([1, 0, 0], bool))
        >>> Labels.draw(design, seed=1, resamples=1).sums(np.array([5, 7, 9])).tolist()
        [5, 7, 9]
        """
        scores = _exact_columns(columns, units=self.units)
        keys = [hashlib.blake2b(column.tobytes()).digest() for column in scores.T]
        known = self._known.copy()
        new = [i for i, key in enumerate(keys) if key not in known and key not in keys[:i]]
        fresh = self._products(np.ascontiguousarray(scores[:, new]))
        known.update((keys[place], fresh[:, i].astype(np.int64)) for i, place in enumerate(new))
        # Columns lie together in memory: each is used by itself.
        sums = np.empty((len(keys), self.paths), dtype=np.int64)
        for place, key in enumerate(keys):
            sums[place] = known[key]
        sums.setflags(write=False)
        self._known.clear()
        if len(keys) <= REMEMBERED_COLUMNS:
            self._known.update((key, sums[place]) for place, key in enumerate(keys))
        return sums[0] if columns.ndim == 1 else sums.T

    def _products(self, scores: FloatArray) -> FloatArray:
        """Scores summed over every path's canaries, block by block."""
        out = np.zeros((self.paths, scores.shape[1]))
        rows = BLOCK_BYTES // (8 * SLAB_UNITS)
        block = np.empty((rows, SLAB_UNITS))
        for first, last in _slices(self.units, SLAB_UNITS):
            part, bits = scores[first:last], self.packed[:, first // 8 : -(-last // 8)]
            for start, stop in _slices(self.paths, rows):
                unpacked = block[: stop - start, : last - first]
                unpacked[:] = np.unpackbits(bits[start:stop], axis=1, count=last - first)
                out[start:stop] += unpacked @ part
        return out


def _slices(size: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, step):
        yield start, min(start + step, size)


def _exact_columns(columns: IntArray, *, units: int) -> npt.NDArray[np.float64]:
    if columns.dtype.kind not in "iu":
        raise AnalysisError(f"only integer scores are summed exactly: got {columns.dtype}")
    if columns.ndim not in (1, 2) or columns.shape[0] != units:
        raise UnitMismatch(f"one row of scores per unit: got {columns.shape} for {units} units")
    scores = columns.astype(np.float64).reshape(units, -1)
    largest = float(np.abs(scores).sum(axis=0).max(initial=0.0))
    if largest >= EXACT_FLOAT_LIMIT:
        raise ScoreOverflow(f"absolute scores add to {largest:.4g}; the exact limit is 2**53")
    return scores


def _enumerate(design: Design) -> ByteArray:
    """Every assignment once, the observed one first, the others in a fixed order."""
    start = np.zeros(design.units, dtype=np.bool_)
    choices = []
    for code, (n, c) in design.sizes.items():
        members = np.flatnonzero(design.stratum == code)
        # The smaller side is chosen, so that 19,999 of 20,000 costs as little as one.
        start[members] = c > n - c
        choices.append(list(combinations(members.tolist(), min(c, n - c))))
    packed = np.empty((design.assignments, -(-design.units // 8)), dtype=np.uint8)
    for number, parts in enumerate(product(*choices)):
        row = start.copy()
        row[[unit for part in parts for unit in part]] ^= True
        packed[number] = np.packbits(row)
    observed = int(np.flatnonzero((packed == np.packbits(design.is_canary)).all(axis=1))[0])
    packed[: observed + 1] = np.roll(packed[: observed + 1], 1, axis=0)
    return packed


@dataclass(frozen=True)
class _Group:
    """Strata of one shape, drawn together; positions are in units sorted by stratum."""

    starts: IntArray
    slots: IntArray
    size: int
    picks: int
    picks_controls: bool


@dataclass(frozen=True)
class _DrawPlan:
    key: int
    units: int
    slots: int
    groups: tuple[_Group, ...]
    back: IntArray | None

    @classmethod
    def of(cls, design: Design, *, seed: int) -> _DrawPlan:
        order = np.argsort(design.stratum, kind="stable")
        back = None if (order[:-1] < order[1:]).all() else np.argsort(order).astype(np.int64)
        by_shape: dict[tuple[int, int], list[tuple[int, int]]] = {}
        start = slot = 0
        for n, c in design.sizes.values():
            by_shape.setdefault((n, c), []).append((start, slot))
            start += n
            slot += min(c, n - c)
        groups = tuple(
            _Group(
                starts=np.array([s for s, _ in places], dtype=np.int64),
                slots=np.array([k for _, k in places], dtype=np.int64),
                size=n,
                picks=min(c, n - c),
                picks_controls=c > n - c,
            )
            for (n, c), places in by_shape.items()
        )
        digest = hashlib.sha256(f"labels 1 {int(seed)}".encode()).digest()
        return cls(int.from_bytes(digest[:8], "big"), design.units, slot, groups, back)

    def rows(self, start: int, stop: int) -> ByteArray:
        """Paths `start` to `stop` as zeros and ones, in the design's order of units."""
        chosen = np.zeros((stop - start, self.units), dtype=np.uint8)
        paths = np.arange(start, stop, dtype=np.uint64)
        for group in self.groups:
            self._pick(chosen, group, paths)
        return chosen if self.back is None else chosen[:, self.back]

    def _pick(self, chosen: ByteArray, group: _Group, paths: WordArray) -> None:
        flat = chosen.reshape(-1)
        base = np.arange(paths.size, dtype=np.int64)[:, None] * self.units + group.starts
        base = base.reshape(-1)
        counter = paths[:, None] * np.uint64(self.slots) + group.slots.astype(np.uint64)
        state = (counter.reshape(-1) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(self.key)
        word, scratch = np.empty_like(state), np.empty_like(state)
        position = word.view(np.int64)
        for top in range(group.size - group.picks, group.size):
            np.copyto(word, state)
            _mix(word, scratch)
            np.right_shift(word, np.uint64(32), out=word)
            np.multiply(word, np.uint64(top + 1), out=word)
            np.right_shift(word, np.uint64(32), out=word)
            np.add(position, base, out=position)
            # Floyd: a position already taken gives its place to the newest one.
            taken = flat[position]
            np.copyto(position, base + top, where=taken.view(np.bool_))
            flat[position] = 1
            np.add(state, np.uint64(_GOLDEN), out=state)
        if group.picks_controls:
            for first in group.starts.tolist():
                chosen[:, first : first + group.size] ^= 1
