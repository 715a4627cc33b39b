"""The fleet's tables: inventory, firmware, telemetry, lifecycle, the clock."""

from fleet.models.changes import Change, ChangedMachine, ClockJump, ClockReading
from fleet.models.clock import Clock, Heartbeat
from fleet.models.counters import CounterSample
from fleet.models.firmware import (
    BundleImage,
    BundleStatus,
    DesiredBundle,
    FirmwareBundle,
    FirmwareImage,
    FirmwareRecord,
)
from fleet.models.holds import TelemetryHold
from fleet.models.inventory import Component, Machine, Platform, Team
from fleet.models.jobs import Job
from fleet.models.lifecycle import Cordon, StateChange
from fleet.models.summary import TelemetrySummary
from fleet.models.telemetry import (
    CollectorCursor,
    Fault,
    FaultSignature,
    Observation,
    Recovery,
    TelemetryBatch,
)

__all__ = [
    "BundleImage",
    "BundleStatus",
    "Change",
    "ChangedMachine",
    "Clock",
    "ClockJump",
    "ClockReading",
    "CollectorCursor",
    "Component",
    "Cordon",
    "CounterSample",
    "DesiredBundle",
    "Fault",
    "FaultSignature",
    "FirmwareBundle",
    "FirmwareImage",
    "FirmwareRecord",
    "Heartbeat",
    "Job",
    "Machine",
    "Observation",
    "Platform",
    "Recovery",
    "StateChange",
    "Team",
    "TelemetryBatch",
    "TelemetryHold",
    "TelemetrySummary",
]
