"""What changed since then: reports, installs, orders, moves and clocks in one list."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from django.db.models import Count, Max, Model, Q, QuerySet

from fleet.models import Change, ClockJump, FirmwareRecord
from rollouts.lifecycle import FAILURES, AttemptStatus, Trigger, WaveTrigger
from rollouts.models import Attempt, Order, Transition

M = TypeVar("M", bound=Model)

#: Rows that one answer lists; the others are counted.
MOST = 500
#: Moves that change what machines run, or stop that.
_TELLING = (
    Trigger.START,
    Trigger.HALT,
    Trigger.ROLL_BACK,
    Trigger.FINISH_ROLL_BACK,
    Trigger.COMPLETE,
    WaveTrigger.START,
    WaveTrigger.WIDEN,
    WaveTrigger.HOLD,
    WaveTrigger.ADVANCE,
    WaveTrigger.SKIP,
)


@dataclass(frozen=True)
class Row:
    """One thing that changed; `source` says whose record it is, `reference` which one."""

    at: datetime
    source: str
    what: str
    who: str
    machines: int | None
    rollout: str
    reference: int | None


@dataclass(frozen=True)
class Answer:
    """The newest rows first, and how many were left off."""

    rows: tuple[Row, ...]
    left_off: int


def changed_since(since: datetime, *, until: datetime) -> Answer:
    """Return everything that changed between two times, whoever changed it."""
    between = Q(at__gte=since, at__lt=until)
    reports, more_reports = _newest(
        Change.objects.filter(between).select_related("reported_by").order_by("-at", "-pk")
    )
    orders, more_orders = _newest(
        Order.objects.filter(between).select_related("rollout", "actor").order_by("-at", "-pk")
    )
    moves, more_moves = _newest(
        Transition.objects.filter(between, trigger__in=_TELLING)
        .select_related("rollout", "wave")
        .order_by("-at", "-pk")
    )
    jumps, more_jumps = _newest(
        ClockJump.objects.filter(before__gte=since, before__lt=until).order_by("-before", "-pk")
    )
    found = [
        *_reported(reports),
        *_ordered(orders),
        *_moved(moves),
        *_installed(since, until),
        *_read_back(since, until),
        *_set(jumps),
    ]
    rows = sorted(found, key=lambda row: row.at, reverse=True)
    unread = more_reports + more_orders + more_moves + more_jumps
    return Answer(tuple(rows[:MOST]), max(len(rows) - MOST, 0) + unread)


def _newest(found: QuerySet[M]) -> tuple[list[M], int]:
    """Read the first rows that one answer may list, and count the others."""
    rows = list(found[: MOST + 1])
    return rows[:MOST], found.count() - MOST if len(rows) > MOST else 0


def _reported(found: Iterable[Change]) -> Iterator[Row]:
    for change in found:
        who = str(change.reported_by or change.source)
        what = f"{change.kind} {change}"
        yield Row(change.at, "report", what, who, change.machine_count, "", change.pk)


def _ordered(found: Iterable[Order]) -> Iterator[Row]:
    for order in found:
        words = f"{order.kind}: {order.reason}" if order.reason else order.kind
        name = order.rollout.name
        yield Row(order.at, "order", words, str(order.actor), None, name, order.rollout_id)


def _moved(found: Iterable[Transition]) -> Iterator[Row]:
    for move in found:
        subject = f"wave {move.wave.number}" if move.wave else "rollout"
        what = f"{subject}: {move.old_status} → {move.new_status}"
        size = move.wave.size if move.wave and move.trigger == WaveTrigger.START else None
        yield Row(move.at, "move", what, "", size, move.rollout.name, move.rollout_id)


def _installed(since: datetime, until: datetime) -> Iterator[Row]:
    """Yield one row per wave for the installs that ended; a row per machine would hide the rest."""
    ended = Attempt.objects.filter(
        finished_at__gte=since,
        finished_at__lt=until,
        status__in=[AttemptStatus.SUCCEEDED, *FAILURES],
    )
    names = ("rollout", "rollout__name", "rollout__kind", "wave__number")
    rows = (
        ended.order_by()
        .values(*names)
        .annotate(
            last=Max("finished_at"),
            n=Count("machine", distinct=True),
            failed=Count("pk", filter=Q(status__in=FAILURES)),
        )
    )
    for row in rows:
        kind = "rolled back" if row["rollout__kind"] == "roll_back" else "installed"
        what = f"wave {row['wave__number']}: {kind}, {row['failed']} failed"
        name, pk = row["rollout__name"], row["rollout"]
        yield Row(row["last"], "install", what, "", row["n"], name, pk)


def _read_back(since: datetime, until: datetime) -> Iterator[Row]:
    """Yield versions that were read back and that no attempt had installed."""
    rows = (
        FirmwareRecord.objects.filter(
            since__gte=since,
            since__lt=until,
            stage=FirmwareRecord.Stage.ACTIVE,
            source__in=(FirmwareRecord.Source.BMC, FirmwareRecord.Source.HOST),
        )
        .exclude(evidence__has_key="attempt")
        .order_by()
        .values("kind", "version")
        .annotate(last=Max("since"), n=Count("machine", distinct=True))
    )
    for row in rows:
        what = f"{row['kind']} {row['version']} was read back"
        yield Row(row["last"], "read_back", what, "somebody else", row["n"], "", None)


def _set(found: Iterable[ClockJump]) -> Iterator[Row]:
    for jump in found:
        yield Row(jump.before, "clock", str(jump), jump.host, None, "", jump.pk)
