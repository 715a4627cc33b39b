"""Reads: how much work got done, what interruptions cost it, and how long machines stay away.

Everything is added up by the database over an index on time, or kept added up by day; a page costs
the same whether few machines report or many.
"""

from fleet.losses.expected import CHECKPOINT_MINUTES, EXPECTED_MACHINES, Expected, expected
from fleet.losses.impacts import DAYS, MOST_DAYS, UNEXPLAINED, Asked, Loss
from fleet.losses.jobs import JobRow
from fleet.losses.report import Bin, Cut, Kind, Report, report
from fleet.losses.way_back import PARTS, Back, way_back

__all__ = [
    "CHECKPOINT_MINUTES",
    "DAYS",
    "EXPECTED_MACHINES",
    "MOST_DAYS",
    "PARTS",
    "UNEXPLAINED",
    "Asked",
    "Back",
    "Bin",
    "Cut",
    "Expected",
    "JobRow",
    "Kind",
    "Loss",
    "Report",
    "expected",
    "report",
    "way_back",
]
