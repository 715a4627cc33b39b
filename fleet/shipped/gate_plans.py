"""The gate plans that ship with the product: per kind of repair, and longer ones for a recurrence.

A site adds versions of its own; what ships is the first version of each kind and level.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from django.utils import timezone

PLANS = Path(__file__).parent / "gate_plans.json"
AUTHOR = "shipped"
#: Work is a part of the observation: an idle machine shows no fault, and nothing by that.
OBSERVED_SHARE = 0.9


@cache
def shipped() -> tuple[Mapping[str, Any], ...]:
    """Return the plans, named as the fields of `GatePlan`, each check written out."""
    document = json.loads(PLANS.read_text(encoding="utf-8"))
    return tuple(_whole(plan, document["checks"]) for plan in document["plans"])


def _whole(plan: Mapping[str, Any], catalogue: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan with its checks; a key may carry a variant, such as `step_rate+drill`."""
    checks = [{"name": key.split("+")[0], **catalogue[key]} for key in plan["checks"]]
    hours = plan["observation_hours"]
    return {**plan, "checks": [*checks, observed_work(hours)] if hours else checks}


def observed_work(hours: float) -> dict[str, Any]:
    """Return the check that an observation was spent at work, not idle."""
    return {
        "name": "observed_work",
        "title": "Hours of representative, pre-emptible work in the observation",
        "stage": "observation",
        "unit": "h",
        "rule": {"kind": ">=", "value": round(hours * OBSERVED_SHARE, 1)},
        "needs_evidence": True,
    }


def load(apps: Any, editor: Any) -> None:
    """Add the first version of each kind and level that has none; a site's own stand.

    The reverse step is a no-op: gates may refer to the rows by then, and they cannot be deleted.
    """
    plans = apps.get_model("fleet", "GatePlan").objects.using(editor.connection.alias)
    known = set(plans.values_list("kind", "level"))
    new = [
        plans.model(version=1, author=AUTHOR, recorded_at=timezone.now(), **plan)
        for plan in shipped()
        if (plan["kind"], plan["level"]) not in known
    ]
    plans.bulk_create(new)
