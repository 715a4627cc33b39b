"""Read what others recorded, from CSV or JSON: checked rows, nothing half-read. Pure."""

from fleet.imports.impacts import RecordedImpact, read_impacts
from fleet.imports.outages import Outage, RecordedMachine, Recording, joined, read_outages
from fleet.imports.rows import PastMachine, refuse
from fleet.imports.versions import PastHistory, PastInterval, by_part, read_history

__all__ = [
    "Outage",
    "PastHistory",
    "PastInterval",
    "PastMachine",
    "RecordedImpact",
    "RecordedMachine",
    "Recording",
    "by_part",
    "joined",
    "read_history",
    "read_impacts",
    "read_outages",
    "refuse",
]
