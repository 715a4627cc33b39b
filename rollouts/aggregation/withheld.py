"""Signatures that cannot be counted at a cutoff, and why."""

from django.db.models import Exists, OuterRef, Q

from fleet.models import CounterSample, FaultSignature, TelemetryHold
from rollouts.aggregation.reading import Cutoff
from rollouts.models import Wave

#: Families of signatures that a BMC tells of.
BMC_FAMILIES = ("bmc", "thermal")
#: Machines that are named where their BMC's telemetry is held back.
_MOST_HELD = 3


def withheld(wave: Wave, cutoff: Cutoff) -> dict[str, str]:
    """Name the signatures that cannot be counted at this cutoff, and why."""
    return {**_of_fallen_counters(wave, cutoff), **_of_bmcs(wave, cutoff)}


def _of_fallen_counters(wave: Wave, cutoff: Cutoff) -> dict[str, str]:
    """Name what counters of the wave's machines count that went backwards in the window."""
    fallen = CounterSample.objects.filter(
        is_backwards=True,
        time__gt=cutoff.origin,
        time__lte=cutoff.as_of,
        machine__in=wave.members.values("machine"),
    ).order_by("-time")
    names = fallen.values_list("signature", "machine__name", "time")[:_MOST_HELD]
    return {
        signature: f"its counter went backwards on {machine} at {time:%Y-%m-%d %H:%M}"
        for signature, machine, time in names
    }


def _of_bmcs(wave: Wave, cutoff: Cutoff) -> dict[str, str]:
    """Name the signatures that no BMC of the wave may tell of while one of them is held back."""
    holds = (
        TelemetryHold.objects.filter(machine__in=wave.members.values("machine"))
        .filter(since__lte=cutoff.as_of)
        .filter(Q(until=None) | Q(until__gt=cutoff.as_of))
        .select_related("machine")
        .order_by("machine__name")
    )
    held = [f"{hold.machine} ({', '.join(hold.reasons)})" for hold in holds[: _MOST_HELD + 1]]
    if not held:
        return {}
    more = " and more" if len(held) > _MOST_HELD else ""
    reason = f"since its update the BMC does not match of {'; '.join(held[:_MOST_HELD])}{more}"
    names = FaultSignature.objects.filter(family__in=BMC_FAMILIES).values_list("name", flat=True)
    return dict.fromkeys(names, reason)


def of_held_bmcs() -> Q:
    """Return the condition on faults that a BMC told of while it was held back."""
    holds = TelemetryHold.objects.filter(
        machine=OuterRef("machine"), since__lte=OuterRef("time")
    ).filter(Q(until=None) | Q(until__gt=OuterRef("time")))
    return Q(Exists(holds), signature__family__in=BMC_FAMILIES)
