"""Who of a block's waiting attempts may start now within the caps, and what keeps the others.

One answer for the step that starts them and for everybody who asks why nothing moves.
"""

from django.db.models import Count, Q

from fleet.lifecycle import State
from fleet.models import Machine
from rollouts import planning
from rollouts.lifecycle import IN_FLIGHT, WAITING
from rollouts.models import Attempt, Block

#: Most waiting attempts that one step considers.
MOST_AT_ONCE = 1000


def ready_attempts(block: Block, *, epoch: int) -> list[Attempt]:
    """Return the waiting attempts whose machine is in service and may take work, in order."""
    return list(
        Attempt.objects.filter(
            block=block,
            epoch=epoch,
            status__in=WAITING,
            machine__state=State.IN_SERVICE,
            machine__may_take_work=True,
        )
        .select_related("machine")
        .order_by("pk")[:MOST_AT_ONCE]
    )


def startable(block: Block, ready: list[Attempt]) -> planning.Startable:
    """Return which of these may start, and the cap that keeps each of the others."""
    if not ready:
        return planning.Startable(start=(), waiting={}, blocked=())
    in_flight = Attempt.objects.filter(status__in=IN_FLIGHT).select_related("machine")
    return planning.startable(
        [_candidate(attempt.machine) for attempt in ready],
        in_flight=[_candidate(attempt.machine) for attempt in in_flight],
        pools=_pools({attempt.machine.pool for attempt in ready}),
        caps=planning.Caps.of(block.wave.rollout.plan["caps"]),
    )


def _candidate(machine: Machine) -> planning.Candidate:
    return planning.Candidate(
        name=machine.name,
        domains={
            "rack": machine.rack,
            "chassis": machine.chassis,
            "power_domain": machine.power_domain,
            "nvlink_domain": machine.nvlink_domain,
            "leaf": machine.leaf,
            "pool": machine.pool,
            "site": machine.site,
        },
    )


def _pools(names: set[str]) -> dict[str, planning.Pool]:
    """Return each pool's size and how many of its machines may not take work."""
    rows = (
        Machine.objects.filter(pool__in=names)
        .exclude(state=State.RETIRED)
        .order_by("pool")
        .values("pool")
        .annotate(size=Count("pk"), working=Count("pk", filter=Q(may_take_work=True)))
    )
    return {
        row["pool"]: planning.Pool(size=row["size"], unavailable=row["size"] - row["working"])
        for row in rows
    }
