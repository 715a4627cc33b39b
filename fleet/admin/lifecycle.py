"""Owners, notices and departures in the admin: rules can be edited, the rest is to read."""

from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from fleet import services
from fleet.admin.base import ConfigAdmin, RecordAdmin
from fleet.models import BreakGlass, HandOver, Notice, RoleTeam, SchedulerWord, TakeOut


@admin.register(RoleTeam)
class RoleTeamAdmin(ConfigAdmin):
    """Which team takes a role where; machines follow at once."""

    list_display = ("role", "site", "pool", "team")
    list_filter = ("role",)
    list_select_related = ("team",)
    autocomplete_fields = ("team",)
    search_fields = ("=site", "=pool")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        services.refresh_owners(of_all=True)

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        super().delete_model(request, obj)
        services.refresh_owners(of_all=True)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        super().delete_queryset(request, queryset)
        services.refresh_owners(of_all=True)


@admin.register(HandOver)
class HandOverAdmin(RecordAdmin):
    list_display = ("machine", "state", "new_team", "new_person", "word", "at", "actor")
    list_select_related = ("machine", "new_team", "new_person")
    search_fields = ("=machine__name", "=actor")
    ordering = ("-pk",)


@admin.register(Notice)
class NoticeAdmin(RecordAdmin):
    list_display = ("kind", "machine", "subject", "said", "raised_at", "cleared_at")
    list_filter = ("kind", ("cleared_at", admin.EmptyFieldListFilter))
    list_select_related = ("machine",)
    search_fields = ("=machine__name", "=subject")
    ordering = ("-pk",)


@admin.register(TakeOut)
class TakeOutAdmin(RecordAdmin):
    list_display = ("machine", "reason", "is_by_rule", "is_at_once", "ordered_at", "ended_at")
    list_filter = ("is_by_rule", ("ended_at", admin.EmptyFieldListFilter))
    list_select_related = ("machine",)
    search_fields = ("=machine__name", "=actor")
    ordering = ("-pk",)


@admin.register(BreakGlass)
class BreakGlassAdmin(RecordAdmin):
    list_display = ("machine", "person", "reason", "began_at", "until", "ended_at", "reviewer")
    list_filter = (("ended_at", admin.EmptyFieldListFilter),)
    list_select_related = ("machine", "person", "reviewer")
    search_fields = ("=machine__name",)
    ordering = ("-pk",)


@admin.register(SchedulerWord)
class SchedulerWordAdmin(RecordAdmin):
    list_display = ("machine", "drained_as", "told_at", "answer")
    list_filter = (("drained_as", admin.EmptyFieldListFilter),)
    list_select_related = ("machine",)
    search_fields = ("=machine__name",)
    exclude = ("lease_token", "leased_until")
