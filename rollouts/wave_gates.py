"""Reads: the firmware gates of a rollout's waves, and who answers for them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db.models import Count

from fleet.models import Gate
from fleet.repair.gating import UNFINISHED, Status
from rollouts.models import Rollout, Wave

MOST_NAMED = 50


@dataclass
class WaveGates:
    """The gates of one wave: how many stand where, and which still lack a check."""

    wave: Wave
    made_for: str
    counts: Counter[str] = field(default_factory=Counter)
    lacking: list[Gate] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def standings(self) -> list[tuple[str, int]]:
        """Statuses and how many gates stand in them; a page would read `counts.items` as a key."""
        return sorted(self.counts.items())

    @property
    def waiting(self) -> int:
        return self.counts[Status.AWAITING_REVIEW]

    @property
    def is_ready(self) -> bool:
        """Whether a review can accept them: some wait for it, and none lacks a check."""
        return self.waiting > 0 and not self.counts[Status.OPEN]


def made_for(*, rollout: int, wave: int) -> str:
    """Return under which name a wave's gates are found.

    Examples
    --------
    >>> made_for(rollout=7, wave=1)
    'rollout:7/wave:1'
    """
    return f"rollout:{rollout}/wave:{wave}"


def owners_of(rollout: Rollout) -> Sequence[int]:
    """Return who answers for a rollout, and so reviews its gates: its author and its approver."""
    return [pk for pk in (rollout.author_id, rollout.approver_id) if pk is not None]


def wave_gates(rollout: Rollout) -> list[WaveGates]:
    """Return the gates of each wave that has any; few statements, whatever the machines."""
    by_name = {
        made_for(rollout=rollout.pk, wave=wave.number): wave
        for wave in rollout.waves.order_by("number")
    }
    found = {name: WaveGates(wave, name) for name, wave in by_name.items()}
    own = Gate.objects.filter(made_for__in=by_name)
    for name, status, count in (
        own.order_by().values_list("made_for", "status").annotate(Count("pk"))
    ):
        found[name].counts[status] = count
    lacking = own.filter(status=Status.OPEN).select_related("machine").order_by("pk")
    for gate in lacking[:MOST_NAMED]:
        found[gate.made_for].lacking.append(gate)
    return [one for one in found.values() if one.total]


def unreviewed(rollout: Rollout) -> int:
    """Return how many of a rollout's gates nobody has reviewed yet."""
    numbers = rollout.waves.values_list("number", flat=True)
    names = [made_for(rollout=rollout.pk, wave=number) for number in numbers]
    return Gate.objects.filter(made_for__in=names, status__in=UNFINISHED).count()
