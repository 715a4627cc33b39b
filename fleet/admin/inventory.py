"""Machines, their parts and jobs in the admin: places can be corrected, states only read."""

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404

from fleet import clock, services
from fleet.admin.base import ConfigAdmin, RecordAdmin, RecordInline
from fleet.errors import FleetError
from fleet.models import Component, Cordon, Job, Machine, Platform, StateChange, Team
from fleet.services.changes import PLACE


@admin.register(Team)
class TeamAdmin(ConfigAdmin):
    list_display = ("name",)
    search_fields = ("name",)
    filter_horizontal = ("members",)


@admin.register(Platform)
class PlatformAdmin(ConfigAdmin):
    list_display = ("name", "vendor", "accelerators")
    search_fields = ("name", "vendor")


class ComponentInline(RecordInline):
    model = Component


class CordonInline(RecordInline):
    model = Cordon


@admin.register(Machine)
class MachineAdmin(ConfigAdmin):
    """Where a machine is may be corrected here; what state it is in may not."""

    list_display = (
        "name",
        "platform",
        "site",
        "rack",
        "state",
        "may_take_work",
        "next_step",
        "deadline_at",
    )
    list_filter = ("state", "may_take_work", "platform")
    list_select_related = ("platform",)
    search_fields = ("name", "serial", "rack")
    autocomplete_fields = ("team",)
    inlines = (ComponentInline, CordonInline)
    actions = ("retire",)
    readonly_fields = (
        "name",
        "platform",
        "state",
        "owner_role",
        "next_step",
        "entered_at",
        "deadline_at",
        "watch_until",
        "may_take_work",
        "registered_at",
        "job",
        "workload",
        "serial",  # claims, each with its time: changed on the machine's identity page
        "bmc_address",
    )
    fieldsets = (
        (None, {"fields": ("name", "platform", "team", "serial", "labels")}),
        (
            "State",
            {
                "fields": (
                    "state",
                    "owner_role",
                    "next_step",
                    "entered_at",
                    "deadline_at",
                    "watch_until",
                    "may_take_work",
                    "registered_at",
                )
            },
        ),
        (
            "Place",
            {"fields": Machine.PLACES},
        ),
        ("Work", {"fields": ("job", "workload", "scheduler_node")}),
        ("Management", {"fields": ("bmc_address", "credential")}),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # machines are registered with their components, and may be vouched for

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False  # machines retire

    def has_retire_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("fleet.delete_machine"))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        places = {name: getattr(obj, name) for name in form.changed_data if name in PLACE}
        actor = request.user.get_username()
        services.relocate(obj, places=places, actor=actor, now=clock.now())
        super().save_model(request, obj, form, change)

    @admin.action(description="Retire the selected machines", permissions=("retire",))
    def retire(self, request: HttpRequest, queryset: QuerySet[Machine]) -> None:
        user = get_object_or_404(User, username=request.user.get_username())
        for machine in queryset:
            try:
                services.retire_machine(
                    machine, actor=user.get_username(), user=user, now=clock.now()
                )
            except FleetError as error:
                self.message_user(request, f"{machine}: {error}", messages.ERROR)
            else:
                self.message_user(request, f"{machine} is retired", messages.SUCCESS)


@admin.register(Component)
class ComponentAdmin(RecordAdmin):
    list_display = ("machine", "kind", "slot", "model", "serial")
    list_filter = ("kind",)
    list_select_related = ("machine",)
    search_fields = ("=machine__name", "=serial")


@admin.register(Cordon)
class CordonAdmin(RecordAdmin):
    list_display = ("machine", "owner", "reason", "since", "lifted_at", "lifted_by")
    list_filter = (("lifted_at", admin.EmptyFieldListFilter),)
    list_select_related = ("machine",)
    search_fields = ("=machine__name", "owner")


@admin.register(Job)
class JobAdmin(RecordAdmin):
    list_display = ("name", "kind", "owner", "partition", "started_at", "expected_end", "ended_at")
    list_filter = ("is_running",)
    search_fields = ("=name", "=owner")


@admin.register(StateChange)
class StateChangeAdmin(RecordAdmin):
    list_display = ("machine", "old_state", "new_state", "trigger", "at", "actor", "gate")
    list_filter = ("new_state",)
    list_select_related = ("machine",)
    search_fields = ("=machine__name", "=actor")
    ordering = ("-pk",)
