"""The gates of machines that a rollout updated: made by themselves, reviewed once per wave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from fleet.errors import IllegalGateMove, SameHands
from fleet.gate_state import why_not_review
from fleet.gating import Computed, Status
from fleet.models import FirmwareBundle, Gate, GateEvent, GatePlan, Machine, RepairKind
from fleet.services.gates.conformance import Found, record_computed
from fleet.services.gates.course import settle, void_gates
from fleet.services.gates.opening import create
from fleet.services.gates.plans import newest_plan
from fleet.services.gates.records import void


@transaction.atomic
def open_firmware_gate(
    machine: Machine,
    *,
    made_for: str,
    bundle: FirmwareBundle | None,
    why: str,
    found: Mapping[Computed, Found],
    is_smoke: bool,
    actor: str,
    now: datetime,
) -> Gate:
    """Open the gate of a machine on which a rollout has read back what it installed.

    Its computed checks are what the rollout found. The drill of the plan is asked for in the smoke
    wave only; the other waves are judged by their comparison.
    """
    Machine.objects.select_for_update().only("pk").get(pk=machine.pk)
    for old in machine.gates.filter(status__in=[*_STANDING]).select_related("machine"):
        said = f"{made_for} updated the machine since"
        void(old, said=said, now=now, moves_machine=False)
    plan = newest_plan(RepairKind.FIRMWARE_CHANGE)
    checks = [
        check
        for check in plan.checks
        if check["rule"].get("computed") in found or (is_smoke and check.get("smoke_only"))
    ]
    gate = Gate(
        machine=machine,
        plan=plan,
        made_for=made_for,
        why=why,
        bundle=bundle,
        bundle_why=f"the open rollout installed it: {made_for}",
        review=GatePlan.Review.ROLLOUT,
        opened_at=now,
        read_at=now,
        asked_at=now,
    )
    create(gate, checks=checks, actor=actor, now=now)
    record_computed(gate, found, now=now)
    settle(gate, now=now)
    return gate


_STANDING = (Status.OPEN, Status.OBSERVING, Status.AWAITING_REVIEW)


@dataclass(frozen=True)
class Reviewed:
    """What the review of a wave came to."""

    accepted: int
    void: int


def review_wave_gates(
    made_for: str, *, user: User, owners: Sequence[int], reason: str, now: datetime
) -> Reviewed:
    """Accept all gates of a wave at once; those with a newer fault are void. Safe to repeat.

    The number of statements does not grow with the machines, but for those that had a fault.

    Raises
    ------
    IllegalGateMove
        If some still lack a check of the drill, or none awaits a review.
    SameHands
        If this person does not answer for the rollout.
    """
    voided = void_gates(now=now)
    with transaction.atomic():
        own = Gate.objects.select_for_update().filter(made_for=made_for)
        waiting = list(own.filter(status=Status.AWAITING_REVIEW).order_by("pk"))
        lacking = own.filter(status=Status.OPEN).order_by("pk")
        if names := list(lacking.values_list("machine__name", flat=True)[:6]):
            raise IllegalGateMove(
                f"{made_for} is not ready for its review: checks of {', '.join(names[:5])}"
                f"{' and others' if len(names) > 5 else ''} are missing"
            )
        if not waiting:
            raise IllegalGateMove(f"no gate of {made_for!r} awaits a review")
        if why := why_not_review(waiting[0], user, owners=owners):
            raise SameHands(why)
        _accept_all(waiting, user=user, reason=reason, now=now)
    return Reviewed(len(waiting), voided)


def _accept_all(gates: Sequence[Gate], *, user: User, reason: str, now: datetime) -> None:
    keys = [gate.pk for gate in gates]
    Gate.objects.filter(pk__in=keys, status=Status.AWAITING_REVIEW).update(
        status=Status.PASSED, closed_at=now, closed_why=reason[:500], reviewer=user
    )
    actor, wall = user.get_username(), timezone.now()
    GateEvent.objects.bulk_create(
        [
            GateEvent(
                gate_id=pk,
                kind="accept",
                said=reason[:1000],
                at=now,
                actor=actor,
                user=user,
                recorded_at=wall,
            )
            for pk in keys
        ],
        batch_size=1000,
    )
