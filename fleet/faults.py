"""Which faults of a machine count against its being trusted: one rule for gates and repairs."""

from datetime import datetime
from typing import Any

from django.db.models import Case, Q, QuerySet, When
from django.db.models.functions import Least

from fleet.models import Fault, FaultSignature, Machine

#: What no signature in the catalogue explains counts as if it were hard: unknown is not pass.
COUNTED_KINDS = (FaultSignature.Kind.HARD, FaultSignature.Kind.UNKNOWN)
COUNTED_SEVERITIES = (FaultSignature.Severity.MAJOR, FaultSignature.Severity.CRITICAL)
#: When a fault happened. A machine whose clock ran ahead cannot have said it before it was heard.
HAPPENED_AT = Case(When(is_ahead=True, then=Least("time", "received_at")), default="time")


def happened_at(fault: Fault) -> datetime:
    """Return when a fault happened: what `HAPPENED_AT` asks of the database, of one row."""
    return min(fault.time, fault.received_at) if fault.is_ahead else fault.time


def open_faults(machine: Machine, *, since: datetime) -> QuerySet[Any]:
    """Return the faults of a machine that happened after `since` and count, oldest first.

    A report that comes late tells of its own time: what happened before `since` is not among them.
    """
    return counted_faults().filter(machine=machine, at__gt=since).order_by("at", "pk")


def counted_faults() -> QuerySet[Any]:
    """Return the faults of hard or unknown signatures that are major or critical, with `at`."""
    counts = Q(signature__kind__in=COUNTED_KINDS, severity__in=COUNTED_SEVERITIES)
    return Fault.objects.filter(counts).annotate(at=HAPPENED_AT).select_related("signature")
