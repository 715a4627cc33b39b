"""Machines that run the bundle already and stand where it activates more than one machine.

They are drained with the others of their activation domain, since they reboot with them, and are
given back as they were: nothing is written to them, and they are in no arm.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import QuerySet

from fleet.lifecycle import State
from fleet.models import Machine
from fleet.selectors import machines_matching, versions_now
from rollouts import headroom, selectors
from rollouts.models import Attempt, Rollout

Images = list[dict[str, Any]]


def companions(
    rollout: Rollout, machine_ids: Iterable[int], *, images: Images
) -> Mapping[int, Images]:
    """Return whom these machines' activation domains take along, each with what it runs."""
    field = headroom.activation_field(rollout)
    if not field:
        return {}
    treated = Machine.objects.filter(pk__in=machine_ids)
    values = set(treated.values_list(field, flat=True)) - {""}
    near = Machine.objects.filter(
        **{f"{field}__in": values}, state=State.IN_SERVICE, may_take_work=True
    ).exclude(pk__in=treated.values("pk"))
    if rollout.kind == Rollout.Kind.ROLL_BACK:
        return _taken_along_before(rollout, near)
    own = near.exclude(pk__in=rollout.assignments.values("machine"))
    on_target = _on_target(rollout, own)
    return dict.fromkeys(on_target, images)


def _on_target(rollout: Rollout, near: QuerySet[Machine]) -> frozenset[int]:
    """Return who is meant by the rollout's selector and runs all of its bundle."""
    meant = near.filter(
        pk__in=machines_matching(rollout.selector).values("pk"),
        platform__in=rollout.bundle.platforms.values("pk"),
    )
    kinds = selectors.kinds_of(rollout)
    versions = versions_now(list(meant.values_list("pk", flat=True)), kinds=kinds)
    return selectors.readiness_of(rollout.bundle, versions, plan=rollout.plan).current


def _taken_along_before(rollout: Rollout, near: QuerySet[Machine]) -> dict[int, Images]:
    """Return whom the rollout that is taken back had taken along: they keep what they run."""
    parent = rollout.parent
    if parent is None:
        return {}
    along = Attempt.objects.filter(rollout=parent, machine__in=near.values("pk"))
    along = along.exclude(machine__in=parent.assignments.values("machine"))
    return dict(along.order_by("number").values_list("machine_id", "targets"))
