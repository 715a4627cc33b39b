"""The fleet's tables: inventory, firmware, telemetry, lifecycle, the clock."""

from fleet.models.capacity import CapacityDay
from fleet.models.changes import Change, ChangedMachine, ClockJump, ClockReading
from fleet.models.clock import Clock, Heartbeat
from fleet.models.counters import CounterSample
from fleet.models.departures import BreakGlass, SchedulerWord, TakeOut
from fleet.models.firmware import (
    BundleImage,
    BundleStatus,
    DesiredBundle,
    FirmwareBundle,
    FirmwareImage,
    FirmwareRecord,
)
from fleet.models.gates import CheckResult, Evidence, Gate, GateCheck, GateEvent, GatePlan
from fleet.models.holds import TelemetryHold
from fleet.models.identity import MachineClaim
from fleet.models.incidents import (
    ImpactCursor,
    Incident,
    IncidentCursor,
    IncidentEvent,
    IncidentFault,
    JobImpact,
    JobKind,
)
from fleet.models.inventory import Component, Machine, Platform, Team
from fleet.models.jobs import Job
from fleet.models.lifecycle import Cordon, StateChange
from fleet.models.notices import Notice
from fleet.models.owners import HandOver, RoleTeam
from fleet.models.repairs import PartSwap, Repair, RepairEvent, RepairKind
from fleet.models.summary import ServiceDay, TelemetrySummary
from fleet.models.telemetry import (
    CollectorCursor,
    Fault,
    FaultSignature,
    Observation,
    Recovery,
    TelemetryBatch,
)
from fleet.models.tickets import TicketLink, TicketReceipt

__all__ = [
    "BreakGlass",
    "BundleImage",
    "BundleStatus",
    "CapacityDay",
    "Change",
    "ChangedMachine",
    "CheckResult",
    "Clock",
    "ClockJump",
    "ClockReading",
    "CollectorCursor",
    "Component",
    "Cordon",
    "CounterSample",
    "DesiredBundle",
    "Evidence",
    "Fault",
    "FaultSignature",
    "FirmwareBundle",
    "FirmwareImage",
    "FirmwareRecord",
    "Gate",
    "GateCheck",
    "GateEvent",
    "GatePlan",
    "HandOver",
    "Heartbeat",
    "ImpactCursor",
    "Incident",
    "IncidentCursor",
    "IncidentEvent",
    "IncidentFault",
    "Job",
    "JobImpact",
    "JobKind",
    "Machine",
    "MachineClaim",
    "Notice",
    "Observation",
    "PartSwap",
    "Platform",
    "Recovery",
    "Repair",
    "RepairEvent",
    "RepairKind",
    "RoleTeam",
    "SchedulerWord",
    "ServiceDay",
    "StateChange",
    "TakeOut",
    "Team",
    "TelemetryBatch",
    "TelemetryHold",
    "TelemetrySummary",
    "TicketLink",
    "TicketReceipt",
]
