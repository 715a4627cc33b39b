"""What becomes of one step of an install on a virtual machine: outcome and instants. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from simulation.fleet_model import Profile
from simulation.parameters import ACTIVATION_FAILURES, STAGE_FAILURES, Parameters
from simulation.streams import Purpose, stream


class Outcome(StrEnum):
    """How a step ends. Only `staged` and `installed` are what was asked for."""

    STAGED = "staged"
    INSTALLED = "installed"
    REJECTED = "rejected"
    FAILED = "failed"
    BUSY = "busy"
    STALLED = "stalled"
    WRONG_VERSION = "wrong_version"
    PARTIAL = "partial"
    FELL_BACK = "fell_back"
    NEVER_RETURNED = "never_returned"
    BRICKED = "bricked"
    NEEDS_AC_CYCLE = "needs_ac_cycle"
    LOST_BMC = "lost_bmc"
    DISPUTED = "disputed"


@dataclass(frozen=True)
class Staging:
    """When an image is written; `busy` ones are taken only after a while, `stalled` ones never."""

    outcome: Outcome
    staged_at: datetime


@dataclass(frozen=True)
class Timeline:
    """The instants of one activation, all fixed when it is ordered.

    `down_at` and `up_at` bound the reboot; `up_at` is empty where the machine does not come back
    by itself. `by_hand_at` is when a technician would have power-cycled it, `is_repaired_by_hand`
    whether that helps.
    """

    outcome: Outcome
    down_at: datetime
    up_at: datetime | None
    fell_back_at: datetime | None
    by_hand_at: datetime | None
    is_repaired_by_hand: bool


def staging(
    *, seed: int, machine: int, ordinal: int, image: Profile, parameters: Parameters, now: datetime
) -> Staging:
    """Draw how the writing of one image goes; `image` is the profile of that image alone."""
    rng = stream(seed, Purpose.STAGING, machine, ordinal)
    outcome = _drawn(rng.random(), image, STAGE_FAILURES) or Outcome.STAGED
    minutes = parameters.staging_minutes * rng.lognormal(0.0, 0.15)
    if outcome is Outcome.BUSY:
        minutes += parameters.busy_minutes
    return Staging(outcome, now + timedelta(minutes=minutes))


def timeline(
    *,
    seed: int,
    machine: int,
    ordinal: int,
    after: Profile,
    parameters: Parameters,
    is_ac_cycle: bool,
    now: datetime,
) -> Timeline:
    """Draw an activation's fate: a function of the seed, the machine and its activations before.

    `after` is the profile of the firmware that is to run: bad installs are its doing.
    """
    rng = stream(seed, Purpose.INSTALL, machine, ordinal)
    marks = rng.random(4)
    outcome = _drawn(marks[0], after, ACTIVATION_FAILURES)
    if outcome is Outcome.NEEDS_AC_CYCLE and is_ac_cycle:
        outcome = None
    if outcome is None:
        is_gone = marks[1] < after.non_return
        outcome = Outcome.NEVER_RETURNED if is_gone else Outcome.INSTALLED
    spread = rng.lognormal(0.0, 0.15, 4)
    down_at = now + timedelta(minutes=parameters.activation_minutes * spread[1])
    up_at = down_at + timedelta(minutes=parameters.reboot_minutes * spread[2])
    if outcome in (Outcome.NEVER_RETURNED, Outcome.BRICKED):
        by_hand_at = up_at + timedelta(minutes=parameters.technician_minutes * spread[3])
        helps = outcome is Outcome.NEVER_RETURNED and marks[2] < parameters.return_by_hand
        return Timeline(outcome, down_at, None, None, by_hand_at, bool(helps))
    falls = up_at + timedelta(minutes=45) if outcome is Outcome.FELL_BACK else None
    return Timeline(outcome, down_at, up_at, falls, None, False)


def _drawn(mark: float, profile: Profile, names: tuple[str, ...]) -> Outcome | None:
    edge = 0.0
    for name in names:
        edge += profile.failures.get(name, 0.0)
        if mark < edge:
            return Outcome(name)
    return None
