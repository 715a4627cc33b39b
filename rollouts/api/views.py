"""Rollouts over REST: written as drafts, read with their evidence, steered by orders."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from django.db.models import Model, QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiParameter,
    PolymorphicProxySerializer,
    extend_schema,
    extend_schema_view,
)
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.generics import get_object_or_404
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.status import HTTP_201_CREATED
from rest_framework.views import APIView

from fleet import clock
from fleet.api.base import StrictViewSet, needs, person
from fleet.hints import hint
from fleet.models import FirmwareBundle, Machine
from rollouts import roles, selectors, services, tasks
from rollouts.aftermath import aftermath
from rollouts.api import filters
from rollouts.api.changes import RosterSerializer
from rollouts.api.serializers import (
    AcknowledgeSerializer,
    AdvanceSerializer,
    AftermathSerializer,
    ApproveSerializer,
    AttemptSerializer,
    ClearSerializer,
    ConditionSerializer,
    DecisionSerializer,
    EvaluationSerializer,
    GlanceSerializer,
    HaltAllSerializer,
    MachinesSerializer,
    NeedsReasonSerializer,
    NewPolicySerializer,
    NewRolloutSerializer,
    OneAttemptSerializer,
    OneRolloutSerializer,
    OrderSerializer,
    PlainSerializer,
    PolicySerializer,
    PooledSerializer,
    ReasonSerializer,
    RehearsalSerializer,
    ReplayableEvaluationSerializer,
    RolloutSerializer,
    SecondPersonSerializer,
    SubmitSerializer,
    SupersedeSerializer,
    TriageSerializer,
    WaveSerializer,
    WithdrawnSerializer,
)
from rollouts.explain import explain
from rollouts.models import Attempt, Decision, Evaluation, Order, Policy, Rollout, Wave
from rollouts.roster import roster_changes
from rollouts.services.plans.risk import residual_risk

DRY_RUN = OpenApiParameter(
    "dry_run", OpenApiTypes.BOOL, description="only say what would happen; nothing is written"
)


def is_dry_run(request: Request) -> bool:
    """Whether the query asks only what would happen; anything but a truth value is refused."""
    text = request.query_params.get("dry_run", "false")
    if text not in ("true", "false"):
        raise ValidationError({"dry_run": f"{text!r} is not accepted; accepted: true, false"})
    return text == "true"


def rehearsed(command: Callable[[], Any]) -> Response:
    """What orders would do, and 200 since none was given; what is refused is refused alike."""
    told = services.rehearse(command)
    return Response(RehearsalSerializer({"dry_run": True, "orders": told}).data)


class MayOrder(BasePermission):
    """Whether this person may give the order that the action's name says."""

    def has_object_permission(self, request: Request, view: Any, rollout: Rollout) -> bool:
        kind = Order.Kind(view.action)
        self.message = f"{kind} needs the permission {roles.permission_for(kind, rollout)}"
        return roles.may_order(request.user, kind, rollout)


def order(body: type[Serializer]) -> Callable[[Any], Any]:
    """Turn a method into an action that creates an order from a body of this form."""

    def decorate(method: Any) -> Any:
        answers = {201: OrderSerializer, 200: RehearsalSerializer}
        described = extend_schema(request=body, parameters=[DRY_RUN], responses=answers)(method)
        return action(
            detail=True,
            methods=["post"],
            serializer_class=body,
            permission_classes=[IsAuthenticated, MayOrder],
        )(described)

    return decorate


