"""Gates over REST: what a machine has to show, checks claimed and reported, reviews, plans."""

from collections.abc import Sequence
from typing import Any, ClassVar

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.parsers import JSONParser, MultiPartParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED

from fleet import clock, gate_state, services
from fleet.api.base import (
    StrictModelSerializer,
    StrictSerializer,
    StrictViewSet,
    body_of,
    by_whom,
    needs,
    person,
)
from fleet.models import CheckResult, Gate, GateCheck, GateEvent, GatePlan, RepairKind
from fleet.repair import gating

RUN = "fleet.run_gate"
REVIEW = "fleet.review_gate"
PLAN = "fleet.add_gateplan"
YES_NO = [("true", "true"), ("false", "false")]


# --- what is shown ------------------------------------------------------------------------------


class CheckResultSerializer(StrictModelSerializer):
    """One result of a check, with the threshold as it stood."""

    evidence = serializers.PrimaryKeyRelatedField(many=True, read_only=True)

    class Meta:
        model = CheckResult
        fields: ClassVar = [
            "id",
            "is_passed",
            "value",
            "unit",
            "threshold",
            "note",
            "reference",
            "evidence",
            "actor",
            "source_key",
            "at",
        ]


class GateCheckSerializer(StrictModelSerializer):
    """One check: what it needs, who is at it, and what it came to."""

    gate = serializers.PrimaryKeyRelatedField(read_only=True)
    machine = serializers.CharField(source="gate.machine.name", read_only=True)
    pattern = serializers.CharField(source="gate.pattern", read_only=True)
    partner = serializers.SlugRelatedField("name", source="gate.partner", read_only=True)
    needed = serializers.SerializerMethodField()
    is_computed = serializers.SerializerMethodField()
    results = CheckResultSerializer(many=True, read_only=True)

    class Meta:
        model = GateCheck
        fields: ClassVar = [
            "id",
            "gate",
            "machine",
            "name",
            "title",
            "stage",
            "unit",
            "rule",
            "needed",
            "needs_evidence",
            "needs_partner",
            "pattern",
            "partner",
            "is_computed",
            "claimed_by",
            "claimed_until",
            "results",
        ]

    def get_needed(self, check: GateCheck) -> str:
        return gating.rule_in_words(check.rule, unit=check.unit)

    def get_is_computed(self, check: GateCheck) -> bool:
        return "computed" in check.rule


class ClaimedCheckSerializer(GateCheckSerializer):
    """A check that was claimed; only this answer shows the token of the claim."""

    class Meta:
        model = GateCheck
        fields: ClassVar = [*GateCheckSerializer.Meta.fields, "claim_token"]


class GateEventSerializer(StrictModelSerializer):
    """One step of a gate."""

    class Meta:
        model = GateEvent
        fields: ClassVar = ["kind", "said", "at", "actor"]


class GateSerializer(StrictModelSerializer):
    """A gate as it stands."""

    machine = serializers.SlugRelatedField("name", read_only=True)
    plan = serializers.StringRelatedField()
    partner = serializers.SlugRelatedField("name", read_only=True)
    reviewer = serializers.SlugRelatedField("username", read_only=True)
    bundle = serializers.StringRelatedField()

    class Meta:
        model = Gate
        fields: ClassVar = [
            "id",
            "machine",
            "plan",
            "plan_id",
            "repair",
            "incident",
            "made_for",
            "why",
            "pattern",
            "bundle",
            "bundle_why",
            "partner",
            "review",
            "retry_of",
            "status",
            "opened_at",
            "read_at",
            "observe_until",
            "closed_at",
            "closed_why",
            "reviewer",
        ]


class OneGateSerializer(GateSerializer):
    """A gate with its checks and steps, what is missing, and which moves it has."""

    checks = GateCheckSerializer(many=True, read_only=True)
    events = GateEventSerializer(many=True, read_only=True)
    missing = serializers.SerializerMethodField()
    possible = serializers.SerializerMethodField()

    class Meta:
        model = Gate
        fields: ClassVar = [*GateSerializer.Meta.fields, "missing", "possible", "checks", "events"]

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_missing(self, gate: Gate) -> list[str]:
        return gate_state.missing(gate, gate_state.check_states(gate), now=clock.now())

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_possible(self, gate: Gate) -> list[str]:
        return [move for old, move in gating.MOVES if old == gate.status]


class GatePlanSerializer(StrictModelSerializer):
    """One version of a plan; the newest of its kind and level holds for new gates."""

    class Meta:
        model = GatePlan
        fields: ClassVar = [
            "id",
            "kind",
            "level",
            "version",
            "title",
            "checks",
            "workload",
            "observation_hours",
            "review",
            "author",
            "recorded_at",
        ]
        read_only_fields: ClassVar = ["version", "author", "recorded_at"]


