"""A diagnosis and the repair that it asks for, in one act."""

from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from fleet.errors import IncidentRefused
from fleet.models import Incident, Repair
from fleet.services.diagnoses import diagnose_incident
from fleet.services.repairs import order_repair


@transaction.atomic
def diagnose_and_order(
    incident: Incident,
    *,
    repair_kind: str,
    actor: str,
    now: datetime,
    user: User | None = None,
    **said: Any,
) -> Repair:
    """Diagnose an incident and order the repair of its machine: both, or neither.

    Raises
    ------
    IncidentRefused
        If no kind of repair is named, or what `diagnose_incident` refuses.
    """
    if not repair_kind:
        raise IncidentRefused("repair_kind: a repair is ordered by its kind, and none is named")
    diagnose_incident(incident, repair_kind=repair_kind, actor=actor, user=user, now=now, **said)
    return order_repair(
        incident.machine,
        kind=repair_kind,
        incident=incident,
        component=incident.component,
        actor=actor,
        user=user,
        now=now,
    )
