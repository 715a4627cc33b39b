"""The rollouts' tables: the plan and its progress, and the append-only evidence."""

from rollouts.models.evidence import (
    Action,
    AttemptEvent,
    ClockHold,
    Decision,
    Evaluation,
    Order,
    Reminder,
    ScoreBlob,
    Transition,
)
from rollouts.models.freeze import Freeze
from rollouts.models.memory import Clearance, Contamination
from rollouts.models.probe import ProbeRound
from rollouts.models.rollout import (
    Assignment,
    Attempt,
    Block,
    Membership,
    Policy,
    Preview,
    Rollout,
    Wave,
)
from rollouts.models.supplier import SupplierPackage

__all__ = [
    "Action",
    "Assignment",
    "Attempt",
    "AttemptEvent",
    "Block",
    "Clearance",
    "ClockHold",
    "Contamination",
    "Decision",
    "Evaluation",
    "Freeze",
    "Membership",
    "Order",
    "Policy",
    "Preview",
    "ProbeRound",
    "Reminder",
    "Rollout",
    "ScoreBlob",
    "SupplierPackage",
    "Transition",
    "Wave",
]
