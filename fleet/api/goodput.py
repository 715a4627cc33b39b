"""Goodput over REST: how much work got done, what interruptions cost, and how long repairs keep."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from fleet import clock, goodput, losses
from fleet.api.base import ChoiceField, DayField, StrictSerializer, needs, query_of
from fleet.api.capacity import PlaceQuerySerializer
from fleet.models import JobKind

PER = (("day", "day"), ("week", "week"))


class GoodputQuerySerializer(PlaceQuerySerializer):
    """Which days, jobs and machines; and the job whose expected ratio is asked for."""

    since = DayField(default=None, help_text="first day; without: 27 days ago")
    until = DayField(default=None, help_text="last day; without: today")
    job_kind = ChoiceField(JobKind.choices, default=None)
    per = ChoiceField(PER, default="day")
    machines = serializers.IntegerField(
        default=losses.EXPECTED_MACHINES, min_value=1, max_value=10_000_000, help_text="of a job"
    )
    checkpoint_minutes = serializers.FloatField(
        default=losses.CHECKPOINT_MINUTES,
        min_value=0.01,
        max_value=100_000,
        help_text="between checkpoints",
    )
    write_minutes = serializers.FloatField(
        default=None, min_value=0.0, max_value=10_000, help_text="to write one"
    )
    restart_minutes = serializers.FloatField(
        default=None,
        min_value=0.0,
        max_value=100_000,
        help_text="without: the median seen",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        until = attrs["until"] or clock.now().date()
        since = attrs["since"] or until - timedelta(days=losses.DAYS - 1)
        if not 0 <= (until - since).days < losses.MOST_DAYS:
            raise serializers.ValidationError(
                {"since": f"{since} to {until} is not 1 to {losses.MOST_DAYS} days"}
            )
        return {**attrs, "since": since, "until": until}


class FigureSerializer(StrictSerializer):
    """A number; null where something it needs is missing, which `reason` names."""

    value = serializers.FloatField(allow_null=True)
    formula = serializers.CharField(help_text="see `definitions`")
    reason = serializers.CharField(allow_blank=True)


class LossSerializer(StrictSerializer):
    """What some impacts lost; those whose loss is not known add no hours."""

    impacts = serializers.IntegerField()
    unknown = serializers.IntegerField(help_text="of these, the loss is not known")
    accelerator_hours = serializers.FloatField(source="hours")
    second_order = serializers.IntegerField(help_text="of jobs that made room for another one")
    second_order_hours = serializers.FloatField(help_text="accelerator-hours, within the total")
    repeated_told = serializers.IntegerField(help_text="impacts of which repeated work was told")
    repeated_seconds = serializers.FloatField(help_text="of work done twice, by the job's clock")
    repeated_hours = serializers.FloatField(
        help_text="accelerator-hours, where both were told; within the total"
    )


class GoodputKindSerializer(StrictSerializer):
    """One kind of job; an empty name: nobody told its kind."""

    name = serializers.CharField(allow_blank=True)
    machine_hours = serializers.FloatField(help_text="in service, as reported")
    available = serializers.FloatField(help_text="accelerator-hours")
    loss = LossSerializer()
    goodput = FigureSerializer()
    is_at_most = serializers.BooleanField(help_text="some losses are not known")
    target = serializers.FloatField(allow_null=True)
    is_met = serializers.BooleanField(allow_null=True, help_text="null: it cannot be told")


class CutSerializer(StrictSerializer):
    """The impacts of one cause or recovery path."""

    name = serializers.CharField()
    loss = LossSerializer()
    share = FigureSerializer(help_text="of the known loss")
    per_thousand_days = FigureSerializer(help_text="impacts per 1,000 machine-days in service")


class BinSerializer(StrictSerializer):
    """One day or week; an impact counts on the day of its fault."""

    since = serializers.DateField()
    until = serializers.DateField()
    available = serializers.FloatField(help_text="accelerator-hours")
    loss = LossSerializer()
    goodput = FigureSerializer()
    by_cause = serializers.DictField(child=serializers.FloatField())
    by_path = serializers.DictField(child=serializers.FloatField())


class JobGoodputSerializer(StrictSerializer):
    """One job of those that lost the most."""

    job = serializers.CharField()
    job_kind = serializers.CharField(allow_blank=True)
    loss = LossSerializer()
    ettr = FigureSerializer()


class ExpectedSerializer(StrictSerializer):
    """What a job of a size can expect at the failure rate of these days."""

    machines = serializers.IntegerField()
    checkpoint_minutes = serializers.FloatField()
    write_minutes = serializers.FloatField(allow_null=True)
    restart_minutes = FigureSerializer()
    ettr = FigureSerializer()
    mttf_hours = FigureSerializer()
    checkpoint_interval_minutes = FigureSerializer()


class PartSerializer(StrictSerializer):
    """One part of the way back; null where none ended."""

    name = serializers.CharField(source="state")
    ended = serializers.IntegerField()
    median_hours = serializers.FloatField(allow_null=True)
    p90_hours = serializers.FloatField(allow_null=True)


class GoodputSerializer(StrictSerializer):
    """How much work got done, and what interruptions cost."""

    since = serializers.DateField()
    until = serializers.DateField()
    as_of = serializers.DateTimeField()
    definitions = serializers.DictField(child=serializers.CharField())
    total = GoodputKindSerializer()
    kinds = GoodputKindSerializer(many=True)
    causes = CutSerializer(many=True)
    paths = CutSerializer(many=True)
    bins = BinSerializer(many=True)
    jobs = JobGoodputSerializer(many=True)
    failures = serializers.IntegerField(help_text="incidents that count")
    failures_per_machine_day = FigureSerializer()
    expected = ExpectedSerializer()
    mttr = PartSerializer(help_text="from out of service to released")
    parts = PartSerializer(many=True)
    availability = FigureSerializer()
    qualified = FigureSerializer()


class GoodputView(APIView):
    """Goodput, its losses by cause and recovery path, ETTR, MTTF and the parts of MTTR."""

    permission_classes: ClassVar[Sequence[type[BasePermission]]] = [
        IsAuthenticated,
        needs("fleet.view_machine"),
        needs("fleet.view_jobimpact"),
    ]

    @extend_schema(parameters=[GoodputQuerySerializer], responses=GoodputSerializer)
    def get(self, request: Request) -> Response:
        """Every number with its definition; what is not known is null, with the reason."""
        said = query_of(request, GoodputQuerySerializer)
        now = clock.now()
        asked = asked_of(said)
        found = losses.report(asked, now=now)
        back = losses.way_back(asked)
        answer = {
            "since": asked.since,
            "until": asked.until,
            "as_of": now,
            "definitions": goodput.DEFINITIONS,
            **{name: getattr(found, name) for name in _OF_REPORT},
            "failures_per_machine_day": found.rate,
            "expected": losses.expected(found, **{name: said[name] for name in _OF_JOB}),
            "mttr": back.whole,
            "parts": back.parts,
            "availability": back.availability,
            "qualified": back.qualified,
        }
        return Response(GoodputSerializer(answer).data)


_OF_REPORT = ("total", "kinds", "causes", "paths", "bins", "jobs", "failures")
_OF_JOB = ("machines", "checkpoint_minutes", "write_minutes", "restart_minutes")


def asked_of(said: Mapping[str, Any]) -> losses.Asked:
    """Return what a query or a form asks for."""
    names = ("since", "until", "job_kind", "platform", "pool")
    return losses.Asked(**{name: said[name] for name in names}, per=said["per"] or "day")
