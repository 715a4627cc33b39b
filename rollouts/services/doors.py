"""What an attempt asks of the outside; no answer is silence, and silence has its deadline.

Never called inside a transaction. An adapter that cannot reach its system raises `OSError` (a
`ConnectionError`, a `TimeoutError`) or `AdapterFailed`; the attempt then waits as it does for a
machine that does not answer, and asks again until the deadline of its step. What was raised is
told by its class only: messages of clients may quote addresses and passwords.
"""

import logging
from collections.abc import Sequence
from datetime import datetime

from fleet import adapters
from fleet.adapters import Phase, Progress, Reading, Target
from fleet.errors import AdapterFailed
from rollouts.models import Attempt

logger = logging.getLogger(__name__)

_SILENCE = (OSError, AdapterFailed)


def drain(attempt: Attempt, *, now: datetime) -> bool:
    """Keep new work away and tell whether the old has ended; a silent scheduler has not said so."""
    name = attempt.machine.name
    try:
        scheduler = adapters.scheduler()
        scheduler.drain(name, reason=attempt.rollout.actor, now=now)
        return scheduler.is_idle(name, now=now)
    except _SILENCE as error:
        _log(attempt, "scheduler", error)
        return False


def release(attempt: Attempt, *, now: datetime) -> bool:
    """Lift the rollout's own drain, and tell whether that was done."""
    try:
        adapters.scheduler().release(attempt.machine.name, reason=attempt.rollout.actor, now=now)
    except _SILENCE as error:
        _log(attempt, "scheduler", error)
        return False
    return True


def apply(attempt: Attempt, *, now: datetime) -> Progress:
    """Order the install; the key is the attempt's own, so asking again never flashes twice."""
    try:
        return adapters.installer().apply(
            attempt.machine.name,
            [Target(**target) for target in attempt.targets],
            key=_key(attempt),
            now=now,
        )
    except _SILENCE as error:
        _log(attempt, "installer", error)
        return Progress(Phase.UNREACHABLE, f"the installer did not answer: {_name(error)}")


def progress(attempt: Attempt, *, now: datetime) -> Progress | None:
    """Ask how far the order has come; None if the installer does not say."""
    try:
        return adapters.installer().progress(attempt.machine.name, key=_key(attempt), now=now)
    except _SILENCE as error:
        _log(attempt, "installer", error)
        return None


def read_versions(attempt: Attempt, *, now: datetime) -> Sequence[Reading]:
    """Read what the machine runs; nothing if it does not answer."""
    try:
        return adapters.installer().read_versions(attempt.machine.name, now=now)
    except _SILENCE as error:
        _log(attempt, "installer", error)
        return ()


def _key(attempt: Attempt) -> str:
    return f"attempt-{attempt.pk}"


def _log(attempt: Attempt, door: str, error: Exception) -> None:
    logger.warning("attempt=%s the %s did not answer: %s", attempt.pk, door, _name(error))


def _name(error: Exception) -> str:
    return type(error).__name__
