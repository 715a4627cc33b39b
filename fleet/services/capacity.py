"""Keep, day by day, how many machines stood where; remade from what happened."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Min

from fleet import capacity
from fleet.models import CapacityDay, StateChange
from fleet.tally import Place, Tally, by_day

#: Days that are kept; what lies before can be counted again from the changes.
KEPT = timedelta(days=400)
_FIELDS = ["counts", "entered", "stays", "as_of"]
_MEASURED = ["canary", "cordoned", "qualified"]


def keep_days(*, now: datetime) -> int:
    """Add up every day that is not kept yet or was not over when it was; return how many.

    Safe to repeat and to race: a day's rows are remade from the changes, each day by itself, so
    nobody waits for the past to be added up. What only the present tells is measured for today.
    """
    today = now.astimezone(UTC).date()
    found = capacity.kept_before(today)
    start = _first_day(today) if found is None else found[0] + timedelta(days=1)
    if start is None:
        return 0
    base, after = ({}, None) if found is None else (found[1], capacity.day_over(found[0]))
    happened = capacity.events(after=after, until=now)
    days = 0
    for day, told in by_day(happened, first=start, last=today, base=base):
        _write(day, told, now=now, measured=capacity.measured(now=now) if day == today else None)
        days += 1
    if found is not None and not CapacityDay.objects.filter(day=found[0]).exists():
        _forget(start)  # something older was recorded meanwhile: the next run begins before it
    CapacityDay.objects.filter(day__lt=today - KEPT).delete()
    return days


def forget_days(*, since: datetime) -> None:
    """Drop the days from this time on: something older was recorded, and they are made anew."""
    _forget(since.astimezone(UTC).date())


def _forget(day: date) -> None:
    CapacityDay.objects.filter(day__gte=day).delete()


def _first_day(today: date) -> date | None:
    first = StateChange.objects.aggregate(at=Min("at"))["at"]
    return None if first is None else max(first.astimezone(UTC).date(), today - KEPT)


@transaction.atomic
def _write(
    day: date,
    told: Mapping[Place, Tally],
    *,
    now: datetime,
    measured: Mapping[str, Mapping[Place, int]] | None,
) -> None:
    rows = [
        CapacityDay(
            day=day,
            platform_id=place[0],
            pool=place[1],
            counts={state: n for state, n in tally.counts.items() if n},
            entered=dict(tally.entered),
            stays=dict(tally.stays),
            as_of=now,
            **_measured(place, measured),
        )
        for place, tally in told.items()
    ]
    CapacityDay.objects.bulk_create(
        rows,
        batch_size=500,
        update_conflicts=True,
        unique_fields=["day", "platform", "pool"],
        update_fields=_FIELDS + (_MEASURED if measured is not None else []),
    )


def _measured(place: Place, measured: Mapping[str, Mapping[Place, int]] | None) -> dict[str, Any]:
    return {} if measured is None else {name: own.get(place, 0) for name, own in measured.items()}
