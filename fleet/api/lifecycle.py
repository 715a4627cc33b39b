"""Machines on their way out of work and back, over REST: whose they are, cordons, notices."""

from typing import Any, ClassVar

import django_filters
from django.contrib.auth.models import User
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED

from fleet import clock, services, tasks
from fleet.api.base import (
    StrictModelSerializer,
    StrictSerializer,
    StrictViewSet,
    ZonedDateTimeField,
    body_of,
    by_whom,
    needs,
    person,
)
from fleet.hints import hint
from fleet.models import BreakGlass, Cordon, HandOver, Machine, Notice, StateChange, TakeOut, Team

WORK = "fleet.work_repair"
REVIEW = "fleet.review_gate"
HANDS = (WORK, "fleet.run_gate", REVIEW)
_TRUE_FALSE = [("true", "true"), ("false", "false")]
#: Standing cordons that a refusal names.
_MOST_NAMED = 20


class HasHands(BasePermission):
    """Whoever repairs, runs checks or reviews can have a machine in hand."""

    message = f"this needs one of the permissions {', '.join(HANDS)}"

    def has_permission(self, request: Request, view: Any) -> bool:
        return bool(request.user) and any(request.user.has_perm(one) for one in HANDS)


class WordSerializer(StrictSerializer):
    """A word, which may be left out."""

    word = serializers.CharField(max_length=500, default="", allow_blank=True)


class TakeSerializer(WordSerializer):
    """What whoever takes a machine wants to be remembered."""


class HandOverOrderSerializer(WordSerializer):
    """Who has the machine from now on: a team, a person of it, or neither, which lays it down."""

    team = serializers.SlugRelatedField(
        "name", queryset=Team.objects.all(), required=False, allow_null=True, default=None
    )
    person = serializers.SlugRelatedField(
        "username",
        queryset=User.objects.filter(is_active=True),
        required=False,
        allow_null=True,
        default=None,
    )


class DiagnoseAgainSerializer(StrictSerializer):
    """Why a machine whose checks failed goes back to its diagnosis."""

    reason = serializers.CharField(max_length=300)


class TakeOutOrderSerializer(StrictSerializer):
    """Why a machine leaves work, and whether its job is waited for."""

    reason = serializers.CharField(max_length=300)
    at_once = serializers.BooleanField(
        default=False, help_text="without waiting for its job: it does not answer"
    )


class TakeOutSerializer(StrictModelSerializer):
    """An order to take a machine out; it stands until the machine is out."""

    machine = serializers.SlugRelatedField("name", read_only=True)
    state = serializers.CharField(source="machine.state")

    class Meta:
        model = TakeOut
        fields: ClassVar = [
            "id",
            "machine",
            "state",
            "reason",
            "is_at_once",
            "is_by_rule",
            "incident",
            "ordered_at",
            "actor",
            "ended_at",
            "ended_how",
        ]


class CordonOrderSerializer(StrictSerializer):
    """Why a machine may take no work."""

    reason = serializers.CharField(max_length=300)


class LiftSerializer(StrictSerializer):
    """Which of one's own cordons on the machine is lifted."""

    reason = serializers.CharField(max_length=300, help_text="of the cordon, as it was set")


class CordonSerializer(StrictModelSerializer):
    """A named owner's reason why a machine may take no work."""

    machine = serializers.SlugRelatedField("name", read_only=True)

    class Meta:
        model = Cordon
        fields: ClassVar = [
            "id",
            "machine",
            "owner",
            "reason",
            "since",
            "lifted_at",
            "lifted_by",
        ]


class NoticeSerializer(StrictModelSerializer):
    """What somebody has to know about a machine, or a pool, as long as it is so."""

    machine = serializers.SlugRelatedField("name", read_only=True)

    class Meta:
        model = Notice
        fields: ClassVar = [
            "id",
            "machine",
            "subject",
            "kind",
            "said",
            "raised_at",
            "cleared_at",
        ]


class HandOverSerializer(StrictModelSerializer):
    """One change of who has a machine."""

    old_team = serializers.SlugRelatedField("name", read_only=True)
    new_team = serializers.SlugRelatedField("name", read_only=True)
    old_person = serializers.SlugRelatedField("username", read_only=True)
    new_person = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = HandOver
        fields: ClassVar = [
            "state",
            "old_team",
            "new_team",
            "old_person",
            "new_person",
            "word",
            "at",
            "actor",
        ]


class StateChangeSerializer(StrictModelSerializer):
    """One move of a machine, with who, why and, into service, what vouched for it."""

    class Meta:
        model = StateChange
        fields: ClassVar = [
            "old_state",
            "new_state",
            "trigger",
            "at",
            "actor",
            "reason",
            "gate",
            "gate_record",
        ]


