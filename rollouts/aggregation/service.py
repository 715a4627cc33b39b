"""When the machines of a wave were in service, by their own changes of state."""

import numpy as np
from django.db.models import F, Q

from fleet.columns import Seconds, read_columns
from fleet.models import Machine, StateChange
from rollouts.aggregation.reading import Cutoff, of_roster, since
from rollouts.aggregation.roster import Roster
from rollouts.analysis.samples import FloatArray, IntArray, ServiceIntervals
from rollouts.models import Membership, Wave


def service_of(wave: Wave, roster: Roster, cutoff: Cutoff) -> ServiceIntervals:
    """Times in service, from the machines' own changes of state, since the period before."""
    in_service = Machine.State.IN_SERVICE.value
    moves = of_roster(StateChange.objects.all(), wave).filter(
        Q(new_state=in_service) | Q(old_state=in_service)
    )
    (ids, at, enters, key), _ = read_columns(
        moves.order_by(),
        numbers=("machine_id", Seconds(F("at")), Q(new_state=in_service), "pk"),
    )
    machine, at = roster.index(ids), since(cutoff.origin, at)
    order = np.lexsort((key, at, machine))
    machine, at, is_entry = machine[order], at[order], enters[order].astype(np.bool_)

    is_last = np.append(machine[1:] != machine[:-1], True)[: machine.size]
    is_first = np.append(True, machine[1:] != machine[:-1])[: machine.size]
    following = np.where(is_last, np.inf, np.append(at[1:], np.inf)[: at.size])
    leads_out = is_first & ~is_entry  # it was in service since before its first recorded move
    still, entered = _never_moved(wave, roster, moved=np.unique(machine), cutoff=cutoff)
    return _clipped(
        machine=np.concatenate([machine[is_entry], machine[leads_out], still]),
        start=np.concatenate(
            [at[is_entry], roster.machines.enrolled_seconds[machine[leads_out]], entered]
        ),
        end=np.concatenate([following[is_entry], at[leads_out], np.full(still.size, np.inf)]),
        cutoff=cutoff,
    )


def _never_moved(
    wave: Wave, roster: Roster, *, moved: IntArray, cutoff: Cutoff
) -> tuple[IntArray, FloatArray]:
    """Machines in service without any recorded move, and since when."""
    if moved.size == len(roster.machines.name):
        return np.empty(0, dtype=np.int64), np.empty(0)
    rows = Membership.objects.filter(wave=wave, machine__state=Machine.State.IN_SERVICE)
    (ids, entered), _ = read_columns(
        rows.order_by(), numbers=("machine_id", Seconds(F("machine__entered_at")))
    )
    machine = roster.index(ids)
    unmoved = ~np.isin(machine, moved)
    return machine[unmoved], since(cutoff.origin, entered[unmoved])


def _clipped(
    *, machine: IntArray, start: FloatArray, end: FloatArray, cutoff: Cutoff
) -> ServiceIntervals:
    """Since the period before, and as known at the cutoff: an end after it is still open."""
    end = np.where(end > cutoff.seconds(cutoff.as_of), np.inf, end)
    start = np.maximum(start, cutoff.seconds(cutoff.pre_start))
    kept = (start <= cutoff.seconds(cutoff.as_of)) & (end > start)
    order = np.lexsort((start[kept], machine[kept]))
    return ServiceIntervals(
        machine=machine[kept][order],
        start_seconds=start[kept][order],
        end_seconds=end[kept][order],
    )
