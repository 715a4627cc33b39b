"""Capacity over REST: who stands where, how long the way back takes, and where machines pile up."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db.models import Q
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import get_object_or_404
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from fleet import capacity, clock
from fleet.api.base import DayField, QueryTimeField, StrictSerializer, needs, query_of
from fleet.models import Machine, Platform

MOST_DAYS = 100
SEES: list[type[BasePermission]] = [IsAuthenticated, needs("fleet.view_machine")]


class PlaceQuerySerializer(StrictSerializer):
    """One platform or pool only, where it is named."""

    platform = serializers.SlugRelatedField("name", queryset=Platform.objects.all(), default=None)
    pool = serializers.CharField(default=None, max_length=100)


class CapacityQuerySerializer(PlaceQuerySerializer):
    """The same, as of a time."""

    as_of = QueryTimeField(default=None, help_text="RFC 3339 with zone; without: now")

    def validate_as_of(self, value: datetime | None) -> datetime | None:
        if value is not None and value > clock.now():
            raise serializers.ValidationError(f"{value.isoformat()} is still to come")
        return value


class HistoryQuerySerializer(PlaceQuerySerializer):
    """The same, day by day."""

    since = DayField(default=None, help_text="first day; without: 27 days ago")
    until = DayField(default=None, help_text="last day; without: today")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        until = attrs["until"] or clock.now().date()
        since = attrs["since"] or until - timedelta(days=capacity.WINDOW_DAYS - 1)
        if not 0 <= (until - since).days < MOST_DAYS:
            raise serializers.ValidationError(
                {"since": f"{since} to {until} is not 1 to {MOST_DAYS} days"}
            )
        return {**attrs, "since": since, "until": until}


class QueuesQuerySerializer(CapacityQuerySerializer):
    """The same, over so many days."""

    days = serializers.IntegerField(default=capacity.WINDOW_DAYS, min_value=1, max_value=MOST_DAYS)


class TrendQuerySerializer(PlaceQuerySerializer):
    """Each queue, over so many days."""

    days = serializers.IntegerField(default=capacity.TREND_DAYS, min_value=1, max_value=MOST_DAYS)


class StandingSerializer(StrictSerializer):
    """The machines of one platform and pool; null: it was not measured then."""

    platform = serializers.CharField()
    pool = serializers.CharField(allow_blank=True)
    installed = serializers.IntegerField(help_text="not retired")
    qualified = serializers.IntegerField(
        allow_null=True, help_text="may take work, and no watch period after a repair runs"
    )
    in_service = serializers.IntegerField()
    canary = serializers.IntegerField(
        allow_null=True, help_text="in service, treated by an open rollout"
    )
    cordoned = serializers.IntegerField(allow_null=True, help_text="in service, with a cordon")
    out = serializers.IntegerField(help_text="in a state of the way back")
    states = serializers.SerializerMethodField(help_text="machines by state")

    def get_states(self, row: capacity.Standing) -> dict[str, int]:
        return {state: n for state, n in sorted(row.counts.items()) if n}


class CapacitySerializer(StrictSerializer):
    """One table per platform and pool."""

    as_of = serializers.DateTimeField()
    results = StandingSerializer(many=True)


class DaySerializer(StandingSerializer):
    """The same at the end of one day (of today: so far)."""

    day = serializers.DateField()


class CapacityHistorySerializer(StrictSerializer):
    """Days in their order; those that nobody kept are left out."""

    since = serializers.DateField()
    until = serializers.DateField()
    results = DaySerializer(many=True)


class FiguresSerializer(StrictSerializer):
    """How long stays took; null where none has ended."""

    ended = serializers.IntegerField(help_text="stays that ended in these days")
    open = serializers.IntegerField(help_text="machines in the state at the time")
    median_hours = serializers.FloatField(allow_null=True, help_text="of stays that ended")
    p90_hours = serializers.FloatField(allow_null=True, help_text="of stays that ended")
    mean_hours = serializers.FloatField(
        allow_null=True, help_text="restricted to 672 h, open stays taken as censored"
    )
    oldest_open_hours = serializers.FloatField(allow_null=True)


class QueueSerializer(StrictSerializer):
    """One state of the way back."""

    state = serializers.CharField()
    is_queue = serializers.BooleanField(help_text="a machine waits in it for somebody")
    goal_hours = serializers.FloatField(allow_null=True)
    overdue = serializers.IntegerField()
    figures = FiguresSerializer()
    entered_per_day = serializers.FloatField(source="flow.per_day")
    expected_out = serializers.FloatField(
        source="flow.expected_out", allow_null=True, help_text="entries per day x mean time"
    )


class QueuesSerializer(StrictSerializer):
    """All states of the way back, and the queue that keeps the most machines out."""

    as_of = serializers.DateTimeField()
    days = serializers.FloatField(help_text="how long the figures look back")
    expected_out = serializers.FloatField(help_text="machines, over all states")
    bottleneck = serializers.CharField(source="bottleneck.state", allow_null=True, default=None)
    results = QueueSerializer(many=True, source="queues")


class PointSerializer(StrictSerializer):
    """One day of one queue."""

    day = serializers.DateField()
    waiting = serializers.IntegerField(help_text="machines in it at the day's end")
    ended = serializers.IntegerField(help_text="stays that ended on that day")
    median_hours = serializers.FloatField(allow_null=True, help_text="of those")


class TrendSerializer(StrictSerializer):
    """One queue, day by day."""

    state = serializers.CharField()
    points = PointSerializer(many=True)


class TrendsSerializer(StrictSerializer):
    """Each queue, day by day."""

    as_of = serializers.DateTimeField()
    results = TrendSerializer(many=True)


class AsOfSerializer(StrictSerializer):
    """As of a time."""

    as_of = QueryTimeField(default=None, help_text="RFC 3339 with zone; without: now")


class StaySerializer(StrictSerializer):
    """One state of one machine, from `since` to `until` (null: still)."""

    state = serializers.CharField()
    since = serializers.DateTimeField()
    until = serializers.DateTimeField(allow_null=True)
    hours = serializers.FloatField(help_text="so far, of one that is open")


class StaysSerializer(StrictSerializer):
    """Every stay of one machine, oldest first."""

    machine = serializers.CharField()
    as_of = serializers.DateTimeField()
    results = StaySerializer(many=True)


class CapacityView(APIView):
    """Installed, qualified, in service, canary and cordoned machines, per platform and pool."""

    permission_classes: ClassVar[Sequence[type[BasePermission]]] = SEES

    @extend_schema(parameters=[CapacityQuerySerializer], responses=CapacitySerializer)
    def get(self, request: Request) -> Response:
        """The present, counted; the past, counted from recorded changes of state."""
        asked = query_of(request, CapacityQuerySerializer)
        at = asked["as_of"]
        if at is None:
            rows = capacity.standings(now=clock.now(), pools=places_of(asked))
        else:
            rows = [row for row in capacity.standings_as_of(at) if _is_asked(row, asked)]
        answer = {"as_of": at or clock.now(), "results": rows}
        return Response(CapacitySerializer(answer).data)


class CapacityHistoryView(APIView):
    """The same, day by day."""

    permission_classes: ClassVar[Sequence[type[BasePermission]]] = SEES

    @extend_schema(parameters=[HistoryQuerySerializer], responses=CapacityHistorySerializer)
    def get(self, request: Request) -> Response:
        """Kept days; what cannot be counted again is null where nobody measured it."""
        asked = query_of(request, HistoryQuerySerializer)
        span = {"since": asked["since"], "until": asked["until"]}
        days = capacity.history(**span, places=places_of(asked))
        rows = [{"day": day, **StandingSerializer(standing).data} for day, standing in days]
        return Response(
            {**CapacityHistorySerializer({**span, "results": []}).data, "results": rows}
        )


class QueuesView(APIView):
    """How long machines wait and are worked on, and which queue keeps the most out."""

    permission_classes: ClassVar[Sequence[type[BasePermission]]] = SEES

    @extend_schema(parameters=[QueuesQuerySerializer], responses=QueuesSerializer)
    def get(self, request: Request) -> Response:
        """Median and 90th percentile per state, entries times time, and the bottleneck."""
        asked = query_of(request, QueuesQuerySerializer)
        found = capacity.queue_figures(
            now=asked["as_of"] or clock.now(),
            days=asked["days"],
            places=places_of(asked),
            is_past=asked["as_of"] is not None,
        )
        return Response(QueuesSerializer(found).data)


class TrendView(APIView):
    """The four queues, day by day."""

    permission_classes: ClassVar[Sequence[type[BasePermission]]] = SEES

    @extend_schema(parameters=[TrendQuerySerializer], responses=TrendsSerializer)
    def get(self, request: Request) -> Response:
        """Machines in each queue at each day's end, and how long those that left it had waited."""
        asked = query_of(request, TrendQuerySerializer)
        now = clock.now()
        found = capacity.trends(now=now, days=asked["days"], places=places_of(asked))
        rows = [{"state": state, "points": points} for state, points in found.items()]
        return Response(TrendsSerializer({"as_of": now, "results": rows}).data)