class CourseSerializer(StrictSerializer):
    """How a machine came where it is, oldest first."""

    machine = serializers.CharField()
    changes = StateChangeSerializer(many=True)
    hand_overs = HandOverSerializer(many=True)


class BreakGlassOrderSerializer(StrictSerializer):
    """Why a machine works without its gate, and until when; at most 72 hours."""

    reason = serializers.CharField(max_length=300)
    until = ZonedDateTimeField()


class BreakGlassSerializer(StrictModelSerializer):
    """A machine at work without its gate."""

    machine = serializers.SlugRelatedField("name", read_only=True)
    person = serializers.SlugRelatedField("username", read_only=True)
    reviewer = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = BreakGlass
        fields = "__all__"


class GlassReviewSerializer(StrictSerializer):
    """What was looked at after a machine worked without its gate."""

    word = serializers.CharField(max_length=500)


class LifecycleActions(StrictViewSet):
    """What is ordered of one machine; each answers the record that the order made."""

    @extend_schema(responses=CourseSerializer)
    @action(detail=True, filterset_class=None, pagination_class=None)
    def course(self, request: Request, name: str) -> Response:
        """Every change of its state, and of who had it in hand."""
        machine = self.get_object()
        people = ("old_team", "new_team", "old_person", "new_person")
        answer = {
            "machine": machine.name,
            "changes": machine.state_changes.order_by("pk"),
            "hand_overs": machine.hand_overs.select_related(*people).order_by("pk"),
        }
        return Response(CourseSerializer(answer).data)

    @extend_schema(request=TakeSerializer, responses={201: HandOverSerializer})
    @action(detail=True, methods=["post"], permission_classes=[IsAuthenticated, HasHands])
    def take(self, request: Request, name: str) -> Response:
        """Take the machine in hand; of one that waits for a diagnosis it begins."""
        machine, body = self.get_object(), body_of(request, TakeSerializer)
        services.take(machine, user=person(request), now=clock.now(), **body)
        return _made(HandOverSerializer(machine.hand_overs.latest("pk")))

    @extend_schema(request=HandOverOrderSerializer, responses={201: HandOverSerializer})
    @action(
        detail=True,
        methods=["post"],
        url_path="hand-over",
        permission_classes=[IsAuthenticated, HasHands],
    )
    def hand_over(self, request: Request, name: str) -> Response:
        """Hand the machine to a team or a person, with a word."""
        machine, body = self.get_object(), body_of(request, HandOverOrderSerializer)
        services.hand_over(machine, user=person(request), now=clock.now(), **body)
        return _made(HandOverSerializer(machine.hand_overs.latest("pk")))

    @extend_schema(request=DiagnoseAgainSerializer, responses={201: StateChangeSerializer})
    @action(
        detail=True,
        methods=["post"],
        url_path="diagnose-again",
        permission_classes=[IsAuthenticated, needs(WORK)],
    )
    def diagnose_again(self, request: Request, name: str) -> Response:
        """Send the machine, whose checks failed, back to whoever diagnoses."""
        machine, body = self.get_object(), body_of(request, DiagnoseAgainSerializer)
        services.diagnose_again(machine, **by_whom(request), **body)
        return _made(StateChangeSerializer(machine.state_changes.latest("pk")))

    @extend_schema(request=TakeOutOrderSerializer, responses={201: TakeOutSerializer})
    @action(
        detail=True,
        methods=["post"],
        url_path="take-out",
        permission_classes=[IsAuthenticated, needs(WORK)],
    )
    def take_out(self, request: Request, name: str) -> Response:
        """Take the machine out of work, after its job or at once."""
        machine, body = self.get_object(), body_of(request, TakeOutOrderSerializer)
        order = services.take_out(machine, **by_whom(request), **body)
        hint(tasks.tell_scheduler)
        return _made(TakeOutSerializer(order))

    @extend_schema(request=CordonOrderSerializer, responses={201: CordonSerializer})
    @action(
        detail=True,
        methods=["post"],
        permission_classes=[IsAuthenticated, needs("fleet.add_cordon")],
    )
    def cordon(self, request: Request, name: str) -> Response:
        """Set a cordon of one's own."""
        machine, body = self.get_object(), body_of(request, CordonOrderSerializer)
        owner = person(request).get_username()
        cordon = services.cordon(machine, owner=owner, now=clock.now(), **body)
        hint(tasks.tell_scheduler)
        return _made(CordonSerializer(cordon))

    @extend_schema(request=LiftSerializer, responses={201: CordonSerializer})
    @action(
        detail=True,
        methods=["post"],
        permission_classes=[IsAuthenticated, needs("fleet.add_cordon")],
    )
    def lift(self, request: Request, name: str) -> Response:
        """Lift a cordon of one's own; another's stands."""
        machine, body = self.get_object(), body_of(request, LiftSerializer)
        owner = person(request).get_username()
        standing = machine.cordons.filter(lifted_at=None, **body).order_by("pk")
        own = standing.filter(owner=owner).first() or standing.first()
        if own is None:
            raise NotFound(_no_such_cordon(machine, body["reason"]))
        lifted = services.lift_cordon(own, owner=owner, now=clock.now())
        hint(tasks.tell_scheduler)
        return _made(CordonSerializer(lifted))

    @extend_schema(request=BreakGlassOrderSerializer, responses={201: BreakGlassSerializer})
    @action(
        detail=True,
        methods=["post"],
        url_path="break-glass",
        permission_classes=[IsAuthenticated, needs("fleet.break_glass")],
    )
    def break_glass(self, request: Request, name: str) -> Response:
        """Put the machine to work without its gate, for some hours, on one's own word."""
        machine, body = self.get_object(), body_of(request, BreakGlassOrderSerializer)
        glass = services.break_glass(machine, user=person(request), now=clock.now(), **body)
        hint(tasks.tell_scheduler)
        return _made(BreakGlassSerializer(glass))


