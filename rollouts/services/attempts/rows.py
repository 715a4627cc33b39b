"""What an attempt's row says of its images and its time, and how it is written.

What has been done per image stands in `Attempt.steps`: positions `staged`, `activated` and
`committed`; what answered `before`; and, once some images took and others did not, how that is
`mending`.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from fleet import lifecycle as machine_lifecycle
from fleet import services as fleet
from fleet.adapters import Reading
from fleet.lifecycle import State
from fleet.models import Gate
from rollouts import planning
from rollouts.lifecycle import Status
from rollouts.models import Attempt, Rollout
from rollouts.services.attempts import readback
from rollouts.services.records import minutes_of

logger = logging.getLogger(__name__)


def may_write(attempt: Attempt, rollout: Rollout) -> bool:
    """Tell whether the attempt may begin to write: its rollout runs, and no halt came between."""
    return rollout.epoch == attempt.epoch and rollout.status == Status.RUNNING


def may_come_back(attempt: Attempt, rollout: Rollout) -> bool:
    """Tell whether an attempt that is given up now may be started another time."""
    return rollout.epoch == attempt.epoch and rollout.status in (Status.RUNNING, Status.PAUSED)


def mended(attempt: Attempt) -> str:
    """Say what was done about images that had not taken."""
    return f"partial: {attempt.steps['partial']}; {attempt.steps['mending']} was tried"


def is_overdue(attempt: Attempt, now: datetime) -> bool:
    """Tell whether the deadline of the present step is over."""
    return attempt.deadline_at is not None and now >= attempt.deadline_at


def staged_only(attempt: Attempt) -> str:
    """Name what is staged and not activated: any reboot may activate it. Empty if nothing is."""
    staged = images_at(attempt, done_so_far(attempt, "staged"))
    names = ", ".join(f"{target['kind']} {target['version']}" for target in staged)
    return f"; staged, not activated: {names}" if names else ""


def targets_of(attempt: Attempt) -> list[dict[str, Any]]:
    """Return what the attempt is to bring the machine to now: the images, or what reverts them."""
    return list(attempt.steps.get("instead") or attempt.targets)


def images_at(attempt: Attempt, positions: Sequence[int]) -> list[dict[str, Any]]:
    """Return the images at these positions of the bundle's order."""
    targets = targets_of(attempt)
    return [targets[at] for at in positions]


def done_so_far(attempt: Attempt, what: str) -> list[int]:
    """Return the positions of the images that are staged, activated or committed by now."""
    return list(attempt.steps.get(what, ()))


def present_leg(attempt: Attempt) -> list[int]:
    """Return the positions of the first leg that is not committed; the last one if all are."""
    legs = planning.legs(targets_of(attempt))
    committed = set(done_so_far(attempt, "committed"))
    return next((leg for leg in legs if not committed.issuperset(leg)), legs[-1])


def is_activated(attempt: Attempt, leg: Sequence[int]) -> bool:
    """Tell whether the whole leg has been activated."""
    return set(done_so_far(attempt, "activated")).issuperset(leg)


def mark(attempt: Attempt, what: str, positions: Sequence[int], **fields: Any) -> None:
    """Write down that these images have got so far."""
    done = sorted({*done_so_far(attempt, what), *positions})
    write_steps(attempt, {**attempt.steps, what: done}, **fields)


def write_steps(attempt: Attempt, steps: dict[str, Any], **fields: Any) -> None:
    """Keep the steps in the row while it stands as it was read, and in the instance."""
    Attempt.objects.filter(pk=attempt.pk, status=attempt.status).update(steps=steps, **fields)
    attempt.steps = steps
    for name, value in fields.items():
        setattr(attempt, name, value)


def step_deadline(attempt: Attempt, leg: Sequence[int], now: datetime) -> datetime:
    """Return by when the present step must be done: its image's time, within that of the plan."""
    install_by = datetime.fromisoformat(attempt.steps["install_by"])
    images = images_at(attempt, leg)
    minutes = [image["timeout_minutes"] for image in images if "timeout_minutes" in image]
    return min(install_by, now + timedelta(minutes=max(minutes))) if minutes else install_by


def return_by(attempt: Attempt, leg: Sequence[int], now: datetime) -> datetime:
    """Return by when a machine must be back; what is done by hand has its image's time as well."""
    usual = now + minutes_of(attempt.rollout, "return_timeout_minutes")
    if not planning.is_by_hand(images_at(attempt, leg)):
        return usual
    hands = [target.get("timeout_minutes", 0) for target in images_at(attempt, leg)]
    return usual + timedelta(minutes=max(hands))


def has_machine(attempt: Attempt) -> bool:
    """Tell whether the machine still is in the attempt's hands."""
    return attempt.machine.state in (State.DRAINING, State.UPDATING, State.VERIFYING)


def wrong_in(attempt: Attempt, readings: Sequence[Reading]) -> dict[int, str]:
    """Return, by position, what the machine runs instead of what the attempt is to bring."""
    return wrong_of(attempt, targets_of(attempt), readings)


def wrong_of(
    attempt: Attempt, targets: Sequence[Mapping[str, Any]], readings: Sequence[Reading]
) -> dict[int, str]:
    """Return the same for images that are not, or not yet, the attempt\'s own."""
    places = attempt.rollout.bundle.places
    schemes = dict(places.values_list("image__kind", "image__scheme"))
    return readback.wrong_positions(targets, readings, schemes=schemes)


def record_readings(attempt: Attempt, readings: Sequence[Reading], now: datetime) -> None:
    """Write what was read into the version history of the machine."""
    if readings:
        fleet.record_readings(attempt.machine, readings, now=now, evidence={"attempt": attempt.pk})


def move_machine(
    attempt: Attempt,
    trigger: machine_lifecycle.Trigger,
    now: datetime,
    *,
    gate: str = "",
    gate_record: Gate | None = None,
    reason: str = "",
) -> None:
    """Move the machine, unless somebody has taken it out of the rollout's hands.

    The attempt then goes on without it: what was begun is read back, and stays where it was put.
    """
    machine = attempt.machine
    if (State(machine.state), trigger) not in machine_lifecycle.TRANSITIONS:
        logger.info("attempt=%s leaves %s where it is: %s", attempt.pk, machine, machine.state)
        return
    fleet.move_machine(
        machine,
        trigger,
        actor=attempt.rollout.actor,
        now=now,
        gate=gate[:200],
        gate_record=gate_record,
        reason=reason or f"attempt {attempt.pk}",
    )
