"""Seeded random streams addressed by what they are for, so that any of them can be drawn again.

A stream is a Philox counter generator: its key is the fleet's seed and the stream's purpose, its
counter the tick or the ordinal. Nothing is carried from draw to draw, so a process that was
killed draws the same numbers after its restart.
"""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for; the numbers are part of a fleet's identity and never reused."""

    LAYOUT = 1
    FAULTS = 2
    SHOCKS = 3
    NOVEL = 4
    JOB_WAVE = 5
    NOISE = 6
    IDLE = 7
    INSTALL = 8
    DRAIN = 9
    TECHNICIAN = 10
    STAGING = 11
    JOBS = 12
    PROBE = 13
    BENCH = 14


def stream(seed: int, purpose: Purpose, *address: int) -> np.random.Generator:
    """Return the generator of this seed, purpose and address (at most two whole numbers).

    Examples
    --------
    >>> a, b = stream(7, Purpose.FAULTS, 3), stream(7, Purpose.FAULTS, 3)
    >>> bool(a.random() == b.random())
    True
    """
    high, low = (*address, 0, 0)[:2]
    # The lowest two words count the draws; an address can never run into the next one's numbers.
    counter = np.array([0, 0, low % 2**64, high % 2**64], dtype=np.uint64)
    key = np.array([seed % 2**64, int(purpose)], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
