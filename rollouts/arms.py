"""What the fleet may ask of open rollouts: a machine's arms, and which machines are canaries."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from fleet.adapters import Arm
from rollouts.lifecycle import Status
from rollouts.models import Assignment, Membership, Rollout

#: A rollout in these has put its bundle on some machines and may put it on more.
OPEN = (Status.RUNNING, Status.PAUSED, Status.HALTED)


class OpenArms:
    """Reads the assignments of rollouts that are open; roll backs are not among them."""

    def of(self, machine: int) -> list[Arm]:
        rows = _open().filter(machine=machine).exclude(wave=None, exclusion__isnull=False)
        return list(_arms(rows.select_related("rollout").order_by("-rollout"), machine))

    def at(self, machine: int, time: datetime) -> list[Arm]:
        """Tell it as it was: waves that had begun, of rollouts that had not ended."""
        rows = (
            Membership.objects.filter(
                Q(wave__rollout__finished_at=None) | Q(wave__rollout__finished_at__gt=time),
                machine=machine,
                wave__started_at__lte=time,
                wave__rollout__kind=Rollout.Kind.UPDATE,
            )
            .select_related("wave__rollout__bundle")
            .order_by("-wave__rollout", "-wave__number")
        )
        newest: dict[int, Membership] = {}
        for row in rows:
            newest.setdefault(row.wave.rollout_id, row)
        return [_arm_at(row, time=time) for row in newest.values()]

    def canaries(self) -> QuerySet[Assignment, Any]:
        return _open().filter(wave__isnull=False).values("machine")


def _open() -> QuerySet[Assignment]:
    return Assignment.objects.filter(rollout__kind=Rollout.Kind.UPDATE, rollout__status__in=OPEN)


def _arms(rows: Iterable[Assignment], machine: int) -> Iterator[Arm]:
    for row in rows:
        bundle = row.rollout.bundle
        is_treated = row.wave_id is not None
        arms = Membership.objects.filter(
            machine=machine,
            wave__rollout=row.rollout_id,
            wave__started_at__isnull=False,
            wave__finished_at__isnull=True,
        )
        arm = arms.order_by("-wave__number").values_list("arm", flat=True).first()
        yield Arm(
            rollout=row.rollout_id,
            name=row.rollout.name,
            arm=arm or ("treated" if is_treated else "queued"),
            new=bundle.pk,
            bundle=bundle.pk if is_treated else None,
            kinds=frozenset(bundle.images.values_list("kind", flat=True)),
            is_compared=arm is not None,
        )


def _arm_at(row: Membership, *, time: datetime) -> Arm:
    """Return the place that a wave's roster gave: compared until the wave ended, treated after."""
    rollout, finished = row.wave.rollout, row.wave.finished_at
    is_canary = row.arm == Membership.Arm.CANARY
    is_compared = finished is None or finished > time
    return Arm(
        rollout=rollout.pk,
        name=rollout.name,
        arm=row.arm if is_compared else ("treated" if is_canary else "queued"),
        new=rollout.bundle_id,
        bundle=rollout.bundle_id if is_canary else None,
        kinds=frozenset(rollout.bundle.images.values_list("kind", flat=True)),
        is_compared=is_compared,
    )
