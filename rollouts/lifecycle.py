"""The state machines of a rollout, a wave and an attempt: one table each. Pure."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum

from rollouts.errors import IllegalTransition


class Status(StrEnum):
    """Where a rollout stands."""

    DRAFT = "draft"
    AWAITING_APPROVAL = "awaiting_approval"
    APPROVED = "approved"
    RUNNING = "running"
    PAUSED = "paused"
    HALTED = "halted"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class Trigger(StrEnum):
    """What moves a rollout; a person's order or the engine's decision."""

    SUBMIT = "submit"
    APPROVE = "approve"
    DENY = "deny"
    EXPIRE = "expire"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    HALT = "halt"
    OVERRIDE = "override"
    ROLL_BACK = "roll_back"
    FINISH_ROLL_BACK = "finish_roll_back"
    COMPLETE = "complete"
    CANCEL = "cancel"


TRANSITIONS: Mapping[tuple[Status, Trigger], Status] = {
    (Status.DRAFT, Trigger.SUBMIT): Status.AWAITING_APPROVAL,
    (Status.DRAFT, Trigger.CANCEL): Status.CANCELLED,
    (Status.AWAITING_APPROVAL, Trigger.APPROVE): Status.APPROVED,
    (Status.AWAITING_APPROVAL, Trigger.DENY): Status.DRAFT,
    (Status.AWAITING_APPROVAL, Trigger.CANCEL): Status.CANCELLED,
    (Status.APPROVED, Trigger.START): Status.RUNNING,
    (Status.APPROVED, Trigger.EXPIRE): Status.AWAITING_APPROVAL,
    (Status.APPROVED, Trigger.CANCEL): Status.CANCELLED,
    (Status.RUNNING, Trigger.PAUSE): Status.PAUSED,
    (Status.RUNNING, Trigger.HALT): Status.HALTED,
    (Status.RUNNING, Trigger.COMPLETE): Status.COMPLETED,
    (Status.RUNNING, Trigger.CANCEL): Status.CANCELLED,
    (Status.PAUSED, Trigger.RESUME): Status.RUNNING,
    (Status.PAUSED, Trigger.HALT): Status.HALTED,
    (Status.PAUSED, Trigger.ROLL_BACK): Status.ROLLING_BACK,
    (Status.PAUSED, Trigger.CANCEL): Status.CANCELLED,
    (Status.HALTED, Trigger.OVERRIDE): Status.PAUSED,
    (Status.HALTED, Trigger.ROLL_BACK): Status.ROLLING_BACK,
    (Status.HALTED, Trigger.CANCEL): Status.CANCELLED,
    (Status.ROLLING_BACK, Trigger.HALT): Status.HALTED,
    (Status.ROLLING_BACK, Trigger.FINISH_ROLL_BACK): Status.ROLLED_BACK,
    (Status.COMPLETED, Trigger.ROLL_BACK): Status.ROLLING_BACK,
}


class WaveStatus(StrEnum):
    """Where a wave stands."""

    PENDING = "pending"
    INSTALLING = "installing"
    SETTLING = "settling"
    OBSERVING = "observing"
    WIDENED = "widened"
    HELD = "held"
    HALTED = "halted"
    SKIPPED = "skipped"


class WaveTrigger(StrEnum):
    """What moves a wave."""

    START = "start"
    INSTALLED = "installed"
    SETTLED = "settled"
    WIDEN = "widen"
    HOLD = "hold"
    ADVANCE = "advance"
    HALT = "halt"
    SKIP = "skip"
    REOPEN = "reopen"


WAVE_TRANSITIONS: Mapping[tuple[WaveStatus, WaveTrigger], WaveStatus] = {
    (WaveStatus.PENDING, WaveTrigger.START): WaveStatus.INSTALLING,
    (WaveStatus.PENDING, WaveTrigger.SKIP): WaveStatus.SKIPPED,
    (WaveStatus.INSTALLING, WaveTrigger.INSTALLED): WaveStatus.SETTLING,
    (WaveStatus.SETTLING, WaveTrigger.SETTLED): WaveStatus.OBSERVING,
    # The release wave is not judged: it is over when its installs are.
    (WaveStatus.SETTLING, WaveTrigger.WIDEN): WaveStatus.WIDENED,
    (WaveStatus.OBSERVING, WaveTrigger.WIDEN): WaveStatus.WIDENED,
    (WaveStatus.OBSERVING, WaveTrigger.HOLD): WaveStatus.HELD,
    (WaveStatus.HELD, WaveTrigger.ADVANCE): WaveStatus.WIDENED,
    (WaveStatus.OBSERVING, WaveTrigger.ADVANCE): WaveStatus.WIDENED,
    (WaveStatus.OBSERVING, WaveTrigger.SKIP): WaveStatus.SKIPPED,
    (WaveStatus.HELD, WaveTrigger.SKIP): WaveStatus.SKIPPED,
    **{
        (status, WaveTrigger.HALT): WaveStatus.HALTED
        for status in (
            WaveStatus.INSTALLING,
            WaveStatus.SETTLING,
            WaveStatus.OBSERVING,
            WaveStatus.HELD,
        )
    },
    # After an override installing goes on, and a new window opens on data from then on.
    (WaveStatus.HALTED, WaveTrigger.REOPEN): WaveStatus.INSTALLING,
}

#: Where the rollout has to stand for its wave to move: a halt stops every wave that is open.
WAVE_MOVES_WHILE: Mapping[WaveTrigger, frozenset[Status]] = {
    WaveTrigger.START: frozenset({Status.RUNNING}),
    WaveTrigger.INSTALLED: frozenset({Status.RUNNING}),
    WaveTrigger.SETTLED: frozenset({Status.RUNNING}),
    WaveTrigger.WIDEN: frozenset({Status.RUNNING}),
    WaveTrigger.HOLD: frozenset({Status.RUNNING}),
    WaveTrigger.ADVANCE: frozenset({Status.RUNNING, Status.PAUSED}),
    WaveTrigger.SKIP: frozenset({Status.RUNNING, Status.PAUSED}),
    WaveTrigger.HALT: frozenset({Status.HALTED}),
    WaveTrigger.REOPEN: frozenset({Status.PAUSED}),
}


#: How long a state may wait for a person before somebody is reminded of it, and again each time.
#: The engine's own waits have ends of their own: a window, a burn-in, the deadline of a step.
PATIENCE: Mapping[Status, timedelta] = {
    Status.DRAFT: timedelta(days=30),
    Status.AWAITING_APPROVAL: timedelta(days=2),
    Status.APPROVED: timedelta(days=2),
    Status.PAUSED: timedelta(days=1),
    Status.HALTED: timedelta(days=1),
    Status.ROLLING_BACK: timedelta(days=1),
}

#: The same for a wave: whose start was refused, whose installs wait, whose widen is only advised.
WAVE_PATIENCE: Mapping[WaveStatus, timedelta] = {
    WaveStatus.PENDING: timedelta(days=1),
    WaveStatus.INSTALLING: timedelta(days=3),
    WaveStatus.OBSERVING: timedelta(days=1),
    WaveStatus.HELD: timedelta(days=1),
}


class AttemptStatus(StrEnum):
    """Where one try on one machine stands."""

    QUEUED = "queued"
    DEFERRED = "deferred"
    DRAINING = "draining"
    STAGING = "staging"
    ACTIVATING = "activating"
    AWAITING_REBOOT = "awaiting_reboot"
    VERIFYING = "verifying"
    SUCCEEDED = "succeeded"
    REJECTED = "rejected"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    WRONG_VERSION = "wrong_version"
    PARTIAL = "partial"
    DEGRADED = "degraded"
    NEVER_RETURNED = "never_returned"
    FELL_BACK = "fell_back"
    UNKNOWN = "unknown"
    CALLED_OFF = "called_off"


#: Not yet touched: a halt calls these off.
WAITING = frozenset({AttemptStatus.QUEUED, AttemptStatus.DEFERRED})
#: Being worked on: followed to their end, whatever happens to the rollout.
IN_FLIGHT = frozenset(
    {
        AttemptStatus.DRAINING,
        AttemptStatus.STAGING,
        AttemptStatus.ACTIVATING,
        AttemptStatus.AWAITING_REBOOT,
        AttemptStatus.VERIFYING,
    }
)
#: Failure classes: every one of them counts against the install guardrail.
FAILURES = frozenset(
    {
        AttemptStatus.REJECTED,
        AttemptStatus.FAILED,
        AttemptStatus.TIMED_OUT,
        AttemptStatus.WRONG_VERSION,
        AttemptStatus.PARTIAL,
        AttemptStatus.DEGRADED,
        AttemptStatus.NEVER_RETURNED,
        AttemptStatus.FELL_BACK,
        AttemptStatus.UNKNOWN,
    }
)

ATTEMPT_TRANSITIONS: Mapping[AttemptStatus, frozenset[AttemptStatus]] = {
    AttemptStatus.QUEUED: frozenset(
        {AttemptStatus.DEFERRED, AttemptStatus.DRAINING, AttemptStatus.CALLED_OFF}
    ),
    AttemptStatus.DEFERRED: frozenset({AttemptStatus.DRAINING, AttemptStatus.CALLED_OFF}),
    AttemptStatus.DRAINING: frozenset(
        {AttemptStatus.STAGING, AttemptStatus.DEFERRED, AttemptStatus.CALLED_OFF}
    )
    | FAILURES - {AttemptStatus.FELL_BACK},
    # Called off while staging: somebody took the machine before anything was activated on it.
    AttemptStatus.STAGING: frozenset({AttemptStatus.ACTIVATING, AttemptStatus.CALLED_OFF})
    | FAILURES - {AttemptStatus.FELL_BACK},
    # From one leg of the bundle to the next, and from a partial install to its mending.
    AttemptStatus.ACTIVATING: frozenset(
        {
            AttemptStatus.AWAITING_REBOOT,
            AttemptStatus.VERIFYING,
            AttemptStatus.STAGING,
            AttemptStatus.CALLED_OFF,
        }
    )
    | FAILURES - {AttemptStatus.FELL_BACK},
    AttemptStatus.AWAITING_REBOOT: frozenset({AttemptStatus.VERIFYING, AttemptStatus.STAGING})
    | FAILURES - {AttemptStatus.FELL_BACK},
    AttemptStatus.VERIFYING: frozenset({AttemptStatus.SUCCEEDED, AttemptStatus.STAGING})
    | FAILURES - {AttemptStatus.FELL_BACK},
    AttemptStatus.SUCCEEDED: frozenset({AttemptStatus.FELL_BACK}),
}


def next_status(status: Status, trigger: Trigger) -> Status:
    """Return the status that `trigger` leads a rollout to.

    Raises
    ------
    IllegalTransition
        If the table has no such move; the message lists what is possible.

    Examples
    --------
    >>> next_status(Status.RUNNING, Trigger.HALT)
    <Status.HALTED: 'halted'>
    """
    try:
        return TRANSITIONS[status, trigger]
    except KeyError:
        possible = ", ".join(sorted(move for old, move in TRANSITIONS if old is status)) or "none"
        raise IllegalTransition(
            f"a rollout that is {status} cannot {trigger}; possible: {possible}"
        ) from None


def next_wave_status(status: WaveStatus, trigger: WaveTrigger) -> WaveStatus:
    """Return the status that `trigger` leads a wave to, or raise `IllegalTransition`."""
    try:
        return WAVE_TRANSITIONS[status, trigger]
    except KeyError:
        possible = (
            ", ".join(sorted(move for old, move in WAVE_TRANSITIONS if old is status)) or "none"
        )
        raise IllegalTransition(
            f"a wave that is {status} cannot {trigger}; possible: {possible}"
        ) from None


def check_attempt_move(old: AttemptStatus, new: AttemptStatus) -> None:
    """Raise `IllegalTransition` unless an attempt may go from `old` to `new`."""
    if new not in ATTEMPT_TRANSITIONS.get(old, frozenset()):
        raise IllegalTransition(f"an attempt that is {old} cannot become {new}")
