"""What changes the fleet: every write goes through these functions."""

from fleet.faults import open_faults
from fleet.services.changes import record_change, relocate
from fleet.services.clocks import adopt_wall, look_at_wall, record_jump
from fleet.services.diagnoses import (
    diagnose_incident,
    link_change,
    name_cause,
    note_incident,
    open_case,
)
from fleet.services.drains import AT_SCHEDULER, record_foreign_drains
from fleet.services.firmware import (
    approve_bundle,
    bundle_digest,
    create_bundle,
    create_image,
    record_readings,
    set_desired_bundle,
    withdraw_bundle,
)
from fleet.services.holds import BMC, hold_telemetry
from fleet.services.imports import ImportResult, import_history
from fleet.services.incidents import record_incidents
from fleet.services.inventory import register_machines, register_platform
from fleet.services.jobs import record_jobs
from fleet.services.lifecycle import cordon, lift_cordon, move_machine, retire_machine
from fleet.services.summaries import summarise
from fleet.services.telemetry import BatchResult, Refusal, record

__all__ = [
    "AT_SCHEDULER",
    "BMC",
    "BatchResult",
    "ImportResult",
    "Refusal",
    "adopt_wall",
    "approve_bundle",
    "bundle_digest",
    "cordon",
    "create_bundle",
    "create_image",
    "diagnose_incident",
    "hold_telemetry",
    "import_history",
    "lift_cordon",
    "link_change",
    "look_at_wall",
    "move_machine",
    "name_cause",
    "note_incident",
    "open_case",
    "open_faults",
    "record",
    "record_change",
    "record_foreign_drains",
    "record_incidents",
    "record_jobs",
    "record_jump",
    "record_readings",
    "register_machines",
    "register_platform",
    "relocate",
    "retire_machine",
    "set_desired_bundle",
    "summarise",
    "withdraw_bundle",
]
