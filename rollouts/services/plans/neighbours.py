"""Whom a bundle reboots besides the machines of the plan, where it activates more than one."""

from collections.abc import Mapping
from typing import Any

from fleet.lifecycle import State
from fleet.models import Machine
from rollouts import headroom
from rollouts.services.plans.population import MOST_NAMED, Group, Population

#: Domains of which it is shown what blocks them.
MOST_DOMAINS = 20


def neighbours_of(people: Population) -> Mapping[str, Any] | None:
    """Return who of the planned activation domains is not planned; None where each activates alone.

    Who runs the bundle already is drained with its domain and given back as it was. Anybody else
    keeps the whole domain from starting, for as long as it stands there.
    """
    field = headroom.widest(people.domains)
    if not field:
        return None
    planned = {member.name: getattr(member.place, field) for member in people.members}
    values = sorted({value for value in planned.values() if value})
    near = Machine.objects.filter(**{f"{field}__in": values}).exclude(state=State.RETIRED)
    along, blocked = Group(), dict[str, Group]()
    for name, value in near.order_by("name").values_list("name", field):
        if name in planned:
            continue
        if name in people.current:
            along.add(name)
        else:
            blocked.setdefault(value, Group()).add(name)
    rows = [{"domain": value, "machines": group.named} for value, group in sorted(blocked.items())]
    return {
        "field": field.replace("_", " "),
        "along": {"count": along.count, "first": along.first[:MOST_NAMED]},
        "blocked": rows[:MOST_DOMAINS],
        "blocked_count": len(rows),
    }
