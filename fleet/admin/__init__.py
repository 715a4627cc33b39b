"""The fleet in the admin: configuration can be edited, records and states only read.

A machine's state, its cordons and the telemetry move through `fleet.services`, which keep the
rules and write the records; the admin offers no way around them.
"""

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin as PlainGroupAdmin
from django.contrib.auth.admin import UserAdmin as PlainUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from knox.models import AuthToken
from unfold.admin import ModelAdmin, TabularInline
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from fleet import clock, services
from fleet.admin import capacity, lifecycle, recovery  # noqa: F401 - they register their models
from fleet.admin.base import ConfigAdmin, RecordAdmin, RecordInline
from fleet.errors import BundleFrozen, FleetError
from fleet.models import (
    BundleImage,
    BundleStatus,
    Change,
    ChangedMachine,
    Clock,
    ClockJump,
    ClockReading,
    CollectorCursor,
    Component,
    Cordon,
    CounterSample,
    DesiredBundle,
    Fault,
    FaultSignature,
    FirmwareBundle,
    FirmwareImage,
    FirmwareRecord,
    Heartbeat,
    Job,
    Machine,
    Observation,
    Platform,
    Recovery,
    ServiceDay,
    StateChange,
    Team,
    TelemetryBatch,
    TelemetryHold,
    TelemetrySummary,
)
from fleet.services.changes import PLACE

admin.site.unregister([User, Group, AuthToken])


# --- people -------------------------------------------------------------------------------------


@admin.register(User)
class UserAdmin(PlainUserAdmin, ModelAdmin):
    """Accounts; only a superuser hands out rights."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_per_page = 50

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> tuple[str, ...]:
        own = super().get_readonly_fields(request, obj)
        if request.user.is_superuser:
            return tuple(own)
        return (*own, "is_staff", "is_superuser", "groups", "user_permissions")

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        # Whoever may change a superuser's password is one.
        is_above = obj is not None and obj.is_superuser and not request.user.is_superuser
        return not is_above and super().has_change_permission(request, obj)


@admin.register(Group)
class GroupAdmin(PlainGroupAdmin, ModelAdmin):
    """Roles; only a superuser says what they may do."""

    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.is_superuser

    def has_change_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        return request.user.is_superuser


@admin.register(AuthToken)
class AuthTokenAdmin(RecordAdmin):
    """Tokens of the API: made there, seen and revoked here."""

    list_display = ("token_key", "user", "created", "expiry")
    list_select_related = ("user",)
    search_fields = ("token_key", "user__username")
    fields = ("token_key", "user", "created", "expiry")
    paginator = admin.ModelAdmin.paginator

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return ModelAdmin.has_delete_permission(self, request, obj)


# --- inventory ----------------------------------------------------------------------------------


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


# --- firmware -----------------------------------------------------------------------------------


@admin.register(FirmwareImage)
class FirmwareImageAdmin(ConfigAdmin):
    """Images may be corrected until a frozen bundle names them."""

    list_display = ("kind", "version", "vendor", "activation", "activation_domain")
    list_filter = ("kind", "activation")
    search_fields = ("kind", "vendor", "version")

    def has_change_permission(self, request: HttpRequest, obj: FirmwareImage | None = None) -> bool:
        return super().has_change_permission(request, obj) and not is_frozen(obj)

    def has_delete_permission(self, request: HttpRequest, obj: FirmwareImage | None = None) -> bool:
        return super().has_delete_permission(request, obj) and not is_frozen(obj)


def is_frozen(image: FirmwareImage | None) -> bool:
    """True once a bundle that is no draft any more names the image."""
    return image is not None and image.places.exclude(bundle__status=BundleStatus.DRAFT).exists()


class BundleImageInline(TabularInline):
    model = BundleImage
    extra = 0
    autocomplete_fields = ("image",)


@admin.register(FirmwareBundle)
class FirmwareBundleAdmin(ConfigAdmin):
    """A draft is its author's to edit; approval is somebody else's, and freezes it."""

    list_display = ("name", "version", "status", "author", "approver", "approved_at")
    list_filter = ("status", "platforms")
    list_select_related = ("author", "approver")
    search_fields = ("name", "version")
    autocomplete_fields = ("platforms",)
    inlines = (BundleImageInline,)
    readonly_fields = (
        "status",
        "digest",
        "author",
        "approver",
        "created_at",
        "approved_at",
        "withdrawer",
        "withdrawn_at",
    )
    actions: tuple[str, ...] = ("approve",)

    def has_change_permission(
        self, request: HttpRequest, obj: FirmwareBundle | None = None
    ) -> bool:
        is_own_draft = obj is None or (
            obj.status == BundleStatus.DRAFT and obj.author_id == request.user.pk
        )
        return is_own_draft and super().has_change_permission(request, obj)

    def has_delete_permission(
        self, request: HttpRequest, obj: FirmwareBundle | None = None
    ) -> bool:
        is_draft = obj is not None and obj.status == BundleStatus.DRAFT
        return is_draft and super().has_delete_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if not change:
            obj.author = request.user
            obj.created_at = clock.now()
        elif FirmwareBundle.objects.select_for_update().get(pk=obj.pk).status != obj.status:
            raise BundleFrozen(f"bundle {obj} was approved meanwhile; it cannot change any more")
        super().save_model(request, obj, form, change)

    @admin.action(description="Approve the selected drafts", permissions=("change",))
    def approve(self, request: HttpRequest, queryset: QuerySet[FirmwareBundle]) -> None:
        approver = get_object_or_404(User, username=request.user.get_username())
        for bundle in queryset:
            try:
                services.approve_bundle(bundle, approver=approver, now=clock.now())
            except FleetError as error:
                self.message_user(request, f"{bundle}: {error}", messages.ERROR)
            else:
                self.message_user(request, f"{bundle} is approved", messages.SUCCESS)


@admin.register(BundleImage)
class BundleImageAdmin(RecordAdmin):
    list_display = ("bundle", "position", "image")
    list_select_related = ("bundle", "image")
    search_fields = ("bundle__name", "image__version")


@admin.register(FirmwareRecord)
class FirmwareRecordAdmin(RecordAdmin):
    list_display = ("machine", "kind", "slot", "stage", "version", "since", "source", "is_disputed")
    list_filter = ("stage", "source", "is_disputed", "kind")
    list_select_related = ("machine",)
    search_fields = ("=machine__name", "=version")
    ordering = ("-pk",)


@admin.register(DesiredBundle)
class DesiredBundleAdmin(RecordAdmin):
    """What machines are meant to run: a word is added by the API, the newest one holds."""

    list_display = ("platform", "pool", "bundle", "since", "actor", "reason")
    list_select_related = ("platform", "bundle", "actor")
    search_fields = ("=platform__name", "=pool")
    ordering = ("-pk",)


# --- telemetry ----------------------------------------------------------------------------------


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


# --- changes made elsewhere ---------------------------------------------------------------------


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


# --- the clock ----------------------------------------------------------------------------------


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