class RolloutViewSet(mixins.RetrieveModelMixin, mixins.ListModelMixin, StrictViewSet):
    """Rollouts are created, read and steered; never edited or deleted."""

    queryset = Rollout.objects.select_related("bundle", "author", "approver")
    serializer_class = RolloutSerializer
    filterset_class = filters.RolloutFilter

    def get_serializer_class(self) -> type[Serializer]:
        is_one = self.action == "retrieve"
        return OneRolloutSerializer if is_one else self.serializer_class

    def accepted_names(self) -> set[str]:
        return super().accepted_names() | ({"dry_run"} if self.request.method == "POST" else set())

    @extend_schema(
        request=NewRolloutSerializer,
        parameters=[DRY_RUN],
        responses={201: RolloutSerializer, 200: GlanceSerializer},
    )
    def create(self, request: Request) -> Response:
        """Write a plan down as a draft; nothing is drawn before it is submitted.

        A dry run draws it over the fleet as it stands and writes nothing down.
        """
        body = NewRolloutSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        fields = {"document": body.validated_data.pop("plan", {}), **body.validated_data}
        make = services.draft_of if is_dry_run(request) else services.create_draft
        rollout = make(author=person(request), now=clock.now(), **fields)
        if rollout.pk is None:
            seen = services.glance(rollout, now=clock.now())
            told = {"digest": seen.digest, "seed": rollout.seed, "summary": seen.summary}
            return Response(GlanceSerializer({"dry_run": True, **told}).data)
        return Response(RolloutSerializer(rollout).data, status=HTTP_201_CREATED)

    @extend_schema(responses=ConditionSerializer(many=True))
    @action(detail=True, filterset_class=None, pagination_class=None)
    def explanation(self, request: Request, pk: str) -> Response:
        """Everything that the rollout waits for now; empty when nothing is in its way."""
        return Response(ConditionSerializer(explain(self.get_object()), many=True).data)

    @extend_schema(responses=AftermathSerializer)
    @action(detail=True, filterset_class=None, pagination_class=None)
    def aftermath(self, request: Request, pk: str) -> Response:
        """Halted, now what: every machine by physical state, with the safe next action."""
        return Response(AftermathSerializer(aftermath(self.get_object())).data)

    @extend_schema(responses=RosterSerializer)
    @action(detail=True, filterset_class=None, pagination_class=None)
    def roster(self, request: Request, pk: str) -> Response:
        """How the fleet has changed under the rollout; nobody leaves a denominator for it."""
        return Response(RosterSerializer(roster_changes(self.get_object())).data)

    @extend_schema(responses=PooledSerializer(many=True))
    @action(detail=True, filterset_class=None, pagination_class=None)
    def pooled(self, request: Request, pk: str) -> Response:
        """One z per guardrail over all judged waves, beside the verdicts; it decides nothing."""
        waves = self.get_object().waves.all()
        seen = selectors.deciding_evaluations(waves)
        pairs = [(wave, seen[wave.pk]) for wave in waves if wave.pk in seen]
        return Response(PooledSerializer(selectors.pooled_evidence(pairs), many=True).data)

    @extend_schema(responses=OpenApiTypes.OBJECT)
    @action(detail=True, filterset_class=None, pagination_class=None)
    def risk(self, request: Request, pk: str) -> Response:
        """What the plan leaves unproven and what happens if it goes wrong: what approval signs."""
        return Response(residual_risk(self.get_object()))

    @order(SubmitSerializer)
    def submit(self, request: Request, pk: str) -> Response:
        """Freeze exactly what the preview of this digest showed, and ask for approval."""
        return self.give(services.submit)

    @order(ApproveSerializer)
    def approve(self, request: Request, pk: str) -> Response:
        """Sign the plan of this digest and the risk it leaves; its author may not do this."""
        return self.give(services.approve)

    @order(NeedsReasonSerializer)
    def deny(self, request: Request, pk: str) -> Response:
        """Send the plan back to its author."""
        return self.give(services.deny)

    @order(PlainSerializer)
    def start(self, request: Request, pk: str) -> Response:
        """Start an approved rollout."""
        return self.give(services.start)

    @order(ReasonSerializer)
    def pause(self, request: Request, pk: str) -> Response:
        """Start nothing new for a while."""
        return self.give(services.pause)

    @order(ReasonSerializer)
    def resume(self, request: Request, pk: str) -> Response:
        """Go on after a pause."""
        return self.give(services.resume)

    @order(ReasonSerializer)
    def halt(self, request: Request, pk: str) -> Response:
        """Stop at once; needs the least right and no confirmation."""
        return self.give(services.halt)

    @order(AdvanceSerializer)
    def advance(self, request: Request, pk: str) -> Response:
        """Widen a held wave, or confirm a widen that the engine advises."""
        return self.give(services.advance)

    @order(SecondPersonSerializer)
    def override(self, request: Request, pk: str) -> Response:
        """Take a halted rollout to paused, against its verdict."""
        return self.give(services.override)

    @order(SecondPersonSerializer)
    def skip_wave(self, request: Request, pk: str) -> Response:
        """Go on to the next wave without this one's verdict."""
        return self.give(services.skip_wave)

    @order(ReasonSerializer)
    def extend(self, request: Request, pk: str) -> Response:
        """Give the wave its one planned extension now."""
        return self.give(services.extend)

    @order(ReasonSerializer)
    def roll_back(self, request: Request, pk: str) -> Response:
        """Take the treated machines back to the versions they came from."""
        return self.give(services.roll_back)

    @order(ReasonSerializer)
    def cancel(self, request: Request, pk: str) -> Response:
        """End the rollout where it stands; nothing is undone."""
        return self.give(services.cancel)

    @order(AcknowledgeSerializer)
    def acknowledge(self, request: Request, pk: str) -> Response:
        """Say that somebody has looked at novel signatures; only then does widening go on."""
        return self.give(services.acknowledge)

    @order(MachinesSerializer)
    def retry(self, request: Request, pk: str) -> Response:
        """Try failed machines anew; their failures stay failures in the evidence."""
        return self.give(services.retry)

    @order(MachinesSerializer)
    def exclude(self, request: Request, pk: str) -> Response:
        """Leave machines alone; they stay in their arm, and their wave becomes advisory."""
        return self.give(services.exclude)

    @order(MachinesSerializer)
    def release(self, request: Request, pk: str) -> Response:
        """Give machines back to work that a halt had taken out of it."""
        return self.give(services.release)

    @order(SupersedeSerializer)
    def supersede(self, request: Request, pk: str) -> Response:
        """End the rollout in favour of a newer one of the same component."""
        return self.give(services.supersede)

    @extend_schema(
        request=ReasonSerializer,
        parameters=[DRY_RUN],
        responses={201: HaltAllSerializer, 200: RehearsalSerializer},
    )
    @action(detail=False, methods=["post"], permission_classes=[IsAuthenticated, needs(roles.HALT)])
    def halt_all(self, request: Request) -> Response:
        """Halt everything that is under way; needs the least right and no confirmation."""
        body = ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        command = partial(
            services.halt_all, actor=person(request), now=clock.now(), **body.validated_data
        )
        if is_dry_run(request):
            return rehearsed(command)
        given = command()
        for one in given:
            hint(tasks.evaluate, one.rollout_id)
        return Response(HaltAllSerializer({"halted": given}).data, status=HTTP_201_CREATED)

    def give(self, command: Callable[..., Order | None]) -> Response:
        """Parse, command, answer with the order; the hint only saves waiting for the sweep.

        A dry run answers with what the order would move.
        """
        rollout = self.get_object()  # asks for the permission, before anything is said of the body
        body = self.get_serializer(data=self.request.data)
        body.is_valid(raise_exception=True)
        words = {"actor": person(self.request), "now": clock.now(), **body.validated_data}
        if is_dry_run(self.request):
            return rehearsed(partial(command, rollout, **words))
        given = command(rollout, **words)
        hint(tasks.evaluate, rollout.pk)
        return Response(OrderSerializer(given).data, status=HTTP_201_CREATED)


