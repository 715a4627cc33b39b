"""What changes rollouts: every write goes through these functions."""

from rollouts.services.approvals import approve, deny, expire_approvals
from rollouts.services.freezes import freeze_refusals, lift_freeze, set_freeze
from rollouts.services.members import exclude, retry
from rollouts.services.memory import clear
from rollouts.services.on_halt import release
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
from rollouts.services.plans import create_draft, draft_of, save_policy, submit
from rollouts.services.previews import glance, preview
from rollouts.services.stops import STOPPED, halt_all, supersede, withdraw_bundle

__all__ = [
    "STOPPED",
    "acknowledge",
    "advance",
    "approve",
    "cancel",
    "clear",
    "create_draft",
    "deny",
    "draft_of",
    "exclude",
    "expire_approvals",
    "extend",
    "freeze_refusals",
    "glance",
    "halt",
    "halt_all",
    "lift_freeze",
    "override",
    "pause",
    "preview",
    "release",
    "resume",
    "retry",
    "roll_back",
    "save_policy",
    "set_freeze",
    "skip_wave",
    "start",
    "submit",
    "supersede",
    "triage",
    "withdraw_bundle",
]
