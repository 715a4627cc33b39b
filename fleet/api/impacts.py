"""Impacts on jobs over REST: told one by one or many at once, and corrected by a new row."""

from typing import Any, ClassVar

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_200_OK, HTTP_201_CREATED

from fleet import clock, services
from fleet.api.base import (
    ChoiceField,
    StrictModelSerializer,
    StrictSerializer,
    StrictViewSet,
    ZonedDateTimeField,
    body_of,
    person,
)
from fleet.api.filters import TimeFilter
from fleet.models import Incident, JobImpact, JobKind, Machine
from fleet.services import Impact

MOST_IMPACTS = 1000


class ImpactFilter(django_filters.FilterSet):
    """Impacts by incident, job, place and time."""

    machine = django_filters.CharFilter(field_name="machine__name", help_text="its name")
    platform = django_filters.CharFilter(field_name="machine__platform__name")
    pool = django_filters.CharFilter(field_name="machine__pool")
    fault_after = TimeFilter(field_name="fault_at", lookup_expr="gte")
    fault_before = TimeFilter(field_name="fault_at", lookup_expr="lt")
    stands = django_filters.TypedChoiceFilter(
        choices=[("true", "true"), ("false", "false")],
        coerce=lambda text: text == "true",
        method="by_standing",
        help_text="false: what was corrected",
    )

    class Meta:
        model = JobImpact
        fields: ClassVar = ["incident", "job", "job_kind", "outcome", "caused_by", "source"]

    def by_standing(
        self, queryset: QuerySet[JobImpact], name: str, value: bool
    ) -> QuerySet[JobImpact]:
        return queryset.filter(corrected_by__isnull=value)


class JobImpactSerializer(StrictModelSerializer):
    """What an incident did to one job's work, with its loss or why that is not known."""

    machine = serializers.SlugRelatedField("name", read_only=True)
    corrected_by = serializers.SerializerMethodField(help_text="the row that took its place")
    reason = serializers.CharField(source="unknown_because", read_only=True)

    class Meta:
        model = JobImpact
        fields: ClassVar = [
            "id",
            "incident",
            "machine",
            "cause",
            "job",
            "job_kind",
            "outcome",
            "fault_at",
            "detected_at",
            "resumed_at",
            "recovery_seconds",
            "stall_seconds",
            "replicas_affected",
            "replicas_total",
            "accelerators",
            "repeated_seconds",
            "repeated_steps",
            "slowdown",
            "accelerator_hours_lost",
            "formula",
            "reason",
            "caused_by",
            "corrects",
            "corrected_by",
            "source",
            "source_key",
        ]

    def get_corrected_by(self, row: JobImpact) -> int | None:
        later = getattr(row, "corrected_by", None)
        return None if later is None else int(later.pk)


class ImpactReportSerializer(StrictSerializer):
    """One impact as its source tells it; what is not known is left out."""

    source_key = serializers.CharField(
        max_length=200, help_text="names the impact within its source; again it changes nothing"
    )
    outcome = ChoiceField(JobImpact.Outcome.choices)
    fault_at = ZonedDateTimeField()
    incident = serializers.PrimaryKeyRelatedField(
        queryset=Incident.objects.select_related("machine"), default=None, allow_null=True
    )
    machine = serializers.SlugRelatedField(
        "name", queryset=Machine.objects.all(), default=None, allow_null=True
    )
    cause = ChoiceField(
        Incident.Cause.choices,
        default="",
        allow_blank=True,
        help_text="where no incident is named: an incident has its own",
    )
    job = serializers.CharField(max_length=100, default="", allow_blank=True)
    job_kind = ChoiceField(JobKind.choices, default="", allow_blank=True)
    detected_at = ZonedDateTimeField(default=None, allow_null=True)
    resumed_at = ZonedDateTimeField(
        default=None, allow_null=True, help_text="first productive step; left out: not yet"
    )
    recovery_seconds = serializers.FloatField(
        default=None, allow_null=True, help_text="where it is not resumed_at less fault_at"
    )
    stall_seconds = serializers.FloatField(
        default=None, allow_null=True, help_text="how long all replicas stood still"
    )
    replicas_affected = serializers.IntegerField(default=None, allow_null=True)
    replicas_total = serializers.IntegerField(default=None, allow_null=True)
    accelerators = serializers.IntegerField(
        default=None, allow_null=True, help_text="of the whole job"
    )
    repeated_seconds = serializers.FloatField(
        default=None, allow_null=True, help_text="of a lost job: the work that is lost"
    )
    repeated_steps = serializers.IntegerField(default=None, allow_null=True)
    step_seconds = serializers.FloatField(
        default=None, allow_null=True, help_text="mean time of one of these steps"
    )
    slowdown = serializers.FloatField(
        default=None, allow_null=True, help_text="share of throughput lost while degraded"
    )
    caused_by = serializers.PrimaryKeyRelatedField(
        queryset=JobImpact.objects.all(),
        default=None,
        allow_null=True,
        help_text="the impact whose job took this one's place",
    )
    caused_by_key = serializers.CharField(
        max_length=200, default="", allow_blank=True, help_text="the same, by the source's own key"
    )
    corrects = serializers.PrimaryKeyRelatedField(
        queryset=JobImpact.objects.all(),
        default=None,
        allow_null=True,
        help_text="the row that this one takes the place of",
    )


