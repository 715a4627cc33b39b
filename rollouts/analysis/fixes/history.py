"""What is known of machines that were fixed and machines that were not, in one window."""

import math
from dataclasses import dataclass

import numpy as np

from rollouts.analysis.episodes import Events
from rollouts.analysis.errors import InvalidSample
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class FixHistory:
    """What is known of the machines in one window; second 0 is its start.

    Parameters
    ----------
    window_seconds : float
        Length of the window.
    fixed_seconds : (machines,) array
        When each machine was fixed: inf for never, 0 or less for before the window.
    stratum : (machines,) int array
        Machines are compared within these (platform, site).
    entered_seconds : (machines,) array
        When each machine first came into service; NaN where not known. Only its age is read.
    span_machine, span_start_seconds, span_end_seconds : (spans,) arrays
        Half-open times in service, which do not overlap.
    episodes : Events
        Of the pattern that the fix was made for. Those before the window tell how often each
        machine had failed by then.
    others : Events
        Episodes of every other signature, one series per machine and signature.
    signature : (other episodes,) int array
        Index into `signatures`.
    signatures : tuple of str
    interruptions : Events
        Interruptions of work, by the time when they began.
    path : (interruptions,) int array
        Index into `paths`.
    lost_hours : (interruptions,) array
        Time to recover and work repeated; NaN where not recorded.
    paths, severe_paths : tuple of str
        Recovery paths, and those of them that cost the whole job its progress.
    """

    window_seconds: float
    fixed_seconds: FloatArray
    stratum: IntArray
    entered_seconds: FloatArray
    span_machine: IntArray
    span_start_seconds: FloatArray
    span_end_seconds: FloatArray
    episodes: Events
    others: Events
    signature: IntArray
    signatures: tuple[str, ...]
    interruptions: Events
    path: IntArray
    lost_hours: FloatArray
    paths: tuple[str, ...]
    severe_paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.window_seconds < math.inf:
            raise InvalidSample(
                f"the window is {self.window_seconds} s long; a positive, finite length is accepted"
            )
        size = self.fixed_seconds.size
        for name in ("stratum", "entered_seconds"):
            if getattr(self, name).shape != (size,):
                raise InvalidSample(f"{name} needs one value for each of {size} machines")
        if np.isnan(self.fixed_seconds).any():
            raise InvalidSample("a machine that was never fixed has inf, not NaN")
        if (self.span_end_seconds < self.span_start_seconds).any():
            raise InvalidSample("a time in service ends before it begins")
        for codes in (
            self.span_machine,
            self.episodes.machine,
            self.others.machine,
            self.interruptions.machine,
        ):
            if codes.size and not 0 <= int(codes.min()) <= int(codes.max()) < size:
                raise InvalidSample(
                    f"machine {int(codes.max())} is named; known are 0 to {size - 1}"
                )

    @property
    def is_fixed(self) -> BoolArray:
        """Which machines were fixed by the window's end."""
        return self.fixed_seconds < self.window_seconds
