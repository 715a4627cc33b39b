"""Incidents over REST: which there are, one followed from end to end, and what people say of it."""

from collections.abc import Callable
from typing import Any, ClassVar

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import clock, services, stories
from fleet.api.base import (
    ChoiceField,
    StrictModelSerializer,
    StrictSerializer,
    StrictViewSet,
    body_of,
    by_whom,
    needs,
)
from fleet.api.filters import TimeFilter
from fleet.api.repairs import (
    ORDERABLE_KINDS,
    EvidenceSerializer,
    PartSwapSerializer,
)
from fleet.models import (
    Change,
    CheckResult,
    Fault,
    FirmwareBundle,
    Gate,
    Incident,
    IncidentEvent,
    JobImpact,
    Recovery,
    Repair,
)

WORK = "fleet.work_repair"
LONGEST_SAID = 800


class IncidentFilter(django_filters.FilterSet):
    """Incidents by what failed, where, and what is known of it."""

    machine = django_filters.CharFilter(field_name="machine__name", help_text="its name")
    platform = django_filters.CharFilter(field_name="machine__platform__name")
    pool = django_filters.CharFilter(field_name="machine__pool")
    signature = django_filters.CharFilter(field_name="signature__name", help_text="the first")
    is_open = django_filters.TypedChoiceFilter(
        choices=[("true", "true"), ("false", "false")],
        coerce=lambda text: text == "true",
        method="by_open",
    )
    opened_after = TimeFilter(field_name="opened_at", lookup_expr="gte")
    opened_before = TimeFilter(field_name="opened_at", lookup_expr="lt")

    class Meta:
        model = Incident
        fields: ClassVar = [
            "family",
            "cause",
            "severity",
            "kind",
            "supplier_case",
            "change",
            "bundle",
            "parent",
        ]

    def by_open(self, queryset: QuerySet[Incident], name: str, value: bool) -> QuerySet[Incident]:
        return queryset.filter(closed_at__isnull=value)


class IncidentSerializer(StrictModelSerializer):
    """An incident as it stands."""

    machine = serializers.SlugRelatedField("name", read_only=True)
    platform = serializers.CharField(source="machine.platform.name", read_only=True)
    signature = serializers.SlugRelatedField("name", read_only=True)

    class Meta:
        model = Incident
        fields: ClassVar = [
            "id",
            "machine",
            "platform",
            "family",
            "signature",
            "component",
            "severity",
            "kind",
            "opened_at",
            "last_fault_at",
            "fault_count",
            "closed_at",
            "detector",
            "parent",
            "merged_into",
            "diagnosis",
            "confidence",
            "repair_kind",
            "cause",
            "change",
            "bundle",
            "supplier_case",
        ]


# --- the parts of its story ----------------------------------------------------------------------


class IncidentFaultSerializer(StrictModelSerializer):
    """One fault of an incident, as it was told."""

    signature = serializers.SlugRelatedField("name", read_only=True)

    class Meta:
        model = Fault
        fields: ClassVar = [
            "id",
            "time",
            "signature",
            "severity",
            "component",
            "boot_id",
            "job",
            "source",
            "attributes",
        ]


class SignatureCountSerializer(serializers.Serializer):
    """How often a signature was told."""

    signature = serializers.CharField()
    count = serializers.IntegerField()


class InterruptionSerializer(StrictModelSerializer):
    """One interruption of a job's work near the incident."""

    class Meta:
        model = Recovery
        fields: ClassVar = [
            "job",
            "time",
            "recovered_at",
            "path",
            "recovery_seconds",
            "repeated_seconds",
        ]


class ImpactSerializer(StrictModelSerializer):
    """What an incident did to one job's work."""

    class Meta:
        model = JobImpact
        fields: ClassVar = [
            "id",
            "job",
            "job_kind",
            "outcome",
            "fault_at",
            "detected_at",
            "resumed_at",
            "replicas_affected",
            "replicas_total",
            "accelerators",
            "repeated_seconds",
            "repeated_steps",
            "slowdown",
            "accelerator_hours_lost",
            "formula",
            "caused_by",
        ]


class FirmwarePartSerializer(serializers.Serializer):
    """What one component ran when the incident began."""

    name = serializers.CharField()
    active = serializers.CharField(allow_blank=True)
    staged = serializers.CharField(allow_blank=True, help_text="what waited to become active")
    committed = serializers.CharField(allow_blank=True)


class IncidentArmSerializer(serializers.Serializer):
    """The machine's place in a rollout that was open when the incident began."""

    rollout = serializers.IntegerField()
    name = serializers.CharField()
    arm = serializers.CharField()
    is_compared = serializers.BooleanField()


class FirmwareThenSerializer(serializers.Serializer):
    """Firmware when the incident began."""

    at = serializers.DateTimeField()
    parts = FirmwarePartSerializer(many=True)
    bundle = serializers.IntegerField(
        source="bundle.pk", default=None, allow_null=True, help_text="what was intended"
    )
    bundle_why = serializers.CharField()
    changed_hours = serializers.FloatField(
        allow_null=True, help_text="since the last change of an active version"
    )
    boot_id = serializers.CharField(allow_blank=True)
    booted_hours = serializers.FloatField(
        allow_null=True, help_text="since the first sign of this boot"
    )
    arms = IncidentArmSerializer(many=True)


