"""What was known before a wave began: faults, levels of throughput, signatures, failed installs."""

from datetime import datetime

import numpy as np
from django.db.models import Avg, Count, Exists, OuterRef, Q

from fleet.columns import read_columns
from fleet.models import Fault, FaultSignature, FirmwareBundle, FirmwareImage, Observation
from rollouts.aggregation.reading import Cutoff, codes, of_roster
from rollouts.aggregation.roster import Roster
from rollouts.analysis.policy import NODE_PROBE
from rollouts.analysis.samples import FaultEvents, FloatArray, LevelsBefore
from rollouts.lifecycle import FAILURES, AttemptStatus, Status
from rollouts.models import Attempt, Rollout, Wave

FIELD_BASELINE = 0.013
"""Share of reboots after which a machine does not return, whatever the firmware (field figure)."""

LEAST_BASELINE_ATTEMPTS = 200
"""Fewer finished attempts say less of the fleet than the field's figure does."""


def faults_before(roster: Roster, faults: FaultEvents, cutoff: Cutoff) -> FloatArray:
    """A unit's fault count in the period before the wave; the judge takes its square root."""
    early = faults.machine[faults.time_seconds < cutoff.seconds(cutoff.before)]
    counts = np.bincount(roster.machines.unit[early], minlength=len(roster.unit_names))
    return counts.astype(np.float64)


def levels_before(wave: Wave, roster: Roster, cutoff: Cutoff) -> LevelsBefore:
    """Each machine's mean throughput per workload in the period before.

    Only what had arrived when the wave started counts, so the value never changes.
    """
    rows = (
        of_roster(Observation.objects.filter(is_ahead=False), wave)
        .filter(
            end__gt=cutoff.pre_start,
            end__lte=cutoff.before,
            received_at__lte=cutoff.before,
            throughput__isnull=False,
        )
        .order_by()
        .values("machine_id", "workload")
        .annotate(mean=Avg("throughput"))
    )
    (ids, mean), (workloads,) = read_columns(
        rows, numbers=("machine_id", "mean"), names=("workload",)
    )
    workload, kinds = codes(workloads)
    machine = roster.index(ids)
    order = np.lexsort((workload, machine))
    return LevelsBefore(
        unit=roster.machines.unit[machine[order]],
        workload=workload[order],
        # A server may add up in another order each time.
        throughput=np.round(mean[order], 9),
        workloads=kinds,
    )


def throughput_before(roster: Roster, levels: LevelsBefore) -> FloatArray:
    """A unit's throughput in the period before: mean over workloads of the ratio to its level.

    The level of a workload is the mean over all machines of the roster that ran it, both arms.
    """
    kinds = len(levels.workloads)
    per_kind = np.bincount(levels.workload, minlength=kinds)
    total = np.bincount(levels.workload, weights=levels.throughput, minlength=kinds)
    level = total / np.maximum(per_kind, 1)
    is_probe = np.array([name == NODE_PROBE for name in levels.workloads], dtype=np.bool_)
    known = (level[levels.workload] > 0) & ~is_probe[levels.workload]
    ratio = levels.throughput[known] / level[levels.workload[known]]
    unit, units = levels.unit[known], len(roster.unit_names)
    count = np.bincount(unit, minlength=units)
    sums = np.bincount(unit, weights=ratio, minlength=units)
    return np.where(count > 0, sums / np.maximum(count, 1), np.nan)


def known_signatures(cutoff: Cutoff) -> frozenset[str]:
    """Signatures that any machine of the fleet had shown before the wave started."""
    shown = Fault.objects.filter(signature=OuterRef("pk"), time__lt=cutoff.before)
    return frozenset(FaultSignature.objects.filter(Exists(shown)).values_list("name", flat=True))


def install_baseline(rollout: Rollout) -> float:
    """Share of installs that fail though nothing is wrong with the firmware."""
    return install_baseline_of(rollout.bundle_id, before=rollout.created_at)


def install_baseline_of(bundle_id: int, *, before: datetime) -> float:
    """Share of installs of a bundle's kind that fail though nothing is wrong with the firmware.

    Taken from rollouts that completed before and whose bundles are activated in the same way;
    where they had too few attempts, the field's figure.
    """
    same_activation = FirmwareBundle.objects.filter(
        images__activation__in=FirmwareImage.objects.filter(bundles=bundle_id).values("activation")
    )
    past = Attempt.objects.filter(
        rollout__status=Status.COMPLETED,
        rollout__finished_at__lte=before,
        rollout__bundle__in=same_activation.values("pk"),
        status__in=[AttemptStatus.SUCCEEDED, *FAILURES],
    ).aggregate(attempts=Count("pk"), failures=Count("pk", filter=Q(status__in=FAILURES)))
    if past["attempts"] < LEAST_BASELINE_ATTEMPTS:
        return FIELD_BASELINE
    return float(past["failures"] / past["attempts"])
