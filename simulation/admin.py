"""The virtual fleet in the admin, to read: its truth is fixed by its seed."""

from django.contrib import admin

from fleet.admin.base import RecordAdmin
from simulation.models import VirtualFleet, VirtualJob, VirtualMachine, VirtualOrder


@admin.register(VirtualFleet)
class VirtualFleetAdmin(RecordAdmin):
    list_display = ("purpose", "seed", "origin", "created_at")


@admin.register(VirtualMachine)
class VirtualMachineAdmin(RecordAdmin):
    list_display = ("machine", "fault_multiplier", "throughput_level", "is_lemon")
    list_filter = ("is_lemon",)
    list_select_related = ("machine",)
    search_fields = ("=machine__name",)


@admin.register(VirtualOrder)
class VirtualOrderAdmin(RecordAdmin):
    list_display = ("machine", "step", "outcome", "taken_at", "down_at", "up_at")
    list_filter = ("step", "outcome")
    list_select_related = ("machine__machine",)
    search_fields = ("=machine__machine__name",)
    ordering = ("-pk",)


@admin.register(VirtualJob)
class VirtualJobAdmin(RecordAdmin):
    list_display = ("name", "partition", "owner", "started_at", "ends_at", "expected_end")
    search_fields = ("=name",)
    ordering = ("-pk",)
