"""Rollouts in the admin: records to read. What steers a rollout is its page, by orders."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.html import format_html
from unfold.forms import ActionForm

from fleet import clock
from fleet.admin.base import RecordAdmin, RecordInline
from fleet.admin.firmware import FirmwareBundleAdmin
from fleet.errors import FleetError
from fleet.hints import hint
from fleet.models import FirmwareBundle
from rollouts import roles, services, tasks
from rollouts.errors import RolloutError
from rollouts.models import (
    Action,
    Assignment,
    Attempt,
    AttemptEvent,
    Block,
    Clearance,
    ClockHold,
    Contamination,
    Decision,
    Evaluation,
    Freeze,
    Membership,
    Order,
    Policy,
    Preview,
    ProbeRound,
    Reminder,
    Rollout,
    ScoreBlob,
    SupplierPackage,
    Transition,
    Wave,
)

admin.site.unregister(FirmwareBundle)


class ReasonedActionForm(ActionForm):
    """An action that may say why."""

    reason = forms.CharField(
        label="",
        required=False,
        max_length=2000,
        widget=forms.TextInput(
            {
                "placeholder": "Reason (to withdraw)",
                "aria-label": "Reason",
                "class": "bg-white px-2 py-1 rounded-default text-base-700",
            }
        ),
    )


@admin.register(FirmwareBundle)
class BundleAdmin(FirmwareBundleAdmin):
    """Bundles as the fleet shows them, and the one thing about them that concerns rollouts."""

    action_form = ReasonedActionForm
    actions = (*FirmwareBundleAdmin.actions, "withdraw")

    def has_withdraw_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("fleet.change_firmwarebundle"))

    @admin.action(
        description="Withdraw the selected bundles, which halts their rollouts",
        permissions=("withdraw",),
    )
    def withdraw(self, request: HttpRequest, queryset: QuerySet[FirmwareBundle]) -> None:
        actor = get_object_or_404(User, username=request.user.get_username())
        reason, now = request.POST.get("reason", "").strip(), clock.now()
        for bundle in queryset:
            try:
                given = services.withdraw_bundle(bundle, actor=actor, now=now, reason=reason)
            except (FleetError, RolloutError) as error:
                self.message_user(request, f"{bundle}: {error}", messages.ERROR)
                continue
            for order in given:
                hint(tasks.evaluate, order.rollout_id)
            stopped = ", ".join(f"{order.rollout} ({order.kind})" for order in given) or "none"
            self.message_user(request, f"{bundle} is withdrawn; rollouts stopped: {stopped}")


@admin.register(Policy)
class PolicyAdmin(RecordAdmin):
    list_display = ("name", "version", "author", "created_at", "digest")
    list_select_related = ("author",)
    search_fields = ("name",)


class WaveInline(RecordInline):
    model = Wave
    fields = ("number", "kind", "size", "window_hours", "status", "looks", "window_end")


@admin.register(Rollout)
class RolloutAdmin(RecordAdmin):
    list_display = ("name", "page", "status", "mode", "bundle", "author", "created_at")
    list_filter = ("status", "mode", "kind")
    list_select_related = ("bundle", "author")
    search_fields = ("name",)
    readonly_fields = ("page",)
    inlines = (WaveInline,)
    actions = ("halt_selected", "halt_all")

    def has_halt_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(roles.HALT))

    @admin.action(description="Halt the selected rollouts", permissions=("halt",))
    def halt_selected(self, request: HttpRequest, queryset: QuerySet[Rollout]) -> None:
        chosen = queryset.filter(status__in=services.STOPPED).values_list("pk", flat=True)
        self._halt(request, only=list(chosen))

    @admin.action(description="Halt every rollout, selected or not", permissions=("halt",))
    def halt_all(self, request: HttpRequest, queryset: QuerySet[Rollout]) -> None:
        self._halt(request, only=None)

    def _halt(self, request: HttpRequest, *, only: list[int] | None) -> None:
        actor = get_object_or_404(User, username=request.user.get_username())
        given = services.halt_all(actor=actor, now=clock.now(), only=only)
        for order in given:
            hint(tasks.evaluate, order.rollout_id)
        self.message_user(request, f"halted: {', '.join(str(o.rollout) for o in given) or 'none'}")

    @admin.display(description="page")
    def page(self, rollout: Rollout) -> str:
        address = reverse("rollouts:detail", args=(rollout.pk,))
        return format_html('<a href="{}">open its page</a>', address)


class FreezeForm(forms.ModelForm):
    """Asks what the service would refuse, so that the page says it beside the fields."""

    class Meta:
        model = Freeze
        fields = ("reason", "start", "end", "sites", "pools")

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or {}
        for name in ("sites", "pools"):
            given[name] = given.get(name) or []
            if not _is_list_of_names(given[name]):
                self.add_error(name, 'a list of names such as ["ams"]; empty for all')
        if {"start", "end", "reason"} <= set(given):
            asked = {name: given[name] for name in ("start", "end", "reason")}
            for reason in services.freeze_refusals(**asked, now=clock.now()):
                self.add_error(None, reason)
        return given


def _is_list_of_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


@admin.register(Freeze)
class FreezeAdmin(RecordAdmin):
    """Set by whoever may halt, lifted by whoever may start; never edited."""

    form = FreezeForm
    list_display = ("reason", "start", "end", "sites", "pools", "author", "lifted_at", "lifted_by")
    list_select_related = ("author", "lifted_by")
    search_fields = ("reason",)
    actions = ("lift",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(roles.HALT))

    def has_lift_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(roles.OPERATE))

    def save_model(self, request: HttpRequest, obj: Freeze, form: Any, change: bool) -> None:
        author = get_object_or_404(User, username=request.user.get_username())
        saved = services.set_freeze(**form.cleaned_data, author=author, now=clock.now())
        obj.pk = saved.pk
        obj.refresh_from_db()

    @admin.action(description="Lift the selected freezes", permissions=("lift",))
    def lift(self, request: HttpRequest, queryset: QuerySet[Freeze]) -> None:
        actor = get_object_or_404(User, username=request.user.get_username())
        for freeze in queryset:
            services.lift_freeze(freeze, actor=actor, now=clock.now())


@admin.register(Wave)
class WaveAdmin(RecordAdmin):
    list_display = ("rollout", "number", "kind", "size", "status", "looks", "window_end")
    list_filter = ("status", "kind")
    list_select_related = ("rollout",)
    search_fields = ("rollout__name",)


@admin.register(Assignment)
class AssignmentAdmin(RecordAdmin):
    list_display = (
        "rollout",
        "machine_name",
        "stratum",
        "position",
        "planned_wave",
        "is_hold_back",
    )
    list_filter = ("is_hold_back",)
    list_select_related = ("rollout",)
    search_fields = ("=machine_name", "rollout__name")


@admin.register(Block)
class BlockAdmin(RecordAdmin):
    list_display = ("wave", "number", "started_at", "clock_start")
    list_select_related = ("wave__rollout",)


@admin.register(Membership)
class MembershipAdmin(RecordAdmin):
    list_display = ("machine", "wave", "arm", "stratum")
    list_filter = ("arm",)
    list_select_related = ("machine", "wave__rollout")
    search_fields = ("=machine__name",)


@admin.register(Attempt)
class AttemptAdmin(RecordAdmin):
    list_display = ("machine", "rollout", "number", "status", "triage", "detail", "started_at")
    list_filter = ("status", "triage")
    list_select_related = ("machine", "rollout")
    search_fields = ("=machine__name", "rollout__name")
    ordering = ("-pk",)


@admin.register(AttemptEvent)
class AttemptEventAdmin(RecordAdmin):
    list_display = ("attempt", "old_status", "new_status", "detail", "at")
    list_filter = ("new_status",)
    list_select_related = ("attempt__machine",)
    search_fields = ("=attempt__machine__name",)
    ordering = ("-pk",)


@admin.register(Clearance)
class ClearanceAdmin(RecordAdmin):
    list_display = ("attempt", "actor", "reason", "at")
    list_select_related = ("attempt__machine", "actor")


@admin.register(Contamination)
class ContaminationAdmin(RecordAdmin):
    list_display = ("wave", "machine", "arm", "kind", "version", "was_staged", "at")
    list_filter = ("arm", "was_staged")
    list_select_related = ("wave__rollout", "machine")
    search_fields = ("=machine__name",)


@admin.register(ProbeRound)
class ProbeRoundAdmin(RecordAdmin):
    list_display = ("wave", "number", "begun_at", "ended_at", "measured")
    list_select_related = ("wave__rollout",)
    search_fields = ("=wave__rollout__name",)


@admin.register(ScoreBlob)
class ScoreBlobAdmin(RecordAdmin):
    list_display = ("digest",)
    search_fields = ("digest",)
    ordering = ("-pk",)

    def get_queryset(self, request):  # type: ignore[no-untyped-def]
        return super().get_queryset(request).defer("content")


@admin.register(Evaluation)
class EvaluationAdmin(RecordAdmin):
    list_display = ("wave", "kind", "look", "as_of", "elapsed", "engine_version", "recorded_at")
    list_filter = ("kind",)
    list_select_related = ("wave__rollout",)
    search_fields = ("rollout__name",)
    ordering = ("-pk",)


@admin.register(Decision)
class DecisionAdmin(RecordAdmin):
    list_display = ("rollout", "wave", "kind", "reason_code", "reason", "as_of")
    list_filter = ("kind", "reason_code")
    list_select_related = ("rollout", "wave__rollout")
    search_fields = ("rollout__name",)
    ordering = ("-pk",)


@admin.register(Order)
class OrderAdmin(RecordAdmin):
    list_display = ("rollout", "kind", "actor", "second_person", "reason", "at")
    list_filter = ("kind",)
    list_select_related = ("rollout", "actor", "second_person")
    search_fields = ("rollout__name", "actor__username")
    ordering = ("-pk",)


@admin.register(Transition)
class TransitionAdmin(RecordAdmin):
    list_display = ("rollout", "wave", "trigger", "old_status", "new_status", "at")
    list_filter = ("new_status",)
    list_select_related = ("rollout", "wave__rollout")
    search_fields = ("rollout__name",)
    ordering = ("-pk",)


@admin.register(Action)
class ActionAdmin(RecordAdmin):
    list_display = ("machine", "kind", "rollout", "decision", "order", "at")
    list_filter = ("kind",)
    list_select_related = (
        "machine",
        "rollout",
        "decision__rollout",
        "order__rollout",
        "order__actor",
    )
    search_fields = ("=machine__name", "rollout__name")
    ordering = ("-pk",)


@admin.register(Reminder)
class ReminderAdmin(RecordAdmin):
    list_display = ("rollout", "subject", "status", "since", "number", "text", "at")
    list_filter = ("status",)
    list_select_related = ("rollout",)
    search_fields = ("rollout__name",)
    ordering = ("-pk",)


@admin.register(ClockHold)
class ClockHoldAdmin(RecordAdmin):
    list_display = ("rollout", "jump", "at")
    list_select_related = ("rollout", "jump")
    search_fields = ("rollout__name",)
    ordering = ("-pk",)


@admin.register(Preview)
class PreviewAdmin(RecordAdmin):
    list_display = ("rollout", "digest", "made_at", "drawn_as_of")
    list_select_related = ("rollout",)
    search_fields = ("rollout__name", "digest")
    exclude = ("members",)
    ordering = ("-pk",)

    def get_queryset(self, request):  # type: ignore[no-untyped-def]
        return super().get_queryset(request).defer("members")


@admin.register(SupplierPackage)
class SupplierPackageAdmin(RecordAdmin):
    """What was given to suppliers; made on the page of the case."""

    list_display = ("case", "format", "at", "actor", "sha256")
    list_filter = ("format",)
    search_fields = ("case", "sha256")
    date_hierarchy = "at"