class MachineExplanationView(APIView):
    """What keeps a machine from work."""

    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.view_machine")]

    @extend_schema(responses=ConditionSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """Its state, every cordon and the attempt on it; empty where it may take work."""
        machine = get_object_or_404(Machine, name=name)
        return Response(ConditionSerializer(explain(machine), many=True).data)


class WithdrawView(APIView):
    """Takes a bundle back and stops what would still install it."""

    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.change_firmwarebundle")]

    @extend_schema(
        request=ReasonSerializer,
        parameters=[DRY_RUN],
        responses={
            200: PolymorphicProxySerializer(
                "Withdrawal", [WithdrawnSerializer, RehearsalSerializer], None
            )
        },
    )
    def post(self, request: Request, pk: int) -> Response:
        """Withdraw a bundle: rollouts of it are halted, those that have not begun are cancelled."""
        bundle = get_object_or_404(FirmwareBundle, pk=pk)
        body = ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        command = partial(
            services.withdraw_bundle,
            bundle,
            actor=person(request),
            now=clock.now(),
            **body.validated_data,
        )
        if is_dry_run(request):
            return rehearsed(command)
        given = command()
        for one in given:
            hint(tasks.evaluate, one.rollout_id)
        bundle.refresh_from_db()
        answer = {"bundle": bundle.pk, "status": bundle.status, "orders": given}
        return Response(WithdrawnSerializer(answer).data)


ROLLOUT_PARAMETERS = [
    OpenApiParameter(
        "rollout_pk",
        OpenApiTypes.INT,
        OpenApiParameter.PATH,
        description="identifier of the rollout",
    )
]
ROLLOUT = extend_schema(parameters=ROLLOUT_PARAMETERS)


class OfRollout(StrictViewSet):
    """Rows of the one rollout that the address names; 404 where there is none."""

    def get_queryset(self) -> QuerySet[Model]:
        rows = super().get_queryset()
        if getattr(self, "swagger_fake_view", False):
            return rows.none()
        return rows.filter(rollout=get_object_or_404(Rollout, pk=self.kwargs["rollout_pk"]))


@extend_schema_view(list=ROLLOUT)
class WaveViewSet(mixins.ListModelMixin, OfRollout):
    """The waves of a rollout."""

    queryset = Wave.objects.all()
    serializer_class = WaveSerializer


@extend_schema_view(list=ROLLOUT, retrieve=ROLLOUT)
class AttemptViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, OfRollout):
    """The tries on single machines."""

    queryset = Attempt.objects.select_related("machine", "wave", "rollout")
    serializer_class = AttemptSerializer
    filterset_class = filters.AttemptFilter

    def get_serializer_class(self) -> type[Serializer]:
        is_one = self.action == "retrieve"
        return OneAttemptSerializer if is_one else AttemptSerializer

    @extend_schema(
        parameters=ROLLOUT_PARAMETERS, request=TriageSerializer, responses=AttemptSerializer
    )
    @action(
        detail=True, methods=["post"], permission_classes=[IsAuthenticated, needs(roles.OPERATE)]
    )
    def triage(self, request: Request, rollout_pk: str, pk: str) -> Response:
        """Say why a machine did not come back; new starts wait for that."""
        attempt = self.get_object()
        body = TriageSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        services.triage(attempt, **body.validated_data, actor=str(request.user), now=clock.now())
        hint(tasks.evaluate, attempt.rollout_id)
        return Response(AttemptSerializer(attempt).data)

    @extend_schema(
        parameters=ROLLOUT_PARAMETERS, request=ClearSerializer, responses=AttemptSerializer
    )
    @action(
        detail=True, methods=["post"], permission_classes=[IsAuthenticated, needs(roles.OPERATE)]
    )
    def clear(self, request: Request, rollout_pk: str, pk: str) -> Response:
        """Let the machine be offered the bundle again that it failed or left."""
        attempt = self.get_object()
        body = ClearSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        services.clear(
            attempt.machine,
            bundle=attempt.rollout.bundle,
            actor=person(request),
            now=clock.now(),
            **body.validated_data,
        )
        return Response(AttemptSerializer(self.get_object()).data)


