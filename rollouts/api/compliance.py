"""Drift over REST: how machines stand to what they are meant to run, counted and listed."""

from collections.abc import Iterator
from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from fleet import clock, compliance
from fleet.api.base import (
    ChoiceField,
    PagedQuerySerializer,
    QueryTimeField,
    StrictSerializer,
    answer_by_name,
    needs,
    query_of,
)
from fleet.firmware.drift import Standing
from fleet.models import FirmwareBundle, Machine
from fleet.selectors import machines_matching
from rollouts import selectors

STANDINGS = [(one.value, one.value) for one in Standing]


class ComplianceQuerySerializer(StrictSerializer):
    """Which machines, against which bundle, as of when."""

    bundle = serializers.PrimaryKeyRelatedField(
        queryset=FirmwareBundle.objects.all(),
        default=None,
        help_text="without: what each machine is meant to run",
    )
    selector = serializers.CharField(default="", help_text="without: all machines")
    as_of = QueryTimeField(default=None, help_text="RFC 3339 with zone; without: now")


class ComplianceListQuerySerializer(PagedQuerySerializer, ComplianceQuerySerializer):
    """The same, page by page, perhaps of one standing only."""

    standing = ChoiceField(STANDINGS, default=None)


class GroupSerializer(StrictSerializer):
    """The machines of one platform and pool that are meant to run one bundle."""

    platform = serializers.CharField()
    pool = serializers.CharField()
    bundle = serializers.IntegerField(source="bundle.pk")
    bundle_name = serializers.CharField(source="bundle")
    machines = serializers.IntegerField()
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="by standing")


class SummarySerializer(StrictSerializer):
    """How machines stand to what they are meant to run."""

    as_of = serializers.DateTimeField()
    machines = serializers.IntegerField(help_text="of which something is wanted")
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="by standing")
    groups = GroupSerializer(many=True)


class ComplianceSerializer(StrictSerializer):
    """One machine; behind a cordon, `drift` tells how it stands."""

    machine = serializers.CharField()
    platform = serializers.CharField()
    site = serializers.CharField()
    pool = serializers.CharField()
    bundle = serializers.IntegerField(source="bundle.pk")
    bundle_name = serializers.CharField(source="bundle")
    standing = ChoiceField(STANDINGS)
    drift = ChoiceField(STANDINGS)
    reason = serializers.CharField()


class CompliancePageSerializer(StrictSerializer):
    """Some machines, and where it goes on."""

    next = serializers.URLField(allow_null=True)
    results = ComplianceSerializer(many=True)


class ComplianceView(APIView):
    """Drift, counted per platform, pool and bundle."""

    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.view_firmwarerecord")]

    @extend_schema(parameters=[ComplianceQuerySerializer], responses=SummarySerializer)
    def get(self, request: Request) -> Response:
        """How many machines are compliant, older, newer, unknown, …; unknown is not compliant."""
        asked = query_of(request, ComplianceQuerySerializer)
        groups = compliance.summary(_rows(**asked))
        counts = {one.value: sum(group.counts[one] for group in groups) for one in Standing}
        answer = {
            "as_of": asked["as_of"] or clock.now(),
            "machines": sum(group.machines for group in groups),
            "counts": counts,
            "groups": groups,
        }
        return Response(SummarySerializer(answer).data)


class ComplianceListView(APIView):
    """Drift, machine by machine."""

    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.view_firmwarerecord")]

    @extend_schema(parameters=[ComplianceListQuerySerializer], responses=CompliancePageSerializer)
    def get(self, request: Request) -> Response:
        """Machines in order of name, with what they run and what is wanted in words."""
        return answer_by_name(
            request,
            _rows_of_standing,
            asks=ComplianceListQuerySerializer,
            answers=CompliancePageSerializer,
            name=lambda row: str(row.machine),
        )


def _rows_of_standing(
    *, standing: Standing | None, limit: int, **asked: Any
) -> Iterator[compliance.Compliance]:
    """One after the other, for as long as the page takes them: `limit` has nothing to bound."""
    return (row for row in _rows(**asked) if standing in (None, row.standing))


def _rows(
    *, bundle: FirmwareBundle | None, selector: str, as_of: Any, after: str = ""
) -> Iterator[compliance.Compliance]:
    machines: QuerySet[Machine] = Machine.objects.all()
    if selector:
        machines = machines_matching(selector)
    treated = {} if bundle or as_of else selectors.treated_bundles()
    return compliance.compliance(machines, bundle=bundle, treated=treated, after=after, at=as_of)
