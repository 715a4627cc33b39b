"""What changes rollouts: every write goes through these functions."""

from rollouts.services.orders import (
    acknowledge,
    advance,
    cancel,
    extend,
    halt,
    override,
    pause,
    resume,
    roll_back,
    skip_wave,
    start,
    triage,
)
from rollouts.services.plans import approve, create_draft, deny, save_policy, submit

__all__ = [
    "acknowledge",
    "advance",
    "approve",
    "cancel",
    "create_draft",
    "deny",
    "extend",
    "halt",
    "override",
    "pause",
    "resume",
    "roll_back",
    "save_policy",
    "skip_wave",
    "start",
    "submit",
    "triage",
]
