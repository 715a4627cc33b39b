"""Waves, strata, the random order, install batches and blast-radius limits. Pure.

Sizes are counted in placement units; with the unit `machine` that is machines.
"""

from fleet.firmware.reach import Image
from rollouts.planning.batches import Deal, batch_count, deal_blocks, deal_counts
from rollouts.planning.legs import is_by_hand, legs, needs_boot, online_prefix
from rollouts.planning.limits import (
    Candidate,
    Caps,
    Domain,
    Pace,
    Startable,
    Where,
    full_domains,
    startable,
)
from rollouts.planning.order import (
    DEFAULT_STRATA,
    MANY_FAULTS,
    Assigned,
    Assignments,
    Merge,
    UnitInput,
    document_digest,
    draw_order,
    fleet_change,
    plan_digest,
    recent_fault_class,
)
from rollouts.planning.readiness import Readiness, readiness
from rollouts.planning.refusal import (
    can_reach,
    cells_of,
    log_assignments,
    refuse,
    split_domains,
)
from rollouts.planning.waves import WaveSpec, allocate, exact, hold_back_size, wave_sizes
from rollouts.planning.windows import (
    Freeze,
    Gate,
    Place,
    Window,
    freeze_reasons,
    gate,
    longest_attempt,
    window_reasons,
)

__all__ = [
    "DEFAULT_STRATA",
    "MANY_FAULTS",
    "Assigned",
    "Assignments",
    "Candidate",
    "Caps",
    "Deal",
    "Domain",
    "Freeze",
    "Gate",
    "Image",
    "Merge",
    "Pace",
    "Place",
    "Readiness",
    "Startable",
    "UnitInput",
    "WaveSpec",
    "Where",
    "Window",
    "allocate",
    "batch_count",
    "can_reach",
    "cells_of",
    "deal_blocks",
    "deal_counts",
    "document_digest",
    "draw_order",
    "exact",
    "fleet_change",
    "freeze_reasons",
    "full_domains",
    "gate",
    "hold_back_size",
    "is_by_hand",
    "legs",
    "log_assignments",
    "longest_attempt",
    "needs_boot",
    "online_prefix",
    "plan_digest",
    "readiness",
    "recent_fault_class",
    "refuse",
    "split_domains",
    "startable",
    "wave_sizes",
    "window_reasons",
]
