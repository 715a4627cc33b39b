"""Accounts, roles and tokens in the admin: only a superuser hands out rights."""

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as PlainGroupAdmin
from django.contrib.auth.admin import UserAdmin as PlainUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.http import HttpRequest
from knox.models import AuthToken
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from fleet.admin.base import RecordAdmin

admin.site.unregister([User, Group, AuthToken])


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
