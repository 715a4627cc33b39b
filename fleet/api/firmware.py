"""Questions to the version history over REST: who ran what, what waits, what was rolled out."""

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED
from rest_framework.views import APIView

from fleet import clock, selectors, services
from fleet.api.base import (
    ChoiceField,
    PagedQuerySerializer,
    QueryTimeField,
    StrictModelSerializer,
    StrictSerializer,
    StrictViewSet,
    answer_by_name,
    needs,
    person,
    query_of,
)
from fleet.firmware import history
from fleet.models import BundleStatus, DesiredBundle, FirmwareBundle, FirmwareRecord, Platform


class RunQuerySerializer(PagedQuerySerializer):
    """Which component, which version, and when."""

    kind = serializers.CharField(help_text="kind of the component, such as gpu")
    version = serializers.CharField(help_text="in any of its spellings")
    start = QueryTimeField(help_text="RFC 3339 with zone")
    end = QueryTimeField(help_text="RFC 3339 with zone, not included")
    stage = ChoiceField(FirmwareRecord.Stage.choices, default="active")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["end"] <= attrs["start"]:
            raise serializers.ValidationError({"end": "is not after start"})
        return attrs


class RunSerializer(StrictSerializer):
    """A machine that ran the version, from when to when."""

    machine = serializers.CharField()
    slot = serializers.CharField()
    version = serializers.CharField(help_text="as this machine spells it")
    since = serializers.DateTimeField()
    until = serializers.DateTimeField(allow_null=True, help_text="null: it still does")


class RunPageSerializer(StrictSerializer):
    """Runs of some machines, and where it goes on."""

    next = serializers.URLField(allow_null=True)
    results = RunSerializer(many=True)


class RunView(APIView):
    """Which machines ran a version at some time: whom an advisory concerns."""

    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.view_firmwarerecord")]

    @extend_schema(parameters=[RunQuerySerializer], responses=RunPageSerializer)
    def get(self, request: Request) -> Response:
        """Every machine that ran the version between start and end, disputed ones too."""
        return answer_by_name(
            request,
            selectors.who_ran,
            asks=RunQuerySerializer,
            answers=RunPageSerializer,
            name=lambda run: run.machine.name,
        )


class StagedQuerySerializer(PagedQuerySerializer):
    """Which kind of component; all without."""

    kind = serializers.CharField(default="")


class StagedSerializer(StrictSerializer):
    """A part on which another version waits than the one that runs."""

    machine = serializers.CharField()
    kind = serializers.CharField()
    slot = serializers.CharField()
    staged = serializers.CharField()
    since = serializers.DateTimeField()
    active = serializers.CharField(allow_blank=True, help_text="empty: not known")


class StagedPageSerializer(StrictSerializer):
    """Staged versions of some machines, and where it goes on."""

    next = serializers.URLField(allow_null=True)
    results = StagedSerializer(many=True)


class StagedView(APIView):
    """What is staged and does not run yet: any reboot may activate it."""

    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.view_firmwarerecord")]

    @extend_schema(parameters=[StagedQuerySerializer], responses=StagedPageSerializer)
    def get(self, request: Request) -> Response:
        """Every part whose newest staged version has not become active since."""
        return answer_by_name(
            request,
            selectors.staged_versions,
            asks=StagedQuerySerializer,
            answers=StagedPageSerializer,
            name=lambda row: str(row.machine),
        )


# --- what was rolled out ------------------------------------------------------------------------


class PastQuerySerializer(StrictSerializer):
    """Which component, in which pool, and when."""

    kind = serializers.CharField(help_text="kind of the component, such as bmc")
    pool = serializers.CharField(default="")
    start = QueryTimeField(default=None, help_text="RFC 3339 with zone")
    end = QueryTimeField(default=None, help_text="RFC 3339 with zone, not included")


class PastRolloutQuerySerializer(PastQuerySerializer):
    """The same, and how often a change has to be seen to be called a rollout."""

    least = serializers.IntegerField(default=history.LEAST_CHANGES, min_value=1)


class PastWaveSerializer(StrictSerializer):
    """The machines that were changed at one instant."""

    at = serializers.DateTimeField()
    machines = serializers.IntegerField()


class PastRolloutSerializer(StrictSerializer):
    """The same change of one kind of component over the machines of a pool."""

    site = serializers.CharField()
    pool = serializers.CharField()
    kind = serializers.CharField()
    old = serializers.CharField()
    new = serializers.CharField()
    machines = serializers.IntegerField()
    first = serializers.DateTimeField()
    last = serializers.DateTimeField()
    waves = PastWaveSerializer(many=True)


class ReversalSerializer(StrictSerializer):
    """A part that went to another version and, as its next change, back."""

    machine = serializers.CharField()
    kind = serializers.CharField()
    slot = serializers.CharField()
    kept = serializers.CharField()
    tried = serializers.CharField()
    at = serializers.DateTimeField()
    back_at = serializers.DateTimeField()


class PastRolloutView(APIView):
    """Which changes went over a pool, whoever made them."""

    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.view_firmwarerecord")]

    @extend_schema(
        parameters=[PastRolloutQuerySerializer], responses=PastRolloutSerializer(many=True)
    )
    def get(self, request: Request) -> Response:
        """The rollouts that the history shows, oldest first; a wave is one instant."""
        asked = query_of(request, PastRolloutQuerySerializer)
        least = asked.pop("least")
        found = history.past_rollouts(_changes(**asked), least=least)
        return Response(PastRolloutSerializer(found, many=True).data)


class ReversalView(APIView):
    """Which versions were tried and taken back."""

    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.view_firmwarerecord")]

    @extend_schema(parameters=[PastQuerySerializer], responses=ReversalSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The reversals that the history shows, by machine."""
        found = history.reversals(_changes(**query_of(request, PastQuerySerializer)))
        return Response(ReversalSerializer(found, many=True).data)


def _changes(*, kind: str, pool: str, **times: Any) -> list[history.Change]:
    changes = selectors.version_changes(kinds=[kind], **times)
    return [change for change in changes if not pool or change.pool == pool]


# --- what is wanted -----------------------------------------------------------------------------


class DesiredBundleSerializer(StrictModelSerializer):
    """Which bundle a platform's machines are meant to run, and who said so."""

    platform = serializers.SlugRelatedField("name", queryset=Platform.objects.all())
    bundle = serializers.PrimaryKeyRelatedField(
        queryset=FirmwareBundle.objects.filter(status=BundleStatus.APPROVED),
        allow_null=True,
        help_text="null: no bundle of the pool's own any more",
    )
    actor = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = DesiredBundle
        fields: ClassVar = [
            "id",
            "platform",
            "pool",
            "bundle",
            "since",
            "actor",
            "reason",
            "recorded_at",
        ]
        read_only_fields: ClassVar = ["since", "recorded_at"]


class DesiredBundleViewSet(mixins.ListModelMixin, StrictViewSet):
    """What machines are meant to run, newest word first; it moves no firmware."""

    queryset = DesiredBundle.objects.select_related("platform", "actor")
    serializer_class = DesiredBundleSerializer

    def create(self, request: Request) -> Response:
        """Say which bundle holds from now on; earlier words stay."""
        body = DesiredBundleSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = services.set_desired_bundle(
            **body.validated_data, actor=person(request), now=clock.now()
        )
        return Response(DesiredBundleSerializer(row).data, status=HTTP_201_CREATED)
