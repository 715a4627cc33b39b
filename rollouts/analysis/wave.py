"""What the judge is told about a wave, and what it carries from look to look."""

import base64
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rollouts.analysis.errors import InvalidLevel, InvalidSample, InvalidState
from rollouts.analysis.samples import LARGEST_SECONDS, FloatArray
from rollouts.analysis.sequential import CrossingState

MOST_ATTEMPTS = 10**9


@dataclass(frozen=True)
class Look:
    """One evaluation: its number (from 1), cutoff, and how much of the plan has elapsed.

    `elapsed` (f) is the share of the planned window since the first block's clock start, at
    most 1; `extension_elapsed` (g) the share of the one planned extension.
    """

    number: int
    as_of_seconds: float
    elapsed: float
    extension_elapsed: float = 0.0

    def __post_init__(self) -> None:
        for name in ("elapsed", "extension_elapsed"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidLevel(f"look {self.number}: {name} lies in [0, 1]")
        if not abs(self.as_of_seconds) <= LARGEST_SECONDS:
            raise InvalidLevel(
                f"look {self.number}: as_of_seconds lies within {LARGEST_SECONDS:g} s of the "
                f"origin: got {self.as_of_seconds}"
            )


@dataclass(frozen=True)
class WavePlan:
    """What is fixed about one wave before it starts.

    Parameters
    ----------
    window_seconds : float
        Planned length of the window.
    alpha : float
        The halt budget of this wave, over all guardrails.
    is_recorded : bool
        A recorded case: no extension, never refused for its design, no smoke widening.
    has_extension, is_extended : bool
        Whether one extension is planned, and whether it has begun.
    allows_smoke : bool
        Smoke widening is on for this wave.
    expected_excess_faults : float or None
        The planner's figure for the next wave; None (unknown) forbids smoke widening.
    frozen_fault_rate : mapping
        Episodes per machine-day of the period before, by fault guardrail.
    decidable : mapping
        The planner's word, by guardrail.
    hard_stop : str or None
        A reason to halt outside the error budget.
    acknowledged : frozenset of str
        Novel signatures that a person has acknowledged.
    cumulative_attempts : (failures, attempts) or None
        Installs over all waves so far, for the non-inferiority of installs.
    earlier : mapping of str to ((estimate, error), ...)
        By guardrail: the differences of earlier waves, for the non-inferiority of telemetry.
    """

    window_seconds: float
    alpha: float
    is_recorded: bool = False
    has_extension: bool = True
    is_extended: bool = False
    allows_smoke: bool = False
    expected_excess_faults: float | None = None
    frozen_fault_rate: Mapping[str, float] = field(default_factory=dict)
    decidable: Mapping[str, bool] = field(default_factory=dict)
    hard_stop: str | None = None
    acknowledged: frozenset[str] = frozenset()
    cumulative_attempts: tuple[int, int] | None = None
    earlier: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, rate in self.frozen_fault_rate.items():
            if not (math.isfinite(rate) and rate >= 0):
                raise InvalidSample(f"frozen rate of {name} is finite and not negative: got {rate}")
        for name, waves in self.earlier.items():
            if not all(math.isfinite(known) and 0 < error < math.inf for known, error in waves):
                raise InvalidSample(
                    f"{name}: a difference of an earlier wave is finite with a positive error: "
                    f"got {list(waves)}"
                )
        excess, attempts = self.expected_excess_faults, self.cumulative_attempts
        if excess is not None and not excess >= 0:
            raise InvalidSample(f"expected_excess_faults is not negative: got {excess}")
        if attempts is not None and not 0 <= attempts[0] <= attempts[1] <= MOST_ATTEMPTS:
            raise InvalidSample(
                f"cumulative_attempts are failures and attempts, 0 <= failures <= attempts "
                f"<= {MOST_ATTEMPTS}: got {attempts}"
            )

    @property
    def can_extend(self) -> bool:
        return self.has_extension and not self.is_recorded

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe; `from_dict` is its inverse."""
        return {**vars(self), "acknowledged": sorted(self.acknowledged)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "WavePlan":
        attempts = stored["cumulative_attempts"]
        return cls(
            **{
                **stored,
                "acknowledged": frozenset(stored["acknowledged"]),
                "cumulative_attempts": None if attempts is None else tuple(attempts),
                "earlier": {
                    name: tuple((estimate, error) for estimate, error in waves)
                    for name, waves in stored["earlier"].items()
                },
            }
        )


@dataclass(frozen=True)
class GuardrailState:
    """One guardrail's memory: paths of both tests, and the checkpoints spent so far.

    `levels` and `fractions` are the cumulative error and the elapsed share (above 1 in the
    extension) of each checkpoint that was judged.
    """

    halt: CrossingState | None = None
    widen: CrossingState | None = None
    halt_look: int | None = None
    shown_look: int | None = None
    levels: tuple[str, ...] = ()
    fractions: tuple[float, ...] = ()
    pending: float | None = None

    @property
    def is_crossed(self) -> bool:
        return self.halt_look is not None

    @property
    def is_shown(self) -> bool:
        return self.shown_look is not None

    @property
    def is_tolerated(self) -> bool:
        """Crossed only after non-inferiority was shown: a real effect within the margin."""
        return (
            self.halt_look is not None
            and self.shown_look is not None
            and self.shown_look < self.halt_look
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "halt": _pack(self.halt),
            "widen": _pack(self.widen),
            "halt_look": self.halt_look,
            "shown_look": self.shown_look,
            "levels": list(self.levels),
            "fractions": list(self.fractions),
            "pending": self.pending,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "GuardrailState":
        return cls(
            halt=_unpack(stored["halt"]),
            widen=_unpack(stored["widen"]),
            halt_look=stored["halt_look"],
            shown_look=stored["shown_look"],
            levels=tuple(stored["levels"]),
            fractions=tuple(stored["fractions"]),
            pending=stored["pending"],
        )


@dataclass(frozen=True)
class WaveState:
    """The judge's memory between looks; `to_dict` is JSON-safe and `from_dict` its inverse.

    `reached` is the largest checkpoint that a look has passed; `heard_seconds` holds, per kind
    of report, when each unit's latest one ended as known at the look before.
    """

    guardrails: Mapping[str, GuardrailState] = field(default_factory=dict)
    as_of_seconds: float | None = None
    reached: float = 0.0
    heard_seconds: Mapping[str, FloatArray] = field(default_factory=dict)

    def of(self, name: str) -> GuardrailState:
        return self.guardrails.get(name, GuardrailState())

    def with_guardrail(self, name: str, state: GuardrailState) -> "WaveState":
        return replace(self, guardrails={**self.guardrails, name: state})

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": 1,
            "guardrails": {name: state.to_dict() for name, state in self.guardrails.items()},
            "as_of_seconds": self.as_of_seconds,
            "reached": self.reached,
            "heard_seconds": {kind: _pack_times(at) for kind, at in self.heard_seconds.items()},
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "WaveState":
        if stored.get("version") != 1:
            raise InvalidState(f"a stored wave state has version 1: got {stored.get('version')!r}")
        return cls(
            guardrails={
                name: GuardrailState.from_dict(state)
                for name, state in stored["guardrails"].items()
            },
            as_of_seconds=stored["as_of_seconds"],
            reached=stored["reached"],
            heard_seconds={kind: _unpack_times(s) for kind, s in stored["heard_seconds"].items()},
        )


def _pack(state: CrossingState | None) -> str | None:
    return None if state is None else base64.b64encode(state.to_bytes()).decode("ascii")


def _unpack(stored: str | None) -> CrossingState | None:
    return None if stored is None else CrossingState.from_bytes(base64.b64decode(stored))


def _pack_times(times: FloatArray) -> str:
    return base64.b64encode(zlib.compress(times.astype("<f8").tobytes())).decode("ascii")


def _unpack_times(stored: str) -> FloatArray:
    return np.frombuffer(zlib.decompress(base64.b64decode(stored)), dtype="<f8").astype(np.float64)