class IncidentEventSerializer(StrictModelSerializer):
    """One word about an incident."""

    class Meta:
        model = IncidentEvent
        fields: ClassVar = ["kind", "said", "at", "actor"]


class LinkedChangeSerializer(StrictModelSerializer):
    """A change of the machine that was reported around the incident."""

    class Meta:
        model = Change
        fields: ClassVar = ["id", "source", "kind", "what", "old", "new", "note", "at"]


class IncidentRepairSerializer(StrictModelSerializer):
    """A repair of the incident, its parts and what proves it."""

    technician = serializers.SlugRelatedField("username", read_only=True)
    swaps = PartSwapSerializer(many=True, read_only=True)
    evidence = EvidenceSerializer(many=True, read_only=True)

    class Meta:
        model = Repair
        fields: ClassVar = [
            "id",
            "kind",
            "component",
            "status",
            "ordered_at",
            "started_at",
            "closed_at",
            "technician",
            "technician_name",
            "supplier_case",
            "ineffective_since",
            "swaps",
            "evidence",
        ]


class IncidentGateSerializer(StrictModelSerializer):
    """A gate after a repair of the incident."""

    plan = serializers.CharField(source="plan.title", read_only=True)
    reviewer = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = Gate
        fields: ClassVar = ["id", "plan", "why", "status", "opened_at", "closed_at", "reviewer"]


class IncidentResultSerializer(StrictModelSerializer):
    """One result of a check of such a gate."""

    gate = serializers.IntegerField(source="gate_check.gate_id", read_only=True)
    check = serializers.CharField(source="gate_check.name", read_only=True)
    evidence = EvidenceSerializer(many=True, read_only=True)

    class Meta:
        model = CheckResult
        fields: ClassVar = [
            "gate",
            "check",
            "is_passed",
            "value",
            "unit",
            "threshold",
            "note",
            "actor",
            "at",
            "evidence",
        ]


class LaterSerializer(serializers.Serializer):
    """What the machine did afterwards, as far as it was in service."""

    since = serializers.DateTimeField(allow_null=True, help_text="null: it is out of service")
    until = serializers.DateTimeField()
    exposure_hours = serializers.FloatField()
    same = serializers.IntegerField(help_text="later incidents of the same family")
    first_same_at = serializers.DateTimeField(allow_null=True)
    others = serializers.IntegerField(help_text="later ones of another family that count")
    other_families = serializers.ListField(child=serializers.CharField())


class StoryRowSerializer(serializers.Serializer):
    """One thing that happened to the machine."""

    at = serializers.DateTimeField()
    source = serializers.CharField()  # type: ignore[assignment]
    what = serializers.CharField()
    who = serializers.CharField(allow_blank=True)
    reference = serializers.IntegerField(allow_null=True)


class StorySerializer(IncidentSerializer):
    """One incident from telemetry to job to diagnosis to change to repair to what then."""

    as_of = serializers.DateTimeField()
    faults = IncidentFaultSerializer(many=True)
    more_faults = serializers.IntegerField(help_text="beyond those that are listed")
    signatures = SignatureCountSerializer(many=True)
    events = serializers.IntegerField(help_text="of the listed faults, repeats within 5 s left out")
    bursts = serializers.IntegerField(help_text="of the listed faults, less than 3 minutes apart")
    accompanied = serializers.ListField(
        child=serializers.IntegerField(), help_text="incidents that only accompany this one"
    )
    merged = serializers.ListField(
        child=serializers.IntegerField(), help_text="incidents that became part of this one"
    )
    jobs = serializers.ListField(child=serializers.CharField())
    interruptions = InterruptionSerializer(many=True)
    impacts = ImpactSerializer(many=True)
    firmware = FirmwareThenSerializer()
    said = IncidentEventSerializer(many=True)
    changes = LinkedChangeSerializer(many=True)
    repairs = IncidentRepairSerializer(many=True)
    gates = IncidentGateSerializer(many=True)
    results = IncidentResultSerializer(many=True)
    later = LaterSerializer()
    timeline = StoryRowSerializer(many=True)

    class Meta:
        model = Incident
        fields: ClassVar = [
            *IncidentSerializer.Meta.fields,
            "as_of",
            "faults",
            "more_faults",
            "signatures",
            "events",
            "bursts",
            "accompanied",
            "merged",
            "jobs",
            "interruptions",
            "impacts",
            "firmware",
            "said",
            "changes",
            "repairs",
            "gates",
            "results",
            "later",
            "timeline",
        ]

    def to_representation(self, instance: stories.Story) -> dict[str, Any]:
        told = dict(IncidentSerializer(instance.incident).data)
        own = {
            "interruptions": instance.recoveries,
            "accompanied": [one.pk for one in instance.accompanied],
            "merged": [one.pk for one in instance.merged],
            "signatures": [
                {"signature": name, "count": count} for name, count in instance.signatures
            ],
        }
        for name, field in self.fields.items():
            if name not in told:
                value = own[name] if name in own else getattr(instance, name)
                told[name] = field.to_representation(value)
        return told


