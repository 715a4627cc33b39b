"""The firmware gates of a rollout's waves over REST: how they stand, and their one review."""

from typing import Any, ClassVar

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from fleet import clock
from fleet.api.base import StrictSerializer, needs, person
from rollouts import services
from rollouts.models import Rollout, Wave
from rollouts.roles import APPROVE, OPERATE
from rollouts.wave_gates import WaveGates, wave_gates


class WaveGatesSerializer(StrictSerializer):
    """How many gates of a wave stand where; machines whose gates lack a check, the first 50."""

    wave = serializers.IntegerField(source="wave.number")
    made_for = serializers.CharField()
    counts = serializers.DictField(child=serializers.IntegerField())
    is_ready = serializers.BooleanField()
    lacking = serializers.SerializerMethodField()

    def get_lacking(self, one: WaveGates) -> list[str]:
        return [gate.machine.name for gate in one.lacking]


class WaveReviewSerializer(StrictSerializer):
    """Why what the machines have shown is enough."""

    reason = serializers.CharField(max_length=500)


class ReviewedSerializer(StrictSerializer):
    """How many gates were accepted; `void` counts those that had a newer fault."""

    accepted = serializers.IntegerField()
    void = serializers.IntegerField()


class MayReviewGates(IsAuthenticated):
    """Who answers for rollouts: operators write them, approvers approve them."""

    message = f"this needs the permission {OPERATE} or {APPROVE}"

    def has_permission(self, request: Request, view: Any) -> bool:
        return bool(request.user.has_perm(OPERATE) or request.user.has_perm(APPROVE))


class RolloutGatesView(APIView):
    """The gates of each wave."""

    permission_classes: ClassVar = [IsAuthenticated, needs("rollouts.view_rollout")]

    @extend_schema(responses=WaveGatesSerializer(many=True))
    def get(self, request: Request, rollout_pk: int) -> Response:
        """How the gates of each wave stand."""
        rollout = get_object_or_404(Rollout, pk=rollout_pk)
        return Response(WaveGatesSerializer(wave_gates(rollout), many=True).data)


class WaveGateReviewView(APIView):
    """The one review of a wave's gates."""

    permission_classes: ClassVar = [IsAuthenticated, MayReviewGates]

    @extend_schema(request=WaveReviewSerializer, responses=ReviewedSerializer)
    def post(self, request: Request, rollout_pk: int, number: int) -> Response:
        """Accept all gates of the wave; by the author or the approver of the rollout."""
        body = WaveReviewSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        waves = Wave.objects.select_related("rollout")
        wave = get_object_or_404(waves, rollout=rollout_pk, number=number)
        done = services.review_gates(
            wave, user=person(request), now=clock.now(), **body.validated_data
        )
        return Response(ReviewedSerializer(done).data)
