"""Did the fix work? Asked over REST, answered as the page answers."""

from typing import Any, ClassVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from fleet import clock
from fleet.api.base import QueryTimeField, StrictSerializer, needs
from rollouts import fixes
from rollouts.fixes.live import Question, ask
from rollouts.fixes.report import as_document


class FixQuestionSerializer(StrictSerializer):
    """A pattern of faults, and what was done about it: one of change, bundle and part."""

    signature = serializers.CharField(
        required=False, max_length=500, help_text="patterns as xid.*, with commas between them"
    )
    family = serializers.CharField(required=False, max_length=60)
    change = serializers.IntegerField(required=False, min_value=1, help_text="a reported change")
    bundle = serializers.IntegerField(required=False, min_value=1)
    part = serializers.CharField(required=False, max_length=150, help_text="kind:model swapped in")
    platform = serializers.CharField(required=False, max_length=100)
    selector = serializers.CharField(required=False, max_length=1000)
    since = QueryTimeField(required=False, help_text="without it: four weeks before the first fix")
    until = QueryTimeField(required=False, help_text="without it: now")


class FixView(APIView):
    """Whether a fix reduced the faults that it was made for."""

    permission_classes: ClassVar = [IsAuthenticated, needs("fleet.view_incident")]

    @extend_schema(parameters=[FixQuestionSerializer], responses={200: OpenApiTypes.OBJECT})
    def get(self, request: Request) -> Response:
        """Compare fixed machines with unfixed ones at the same time; nothing is stored."""
        query = FixQuestionSerializer(data=request.query_params.dict())
        query.is_valid(raise_exception=True)
        asked: dict[str, Any] = dict(query.validated_data)
        patterns = (part.strip() for part in asked.pop("signature", "").split(","))
        question = Question(signatures=tuple(part for part in patterns if part), **asked)
        return Response(as_document(fixes.answered(ask(question, now=clock.now()))))
