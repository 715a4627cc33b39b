"""Take over which machines somebody else has drained at the scheduler: each is a cordon of theirs.

Such a cordon stands as long as the scheduler lists the drain, and is lifted here only, once it is
gone: so a machine that another person holds is neither picked, nor called ready for work.
"""

from collections.abc import Sequence
from datetime import datetime

from fleet.adapters import ForeignDrain
from fleet.bulk import batches
from fleet.models import Cordon, Machine
from fleet.services.lifecycle import cordon, lift_cordon

#: How the owner of a cordon begins that stands for a drain by somebody else.
AT_SCHEDULER = "scheduler:"
_LOOK_UP = 1000


def record_foreign_drains(drains: Sequence[ForeignDrain], *, now: datetime) -> int:
    """Make the whole list of foreign drains the cordons that stand; return how many changed.

    Safe to repeat: a drain that stands already, and one that is gone, change nothing. A name that
    is no machine's scheduler node, nor its name, is left out.
    """
    wanted = {(drain.machine, _owner(drain), _reason(drain)): drain for drain in drains}
    changed = 0
    standing = Cordon.objects.filter(owner__startswith=AT_SCHEDULER, lifted_at=None)
    for row in standing.select_related("machine").order_by("machine"):
        node = row.machine.scheduler_node or row.machine.name
        if wanted.pop((node, row.owner, row.reason), None) is None:
            lift_cordon(row, owner=row.owner, now=max(now, row.since))
            changed += 1
    machines = _machines([drain.machine for drain in wanted.values()])
    for (node, owner, reason), drain in sorted(wanted.items(), key=lambda item: item[0]):
        if node in machines:
            since = min(drain.since or now, now)
            cordon(machines[node], owner=owner, reason=reason, now=since)
            changed += 1
    return changed


def _owner(drain: ForeignDrain) -> str:
    return f"{AT_SCHEDULER}{drain.owner or 'unknown'}"[:100]


def _reason(drain: ForeignDrain) -> str:
    return (drain.reason or "no reason given")[:300]


def _machines(nodes: Sequence[str]) -> dict[str, Machine]:
    found: dict[str, Machine] = {}
    for some in batches(sorted(set(nodes)), size=_LOOK_UP):
        named = Machine.objects.filter(name__in=some, scheduler_node="")
        found |= {machine.name: machine for machine in named}
        placed = Machine.objects.filter(scheduler_node__in=some)
        found |= {machine.scheduler_node: machine for machine in placed}
    return found
