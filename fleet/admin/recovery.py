"""Incidents, repairs and gates in the admin: records and present states, to read only."""

from django.contrib import admin

from fleet.admin.base import RecordAdmin
from fleet.models import (
    CheckResult,
    Evidence,
    Gate,
    GateCheck,
    GateEvent,
    GatePlan,
    ImpactCursor,
    Incident,
    IncidentCursor,
    IncidentEvent,
    IncidentFault,
    JobImpact,
    PartSwap,
    Repair,
    RepairEvent,
    TicketLink,
    TicketReceipt,
)


@admin.register(Incident)
class IncidentAdmin(RecordAdmin):
    list_display = ("machine", "family", "opened_at", "closed_at", "fault_count", "cause")
    list_filter = ("cause",)
    list_select_related = ("machine",)
    search_fields = ("=machine__name", "=family", "=supplier_case")
    ordering = ("-pk",)


@admin.register(IncidentCursor)
class IncidentCursorAdmin(RecordAdmin):
    list_display = ("done_to", "checked_at")


@admin.register(IncidentFault)
class IncidentFaultAdmin(RecordAdmin):
    list_display = ("incident", "fault")
    list_select_related = ("incident__machine", "fault__machine", "fault__signature")


@admin.register(IncidentEvent)
class IncidentEventAdmin(RecordAdmin):
    list_display = ("incident", "kind", "said", "actor", "at")
    list_select_related = ("incident__machine",)
    ordering = ("-pk",)


@admin.register(JobImpact)
class JobImpactAdmin(RecordAdmin):
    list_display = ("job", "job_kind", "outcome", "fault_at", "resumed_at", "formula")
    list_filter = ("job_kind", "outcome")
    search_fields = ("=job",)
    ordering = ("-pk",)


@admin.register(ImpactCursor)
class ImpactCursorAdmin(RecordAdmin):
    list_display = ("done_to",)


@admin.register(Repair)
class RepairAdmin(RecordAdmin):
    list_display = ("machine", "kind", "component", "status", "ordered_at", "closed_at")
    list_filter = ("kind", "status")
    list_select_related = ("machine",)
    search_fields = ("=machine__name", "=ticket", "=supplier_case")
    ordering = ("-pk",)


@admin.register(RepairEvent)
class RepairEventAdmin(RecordAdmin):
    list_display = ("repair", "kind", "said", "actor", "at")
    list_select_related = ("repair__machine",)
    ordering = ("-pk",)


@admin.register(PartSwap)
class PartSwapAdmin(RecordAdmin):
    list_display = ("machine", "kind", "slot", "old_serial", "new_serial", "at", "actor")
    list_select_related = ("machine",)
    search_fields = ("=machine__name", "=old_serial", "=new_serial")
    ordering = ("-pk",)


@admin.register(GatePlan)
class GatePlanAdmin(RecordAdmin):
    list_display = ("kind", "level", "version", "title", "observation_hours", "review")
    list_filter = ("kind", "review")


@admin.register(Gate)
class GateAdmin(RecordAdmin):
    list_display = ("machine", "plan", "status", "opened_at", "observe_until", "reviewer")
    list_filter = ("status",)
    list_select_related = ("machine", "plan", "reviewer")
    search_fields = ("=machine__name",)
    ordering = ("-pk",)


@admin.register(GateCheck)
class GateCheckAdmin(RecordAdmin):
    list_display = ("gate", "position", "title", "stage", "claimed_by")
    list_select_related = ("gate__machine",)
    exclude = ("claim_token",)


@admin.register(CheckResult)
class CheckResultAdmin(RecordAdmin):
    list_display = ("gate_check", "is_passed", "value", "unit", "threshold", "actor", "at")
    list_select_related = ("gate_check",)
    ordering = ("-pk",)


@admin.register(GateEvent)
class GateEventAdmin(RecordAdmin):
    list_display = ("gate", "kind", "said", "actor", "at")
    list_select_related = ("gate__machine",)
    ordering = ("-pk",)


@admin.register(Evidence)
class EvidenceAdmin(RecordAdmin):
    list_display = ("name", "media_type", "size_bytes", "sha256", "actor", "at")
    search_fields = ("=sha256",)
    ordering = ("-pk",)


@admin.register(TicketLink)
class TicketLinkAdmin(RecordAdmin):
    list_display = ("system", "repair", "ticket", "newest", "told", "told_at", "last_error")
    list_filter = ("system",)
    list_select_related = ("repair__machine",)
    search_fields = ("=ticket",)
    exclude = ("lease_token", "leased_until")


@admin.register(TicketReceipt)
class TicketReceiptAdmin(RecordAdmin):
    list_display = ("system", "message_id", "repair", "at")
    list_filter = ("system",)
    list_select_related = ("repair__machine",)
    search_fields = ("=message_id",)
    ordering = ("-pk",)