class NewImpactSerializer(ImpactReportSerializer):
    """One impact, with who tells it."""

    source = serializers.CharField(max_length=100, help_text="who tells")  # type: ignore[assignment]


class ImpactBatchSerializer(StrictSerializer):
    """Many impacts of one source, in the order in which they are recorded."""

    source = serializers.CharField(max_length=100, help_text="who tells")  # type: ignore[assignment]
    impacts = serializers.ListField(
        child=ImpactReportSerializer(), min_length=1, max_length=MOST_IMPACTS
    )


class RefusedImpactSerializer(StrictSerializer):
    """An impact that was not recorded, and why."""

    index = serializers.IntegerField(help_text="place in the batch, from 0")
    source_key = serializers.CharField()
    reasons = serializers.ListField(child=serializers.CharField())


class ImpactBatchResultSerializer(StrictSerializer):
    """What became of a batch, impact by impact."""

    source = serializers.CharField()  # type: ignore[assignment]
    accepted = serializers.IntegerField()
    duplicates = serializers.IntegerField()
    refused = RefusedImpactSerializer(many=True)
    ids = serializers.ListField(
        child=serializers.IntegerField(allow_null=True),
        help_text="of each impact of the batch; null: refused",
    )


class ImpactViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, StrictViewSet):
    """Impacts are told and corrected by new ones; nobody edits or deletes one."""

    queryset = JobImpact.objects.select_related("machine", "corrected_by")
    serializer_class = JobImpactSerializer
    filterset_class = ImpactFilter

    @extend_schema(
        request=NewImpactSerializer,
        responses={200: JobImpactSerializer, 201: JobImpactSerializer},
    )
    def create(self, request: Request) -> Response:
        """Tell one impact; 200 where it was told before."""
        said = body_of(request, NewImpactSerializer)
        source = said.pop("source")
        row, is_new = services.record_impact(
            Impact(**said), source=source, now=clock.now(), user=person(request)
        )
        answer = JobImpactSerializer(self.get_queryset().get(pk=row.pk)).data
        return Response(answer, status=HTTP_201_CREATED if is_new else HTTP_200_OK)

    @extend_schema(request=ImpactBatchSerializer, responses=ImpactBatchResultSerializer)
    @action(detail=False, methods=["post"], filterset_class=None, pagination_class=None)
    def batch(self, request: Request) -> Response:
        """Tell many at once; those that cannot be are refused one by one, the others recorded."""
        said: dict[str, Any] = body_of(request, ImpactBatchSerializer)
        result = services.record_impacts(
            [Impact(**one) for one in said["impacts"]],
            source=said["source"],
            now=clock.now(),
            user=person(request),
        )
        answer = {
            "source": said["source"],
            "accepted": result.accepted,
            "duplicates": result.duplicates,
            "refused": result.refused,
            "ids": result.ids,
        }
        return Response(ImpactBatchResultSerializer(answer).data)
