"""Identity over REST: what machines claim to be, part swaps with a preview, where a part was."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import get_object_or_404
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED
from rest_framework.views import APIView

from fleet import clock, identity, parts, services
from fleet.api.base import (
    ChoiceField,
    QueryTimeField,
    StrictModelSerializer,
    StrictSerializer,
    needs,
    person,
    query_of,
)
from fleet.firmware.drift import Standing
from fleet.models import Machine, MachineClaim, PartSwap

WORK = "fleet.work_repair"
REPORT = "fleet.add_change"
WITNESSES = ("bmc", "host")
MOST_CONFLICTS = 1000
MOST_SWAPS = 1000
_STANDINGS = [(one.value, one.value) for one in Standing]
_KINDS = MachineClaim.Kind.choices


class SeenByMost(APIView):
    """Reading needs the sight of machines; writing the right to repair them."""

    def get_permissions(self) -> list[BasePermission]:
        named = "fleet.view_machine" if self.request.method in ("GET", "HEAD", "OPTIONS") else WORK
        return [IsAuthenticated(), needs(named)()]


class AsOfQuerySerializer(StrictSerializer):
    """As of a time."""

    as_of = QueryTimeField(default=None, help_text="RFC 3339 with zone; without: now")


class IdentityClaimSerializer(StrictSerializer):
    """One value that a machine is to claim; an empty one ends the claim."""

    kind = ChoiceField(_KINDS)
    slot = serializers.CharField(
        default="", allow_blank=True, max_length=80, help_text="of a MAC: its part, as nic/0"
    )
    value = serializers.CharField(allow_blank=True, max_length=200)


class HeldSerializer(StrictSerializer):
    """One value that a machine claimed from `since` to `until` (null: still)."""

    machine = serializers.CharField()
    kind = serializers.CharField()
    slot = serializers.CharField(allow_blank=True)
    value = serializers.CharField()
    since = serializers.DateTimeField()
    until = serializers.DateTimeField(allow_null=True)
    source = serializers.CharField()  # type: ignore[assignment]  # who said so
    actor = serializers.CharField(allow_blank=True)
    others = serializers.ListField(
        child=serializers.CharField(), help_text="machines that claim it too: a conflict"
    )


class ClaimsSerializer(StrictSerializer):
    """Every claim of a machine with its interval."""

    machine = serializers.CharField()
    as_of = serializers.DateTimeField()
    results = HeldSerializer(many=True)


class NewClaimsSerializer(StrictSerializer):
    """What a machine claims from now on."""

    claims = serializers.ListSerializer(
        child=IdentityClaimSerializer(), allow_empty=False, max_length=identity.MOST_CLAIMS
    )
    witness = ChoiceField(
        ["person", "bmc", "host"],
        default="person",
        help_text="who says so: a person is refused what another machine claims, a machine is not",
    )


class ClaimsView(SeenByMost):
    """What one machine claims to be, and claimed."""

    def get_permissions(self) -> list[BasePermission]:
        body = self.request.data if self.request.method == "POST" else {}
        witness = body.get("witness") if isinstance(body, dict) else None
        if isinstance(witness, str) and witness in WITNESSES:
            return [IsAuthenticated(), needs(REPORT)()]
        return super().get_permissions()

    @extend_schema(parameters=[AsOfQuerySerializer], responses=ClaimsSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Serials, UUIDs, MACs and BMC addresses, each with its interval."""
        machine = get_object_or_404(Machine, name=name)
        at = query_of(request, AsOfQuerySerializer)["as_of"] or clock.now()
        return Response(_claims(machine, at))

    @extend_schema(request=NewClaimsSerializer, responses={201: ClaimsSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Claim values from now on; what a BMC or host says stays as a conflict to be settled."""
        machine = get_object_or_404(Machine, name=name)
        body = NewClaimsSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        wanted = [identity.Claim(**claim) for claim in body.validated_data["claims"]]
        now = clock.now()
        witness = body.validated_data["witness"]
        if witness == "person":
            services.claim(machine, wanted, actor=person(request).get_username(), now=now)
        else:
            services.observe_claims(machine, wanted, source=witness, now=now)
        return Response(_claims(machine, now), status=HTTP_201_CREATED)


def _claims(machine: Machine, at: Any) -> Any:
    answer = {"machine": machine.name, "as_of": at}
    return ClaimsSerializer(answer | {"results": parts.claims_of(machine, as_of=at)}).data


class ClaimantQuerySerializer(StrictSerializer):
    """One value."""

    kind = ChoiceField(_KINDS)
    value = serializers.CharField(max_length=200)


class ClaimantsSerializer(StrictSerializer):
    """The machines that claim a value now: more than one is a conflict."""

    kind = serializers.CharField()
    value = serializers.CharField(help_text="in the one spelling that is compared")
    machines = serializers.ListField(child=serializers.CharField())


class ClaimantsView(SeenByMost):
    """Which machine a serial, UUID, MAC or BMC address is."""

    @extend_schema(parameters=[ClaimantQuerySerializer], responses=ClaimantsSerializer)
    def get(self, request: Request) -> Response:
        """In any spelling; none where nobody claims it."""
        asked = query_of(request, ClaimantQuerySerializer)
        one = identity.normal(identity.Claim(**asked))
        names = [machine.name for machine in parts.claimants(one.kind, one.value)]
        answer = {"kind": one.kind, "value": one.value, "machines": names}
        return Response(ClaimantsSerializer(answer).data)


class ConflictsSerializer(StrictSerializer):
    """Values that several machines claim at once."""

    results = ClaimantsSerializer(many=True)
    is_cut = serializers.BooleanField(help_text=f"more than {MOST_CONFLICTS}; the rest is left off")


class ConflictsView(SeenByMost):
    """Values that several machines claim at once."""

    @extend_schema(responses=ConflictsSerializer)
    def get(self, request: Request) -> Response:
        """A BMC or host said so; a person has to end one of the claims."""
        query_of(request, StrictSerializer)
        found = parts.conflicts(limit=MOST_CONFLICTS + 1)
        rows = [
            {"kind": kind, "value": value, "machines": names}
            for kind, value, names in found[:MOST_CONFLICTS]
        ]
        answer = {"results": rows, "is_cut": len(found) > MOST_CONFLICTS}
        return Response(ConflictsSerializer(answer).data)


# --- swaps --------------------------------------------------------------------------------------


class OneSwapSerializer(StrictSerializer):
    """One part that comes into a slot; without a new serial the slot stays empty."""

    kind = serializers.CharField(max_length=40, help_text="gpu, nic, …; board takes the host along")
    slot = serializers.CharField(default="", allow_blank=True, max_length=40)
    new_serial = serializers.CharField(default="", allow_blank=True, max_length=100)
    new_model = serializers.CharField(default="", allow_blank=True, max_length=100)
    old_serial = serializers.CharField(
        default="", allow_blank=True, max_length=100, help_text="as it was read off the old part"
    )
    claims = serializers.ListSerializer(
        child=IdentityClaimSerializer(),
        default=list,
        max_length=identity.MOST_CLAIMS,
        help_text="what comes with the new part",
    )


class SwapsSerializer(StrictSerializer):
    """Parts that are swapped in one step."""

    swaps = serializers.ListSerializer(
        child=OneSwapSerializer(), allow_empty=False, max_length=identity.MOST_SWAPS
    )


class PartMoveSerializer(StrictSerializer):
    """One slot: which part leaves, which comes, and whose faults go along."""

    kind = serializers.CharField()
    slot = serializers.CharField(allow_blank=True)
    old_serial = serializers.CharField(allow_blank=True)
    old_model = serializers.CharField(allow_blank=True)
    new_serial = serializers.CharField(allow_blank=True)
    new_model = serializers.CharField(allow_blank=True)
    leaving_faults = serializers.IntegerField(help_text="of the old part here; they follow it")
    coming_faults = serializers.IntegerField(help_text="of the new part, where it was before")
    came_from = serializers.CharField(allow_blank=True)
    unknown_versions = serializers.ListField(
        child=serializers.CharField(), help_text="of which nobody knows the version until read-back"
    )


class ClaimMoveSerializer(StrictSerializer):
    """One claim that becomes another; an empty new value ends it."""

    kind = serializers.CharField()
    slot = serializers.CharField(allow_blank=True)
    old = serializers.CharField(allow_blank=True)
    new = serializers.CharField(allow_blank=True)


class ArmSerializer(StrictSerializer):
    """An open rollout whose exposure the swap marks."""

    rollout = serializers.IntegerField()
    name = serializers.CharField()
    arm = serializers.CharField()
    is_compared = serializers.BooleanField()


class SwapPreviewSerializer(StrictSerializer):
    """What a swap would move; with reasons it would be refused."""

    machine = serializers.CharField()
    moves = PartMoveSerializer(many=True)
    claims = ClaimMoveSerializer(many=True)
    staying = IdentityClaimSerializer(many=True)
    slot_faults = serializers.IntegerField(help_text="all faults of the machine; they stay with it")
    arms = ArmSerializer(many=True)
    notes = serializers.ListField(child=serializers.CharField())
    reasons = serializers.ListField(child=serializers.CharField())


class MachineSwapSerializer(StrictModelSerializer):
    """One part that was swapped."""

    class Meta:
        model = PartSwap
        fields = (
            "id",
            "kind",
            "slot",
            "old_serial",
            "new_serial",
            "old_model",
            "new_model",
            "repair",
            "at",
            "actor",
        )


class MachineSwapsSerializer(StrictSerializer):
    """Swaps of one machine, newest first."""

    machine = serializers.CharField()
    results = MachineSwapSerializer(many=True)


class SwapsView(SeenByMost):
    """Parts of one machine that were swapped, and the act itself."""

    @extend_schema(responses=MachineSwapsSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Every swap, newest first."""
        query_of(request, StrictSerializer)
        machine = get_object_or_404(Machine, name=name)
        rows = machine.swaps.order_by("-at", "-pk")[:MOST_SWAPS]
        return Response(MachineSwapsSerializer({"machine": machine.name, "results": rows}).data)

    @extend_schema(request=SwapsSerializer, responses={201: MachineSwapsSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Swap parts as the preview showed it; all of them or none."""
        machine = get_object_or_404(Machine, name=name)
        made = services.swap_parts(
            machine,
            _swaps(request),
            repair=machine.repairs.filter(status__in=("under_way", "at_supplier")).first(),
            actor=person(request).get_username(),
            now=clock.now(),
        )
        answer = MachineSwapsSerializer({"machine": machine.name, "results": made}).data
        return Response(answer, status=HTTP_201_CREATED)


class SwapPreviewView(SeenByMost):
    """What a swap would move."""

    @extend_schema(request=SwapsSerializer, responses=SwapPreviewSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Nothing is changed; with reasons the swap would be refused."""
        machine = get_object_or_404(Machine, name=name)
        seen = services.preview_swap(machine, _swaps(request), now=clock.now())
        return Response(SwapPreviewSerializer(seen).data)


def _swaps(request: Request) -> list[identity.Swap]:
    body = SwapsSerializer(data=request.data)
    body.is_valid(raise_exception=True)
    return [
        identity.Swap(
            **{
                **swap,
                "claims": tuple(identity.Claim(**claim) for claim in swap["claims"]),
            }
        )
        for swap in body.validated_data["swaps"]
    ]


# --- parts and bundles --------------------------------------------------------------------------


class CountSerializer(StrictSerializer):
    """How often one signature came."""

    signature = serializers.CharField()
    faults = serializers.IntegerField()


class SojournSerializer(StrictSerializer):
    """One part in one slot; `since` null: it was there when its serial was first written down."""

    machine = serializers.CharField()
    kind = serializers.CharField()
    slot = serializers.CharField(allow_blank=True)
    model = serializers.CharField(allow_blank=True)
    since = serializers.DateTimeField(allow_null=True)
    until = serializers.DateTimeField(allow_null=True, help_text="null: still")
    faults = serializers.IntegerField()
    signatures = serializers.SerializerMethodField()

    def get_signatures(self, stay: parts.Sojourn) -> list[dict[str, Any]]:
        return [{"signature": name, "faults": count} for name, count in stay.signatures]


class PartHistorySerializer(StrictSerializer):
    """Where a part has been, oldest first, and the faults that it had there."""

    serial = serializers.CharField()
    as_of = serializers.DateTimeField()
    faults = serializers.IntegerField()
    results = SojournSerializer(many=True)


class PartView(SeenByMost):
    """Where a part has been."""

    @extend_schema(parameters=[AsOfQuerySerializer], responses=PartHistorySerializer)
    def get(self, request: Request, serial: str) -> Response:
        """Slots with intervals; a serial that nobody ever wrote down has been nowhere."""
        at = query_of(request, AsOfQuerySerializer)["as_of"] or clock.now()
        been = parts.been(serial, as_of=at)
        answer = {
            "serial": serial,
            "as_of": at,
            "faults": sum(stay.faults for stay in been),
            "results": been,
        }
        return Response(PartHistorySerializer(answer).data)


class IntendedSerializer(StrictSerializer):
    """What a machine is meant to run, why, and whether it can come to it."""

    machine = serializers.CharField()
    bundle = serializers.IntegerField(source="bundle.pk", allow_null=True, default=None)
    bundle_name = serializers.SerializerMethodField()
    why = serializers.CharField()
    standing = ChoiceField(_STANDINGS, source="drift.standing")
    reason = serializers.CharField(source="drift.reason", allow_blank=True)

    def get_bundle_name(self, seen: services.Intended) -> str | None:
        return str(seen.bundle) if seen.bundle else None


class IntendedView(SeenByMost):
    """What one machine is meant to run."""

    @extend_schema(responses=IntendedSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Its open rollout arm's bundle, else its pool's; `incompatible` if it cannot get there."""
        query_of(request, StrictSerializer)
        machine = get_object_or_404(Machine.objects.select_related("platform"), name=name)
        return Response(IntendedSerializer(services.intended(machine, now=clock.now())).data)
