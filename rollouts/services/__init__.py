"""What changes rollouts: every write goes through these functions."""

from rollouts.services.orders.freezes import freeze_refusals, lift_freeze, set_freeze
from rollouts.services.orders.gates import review_gates
from rollouts.services.orders.members import exclude, retry
from rollouts.services.orders.memory import clear
from rollouts.services.orders.packages import make_package
from rollouts.services.orders.rehearsal import rehearse
from rollouts.services.orders.steering import (
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
from rollouts.services.orders.stops import STOPPED, halt_all, supersede, withdraw_bundle
from rollouts.services.plans.approvals import approve, deny, expire_approvals
from rollouts.services.plans.previews import glance, preview
from rollouts.services.plans.submission import create_draft, draft_of, save_policy, submit
from rollouts.services.waves.on_halt import release

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
    "make_package",
    "override",
    "pause",
    "preview",
    "rehearse",
    "release",
    "resume",
    "retry",
    "review_gates",
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
