"""What a machine has to show before it works again: plans, gates, checks, reviews, partners."""

from fleet.services.gates.checks import (
    Outcome,
    claim_check,
    give_back_check,
    is_claimed,
    report_result,
)
from fleet.services.gates.conformance import (
    Found,
    due_for_reading,
    mark_asked,
    read_back,
)
from fleet.services.gates.course import (
    clear_strays,
    doubt_gates,
    end_observations,
    review_gate,
    void_gates,
)
from fleet.services.gates.firmware import Reviewed, open_firmware_gate, review_wave_gates
from fleet.services.gates.opening import open_gate, open_missing_gates, retry_gate
from fleet.services.gates.partners import reserve_partner, return_partners
from fleet.services.gates.plans import add_gate_plan, choose_plan

__all__ = [
    "Found",
    "Outcome",
    "Reviewed",
    "add_gate_plan",
    "choose_plan",
    "claim_check",
    "clear_strays",
    "doubt_gates",
    "due_for_reading",
    "end_observations",
    "give_back_check",
    "is_claimed",
    "mark_asked",
    "open_firmware_gate",
    "open_gate",
    "open_missing_gates",
    "read_back",
    "report_result",
    "reserve_partner",
    "retry_gate",
    "return_partners",
    "review_gate",
    "review_wave_gates",
    "void_gates",
]
