"""Claims and kept days in the admin: to read only."""

from django.contrib import admin

from fleet.admin.base import RecordAdmin
from fleet.models import CapacityDay, MachineClaim


@admin.register(MachineClaim)
class MachineClaimAdmin(RecordAdmin):
    list_display = ("machine", "kind", "slot", "value", "since", "source", "actor")
    list_filter = ("kind", "source")
    list_select_related = ("machine",)
    search_fields = ("=machine__name", "=value")
    ordering = ("-pk",)


@admin.register(CapacityDay)
class CapacityDayAdmin(RecordAdmin):
    list_display = ("day", "platform", "pool", "qualified", "canary", "cordoned", "as_of")
    list_filter = ("platform",)
    list_select_related = ("platform",)
    search_fields = ("=pool",)
    ordering = ("-day", "-pk")
