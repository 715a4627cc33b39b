"""Repairs over REST: ordered, done and ended step by step, with the files that prove them."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import django_filters
from django.conf import settings
from django.db.models import QuerySet
from django.http import FileResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.parsers import MultiPartParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED

from fleet import services, tasks
from fleet.api.base import (
    ChoiceField,
    StrictModelSerializer,
    StrictSerializer,
    StrictViewSet,
    body_of,
    by_whom,
    needs,
)
from fleet.downloads import attachment
from fleet.hints import hint
from fleet.identity import MOST_SWAPS, Swap
from fleet.models import Evidence, Incident, Machine, PartSwap, Repair, RepairEvent
from fleet.repair.steps import Status, steps_from

WORK = "fleet.work_repair"
ORDERABLE_KINDS = [(kind.value, kind.value) for kind in services.ORDERABLE]
NOTE: Mapping[str, Any] = {"max_length": 1000, "default": "", "allow_blank": True}


class RepairFilter(django_filters.FilterSet):
    """Repairs by machine, by where they stand and by who does them."""

    machine = django_filters.CharFilter(field_name="machine__name", help_text="its name")
    technician = django_filters.CharFilter(field_name="technician__username")
    is_open = django_filters.TypedChoiceFilter(
        choices=[("true", "true"), ("false", "false")],
        coerce=lambda text: text == "true",
        method="by_open",
    )
    is_ineffective = django_filters.TypedChoiceFilter(
        choices=[("true", "true"), ("false", "false")],
        coerce=lambda text: text == "true",
        method="by_effect",
        help_text="a fault in its watch period counts against it",
    )

    class Meta:
        model = Repair
        fields: ClassVar = ["status", "kind", "incident", "ticket", "supplier_case"]

    def by_open(self, queryset: QuerySet[Repair], name: str, value: bool) -> QuerySet[Repair]:
        chosen = queryset.filter if value else queryset.exclude
        return chosen(status__in=services.OPEN_REPAIR)

    def by_effect(self, queryset: QuerySet[Repair], name: str, value: bool) -> QuerySet[Repair]:
        return queryset.filter(ineffective_since__isnull=not value)


class RepairEventSerializer(StrictModelSerializer):
    """One step of a repair."""

    class Meta:
        model = RepairEvent
        fields: ClassVar = ["kind", "said", "at", "actor"]


class PartSwapSerializer(StrictModelSerializer):
    """One part that left and the one that came."""

    class Meta:
        model = PartSwap
        fields: ClassVar = [
            "kind",
            "slot",
            "old_serial",
            "new_serial",
            "old_model",
            "new_model",
            "at",
            "actor",
        ]


class EvidenceSerializer(StrictModelSerializer):
    """One file that proves something; its content is at `/evidence/<id>/content`."""

    class Meta:
        model = Evidence
        fields: ClassVar = [
            "id",
            "repair",
            "result",
            "name",
            "media_type",
            "size_bytes",
            "sha256",
            "actor",
            "at",
        ]


class RepairSerializer(StrictModelSerializer):
    """A repair as it stands, and which steps it can take."""

    machine = serializers.SlugRelatedField("name", read_only=True)
    technician = serializers.SlugRelatedField("username", read_only=True)
    possible = serializers.SerializerMethodField()

    class Meta:
        model = Repair
        fields: ClassVar = [
            "id",
            "machine",
            "incident",
            "kind",
            "component",
            "status",
            "possible",
            "outcome",
            "ordered_at",
            "started_at",
            "closed_at",
            "technician",
            "technician_name",
            "supplier_case",
            "ticket",
            "note",
            "released_at",
            "watch_until",
            "ineffective_since",
        ]

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_possible(self, repair: Repair) -> list[str]:
        return [step.value for step in steps_from(Status(repair.status))]


class OneRepairSerializer(RepairSerializer):
    """A repair with all that is known of it."""

    events = RepairEventSerializer(many=True, read_only=True)
    swaps = PartSwapSerializer(many=True, read_only=True)
    evidence = EvidenceSerializer(many=True, read_only=True)
    gates = serializers.PrimaryKeyRelatedField(many=True, read_only=True)

    class Meta:
        model = Repair
        fields: ClassVar = [
            *RepairSerializer.Meta.fields,
            "events",
            "swaps",
            "evidence",
            "gates",
        ]


class NewRepairSerializer(StrictSerializer):
    """What is to be done on which machine."""

    machine = serializers.SlugRelatedField("name", queryset=Machine.objects.all())
    kind = ChoiceField(ORDERABLE_KINDS)
    component = serializers.CharField(max_length=80, default="", allow_blank=True)
    incident = serializers.PrimaryKeyRelatedField(
        queryset=Incident.objects.all(), default=None, allow_null=True
    )
    note = serializers.CharField(**NOTE)


class RepairNoteSerializer(StrictSerializer):
    """A word that goes with a step."""

    note = serializers.CharField(**NOTE)


class ToSupplierSerializer(RepairNoteSerializer):
    """Under which case the supplier has it."""

    supplier_case = serializers.CharField(max_length=100, default="", allow_blank=True)


class SwapSerializer(StrictSerializer):
    """One part that was swapped: both serials as they are read off the parts."""

    kind = serializers.CharField(max_length=40, help_text="such as gpu")
    slot = serializers.CharField(max_length=40, default="", allow_blank=True)
    old_serial = serializers.CharField(max_length=100)
    new_serial = serializers.CharField(max_length=100)
    new_model = serializers.CharField(max_length=100, default="", allow_blank=True)

    def to_internal_value(self, data: Any) -> Any:
        return Swap(**super().to_internal_value(data))


class ClosingSerializer(RepairNoteSerializer):
    """How a repair ended. Files that prove it are sent to `/repairs/<id>/evidence` before."""

    outcome = ChoiceField(Repair.Outcome.choices, default=Repair.Outcome.REPAIRED)
    swaps = serializers.ListSerializer(child=SwapSerializer(), default=list, max_length=MOST_SWAPS)


class CancellationSerializer(StrictSerializer):
    """Why a repair is given up."""

    reason = serializers.CharField(max_length=1000)


class NewEvidenceSerializer(StrictSerializer):
    """A file, as a form with files sends it."""

    file = serializers.FileField(allow_empty_file=True, max_length=None)
    name = serializers.CharField(
        default="", allow_blank=True, help_text="in place of the file's own"
    )
    sha256 = serializers.CharField(
        default="", allow_blank=True, help_text="refused if the file arrives with another"
    )


class RepairViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, StrictViewSet):
    """Repairs move by their steps alone, each of which moves the machine too."""

    queryset = Repair.objects.select_related("machine", "technician")
    serializer_class = RepairSerializer
    filterset_class = RepairFilter

    def get_serializer_class(self) -> type[serializers.Serializer]:
        return OneRepairSerializer if self.action == "retrieve" else RepairSerializer

    def get_permissions(self) -> Sequence[Any]:
        if self.action == "create":
            return [IsAuthenticated(), needs(WORK)()]
        return super().get_permissions()

    @extend_schema(request=NewRepairSerializer, responses={201: OneRepairSerializer})
    def create(self, request: Request) -> Response:
        """Order work on a machine; it waits for it from then on."""
        said = body_of(request, NewRepairSerializer)
        machine = said.pop("machine")
        repair = services.order_repair(machine, **said, **by_whom(request))
        return _answer(repair, status=HTTP_201_CREATED)

    @extend_schema(request=RepairNoteSerializer, responses=OneRepairSerializer)
    @action(detail=True, methods=["post"], permission_classes=[IsAuthenticated, needs(WORK)])
    def start(self, request: Request, pk: str) -> Response:
        """Begin the work, or go on with it after the machine is back from its supplier."""
        said = body_of(request, RepairNoteSerializer)
        return _answer(services.start_repair(self.get_object(), **said, **by_whom(request)))

    @extend_schema(request=ToSupplierSerializer, responses=OneRepairSerializer)
    @action(
        detail=True,
        methods=["post"],
        url_path="send-away",
        permission_classes=[IsAuthenticated, needs(WORK)],
    )
    def send_away(self, request: Request, pk: str) -> Response:
        """Let the supplier have the machine or its part."""
        said = body_of(request, ToSupplierSerializer)
        return _answer(services.send_to_supplier(self.get_object(), **said, **by_whom(request)))

    @extend_schema(request=ClosingSerializer, responses=OneRepairSerializer)
    @action(detail=True, methods=["post"], permission_classes=[IsAuthenticated, needs(WORK)])
    def close(self, request: Request, pk: str) -> Response:
        """End the work, with the serials of every swapped part; the machine's gate opens."""
        said = body_of(request, ClosingSerializer)
        return _answer(services.close_repair(self.get_object(), **said, **by_whom(request)))

    @extend_schema(request=CancellationSerializer, responses=OneRepairSerializer)
    @action(detail=True, methods=["post"], permission_classes=[IsAuthenticated, needs(WORK)])
    def cancel(self, request: Request, pk: str) -> Response:
        """Give the repair up; its machine is to be diagnosed again."""
        said = body_of(request, CancellationSerializer)
        return _answer(services.cancel_repair(self.get_object(), **said, **by_whom(request)))

    @extend_schema(
        request={"multipart/form-data": NewEvidenceSerializer}, responses={201: EvidenceSerializer}
    )
    @action(
        detail=True,
        methods=["post"],
        parser_classes=[MultiPartParser],
        permission_classes=[IsAuthenticated, needs(WORK)],
    )
    def evidence(self, request: Request, pk: str) -> Response:
        """Keep a file that proves something of the repair."""
        repair = self.get_object()
        said = body_of(request, NewEvidenceSerializer)
        file = said["file"]
        kept = services.keep_evidence(
            file.chunks(),
            name=said["name"] or file.name,
            sha256=said["sha256"],
            repair=repair,
            **by_whom(request),
        )
        return Response(EvidenceSerializer(kept).data, status=HTTP_201_CREATED)


class EvidenceFilter(django_filters.FilterSet):
    """Files by what they belong to, or by their digest."""

    class Meta:
        model = Evidence
        fields: ClassVar = ["repair", "result", "sha256"]


class EvidenceViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, StrictViewSet):
    """Files that prove something: what they are, and their content as a download."""

    queryset = Evidence.objects.all()
    serializer_class = EvidenceSerializer
    filterset_class = EvidenceFilter

    @extend_schema(responses={(200, "application/octet-stream"): OpenApiTypes.BINARY})
    @action(detail=True, filterset_class=None, pagination_class=None)
    def content(self, request: Request, pk: str) -> FileResponse:
        """The file as it was sent; always as an attachment."""
        return attachment(self.get_object())


def _answer(repair: Repair, *, status: int = 200) -> Response:
    """The repair as it stands now; ticket systems hear of it soon."""
    if settings.TICKET_SYSTEMS:
        hint(tasks.tell_tickets)
    fresh = Repair.objects.select_related("machine", "technician").get(pk=repair.pk)
    return Response(OneRepairSerializer(fresh).data, status=status)
