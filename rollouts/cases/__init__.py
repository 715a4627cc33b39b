"""Recorded cases: folders of CSV files with a comparison from the past."""

from rollouts.cases.reader import Case, read_case
from rollouts.cases.slips import LeftOut, Slip

__all__ = ["Case", "LeftOut", "Slip", "read_case"]
