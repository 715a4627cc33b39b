"""Reads: how many machines stand where, how long each state takes, and where they pile up.

The present is counted from machines, the past from `StateChange`; nothing is estimated. Days that
were added up already are kept (`CapacityDay`), so that no page counts the past again.
"""

from fleet.capacity.days import KeptDay, day_over, events, kept_before, kept_days
from fleet.capacity.standings import Standing, history, measured, standings, standings_as_of
from fleet.capacity.waiting import (
    TREND_DAYS,
    WINDOW_DAYS,
    Point,
    Queue,
    Queues,
    queue_figures,
    repair_hours,
    stay_hours,
    stays_of,
    trends,
)

__all__ = [
    "TREND_DAYS",
    "WINDOW_DAYS",
    "KeptDay",
    "Point",
    "Queue",
    "Queues",
    "Standing",
    "day_over",
    "events",
    "history",
    "kept_before",
    "kept_days",
    "measured",
    "queue_figures",
    "repair_hours",
    "standings",
    "standings_as_of",
    "stay_hours",
    "stays_of",
    "trends",
]
