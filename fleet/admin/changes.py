"""Changes that were made elsewhere, in the admin: to read only."""

from django.contrib import admin

from fleet.admin.base import RecordAdmin
from fleet.models import Change, ChangedMachine


@admin.register(Change)
class ChangeAdmin(RecordAdmin):
    list_display = ("at", "kind", "what", "old", "new", "machine_count", "source", "reported_by")
    list_filter = ("kind",)
    list_select_related = ("reported_by",)
    search_fields = ("=what", "=source", "=key")
    ordering = ("-pk",)


@admin.register(ChangedMachine)
class ChangedMachineAdmin(RecordAdmin):
    list_display = ("machine", "change")
    list_select_related = ("machine", "change")
    search_fields = ("=machine__name",)
    ordering = ("-pk",)
