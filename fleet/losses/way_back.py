"""How long machines that came back were away, part by part, and how many were there."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import F, OuterRef, QuerySet, Subquery

from fleet import capacity, goodput, queues
from fleet.columns import Seconds, read_columns
from fleet.goodput import Figure
from fleet.lifecycle import State
from fleet.losses.impacts import Asked, impacts
from fleet.models import StateChange
from fleet.queues import Figures

#: Steps of the way back, in their order; a detection is timed by impacts, a drain by its two moves.
PARTS = (
    "detect",
    "drain",
    State.AWAITING_DIAGNOSIS.value,
    State.DIAGNOSING.value,
    State.AWAITING_REPAIR.value,
    State.REPAIRING.value,
    State.AT_SUPPLIER.value,
    State.AWAITING_VALIDATION.value,
    State.VALIDATING.value,
    State.OBSERVING.value,
    State.AWAITING_RELEASE.value,
)


@dataclass(frozen=True)
class Back:
    """How long machines that came back were away, part by part, and how many were there."""

    whole: Figures
    parts: Sequence[Figures]
    availability: Figure
    qualified: Figure


def way_back(asked: Asked) -> Back:
    """Return how long machines that came back in these days were away, and in which part."""
    told = {**_stays(asked), "detect": _detections(asked), "drain": _drains(asked)}
    parts = [queues.figures(name, ended=told.get(name, ())) for name in PARTS]
    availability, qualified = _shares_of_days(asked)
    return Back(
        whole=queues.figures("out", ended=_returns(asked)),
        parts=parts,
        availability=availability,
        qualified=qualified,
    )


def _detections(asked: Asked) -> Sequence[float]:
    rows = impacts(asked).filter(detected_at__isnull=False).order_by()
    (seconds,), _ = read_columns(
        rows, numbers=(Seconds(F("detected_at")) - Seconds(F("fault_at")),)
    )
    return [float(one) / 3600 for one in seconds]


def _moves(asked: Asked, **fields: Any) -> QuerySet[StateChange]:
    return StateChange.objects.filter(
        asked.places("machine__"), at__gte=asked.begin, at__lt=asked.end, **fields
    ).order_by()


def _since(moves: QuerySet[StateChange], before: QuerySet[StateChange]) -> Sequence[float]:
    """Return the hours from the last of the changes before each move to that move."""
    last = before.filter(machine=OuterRef("machine"), at__lte=OuterRef("at"), pk__lt=OuterRef("pk"))
    began = Subquery(last.order_by("-at", "-pk").values("at")[:1])
    timed = moves.annotate(began=began).filter(began__isnull=False)
    (seconds,), _ = read_columns(timed, numbers=(Seconds(F("at")) - Seconds(F("began")),))
    return [float(one) / 3600 for one in seconds]


def _drains(asked: Asked) -> Sequence[float]:
    """Return how long drains took that ended with the machine out for diagnosis."""
    out = _moves(asked, old_state=State.DRAINING, new_state=State.AWAITING_DIAGNOSIS)
    return _since(out, StateChange.objects.filter(new_state=State.DRAINING))


def _returns(asked: Asked) -> Sequence[float]:
    """Return how long machines were away that were released, from their last hour of work on."""
    back = _moves(asked, old_state=State.AWAITING_RELEASE, new_state=State.IN_SERVICE)
    return _since(back, StateChange.objects.filter(old_state=State.IN_SERVICE))


def _stays(asked: Asked) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    kept = capacity.kept_days(since=asked.since, until=asked.until, places=asked.places())
    for day in kept:
        for state, seconds in day.stays.items():
            found[state] += [one / 3600 for one in seconds]
    return found


def _shares_of_days(asked: Asked) -> tuple[Figure, Figure]:
    """Return the shares in service and qualified of the machines installed, by the days' ends."""
    in_service = installed = qualified = measured = 0
    days = capacity.history(since=asked.since, until=asked.until, places=asked.places())
    for _, row in days:
        in_service += row.in_service
        installed += row.installed
        if row.qualified is not None:
            qualified += row.qualified
            measured += row.installed
    return (
        goodput.share(in_service, whole=installed, of="kept day with machines"),
        goodput.share(qualified, whole=measured, of="day on which it was measured"),
    )
