"""Site-wide freezes over REST: set, listed, lifted; never edited or deleted."""

from typing import ClassVar

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED

from fleet import clock
from fleet.api.base import (
    ModelPermissions,
    StrictModelSerializer,
    StrictSerializer,
    StrictViewSet,
    ZonedDateTimeField,
    needs,
    person,
)
from rollouts import roles, services
from rollouts.models import Freeze


class FreezeSerializer(StrictModelSerializer):
    """A time in which no attempt starts, and who set and who lifted it."""

    author = serializers.SlugRelatedField("username", read_only=True)
    lifted_by = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = Freeze
        fields = "__all__"


class NewFreezeSerializer(StrictSerializer):
    """A freeze to set; without sites and pools it holds everywhere."""

    start = ZonedDateTimeField(help_text="RFC 3339 with zone")
    end = ZonedDateTimeField(help_text="RFC 3339 with zone")
    reason = serializers.CharField(max_length=300)
    sites = serializers.ListField(
        child=serializers.CharField(max_length=100), required=False, max_length=1000
    )
    pools = serializers.ListField(
        child=serializers.CharField(max_length=100), required=False, max_length=1000
    )


class LiftSerializer(StrictSerializer):
    """Lifting a freeze needs no words."""


class FreezeFilter(django_filters.FilterSet):
    """Freezes by whether they were lifted."""

    is_lifted = django_filters.BooleanFilter(
        field_name="lifted_at", lookup_expr="isnull", exclude=True
    )

    class Meta:
        model = Freeze
        fields: ClassVar = ["is_lifted"]


class FreezePermissions(ModelPermissions):
    """Whoever may halt may set a freeze: it is a stop."""

    perms_map: ClassVar = {**ModelPermissions.perms_map, "POST": [roles.HALT]}


class FreezeViewSet(mixins.RetrieveModelMixin, mixins.ListModelMixin, StrictViewSet):
    """Times in which nobody starts. To set one needs the right to halt, to lift one more."""

    permission_classes: ClassVar = [FreezePermissions]
    queryset = Freeze.objects.select_related("author", "lifted_by")
    serializer_class = FreezeSerializer
    filterset_class = FreezeFilter

    @extend_schema(request=NewFreezeSerializer, responses={201: FreezeSerializer})
    def create(self, request: Request) -> Response:
        """Set a freeze; what is in flight goes to its end."""
        body = NewFreezeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        freeze = services.set_freeze(author=person(request), now=clock.now(), **body.validated_data)
        return Response(FreezeSerializer(freeze).data, status=HTTP_201_CREATED)

    @extend_schema(request=LiftSerializer, responses=FreezeSerializer)
    @action(
        detail=True, methods=["post"], permission_classes=[IsAuthenticated, needs(roles.OPERATE)]
    )
    def lift(self, request: Request, pk: str) -> Response:
        """End a freeze now; who waited for it may start at once."""
        body = LiftSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        freeze = services.lift_freeze(self.get_object(), actor=person(request), now=clock.now())
        return Response(FreezeSerializer(freeze).data)
