"""What changed, who is suspected, and how the fleet changed under a rollout, over REST."""

import math
from datetime import timedelta
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.permissions import SAFE_METHODS, BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED
from rest_framework.views import APIView

from fleet import clock, services
from fleet.api.base import (
    ChoiceField,
    QueryTimeField,
    StrictModelSerializer,
    StrictSerializer,
    ZonedDateTimeField,
    needs,
    person,
)
from fleet.models import Change
from rollouts.analysis.suspects import Suspicion
from rollouts.changes import changed_since
from rollouts.suspects import Suspect, line_up

#: Where nobody says since when: the last day.
LAST_DAY = timedelta(days=1)
OBSERVATIONAL = (
    "observational: nobody drew whom these changes touched, so they are suspects and no verdicts"
)

#: What others may report; moves and retirements are the inventory's own.
REPORTED = [
    kind
    for kind in Change.Kind.choices
    if kind[0] not in (Change.Kind.PLACE, Change.Kind.RETIREMENT)
]


class NewChangeSerializer(StrictSerializer):
    """A change that was made elsewhere: a driver, a switch, a setting."""

    source = serializers.CharField(  # type: ignore[assignment]
        max_length=100, help_text="the system that reports"
    )
    key = serializers.CharField(max_length=200, help_text="of the source; repeated, it is the same")
    kind = ChoiceField(REPORTED)
    what = serializers.CharField(max_length=100, help_text="component or setting, as nvidia-driver")
    selector = serializers.CharField(
        max_length=1000, required=False, help_text="whom it touched; this or machines"
    )
    machines = serializers.ListField(
        child=serializers.CharField(max_length=200),
        required=False,
        allow_empty=False,
        max_length=10_000,
    )
    old = serializers.CharField(max_length=200, required=False)
    new = serializers.CharField(max_length=200, required=False)
    note = serializers.CharField(max_length=500, required=False)
    at = ZonedDateTimeField(help_text="when it was made")


class ChangeSerializer(StrictModelSerializer):
    """A reported change as it was taken."""

    reported_by = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = Change
        exclude: ClassVar = ["machines"]


class SinceSerializer(StrictSerializer):
    """Between which times."""

    since = QueryTimeField(required=False, help_text="RFC 3339 with zone; without it: a day ago")
    until = QueryTimeField(required=False, help_text="without it: now")


class RowSerializer(StrictSerializer):
    """One thing that changed, whoever changed it."""

    at = serializers.DateTimeField()
    source = serializers.CharField(  # type: ignore[assignment]
        help_text="report, install, read_back, order, move or clock: whose record it is"
    )
    what = serializers.CharField()
    who = serializers.CharField(allow_blank=True)
    machines = serializers.IntegerField(allow_null=True)
    rollout = serializers.CharField(allow_blank=True)
    reference = serializers.IntegerField(allow_null=True)


