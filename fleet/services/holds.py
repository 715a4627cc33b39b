"""Hold back what a BMC reports until it shows again what it showed before its update."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from fleet.adapters import Snapshot
from fleet.models import Machine, TelemetryHold

#: The kind of component whose update makes its own telemetry doubtful, and the witness's name.
BMC = "bmc"
_MOST_SKEW_SECONDS = 120.0


def differences(before: Mapping[str, Any], shown: Snapshot | None) -> list[str]:
    """Name what a BMC does not show any more, or shows under another name.

    Examples
    --------
    >>> before = {"inventory": ["gpu"], "sensors": ["Temp_GPU", "Fan1"], "can_log_in": True}
    >>> differences(before, Snapshot(("gpu",), ("GPU Temp", "Fan1"), 2.0))
    ['sensor Temp_GPU is gone', 'sensor GPU Temp is new']
    """
    if shown is None:
        return ["the BMC does not answer"]
    reasons = []
    for what, name in (("inventory", "part"), ("sensors", "sensor")):
        old, new = set(before.get(what, ())), set(getattr(shown, what))
        reasons += [f"{name} {one} is gone" for one in sorted(old - new)]
        if old - new:  # it may be one of these under another name
            reasons += [f"{name} {one} is new" for one in sorted(new - old)]
    if abs(shown.clock_skew_seconds) > _MOST_SKEW_SECONDS:
        reasons.append(f"its clock is off by {shown.clock_skew_seconds:.0f} s")
    if before.get("can_log_in", True) and not shown.can_log_in:
        reasons.append("the login does not work any more")
    return reasons


@transaction.atomic
def hold_telemetry(
    machine: Machine,
    *,
    before: Mapping[str, Any],
    shown: Snapshot | None,
    now: datetime,
    evidence: Mapping[str, Any] | None = None,
) -> TelemetryHold | None:
    """Hold the BMC's telemetry back while it does not match the snapshot, or let it count again.

    Safe to repeat. Returns the hold that stands, or None.
    """
    reasons = differences(before, shown)
    own = TelemetryHold.objects.select_for_update()
    standing = own.filter(machine=machine, witness=BMC, until=None).first()
    if not reasons:
        own.filter(machine=machine, witness=BMC, until=None).update(until=now, checked_at=now)
        return None
    if standing is not None:
        own.filter(pk=standing.pk).update(reasons=reasons, checked_at=now)
        standing.reasons, standing.checked_at = reasons, now
        return standing
    return TelemetryHold.objects.create(
        machine=machine,
        witness=BMC,
        since=now,
        before=dict(before),
        reasons=reasons,
        checked_at=now,
        evidence=dict(evidence or {}),
    )
