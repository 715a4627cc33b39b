"""A second person's word on a plan: bound to what was seen, signed with its risk, for a time."""

from datetime import datetime

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from fleet.models import BundleStatus, FirmwareBundle
from rollouts import selectors
from rollouts.errors import (
    ApprovalExpired,
    OrderRefused,
    PlanChanged,
    SamePerson,
    StaleRollout,
)
from rollouts.lifecycle import Status, Trigger, next_status
from rollouts.models import Order, Rollout
from rollouts.services.plans.risk import residual_risk
from rollouts.services.records import lock, move, record_order


@transaction.atomic
def approve(
    rollout: Rollout, *, actor: User, now: datetime, reason: str = "", digest: str | None = None
) -> Order:
    """Sign the plan's digest and the risk that is left; the approver is never the author.

    `digest` is that of the plan which the approver saw; without one, that of `rollout` as the
    caller read it. The order keeps the words that were signed.

    Raises
    ------
    OrderRefused
        If the bundle has been withdrawn since the plan was submitted.
    PlanChanged
        If the plan has another digest by now.
    SamePerson
        Unless the site allows one person to do both (`ALLOW_SELF_APPROVAL`), which the order says.
    """
    is_same = actor.pk == rollout.author_id
    if is_same and not settings.ALLOW_SELF_APPROVAL:
        raise SamePerson(f"{actor} wrote the plan of {rollout}; somebody else has to approve it")
    next_status(Status(rollout.status), Trigger.APPROVE)
    lock(rollout, Status(rollout.status))
    check_bundle(rollout)
    seen = rollout.plan_digest if digest is None else digest
    present = Rollout.objects.values_list("plan_digest", flat=True).get(pk=rollout.pk)
    if rollout.status == Status.AWAITING_APPROVAL and seen != present:
        raise PlanChanged(f"the plan of {rollout} has the digest {present} by now, not {seen!r}")
    order = record_order(
        rollout,
        Order.Kind.APPROVE,
        actor=actor,
        now=now,
        reason=reason,
        parameters={
            "plan_digest": present,
            "self_approved": is_same,
            "expires_at": (now + selectors.approval_holds(rollout)).isoformat(),
            "risk": residual_risk(rollout),
        },
    )
    move(rollout, Trigger.APPROVE, cause=order, now=now, approver=actor, approved_at=now)
    return order


@transaction.atomic
def deny(rollout: Rollout, *, actor: User, now: datetime, reason: str) -> Order:
    """Send a plan back to its author as a draft; the drawn order stays with its seed."""
    order = record_order(rollout, Order.Kind.DENY, actor=actor, now=now, reason=reason)
    move(rollout, Trigger.DENY, cause=order, now=now)
    return order


def check_bundle(rollout: Rollout) -> None:
    """Refuse to install what was withdrawn; taking it away again is always allowed.

    Whoever withdraws a bundle looks at its rollouts under their locks: one who holds the row of
    the rollout here either sees the bundle withdrawn, or is seen.

    Raises
    ------
    OrderRefused
        If the bundle is not approved as it stands, whatever was read of it before.
    """
    bundle = FirmwareBundle.objects.get(pk=rollout.bundle_id)
    if rollout.kind == Rollout.Kind.UPDATE and bundle.status != BundleStatus.APPROVED:
        raise OrderRefused([f"bundle {bundle} is {bundle.status}, not approved"])


def check_approval(rollout: Rollout, *, now: datetime) -> None:
    """Refuse to act on an approval that is too old: the fleet it was given for has moved on.

    Raises
    ------
    ApprovalExpired
        It is asked for anew by itself within the minute, and can be given at once.
    """
    ends = expires_at(rollout)
    if rollout.status == Status.APPROVED and ends is not None and ends <= now:
        raise ApprovalExpired(
            f"the approval of {rollout} by {rollout.approver} expired "
            f"{ends:%Y-%m-%d %H:%M} UTC; it has to be given anew"
        )


def expires_at(rollout: Rollout) -> datetime | None:
    """Return until when the rollout's approval holds; None where nobody has approved it."""
    return selectors.approval_ends(rollout)


def expire_approvals(*, now: datetime) -> int:
    """Ask anew for every approval that is too old; return how many. Safe to repeat."""
    approved = Rollout.objects.filter(status=Status.APPROVED, kind=Rollout.Kind.UPDATE)
    return sum(
        _expire(rollout, now=now)
        for rollout in approved.select_related("approver")
        if (ends := expires_at(rollout)) is not None and ends <= now
    )


def _expire(rollout: Rollout, *, now: datetime) -> int:
    note = f"the approval by {rollout.approver} expired"
    try:
        move(
            rollout,
            Trigger.EXPIRE,
            cause=None,
            now=now,
            note=note,
            approver=None,
            approved_at=None,
        )
    except StaleRollout:
        return 0  # somebody started or cancelled it meanwhile
    return 1
