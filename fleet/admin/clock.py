"""The clock and the processes' beats in the admin: to read only."""

from django.contrib import admin

from fleet.admin.base import RecordAdmin
from fleet.models import Clock, ClockJump, ClockReading, Heartbeat


@admin.register(Clock)
class ClockAdmin(RecordAdmin):
    list_display = ("mode", "virtual_time", "rate", "ticked_at")


@admin.register(ClockReading)
class ClockReadingAdmin(RecordAdmin):
    list_display = ("host", "wall", "steady_seconds")


@admin.register(ClockJump)
class ClockJumpAdmin(RecordAdmin):
    list_display = ("before", "after", "seconds", "host")
    ordering = ("-pk",)


@admin.register(Heartbeat)
class HeartbeatAdmin(RecordAdmin):
    list_display = ("name", "beat_at")
