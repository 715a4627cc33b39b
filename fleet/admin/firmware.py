"""Images and bundles in the admin: drafts can be edited, what is approved or recorded only read."""

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from unfold.admin import TabularInline

from fleet import clock, services
from fleet.admin.base import ConfigAdmin, RecordAdmin
from fleet.errors import BundleFrozen, FleetError
from fleet.models import (
    BundleImage,
    BundleStatus,
    DesiredBundle,
    FirmwareBundle,
    FirmwareImage,
    FirmwareRecord,
)


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
