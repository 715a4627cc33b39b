"""What the fleet may ask of open rollouts: a machine's arms, and which machines are canaries."""

from collections.abc import Iterable, Iterator
from typing import Any

from django.db.models import QuerySet

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
