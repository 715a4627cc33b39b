"""The gates of machines that a rollout updated: made by themselves, reviewed once per wave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction

from fleet.errors import IllegalGateMove, SameHands
from fleet.gate_state import why_not_review
from fleet.models import (
    CheckResult,
    FirmwareBundle,
    Gate,
    GateCheck,
    GateEvent,
    GatePlan,
    Machine,
    RepairKind,
)
from fleet.repair.gating import UNFINISHED, Computed, Status
from fleet.services.gates.conformance import Found, computed_result
from fleet.services.gates.course import void_wave_gates
from fleet.services.gates.opening import check_row
from fleet.services.gates.plans import newest_plan
from fleet.services.gates.records import event_row, lock, void


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
    wave only; the other waves are judged by their comparison. A few statements, whatever the
    checks: a wave has thousands of machines.
    """
    for old in machine.gates.filter(status__in=UNFINISHED):
        said = f"{made_for} updated the machine since"
        void(lock(old), said=said, now=now, moves_machine=False)
    plan = newest_plan(RepairKind.FIRMWARE_CHANGE)
    gate = Gate(
        machine=machine,
        plan=plan,
        made_for=made_for,
        why=why,
        bundle=bundle,
        bundle_why=f"installed by {made_for}",
        review=GatePlan.Review.ROLLOUT,
        opened_at=now,
        read_at=now,
        asked_at=now,
    )
    checks = [
        check_row(gate, check, position=position, rule=check["rule"])
        for position, check in enumerate(plan.checks)
        if check["rule"].get("computed") in found or (is_smoke and check.get("smoke_only"))
    ]
    results = [
        computed_result(check, found[Computed(check.rule["computed"])], now=now)
        for check in checks
        if "computed" in check.rule
    ]
    is_shown = len(results) == len(checks) and all(one.is_passed for one in results)
    gate.status = Status.AWAITING_REVIEW if is_shown else Status.OPEN
    gate.save()
    GateCheck.objects.bulk_create(checks)
    CheckResult.objects.bulk_create(results)
    steps = [("opened", why)] + [("to_review", "everything was read back")] * is_shown
    GateEvent.objects.bulk_create(
        event_row(gate, kind, said, actor=actor, now=now) for kind, said in steps
    )
    return gate


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
    voided = void_wave_gates(made_for, now=now)
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
    actor = user.get_username()
    GateEvent.objects.bulk_create(
        [event_row(gate, "accept", reason, actor=actor, user=user, now=now) for gate in gates],
        batch_size=1000,
    )