# --- what is said -------------------------------------------------------------------------------


class GateReviewSerializer(StrictSerializer):
    """Whether what was shown is enough, and why."""

    is_accepted = serializers.BooleanField()
    reason = serializers.CharField(max_length=500)


class NoBodySerializer(StrictSerializer):
    """Nothing has to be said."""


class ClaimSerializer(StrictSerializer):
    """Who takes the check; with the token of a claim, it is taken for longer."""

    actor = serializers.CharField(max_length=100, default="", allow_blank=True)
    token = serializers.CharField(max_length=32, default="", allow_blank=True)


class ClaimTokenSerializer(StrictSerializer):
    """The claim that is given back."""

    token = serializers.CharField(max_length=32)


class ResultSerializer(StrictSerializer):
    """What a check came to, under its claim. The same key twice is the same result."""

    token = serializers.CharField(max_length=32, help_text="of the claim")
    key = serializers.CharField(max_length=200, help_text="the automation's own name of the run")
    actor = serializers.CharField(max_length=100, default="", allow_blank=True)
    value = serializers.FloatField(default=None, allow_null=True)
    unit = serializers.CharField(max_length=20, default="", allow_blank=True)
    has_failed = serializers.BooleanField(
        default=False, help_text="the run crashed or was cut short; the check fails"
    )
    note = serializers.CharField(max_length=800, default="", allow_blank=True)
    reference = serializers.CharField(
        max_length=500, default="", allow_blank=True, help_text="of evidence kept elsewhere"
    )
    files = serializers.ListField(
        child=serializers.FileField(), default=list, max_length=10, help_text="as a form sends them"
    )


# --- views --------------------------------------------------------------------------------------


class GateFilter(django_filters.FilterSet):
    """Gates by machine, by how far they are and by what they are for."""

    machine = django_filters.CharFilter(field_name="machine__name", help_text="its name")
    kind = django_filters.ChoiceFilter(field_name="plan__kind", choices=RepairKind.choices)
    is_unfinished = django_filters.TypedChoiceFilter(
        choices=YES_NO, coerce=lambda text: text == "true", method="by_unfinished"
    )

    class Meta:
        model = Gate
        fields: ClassVar = ["status", "made_for", "repair", "incident", "review"]

    def by_unfinished(self, queryset: QuerySet[Gate], name: str, value: bool) -> QuerySet[Gate]:
        chosen = queryset.filter if value else queryset.exclude
        return chosen(status__in=list(gating.UNFINISHED))


class GateViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, StrictViewSet):
    """Gates are opened by repairs and rollouts; here they are read, retried and reviewed."""

    queryset = Gate.objects.select_related("machine", "plan", "partner", "reviewer", "bundle")
    serializer_class = GateSerializer
    filterset_class = GateFilter

    def get_queryset(self) -> QuerySet[Gate]:
        gates = super().get_queryset()
        return _with_checks(gates) if self.action == "retrieve" else gates

    def get_serializer_class(self) -> type[serializers.Serializer]:
        return OneGateSerializer if self.action == "retrieve" else GateSerializer

    @extend_schema(request=GateReviewSerializer, responses=OneGateSerializer)
    @action(detail=True, methods=["post"], permission_classes=[IsAuthenticated, needs(REVIEW)])
    def review(self, request: Request, pk: str) -> Response:
        """Accept what was shown, which releases the machine; or reject it."""
        said = body_of(request, GateReviewSerializer)
        user = person(request)
        gate = services.review_gate(self.get_object(), **said, user=user, now=clock.now())
        return self._answer(gate)

    @extend_schema(request=NoBodySerializer, responses={201: OneGateSerializer})
    @action(detail=True, methods=["post"], permission_classes=[IsAuthenticated, needs(RUN)])
    def retry(self, request: Request, pk: str) -> Response:
        """Run the checks of a failed gate once more, in a gate of its own."""
        body_of(request, NoBodySerializer)
        gate = services.retry_gate(self.get_object(), **by_whom(request))
        return self._answer(gate, status=HTTP_201_CREATED)

    @extend_schema(request=NoBodySerializer, responses=OneGateSerializer)
    @action(detail=True, methods=["post"], permission_classes=[IsAuthenticated, needs(RUN)])
    def partner(self, request: Request, pk: str) -> Response:
        """Reserve a known-good machine for the checks over several machines."""
        body_of(request, NoBodySerializer)
        gate = self.get_object()
        services.reserve_partner(gate, **by_whom(request))
        return self._answer(gate)

    def _answer(self, gate: Gate, *, status: int = 200) -> Response:
        fresh = _with_checks(self.queryset.all()).get(pk=gate.pk)
        return Response(OneGateSerializer(fresh).data, status=status)


