"""The firmware gate of a machine that a rollout gives back: made of what was read back."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from fleet import services as fleet
from fleet.adapters import Reading
from fleet.models import Gate
from fleet.repair.gating import Computed
from rollouts.models import Attempt, Rollout
from rollouts.services.attempts import readback
from rollouts.wave_gates import made_for


def open_gate(attempt: Attempt, readings: Sequence[Reading], *, what: str, now: datetime) -> Gate:
    """Open the gate of the attempt's machine: what was read is what it has shown.

    It holds nothing up: the machine works, and the wave's gates are reviewed together.
    """
    rollout = attempt.rollout
    is_update = rollout.kind == Rollout.Kind.UPDATE and what == "intended"
    return fleet.open_firmware_gate(
        attempt.machine,
        made_for=made_for(rollout=rollout.pk, wave=attempt.wave.number),
        bundle=rollout.bundle if is_update else None,
        why=f"attempt {attempt.pk} of {rollout.name} read the {what} versions back",
        found=_found(attempt, readings, what=what),
        is_smoke=attempt.wave.allows_smoke,
        actor=rollout.actor,
        now=now,
    )


def _found(
    attempt: Attempt, readings: Sequence[Reading], *, what: str
) -> Mapping[Computed, fleet.Found]:
    """Say what the attempt found: it ended well, so nothing is wrong with any of it."""
    witnesses = sorted({one.witness for one in readback.active(readings)})
    times = attempt.readings
    read = ", ".join(f"{part} {held}" for part, held in readback.versions_by_part(readings).items())
    found = {
        Computed.VERSIONS: fleet.Found(
            0.0, f"the {what} versions, {times} times by {' and '.join(witnesses)}: {read}"
        ),
        Computed.PARTS: fleet.Found(0.0, "every part and witness that answered before answers"),
        Computed.FAULTS: fleet.Found(0.0, "none since the gate opened"),
    }
    boot = readback.boot_id(readings)
    if attempt.boot_id_before and boot and boot != attempt.boot_id_before:
        said = f"boot {attempt.boot_id_before} before, {boot} since"
        found[Computed.BOOTS] = fleet.Found(1.0, said)
    return found
