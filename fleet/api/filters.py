"""What lists of the fleet can be narrowed by; a value that cannot be is refused."""

from datetime import datetime
from typing import Any, ClassVar

import django_filters
from django import forms
from django.db.models import QuerySet
from django_filters.fields import IsoDateTimeField

from fleet import clock, selectors, services
from fleet.api.base import is_naive
from fleet.models import BundleStatus, FirmwareBundle, FirmwareImage, Machine, Platform


class TimeField(IsoDateTimeField):
    """RFC 3339 with a zone, as the other times in an address; an unescaped + reads as a blank."""

    default_validators: ClassVar = [clock.validate_year]

    def to_python(self, value: Any) -> datetime | None:
        text = str(value or "").replace(" ", "+")
        if is_naive(text):
            raise forms.ValidationError(f"{text!r} has no zone; write 2026-01-31T12:00:00Z")
        found: datetime | None = super().to_python(text)
        return found


class TimeFilter(django_filters.IsoDateTimeFilter):
    """From or before a time that there is."""

    field_class = TimeField


class MachineFilter(django_filters.FilterSet):
    """Machines by where they are and what state they are in, or by a whole selector."""

    platform = django_filters.ModelChoiceFilter(
        queryset=Platform.objects.all(), to_field_name="name", help_text="name of a platform"
    )
    state = django_filters.ChoiceFilter(
        choices=[(state.value, state.value) for state in Machine.State]
    )
    may_take_work = django_filters.TypedChoiceFilter(
        choices=[("true", "true"), ("false", "false")], coerce=lambda text: text == "true"
    )
    owner_team = django_filters.CharFilter(field_name="owner_team__name", help_text="its name")
    held_by = django_filters.CharFilter(field_name="held_by__username", help_text="user name")
    mine = django_filters.ChoiceFilter(
        choices=[("true", "true")],
        method="by_mine",
        help_text="what you have in hand, or what waits for one of your teams",
    )
    selector = django_filters.CharFilter(
        method="by_selector", help_text="for example platform=dgx-h100,rack in (r1,r2),env!=lab"
    )

    class Meta:
        model = Machine
        fields: ClassVar = [
            "name",
            "platform",
            "state",
            "may_take_work",
            "owner_role",
            *Machine.PLACES,
            "job",
            "workload",
        ]

    def by_mine(self, queryset: QuerySet[Machine], name: str, value: str) -> QuerySet[Machine]:
        return queryset.filter(pk__in=services.mine(self.request.user).values("pk"))

    def by_selector(self, queryset: QuerySet[Machine], name: str, value: str) -> QuerySet[Machine]:
        return queryset.filter(pk__in=selectors.machines_matching(value).values("pk"))


class BundleFilter(django_filters.FilterSet):
    """Bundles by name, status and platform."""

    status = django_filters.ChoiceFilter(choices=BundleStatus.choices)
    platform = django_filters.ModelChoiceFilter(
        field_name="platforms", queryset=Platform.objects.all(), to_field_name="name"
    )

    class Meta:
        model = FirmwareBundle
        fields: ClassVar = ["name", "version", "status", "platform"]


class ImageFilter(django_filters.FilterSet):
    """Images by what they are for."""

    class Meta:
        model = FirmwareImage
        fields: ClassVar = ["kind", "vendor", "version"]
