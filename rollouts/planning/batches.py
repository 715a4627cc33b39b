"""Install batches: the blocks inside which both arms share one clock."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollouts.planning.waves import allocate


@dataclass(frozen=True)
class Deal:
    """Block number (from 1) per unit, and which strata use fewer blocks than there are."""

    block: Mapping[str, int]
    notes: tuple[str, ...]


def batch_count(canaries: int, *, batch_size: int | None) -> int:
    """Install batches of a wave; without a batch size the wave is one batch."""
    return max(1, math.ceil(canaries / batch_size)) if batch_size else 1


def deal_blocks(
    canaries: Mapping[str, Sequence[str]], controls: Mapping[str, Sequence[str]], *, batches: int
) -> Deal:
    """Deal both arms of each stratum, in their random order, into install batches.

    Parameters
    ----------
    canaries, controls : mapping of stratum to units in their random order
    batches : int
        At least 1.

    Notes
    -----
    A stratum uses as many blocks as both of its arms can fill with at least one unit, so its
    re-assignments have somebody to exchange; the others of its blocks are merged into these,
    and a note says so. Its canaries are cut evenly and go to the blocks with the fewest so far;
    its controls follow in proportion. A stratum with one arm only is dealt over all blocks: it
    has nothing to compare.

    Examples
    --------
    >>> deal = deal_blocks({"a": ["c1", "c2"]}, {"a": ["k1", "k2", "k3", "k4"]}, batches=2)
    >>> deal.block
    {'c1': 1, 'k1': 1, 'k2': 1, 'c2': 2, 'k3': 2, 'k4': 2}
    """
    strata = sorted(canaries.keys() | controls.keys())
    sizes = [(len(canaries.get(s, ())), len(controls.get(s, ()))) for s in strata]
    block: dict[str, int] = {}
    notes = []
    for stratum, cells in zip(strata, deal_counts(sizes, batches=batches), strict=True):
        treated = iter(canaries.get(stratum, ()))
        untreated = iter(controls.get(stratum, ()))
        for number, (c, k) in sorted(cells.items()):
            block |= {next(treated): number for _ in range(c)}
            block |= {next(untreated): number for _ in range(k)}
        if 0 < len(cells) < batches:
            chosen = ", ".join(map(str, sorted(cells)))
            notes.append(f"{stratum}: blocks merged into {chosen} of {batches}")
    return Deal(block=block, notes=tuple(notes))


def deal_counts(
    sizes: Sequence[tuple[int, int]], *, batches: int
) -> list[dict[int, tuple[int, int]]]:
    """Canaries and controls of every stratum in every block; see `deal_blocks`.

    Examples
    --------
    >>> deal_counts([(3, 2), (1, 4)], batches=2)
    [{1: (2, 1), 2: (1, 1)}, {2: (1, 4)}]
    """
    if batches < 1:
        raise ValueError(f"a wave is installed in at least one batch: got {batches}")
    load = [0] * batches
    return [_deal_stratum(c, k, load=load) for c, k in sizes]


def _deal_stratum(canaries: int, controls: int, *, load: list[int]) -> dict[int, tuple[int, int]]:
    """Deal one stratum and add its canaries to the blocks' load."""
    if not canaries or not controls:
        blocks = sorted(range(len(load)), key=lambda index: (load[index], index))
        parts = allocate(canaries + controls, weights=[1] * len(blocks))
        cells = {
            index: (part, 0) if canaries else (0, part)
            for index, part in zip(blocks, parts, strict=True)
            if part
        }
    else:
        used = min(len(load), canaries, controls)
        blocks = sorted(range(len(load)), key=lambda index: (load[index], index))[:used]
        treated = allocate(canaries, weights=[1] * used)
        untreated = allocate(controls, weights=treated, least=1)
        cells = dict(zip(blocks, zip(treated, untreated, strict=True), strict=True))
    for index, (c, _) in cells.items():
        load[index] += c
    return {index + 1: cell for index, cell in sorted(cells.items())}