class StaysView(APIView):
    """One machine's time in each state."""

    permission_classes: ClassVar[Sequence[type[BasePermission]]] = SEES

    @extend_schema(parameters=[AsOfSerializer], responses=StaysSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Measured from the recorded changes; nothing is estimated."""
        machine = get_object_or_404(Machine, name=name)
        at = query_of(request, AsOfSerializer)["as_of"] or clock.now()
        stays = capacity.stays_of(machine, until=at)
        rows = [
            {
                "state": stay.state,
                "since": stay.since,
                "until": stay.until,
                "hours": stay.hours(now=at),
            }
            for stay in stays
        ]
        answer = {"machine": machine.name, "as_of": at, "results": rows}
        return Response(StaysSerializer(answer).data)


def places_of(asked: dict[str, Any]) -> Q | None:
    """Return the condition on platform and pool, which machines and kept days share."""
    found = Q()
    if asked["platform"] is not None:
        found &= Q(platform=asked["platform"])
    if asked["pool"] is not None:
        found &= Q(pool=asked["pool"])
    return found or None


def _is_asked(row: capacity.Standing, asked: dict[str, Any]) -> bool:
    platform, pool = asked["platform"], asked["pool"]
    is_platform = platform is None or row.platform == platform.name
    return is_platform and (pool is None or row.pool == pool)
