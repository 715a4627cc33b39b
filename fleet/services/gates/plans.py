"""Gate plans: their versions, and which one a machine has to pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from fleet.errors import GatePlanRefused
from fleet.faults import HAPPENED_AT
from fleet.lifecycle import State
from fleet.models import (
    Fault,
    FaultSignature,
    GatePlan,
    Incident,
    Machine,
    Repair,
    RepairKind,
    StateChange,
)
from fleet.repair import recurrence
from fleet.repair.gating import plan_problems
from fleet.repair.recurrence import Path, Remediation, Symptom

#: Of a machine that floods, the newest faults; the rules ask for a few of them.
MOST_SYMPTOMS = 10_000
LONGEST_OBSERVATION_HOURS = 28 * 24.0

#: What a repair of this kind is done to, where nobody named a component.
_PARTS = {
    RepairKind.GPU_RESET: "gpu",
    RepairKind.GPU_SWAP: "gpu",
    RepairKind.NUMERICAL: "gpu",
    RepairKind.NETWORK_SWAP: "nic",
    RepairKind.THERMAL: "cooling",
    RepairKind.FIRMWARE_CHANGE: "firmware",
    RepairKind.NEW_MACHINE: "machine",
}
_OTHER_PART = "host"


@transaction.atomic
def add_gate_plan(
    *,
    kind: str,
    level: int,
    title: str,
    checks: Any,
    workload: str,
    observation_hours: float,
    review: str,
    author: User,
) -> GatePlan:
    """Append the next version of a kind's plan; gates that are open keep the one they have.

    Raises
    ------
    GatePlanRefused
        If something is wrong with it; `reasons` lists everything at once.
    """
    reasons = plan_problems(checks)
    if kind not in RepairKind.values:
        reasons.append(f"kind: {kind!r}; accepted: {', '.join(RepairKind.values)}")
    if review not in GatePlan.Review.values:
        reasons.append(f"review: {review!r}; accepted: {', '.join(GatePlan.Review.values)}")
    if not 0 <= observation_hours <= LONGEST_OBSERVATION_HOURS:
        reasons.append(
            f"observation_hours: {observation_hours:g}; 0 to {LONGEST_OBSERVATION_HOURS:g} accepted"
        )
    if reasons:
        raise GatePlanRefused(reasons)
    own = GatePlan.objects.filter(kind=kind, level=level)
    newest = own.aggregate(version=Max("version"))["version"] or 0
    return GatePlan.objects.create(
        kind=kind,
        level=level,
        version=newest + 1,
        title=title,
        checks=checks,
        workload=workload,
        observation_hours=observation_hours,
        review=review,
        author=author.get_username(),
        recorded_at=timezone.now(),
    )


@dataclass(frozen=True)
class Choice:
    """The plan that was chosen, who reviews, and why in words; no plan for a lemon."""

    plan: GatePlan
    review: str
    why: str
    is_lemon: bool


def choose_plan(
    machine: Machine,
    *,
    kind: str,
    incident: Incident | None,
    now: datetime,
    repair: Repair | None = None,
) -> tuple[GatePlan, str]:
    """Return the plan that a machine has to pass after a repair, and why this one, in words."""
    chosen = choose(machine, kind=kind, incident=incident, now=now, repair=repair)
    return chosen.plan, chosen.why


def choose(
    machine: Machine,
    *,
    kind: str,
    incident: Incident | None,
    now: datetime,
    repair: Repair | None = None,
) -> Choice:
    """Choose by the kind of repair, and by how often the machine came back broken."""
    part = _part(kind, repair.component if repair else "", incident)
    if kind == RepairKind.NEW_MACHINE:
        path = Path(why=("a new machine",))
    else:
        path = recurrence.choose(
            Remediation(kind, part, now),
            earlier=_earlier(machine, now=now, present=repair),
            symptoms=_symptoms(machine, now=now),
            reviewed_at=_reviewed_at(machine),
        )
    plan = newest_plan(kind, level=path.level)
    words = [f"{kind}", *path.why]
    if path.level > plan.level:
        words.append(f"level {plan.level} is the longest that there is")
    words.append(f"plan {plan}")
    return Choice(plan, _review(plan, path), "; ".join(words), path.is_lemon)


def newest_plan(kind: str, *, level: int = 0) -> GatePlan:
    """Return the newest version of the kind's plan, of the level or the highest one below it."""
    plan = (
        GatePlan.objects.filter(kind=kind, level__lte=level).order_by("-level", "-version").first()
    )
    if plan is None:
        raise GatePlanRefused([f"there is no gate plan of the kind {kind!r}"])
    return plan


def _review(plan: GatePlan, path: Path) -> str:
    reviews = GatePlan.Review
    if path.needs_reliability:
        return reviews.RELIABILITY
    if plan.review == reviews.ROLLOUT or (path.needs_person and plan.review == reviews.AUTOMATIC):
        return reviews.HUMAN  # no rollout stands behind a repair
    return plan.review


def _earlier(machine: Machine, *, now: datetime, present: Repair | None) -> list[Remediation]:
    repairs = machine.repairs.filter(
        status=Repair.Status.CLOSED,
        closed_at__gt=now - max(recurrence.SAME_PART, recurrence.ANY_KIND),
        closed_at__lte=now,
    )
    if present is not None:
        repairs = repairs.exclude(pk=present.pk)
    return [
        Remediation(one.kind, _part(one.kind, one.component, one.incident), one.closed_at)
        for one in repairs.select_related("incident")
        if one.closed_at is not None
    ]


def _part(kind: str, component: str, incident: Incident | None) -> str:
    """Return the class of part that a repair was done to: of `gpu 3` it is `gpu`."""
    named = component or (incident.component if incident else "")
    if words := named.replace("/", " ").replace("-", " ").split():
        return words[0].rstrip("0123456789").casefold() or words[0]
    if kind and (known := _PARTS.get(RepairKind(kind))):
        return known
    family = incident.family.split(".")[0] if incident else ""
    return family or _OTHER_PART


def _symptoms(machine: Machine, *, now: datetime) -> Sequence[Symptom]:
    since = now - recurrence.SAME_PART
    faults = Fault.objects.annotate(at=HAPPENED_AT).filter(
        machine=machine,
        time__gt=since,  # no fault happened later than its own time: this reads an index
        at__gt=since,
        at__lte=now,
    )
    return [
        Symptom(
            one.signature.name,
            one.component,
            one.at,
            is_fatal=one.severity == FaultSignature.Severity.CRITICAL,
        )
        for one in faults.select_related("signature").order_by("-at", "-pk")[:MOST_SYMPTOMS]
    ]


def _reviewed_at(machine: Machine) -> datetime | None:
    """Return when those who own reliability last sent the machine on from their review."""
    decided = StateChange.objects.filter(machine=machine, old_state=State.LEMON_REVIEW)
    return decided.order_by("-at", "-pk").values_list("at", flat=True).first()
