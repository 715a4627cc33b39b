"""What admin pages of the fleet are built on."""

from typing import Any

from django.db.models import Model
from django.http import HttpRequest
from unfold.admin import ModelAdmin, TabularInline
from unfold.paginator import InfinitePaginator


class ConfigAdmin(ModelAdmin):
    """Base of what people may edit.

    Only what the form changed is written: a whole row would carry back a state that moved on
    while the form was open.
    """

    list_per_page = 50
    show_full_result_count = False
    warn_unsaved_form = True

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if not change:
            super().save_model(request, obj, form, change)
            return
        columns = [field.name for field in obj._meta.concrete_fields]
        obj.save(update_fields=[name for name in columns if name in form.changed_data])


class RecordAdmin(ModelAdmin):
    """Base of what is shown and never edited, page by page without counting a large table."""

    list_per_page = 50
    show_full_result_count = False
    paginator = InfinitePaginator
    actions: Any = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class RecordInline(TabularInline):
    """Rows of another table on a page, to read."""

    extra = 0
    can_delete = False
    show_change_link = False

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
