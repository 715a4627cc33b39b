"""Everything about one wave that its judge is given."""

from datetime import datetime

import numpy as np

from fleet.models import Fault
from rollouts.aggregation.before import (
    faults_before,
    install_baseline,
    known_signatures,
    levels_before,
    throughput_before,
)
from rollouts.aggregation.events import (
    attempts_of,
    faults_of,
    interval_seconds,
    observations_of,
    recoveries_of,
)
from rollouts.aggregation.reading import Cutoff, collected, origin_of
from rollouts.aggregation.roster import placement_of, read_roster
from rollouts.aggregation.service import service_of
from rollouts.aggregation.surroundings import surroundings
from rollouts.aggregation.withheld import withheld
from rollouts.analysis.labels import Design
from rollouts.analysis.samples import Samples, Units
from rollouts.models import Wave


def samples_for(wave: Wave, *, as_of: datetime, arrived_by: datetime | None = None) -> Samples:
    """Everything about a wave's machines that had happened by `as_of` and arrived by then.

    Parameters
    ----------
    wave : Wave
        With its frozen roster; time counts from the clock start of its first block.
    as_of : datetime
        The cutoff: later events are left out.
    arrived_by : datetime, optional
        Rows received later are left out; by default `as_of` itself.

    Notes
    -----
    Intention to treat: everybody on the roster keeps its place, whatever became of the machine.
    Members of a block whose clock has not started have an infinite clock start.
    """
    cutoff = Cutoff(
        origin=origin_of(wave, as_of=as_of),
        as_of=as_of,
        arrived_by=arrived_by or as_of,
        before=wave.started_at or origin_of(wave, as_of=as_of),
    )
    roster = read_roster(wave, cutoff)
    observations = observations_of(wave, roster, cutoff)
    faults = faults_of(wave, roster, cutoff)
    levels = levels_before(wave, roster, cutoff)
    around = surroundings(wave, roster, cutoff)
    return Samples(
        origin=cutoff.origin,
        as_of_seconds=cutoff.seconds(as_of),
        window_seconds=wave.window_hours * 3600.0,
        units=Units(
            name=roster.unit_names,
            is_canary=roster.is_canary.astype(np.bool_),
            stratum=roster.stratum,
            clock_start_seconds=roster.clock_start,
            covariates={
                "faults": faults_before(roster, faults, cutoff),
                "throughput": throughput_before(roster, levels),
            },
            is_near_canary=around.near_units(roster),
            placement=placement_of(wave, roster),
        ),
        machines=roster.machines,
        service=service_of(wave, roster, cutoff),
        faults=faults if collected(Fault, cutoff) or observations is not None else None,
        observations=observations,
        recoveries=recoveries_of(wave, roster, cutoff),
        attempts=attempts_of(wave, roster, cutoff),
        interval_seconds=interval_seconds(observations),
        known_signatures=known_signatures(cutoff),
        install_baseline=install_baseline(wave.rollout),
        purity=around.purity(roster),
        levels_before=levels,
        before_seconds=cutoff.seconds(cutoff.before),
        withheld=withheld(wave, cutoff),
    )


def design_of(wave: Wave) -> Design:
    """Who could have been canary in a wave: its frozen roster, as every look of it saw it."""
    at = wave.started_at or wave.rollout.created_at
    roster = read_roster(wave, Cutoff(origin=at, as_of=at, arrived_by=at, before=at))
    return Design(stratum=roster.stratum, is_canary=roster.is_canary.astype(np.bool_))
