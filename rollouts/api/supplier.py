"""Supplier cases over REST: looked through, packed, and what was packed before."""

from typing import Any, ClassVar

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED
from rest_framework.views import APIView

from fleet import clock
from fleet.api.base import (
    ChoiceField,
    StrictModelSerializer,
    StrictSerializer,
    StrictViewSet,
    needs,
    person,
)
from rollouts import services
from rollouts.models import SupplierPackage
from rollouts.supplier import gather

ADD = "rollouts.add_supplierpackage"


class SupplierCaseQuerySerializer(StrictSerializer):
    """Which case."""

    case = serializers.CharField(max_length=100, help_text="as incidents or repairs name it")


class SupplierTextSerializer(StrictSerializer):
    """A free text as it would leave; it stays unless a package names its key."""

    key = serializers.CharField()
    field = serializers.CharField()
    at = serializers.DateTimeField()
    machine = serializers.CharField()
    incident = serializers.CharField()
    text = serializers.CharField()


class SupplierCaseSerializer(StrictSerializer):
    """A case as it would leave."""

    case = serializers.CharField()
    machines = serializers.IntegerField()
    incidents = serializers.ListField(child=serializers.DictField())
    timeline = serializers.ListField(child=serializers.DictField())
    left_out = serializers.DictField(child=serializers.IntegerField())
    texts = SupplierTextSerializer(many=True)


class SupplierCaseView(APIView):
    """What a package of a case would hold, and the free texts that could be let through."""

    permission_classes: ClassVar = [IsAuthenticated, needs(ADD)]

    @extend_schema(parameters=[SupplierCaseQuerySerializer], responses=SupplierCaseSerializer)
    def get(self, request: Request) -> Response:
        """Look through a case; nothing is made and nothing written down."""
        query = SupplierCaseQuerySerializer(data=request.query_params.dict())
        query.is_valid(raise_exception=True)
        package = gather(query.validated_data["case"], now=clock.now())
        told: dict[str, Any] = {
            **{name: getattr(package, name) for name in ("case", "machines", "texts")},
            "incidents": [dict(one) for one in package.incidents],
            "timeline": [row.cells() for row in package.rows],
            "left_out": dict(package.left_out),
        }
        return Response(SupplierCaseSerializer(told).data)


class SupplierPackageSerializer(StrictModelSerializer):
    """The record of a package: its digest, who made it, what was left out."""

    user = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = SupplierPackage
        fields = "__all__"


class MadePackageSerializer(SupplierPackageSerializer):
    """A package that was just made, with what it holds; it is not kept here."""

    content = serializers.CharField(read_only=True)


class NewPackageSerializer(StrictSerializer):
    """A package to make."""

    case = serializers.CharField(max_length=100)
    format = ChoiceField(SupplierPackage.Format.choices)
    texts = serializers.ListField(
        child=serializers.CharField(max_length=60),
        required=False,
        max_length=1000,
        help_text="keys of the free texts that are let through",
    )


class SupplierPackageFilter(django_filters.FilterSet):
    """Packages by case."""

    class Meta:
        model = SupplierPackage
        fields: ClassVar = ["case", "format", "sha256"]


class SupplierPackageViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, StrictViewSet):
    """What was given to suppliers; a package is made, never edited."""

    queryset = SupplierPackage.objects.select_related("user")
    serializer_class = SupplierPackageSerializer
    filterset_class = SupplierPackageFilter

    @extend_schema(request=NewPackageSerializer, responses={201: MadePackageSerializer})
    def create(self, request: Request) -> Response:
        """Make a package; its digest is that of `content` in UTF-8."""
        body = NewPackageSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        user = person(request)
        record, content = services.make_package(
            body.validated_data["case"],
            form=body.validated_data["format"],
            texts=body.validated_data.get("texts", ()),
            actor=user.get_username(),
            user=user,
            now=clock.now(),
        )
        told = {**SupplierPackageSerializer(record).data, "content": content.decode()}
        return Response(told, status=HTTP_201_CREATED)
