"""Previews of drafts over REST: made on demand, read again by their digest."""

from typing import Any, ClassVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.generics import get_object_or_404
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED
from rest_framework.utils.urls import replace_query_param

from fleet import clock
from fleet.api.base import StrictModelSerializer, StrictSerializer, needs
from rollouts import roles, services
from rollouts.api.views import ROLLOUT_PARAMETERS, OfRollout
from rollouts.errors import OrderRefused
from rollouts.lifecycle import Status
from rollouts.models import Preview, Rollout
from rollouts.services.plans.previews import members_of

ROLLOUT = extend_schema(parameters=ROLLOUT_PARAMETERS)
DIGEST = OpenApiParameter("digest", OpenApiTypes.STR, OpenApiParameter.PATH)


class PreviewSerializer(StrictModelSerializer):
    """What a draft would do; `summary` has bounded lists, `machines` has everybody."""

    class Meta:
        model = Preview
        fields: ClassVar = ["digest", "made_at", "drawn_as_of", "summary"]


class PreviewMemberSerializer(StrictSerializer):
    """One machine's place in the drawn order, and when its turn is expected."""

    machine = serializers.CharField()
    unit = serializers.CharField()
    stratum = serializers.CharField()
    position = serializers.IntegerField()
    wave = serializers.IntegerField(help_text="in which it is canary; until then it is control")
    hold_back = serializers.BooleanField()
    starts_in_hours = serializers.FloatField(
        allow_null=True, help_text="after the preview; null where nobody can tell"
    )
    job = serializers.CharField()
    irreversible = serializers.CharField(help_text="why it could not go back; empty: it could")


class PreviewPageSerializer(StrictSerializer):
    """A page of a preview's machines; `next` is null on the last one."""

    next = serializers.CharField(allow_null=True)
    results = PreviewMemberSerializer(many=True)


@extend_schema_view(list=ROLLOUT, retrieve=extend_schema(parameters=[*ROLLOUT_PARAMETERS, DIGEST]))
class PreviewViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, OfRollout):
    """Previews of a rollout's plan, the newest first; the newest ten are kept."""

    queryset = Preview.objects.defer("members")
    serializer_class = PreviewSerializer
    lookup_field = "digest"
    lookup_value_regex = "[0-9a-f]{64}"
    query_names: ClassVar = {"machines": ("wave", "cursor", "page_size")}

    def get_permissions(self) -> list[Any]:
        if self.action == "create":
            return [IsAuthenticated(), needs(roles.OPERATE)()]
        return list(super().get_permissions())

    @extend_schema(parameters=ROLLOUT_PARAMETERS, request=None, responses={201: PreviewSerializer})
    def create(self, request: Request, rollout_pk: str) -> Response:
        """Draw the draft over the fleet as it stands; its digest promises exactly this."""
        rollout = get_object_or_404(Rollout.objects.select_related("bundle"), pk=rollout_pk)
        if rollout.status != Status.DRAFT:
            raise OrderRefused([f"only a draft is previewed anew, {rollout} is {rollout.status}"])
        seen = services.preview(rollout, now=clock.now())
        return Response(PreviewSerializer(seen).data, status=HTTP_201_CREATED)

    @extend_schema(
        parameters=[
            *ROLLOUT_PARAMETERS,
            DIGEST,
            OpenApiParameter("wave", OpenApiTypes.INT, description="only this wave"),
            OpenApiParameter("cursor", OpenApiTypes.INT, description="from `next` of a page"),
            OpenApiParameter("page_size", OpenApiTypes.INT, description="up to 1000"),
        ],
        responses=PreviewPageSerializer,
    )
    @action(detail=True)
    def machines(self, request: Request, rollout_pk: str, digest: str) -> Response:
        """Everybody in the drawn order, page by page."""
        size = self._whole("page_size", default=100, least=1, most=1000)
        start = self._whole("cursor", default=0)
        wave = self._whole("wave", default=0) or None
        rows = members_of(self.get_object(), wave=wave, start=start, size=size + 1)
        page, address = rows[:size], request.build_absolute_uri()
        is_last = len(rows) <= size
        following = None if is_last else replace_query_param(address, "cursor", start + size)
        return Response(
            {"next": following, "results": PreviewMemberSerializer(page, many=True).data}
        )

    def _whole(self, name: str, *, default: int, least: int = 0, most: int = 10**9) -> int:
        text = self.request.query_params.get(name)
        if text is None:
            return default
        is_whole = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if not (is_whole and least <= int(text) <= most):
            raise ValidationError({name: f"{text!r} is not a whole number from {least} to {most}"})
        return int(text)