# --- what people say -----------------------------------------------------------------------------


class DiagnosisSerializer(StrictSerializer):
    """What is wrong, and what kind of repair it needs."""

    diagnosis = serializers.CharField(max_length=LONGEST_SAID)
    cause = ChoiceField(Incident.Cause.choices)
    component = serializers.CharField(max_length=80, default="", allow_blank=True)
    repair_kind = ChoiceField(ORDERABLE_KINDS, default="", allow_blank=True)
    confidence = ChoiceField(Incident.Confidence.choices, default="", allow_blank=True)
    is_acted_on = serializers.BooleanField(
        default=False,
        help_text="order the repair, or go to the gate where no fault was found, in the same act",
    )


class IncidentCauseSerializer(StrictSerializer):
    """What the cause turned out to be, also when the incident is over."""

    cause = ChoiceField(Incident.Cause.choices)
    said = serializers.CharField(max_length=LONGEST_SAID, help_text="how that is known")


class IncidentLinkSerializer(StrictSerializer):
    """Which change answers the incident: one of the two."""

    change = serializers.PrimaryKeyRelatedField(
        queryset=Change.objects.all(), default=None, allow_null=True
    )
    bundle = serializers.PrimaryKeyRelatedField(
        queryset=FirmwareBundle.objects.all(), default=None, allow_null=True
    )
    said = serializers.CharField(max_length=LONGEST_SAID, default="", allow_blank=True)


class IncidentCaseSerializer(StrictSerializer):
    """The supplier's case."""

    supplier_case = serializers.CharField(max_length=100)
    said = serializers.CharField(max_length=LONGEST_SAID, default="", allow_blank=True)


class IncidentNoteSerializer(StrictSerializer):
    """A word."""

    said = serializers.CharField(max_length=LONGEST_SAID)


def _act(path: str) -> Callable[..., Any]:
    return action(
        detail=True,
        methods=["post"],
        url_path=path,
        filterset_class=None,
        pagination_class=None,
        permission_classes=[IsAuthenticated, needs(WORK)],
    )


class IncidentViewSet(mixins.ListModelMixin, StrictViewSet):
    """Incidents are made of faults; people say what they are of, and nobody deletes one."""

    queryset = Incident.objects.select_related("machine__platform", "signature")
    serializer_class = IncidentSerializer
    filterset_class = IncidentFilter

    def get_queryset(self) -> QuerySet[Incident]:
        whole = super().get_queryset()
        return whole.filter(merged_into=None) if self.action == "list" else whole

    @extend_schema(
        responses=StorySerializer,
        parameters=[OpenApiParameter("id", int, OpenApiParameter.PATH)],
    )
    def retrieve(self, request: Request, pk: str) -> Response:
        """One incident with its whole story, the same as its page shows."""
        return _answer(self.get_object())

    @extend_schema(request=DiagnosisSerializer, responses=StorySerializer)
    @_act("diagnose")
    def diagnose(self, request: Request, pk: str) -> Response:
        """Say what is wrong while the incident is open; order the repair at once if asked to."""
        said = body_of(request, DiagnosisSerializer)
        is_acted_on = said.pop("is_acted_on")
        act = services.diagnose_and_act if is_acted_on else services.diagnose_incident
        return self._say(request, act, said)

    @extend_schema(request=IncidentCauseSerializer, responses=StorySerializer)
    @_act("cause")
    def name_cause(self, request: Request, pk: str) -> Response:
        """Say what the cause turned out to be."""
        return self._say(request, services.name_cause, body_of(request, IncidentCauseSerializer))

    @extend_schema(request=IncidentLinkSerializer, responses=StorySerializer)
    @_act("link")
    def link(self, request: Request, pk: str) -> Response:
        """Link the change or the bundle that answers the incident."""
        return self._say(request, services.link_change, body_of(request, IncidentLinkSerializer))

    @extend_schema(request=IncidentCaseSerializer, responses=StorySerializer)
    @_act("case")
    def case(self, request: Request, pk: str) -> Response:
        """Name the supplier's case."""
        return self._say(request, services.open_case, body_of(request, IncidentCaseSerializer))

    @extend_schema(request=IncidentNoteSerializer, responses=StorySerializer)
    @_act("note")
    def note(self, request: Request, pk: str) -> Response:
        """Leave a word."""
        return self._say(request, services.note_incident, body_of(request, IncidentNoteSerializer))

    def _say(self, request: Request, act: Callable[..., object], said: dict[str, Any]) -> Response:
        act(self.get_object(), **said, **by_whom(request))
        return _answer(self.get_object())


def _answer(incident: Incident) -> Response:
    return Response(StorySerializer(stories.story(incident, as_of=clock.now())).data)