@extend_schema_view(list=ROLLOUT)
class OrderViewSet(mixins.ListModelMixin, OfRollout):
    """The orders that people gave."""

    queryset = Order.objects.select_related("actor", "second_person")
    serializer_class = OrderSerializer


@extend_schema_view(list=ROLLOUT, retrieve=ROLLOUT)
class DecisionViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, OfRollout):
    """What the engine concluded, newest first."""

    queryset = Decision.objects.select_related("wave")
    serializer_class = DecisionSerializer
    filterset_class = filters.DecisionFilter


@extend_schema_view(list=ROLLOUT, retrieve=ROLLOUT)
class EvaluationViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, OfRollout):
    """What the engine saw and said; one of them at a time comes with its scores, for replay."""

    queryset = Evaluation.objects.select_related("wave", "scores").defer("scores__content")
    serializer_class = EvaluationSerializer
    filterset_class = filters.EvaluationFilter

    def get_serializer_class(self) -> type[Serializer]:
        is_one = self.action == "retrieve"
        return ReplayableEvaluationSerializer if is_one else EvaluationSerializer


class PolicyViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, StrictViewSet):
    """Versioned policies that plans copy."""

    queryset = Policy.objects.select_related("author")
    serializer_class = PolicySerializer
    filterset_class = filters.PolicyFilter

    @extend_schema(request=NewPolicySerializer, responses={201: PolicySerializer})
    def create(self, request: Request) -> Response:
        """Store the next version of a policy; the same document again is the same version."""
        body = NewPolicySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        policy = services.save_policy(
            author=person(request), now=clock.now(), **body.validated_data
        )
        return Response(PolicySerializer(policy).data, status=HTTP_201_CREATED)
