"""What an attempt asks of the outside; no answer is silence, and silence has its deadline.

Never called inside a transaction. An adapter that cannot reach its system raises `OSError` (a
`ConnectionError`, a `TimeoutError`) or `AdapterFailed`; the attempt then waits as it does for a
machine that does not answer, and asks again until the deadline of its step. What was raised is
told by its class only: messages of clients may quote addresses and passwords.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from fleet import adapters
from fleet.adapters import Occupancy, Progress, Reading, Snapshot, Step, Target
from fleet.errors import AdapterFailed
from rollouts.models import Attempt

logger = logging.getLogger(__name__)

_SILENCE = (OSError, AdapterFailed)
_TARGET = ("kind", "version", "activation", "slot")


def drain(attempt: Attempt, *, now: datetime) -> Occupancy:
    """Keep new work away and tell what still runs; a silent scheduler counts as work."""
    name = attempt.machine.name
    try:
        return adapters.scheduler().drain(name, reason=attempt.rollout.actor, now=now)
    except _SILENCE as error:
        _log(attempt, "scheduler", error)
        return Occupancy(is_idle=False)


def keep_away(attempt: Attempt, *, now: datetime) -> bool:
    """Keep new work away under the rollout's own reason, and tell whether that was taken."""
    try:
        adapters.scheduler().drain(attempt.machine.name, reason=attempt.rollout.actor, now=now)
    except _SILENCE as error:
        _log(attempt, "scheduler", error)
        return False
    return True


def release(attempt: Attempt, *, now: datetime) -> bool:
    """Lift the rollout's own drain, and tell whether that was done."""
    try:
        adapters.scheduler().release(attempt.machine.name, reason=attempt.rollout.actor, now=now)
    except _SILENCE as error:
        _log(attempt, "scheduler", error)
        return False
    return True


def apply(
    attempt: Attempt,
    step: Step,
    targets: Sequence[Mapping[str, Any]],
    *,
    part: str,
    is_ours: bool,
    now: datetime,
) -> Progress | None:
    """Order a step, or only ask how far it is where the machine is no longer the attempt's.

    The key is the attempt's own, so asking again never flashes twice. `part` names the image or
    the leg that the step is for. None if the installer does not answer.
    """
    name, key = attempt.machine.name, f"attempt-{attempt.pk}.{step}.{part}"
    try:
        installer = adapters.installer()
        if not is_ours:
            return installer.progress(name, key=key, now=now)
        return installer.apply(name, step, [_target(one) for one in targets], key=key, now=now)
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


def snapshot(attempt: Attempt, *, now: datetime) -> Snapshot | None:
    """Look at what the BMC shows of itself; None if it does not answer."""
    try:
        return adapters.installer().snapshot(attempt.machine.name, now=now)
    except _SILENCE as error:
        _log(attempt, "installer", error)
        return None


def _target(document: Mapping[str, Any]) -> Target:
    return Target(**{name: document[name] for name in _TARGET if name in document})


def _log(attempt: Attempt, door: str, error: Exception) -> None:
    logger.warning("attempt=%s the %s did not answer: %s", attempt.pk, door, _name(error))


def _name(error: Exception) -> str:
    return type(error).__name__