def _no_such_cordon(machine: Machine, reason: str) -> str:
    standing = machine.cordons.filter(lifted_at=None).order_by("pk").values_list("owner", "reason")
    named = ", ".join(f"{text!r} of {owner}" for owner, text in standing[:_MOST_NAMED])
    return f"no cordon on {machine} says {reason!r}; standing: {named or 'none'}"


def _made(serializer: Any) -> Response:
    return Response(serializer.data, status=HTTP_201_CREATED)


class StandingFilter(django_filters.FilterSet):
    """By machine, and whether it stands still."""

    machine = django_filters.CharFilter(field_name="machine__name", help_text="its name")
    is_standing = django_filters.TypedChoiceFilter(
        choices=_TRUE_FALSE, coerce=lambda text: text == "true", method="by_standing"
    )
    #: The column that is empty as long as a row stands.
    ends_with: ClassVar[str] = ""

    def by_standing(self, queryset: QuerySet[Any], name: str, value: bool) -> QuerySet[Any]:
        return queryset.filter(**{f"{self.ends_with}__isnull": value})


class CordonFilter(StandingFilter):
    """Cordons by owner, reason and machine."""

    ends_with = "lifted_at"

    class Meta:
        model = Cordon
        fields: ClassVar = ["owner", "reason"]


class NoticeFilter(StandingFilter):
    """Notices by kind and by what they are about."""

    ends_with = "cleared_at"

    class Meta:
        model = Notice
        fields: ClassVar = ["kind", "subject"]


class BreakGlassFilter(StandingFilter):
    """Machines at work without their gate, now or once."""

    ends_with = "ended_at"
    person = django_filters.CharFilter(field_name="person__username")
    is_reviewed = django_filters.TypedChoiceFilter(
        choices=_TRUE_FALSE, coerce=lambda text: text == "true", method="by_review"
    )

    class Meta:
        model = BreakGlass
        fields: ClassVar[list[str]] = []

    def by_review(self, queryset: QuerySet[Any], name: str, value: bool) -> QuerySet[Any]:
        return queryset.filter(reviewer__isnull=not value)


class CordonViewSet(mixins.ListModelMixin, StrictViewSet):
    """Cordons, by owner and reason; each is set and lifted at its machine."""

    queryset = Cordon.objects.select_related("machine")
    serializer_class = CordonSerializer
    filterset_class = CordonFilter


class NoticeViewSet(mixins.ListModelMixin, StrictViewSet):
    """What somebody has to know, as long as it is so: deadlines that passed, gates bypassed."""

    queryset = Notice.objects.select_related("machine")
    serializer_class = NoticeSerializer
    filterset_class = NoticeFilter


class BreakGlassViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, StrictViewSet):
    """Machines that were put to work without their gate, and who looked at it after."""

    queryset = BreakGlass.objects.select_related("machine", "person", "reviewer")
    serializer_class = BreakGlassSerializer
    filterset_class = BreakGlassFilter

    @extend_schema(request=GlassReviewSerializer, responses=BreakGlassSerializer)
    @action(detail=True, methods=["post"], permission_classes=[IsAuthenticated, needs(REVIEW)])
    def review(self, request: Request, pk: str) -> Response:
        """Say that another person has looked at it, once it is over."""
        glass, body = self.get_object(), body_of(request, GlassReviewSerializer)
        done = services.review_break_glass(glass, user=person(request), now=clock.now(), **body)
        return Response(BreakGlassSerializer(done).data)