def _with_checks(gates: QuerySet[Gate]) -> QuerySet[Gate]:
    """Read what `OneGateSerializer` shows at once, however many checks a plan has."""
    return gates.prefetch_related("checks__results__evidence", "events")


class GateCheckFilter(django_filters.FilterSet):
    """Checks by gate, machine and name; `is_waiting` are those that nobody has reported yet."""

    machine = django_filters.CharFilter(field_name="gate__machine__name", help_text="its name")
    is_waiting = django_filters.TypedChoiceFilter(
        choices=YES_NO, coerce=lambda text: text == "true", method="by_waiting"
    )

    class Meta:
        model = GateCheck
        fields: ClassVar = ["gate", "name", "stage"]

    def by_waiting(
        self, queryset: QuerySet[GateCheck], name: str, value: bool
    ) -> QuerySet[GateCheck]:
        waiting = queryset.filter(gate__status__in=["open", "observing"], results=None).exclude(
            rule__has_key="computed"
        )
        return waiting if value else queryset.exclude(pk__in=waiting.values("pk"))


class GateCheckViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, StrictViewSet):
    """Checks, for automation: claim one, run it, report what it came to."""

    queryset = GateCheck.objects.select_related("gate__machine", "gate__partner").prefetch_related(
        "results__evidence"
    )
    serializer_class = GateCheckSerializer
    filterset_class = GateCheckFilter

    @extend_schema(request=ClaimSerializer, responses=ClaimedCheckSerializer)
    @action(detail=True, methods=["post"], permission_classes=[IsAuthenticated, needs(RUN)])
    def claim(self, request: Request, pk: str) -> Response:
        """Take a check for 15 minutes; its token reports the result, or takes it for longer."""
        said = body_of(request, ClaimSerializer)
        who = by_whom(request)
        who["actor"] = said.pop("actor") or who["actor"]
        claimed = services.claim_check(self.get_object(), **said, **who)
        return Response(ClaimedCheckSerializer(claimed).data)

    @extend_schema(request=ClaimTokenSerializer, responses=GateCheckSerializer)
    @action(
        detail=True,
        methods=["post"],
        url_path="give-back",
        permission_classes=[IsAuthenticated, needs(RUN)],
    )
    def give_back(self, request: Request, pk: str) -> Response:
        """Let somebody else take the check."""
        services.give_back_check(self.get_object(), **body_of(request, ClaimTokenSerializer))
        return Response(GateCheckSerializer(self.get_object()).data)

    @extend_schema(
        request={"application/json": ResultSerializer, "multipart/form-data": ResultSerializer},
        responses={201: CheckResultSerializer},
    )
    @action(
        detail=True,
        methods=["post"],
        parser_classes=[JSONParser, MultiPartParser],
        permission_classes=[IsAuthenticated, needs(RUN)],
    )
    def report(self, request: Request, pk: str) -> Response:
        """Report what the check came to."""
        said = body_of(request, ResultSerializer)
        check, who = self.get_object(), by_whom(request)
        who["actor"] = said.pop("actor") or who["actor"]
        files = [services.store_file(one.chunks(), name=one.name) for one in said.pop("files")]
        token, key = said.pop("token"), said.pop("key")
        outcome = services.Outcome(**said, files=files)
        result = services.report_result(check, outcome, **who, token=token, key=key)
        return Response(CheckResultSerializer(result).data, status=HTTP_201_CREATED)


class GatePlanFilter(django_filters.FilterSet):
    """Plans by kind and level."""

    class Meta:
        model = GatePlan
        fields: ClassVar = ["kind", "level", "version", "review"]


class GatePlanViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, StrictViewSet):
    """Plans; a change is a new version, and open gates keep the one they have."""

    queryset = GatePlan.objects.all()
    serializer_class = GatePlanSerializer
    filterset_class = GatePlanFilter

    def get_permissions(self) -> Sequence[Any]:
        if self.action == "create":
            return [IsAuthenticated(), needs(PLAN)()]
        return super().get_permissions()

    @extend_schema(request=GatePlanSerializer, responses={201: GatePlanSerializer})
    def create(self, request: Request) -> Response:
        """Add the next version of a kind and level."""
        said = body_of(request, GatePlanSerializer)
        plan = services.add_gate_plan(
            **{"level": 0, "observation_hours": 0.0, "review": "human", **said},
            author=person(request),
        )
        return Response(GatePlanSerializer(plan).data, status=HTTP_201_CREATED)
