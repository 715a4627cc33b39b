"""What machines reported, in the admin: the catalogue can be edited, reports and sums only read."""

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from fleet.admin.base import ConfigAdmin, RecordAdmin
from fleet.models import (
    CollectorCursor,
    CounterSample,
    Fault,
    FaultSignature,
    Observation,
    Recovery,
    ServiceDay,
    TelemetryBatch,
    TelemetryHold,
    TelemetrySummary,
)


@admin.register(FaultSignature)
class FaultSignatureAdmin(ConfigAdmin):
    """The catalogue: what unknown signatures mean is said here."""

    list_display = ("name", "family", "title", "severity", "kind", "gap_minutes")
    list_filter = ("family", "severity", "kind")
    search_fields = ("name", "title")
    readonly_fields = ("name",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # a signature appears with its first fault

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(TelemetryBatch)
class TelemetryBatchAdmin(RecordAdmin):
    list_display = ("source", "key", "received_at", "accepted", "duplicates", "refused")
    search_fields = ("=source", "=key")
    ordering = ("-pk",)


@admin.register(Observation)
class ObservationAdmin(RecordAdmin):
    list_display = (
        "machine",
        "start",
        "end",
        "in_service_seconds",
        "throughput",
        "workload",
        "job",
    )
    list_select_related = ("machine",)
    search_fields = ("=machine__name",)
    ordering = ("-pk",)


@admin.register(Fault)
class FaultAdmin(RecordAdmin):
    list_display = ("machine", "time", "signature", "severity", "component", "source")
    list_filter = ("severity",)
    list_select_related = ("machine", "signature")
    search_fields = ("=machine__name", "=signature__name")
    ordering = ("-pk",)


@admin.register(CounterSample)
class CounterSampleAdmin(RecordAdmin):
    list_display = ("machine", "signature", "time", "value", "boot_id", "is_backwards")
    list_filter = ("is_backwards",)
    list_select_related = ("machine",)
    search_fields = ("=machine__name", "=signature")
    ordering = ("-pk",)


@admin.register(TelemetryHold)
class TelemetryHoldAdmin(RecordAdmin):
    list_display = ("machine", "witness", "since", "until", "reasons", "checked_at")
    list_select_related = ("machine",)
    search_fields = ("=machine__name",)


@admin.register(Recovery)
class RecoveryAdmin(RecordAdmin):
    list_display = ("machine", "time", "recovered_at", "path", "recovery_seconds", "job")
    list_filter = ("path",)
    list_select_related = ("machine",)
    search_fields = ("=machine__name", "=job")
    ordering = ("-pk",)


@admin.register(TelemetrySummary)
class TelemetrySummaryAdmin(RecordAdmin):
    list_display = ("day", "first_machine", "last_machine", "as_of", "reports_from")
    list_filter = ("day",)

    def get_queryset(self, request):  # type: ignore[no-untyped-def]
        return super().get_queryset(request).defer("content")


@admin.register(ServiceDay)
class ServiceDayAdmin(RecordAdmin):
    list_display = ("day", "platform", "pool", "job_kind", "machines", "service_hours")
    list_filter = ("platform", "job_kind")
    list_select_related = ("platform",)


@admin.register(CollectorCursor)
class CollectorCursorAdmin(RecordAdmin):
    list_display = ("collector", "collected_until", "leased_until")
