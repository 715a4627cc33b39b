"""What happened to the machines of a wave: faults, reports, interruptions, attempts."""

import numpy as np
from django.db.models import Exists, F, OuterRef, Q

from fleet.columns import Seconds, read_columns
from fleet.models import Fault, FaultSignature, Observation, Recovery, TelemetryHold
from rollouts.aggregation.reading import Cutoff, codes, collected, of_roster, since
from rollouts.aggregation.roster import Roster
from rollouts.aggregation.withheld import of_held_bmcs
from rollouts.analysis.quality import usable
from rollouts.analysis.samples import AttemptRows, FaultEvents, ObservationRows, RecoveryRows
from rollouts.lifecycle import FAILURES, AttemptStatus
from rollouts.models import Attempt, Wave

BRICKED = Attempt.Triage.BRICKED.value


def faults_of(wave: Wave, roster: Roster, cutoff: Cutoff) -> FaultEvents:
    """Faults since the period before; signatures that the catalogue does not count are left out."""
    rows = (
        of_roster(Fault.objects.filter(is_ahead=False), wave)
        .filter(
            time__gte=cutoff.pre_start,
            time__lte=cutoff.as_of,
            received_at__lte=cutoff.arrived_by,
        )
        .exclude(signature__kind=FaultSignature.Kind.NOT_COUNTED)
    )
    if TelemetryHold.objects.filter(machine__in=wave.members.values("machine")).exists():
        rows = rows.exclude(of_held_bmcs())
    (ids, time), (signatures, severities) = read_columns(
        rows.order_by(),
        numbers=("machine_id", Seconds(F("time"))),
        names=("signature__name", "severity"),
    )
    machine, time = roster.index(ids), since(cutoff.origin, time)
    signature, names = codes(signatures)
    severity, grades = codes(severities)
    order = np.lexsort((severity, signature, time, machine))
    return FaultEvents(
        machine=machine[order],
        time_seconds=time[order],
        signature=signature[order],
        signatures=names,
        # One severity per event: the same signature may come in several.
        severity=tuple(grades[code] for code in severity[order]),
    )


def observations_of(wave: Wave, roster: Roster, cutoff: Cutoff) -> ObservationRows | None:
    """Interval reports since the first block's clock start; None if none ever came."""
    if not collected(Observation, cutoff):
        return None
    rows = of_roster(Observation.objects.filter(is_ahead=False), wave).filter(
        end__gt=cutoff.origin, end__lte=cutoff.as_of, received_at__lte=cutoff.arrived_by
    )
    (ids, start, end, in_service, throughput), (workloads,) = read_columns(
        rows.order_by(),
        numbers=(
            "machine_id",
            Seconds(F("start")),
            Seconds(F("end")),
            "in_service_seconds",
            "throughput",
        ),
        names=("workload",),
    )
    machine = roster.index(ids)
    workload, kinds = codes(workloads)
    order = np.lexsort((throughput, workload, end, start, machine))
    return ObservationRows(
        machine=machine[order],
        start_seconds=since(cutoff.origin, start)[order],
        end_seconds=since(cutoff.origin, end)[order],
        in_service_seconds=in_service[order],
        throughput=throughput[order],
        workload=workload[order],
        workloads=kinds,
    )


def interval_seconds(observations: ObservationRows | None) -> float | None:
    """Length of a report's interval: the median, both arms pooled; node probes are none."""
    if observations is None:
        return None
    own = usable(observations, needs_throughput=False, is_probe=False)
    if not own.any():
        return None
    return float(np.median((observations.end_seconds - observations.start_seconds)[own]))


def recoveries_of(wave: Wave, roster: Roster, cutoff: Cutoff) -> RecoveryRows | None:
    """Interruptions since the first block's clock start; a closed row wins over its open one."""
    if not collected(Recovery, cutoff):
        return None
    arrived = Recovery.objects.filter(received_at__lte=cutoff.arrived_by, is_ahead=False)
    closed = arrived.filter(
        source=OuterRef("source"), source_key=OuterRef("source_key"), recovered_at__isnull=False
    )
    rows = (
        of_roster(arrived, wave)
        .filter(time__gte=cutoff.origin, time__lte=cutoff.as_of)
        .filter(Q(recovered_at__isnull=False) | ~Exists(closed))
    )
    (ids, time, recovered, taken, repeated), (paths,) = read_columns(
        rows.order_by(),
        numbers=(
            "machine_id",
            Seconds(F("time")),
            Seconds(F("recovered_at")),
            "recovery_seconds",
            "repeated_seconds",
        ),
        names=("path",),
    )
    machine, time = roster.index(ids), since(cutoff.origin, time)
    recovered = since(cutoff.origin, recovered)
    path, names = codes(paths)
    is_open = ~(recovered <= cutoff.seconds(cutoff.as_of))
    recovered = np.where(is_open, np.nan, recovered)
    taken = np.where(is_open, np.nan, np.where(np.isnan(taken), recovered - time, taken))
    order = np.lexsort((path, recovered, time, machine))
    return RecoveryRows(
        machine=machine[order],
        time_seconds=time[order],
        recovered_seconds=recovered[order],
        recovery_seconds=taken[order],
        repeated_seconds=repeated[order],
        path=path[order],
        paths=names,
    )


def attempts_of(wave: Wave, roster: Roster, cutoff: Cutoff) -> AttemptRows:
    """Finished attempts of the wave in order of finishing; triage alone says that one bricked."""
    outcomes = [AttemptStatus.SUCCEEDED, *FAILURES]
    rows = of_roster(Attempt.objects.first_tries(), wave).filter(
        wave=wave, status__in=outcomes, finished_at__lte=cutoff.as_of
    )
    (ids, time, key), (statuses, triages) = read_columns(
        rows.order_by(),
        numbers=("machine_id", Seconds(F("finished_at")), "pk"),
        names=("status", "triage"),
    )
    seen = [
        BRICKED if triage == BRICKED else status
        for status, triage in zip(statuses, triages, strict=True)
    ]
    outcome, names = codes(seen)
    machine, time = roster.index(ids), since(cutoff.origin, time)
    order = np.lexsort((key, time))
    return AttemptRows(
        machine=machine[order],
        time_seconds=time[order],
        outcome=outcome[order],
        outcomes=names,
    )
