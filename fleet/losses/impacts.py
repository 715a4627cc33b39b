"""The impacts that are asked for: of which days, jobs and machines, and what they lost."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.db.models import (
    Case,
    CharField,
    Count,
    F,
    FloatField,
    Q,
    QuerySet,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Cast, Floor

from fleet.columns import Seconds
from fleet.models import JobImpact, Platform

#: Cause of an impact that no incident explains and whose source names none.
UNEXPLAINED = "unexplained"
#: Days that are shown where nobody says which, and the most that may be asked for.
DAYS = 28
MOST_DAYS = 400
DAY_SECONDS = 86400


@dataclass(frozen=True)
class Asked:
    """Which days (both in it), and of which jobs and machines; None: all."""

    since: date
    until: date
    job_kind: str | None = None
    platform: Platform | None = None
    pool: str | None = None
    per: str = "day"

    @property
    def begin(self) -> datetime:
        return datetime.combine(self.since, time.min, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """The first moment after the last day."""
        return datetime.combine(self.until + timedelta(days=1), time.min, tzinfo=UTC)

    def places(self, prefix: str = "") -> Q:
        """Return the condition on platform and pool of a row, or of the machine it names."""
        found = Q()
        if self.platform is not None:
            found &= Q(**{f"{prefix}platform": self.platform})
        if self.pool is not None:
            found &= Q(**{f"{prefix}pool": self.pool})
        return found

    def kinds(self) -> Q:
        return Q() if self.job_kind is None else Q(job_kind=self.job_kind)


@dataclass
class Loss:
    """What some impacts lost: `unknown` of them nobody can tell, and they add no hours."""

    impacts: int = 0
    unknown: int = 0
    hours: float = 0.0
    second_order: int = 0
    second_order_hours: float = 0.0
    repeated_told: int = 0
    repeated_seconds: float = 0.0
    repeated_hours: float = 0.0

    def add(self, other: "Loss") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def impacts(asked: Asked) -> QuerySet[Any]:
    """Return the impacts that stand, with their `why`: the incident's cause, or their source's."""
    chosen = JobImpact.objects.filter(
        asked.kinds(),
        asked.places("machine__"),
        corrected_by=None,
        fault_at__gte=asked.begin,
        fault_at__lt=asked.end,
    )
    why = Case(
        When(incident__merged_into__isnull=False, then=F("incident__merged_into__cause")),
        When(incident__isnull=False, then=F("incident__cause")),
        When(cause="", then=Value(UNEXPLAINED)),
        default=F("cause"),
        output_field=CharField(),
    )
    return chosen.annotate(why=why)


@dataclass(frozen=True)
class Cell:
    """What the impacts of one day, kind of job, path and cause lost together."""

    day: date
    job_kind: str
    path: str
    cause: str
    loss: Loss


def cells_of(asked: Asked) -> Iterator[Cell]:
    """Yield what was lost, added up by the database."""
    lost, repeated = "accelerator_hours_lost", F("repeated_seconds")
    second = Q(caused_by__isnull=False)
    rows = (
        impacts(asked)
        .order_by()
        .annotate(day=Floor(Seconds(F("fault_at")) / DAY_SECONDS))
        .values_list("day", "job_kind", "outcome", "why")
        .annotate(
            impacts=Count("pk"),
            told=Count(lost),
            hours=Sum(lost),
            second=Count("pk", filter=second),
            second_hours=Sum(lost, filter=second),
            repeated_told=Count("repeated_seconds"),
            seconds=Sum("repeated_seconds"),
            repeated_hours=Sum(
                repeated * Cast("accelerators", FloatField()) / 3600.0, output_field=FloatField()
            ),
        )
    )
    for day, kind, path, cause, count, told, hours, second_count, second_hours, *rest in rows:
        repeated_told, seconds, repeated_hours = rest
        loss = Loss(
            impacts=count,
            unknown=count - told,
            hours=hours or 0.0,
            second_order=second_count,
            second_order_hours=second_hours or 0.0,
            repeated_told=repeated_told,
            repeated_seconds=seconds or 0.0,
            repeated_hours=repeated_hours or 0.0,
        )
        yield Cell(date(1970, 1, 1) + timedelta(days=int(day)), kind, path, cause, loss)