class ChangesSerializer(StrictSerializer):
    """Everything that changed, the newest first."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    left_off = serializers.IntegerField(help_text="older rows that are not listed")
    rows = RowSerializer(many=True)


class MayReport(BasePermission):
    """Reading needs the right to see rollouts, reporting the right to add changes."""

    def has_permission(self, request: Request, view: Any) -> bool:
        is_read = request.method in SAFE_METHODS
        needed = "rollouts.view_rollout" if is_read else "fleet.add_change"
        self.message = f"this needs the permission {needed}"
        return bool(request.user and request.user.has_perm(needed))


class ChangeView(APIView):
    """Changes that were made elsewhere are reported here, and asked for with all others."""

    permission_classes: ClassVar = [IsAuthenticated, MayReport]

    @extend_schema(request=NewChangeSerializer, responses={201: ChangeSerializer})
    def post(self, request: Request) -> Response:
        """Report a change; it counts among the suspects, and against comparisons it touches."""
        body = NewChangeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        change = services.record_change(
            **body.validated_data, now=clock.now(), reported_by=person(request)
        )
        return Response(ChangeSerializer(change).data, status=HTTP_201_CREATED)

    @extend_schema(parameters=[SinceSerializer], responses=ChangesSerializer)
    def get(self, request: Request) -> Response:
        """What changed between two times: reports, installs, orders, moves, clocks."""
        since, until = _between(request)
        answer = changed_since(since, until=until)
        told = {"since": since, "until": until, "left_off": answer.left_off, "rows": answer.rows}
        return Response(ChangesSerializer(told).data)


def _between(request: Request) -> tuple[Any, Any]:
    query = SinceSerializer(data=request.query_params.dict())
    query.is_valid(raise_exception=True)
    until = query.validated_data.get("until") or clock.now()
    since = query.validated_data.get("since") or until - LAST_DAY
    if since >= until:
        raise serializers.ValidationError(
            {"since": f"{since.isoformat()} is not before {until.isoformat()}"}
        )
    return since, until


# --- suspects -----------------------------------------------------------------------------------


class SpikeSerializer(StrictSerializer):
    """Which faults, and since when."""

    signature = serializers.CharField(max_length=100, help_text="or a pattern, as xid.*")
    since = QueryTimeField(required=False, help_text="when it began; without it: a day ago")


class CountsSerializer(StrictSerializer):
    """Episodes and machine-hours of a group."""

    events = serializers.IntegerField()
    exposure_hours = serializers.FloatField()


class RatioSerializer(StrictSerializer):
    """Touched over untouched machine-time; null where a number does not exist."""

    estimate = serializers.FloatField(allow_null=True)
    low = serializers.FloatField(allow_null=True)
    high = serializers.FloatField(allow_null=True)


class SuspectSerializer(StrictSerializer):
    """One change under way, and how well it explains the spike."""

    kind = serializers.CharField()
    what = serializers.CharField()
    at = serializers.DateTimeField(help_text="when it first touched a machine")
    machines = serializers.IntegerField()
    change = serializers.IntegerField(allow_null=True)
    rollout = serializers.IntegerField(allow_null=True)
    touched = CountsSerializer()
    untouched = CountsSerializer()
    touched_before = CountsSerializer()
    untouched_before = CountsSerializer()
    before = RatioSerializer(allow_null=True, help_text="where they differed already")
    after = RatioSerializer(allow_null=True, help_text="during the spike")
    explained = serializers.FloatField(allow_null=True, help_text="episodes beyond the untouched")
    share = serializers.FloatField(allow_null=True, help_text="of the spike, from 0 to 1")


class LineupSerializer(StrictSerializer):
    """The spike, and the changes under way, the best explanation first."""

    note = serializers.CharField()
    signatures = serializers.ListField(child=serializers.CharField())
    machines = serializers.IntegerField()
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    events = serializers.IntegerField()
    expected = serializers.FloatField(help_text="at the rate of the week before")
    suspects = SuspectSerializer(many=True)


class SuspectView(APIView):
    """Which change explains a spike of faults best."""

    permission_classes: ClassVar = [IsAuthenticated, needs("rollouts.view_rollout")]

    @extend_schema(parameters=[SpikeSerializer], responses=LineupSerializer)
    def get(self, request: Request) -> Response:
        """Rank the changes under way by how well they explain the faults since then."""
        query = SpikeSerializer(data=request.query_params.dict())
        query.is_valid(raise_exception=True)
        now = clock.now()
        since = query.validated_data.get("since") or now - LAST_DAY
        if since >= now:
            raise serializers.ValidationError({"since": f"{since.isoformat()} is still to come"})
        found = line_up(query.validated_data["signature"], since=since, now=now)
        told = {
            "note": OBSERVATIONAL,
            **{name: getattr(found, name) for name in ("signatures", "machines", "since")},
            **{name: getattr(found, name) for name in ("until", "events", "expected")},
            "suspects": [_told(suspect) for suspect in found.suspects],
        }
        return Response(LineupSerializer(told).data)


def _told(suspect: Suspect) -> dict[str, Any]:
    seen = suspect.seen
    return {
        **{name: getattr(suspect, name) for name in ("kind", "what", "at", "machines")},
        **{name: getattr(suspect, name) for name in ("change", "rollout")},
        **{name: getattr(seen, name) for name in ("touched", "untouched")},
        **{name: getattr(seen, name) for name in ("touched_before", "untouched_before")},
        "before": _ratio(seen, "before"),
        "after": _ratio(seen, "after"),
        "explained": seen.explained,
        "share": seen.share,
    }


def _ratio(seen: Suspicion, name: str) -> dict[str, float | None] | None:
    ratio = getattr(seen, name)
    if ratio is None:
        return None
    figures = {part: getattr(ratio, part) for part in ("estimate", "low", "high")}
    return {part: value if math.isfinite(value) else None for part, value in figures.items()}


# --- under a rollout ----------------------------------------------------------------------------


class NamedSerializer(StrictSerializer):
    """A machine, and what is to be said of it."""

    machine = serializers.CharField()
    detail = serializers.CharField()


class ListedSerializer(StrictSerializer):
    """How many, and the first of them."""

    count = serializers.IntegerField()
    more = serializers.IntegerField(help_text="how many are not listed")
    machines = serializers.SerializerMethodField()

    @extend_schema_field(NamedSerializer(many=True))
    def get_machines(self, listed: Any) -> list[dict[str, str]]:
        return [{"machine": name, "detail": detail} for name, detail in listed.machines]


class RosterSerializer(StrictSerializer):
    """Who of a rollout's machines left, moved, is out or excluded, and who came too late."""

    retired = ListedSerializer()
    moved = ListedSerializer()
    out_of_service = ListedSerializer()
    excluded = ListedSerializer()
    late = ListedSerializer(help_text="the selector would match them now; never added")
