"""What becomes of one install on one virtual machine: an outcome and its instants. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from simulation.fleet_model import Profile
from simulation.parameters import FAILURES, Parameters
from simulation.streams import Purpose, stream


class Outcome(StrEnum):
    """How an install ends. Only `installed` is what was asked for."""

    INSTALLED = "installed"
    REJECTED = "rejected"
    FAILED = "failed"
    WRONG_VERSION = "wrong_version"
    PARTIAL = "partial"
    FELL_BACK = "fell_back"
    NEVER_RETURNED = "never_returned"
    BRICKED = "bricked"


@dataclass(frozen=True)
class Timeline:
    """The instants of one order, all fixed when it is taken.

    `down_at` and `up_at` bound the reboot; both are empty where the order never gets that far,
    and `up_at` is empty where the machine does not come back by itself. `by_hand_at` is when a
    technician would have power-cycled it, `is_repaired_by_hand` whether that helps.
    """

    outcome: Outcome
    staged_at: datetime
    down_at: datetime | None
    up_at: datetime | None
    fell_back_at: datetime | None
    by_hand_at: datetime | None
    is_repaired_by_hand: bool


def timeline(
    *,
    seed: int,
    machine: int,
    ordinal: int,
    after: Profile,
    parameters: Parameters,
    now: datetime,
) -> Timeline:
    """Draw an order's fate: a function of the seed, the machine and its number of orders before.

    `after` is the profile of the firmware that is to be installed: bad installs are its doing.
    """
    rng = stream(seed, Purpose.INSTALL, machine, ordinal)
    marks = rng.random(4)
    outcome = _outcome(marks[0], marks[1], after)
    spread = rng.lognormal(0.0, 0.15, 4)
    staged_at = now + timedelta(minutes=parameters.staging_minutes * spread[0])
    if outcome in (Outcome.REJECTED, Outcome.FAILED):
        return Timeline(outcome, staged_at, None, None, None, None, False)
    down_at = staged_at + timedelta(minutes=parameters.activation_minutes * spread[1])
    up_at = down_at + timedelta(minutes=parameters.reboot_minutes * spread[2])
    if outcome in (Outcome.NEVER_RETURNED, Outcome.BRICKED):
        by_hand_at = up_at + timedelta(minutes=parameters.technician_minutes * spread[3])
        helps = outcome is Outcome.NEVER_RETURNED and marks[2] < parameters.return_by_hand
        return Timeline(outcome, staged_at, down_at, None, None, by_hand_at, bool(helps))
    falls = up_at + timedelta(minutes=45) if outcome is Outcome.FELL_BACK else None
    return Timeline(outcome, staged_at, down_at, up_at, falls, None, False)


def _outcome(failure_mark: float, return_mark: float, after: Profile) -> Outcome:
    edge = 0.0
    for name in FAILURES:
        edge += after.failures.get(name, 0.0)
        if failure_mark < edge:
            return Outcome(name)
    return Outcome.NEVER_RETURNED if return_mark < after.non_return else Outcome.INSTALLED
