"""The fleet over REST: machines and their versions, bundles, telemetry, tokens."""

from datetime import timedelta
from typing import Any, ClassVar

from django.db.models import Prefetch, QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from knox.auth import TokenAuthentication
from knox.models import AuthToken
from rest_framework import mixins
from rest_framework.authentication import BasicAuthentication, SessionAuthentication
from rest_framework.decorators import action
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED
from rest_framework.views import APIView

from fleet import clock, selectors, services, tasks
from fleet.adapters import Report
from fleet.api import filters
from fleet.api.base import StrictViewSet, by_whom, needs, person
from fleet.api.lifecycle import LifecycleActions
from fleet.api.serializers import (
    BatchResultSerializer,
    BatchSerializer,
    BundleSerializer,
    CounterBatchSerializer,
    EmptySerializer,
    FaultBatchSerializer,
    HistorySerializer,
    ImageSerializer,
    IssuedTokenSerializer,
    MachineSerializer,
    NewBundleSerializer,
    NewTokenSerializer,
    ObservationBatchSerializer,
    PlatformSerializer,
    RecoveryBatchSerializer,
    RetirementSerializer,
    StageQuerySerializer,
    TokenSerializer,
    VersionsSerializer,
)
from fleet.hints import hint_rarely
from fleet.models import (
    BundleImage,
    FirmwareBundle,
    FirmwareImage,
    FirmwareRecord,
    Machine,
    Platform,
)

AS_OF = OpenApiParameter(
    "as_of", OpenApiTypes.DATETIME, description="RFC 3339 with zone; without it: now"
)
STAGE = OpenApiParameter("stage", enum=FirmwareRecord.Stage.values, default="active")


class MachineViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, LifecycleActions):
    """Machines, by name; their state moves only through the product's own steps."""

    queryset = Machine.objects.select_related("platform", "team", "owner_team", "held_by")
    serializer_class = MachineSerializer
    filterset_class = filters.MachineFilter
    lookup_field = "name"
    lookup_value_regex = "[^/]+"
    query_names: ClassVar = {"versions": ("as_of", "stage"), "history": ("as_of",)}

    @extend_schema(request=RetirementSerializer, responses=MachineSerializer)
    def destroy(self, request: Request, name: str) -> Response:
        """Retire the machine: it takes no work ever again; its name and records stay."""
        machine = self.get_object()
        body = RetirementSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        services.retire_machine(machine, **by_whom(request), **body.validated_data)
        return Response(MachineSerializer(self.get_object()).data)

    @extend_schema(parameters=[AS_OF, STAGE], responses=VersionsSerializer)
    @action(detail=True, filterset_class=None, pagination_class=None)
    def versions(self, request: Request, name: str) -> Response:
        """The versions that were active, staged or committed at one time, as read back."""
        machine = self.get_object()
        at = self.asked_time(default=clock.now())
        stage = StageQuerySerializer(data={"stage": request.query_params.get("stage", "active")})
        stage.is_valid(raise_exception=True)
        versions = selectors.versions_as_of(machine, at=at, **stage.validated_data)
        answer = {"machine": machine.name, "as_of": at, "versions": versions}
        answer |= stage.validated_data
        return Response(VersionsSerializer(answer).data)

    @extend_schema(parameters=[AS_OF], responses=HistorySerializer)
    @action(detail=True, filterset_class=None, pagination_class=None)
    def history(self, request: Request, name: str) -> Response:
        """The version history up to one time: component by component, oldest first."""
        machine = self.get_object()
        at = self.asked_time(default=clock.now())
        intervals = selectors.history(machine, as_of=at)
        answer = {"machine": machine.name, "as_of": at, "intervals": intervals}
        return Response(HistorySerializer(answer).data)


class PlatformViewSet(mixins.ListModelMixin, StrictViewSet):
    """Model lines of machines."""

    queryset = Platform.objects.all()
    serializer_class = PlatformSerializer


class ImageViewSet(
    mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.CreateModelMixin, StrictViewSet
):
    """Firmware images."""

    queryset = FirmwareImage.objects.all()
    serializer_class = ImageSerializer
    filterset_class = filters.ImageFilter

    def perform_create(self, serializer: Any) -> None:
        serializer.instance = services.create_image(**serializer.validated_data)


class BundleViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, StrictViewSet):
    """Bundles are drafted, approved by somebody else, perhaps withdrawn; never edited."""

    queryset = FirmwareBundle.objects.select_related("author", "approver").prefetch_related(
        "platforms", Prefetch("places", BundleImage.objects.select_related("image"))
    )
    serializer_class = BundleSerializer
    filterset_class = filters.BundleFilter

    @extend_schema(request=NewBundleSerializer, responses={201: BundleSerializer})
    def create(self, request: Request) -> Response:
        """Draft a bundle."""
        body = NewBundleSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        bundle = services.create_bundle(
            **body.validated_data, author=person(request), now=clock.now()
        )
        return Response(BundleSerializer(bundle).data, status=HTTP_201_CREATED)

    @extend_schema(request=EmptySerializer, responses=BundleSerializer)
    @action(
        detail=True,
        methods=["post"],
        permission_classes=[IsAuthenticated, needs("fleet.change_firmwarebundle")],
    )
    def approve(self, request: Request, pk: str) -> Response:
        """Freeze a draft and let rollouts use it; its author may not do this."""
        bundle = self.get_object()
        EmptySerializer(data=request.data).is_valid(raise_exception=True)
        services.approve_bundle(bundle, approver=person(request), now=clock.now())
        return Response(BundleSerializer(self.get_object()).data)


# --- telemetry ----------------------------------------------------------------------------------


class BatchView(APIView):
    """Takes a batch of records; each is stored whole or refused with its reason."""

    kind: ClassVar[str]

    def post(self, request: Request) -> Response:
        """Store a batch; records that were seen before count as duplicates."""
        body = BatchSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        source, key = body.validated_data["source"], body.validated_data["key"]
        result = services.record(
            [Report(self.kind, fields) for fields in body.validated_data["records"]],
            source=source,
            key=key,
            now=clock.now(),
            sender=person(request),
        )
        if self.kind in tasks.TELL_OF_FAULTS:
            hint_rarely(tasks.follow_up)
        answer = {
            "source": source,
            "key": key,
            "accepted": result.accepted,
            "duplicates": result.duplicates,
            "refused": result.refused,
        }
        return Response(BatchResultSerializer(answer).data)


@extend_schema_view(
    post=extend_schema(request=FaultBatchSerializer, responses=BatchResultSerializer)
)
class FaultBatchView(BatchView):
    """Faults that machines reported."""

    kind = "fault"
    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.add_fault")]


@extend_schema_view(
    post=extend_schema(request=CounterBatchSerializer, responses=BatchResultSerializer)
)
class CounterBatchView(BatchView):
    """Counters; what they rise by are faults, and a boot begins them anew."""

    kind = "counter"
    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.add_fault")]


@extend_schema_view(
    post=extend_schema(request=ObservationBatchSerializer, responses=BatchResultSerializer)
)
class ObservationBatchView(BatchView):
    """Intervals of service and throughput."""

    kind = "observation"
    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.add_observation")]


@extend_schema_view(
    post=extend_schema(request=RecoveryBatchSerializer, responses=BatchResultSerializer)
)
class RecoveryBatchView(BatchView):
    """Interruptions and how work came back."""

    kind = "recovery"
    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.add_recovery")]


# --- tokens -------------------------------------------------------------------------------------


class TokenViewSet(mixins.ListModelMixin, mixins.DestroyModelMixin, StrictViewSet):
    """One's own tokens: made with name and password, listed and revoked with either."""

    queryset = AuthToken.objects.none()
    serializer_class = TokenSerializer
    authentication_classes: ClassVar = [
        TokenAuthentication,
        SessionAuthentication,
        BasicAuthentication,
    ]
    permission_classes: ClassVar = [IsAuthenticated]
    lookup_field = "token_key"

    def get_queryset(self) -> QuerySet[AuthToken]:
        if not self.request.user.is_authenticated:  # the schema generator asks without a user
            return AuthToken.objects.none()
        return AuthToken.objects.filter(user=self.request.user)

    @extend_schema(request=NewTokenSerializer, responses={201: IssuedTokenSerializer})
    def create(self, request: Request) -> Response:
        """Make a token; this answer is the only place where it is shown."""
        body = NewTokenSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        hours = body.validated_data.get("hours")
        row, token = AuthToken.objects.create(
            user=person(request), expiry=timedelta(hours=hours) if hours else None
        )
        answer = {
            "token": token,
            "token_key": row.token_key,
            "created": row.created,
            "expiry": row.expiry,
        }
        return Response(IssuedTokenSerializer(answer).data, status=HTTP_201_CREATED)
