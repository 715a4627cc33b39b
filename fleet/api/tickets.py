"""What ticket systems say of repairs, over REST: signed messages, each carried out once."""

from collections.abc import Mapping
from typing import Any, ClassVar

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from fleet import clock, messages, services, tasks
from fleet.api.base import ChoiceField, StrictSerializer, body_of
from fleet.api.repairs import SwapSerializer
from fleet.hints import hint
from fleet.identity import MOST_SWAPS
from fleet.models import Repair
from fleet.repair.steps import TICKET_STATES, TICKET_STEPS
from fleet.services.tickets import MOST_TICKET_CHARACTERS, Said

MOST_BODY_BYTES = 2**18
TEXT: Mapping[str, Any] = {"default": "", "allow_blank": True}
HEADERS = [
    OpenApiParameter(name, str, OpenApiParameter.HEADER, required=True)
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
]


class TicketMessageSerializer(StrictSerializer):
    """What a ticket system says of one repair, by our number or by its own ticket."""

    state = ChoiceField(list(TICKET_STEPS))
    repair = serializers.IntegerField(required=False, min_value=1, max_value=2**62)
    ticket = serializers.CharField(max_length=MOST_TICKET_CHARACTERS, **TEXT)
    technician = serializers.CharField(max_length=100, **TEXT)
    note = serializers.CharField(max_length=1000, **TEXT)
    supplier_case = serializers.CharField(max_length=100, **TEXT)
    outcome = ChoiceField(Repair.Outcome.choices, default=Repair.Outcome.REPAIRED)
    swaps = serializers.ListSerializer(child=SwapSerializer(), default=list, max_length=MOST_SWAPS)
    caused_by = serializers.CharField(
        max_length=200,
        help_text="webhook-id of our message that it answers: then it is an echo",
        **TEXT,
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs.get("repair") and not attrs["ticket"]:
            raise serializers.ValidationError({"repair": "name the repair, or its ticket"})
        return attrs


class TicketAnswerSerializer(StrictSerializer):
    """How the repair stands after the message, and what may be said of it next."""

    repair = serializers.IntegerField()
    ticket = serializers.CharField()
    state = ChoiceField(sorted(TICKET_STATES.values()))
    accepts = serializers.ListField(child=serializers.CharField())
    is_changed = serializers.BooleanField(help_text="false: the repair stood so already")
    is_echo = serializers.BooleanField()
    is_repeated = serializers.BooleanField(help_text="true: this message was carried out before")


class TicketView(APIView):
    """The door of a ticket system: who holds its secret may speak for it, nobody else."""

    authentication_classes: ClassVar = []
    permission_classes: ClassVar = [AllowAny]

    @extend_schema(
        request=TicketMessageSerializer,
        responses=TicketAnswerSerializer,
        parameters=HEADERS,
        auth=[],
    )
    def post(self, request: Request, system: str) -> Response:
        """Carry out what the ticket system says of a repair; a repeated message changes nothing."""
        key = settings.TICKET_SECRETS.get(system)
        if key is None:
            raise Http404(f"there is no ticket system {system!r}")
        body: bytes = request.body
        if len(body) > MOST_BODY_BYTES:
            raise RequestDataTooBig(f"the message has more than {MOST_BODY_BYTES} bytes")
        message_id = messages.checked_id(request.headers, key=key, body=body, now=timezone.now())
        said = body_of(request, TicketMessageSerializer)
        said["swaps"] = tuple(said["swaps"])
        answer = services.take_ticket(
            system, Said(**said), message_id=message_id, body=body, now=clock.now()
        )
        hint(tasks.tell_tickets)
        return Response(TicketAnswerSerializer(answer).data)
