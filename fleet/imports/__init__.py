"""Read what others recorded, from CSV or JSON: checked rows, nothing half-read. Pure."""

from fleet.imports.rows import PastMachine, refuse
from fleet.imports.versions import PastHistory, PastInterval, by_part, read_history

__all__ = ["PastHistory", "PastInterval", "PastMachine", "by_part", "read_history", "refuse"]
