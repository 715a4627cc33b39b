"""What changes the fleet: every write goes through these functions."""

from fleet.faults import open_faults
from fleet.intended import Intended, intended, intended_bundle
from fleet.services.breakglass import break_glass, end_break_glasses, review_break_glass
from fleet.services.capacity import keep_days
from fleet.services.changes import record_change, relocate
from fleet.services.charges import charge_repairs
from fleet.services.clocks import adopt_wall, look_at_wall, record_jump
from fleet.services.departures import (
    is_ordered_out,
    resume_take_outs,
    take_out,
    take_out_by_rule,
    takes_out,
)
from fleet.services.diagnoses import (
    diagnose_incident,
    link_change,
    name_cause,
    note_incident,
    open_case,
)
from fleet.services.drains import AT_SCHEDULER, record_foreign_drains
from fleet.services.evidence import StoredFile, keep_evidence, open_evidence, store_file
from fleet.services.firmware import (
    approve_bundle,
    bundle_digest,
    create_bundle,
    create_image,
    record_readings,
    set_desired_bundle,
    withdraw_bundle,
)
from fleet.services.gates import (
    Found,
    Outcome,
    Reviewed,
    add_gate_plan,
    choose_plan,
    claim_check,
    clear_strays,
    doubt_gates,
    due_for_reading,
    end_observations,
    give_back_check,
    is_claimed,
    mark_asked,
    open_firmware_gate,
    open_gate,
    open_missing_gates,
    read_back,
    report_result,
    reserve_partner,
    retry_gate,
    return_partners,
    review_gate,
    review_wave_gates,
    void_gates,
)
from fleet.services.holds import BMC, hold_telemetry
from fleet.services.identity import claim, observe_claims
from fleet.services.impacts import (
    Impact,
    ImpactsResult,
    RefusedImpact,
    record_impact,
    record_impacts,
)
from fleet.services.impacts import wrong_with as wrong_with_impact
from fleet.services.imports import ImportResult, import_history
from fleet.services.incidents import record_incidents
from fleet.services.interruptions import accelerators_of, record_interruptions
from fleet.services.inventory import register_machines, register_platform
from fleet.services.jobs import record_jobs
from fleet.services.lifecycle import cordon, lift_cordon, move_machine, retire_machine
from fleet.services.notices import clear_notice, raise_notice
from fleet.services.owners import hand_over, mine, refresh_owners, take
from fleet.services.recordings import RecordingResult, import_outages
from fleet.services.repair_checks import ORDERABLE
from fleet.services.repairs import OPEN as OPEN_REPAIR
from fleet.services.repairs import (
    assign_repair,
    cancel_repair,
    close_repair,
    end_abandoned,
    order_repair,
    send_to_supplier,
    start_repair,
)
from fleet.services.scheduler import keep_drained, tell_scheduler
from fleet.services.summaries import summarise
from fleet.services.swaps import SwapPreview, preview_swap, swap_parts
from fleet.services.telemetry import BatchResult, Refusal, record
from fleet.services.tickets import take_ticket, tell_tickets
from fleet.services.triage import diagnose_again, diagnose_and_act
from fleet.services.watch import alarms, watch_bypasses, watch_deadlines

__all__ = [
    "AT_SCHEDULER",
    "BMC",
    "OPEN_REPAIR",
    "ORDERABLE",
    "BatchResult",
    "Found",
    "Impact",
    "ImpactsResult",
    "ImportResult",
    "Intended",
    "Outcome",
    "RecordingResult",
    "Refusal",
    "RefusedImpact",
    "Reviewed",
    "StoredFile",
    "SwapPreview",
    "accelerators_of",
    "add_gate_plan",
    "adopt_wall",
    "alarms",
    "approve_bundle",
    "assign_repair",
    "break_glass",
    "bundle_digest",
    "cancel_repair",
    "charge_repairs",
    "choose_plan",
    "claim",
    "claim_check",
    "clear_notice",
    "clear_strays",
    "close_repair",
    "cordon",
    "create_bundle",
    "create_image",
    "diagnose_again",
    "diagnose_and_act",
    "diagnose_incident",
    "doubt_gates",
    "due_for_reading",
    "end_abandoned",
    "end_break_glasses",
    "end_observations",
    "give_back_check",
    "hand_over",
    "hold_telemetry",
    "import_history",
    "import_outages",
    "intended",
    "intended_bundle",
    "is_claimed",
    "is_ordered_out",
    "keep_days",
    "keep_drained",
    "keep_evidence",
    "lift_cordon",
    "link_change",
    "look_at_wall",
    "mark_asked",
    "mine",
    "move_machine",
    "name_cause",
    "note_incident",
    "observe_claims",
    "open_case",
    "open_evidence",
    "open_faults",
    "open_firmware_gate",
    "open_gate",
    "open_missing_gates",
    "order_repair",
    "preview_swap",
    "raise_notice",
    "read_back",
    "record",
    "record_change",
    "record_foreign_drains",
    "record_impact",
    "record_impacts",
    "record_incidents",
    "record_interruptions",
    "record_jobs",
    "record_jump",
    "record_readings",
    "refresh_owners",
    "register_machines",
    "register_platform",
    "relocate",
    "report_result",
    "reserve_partner",
    "resume_take_outs",
    "retire_machine",
    "retry_gate",
    "return_partners",
    "review_break_glass",
    "review_gate",
    "review_wave_gates",
    "send_to_supplier",
    "set_desired_bundle",
    "start_repair",
    "store_file",
    "summarise",
    "swap_parts",
    "take",
    "take_out",
    "take_out_by_rule",
    "take_ticket",
    "takes_out",
    "tell_scheduler",
    "tell_tickets",
    "void_gates",
    "watch_bypasses",
    "watch_deadlines",
    "withdraw_bundle",
    "wrong_with_impact",
]
