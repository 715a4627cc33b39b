"""What happened to a rollout, in order, and what has stood as it is for how long."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db.models import Exists, F, OuterRef, Prefetch, Q, Window
from django.db.models.functions import Coalesce, Lag

from rollouts.lifecycle import PATIENCE, WAVE_PATIENCE, Status, WaveStatus
from rollouts.models import Attempt, ClockHold, Decision, Order, Reminder, Rollout, Transition, Wave

#: Statuses in which a rollout is over.
ENDED = (Status.ROLLED_BACK, Status.COMPLETED, Status.CANCELLED)


def pauses(rollout: Rollout) -> list[tuple[datetime, datetime]]:
    """Return the rollout's pauses that are over, in order."""
    moves = rollout.transitions.filter(wave=None).order_by("pk").values_list("new_status", "at")
    over, began = [], None
    for status, at in moves:
        if status == Status.PAUSED and began is None:
            began = at
        elif status != Status.PAUSED and began is not None:
            over.append((began, at))
            began = None
    return over


def turning_points(rollout: Rollout, *, limit: int = 200) -> list[Decision]:
    """Return the decisions that changed the one before in kind or reason code, oldest first."""
    told = rollout.decisions.select_related("wave").annotate(own_wave=Coalesce("wave_id", 0))
    keys = ("own_wave", "kind", "reason_code")
    before = told.annotate(**{f"{key}_before": Window(Lag(key), order_by="pk") for key in keys})
    is_same = Q(**{key: F(f"{key}_before") for key in keys})
    changed = before.filter(Q(kind_before=None) | ~is_same).order_by("-pk")
    return list(reversed(changed[:limit]))


def earlier_halts(rollout: Rollout, *, limit: int = 5) -> list[dict[str, Any]]:
    """Return the newest halts of other rollouts of the same bundle, with who or what halted."""
    halts = Transition.objects.filter(wave=None, new_status=Status.HALTED)
    told = (
        halts.filter(rollout__bundle=rollout.bundle_id)
        .exclude(rollout=rollout.pk)
        .select_related("rollout", "decision", "order__actor")
        .order_by("-pk")
    )
    return [
        {
            "rollout_id": one.rollout_id,
            "rollout": one.rollout.name,
            "at": one.at.isoformat(),
            "by": str(one.order.actor) if one.order else "",
            "reason": one.decision.reason
            if one.decision
            else one.order.reason
            if one.order
            else "",
        }
        for one in told[:limit]
    ]


def timeline(rollout: Rollout, *, limit: int = 100) -> list[dict[str, Any]]:
    """Return the newest orders, moves and turning decisions as one list, newest first."""
    orders = rollout.orders.select_related("actor", "second_person").order_by("-pk")[:limit]
    moves = rollout.transitions.select_related("wave").order_by("-pk")[:limit]
    holds = rollout.clock_holds.select_related("jump").order_by("-pk")[:limit]
    rows = [
        *_order_rows(orders),
        *_move_rows(moves),
        *_clock_rows(holds),
        *_decision_rows(reversed(turning_points(rollout))),
    ]
    return sorted(rows, key=lambda row: row["at"], reverse=True)[:limit]


def _order_rows(orders: Iterable[Order]) -> Iterable[dict[str, Any]]:
    for order in orders:
        yield {
            "at": order.at,
            "kind": "order",
            "what": order.kind,
            "who": str(order.actor),
            "reason": order.reason,
            "wave": order.parameters.get("wave"),
        }


def _move_rows(moves: Iterable[Transition]) -> Iterable[dict[str, Any]]:
    for transition in moves:
        yield {
            "at": transition.at,
            "kind": "move",
            "who": "",
            "what": f"{transition.old_status} → {transition.new_status}",
            "reason": transition.note,
            "wave": transition.wave.number if transition.wave else None,
        }


def _clock_rows(holds: Iterable[ClockHold]) -> Iterable[dict[str, Any]]:
    for hold in holds:
        yield {
            "at": hold.at,
            "kind": "clock",
            "who": hold.jump.host,
            "what": str(hold.jump),
            "reason": "windows keep their length; widening waits until somebody has looked",
            "wave": None,
        }


def _decision_rows(decisions: Iterable[Decision]) -> Iterable[dict[str, Any]]:
    for decision in decisions:
        yield {
            "at": decision.as_of,
            "kind": "decision",
            "who": "engine",
            "what": f"{decision.kind} ({decision.reason_code})",
            "reason": decision.reason,
            "wave": decision.wave.number if decision.wave else None,
        }


def clock_holds(rollout: Rollout) -> list[ClockHold]:
    """Return the settings of the clock that hold the rollout's widening: nobody has looked yet."""
    holds = list(rollout.clock_holds.select_related("jump").order_by("pk"))
    if not holds:
        return []
    said = rollout.orders.filter(kind=Order.Kind.ACKNOWLEDGE).values_list("parameters", flat=True)
    seen = {jump for parameters in said for jump in parameters.get("clock_jumps", [])}
    return [hold for hold in holds if hold.jump_id not in seen]


def standing_since(rollout: Rollout) -> datetime:
    """Return since when the rollout has had its present status."""
    last = rollout.transitions.filter(wave=None).order_by("-pk").first()
    return last.at if last else rollout.created_at


def wave_since(wave: Wave) -> datetime | None:
    """Return since when the wave has had its present status; None if it never moved."""
    last = wave.transitions.order_by("-pk").first()
    return last.at if last else wave.started_at


def attempt_since(attempt: Attempt) -> datetime:
    """Return since when the attempt has had its present status."""
    last = attempt.events.order_by("-pk").first()
    return last.at if last else attempt.created_at


def reminded_at(status: Status | WaveStatus, since: datetime | None) -> datetime | None:
    """Return when people are reminded of what has stood so since then; None where never."""
    if isinstance(status, WaveStatus):
        patience = WAVE_PATIENCE.get(status)
    else:
        patience = PATIENCE.get(status)
    return None if patience is None or since is None else since + patience


def standing_reminders(*, limit: int = 20) -> list[Reminder]:
    """Return the newest reminder of whatever still stands as it said, the newest first."""
    later = Reminder.objects.filter(
        rollout=OuterRef("rollout"), subject=OuterRef("subject"), pk__gt=OuterRef("pk")
    )
    newest = Reminder.objects.filter(~Exists(later)).exclude(rollout__status__in=ENDED)
    waves = Prefetch("rollout__waves", Wave.objects.only("rollout", "number", "status"))
    found = newest.select_related("rollout").prefetch_related(waves)
    rows = found.order_by("-pk")[: 5 * limit]
    return [reminder for reminder in rows if _still_stands(reminder)][:limit]


def _still_stands(reminder: Reminder) -> bool:
    rollout = reminder.rollout
    if reminder.subject == "rollout":
        return bool(rollout.status == reminder.status)
    number = int(reminder.subject.removeprefix("wave "))
    standing = {wave.number: wave.status for wave in rollout.waves.all()}
    return rollout.status == Status.RUNNING and standing.get(number) == reminder.status
